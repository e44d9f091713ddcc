//! Editing the files of users: which names may stand in them, and how a file is replaced.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use super::error::AuthFileError;

/// Whether a user of this name can stand in a line `name:…`.
pub(super) fn check_name(user: &str) -> Result<(), AuthFileError> {
    let refuse = |what: String| AuthFileError::UserName { name: user.to_owned(), what };
    session::id::check_identity(user, session::limits::UID_BYTES_MAX)
        .map_err(|error| refuse(error.to_string()))?;
    if user.starts_with('#') || user.trim() != user || user.chars().any(|c| c == ':' || c.is_control()) {
        return Err(refuse(
            "begins with '#' or white space, or contains ':' or a control character".to_owned(),
        ));
    }
    Ok(())
}

/// User and what stands behind the `:`; `None` for blank lines and comments.
pub(super) fn split_line(line: &str) -> Result<Option<(&str, &str)>, String> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let (user, rest) = line.split_once(':').ok_or("has no ':' between user and password hash")?;
    if user.is_empty() {
        return Err("has no user name before the ':'".to_owned());
    }
    Ok(Some((user, rest)))
}

/// All lines but those of `user`, comments included.
pub(super) fn without<'a>(text: &'a str, user: &str) -> Vec<&'a str> {
    let is_user = |line: &&str| matches!(split_line(line), Ok(Some((name, _))) if name == user);
    text.lines().filter(|line| !is_user(line)).collect()
}

/// Writes the new file beside the old one and renames it, so that a crash leaves one of the two whole. Keeps the mode; a new one is 0600.
pub(super) fn replace(path: &Path, lines: &[&str]) -> Result<(), AuthFileError> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let temporary = PathBuf::from(temporary);
    let write = || {
        let mode = std::fs::metadata(path).map_or(0o600, |meta| meta.mode() & 0o777);
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        for line in lines {
            writeln!(file, "{line}")?;
        }
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        let directory =
            path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(directory)?.sync_all()
    };
    write().map_err(|source| AuthFileError::Write { path: path.to_owned(), source })
}
