//! SCRAM-SHA-256 (RFC 5802, RFC 7677) as the authentication method of MQTT 5 §4.12: the password never comes here, and the client learns
//! that this broker knows it.

mod exchange;
mod verifier;

pub(super) use exchange::Challenge;
pub use verifier::{ScramFile, add_scram_user, remove_scram_user};

/// The Authentication Method. Channel binding (`-PLUS`) is not offered.
pub(super) const METHOD: &str = "SCRAM-SHA-256";

#[cfg(test)]
mod scram_test;
