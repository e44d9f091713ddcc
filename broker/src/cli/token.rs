//! `exactmq token add|list|remove`: edits the file of further tokens, and tells the node that runs with it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;

use super::error::CliError;
use super::output::{print, print_json, table};
use super::user::told::Running;
use super::{DATA_DIR, Remote, ServeArgs};
use crate::admin::{Role as Granted, TokensFile, Word as _, add_token, remove_token};

/// What a changed tokens file is called in the answer to a reload.
const CHANGED: &str = "the content of admin.tokens_file";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a token and print it: it is stored nowhere, only its SHA-256 is; a node that runs is told
    Add {
        /// Stands in the audit log with what is done with the token
        name: String,
        /// What it is good for: a viewer reads, an operator also ends sessions and denies, an admin may everything
        #[arg(long)]
        role: Role,
        #[command(flatten)]
        file: FileArgs,
        #[command(flatten)]
        remote: Remote,
    },
    /// List names and roles
    List {
        #[command(flatten)]
        file: FileArgs,
        #[command(flatten)]
        remote: Remote,
    },
    /// Remove a token; when this returns it is good for nothing any more, also not for calls that go on
    Remove {
        name: String,
        #[command(flatten)]
        file: FileArgs,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Role {
    Viewer,
    Operator,
    Admin,
}

impl From<Role> for Granted {
    fn from(role: Role) -> Self {
        match role {
            Role::Viewer => Self::Viewer,
            Role::Operator => Self::Operator,
            Role::Admin => Self::Admin,
        }
    }
}

#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// The file [default: admin.tokens_file of the configuration, else admin.tokens in the data directory]
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Configuration file that names it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl FileArgs {
    /// The file, and where the node that uses it keeps its data.
    fn locate(&self, mut remote: Remote) -> Result<(PathBuf, Remote), CliError> {
        if let Some(file) = &self.file {
            return Ok((file.clone(), remote));
        }
        let named = remote.data_dir.as_os_str() != DATA_DIR;
        let data_dir = named.then(|| remote.data_dir.display().to_string());
        let args = ServeArgs { config: self.config.clone(), data_dir, ..ServeArgs::default() };
        let config = args.load().map_err(|error| CliError::usage(error.to_string()))?.config;
        let file = config.tokens_file();
        remote.data_dir = config.node.data_dir;
        Ok((file, remote))
    }
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Add { name, role, file, remote } => {
            let (path, remote) = file.locate(remote)?;
            let running = Running::find(&remote)?;
            let role = Granted::from(role);
            let token = add_token(&path, &name, role).map_err(|error| CliError::failed(&error))?;
            // The one time that it is seen: before anything else can fail.
            if remote.json {
                print_json(&json!({ "name": name, "role": role.word(), "token": token }));
            } else {
                print(&format!("{token}\n"));
            }
            eprintln!("added {name} ({}) to {}; the token is not shown again", role.word(), path.display());
            running.map_or(Ok(()), |running| tell(&running))
        }
        Command::List { file, remote } => {
            let (path, remote) = file.locate(remote)?;
            let tokens = if path.exists() {
                TokensFile::read(&path).map_err(|error| CliError::failed(&error))?.tokens
            } else {
                Vec::new()
            };
            if remote.json {
                let all: Vec<_> =
                    tokens.iter().map(|one| json!({ "name": one.name, "role": one.role.word() })).collect();
                print_json(&json!({ "tokens": all }));
            } else {
                let row = |name: &str, role: Granted| vec![name.to_owned(), role.word().to_owned()];
                let rows: Vec<_> = tokens.iter().map(|one| row(&one.name, one.role)).collect();
                print(&table(&["NAME", "ROLE"], &rows));
            }
            Ok(())
        }
        Command::Remove { name, file, remote } => {
            let (path, remote) = file.locate(remote)?;
            let running = Running::find(&remote)?;
            remove_token(&path, &name).map_err(|error| CliError::failed(&error))?;
            eprintln!("removed {name} from {}", path.display());
            running.map_or(Ok(()), |running| tell(&running))
        }
    }
}

fn tell(running: &Running) -> Result<(), CliError> {
    match running.reload(CHANGED)? {
        Some(false) => {
            let why = "the file is changed, but the node does not use it, or had taken the change in before: is it the file of its \
                       admin.tokens_file?";
            Err(CliError::failed(&why))
        }
        Some(true) => {
            eprintln!("in force at {}", running.address());
            Ok(())
        }
        None => Ok(()),
    }
}
