//! `exactmq node list|show`.

use clap::Subcommand;
use serde_json::Value;

use super::Remote;
use super::error::CliError;
use super::http::Client;
use super::output::{cell, print, print_json, table, time};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List nodes
    List {
        #[command(flatten)]
        remote: Remote,
    },
    /// Show one node and its boots
    Show {
        /// Node id
        id: u64,
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
                print(&format!("{}\n{}", nodes(std::slice::from_ref(node)), boots(node)))
            }
            Ok(())
        }
    }
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
            cell(node, "connections"),
            time(node, "started_at_ms"),
            current.map_or_else(|| "-".to_owned(), |boot| cell(boot, "boot_id")),
            boots.len().to_string(),
        ]
    };
    let heads = ["NODE", "LOCAL", "VERSION", "CONNECTIONS", "STARTED", "BOOT", "BOOTS"];
    table(&heads, &nodes.iter().map(row).collect::<Vec<_>>())
}

fn boots(node: &Value) -> String {
    let row = |boot: &Value| {
        vec![
            cell(boot, "boot_id"),
            cell(boot, "current"),
            time(boot, "lease_until_ms"),
            time(boot, "retired_at_ms"),
            cell(boot, "retired_by"),
        ]
    };
    let heads = ["BOOT", "CURRENT", "LEASE UNTIL", "RETIRED", "RETIRED BY"];
    table(&heads, &list_of(node, "boots").iter().map(row).collect::<Vec<_>>())
}
