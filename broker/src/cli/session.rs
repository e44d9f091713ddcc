//! `exactmq session list|show|end`.

use std::num::NonZeroUsize;

use clap::builder::NonEmptyStringValueParser;
use clap::{Subcommand, ValueEnum};
use serde_json::{Value, json};

use session::id::check_identity;
use session::limits::BOOT_ID_BYTES_MAX;

use super::Remote;
use super::end::{EndArgs, end};
use super::error::CliError;
use super::http::{Client, encode, query};
use super::output::{cell, print, print_json, table, time, visible};

/// Sessions asked for at a time.
const PAGE: usize = 1_000;
pub(super) const NAMESPACE: &str = "main";

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List sessions
    List {
        #[command(flatten)]
        remote: Remote,
        /// Only of this namespace
        #[arg(long, value_name = "N")]
        namespace: Option<String>,
        /// Only in this state
        #[arg(long)]
        state: Option<State>,
        /// Only of this user
        #[arg(long)]
        user: Option<String>,
        /// Only those whose last owner is on this node
        #[arg(long, value_name = "ID")]
        node: Option<u64>,
        /// Only ClientIDs that begin with this
        #[arg(long)]
        prefix: Option<String>,
        /// At most so many
        #[arg(long, value_name = "N", default_value = "100")]
        limit: NonZeroUsize,
    },
    /// Show one session: user, owner, inbox, Will, subscriptions
    Show {
        #[arg(value_parser = NonEmptyStringValueParser::new())]
        client_id: String,
        #[command(flatten)]
        remote: Remote,
        #[arg(long, value_name = "N", default_value = NAMESPACE)]
        namespace: String,
    },
    /// End a session, or all of a user or of a prefix: the connection is closed, proved to have stopped, and nothing of it goes on; the row stays as `ended` for the binding retention
    End(EndArgs),
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum State {
    Active,
    Offline,
    Ended,
}

/// The word of a value as the API spells it.
pub(super) fn word(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::List { remote, namespace, state, user, node, prefix, limit } => {
            let filters = [
                ("namespace", namespace),
                ("state", state.map(|state| word(&state))),
                ("user", user),
                ("node", node.map(|node| node.to_string())),
                ("prefix", prefix),
            ];
            list(&remote, &filters, limit.get())
        }
        Command::Show { client_id, remote, namespace } => {
            let session = Client::new(&remote)?.get(&path(&client_id, &namespace, ""))?;
            if remote.json {
                print_json(&session)
            } else {
                print(&shown(&session))
            }
            Ok(())
        }
        Command::End(args) => end(&args),
    }
}

pub(super) fn path(client_id: &str, namespace: &str, rest: &str) -> String {
    format!("/v1/sessions/{}{rest}{}", encode(client_id), query(&[("namespace", Some(namespace.to_owned()))]))
}

fn list(remote: &Remote, filters: &[(&str, Option<String>)], limit: usize) -> Result<(), CliError> {
    let client = Client::new(remote)?;
    let mut sessions = Vec::new();
    let mut cursor = None;
    loop {
        let mut parameters = filters.to_vec();
        let wanted = (limit - sessions.len()).clamp(1, PAGE);
        parameters.extend([("limit", Some(wanted.to_string())), ("cursor", cursor)]);
        let mut page = client.get(&format!("/v1/sessions{}", query(&parameters)))?;
        if let Some(Value::Array(of_page)) = page.get_mut("sessions") {
            sessions.append(of_page);
        }
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || sessions.len() >= limit {
            break;
        }
    }
    sessions.truncate(limit);
    if remote.json {
        print_json(&json!({ "sessions": sessions, "cursor": cursor }));
        return Ok(());
    }
    let columns = ["namespace", "client_id", "user", "state", "node_id", "durable", "revision"];
    let row = |session: &Value| {
        let mut row: Vec<String> = columns.iter().map(|column| cell(session, column)).collect();
        row.push(time(session, "connected_at_ms"));
        row
    };
    let heads = ["NAMESPACE", "CLIENT ID", "USER", "STATE", "NODE", "DURABLE", "REVISION", "CONNECTED"];
    print(&table(&heads, &sessions.iter().map(row).collect::<Vec<_>>()));
    if cursor.is_some() {
        eprintln!("there are more; raise --limit or narrow with --prefix");
    }
    Ok(())
}

fn shown(session: &Value) -> String {
    let owner = session.get("owner").map_or_else(|| "-".to_owned(), tuple);
    let nested =
        |of: &str, name: &str| session.get(of).map_or_else(|| "-".to_owned(), |value| cell(value, name));
    let facts = [
        ("namespace", cell(session, "namespace")),
        ("client id", cell(session, "client_id")),
        ("user", cell(session, "user")),
        ("state", cell(session, "state")),
        ("end reason", cell(session, "end_reason")),
        ("owner", owner),
        ("revision", cell(session, "revision")),
        ("durable", cell(session, "durable")),
        ("session expiry, seconds", cell(session, "expiry_sec")),
        ("connected", time(session, "connected_at_ms")),
        ("updated", time(session, "updated_at_ms")),
        ("offline until", time(session, "offline_expires_at_ms")),
        ("queued messages", nested("inbox", "messages")),
        ("queued bytes", nested("inbox", "bytes")),
        ("will", nested("will", "phase")),
        ("will due", session.get("will").map_or_else(|| "-".to_owned(), |will| time(will, "due_at_ms"))),
        ("subscriptions", cell(session, "subscriptions_total")),
    ];
    let mut text = String::new();
    for (name, value) in facts {
        text.push_str(&format!("{name:<24} {}\n", visible(&value)));
    }
    let subscriptions = session.get("subscriptions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    if !subscriptions.is_empty() {
        let columns = ["filter", "qos", "no_local", "retain_as_published", "identifier"];
        let rows: Vec<Vec<String>> = subscriptions
            .iter()
            .map(|one| columns.iter().map(|column| cell(one, column)).collect())
            .collect();
        text.push('\n');
        text.push_str(&table(&["FILTER", "QOS", "NO LOCAL", "RETAIN AS PUBLISHED", "IDENTIFIER"], &rows));
    }
    text
}

/// `SESSION_GENERATION:OWNER_GENERATION:NODE:BOOT:CONNECTION` of an owner in JSON; the session itself is named beside it.
pub(super) fn tuple(owner: &Value) -> String {
    let fields = ["session_generation", "owner_generation", "node_id", "boot_id", "connection_id"];
    fields.map(|field| cell(owner, field)).join(":")
}

/// A number from 1 on, in digits.
fn positive(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|number| digits && *number > 0)
}

/// The reverse of [`tuple`]. A boot id may contain ':', so the fields around it are taken from both ends.
pub(super) fn parse_tuple(text: &str, namespace: &str, client_id: &str) -> Result<Value, CliError> {
    let parse = || {
        let (rest, connection) = text.rsplit_once(':')?;
        let mut parts = rest.splitn(4, ':');
        let mut number = || positive(parts.next()?);
        let (session_generation, owner_generation, node_id) = (number()?, number()?, number()?);
        let boot_id = parts.next().filter(|boot| check_identity(boot, BOOT_ID_BYTES_MAX).is_ok())?;
        let connection_id = positive(connection)?;
        Some(json!({
            "namespace": namespace, "client_id": client_id, "session_generation": session_generation,
            "owner_generation": owner_generation, "node_id": node_id, "boot_id": boot_id, "connection_id": connection_id,
        }))
    };
    parse().ok_or_else(|| {
        CliError::usage(format!(
            "owner {text:?} is not SESSION_GENERATION:OWNER_GENERATION:NODE:BOOT:CONNECTION, as `exactmq session show` prints it"
        ))
    })
}
