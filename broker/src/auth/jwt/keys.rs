//! The keys that sign tokens: a secret, public keys in PEM, or a JSON Web Key Set (RFC 7517).

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::{digest, hmac, signature};
use rustls_pki_types::SubjectPublicKeyInfoDer;
use rustls_pki_types::pem::PemObject as _;
use serde::Deserialize;

use super::TokenFault;
use super::spki::{self, PublicKey};
use super::token::{Algorithm, Token};
use crate::auth::error::{AuthFileError, read_bytes};
use crate::config::Auth;

/// Bytes of the shortest secret (RFC 7518 §3.2).
const SECRET_BYTES_MIN: usize = 32;
/// Bits of an RSA modulus that are taken (RFC 7518 §3.3, and what can be verified).
const RSA_BYTES: std::ops::RangeInclusive<usize> = 256..=1_024;
/// Keys of one set.
const KEYS_MAX: usize = 64;

/// Tells keys apart, without being one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyMark(u64);

#[derive(Debug)]
pub(super) struct KeyRing(Vec<Key>);

struct Key {
    kid: Option<Box<str>>,
    mark: KeyMark,
    kind: Kind,
}

enum Kind {
    Secret(hmac::Key),
    /// RSAPublicKey in DER.
    Rsa(Box<[u8]>),
    RsaParts {
        n: Box<[u8]>,
        e: Box<[u8]>,
    },
    P256(Box<[u8]>),
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Key").field("kid", &self.kid).field("algorithm", &self.kind.algorithm()).finish()
    }
}

impl Kind {
    fn algorithm(&self) -> Algorithm {
        match self {
            Self::Secret(_) => Algorithm::Hs256,
            Self::Rsa(_) | Self::RsaParts { .. } => Algorithm::Rs256,
            Self::P256(_) => Algorithm::Es256,
        }
    }

    fn verify(&self, token: &Token<'_>) -> bool {
        let (signed, sign) = (token.signed, &token.signature);
        let rsa = &signature::RSA_PKCS1_2048_8192_SHA256;
        match self {
            Self::Secret(key) => hmac::verify(key, signed, sign).is_ok(),
            Self::Rsa(key) => signature::UnparsedPublicKey::new(rsa, key).verify(signed, sign).is_ok(),
            Self::RsaParts { n, e } => {
                signature::RsaPublicKeyComponents { n, e }.verify(rsa, signed, sign).is_ok()
            }
            Self::P256(key) => {
                let key = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, key);
                key.verify(signed, sign).is_ok()
            }
        }
    }
}

impl Key {
    fn new(kid: Option<Box<str>>, kind: Kind, material: &[u8]) -> Self {
        let digest = digest::digest(&digest::SHA256, material);
        let mut first = [0; 8];
        first.copy_from_slice(&digest.as_ref()[..8]);
        Self { kid, mark: KeyMark(u64::from_be_bytes(first)), kind }
    }

    fn secret(kid: Option<Box<str>>, secret: &[u8]) -> Option<Self> {
        (secret.len() >= SECRET_BYTES_MIN)
            .then(|| Self::new(kid, Kind::Secret(hmac::Key::new(hmac::HMAC_SHA256, secret)), secret))
    }
}

impl KeyRing {
    /// `None`: no file is configured.
    pub(super) fn read(auth: &Auth) -> Result<Option<Self>, AuthFileError> {
        let mut keys = Vec::new();
        if let Some(path) = &auth.jwt_secret_file {
            keys.push(read_secret(path)?);
        }
        if let Some(path) = &auth.jwt_public_key_file {
            keys.extend(read_pem(path)?);
        }
        if let Some(path) = &auth.jwt_jwks_file {
            keys.extend(read_set(path)?);
        }
        Ok((!keys.is_empty()).then_some(Self(keys)))
    }

    /// The key that signed. A key id that a key has must be the token's; a token without one is taken where only one key can be meant.
    pub(super) fn verify(&self, token: &Token<'_>) -> Result<KeyMark, TokenFault> {
        let fits = |key: &&Key| {
            let named = match (&key.kid, &token.kid) {
                (Some(of_key), Some(of_token)) => **of_key == **of_token,
                (None, _) | (_, None) => true,
            };
            key.kind.algorithm() == token.algorithm && named
        };
        let mut fitting: Vec<&Key> = self.0.iter().filter(fits).collect();
        if fitting.is_empty()
            || token.kid.is_none() && fitting.iter().filter(|key| key.kid.is_some()).count() > 1
        {
            return Err(TokenFault::NoKey);
        }
        // The key that is named goes first; those of files that name none are few.
        fitting.sort_by_key(|key| key.kid.is_none());
        let right = fitting.into_iter().find(|key| key.kind.verify(token));
        right.map(|key| key.mark).ok_or(TokenFault::Signature)
    }

    pub(super) fn has(&self, mark: KeyMark) -> bool {
        self.0.iter().any(|key| key.mark == mark)
    }
}

fn refuse(path: &Path, what: impl Into<String>) -> AuthFileError {
    AuthFileError::Key { path: path.to_owned(), what: what.into() }
}

/// Line ends and blanks around a secret are none of it.
fn read_secret(path: &Path) -> Result<Key, AuthFileError> {
    let bytes = read_bytes(path)?;
    Key::secret(None, bytes.trim_ascii()).ok_or_else(|| {
        refuse(path, format!("the secret has fewer than {SECRET_BYTES_MIN} bytes, which HS256 asks for"))
    })
}

fn read_pem(path: &Path) -> Result<Vec<Key>, AuthFileError> {
    let bytes = read_bytes(path)?;
    let mut keys = Vec::new();
    for key in SubjectPublicKeyInfoDer::pem_slice_iter(&bytes) {
        let key = key.map_err(|error| refuse(path, format!("is no PEM: {error}")))?;
        let kind = match spki::parse(&key) {
            Some(PublicKey::Rsa(key)) => Kind::Rsa(key.into()),
            Some(PublicKey::P256(key)) => Kind::P256(key.into()),
            None => return Err(refuse(path, "holds a key that is neither RSA nor on the curve P-256")),
        };
        keys.push(Key::new(None, kind, &key));
    }
    if keys.is_empty() || keys.len() > KEYS_MAX {
        return Err(refuse(path, format!("has not 1 to {KEYS_MAX} sections PUBLIC KEY")));
    }
    Ok(keys)
}

#[derive(Deserialize)]
struct Set {
    keys: Vec<serde_json::Value>,
}

/// The members of RFC 7517 §4 and RFC 7518 §6 that matter here; others are passed over.
#[derive(Deserialize)]
struct Member {
    kty: String,
    #[serde(rename = "use")]
    usage: Option<String>,
    alg: Option<String>,
    kid: Option<Box<str>>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
    k: Option<String>,
}

fn read_set(path: &Path) -> Result<Vec<Key>, AuthFileError> {
    let set: Set = serde_json::from_slice(&read_bytes(path)?)
        .map_err(|_| refuse(path, "is no JSON Web Key Set: {\"keys\": [...]}"))?;
    // §5: keys of a kind, or with a use, that is not known are passed over; malformed ones of a known kind are not.
    let mut keys = Vec::new();
    for (at, value) in set.keys.iter().enumerate() {
        let Ok(member) = Member::deserialize(value) else { continue };
        match member.key() {
            Ok(key) => keys.extend(key),
            Err(what) => return Err(refuse(path, format!("key {at}: {what}"))),
        }
    }
    if keys.is_empty() || keys.len() > KEYS_MAX {
        return Err(refuse(path, format!("has not 1 to {KEYS_MAX} keys for HS256, RS256 or ES256")));
    }
    Ok(keys)
}

impl Member {
    /// `None`: it is not for signatures of tokens.
    fn key(self) -> Result<Option<Key>, &'static str> {
        let wanted = match self.kty.as_str() {
            "oct" => "HS256",
            "RSA" => "RS256",
            "EC" if self.crv.as_deref() == Some("P-256") => "ES256",
            _ => return Ok(None),
        };
        let is_other = |said: &Option<String>, known: &str| said.as_ref().is_some_and(|said| said != known);
        if is_other(&self.usage, "sig") || is_other(&self.alg, wanted) {
            return Ok(None);
        }
        let bytes = |text: &Option<String>| {
            URL_SAFE_NO_PAD.decode(text.as_deref().unwrap_or_default()).map_err(|_| "is not base64url")
        };
        let key = match wanted {
            "HS256" => Key::secret(self.kid, &bytes(&self.k)?).ok_or("k has fewer than 32 bytes")?,
            "RS256" => {
                let trimmed = |bytes: Vec<u8>| -> Box<[u8]> {
                    bytes.into_iter().skip_while(|byte| *byte == 0).collect()
                };
                let (n, e) = (trimmed(bytes(&self.n)?), trimmed(bytes(&self.e)?));
                if !RSA_BYTES.contains(&n.len()) || e.is_empty() {
                    return Err("n has not 2,048 to 8,192 bits, or e is missing");
                }
                let material = [&n[..], &e[..]].concat();
                Key::new(self.kid, Kind::RsaParts { n, e }, &material)
            }
            _ => {
                let (x, y) = (bytes(&self.x)?, bytes(&self.y)?);
                if x.len() != 32 || y.len() != 32 {
                    return Err("x and y have not 32 bytes");
                }
                let point = [&[4], &x[..], &y[..]].concat();
                Key::new(self.kid, Kind::P256(point.clone().into()), &point)
            }
        };
        Ok(Some(key))
    }
}
