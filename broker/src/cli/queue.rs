//! `exactmq queue channels|members`.

use std::num::NonZeroUsize;

use clap::Subcommand;
use serde_json::{Value, json};

use super::Remote;
use super::error::CliError;
use super::http::{Client, query};
use super::output::{cell, print, print_json, table, time};

/// Rows asked for at a time.
const PAGE: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List channels: of the queue layer, inboxes of durable sessions, shared subscriptions; with their exact backlog
    Channels {
        #[command(flatten)]
        remote: Remote,
        /// Only of this kind: mpsc, mpmc, group, sub, inbox or share
        #[arg(long)]
        kind: Option<String>,
        /// Only in this state: open, sealed or closing
        #[arg(long)]
        state: Option<String>,
        /// Only those whose unique name, ClientID or filter has this in it, in whatever case
        #[arg(long)]
        name: Option<String>,
        /// Only those in which at least so many messages wait
        #[arg(long, value_name = "N")]
        min_messages: Option<u64>,
        /// Up to four columns, as --json names them, for example messages:desc,name
        #[arg(long, value_name = "COLUMN[:asc|:desc],…")]
        sort: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value = "100")]
        limit: NonZeroUsize,
    },
    /// List members of channels: producers and consumers, and the sessions of inboxes and shared subscriptions
    Members {
        #[command(flatten)]
        remote: Remote,
        /// Only of the channel with this id, as `exactmq queue channels` lists it
        #[arg(long, value_name = "ID")]
        channel: Option<String>,
        /// Only of channels of this kind: mpsc, mpmc, group, inbox or share
        #[arg(long)]
        kind: Option<String>,
        /// Only producer or consumer
        #[arg(long)]
        role: Option<String>,
        /// Only alive or offline
        #[arg(long)]
        status: Option<String>,
        /// Only those whose label or ClientID has this in it, in whatever case
        #[arg(long)]
        name: Option<String>,
        /// Only sessions whose owner is, or was last, on this node
        #[arg(long, value_name = "ID")]
        node: Option<u64>,
        /// Up to four columns, as --json names them, for example channel,since_ms:desc
        #[arg(long, value_name = "COLUMN[:asc|:desc],…")]
        sort: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value = "100")]
        limit: NonZeroUsize,
    },
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::Channels { remote, kind, state, name, min_messages, sort, limit } => {
            let filters = [
                ("kind", kind),
                ("state", state),
                ("name", name),
                ("min_messages", min_messages.map(|least| least.to_string())),
                ("sort", sort),
            ];
            show(&remote, "channels", &filters, limit.get(), channels)
        }
        Command::Members { remote, channel, kind, role, status, name, node, sort, limit } => {
            let filters = [
                ("channel", channel),
                ("kind", kind),
                ("role", role),
                ("status", status),
                ("name", name),
                ("node", node.map(|node| node.to_string())),
                ("sort", sort),
            ];
            show(&remote, "members", &filters, limit.get(), members)
        }
    }
}

/// Pages of `/v1/NAME`, whose rows stand under `name`.
fn show(
    remote: &Remote,
    name: &str,
    filters: &[(&str, Option<String>)],
    limit: usize,
    text: impl Fn(&[Value]) -> String,
) -> Result<(), CliError> {
    let client = Client::new(remote)?;
    let mut rows = Vec::new();
    let mut cursor = None;
    loop {
        let mut parameters = filters.to_vec();
        let wanted = (limit - rows.len()).clamp(1, PAGE);
        parameters.extend([("limit", Some(wanted.to_string())), ("cursor", cursor)]);
        let mut page = client.get(&format!("/v1/{name}{}", query(&parameters)))?;
        if let Some(Value::Array(of_page)) = page.get_mut(name) {
            rows.append(of_page);
        }
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || rows.len() >= limit {
            break;
        }
    }
    rows.truncate(limit);
    if remote.json {
        print_json(&json!({ name: rows, "cursor": cursor }));
        return Ok(());
    }
    print(&text(&rows));
    if cursor.is_some() {
        eprintln!("there are more; raise --limit or narrow with --name");
    }
    Ok(())
}

fn channels(rows: &[Value]) -> String {
    let columns = [
        "channel",
        "kind",
        "name",
        "state",
        "messages",
        "bytes",
        "producers",
        "consumers",
        "consumer",
        "epoch",
    ];
    let row = |channel: &Value| {
        let mut row: Vec<String> = columns.iter().map(|column| cell(channel, column)).collect();
        row.push(lease(channel));
        row
    };
    let heads = [
        "CHANNEL",
        "KIND",
        "NAME",
        "STATE",
        "MESSAGES",
        "BYTES",
        "PRODUCERS",
        "CONSUMERS",
        "CONSUMER",
        "EPOCH",
        "LEASE",
    ];
    table(&heads, &rows.iter().map(row).collect::<Vec<_>>())
}

fn members(rows: &[Value]) -> String {
    let columns =
        ["member", "channel", "kind", "role", "status", "name", "node_id", "appends", "claims", "in_flight"];
    let row = |member: &Value| {
        let mut row: Vec<String> = columns.iter().map(|column| cell(member, column)).collect();
        row.extend([lease(member), cell(member, "standing"), time(member, "since_ms")]);
        row
    };
    let heads = [
        "MEMBER",
        "CHANNEL",
        "KIND",
        "ROLE",
        "STATUS",
        "NAME",
        "NODE",
        "APPENDS",
        "CLAIMS",
        "IN FLIGHT",
        "LEASE",
        "STANDING",
        "SINCE",
    ];
    table(&heads, &rows.iter().map(row).collect::<Vec<_>>())
}

/// The state of a lease, with the seconds that are left of it.
fn lease(row: &Value) -> String {
    let state = cell(row, "lease");
    match row.get("lease_left_ms").and_then(Value::as_u64) {
        Some(left_ms) => format!("{state}, {} s left", left_ms / 1_000),
        None => state,
    }
}
