//! `exactmq deny list|add|remove`.

use std::num::{NonZeroU64, NonZeroUsize};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::Remote;
use super::error::CliError;
use super::http::{Client, query};
use super::output::{cell, print, print_json, table, time};

/// Denials asked for at a time.
const PAGE: usize = 1_000;

#[derive(Debug, Subcommand)]
pub(super) enum Command {
    /// List users and ClientIDs that may not connect
    List {
        #[command(flatten)]
        remote: Remote,
        /// At most so many
        #[arg(long, value_name = "N", default_value = "1000")]
        limit: NonZeroUsize,
    },
    /// Deny a user, or a ClientID; sessions that are there stay (see `session end --deny`)
    Add {
        #[command(flatten)]
        subject: Subject,
        /// Kept with the denial
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// For so long [default: until it is removed]
        #[arg(long, value_name = "SECONDS")]
        seconds: Option<NonZeroU64>,
        #[command(flatten)]
        remote: Remote,
    },
    /// Let a user, or a ClientID, connect again
    Remove {
        #[command(flatten)]
        subject: Subject,
        #[command(flatten)]
        remote: Remote,
    },
}

#[derive(Debug, Args)]
pub(super) struct Subject {
    /// A user, in every namespace
    #[arg(long, required_unless_present = "client_id", conflicts_with_all = ["client_id", "namespace"])]
    user: Option<String>,
    /// A ClientID
    #[arg(long)]
    client_id: Option<String>,
    /// Namespace of the ClientID [default: main]
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
}

impl Subject {
    fn names(&self) -> [(&'static str, Option<String>); 3] {
        let Self { user, client_id, namespace } = self;
        [("user", user.clone()), ("client_id", client_id.clone()), ("namespace", namespace.clone())]
    }
}

pub(super) fn run(command: Command) -> Result<(), CliError> {
    match command {
        Command::List { remote, limit } => list(&remote, limit.get()),
        Command::Add { subject, reason, seconds, remote } => {
            let mut body = json!({ "reason": reason });
            for (name, value) in subject.names() {
                if let Some(value) = value {
                    body[name] = value.into();
                }
            }
            if let Some(seconds) = seconds {
                let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
                body["until_ms"] = now_ms.saturating_add(seconds.get().saturating_mul(1_000)).into();
            }
            let answer = Client::new(&remote)?.post("/v1/denied", &body)?;
            tell(&remote, &answer, "denied\n");
            Ok(())
        }
        Command::Remove { subject, remote } => {
            let answer = Client::new(&remote)?.delete(&format!("/v1/denied{}", query(&subject.names())))?;
            tell(&remote, &answer, "not denied any more\n");
            Ok(())
        }
    }
}

fn tell(remote: &Remote, answer: &Value, words: &str) {
    if remote.json {
        print_json(answer);
    } else {
        print(words);
    }
}

fn list(remote: &Remote, limit: usize) -> Result<(), CliError> {
    let client = Client::new(remote)?;
    let mut denied = Vec::new();
    let mut cursor = None;
    loop {
        let wanted = (limit - denied.len()).clamp(1, PAGE);
        let parameters = [("limit", Some(wanted.to_string())), ("cursor", cursor)];
        let mut page = client.get(&format!("/v1/denied{}", query(&parameters)))?;
        if let Some(Value::Array(of_page)) = page.get_mut("denied") {
            denied.append(of_page);
        }
        cursor = page.get("cursor").and_then(Value::as_str).map(str::to_owned);
        if cursor.is_none() || denied.len() >= limit {
            break;
        }
    }
    if remote.json {
        print_json(&json!({ "denied": denied, "cursor": cursor }));
        return Ok(());
    }
    let row = |one: &Value| {
        let mut row: Vec<String> =
            ["user", "namespace", "client_id"].iter().map(|column| cell(one, column)).collect();
        row.extend([time(one, "since_ms"), time(one, "until_ms"), cell(one, "reason")]);
        row
    };
    let heads = ["USER", "NAMESPACE", "CLIENT ID", "SINCE", "UNTIL", "REASON"];
    print(&table(&heads, &denied.iter().map(row).collect::<Vec<_>>()));
    if cursor.is_some() {
        eprintln!("there are more; raise --limit");
    }
    Ok(())
}
