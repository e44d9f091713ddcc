//! `exactmq user add|remove`: edits the password file. A running node takes it in on SIGHUP.

use std::io::{BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::{Command as Process, Stdio};

use clap::{Args, Subcommand};

use super::ServeArgs;
use super::error::CliError;
use super::output::{print, visible};
use crate::auth::{add_user, remove_user};

/// Bytes of the longest password, as MQTT carries it (MQTT 5 §3.1.3.6).
const PASSWORD_BYTES_MAX: u64 = 65_535;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Add a user, or change the password of one; the password is read from standard input
    Add {
        name: String,
        #[command(flatten)]
        file: FileArgs,
        /// The password itself; other users of this machine can see it while the command runs
        #[arg(long, value_name = "TEXT")]
        password: Option<String>,
    },
    /// Remove a user
    Remove {
        name: String,
        #[command(flatten)]
        file: FileArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// Password file [default: auth.password_file of the configuration]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Configuration file that names the password file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl FileArgs {
    fn path(self) -> Result<PathBuf, CliError> {
        if let Some(file) = self.file {
            return Ok(file);
        }
        let args = ServeArgs { config: self.config, ..ServeArgs::default() };
        let loaded = args.load().map_err(|error| CliError::usage(error.to_string()))?;
        loaded.config.auth.password_file.ok_or_else(|| {
            CliError::usage(
                "which password file? use --file FILE, or a --config FILE that sets auth.password_file",
            )
        })
    }
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Add { name, file, password } => {
            let path = file.path()?;
            let password = password.map_or_else(read_password, |text| Ok(text.into_bytes()))?;
            if password.is_empty() {
                return Err(CliError::usage("the password is empty"));
            }
            let new = add_user(&path, &name, &password).map_err(|error| CliError::failed(&error))?;
            let what = if new { "added" } else { "changed the password of" };
            print(&format!("{what} {} in {}\n", visible(&name), path.display()));
            Ok(())
        }
        Command::Remove { name, file } => {
            let path = file.path()?;
            remove_user(&path, &name).map_err(|error| CliError::failed(&error))?;
            print(&format!("removed {} from {}\n", visible(&name), path.display()));
            Ok(())
        }
    }
}

/// The first line of standard input; from a terminal without echo.
fn read_password() -> Result<Vec<u8>, CliError> {
    let stdin = std::io::stdin();
    let terminal = stdin.is_terminal();
    if terminal {
        let _ = write!(std::io::stderr(), "Password: ");
        echo(false);
    }
    let mut line = Vec::new();
    let read = stdin.lock().take(PASSWORD_BYTES_MAX + 2).read_until(b'\n', &mut line);
    if terminal {
        echo(true);
        let _ = writeln!(std::io::stderr());
    }
    read.map_err(|error| CliError::failed(&format!("cannot read the password: {error}")))?;
    let text = line.strip_suffix(b"\n").unwrap_or(&line);
    let text = text.strip_suffix(b"\r").unwrap_or(text);
    if text.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(CliError::usage(format!("the password has more than {PASSWORD_BYTES_MAX} bytes")));
    }
    Ok(text.to_vec())
}

/// Best effort: a terminal without stty shows what is typed.
fn echo(on: bool) {
    let argument = if on { "echo" } else { "-echo" };
    let _ = Process::new("stty").arg(argument).stdin(Stdio::inherit()).stderr(Stdio::null()).status();
}
