//! The messages of one exchange (RFC 5802 §5, §7), each taken apart strictly.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac};

use super::verifier::{ScramFile, Verifier};
use crate::auth::password::same_bytes;

/// Bytes of the longest message of a client.
const MESSAGE_BYTES_MAX: usize = 2_048;
/// Bytes of the longest nonce of a client.
const NONCE_BYTES_MAX: usize = 256;

/// Why an exchange fails. For the log of the broker: a client hears nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(in crate::auth) enum ScramFault {
    #[error("the message is malformed")]
    Malformed,
    #[error("channel binding is asked for, which is not offered")]
    ChannelBinding,
    #[error("an extension is asked for that is not known here")]
    Extension,
    #[error("it asks to act as another user")]
    OtherUser,
    #[error("the answer is not one to this challenge")]
    OtherChallenge,
    #[error("the proof is wrong, or there is no such user")]
    Proof,
}

/// What a client was asked, kept until it answers. It is answered once.
#[derive(Debug)]
pub(in crate::auth) struct Challenge {
    user: Arc<str>,
    verifier: Verifier,
    is_known: bool,
    gs2_header: Box<str>,
    client_first_bare: Box<str>,
    server_first: Box<str>,
    nonce: Box<str>,
}

/// The client knows the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::auth) struct Finished {
    pub(in crate::auth) user: Arc<str>,
    /// What proves to the client that this broker knows its verifier.
    pub(in crate::auth) server_final: Box<[u8]>,
}

impl Challenge {
    /// Answers `client-first-message`; `nonce` is fresh and printable.
    ///
    /// # Errors
    /// What is wrong with the message.
    pub(in crate::auth) fn new(
        file: &ScramFile,
        client_first: &[u8],
        nonce: &str,
    ) -> Result<Self, ScramFault> {
        let text = text(client_first)?;
        let (flag, rest) = text.split_once(',').ok_or(ScramFault::Malformed)?;
        match flag {
            // `y`: the client could bind, and was told of no offer.
            "n" | "y" => {}
            _ if flag.starts_with("p=") => return Err(ScramFault::ChannelBinding),
            _ => return Err(ScramFault::Malformed),
        }
        let (authorise_as, bare) = rest.split_once(',').ok_or(ScramFault::Malformed)?;
        let mut attributes = bare.split(',');
        let first = attributes.next().unwrap_or_default();
        if first.starts_with("m=") {
            return Err(ScramFault::Extension);
        }
        let user = name(first.strip_prefix("n=").ok_or(ScramFault::Malformed)?)?;
        if !authorise_as.is_empty() {
            let wanted = name(authorise_as.strip_prefix("a=").ok_or(ScramFault::Malformed)?)?;
            if wanted != user {
                return Err(ScramFault::OtherUser);
            }
        }
        let of_client = attributes.next().and_then(|nonce| nonce.strip_prefix("r="));
        let is_nonce = |nonce: &&str| {
            (1..=NONCE_BYTES_MAX).contains(&nonce.len()) && nonce.bytes().all(|byte| byte.is_ascii_graphic())
        };
        let nonce = format!("{}{nonce}", of_client.filter(is_nonce).ok_or(ScramFault::Malformed)?);
        let (verifier, is_known) = file.verifier(&user);
        let salt = STANDARD.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        Ok(Self {
            user: user.into(),
            verifier,
            is_known,
            gs2_header: text[..text.len() - bare.len()].into(),
            client_first_bare: bare.into(),
            server_first: server_first.into(),
            nonce: nonce.into(),
        })
    }

    /// `server-first-message`.
    #[must_use]
    pub(in crate::auth) fn server_first(&self) -> &str {
        &self.server_first
    }

    /// Judges `client-final-message`.
    ///
    /// # Errors
    /// What is wrong with it; a wrong password and an unknown user are the same.
    pub(in crate::auth) fn finish(self, client_final: &[u8]) -> Result<Finished, ScramFault> {
        let text = text(client_final)?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or(ScramFault::Malformed)?;
        let mut attributes = without_proof.split(',');
        let binding = attributes.next().and_then(|it| it.strip_prefix("c=")).ok_or(ScramFault::Malformed)?;
        let nonce = attributes.next().and_then(|it| it.strip_prefix("r=")).ok_or(ScramFault::Malformed)?;
        if binding != STANDARD.encode(&*self.gs2_header) || nonce != &*self.nonce {
            return Err(ScramFault::OtherChallenge);
        }
        let proof = STANDARD.decode(proof).map_err(|_| ScramFault::Malformed)?;
        let message = format!("{},{},{without_proof}", self.client_first_bare, self.server_first);
        let sign = |key: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message.as_bytes());
        let signature = sign(&self.verifier.stored_key);
        if proof.len() != signature.as_ref().len() {
            return Err(ScramFault::Malformed);
        }
        let client_key: Vec<u8> =
            proof.iter().zip(signature.as_ref()).map(|(proof, signature)| proof ^ signature).collect();
        let stored = digest::digest(&digest::SHA256, &client_key);
        // Both are looked at, whatever the first one says.
        if !(same_bytes(stored.as_ref(), &self.verifier.stored_key) & self.is_known) {
            return Err(ScramFault::Proof);
        }
        let server_final = format!("v={}", STANDARD.encode(sign(&self.verifier.server_key)));
        Ok(Finished { user: self.user, server_final: server_final.into_bytes().into() })
    }
}

fn text(message: &[u8]) -> Result<&str, ScramFault> {
    let text = std::str::from_utf8(message).map_err(|_| ScramFault::Malformed)?;
    if text.is_empty() || text.len() > MESSAGE_BYTES_MAX || text.contains('\0') {
        return Err(ScramFault::Malformed);
    }
    Ok(text)
}

/// A `saslname` as it was before its commas and equal signs were written `=2C` and `=3D`, prepared as RFC 4013 says.
fn name(encoded: &str) -> Result<String, ScramFault> {
    let mut name = String::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((before, after)) = rest.split_once('=') {
        name.push_str(before);
        name.push(match after.get(..2) {
            Some("2C") => ',',
            Some("3D") => '=',
            _ => return Err(ScramFault::Malformed),
        });
        rest = &after[2..];
    }
    name.push_str(rest);
    let name = stringprep::saslprep(&name).map_err(|_| ScramFault::Malformed)?.into_owned();
    if name.is_empty() { Err(ScramFault::Malformed) } else { Ok(name) }
}
