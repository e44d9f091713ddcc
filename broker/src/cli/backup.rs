//! `exactmq backup` and `exactmq restore`.

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use rustix::fs::Mode;
use rustix::process::umask;
use serde_json::json;
use session::lifecycle::RetireProof;
use session::time::Millis;
use storage::backup::Manifest;
use storage::restore::{RestoreOptions, check, restore};

use super::error::CliError;
use super::http::Client;
use super::output::{print, print_json, time};
use super::{Remote, ServeArgs};
use crate::admin::check_attestation;

#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// Where the backup goes; nothing that is there is overwritten
    file: PathBuf,
    #[command(flatten)]
    remote: Remote,
}

#[derive(Debug, Args)]
pub(super) struct RestoreArgs {
    /// A file that `exactmq backup` made
    file: PathBuf,
    /// How you know that the cluster of the backup does not serve these clients any more; it is recorded
    #[arg(long, value_name = "TEXT", required_unless_present = "check")]
    attest: Option<String>,
    /// Only read the whole backup and say what it is
    #[arg(long, conflicts_with = "attest")]
    check: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    node: ServeArgs,
}

/// A file that only its user may read: it holds what clients sent.
fn create(path: &Path) -> Result<File, CliError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.map_err(|error| CliError::failed(&format!("{}: {error}", path.display())))
}

pub(super) fn backup(args: &BackupArgs) -> Result<(), CliError> {
    let path = &args.file;
    let file = create(path)?;
    let fetched = fetch(&args.remote, file);
    let bytes = fetched.inspect_err(|_| {
        // Made by this command, and no backup.
        let _ = std::fs::remove_file(path);
    })?;
    if args.remote.json {
        print_json(&json!({ "file": path.display().to_string(), "bytes": bytes }));
    } else {
        print(&format!("{}: {bytes} bytes\n", path.display()));
    }
    Ok(())
}

fn fetch(remote: &Remote, file: File) -> Result<u64, CliError> {
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let bytes = Client::new(remote)?.download("/v1/backup", &mut out)?;
    let failed = |error: std::io::Error| CliError::failed(&format!("the backup cannot be written: {error}"));
    out.flush().map_err(failed)?;
    out.get_ref().sync_all().map_err(failed)?;
    Ok(bytes)
}

pub(super) fn run_restore(args: &RestoreArgs) -> Result<(), CliError> {
    if args.check {
        let manifest = check(&args.file).map_err(|error| CliError::failed(&error))?;
        if args.json {
            print_json(&about(&manifest));
        } else {
            print(&format!("{}: whole; {}\n", args.file.display(), words(&manifest)));
        }
        return Ok(());
    }
    let text = args.attest.as_deref().unwrap_or_default();
    check_attestation(text).map_err(|what| CliError::usage(format!("--attest {what}")))?;
    let config = args.node.load().map_err(|error| CliError::usage(error.to_string()))?.config;
    if !config.storage.engine.is_compiled_in() {
        return Err(CliError::usage("this build of exactmq does not have the engine of storage.engine"));
    }
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let options = RestoreOptions {
        data_dir: config.node.data_dir.clone(),
        node_id: config.node.id,
        engine: config.storage.engine,
        at: Millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX)),
        proof: RetireProof::Attested { text: text.into() },
    };
    // Queued payloads are nobody else's, as in a directory that `serve` makes.
    umask(Mode::RWXG | Mode::RWXO);
    let restored = restore(&args.file, &options).map_err(|error| CliError::failed(&error))?;
    let (dir, groups) = (options.data_dir.display().to_string(), restored.manifest.groups);
    if args.json {
        print_json(&json!({
            "data_dir": dir, "node_id": options.node_id, "backup": about(&restored.manifest),
            "sessions": restored.sessions, "subscriptions": restored.subscriptions, "queued_messages": restored.queued_messages,
            "retained": restored.retained, "boots_retired": restored.boots_retired,
        }));
        return Ok(());
    }
    print(&format!(
        "{dir}: node {} of a new cluster; {} sessions, {} subscriptions, {} queued and {} retained messages\n",
        options.node_id,
        restored.sessions,
        restored.subscriptions,
        restored.queued_messages,
        restored.retained
    ));
    print(&format!("of {}: {}\n", args.file.display(), words(&restored.manifest)));
    if groups != config.cluster.groups {
        print(&format!("start it with cluster.groups = {groups}, as the backup has\n"));
    }
    Ok(())
}

fn words(manifest: &Manifest) -> String {
    format!(
        "made from node {} at {} by version {}, {} groups",
        manifest.node_id,
        time(&json!({ "at": manifest.at.0 }), "at"),
        manifest.version,
        manifest.groups
    )
}

fn about(manifest: &Manifest) -> serde_json::Value {
    let cluster: String = manifest.cluster_id.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "cluster_id": cluster, "node_id": manifest.node_id, "groups": manifest.groups, "version": manifest.version, "at_ms": manifest.at.0,
    })
}
