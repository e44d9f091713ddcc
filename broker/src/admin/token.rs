//! The first bearer token: made at the first start, readable by its owner only, compared in constant time.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom as _, SystemRandom};

use crate::auth::AuthFileError;

pub(super) const TOKEN_BYTES: usize = 32;
const TOKEN_CHARS_MIN: usize = 16;
const TOKEN_CHARS_MAX: usize = 4_096;

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: std::io::Error },
    #[error(
        "{0} holds no usable token: it must be one line of {TOKEN_CHARS_MIN} to {TOKEN_CHARS_MAX} visible ASCII characters; \
         remove the file to get a new one"
    )]
    Unusable(PathBuf),
    #[error("the system gives no random numbers")]
    Random,
    /// The file of further tokens.
    #[error("{0}")]
    Further(#[from] AuthFileError),
    #[error("{0}")]
    Name(String),
    #[error("there is a token {name:?} in {path} already; remove it first, or give the new one another name")]
    Exists { path: PathBuf, name: String },
    #[error("there is no token {name:?} in {path}; nothing was changed")]
    NoToken { path: PathBuf, name: String },
}

/// Two digits a byte.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The secret of the admin API.
pub struct AdminToken {
    secret: String,
    /// Others than the owner may read the file.
    exposed: bool,
}

impl std::fmt::Debug for AdminToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AdminToken(…)")
    }
}

impl AdminToken {
    /// Reads the token file.
    ///
    /// # Errors
    /// When it is missing, unreadable or holds no usable token.
    pub fn read(path: &Path) -> Result<Self, TokenError> {
        let io = |source| TokenError::Io { path: path.to_owned(), source };
        let meta = std::fs::metadata(path).map_err(io)?;
        if meta.len() > TOKEN_CHARS_MAX as u64 + 2 {
            return Err(TokenError::Unusable(path.to_owned()));
        }
        let secret = std::fs::read_to_string(path).map_err(io)?.trim().to_owned();
        let usable = (TOKEN_CHARS_MIN..=TOKEN_CHARS_MAX).contains(&secret.len())
            && secret.bytes().all(|byte| byte.is_ascii_graphic());
        if !usable {
            return Err(TokenError::Unusable(path.to_owned()));
        }
        Ok(Self { secret, exposed: meta.mode() & 0o077 != 0 })
    }

    /// Reads the token file, or makes one with a fresh token (mode 0600).
    ///
    /// # Errors
    /// As [`AdminToken::read`], and when the file cannot be made.
    pub fn open(path: &Path) -> Result<Self, TokenError> {
        let io = |source| TokenError::Io { path: path.to_owned(), source };
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Self::read(path),
            Err(error) => return Err(io(error)),
        };
        let mut random = [0; TOKEN_BYTES];
        SystemRandom::new().fill(&mut random).map_err(|_| TokenError::Random)?;
        let secret = hex(&random);
        writeln!(file, "{secret}").and_then(|()| file.sync_all()).map_err(io)?;
        Ok(Self { secret, exposed: false })
    }

    /// Whether others than the file's owner may read it; worth a warning.
    #[must_use]
    pub fn is_exposed(&self) -> bool {
        self.exposed
    }

    /// The secret, for the header of a request.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.secret
    }
}
