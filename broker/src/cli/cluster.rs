//! `exactmq cluster init|join|status|remove`.

use std::time::{Duration, Instant};

use clap::Subcommand;
use serde_json::{Value, json};

use super::Remote;
use super::error::CliError;
use super::http::Client;
use super::output::{cell, print, print_json, table};

/// How long a join is waited for: it receives the whole state of every group.
const JOIN_TIMEOUT: Duration = Duration::from_secs(300);
/// How long the node may be away while it starts anew.
const AWAY_TIMEOUT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(200);

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// Make a node the first of a cluster
    Init {
        #[command(flatten)]
        remote: Remote,
    },
    /// Have an empty node join the cluster of a member; returns when it takes part in every group
    Join {
        /// Peer address of a member, HOST:PORT
        peer: String,
        #[command(flatten)]
        remote: Remote,
    },
    /// Show the nodes, and per group leader, voters and lag
    Status {
        #[command(flatten)]
        remote: Remote,
    },
    /// Take another node out of the cluster, for good; stop it in order before, or retire its boot
    ///
    /// A node that was stopped in order (SIGTERM) leaves nothing behind. Of any other the answer names the boot that is not retired: clients
    /// of its sessions are refused on the other nodes until `exactmq node retire`. Repeating a removal that failed half way goes on with it.
    Remove {
        /// Node id
        node_id: u64,
        #[command(flatten)]
        remote: Remote,
    },
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Init { remote } => {
            let answer = Client::new(&remote)?.post("/v1/cluster/init", &json!({}))?;
            if remote.json {
                print_json(&answer);
            } else {
                let address = cell(&answer, "address");
                print(&format!(
                    "This node is the first of a cluster. On each further node, with an empty data directory:\n  \
                     exactmq cluster join {address}\n"
                ));
            }
            Ok(())
        }
        Command::Join { peer, remote } => join(&peer, &remote),
        Command::Status { remote } => {
            let answer = Client::new(&remote)?.get("/v1/cluster")?;
            if remote.json {
                print_json(&answer)
            } else {
                print(&status(&answer))
            }
            Ok(())
        }
        Command::Remove { node_id, remote } => {
            let answer = Client::new(&remote)?.post("/v1/cluster/remove", &json!({ "node_id": node_id }))?;
            if remote.json {
                print_json(&answer);
            } else {
                print(&removed(node_id, &answer, &remote));
            }
            Ok(())
        }
    }
}

fn join(peer: &str, remote: &Remote) -> Result<(), CliError> {
    Client::new(remote)?.post("/v1/cluster/join", &json!({ "seed": peer }))?;
    let begun = Instant::now();
    let mut answered = Instant::now();
    loop {
        // The address may be written anew: the node starts again meanwhile.
        let answer = Client::new(remote).and_then(|client| client.get("/v1/cluster"));
        match answer {
            Ok(answer) => {
                answered = Instant::now();
                match answer.get("state").and_then(Value::as_str) {
                    Some("member") => {
                        if remote.json {
                            print_json(&answer);
                        } else {
                            print(&status(&answer));
                        }
                        return Ok(());
                    }
                    Some("alone") => {
                        let what = "the node gave the join up: a session came meanwhile; its log says more";
                        return Err(CliError::failed(&what));
                    }
                    _ => {}
                }
            }
            Err(error) if answered.elapsed() > AWAY_TIMEOUT => return Err(error),
            Err(_) => {}
        }
        if begun.elapsed() > JOIN_TIMEOUT {
            let what = "the node is still joining and goes on by itself; `exactmq cluster status` shows how far it is";
            return Err(CliError::failed(&what));
        }
        std::thread::sleep(POLL);
    }
}

fn removed(node_id: u64, answer: &Value, remote: &Remote) -> String {
    let mut text =
        format!("Node {node_id} takes part in no group any more; its data directory is of no use now.\n");
    let unretired = list_of(answer, "unretired");
    if unretired.is_empty() {
        return text;
    }
    text.push_str(&format!("\n{}:\n", cell(answer, "note")));
    for boot in unretired {
        text.push_str(&format!("  {}{}\n", cell(boot, "retire"), remote.flags()));
    }
    text
}

fn list_of<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn status(answer: &Value) -> String {
    let node = |node: &Value| {
        vec![cell(node, "node_id"), cell(node, "address"), cell(node, "local"), cell(node, "reachable")]
    };
    let group = |group: &Value| {
        let ids = |name: &str| {
            let ids: Vec<String> = list_of(group, name).iter().map(ToString::to_string).collect();
            ids.join(",")
        };
        vec![
            cell(group, "group"),
            cell(group, "leader"),
            cell(group, "role"),
            ids("voters"),
            ids("nodes"),
            cell(group, "applied_index"),
            cell(group, "lag"),
        ]
    };
    let nodes: Vec<_> = list_of(answer, "nodes").iter().map(node).collect();
    let groups: Vec<_> = list_of(answer, "groups").iter().map(group).collect();
    format!(
        "cluster {} ({})\n\n{}\n{}",
        cell(answer, "cluster_id"),
        cell(answer, "state"),
        table(&["NODE", "ADDRESS", "LOCAL", "REACHABLE"], &nodes),
        table(&["GROUP", "LEADER", "ROLE", "VOTERS", "NODES", "APPLIED", "LAG"], &groups)
    )
}
