//! `exactmq node list|show|retire`.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};

use super::Remote;
use super::error::CliError;
use super::http::Client;
use super::output::{cell, print, print_json, table, time};
use crate::admin::check_attestation;

/// A lease, the drift and the fence agent take less.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(900);
/// A refusal comes sooner; who waits longer is told what for.
const NOTICE_AFTER: Duration = Duration::from_millis(1_500);

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List nodes, with the boot that each runs as
    ///
    /// BOOT is the newest boot that is not retired. LEASE is where the lease is that the node serves under, and how it stands. Connections are
    /// known of the node that is asked; version and start of others only with leases in etcd.
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one node and its boots, newest first
    ///
    /// CURRENT is the boot that the node that is asked runs as; of another node, its newest boot that is not retired.
    Show {
        /// Node id
        id: u64,
        #[command(flatten)]
        remote: Remote,
    },
    /// Retire a boot of another node that is gone: its sessions may be taken over, its Wills and expiries run
    ///
    /// Waits until the lease of that boot and isolation.drift_ms are over, then until every group has retired it. A boot that answers
    /// or renews its lease meanwhile lives: nothing is retired, exit code 4. So too when the fence agent fails. Interrupted, it goes on
    /// by itself; repeating it is safe.
    #[command(group = clap::ArgGroup::new("proof").required(true))]
    Retire {
        /// Node id
        id: u64,
        /// Boot id, as `exactmq node show ID` lists it
        #[arg(long, value_name = "B")]
        boot: String,
        /// How you know that nothing of that node runs, for example "powered off by …"; it is recorded
        #[arg(long, value_name = "TEXT", group = "proof")]
        attest: Option<String>,
        /// Have isolation.fence_agent power the node off
        #[arg(long, group = "proof")]
        fence_agent: bool,
        /// Do not wait for the end of the lease: two connections may act for one session if the node runs after all
        #[arg(long)]
        now: bool,
        #[command(flatten)]
        remote: Remote,
    },
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::List { remote } => {
            let answer = Client::new(&remote)?.get("/v1/nodes")?;
            if remote.json {
                print_json(&answer)
            } else {
                print(&nodes(list_of(&answer, "nodes")))
            }
            Ok(())
        }
        Command::Show { id, remote } => {
            let answer = Client::new(&remote)?.get("/v1/nodes")?;
            let is_it = |node: &&Value| node.get("node_id").and_then(Value::as_u64) == Some(id);
            let node = list_of(&answer, "nodes").iter().find(is_it);
            let node = node.ok_or_else(|| CliError::failed(&format!("there is no node {id}")))?;
            if remote.json {
                print_json(node)
            } else {
                let head = nodes(std::slice::from_ref(node));
                print(&format!("{head}{}\n{}", lease_detail(node), boots(node)))
            }
            Ok(())
        }
        Command::Retire { id, boot, attest, fence_agent, now, remote } => {
            if let Some(Err(what)) = attest.as_deref().map(check_attestation) {
                return Err(CliError::usage(format!("--attest {what}")));
            }
            let body = json!({ "boot": boot, "attest": attest, "fence_agent": fence_agent, "now": now });
            let answer = retire(id, &body, &remote)?;
            if remote.json {
                print_json(&answer)
            } else {
                print(&retired(id, &answer))
            }
            Ok(())
        }
    }
}

/// Asks until it is done: an answer comes after a while although it is not.
fn retire(id: u64, body: &Value, remote: &Remote) -> Result<Value, CliError> {
    let client = Client::new(remote)?;
    let begun = Instant::now();
    // Ends with this call, without a word where that is soon.
    let (_answered, asking) = mpsc::channel::<()>();
    if body.get("now").and_then(Value::as_bool) != Some(true) {
        std::thread::spawn(move || {
            if asking.recv_timeout(NOTICE_AFTER) == Err(RecvTimeoutError::Timeout) {
                eprintln!(
                    "waiting until the lease of the boot and isolation.drift_ms are over (up to 35 s by default); --now does not wait"
                );
            }
        });
    }
    loop {
        let answer = client.post(&format!("/v1/nodes/{id}/retire"), body)?;
        if answer.get("state").and_then(Value::as_str) != Some("waiting") {
            return Ok(answer);
        }
        if begun.elapsed() > RETIRE_TIMEOUT {
            let what =
                "the boot is not retired yet; the node goes on with it, `exactmq node show` says when it is";
            return Err(CliError::failed(&what));
        }
        eprintln!("still waiting, {} ms to go", cell(&answer, "remaining_ms"));
    }
}

fn retired(id: u64, answer: &Value) -> String {
    let boot = cell(answer, "boot_id");
    let by = cell(answer, "retired_by");
    let before = answer.get("unchanged").and_then(Value::as_bool) == Some(true);
    let mut text =
        format!("boot {boot} of node {id} {} retired ({by})\n", if before { "was already" } else { "is" });
    for group in list_of(answer, "groups") {
        text.push_str(&format!("  group {}: {}\n", cell(group, "group"), cell(group, "outcome")));
    }
    text
}

fn list_of<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn nodes(nodes: &[Value]) -> String {
    let row = |node: &Value| {
        let boots = list_of(node, "boots");
        let current = boots.iter().find(|boot| boot.get("current").and_then(Value::as_bool) == Some(true));
        vec![
            cell(node, "node_id"),
            cell(node, "local"),
            cell(node, "version"),
            lease(node),
            cell(node, "connections"),
            time(node, "started_at_ms"),
            current.map_or_else(|| "-".to_owned(), |boot| cell(boot, "boot_id")),
            boots.len().to_string(),
        ]
    };
    let heads = ["NODE", "LOCAL", "VERSION", "LEASE", "CONNECTIONS", "STARTED", "BOOT", "BOOTS"];
    table(&heads, &nodes.iter().map(row).collect::<Vec<_>>())
}

/// For example `etcd held`.
fn lease(node: &Value) -> String {
    match node.get("lease").filter(|lease| lease.is_object()) {
        Some(lease) => format!("{} {}", cell(lease, "backend"), cell(lease, "state")),
        None => "-".to_owned(),
    }
}

/// What there is to say of its lease, on a line of its own.
fn lease_detail(node: &Value) -> String {
    let detail = node.get("lease").and_then(|lease| lease.get("detail")).and_then(Value::as_str);
    detail.map_or_else(String::new, |detail| format!("lease: {detail}\n"))
}

fn boots(node: &Value) -> String {
    let row = |boot: &Value| {
        vec![
            cell(boot, "boot_id"),
            cell(boot, "current"),
            time(boot, "lease_until_ms"),
            time(boot, "retired_at_ms"),
            cell(boot, "retired_by"),
            cell(boot, "retired_because"),
        ]
    };
    let heads = ["BOOT", "CURRENT", "LEASE UNTIL", "RETIRED", "RETIRED BY", "BECAUSE"];
    table(&heads, &list_of(node, "boots").iter().map(row).collect::<Vec<_>>())
}
