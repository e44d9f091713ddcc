//! The password file: mosquitto's format, so that existing files and `mosquitto_passwd` go on working.
//!
//! One `user:hash` a line. `$7$iterations$salt$hash` is PBKDF2-HMAC-SHA-512, `$6$salt$hash` the older
//! SHA-512(password, salt); salt and hash are base64. Only `$7$` is written, never plain text.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::rand::SecureRandom as _;
use ring::{digest, hmac, pbkdf2, rand};

use super::error::{AuthFileError, read_text};
use super::user_file::{Editing, check_name, split_line, without};

/// What we write. mosquitto's tool writes 101, which a graphics card tries by the million.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(100_000).expect("not zero");
/// A file that asks for more would stall every login.
const ITERATIONS_MAX: u32 = 10_000_000;
const HASH_BYTES: usize = digest::SHA512_OUTPUT_LEN;
/// As mosquitto's tool writes it, which older mosquittos insist on.
const SALT_BYTES: usize = 12;
const SALT_BYTES_MAX: usize = 64;

/// Users and their hashed passwords.
#[derive(Debug)]
pub struct PasswordFile {
    users: HashMap<Box<str>, Hash>,
}

#[derive(Debug)]
enum Hash {
    Pbkdf2 { iterations: NonZeroU32, salt: Box<[u8]>, hash: [u8; HASH_BYTES] },
    Sha512 { salt: Box<[u8]>, hash: [u8; HASH_BYTES] },
}

impl PasswordFile {
    /// Reads the whole file.
    ///
    /// # Errors
    /// When it cannot be read, or the first line that is not `user:hash`. A user that stands there twice is an error: which
    /// password counts would be a guess.
    pub fn read(path: &Path) -> Result<Self, AuthFileError> {
        Self::parse(&read_text(path)?).map_err(|(line, what)| AuthFileError::Line {
            path: path.to_owned(),
            line,
            what,
        })
    }

    /// Err: (line, what is wrong).
    fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut users = HashMap::new();
        for (index, line) in text.lines().enumerate() {
            let Some((user, hash)) = split_line(line).map_err(|what| (index + 1, what))? else { continue };
            let hash = Hash::parse(hash).map_err(|what| (index + 1, what))?;
            if users.insert(user.into(), hash).is_some() {
                return Err((
                    index + 1,
                    format!("user {user:?} stands here a second time; remove one of the lines"),
                ));
            }
        }
        Ok(Self { users })
    }

    /// Whether this is the user's password. Takes as long for a user that does not exist.
    #[must_use]
    pub fn verify(&self, user: &str, password: &[u8]) -> bool {
        match self.users.get(user) {
            Some(hash) => hash.verify(password),
            None => {
                let mut ignored = [0; HASH_BYTES];
                pbkdf2::derive(
                    pbkdf2::PBKDF2_HMAC_SHA512,
                    ITERATIONS,
                    user.as_bytes(),
                    password,
                    &mut ignored,
                );
                false
            }
        }
    }

    #[must_use]
    pub fn contains(&self, user: &str) -> bool {
        self.users.contains_key(user)
    }

    /// Number of users.
    #[must_use]
    pub fn len(&self) -> usize {
        self.users.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.users.is_empty()
    }
}

impl Hash {
    fn parse(text: &str) -> Result<Self, String> {
        let plain = || {
            "has no password hash this broker knows ($7$ or $6$); plain text is not read: use `exactmq user add`".to_owned()
        };
        let rest = text.strip_prefix('$').ok_or_else(plain)?;
        let parts: Vec<&str> = rest.split('$').collect();
        match parts.as_slice() {
            ["7", iterations, salt, hash] => {
                let iterations = iterations.parse().ok().filter(|count| (1..=ITERATIONS_MAX).contains(count));
                let iterations = iterations.and_then(NonZeroU32::new);
                let iterations =
                    iterations.ok_or_else(|| format!("its iteration count is not 1 to {ITERATIONS_MAX}"))?;
                Ok(Self::Pbkdf2 { iterations, salt: parse_salt(salt)?, hash: parse_hash(hash)? })
            }
            ["6", salt, hash] => Ok(Self::Sha512 { salt: parse_salt(salt)?, hash: parse_hash(hash)? }),
            _ => Err(plain()),
        }
    }

    /// `$7$…` with a fresh salt.
    fn write(password: &[u8]) -> Result<String, AuthFileError> {
        let mut salt = [0; SALT_BYTES];
        rand::SystemRandom::new().fill(&mut salt).map_err(|_| AuthFileError::Random)?;
        let mut hash = [0; HASH_BYTES];
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA512, ITERATIONS, &salt, password, &mut hash);
        Ok(format!("$7${ITERATIONS}${}${}", STANDARD.encode(salt), STANDARD.encode(hash)))
    }

    fn verify(&self, password: &[u8]) -> bool {
        // HMAC pads its key with zeros: a password with zeros behind it would pass as the one without.
        if password.contains(&0) {
            return false;
        }
        match self {
            Self::Pbkdf2 { iterations, salt, hash } => {
                pbkdf2::verify(pbkdf2::PBKDF2_HMAC_SHA512, *iterations, salt, password, hash).is_ok()
            }
            Self::Sha512 { salt, hash } => {
                let mut context = digest::Context::new(&digest::SHA512);
                context.update(password);
                context.update(salt);
                same_bytes(context.finish().as_ref(), hash)
            }
        }
    }
}

/// Compares in a time that does not depend on where the bytes differ: by their digests under a key.
pub(crate) fn same_bytes(a: &[u8], b: &[u8]) -> bool {
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"exactmq constant-time comparison");
    hmac::verify(&key, b, hmac::sign(&key, a).as_ref()).is_ok()
}

fn parse_salt(text: &str) -> Result<Box<[u8]>, String> {
    let salt = STANDARD.decode(text).map_err(|_| "its salt is not base64")?;
    if (1..=SALT_BYTES_MAX).contains(&salt.len()) {
        Ok(salt.into())
    } else {
        Err(format!("its salt has not 1 to {SALT_BYTES_MAX} bytes"))
    }
}

fn parse_hash(text: &str) -> Result<[u8; HASH_BYTES], String> {
    let hash = STANDARD.decode(text).map_err(|_| "its hash is not base64")?;
    hash.try_into().map_err(|_| format!("its hash has not {HASH_BYTES} bytes"))
}

/// Adds a user or changes the password of one; the file is made (0600) when it is missing. True: the user is new.
///
/// # Errors
/// A user name that cannot stand in the file, a damaged file, I/O. The file is then unchanged.
pub fn add_user(path: &Path, user: &str, password: &[u8]) -> Result<bool, AuthFileError> {
    check_name(user)?;
    let entry = format!("{user}:{}", Hash::write(password)?);
    let editing = Editing::begin(path)?;
    let path = editing.path();
    let text = if path.exists() { read_text(path)? } else { String::new() };
    let (mut lines, known) = without_user(path, &text, user)?;
    lines.push(&entry);
    editing.replace(&lines)?;
    Ok(!known)
}

/// Removes a user.
///
/// # Errors
/// When there is no such user, a damaged file, I/O. The file is then unchanged.
pub fn remove_user(path: &Path, user: &str) -> Result<(), AuthFileError> {
    let editing = Editing::begin(path)?;
    let path = editing.path();
    let text = read_text(path)?;
    let (lines, known) = without_user(path, &text, user)?;
    if !known {
        return Err(AuthFileError::NoUser { path: path.to_owned(), name: user.to_owned() });
    }
    editing.replace(&lines)
}

/// All other lines, comments included, and whether the user was there. A damaged file is not edited.
fn without_user<'a>(path: &Path, text: &'a str, user: &str) -> Result<(Vec<&'a str>, bool), AuthFileError> {
    let file = PasswordFile::parse(text).map_err(|(line, what)| AuthFileError::Line {
        path: path.to_owned(),
        line,
        what,
    })?;
    Ok((without(text, user), file.users.contains_key(user)))
}
