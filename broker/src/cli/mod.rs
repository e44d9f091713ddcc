//! The command line of `exactmq`. Names of commands and flags, and the exit codes, are contracts.
//!
//! 0 ok, 1 failed, 2 usage (arguments, or the configuration that they give), 3 fenced (the owner changed), 4 isolation unproved, 5 the node cannot be reached.

mod backup;
mod bridge;
mod check;
mod cluster;
mod deny;
mod end;
mod error;
mod http;
mod import;
mod link;
pub mod logging;
mod node;
mod output;
mod queue;
mod session;
mod token;
mod user;

use std::ffi::OsString;
use std::fmt::Display;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::config::{Config, ConfigError, Loaded, Sources};
use error::CliError;
use output::{print, print_json};

/// An MQTT 3.1.1 and 5 broker with exact-owner sessions.
#[derive(Debug, Parser)]
#[command(name = "exactmq", version, args_conflicts_with_subcommands = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: ServeArgs,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node (the default command)
    Serve(ServeArgs),
    /// List, show and end sessions
    #[command(subcommand)]
    Session(session::Command),
    /// Say who may not connect
    #[command(subcommand)]
    Deny(deny::Command),
    /// List, show and retire nodes
    #[command(subcommand)]
    Node(node::Command),
    /// Form a cluster, and show it
    #[command(subcommand)]
    Cluster(cluster::Command),
    /// List bridges to other MQTT brokers
    #[command(subcommand)]
    Bridge(bridge::Command),
    /// List channels and their members: queues, inboxes, shared subscriptions
    #[command(subcommand)]
    Queue(queue::Command),
    /// Add and remove users of the password file
    #[command(subcommand)]
    User(user::Command),
    /// Add, list and remove further tokens of the admin API, each with a role
    #[command(subcommand)]
    Token(token::Command),
    /// Write everything that a running node holds to a file
    ///
    /// Sessions, subscriptions, queued and retained messages, Wills, who is denied, with everything that was acknowledged before; taken
    /// while clients are served. Of a cluster, one node's backup has it all. Not in it: configuration, password and ACL files, the
    /// admin token, the audit log.
    Backup(backup::BackupArgs),
    /// Make the data directory of a new node out of a backup
    ///
    /// It becomes the first node of a new cluster, which others may join. Whoever was connected when the backup was made counts as disconnected
    /// by then; clients resume with Session Present 1. The directory must be new or empty; --config, --data-dir and --node-id say which one.
    Restore(backup::RestoreArgs),
    /// Take over the configuration of another broker
    #[command(subcommand)]
    Import(import::Command),
    /// Check a configuration and print every value with its origin
    CheckConfig {
        #[command(flatten)]
        serve: ServeArgs,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the version
    Version {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
}

/// Where the configuration comes from.
#[derive(Debug, Clone, Default, Args)]
struct ServeArgs {
    /// Configuration file (TOML)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Directory of everything that must survive a restart [default: ./exactmq-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Address of the listener `mqtt` [default: 127.0.0.1:1883]
    #[arg(long, value_name = "ADDR")]
    mqtt: Option<String>,
    /// Address of the admin API, or "off" [default: 127.0.0.1:9883]
    #[arg(long, value_name = "ADDR")]
    admin: Option<String>,
    /// Identity of this node in its cluster [default: 1]
    #[arg(long, value_name = "N")]
    node_id: Option<String>,
    /// Address of the peer port [default: off]
    #[arg(long, value_name = "ADDR")]
    peer: Option<String>,
    /// Any configuration key, for example session.receive_maximum=20; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.to_owned()))
}

impl ServeArgs {
    fn sources(&self) -> Sources {
        let mut flags: Vec<(String, String, String)> =
            self.set.iter().map(|(key, value)| ("--set".to_owned(), key.clone(), value.clone())).collect();
        let named = [
            ("--data-dir", "node.data_dir", &self.data_dir),
            ("--mqtt", "listener.mqtt.address", &self.mqtt),
            ("--admin", "admin.address", &self.admin),
            ("--node-id", "node.id", &self.node_id),
            ("--peer", "cluster.peer", &self.peer),
        ];
        for (flag, key, value) in named {
            flags.extend(value.iter().map(|value| (flag.to_owned(), key.to_owned(), value.clone())));
        }
        // A variable that is not UTF-8 cannot be a value of ours; its lossy form is refused by its key.
        let environment = std::env::vars_os().map(|(name, value)| (lossy(&name), lossy(&value))).collect();
        Sources { file: self.config.clone(), environment, flags }
    }

    fn load(&self) -> Result<Loaded, ConfigError> {
        Config::load(&self.sources())
    }
}

fn lossy(text: &OsString) -> String {
    text.to_string_lossy().into_owned()
}

/// Parses the arguments of this process and does what they say. `serve` runs the node until it is told to stop; it also
/// gets the way to read the configuration again on SIGHUP.
pub fn run<T, E: Display>(serve: impl FnOnce(Config, Reread) -> Result<T, E>) -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with 0, faults to stderr with 2. A closed pipe is no reason to panic.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { CliError::USAGE } else { 0 });
        }
    };
    let done = match cli.command.unwrap_or(Command::Serve(cli.serve)) {
        Command::Serve(args) => run_node(&args, serve),
        Command::Session(command) => session::run(command),
        Command::Deny(command) => deny::run(command),
        Command::Node(command) => node::run(command),
        Command::Cluster(command) => cluster::run(command),
        Command::Bridge(command) => bridge::run(command),
        Command::Queue(command) => queue::run(command),
        Command::User(command) => user::run(command),
        Command::Token(command) => token::run(command),
        Command::Backup(args) => backup::backup(&args),
        Command::Restore(args) => backup::run_restore(&args),
        Command::Import(command) => import::run(command),
        Command::CheckConfig { serve, json } => check_config(&serve, json),
        Command::Version { json } => {
            version(json);
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            for line in error.to_string().lines() {
                eprintln!("exactmq: {line}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

/// Reads the configuration again from where it came from at the start.
#[derive(Debug, Clone)]
pub struct Reread {
    sources: Sources,
}

impl Reread {
    /// # Errors
    /// As [`Config::load`], one fault a line; the running configuration then stays.
    pub fn read(&self) -> Result<Config, String> {
        Config::load(&self.sources).map(|loaded| loaded.config).map_err(|error| error.to_string())
    }
}

fn run_node<T, E: Display>(
    args: &ServeArgs,
    serve: impl FnOnce(Config, Reread) -> Result<T, E>,
) -> Result<(), CliError> {
    let sources = args.sources();
    // What is wrong with the files it names is told before anything is made in the data directory.
    let loaded = Config::load(&sources).and_then(check::beside);
    let loaded = loaded.map_err(|error| CliError::usage(error.to_string()))?;
    logging::init(&loaded.config.log);
    for warning in &loaded.warnings {
        tracing::warn!(origin = %warning.origin, "{}", warning.message);
    }
    serve(loaded.config, Reread { sources }).map(drop).map_err(|error| CliError::failed(&error))
}

fn check_config(args: &ServeArgs, json: bool) -> Result<(), CliError> {
    let loaded = args.load().and_then(check::beside);
    if json {
        print_json(&output::config(&loaded));
        return loaded.map(drop).map_err(|_| CliError::usage("the configuration is not valid"));
    }
    print(&loaded.map_err(|error| CliError::usage(error.to_string()))?.report());
    Ok(())
}

fn version(json: bool) {
    let version = env!("CARGO_PKG_VERSION");
    if json {
        print_json(&serde_json::json!({ "name": "exactmq", "version": version }));
    } else {
        print(&format!("exactmq {version}\n"));
    }
}

const DATA_DIR: &str = "./exactmq-data";

/// How an operator command finds the node.
#[derive(Debug, Clone, Args)]
struct Remote {
    /// URL of the admin API [default: as DIR/admin.address says]
    #[arg(long, value_name = "URL")]
    admin: Option<String>,
    /// File with the token of the admin API [default: DIR/admin.token]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Authorities that sign the certificate of an https URL, or that certificate itself (PEM) [default: those of this machine, and the
    /// certificate of the node with this data directory]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Certificate to show, where the node asks for one (PEM)
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,
    /// Private key of --cert (PEM)
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
    /// Data directory of the node on this machine
    #[arg(long, value_name = "DIR", env = "EXACTMQ_NODE_DATA_DIR", default_value = DATA_DIR)]
    data_dir: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Remote {
    /// The arguments that find the same node from another command, each after a blank; none where the defaults do.
    fn flags(&self) -> String {
        let path = |path: &PathBuf| path.display().to_string();
        let data_dir = Some(path(&self.data_dir)).filter(|dir| dir != DATA_DIR);
        [
            ("--admin", self.admin.clone()),
            ("--token-file", self.token_file.as_ref().map(path)),
            ("--ca", self.ca.as_ref().map(path)),
            ("--cert", self.cert.as_ref().map(path)),
            ("--key", self.key.as_ref().map(path)),
            ("--data-dir", data_dir),
        ]
        .into_iter()
        .filter_map(|(flag, value)| Some(format!(" {flag} {}", quoted(&value?))))
        .collect()
    }
}

/// As a shell reads it back.
fn quoted(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-:".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod cli_test;
