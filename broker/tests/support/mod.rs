//! What the broker's own suites share.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each suite uses its part")]

pub mod bench;
pub mod client;
pub mod rows;
