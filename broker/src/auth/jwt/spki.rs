//! Public keys in PEM files: the SubjectPublicKeyInfo of RFC 5280 §4.1, as `openssl pkey -pubout` writes it.

/// `rsaEncryption` (RFC 8017 §A.1).
const RSA: &[u8] = &[0x2A, 0x86, 0x48, 0x86, 0xF7, 0x0D, 0x01, 0x01, 0x01];
/// `id-ecPublicKey` (RFC 5480 §2.1.1) and the curve `secp256r1` (§2.1.1.1).
const EC: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01];
const P256: &[u8] = &[0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x03, 0x01, 0x07];

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
const BIT_STRING: u8 = 0x03;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum PublicKey<'a> {
    /// RSAPublicKey in DER.
    Rsa(&'a [u8]),
    /// A point of P-256, not compressed.
    P256(&'a [u8]),
}

/// `None`: it is no such key, or of a kind that is not taken.
pub(super) fn parse(der: &[u8]) -> Option<PublicKey<'_>> {
    let (info, rest) = element(SEQUENCE, der)?;
    let (algorithm, key) = element(SEQUENCE, info)?;
    let (name, parameters) = element(OBJECT_IDENTIFIER, algorithm)?;
    let (key, behind) = element(BIT_STRING, key)?;
    let (unused, key) = key.split_first()?;
    if !rest.is_empty() || !behind.is_empty() || *unused != 0 {
        return None;
    }
    match name {
        RSA => Some(PublicKey::Rsa(key)),
        EC if element(OBJECT_IDENTIFIER, parameters)?.0 == P256 => {
            (key.len() == 65 && key[0] == 4).then_some(PublicKey::P256(key))
        }
        _ => None,
    }
}

/// Content of the first element, which has this tag, and what follows it.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (first, rest) = der.split_first()?;
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7F => (usize::from(*length), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => (usize::from(*rest.first()?) << 8 | usize::from(*rest.get(1)?), &rest[2..]),
        _ => return None,
    };
    (*first == tag && rest.len() >= length).then(|| rest.split_at(length))
}
