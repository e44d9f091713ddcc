//! `exactmq user add|remove`: edits the files of users, and tells the node that runs with it.

pub(super) mod told;

use std::fs::File;
use std::io::{BufRead, BufReader, IsTerminal as _, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};

use clap::{Args, Subcommand};

use super::error::CliError;
use super::output::{print, visible};
use super::{DATA_DIR, Remote, ServeArgs};
use crate::auth::{AuthFileError, add_scram_user, add_user, is_bridge_user, remove_scram_user, remove_user};
use told::Running;

/// Bytes of the longest password, as MQTT carries it (MQTT 5 §3.1.3.6).
const PASSWORD_BYTES_MAX: u64 = 65_535;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Add a user, or change the password of one; a node that runs is told
    Add {
        name: String,
        #[command(flatten)]
        file: FileArgs,
        /// File whose first line is the password [default: ask, or read standard input]
        #[arg(long, value_name = "FILE")]
        password_file: Option<PathBuf>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a user from a file; a node that runs ends its connections, its sessions and what is queued for them
    Remove {
        name: String,
        #[command(flatten)]
        file: FileArgs,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// The file [default: auth.password_file, or auth.scram_file, of the configuration]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Configuration file that names it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// A verifier for SCRAM-SHA-256, in a file of its own, instead of a password hash
    #[arg(long)]
    scram: bool,
}

impl FileArgs {
    /// The file, and where the node that uses it keeps its data.
    fn locate(&self, mut remote: Remote) -> Result<(PathBuf, Remote), CliError> {
        if let Some(file) = &self.file {
            return Ok((file.clone(), remote));
        }
        let args = ServeArgs { config: self.config.clone(), ..ServeArgs::default() };
        let loaded = args.load().map_err(|error| CliError::usage(error.to_string()))?;
        if remote.data_dir.as_os_str() == DATA_DIR {
            remote.data_dir = loaded.config.node.data_dir;
        }
        let auth = loaded.config.auth;
        let (file, key) = if self.scram {
            (auth.scram_file, "auth.scram_file")
        } else {
            (auth.password_file, "auth.password_file")
        };
        let file = file.ok_or_else(|| {
            CliError::usage(format!("which file? use --file FILE, or a --config FILE that sets {key}"))
        })?;
        Ok((file, remote))
    }
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    let (Command::Add { name, .. } | Command::Remove { name, .. }) = &command;
    if is_bridge_user(name) {
        let what = "is the name of a bridge of this broker, which logs in by itself and whose queue would go with its user";
        return Err(CliError::failed(&format!(
            "{} {what}; a line of a file that has it is without effect",
            visible(name)
        )));
    }
    match command {
        Command::Add { name, file, password_file, remote } => {
            let (path, remote) = file.locate(remote)?;
            let running = Running::find(&remote)?;
            let password = password_file.map_or_else(ask_password, |file| read_password(&file))?;
            if password.is_empty() {
                return Err(CliError::usage("the password is empty"));
            }
            let add = if file.scram { add_scram_user } else { add_user };
            let new = add(&path, &name, &password).map_err(|error| CliError::failed(&error))?;
            let what = if new { "added" } else { "changed the password of" };
            print(&format!("{what} {} in {}\n", visible(&name), path.display()));
            running.map_or(Ok(()), |running| running.added(&name))
        }
        Command::Remove { name, file, remote } => {
            let (path, remote) = file.locate(remote)?;
            let running = Running::find(&remote)?;
            let remove = if file.scram { remove_scram_user } else { remove_user };
            remove(&path, &name).map_err(|error| not_removed(&error, &name, running.as_ref()))?;
            print(&format!("removed {} from {}\n", visible(&name), path.display()));
            running.map_or(Ok(()), |running| running.removed(&name))
        }
    }
}

/// Why a user is still there; of one that stands in no file, also what that leaves undone.
fn not_removed(error: &AuthFileError, name: &str, running: Option<&Running>) -> CliError {
    if !matches!(error, AuthFileError::NoUser { .. }) {
        return CliError::failed(error);
    }
    let left = running.map_or_else(
        || "no node was asked whether it has sessions of it".to_owned(),
        |node| node.unknown(name),
    );
    CliError::failed(&format!("{error}: the file is unchanged and nothing was ended\n{left}"))
}

/// The first line of a file.
fn read_password(path: &Path) -> Result<Vec<u8>, CliError> {
    let failed = |error| CliError::failed(&format!("{}: {error}", path.display()));
    let mut file = BufReader::new(File::open(path).map_err(failed)?);
    first_line(&mut file).map_err(failed)?.ok_or_else(too_long)
}

/// The first line of standard input; from a terminal without echo.
fn ask_password() -> Result<Vec<u8>, CliError> {
    let stdin = std::io::stdin();
    let terminal = stdin.is_terminal();
    if terminal {
        let _ = write!(std::io::stderr(), "Password: ");
        echo(false);
    }
    let read = first_line(&mut stdin.lock());
    if terminal {
        echo(true);
        let _ = writeln!(std::io::stderr());
    }
    read.map_err(|error| CliError::failed(&format!("cannot read the password: {error}")))?
        .ok_or_else(too_long)
}

/// Without its end of line; `None`: it is longer than a password may be.
fn first_line(input: &mut impl BufRead) -> std::io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(PASSWORD_BYTES_MAX + 2).read_until(b'\n', &mut line)?;
    let text = line.strip_suffix(b"\n").unwrap_or(&line);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    Ok((text.len() as u64 <= PASSWORD_BYTES_MAX).then(|| text.to_vec()))
}

fn too_long() -> CliError {
    CliError::usage(format!("the password has more than {PASSWORD_BYTES_MAX} bytes"))
}

/// Best effort: a terminal without stty shows what is typed.
fn echo(on: bool) {
    let argument = if on { "echo" } else { "-echo" };
    let _ = Process::new("stty").arg(argument).stdin(Stdio::inherit()).stderr(Stdio::null()).status();
}
