//! Lines of a mosquitto.conf, its include_dir followed.

use std::fmt;
use std::path::{Path, PathBuf};

/// Files that one configuration may have.
const FILES_MAX: usize = 1_000;
/// Bytes of one of them.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// `key value` at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) at: Place,
    pub(super) key: String,
    pub(super) value: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: PathBuf,
    pub(super) number: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.number)
    }
}

/// All settings in the order in which mosquitto takes them.
///
/// # Errors
/// A file that cannot be read; more files than anybody has.
pub(super) fn read(file: &Path) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    let mut files = 0;
    add(file, &mut files, &mut lines)?;
    Ok(lines)
}

fn add(file: &Path, files: &mut usize, lines: &mut Vec<Line>) -> Result<(), String> {
    let failed = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
    *files += 1;
    if *files > FILES_MAX {
        return Err(failed(&"include_dir leads to more than 1,000 files"));
    }
    if std::fs::metadata(file).map_err(|error| failed(&error))?.len() > FILE_BYTES_MAX {
        return Err(failed(&"it has more than 1 MiB: that is no mosquitto.conf"));
    }
    let text = std::fs::read_to_string(file).map_err(|error| failed(&error))?;
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (key, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let value = value.trim();
        if key == "include_dir" {
            for included in included(Path::new(value)).map_err(|error| failed(&error))? {
                add(&included, files, lines)?;
            }
            continue;
        }
        let at = Place { file: file.to_owned(), number: number + 1 };
        lines.push(Line { at, key: key.to_owned(), value: value.to_owned() });
    }
    Ok(())
}

/// The .conf files of a directory by name, as mosquitto takes them.
fn included(dir: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("include_dir {}: {error}", dir.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "conf") {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
