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

/// The right to edit a file of users: whoever else edits one of this directory waits, so that nobody writes back what another one changed.
#[derive(Debug)]
pub(crate) struct Editing {
    path: PathBuf,
    directory: File,
}

impl Editing {
    /// Waits for its turn. A link is followed: what it leads to is edited.
    pub(crate) fn begin(path: &Path) -> Result<Self, AuthFileError> {
        let failed = |source| AuthFileError::Write { path: path.to_owned(), source };
        let real = match std::fs::canonicalize(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => path.to_owned(),
            real => real.map_err(failed)?,
        };
        let parent = real.parent().filter(|parent| !parent.as_os_str().is_empty());
        // The lock is the directory's: the file is another one after each edit.
        let directory = File::open(parent.unwrap_or(Path::new("."))).map_err(failed)?;
        directory.lock().map_err(failed)?;
        Ok(Self { path: real, directory })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the new file beside the old one and renames it, so that a crash leaves one of the two whole. Keeps mode and owner; a new one is
    /// 0600 and belongs to the owner of its directory, for whom it was made.
    pub(crate) fn replace(&self, lines: &[&str]) -> Result<(), AuthFileError> {
        let mut temporary = self.path.as_os_str().to_owned();
        temporary.push(".new");
        let temporary = PathBuf::from(temporary);
        let write = || {
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
            if let Ok(before) = std::fs::metadata(&self.path) {
                give(&file, &before)?;
                file.set_permissions(std::fs::Permissions::from_mode(before.mode() & 0o777))?;
            } else {
                // Who may not give it away keeps it.
                let _ = give(&file, &self.directory.metadata()?);
            }
            for line in lines {
                writeln!(file, "{line}")?;
            }
            file.sync_all()?;
            std::fs::rename(&temporary, &self.path)?;
            self.directory.sync_all()
        };
        write().map_err(|source| AuthFileError::Write { path: self.path.clone(), source })
    }
}

/// Makes a file belong to whom another one belongs to.
fn give(file: &File, like: &std::fs::Metadata) -> std::io::Result<()> {
    let now = file.metadata()?;
    if (like.uid(), like.gid()) == (now.uid(), now.gid()) {
        return Ok(());
    }
    std::os::unix::fs::fchown(file, Some(like.uid()), Some(like.gid()))
}
