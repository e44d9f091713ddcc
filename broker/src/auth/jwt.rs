//! JSON Web Tokens as passwords (RFC 7519): who signed, for whom, until when, with which rules.
//!
//! Only what a broker needs of RFC 7515 is taken: the compact form, and the algorithms HS256, RS256 and ES256. The key decides which
//! algorithm is right, never the token: what the header says is held against the kind of the key.

mod claims;
mod keys;
mod spki;
mod token;

use std::sync::Arc;

use super::error::AuthFileError;
use super::grants::ClientRules;
use crate::config::Auth;
pub use keys::KeyMark;
use keys::KeyRing;

/// Bytes of the longest token.
const TOKEN_BYTES_MAX: usize = 16 << 10;

/// Says which tokens are good.
#[derive(Debug)]
pub struct Tokens {
    keys: KeyRing,
    issuer: Option<Arc<str>>,
    audience: Option<Arc<str>>,
    user_claim: Arc<str>,
    leeway_sec: u64,
    /// How far away `exp` may be.
    lifetime_max_sec: Option<u64>,
}

/// What a good token says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bearer {
    pub user: Arc<str>,
    /// From then on the token is no proof any more; the leeway is in it.
    pub until_ms: u64,
    pub rules: Option<Arc<ClientRules>>,
    /// The key that it was signed with: when that is taken away, so is the token.
    pub key: KeyMark,
}

/// Why a token is not taken. For the log of the broker: a client hears nothing of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenFault {
    #[error("it has more than {TOKEN_BYTES_MAX} bytes")]
    TooLong,
    #[error("it is no JSON Web Token in the compact form")]
    Malformed,
    #[error("its header asks for something that is not known here")]
    Critical,
    #[error("no key fits its algorithm and key id")]
    NoKey,
    #[error("its signature is wrong")]
    Signature,
    #[error("its claims are malformed")]
    Claims,
    #[error("it has no exp: it would be good for ever")]
    NoExpiry,
    #[error("it expired")]
    Expired,
    #[error("its exp is farther away than auth.jwt_lifetime_max_s allows")]
    TooFar,
    #[error("it is not valid yet")]
    NotYet,
    #[error("it is of another issuer")]
    Issuer,
    #[error("it is for somebody else")]
    Audience,
    #[error("it names no user")]
    NoUser,
    #[error("the CONNECT names another user")]
    OtherUser,
    #[error("its rules are malformed")]
    Rules,
}

impl Tokens {
    /// Reads the keys; `None`: none are configured.
    ///
    /// # Errors
    /// A file that cannot be read or holds no usable key.
    pub fn read(auth: &Auth) -> Result<Option<Self>, AuthFileError> {
        let keys = KeyRing::read(auth)?;
        Ok(keys.map(|keys| Self {
            keys,
            issuer: auth.jwt_issuer.clone(),
            audience: auth.jwt_audience.clone(),
            user_claim: auth.jwt_user_claim.clone(),
            leeway_sec: u64::from(auth.jwt_leeway_s),
            lifetime_max_sec: (auth.jwt_lifetime_max_s > 0).then(|| u64::from(auth.jwt_lifetime_max_s)),
        }))
    }

    /// Whether a password is meant as a token: three parts, the first of which begins as a
    /// JSON object does.
    #[must_use]
    pub fn looks_like_one(password: &[u8]) -> bool {
        // `{"`, or a blank or an end of line behind the brace.
        [b"ey", b"ew"].iter().any(|object| password.starts_with(*object))
            && password.iter().filter(|byte| **byte == b'.').count() == 2
    }

    /// Who brings this token, to connect as `client_id` and, if it is said, as `user_name`.
    ///
    /// # Errors
    /// Why it is not taken.
    pub fn check(
        &self,
        token: &[u8],
        user_name: Option<&str>,
        client_id: &str,
        now_ms: u64,
    ) -> Result<Bearer, TokenFault> {
        if token.len() > TOKEN_BYTES_MAX {
            return Err(TokenFault::TooLong);
        }
        let token = token::Token::parse(token)?;
        let key = self.keys.verify(&token)?;
        let claims = claims::Claims::parse(&token.payload)?;
        let until_ms = claims.check_times(now_ms, self.leeway_sec, self.lifetime_max_sec)?;
        claims.check_issuer(self.issuer.as_deref())?;
        claims.check_audience(self.audience.as_deref())?;
        let user: Arc<str> = claims.text(&self.user_claim).ok_or(TokenFault::NoUser)?.into();
        // MQTT 3.1.1 has no password without a user name: an empty one says nothing.
        if user_name.is_some_and(|name| !name.is_empty() && *name != *user) {
            return Err(TokenFault::OtherUser);
        }
        let rules = claims.rules(&user, client_id)?.map(Arc::new);
        Ok(Bearer { user, until_ms, rules, key })
    }

    /// Whether the key is still one of those that sign.
    #[must_use]
    pub fn has(&self, key: KeyMark) -> bool {
        self.keys.has(key)
    }
}

#[cfg(test)]
mod jwt_test;
