//! `exactmq import mosquitto FILE`: a configuration for ExactMQ out of mosquitto's. Password and ACL files are used as they are.
//!
//! What cannot be taken over is said with its line. Where leaving it out could let somebody in, or to something, who was not let before,
//! nothing is written unless the operator says so.

mod bridge;
mod convert;
mod source;

use std::path::PathBuf;

use clap::Subcommand;

use super::error::CliError;
use super::output::print;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// From a mosquitto.conf, with the files that its include_dir names
    ///
    /// Prints the configuration, or writes it to --out; says on standard error what is not taken over. Sessions and retained messages are not: they
    /// are in mosquitto's own database.
    Mosquitto {
        /// The mosquitto.conf
        file: PathBuf,
        /// Where the configuration goes; nothing that is there is overwritten [default: standard output]
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// Also where a setting that protects something cannot be taken over
        #[arg(long)]
        leave_out: bool,
    },
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    let Command::Mosquitto { file, out, leave_out } = command;
    let lines = source::read(&file).map_err(|error| CliError::failed(&error))?;
    let imported = convert::convert(&lines).map_err(CliError::usage)?;
    let mut guards = 0;
    for note in &imported.notes {
        eprintln!("exactmq: {note}");
        guards += u32::from(note.protects);
    }
    if guards > 0 && !leave_out {
        return Err(CliError::failed(&format!(
            "nothing was written: {guards} of these settings protect something; find another way for them, then repeat with --leave-out"
        )));
    }
    match out {
        None => print(&imported.toml),
        Some(path) => {
            let failed = |error| CliError::failed(&format!("{}: {error}", path.display()));
            let mut made = std::fs::File::create_new(&path).map_err(failed)?;
            std::io::Write::write_all(&mut made, imported.toml.as_bytes()).map_err(failed)?;
        }
    }
    Ok(())
}
