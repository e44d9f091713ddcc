//! `exactmq bridge list`.

use clap::Subcommand;
use serde_json::Value;

use super::Remote;
use super::error::CliError;
use super::http::Client;
use super::output::{cell, print, print_json, table, time};

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List bridges to other MQTT brokers, as the node that is asked sees them
    ///
    /// In a cluster one node runs a bridge; on the others it is elsewhere, and NODE says where. What waits for the other broker is in the inbox of
    /// the session bridge/NAME: exactmq session show bridge/NAME.
    List {
        #[command(flatten)]
        remote: Remote,
    },
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    let Command::List { remote } = command;
    let answer = Client::new(&remote)?.get("/v1/bridges")?;
    if remote.json {
        print_json(&answer);
    } else {
        let bridges = answer.get("bridges").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        print(&bridges_table(bridges));
    }
    Ok(())
}

fn bridges_table(bridges: &[Value]) -> String {
    let row = |bridge: &Value| {
        vec![
            cell(bridge, "name"),
            cell(bridge, "state"),
            time(bridge, "since_ms"),
            cell(bridge, "node_id"),
            cell(bridge, "address"),
            cell(bridge, "messages_out"),
            cell(bridge, "messages_in"),
            cell(bridge, "error"),
        ]
    };
    let heads = ["NAME", "STATE", "SINCE", "NODE", "ADDRESS", "OUT", "IN", "ERROR"];
    table(&heads, &bridges.iter().map(row).collect::<Vec<_>>())
}
