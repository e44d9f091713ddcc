//! The calls about denials: which users and ClientIDs may not connect.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Extension, Query, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use session::id::{Key, check_identity};
use session::lifecycle::Subject;
use session::limits::{DENY_REASON_BYTES_MAX, UID_BYTES_MAX};
use session::time::Millis;

use super::audit::AuditRecord;
use super::role::Caller;
use super::sessions::{NAMESPACE_DEFAULT, limit, parameters};
use super::{AdminState, PortError, Problem};

type Parameters = Result<Query<HashMap<String, String>>, QueryRejection>;

/// An operator's decision that somebody may not connect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DenyCommand {
    pub subject: Subject,
    /// `None`: until it is allowed again.
    pub until: Option<Millis>,
    pub reason: Arc<str>,
}

/// One denial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedView {
    /// The denied user; `null` when a ClientID is denied.
    pub user: Option<Arc<str>>,
    pub namespace: Option<Arc<str>>,
    pub client_id: Option<Arc<str>>,
    pub since_ms: u64,
    /// `null`: until it is allowed again.
    pub until_ms: Option<u64>,
    pub reason: Arc<str>,
    /// False: not every group has it, since a call broke off; repeat it.
    pub complete: bool,
}

/// A page of denials; `next` is the subject to go on behind when there may be more.
#[derive(Debug, Clone, Default)]
pub struct DeniedPage {
    pub denied: Vec<DeniedView>,
    pub next: Option<Subject>,
}

/// Answer of `GET /v1/denied`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeniedList {
    pub denied: Vec<DeniedView>,
    /// Give it back as `cursor` for the next page; `null`: this was the last one.
    pub cursor: Option<String>,
}

/// Body of `POST /v1/denied`: a user, or a ClientID.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenyRequest {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Arc<str>>,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::model::maybe_whole"
    )]
    pub until_ms: Option<u64>,
}

impl DenyRequest {
    fn command(self) -> Result<DenyCommand, Problem> {
        let reason = self.reason.unwrap_or_default();
        if reason.len() > DENY_REASON_BYTES_MAX {
            return Err(Problem::invalid(format!("reason has more than {DENY_REASON_BYTES_MAX} bytes")));
        }
        let subject = subject(self.user, self.client_id, self.namespace)?;
        Ok(DenyCommand { subject, until: self.until_ms.map(Millis), reason })
    }
}

/// Whom the three names mean.
fn subject(
    user: Option<Arc<str>>,
    client_id: Option<Arc<str>>,
    namespace: Option<Arc<str>>,
) -> Result<Subject, Problem> {
    match (user, client_id) {
        (Some(user), None) if namespace.is_none() => {
            check_identity(&user, UID_BYTES_MAX)
                .map_err(|error| Problem::invalid(format!("user {error}")))?;
            Ok(Subject::User(user))
        }
        (Some(_), None) => Err(Problem::invalid("a user is denied in every namespace: leave namespace out")),
        (None, Some(client_id)) => {
            let namespace = namespace.unwrap_or_else(|| NAMESPACE_DEFAULT.into());
            let key = Key::new(namespace, client_id);
            key.map(Subject::Client)
                .map_err(|error| Problem::invalid(format!("the namespace or ClientID {error}")))
        }
        _ => Err(Problem::invalid("give either user, or client_id with its namespace")),
    }
}

pub(super) async fn list(
    State(state): State<AdminState>,
    query: Parameters,
) -> Result<Json<DeniedList>, Problem> {
    let parameters = parameters(query, &["limit", "cursor"])?;
    let after = parameters.get("cursor").map(|cursor| read_cursor(cursor)).transpose()?;
    let page = state.port.denied(after, limit(&parameters)?).await?;
    Ok(Json(DeniedList { denied: page.denied, cursor: page.next.as_ref().map(write_cursor) }))
}

pub(super) async fn add(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<Json<Value>, Problem> {
    let form = "{\"user\": …} or {\"client_id\": …, \"namespace\": …}";
    let request: DenyRequest = super::read_object(&body, form)?;
    let command = request.command()?;
    let task = tokio::spawn(async move { deny(&state, &caller.who(), command).await });
    finished(task.await)?;
    Ok(Json(json!({ "denied": true })))
}

pub(super) async fn remove(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    query: Parameters,
) -> Result<Json<Value>, Problem> {
    let mut named = parameters(query, &["user", "client_id", "namespace"])?;
    let mut name = |name: &str| named.remove(name).map(Arc::<str>::from);
    let subject = subject(name("user"), name("client_id"), name("namespace"))?;
    let task = tokio::spawn(async move {
        state.audit.check().map_err(|error| Problem::new(503, "audit", error.to_string()))?;
        let done = state.port.allow(subject.clone()).await;
        let who = caller.who();
        record(&state, &who, "deny.remove", &subject, "", done.as_ref().map(drop)).await?;
        Ok(done?)
    });
    if finished(task.await)? {
        return Ok(Json(json!({ "removed": true })));
    }
    Err(Problem::new(404, "not_found", "it was not denied"))
}

/// In a task of its own: a caller that hangs up does not stop half way, nor keep it out of the audit log.
fn finished<T>(task: Result<Result<T, Problem>, tokio::task::JoinError>) -> Result<T, Problem> {
    task.unwrap_or_else(|_| Err(Problem::new(500, "internal", "the call failed; repeat it")))
}

/// Denies and records it.
pub(super) async fn deny(state: &AdminState, who: &str, command: DenyCommand) -> Result<(), Problem> {
    state.audit.check().map_err(|error| Problem::new(503, "audit", error.to_string()))?;
    let (subject, reason) = (command.subject.clone(), command.reason.clone());
    let done = state.port.deny(command).await;
    record(state, who, "deny.add", &subject, &reason, done.as_ref().copied()).await?;
    Ok(done?)
}

async fn record(
    state: &AdminState,
    who: &str,
    action: &str,
    subject: &Subject,
    reason: &str,
    done: Result<(), &PortError>,
) -> Result<(), Problem> {
    let (user, key) = match subject {
        Subject::User(user) => (Some(user.to_string()), None),
        Subject::Client(key) => (None, Some(key)),
    };
    let record = AuditRecord {
        namespace: key.map(|key| key.namespace.to_string()).unwrap_or_default(),
        client_id: key.map(|key| key.client_id.to_string()).unwrap_or_default(),
        subject: user.map(|user| format!("user {user}")),
        reason: reason.to_owned(),
        result: done
            .map_or_else(|error| Problem::from(error.clone()).code().to_owned(), |()| "done".to_owned()),
        ..AuditRecord::of(action, who)
    };
    super::audit::append(&state.audit, vec![record]).await.map_err(|error| {
        let what = if done.is_ok() { "it is done, but " } else { "" };
        Problem::new(500, "audit", format!("{what}{error}"))
    })
}

fn write_cursor(subject: &Subject) -> String {
    // A subject is plain strings: it always has a JSON form.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(subject).unwrap_or_default())
}

fn read_cursor(cursor: &str) -> Result<Subject, Problem> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    bytes
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .ok_or_else(|| Problem::invalid("cursor is not one that this API gave out"))
}
