//! The file of SCRAM verifiers: with what stands in it a password can be checked, and only found by guessing.
//!
//! One `user:SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey` a line, the form in which PostgreSQL keeps them. The line
//! `#salt-key …` holds what the salts of users that do not exist are made of: nodes that share the file, and every start, give the same ones.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SecureRandom as _;
use ring::{digest, hmac, pbkdf2, rand};

use super::METHOD;
use crate::auth::error::{AuthFileError, read_text};
use crate::auth::user_file::{Editing, check_name, split_line, without};

/// What we write. The client does this work, which may be a small device (RFC 7677 §4: at least 4,096).
const ITERATIONS: NonZeroU32 = NonZeroU32::new(15_000).expect("not zero");
const ITERATIONS_MIN: u32 = 4_096;
const ITERATIONS_MAX: u32 = 10_000_000;
const SALT_BYTES: usize = 16;
const SALT_BYTES_MAX: usize = 64;
const KEY_BYTES: usize = digest::SHA256_OUTPUT_LEN;
const SALT_KEY: &str = "#salt-key ";

/// What a proof of one user is held against.
#[derive(Clone)]
pub(super) struct Verifier {
    pub(super) iterations: NonZeroU32,
    pub(super) salt: Box<[u8]>,
    pub(super) stored_key: [u8; KEY_BYTES],
    pub(super) server_key: [u8; KEY_BYTES],
}

/// Users and their verifiers.
#[derive(Debug)]
pub struct ScramFile {
    users: HashMap<Box<str>, Verifier>,
    salt_key: hmac::Key,
}

impl std::fmt::Debug for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

impl ScramFile {
    /// Reads the whole file.
    ///
    /// # Errors
    /// When it cannot be read, the first line that is no verifier, or when the line `#salt-key` is missing.
    pub fn read(path: &Path) -> Result<Self, AuthFileError> {
        Self::parse(path, &read_text(path)?)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, AuthFileError> {
        let wrong =
            |line, what: &str| AuthFileError::Line { path: path.to_owned(), line, what: what.to_owned() };
        let mut users = HashMap::new();
        let mut salt_key = None;
        for (index, line) in text.lines().enumerate() {
            let wrong = |what: &str| wrong(index + 1, what);
            if let Some(key) = line.strip_prefix(SALT_KEY) {
                let key = STANDARD.decode(key.trim()).ok().filter(|key| key.len() == KEY_BYTES);
                salt_key = Some(key.ok_or_else(|| wrong("its key is not base64 of 32 bytes"))?);
                continue;
            }
            let Some((user, verifier)) = split_line(line).map_err(|what| wrong(&what))? else { continue };
            let verifier = Verifier::parse(verifier).ok_or_else(|| {
                wrong("is not user:SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey with at least 4096 iterations")
            })?;
            if users.insert(user.into(), verifier).is_some() {
                return Err(wrong("names a user a second time; remove one of the lines"));
            }
        }
        let salt_key = salt_key.ok_or_else(|| {
            wrong(1, "the file has no line \"#salt-key KEY\" with 32 random bytes in base64, which hides who is in it")
        })?;
        Ok(Self { users, salt_key: hmac::Key::new(hmac::HMAC_SHA256, &salt_key) })
    }

    /// What the user is asked, and whether there is one: nobody else can tell, now or by asking again.
    pub(super) fn verifier(&self, user: &str) -> (Verifier, bool) {
        if let Some(verifier) = self.users.get(user) {
            return (verifier.clone(), true);
        }
        let part = |what: &[u8]| {
            let mut context = hmac::Context::with_key(&self.salt_key);
            context.update(what);
            context.update(user.as_bytes());
            let mut part = [0; KEY_BYTES];
            part.copy_from_slice(context.sign().as_ref());
            part
        };
        let verifier = Verifier {
            iterations: ITERATIONS,
            salt: part(b"salt ")[..SALT_BYTES].into(),
            stored_key: part(b"stored "),
            server_key: part(b"server "),
        };
        (verifier, false)
    }

    #[must_use]
    pub fn contains(&self, user: &str) -> bool {
        self.users.contains_key(user)
    }
}

impl Verifier {
    fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(METHOD)?.strip_prefix('$')?;
        let (parameters, keys) = rest.split_once('$')?;
        let (iterations, salt) = parameters.split_once(':')?;
        let (stored, server) = keys.split_once(':')?;
        let iterations: u32 = iterations.parse().ok()?;
        let salt = STANDARD.decode(salt).ok().filter(|salt| (1..=SALT_BYTES_MAX).contains(&salt.len()))?;
        let key = |text: &str| STANDARD.decode(text).ok()?.try_into().ok();
        (ITERATIONS_MIN..=ITERATIONS_MAX).contains(&iterations).then_some(())?;
        Some(Self {
            iterations: NonZeroU32::new(iterations)?,
            salt: salt.into(),
            stored_key: key(stored)?,
            server_key: key(server)?,
        })
    }

    fn show(&self) -> String {
        let [salt, stored, server] =
            [&self.salt[..], &self.stored_key, &self.server_key].map(|it| STANDARD.encode(it));
        format!("{METHOD}${}:{salt}${stored}:{server}", self.iterations)
    }

    /// RFC 5802 §3.
    pub(super) fn of_password(password: &str, salt: &[u8], iterations: NonZeroU32) -> Self {
        let mut salted = [0; KEY_BYTES];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, password.as_bytes(), &mut salted);
        let salted = hmac::Key::new(hmac::HMAC_SHA256, &salted);
        let client_key = hmac::sign(&salted, b"Client Key");
        let mut verifier =
            Self { iterations, salt: salt.into(), stored_key: [0; KEY_BYTES], server_key: [0; KEY_BYTES] };
        let stored = digest::digest(&digest::SHA256, client_key.as_ref());
        verifier.stored_key.copy_from_slice(stored.as_ref());
        verifier.server_key.copy_from_slice(hmac::sign(&salted, b"Server Key").as_ref());
        verifier
    }
}

/// Adds a user or changes the password of one; the file is made (0600) when it is missing. True: the user is new.
///
/// # Errors
/// A user name or a password that cannot be prepared as RFC 4013 asks, a damaged file, I/O. The file is then unchanged.
pub fn add_scram_user(path: &Path, user: &str, password: &[u8]) -> Result<bool, AuthFileError> {
    check_name(user)?;
    let refuse = |what: &str| AuthFileError::UserName { name: user.to_owned(), what: what.to_owned() };
    if stringprep::saslprep(user).ok().as_deref() != Some(user) {
        return Err(refuse("is not what clients make of it (RFC 4013); write it in its plain form"));
    }
    let text = std::str::from_utf8(password).map_err(|_| refuse("has a password that is not UTF-8"))?;
    let password = stringprep::saslprep(text).ok().filter(|password| !password.is_empty());
    let password = password.ok_or_else(|| refuse("has a password with characters that RFC 4013 forbids"))?;
    let mut salt = [0; SALT_BYTES];
    fill(&mut salt)?;
    let entry = format!("{user}:{}", Verifier::of_password(&password, &salt, ITERATIONS).show());
    let editing = Editing::begin(path)?;
    let path = editing.path();
    let text = if path.exists() { read_text(path)? } else { new_file()? };
    let known = ScramFile::parse(path, &text)?.contains(user);
    let mut lines = without(&text, user);
    lines.push(&entry);
    editing.replace(&lines)?;
    Ok(!known)
}

/// Removes a user.
///
/// # Errors
/// When there is no such user, a damaged file, I/O. The file is then unchanged.
pub fn remove_scram_user(path: &Path, user: &str) -> Result<(), AuthFileError> {
    let editing = Editing::begin(path)?;
    let path = editing.path();
    let text = read_text(path)?;
    if !ScramFile::parse(path, &text)?.contains(user) {
        return Err(AuthFileError::NoUser { path: path.to_owned(), name: user.to_owned() });
    }
    editing.replace(&without(&text, user))
}

fn new_file() -> Result<String, AuthFileError> {
    let mut key = [0; KEY_BYTES];
    fill(&mut key)?;
    Ok(format!("{SALT_KEY}{}\n", STANDARD.encode(key)))
}

fn fill(bytes: &mut [u8]) -> Result<(), AuthFileError> {
    rand::SystemRandom::new().fill(bytes).map_err(|_| AuthFileError::Random)
}
