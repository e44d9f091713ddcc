//! A token taken apart (RFC 7515 §3.1, §5.2): nothing in it is believed before its signature is.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;

use super::TokenFault;

/// The algorithms that are taken (RFC 7518 §3.1). There is no `none`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Algorithm {
    Hs256,
    Rs256,
    Es256,
}

impl Algorithm {
    pub(super) fn of(name: &str) -> Option<Self> {
        match name {
            "HS256" => Some(Self::Hs256),
            "RS256" => Some(Self::Rs256),
            "ES256" => Some(Self::Es256),
            _ => None,
        }
    }
}

/// Duplicate members of the header are refused by this form (RFC 7515 §4).
#[derive(Deserialize)]
struct Header {
    alg: String,
    kid: Option<String>,
    /// Extensions that must be understood; none is (§4.1.11).
    crit: Option<serde_json::Value>,
    /// Detached payloads are not encoded (RFC 7797).
    b64: Option<serde_json::Value>,
    /// What stands in an encrypted token (RFC 7516).
    enc: Option<serde_json::Value>,
}

pub(super) struct Token<'a> {
    pub(super) algorithm: Algorithm,
    pub(super) kid: Option<String>,
    /// Header and payload as they were signed.
    pub(super) signed: &'a [u8],
    pub(super) payload: Vec<u8>,
    pub(super) signature: Vec<u8>,
}

impl<'a> Token<'a> {
    pub(super) fn parse(token: &'a [u8]) -> Result<Self, TokenFault> {
        let dots: Vec<usize> =
            token.iter().enumerate().filter(|(_, byte)| **byte == b'.').map(|(at, _)| at).collect();
        let &[first, second] = dots.as_slice() else { return Err(TokenFault::Malformed) };
        let decode = |part: &[u8]| URL_SAFE_NO_PAD.decode(part).map_err(|_| TokenFault::Malformed);
        let header: Header =
            serde_json::from_slice(&decode(&token[..first])?).map_err(|_| TokenFault::Malformed)?;
        if header.crit.is_some() || header.b64.is_some() || header.enc.is_some() {
            return Err(TokenFault::Critical);
        }
        Ok(Self {
            algorithm: Algorithm::of(&header.alg).ok_or(TokenFault::NoKey)?,
            kid: header.kid,
            signed: &token[..second],
            payload: decode(&token[first + 1..second])?,
            signature: decode(&token[second + 1..])?,
        })
    }
}
