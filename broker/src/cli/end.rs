//! `exactmq session end`: one session, or all of a user or a prefix.

use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::Remote;
use super::error::CliError;
use super::http::{Client, query};
use super::output::{cell, print, print_json, table, visible};
use super::session::{NAMESPACE, parse_tuple, path, word};

/// Between two looks at a job.
const LOOK: Duration = Duration::from_millis(200);
/// Sessions that were not ended and are told one by one.
const FAILED_SHOWN: usize = 100;

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(super) enum Reason {
    Revoked,
    Quota,
    SourceLost,
    Explicit,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum Will {
    Publish,
    Suppress,
}

#[derive(Debug, Args)]
pub(super) struct EndArgs {
    /// The session to end
    #[arg(value_parser = NonEmptyStringValueParser::new(), required_unless_present_any = ["user", "prefix"])]
    client_id: Option<String>,
    /// End all sessions of this user instead
    #[arg(long, conflicts_with_all = ["client_id", "prefix", "owner"])]
    user: Option<String>,
    /// End all sessions whose ClientID begins with this instead
    #[arg(long, conflicts_with_all = ["client_id", "owner", "deny"])]
    prefix: Option<String>,
    #[command(flatten)]
    remote: Remote,
    /// Namespace of the session [default: main; with --user: all]
    #[arg(long, value_name = "N")]
    namespace: Option<String>,
    #[arg(long, default_value = "explicit")]
    reason: Reason,
    /// End exactly this owner, as `session show` prints it
    #[arg(long, value_name = "TUPLE")]
    owner: Option<String>,
    /// What becomes of the Will
    #[arg(long, default_value = "publish")]
    will: Will,
    /// Also drop the binding of the ClientID to its user, once reclaimed
    #[arg(long)]
    release: bool,
    /// First deny the ClientID, or the user: it does not connect again until `exactmq deny remove`
    #[arg(long)]
    deny: bool,
}

pub(super) fn end(args: &EndArgs) -> Result<(), CliError> {
    let mut body = json!({
        "reason": word(&args.reason), "will": word(&args.will), "release": args.release, "deny": args.deny,
    });
    let Some(client_id) = &args.client_id else { return end_all(args, body) };
    let namespace = args.namespace.as_deref().unwrap_or(NAMESPACE);
    if let Some(text) = &args.owner {
        body["owner"] = parse_tuple(text, namespace, client_id)?;
    }
    let answer = Client::new(&args.remote)?.post(&path(client_id, namespace, "/end"), &body)?;
    if args.remote.json {
        print_json(&answer);
    } else {
        print(&format!("ended {}, revision {}\n", visible(client_id), cell(&answer, "revision")));
    }
    Ok(())
}

/// Begins a job and waits until it is over.
fn end_all(args: &EndArgs, mut body: Value) -> Result<(), CliError> {
    for (name, value) in [("user", &args.user), ("prefix", &args.prefix), ("namespace", &args.namespace)] {
        if let Some(value) = value {
            body[name] = value.as_str().into();
        }
    }
    let client = Client::new(&args.remote)?;
    let job = client.post("/v1/end", &body)?;
    let failed = finish(&client, job)?;
    if args.remote.json {
        print_json(&failed);
    } else {
        print(&told(&failed));
    }
    outcome(&failed)
}

/// Waits until a job is over; it then names the sessions that were not ended.
pub(super) fn finish(client: &Client, mut job: Value) -> Result<Value, CliError> {
    let path = format!("/v1/end/{}", cell(&job, "job"));
    while job.get("state").and_then(Value::as_str) == Some("running") {
        std::thread::sleep(LOOK);
        job = client.get(&format!("{path}{}", query(&[("limit", Some("1".to_owned()))])))?;
    }
    let shown = [("only", Some("failed".to_owned())), ("limit", Some(FAILED_SHOWN.to_string()))];
    client.get(&format!("{path}{}", query(&shown)))
}

pub(super) fn told(job: &Value) -> String {
    let columns = ["namespace", "client_id", "result", "detail"];
    let rows: Vec<Vec<String>> =
        results(job).iter().map(|one| columns.iter().map(|column| cell(one, column)).collect()).collect();
    let counts = ["ended", "gone", "failed"].map(|name| format!("{name} {}", cell(job, name))).join(", ");
    let line = format!("job {}: {}: {counts}\n", cell(job, "job"), cell(job, "state"));
    if rows.is_empty() { line } else { line + &table(&["NAMESPACE", "CLIENT ID", "RESULT", "DETAIL"], &rows) }
}

fn results(job: &Value) -> &[Value] {
    job.get("results").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

pub(super) fn outcome(job: &Value) -> Result<(), CliError> {
    let failed = job.get("failed").and_then(Value::as_u64).unwrap_or_default();
    if job.get("state").and_then(Value::as_str) != Some("done") {
        return Err(CliError::failed(&format!("the job is not done: {}", cell(job, "detail"))));
    }
    if failed == 0 {
        return Ok(());
    }
    let unproved =
        results(job).iter().any(|one| one.get("result").and_then(Value::as_str) == Some("unproved"));
    Err(CliError::not_all(
        format!("{failed} sessions are not (known to be) ended; repeat the command"),
        unproved,
    ))
}
