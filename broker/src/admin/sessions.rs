//! The calls about sessions: list, show, end; and the log of what was ended.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Extension, Path, Query, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use session::id::{Key, Owner};
use session::lifecycle::Subject;

use super::audit::{self, AuditFilter, AuditPage, AuditRecord};
use super::denied::{DenyCommand, deny};
use super::model::{
    EndAnswer, EndRequest, OwnerView, SessionDetail, SessionsView, StateWord, reason_of, reason_word, will_of,
};
use super::role::Caller;
use super::{AdminState, EndCommand, Problem, SessionQuery};

/// Sessions or audit records in one page.
pub(super) const LIMIT_MAX: usize = 1_000;
const LIMIT_DEFAULT: usize = 100;
pub(super) const NAMESPACE_DEFAULT: &str = "main";
const CURSOR_VERSION: u8 = 1;

pub(super) type Parameters = Result<Query<HashMap<String, String>>, QueryRejection>;
type ClientId = Result<Path<String>, PathRejection>;

pub(super) async fn list(
    State(state): State<AdminState>,
    query: Parameters,
) -> Result<Json<SessionsView>, Problem> {
    let parameters = parameters(query, &["namespace", "state", "user", "node", "prefix", "limit", "cursor"])?;
    let text = |name: &str| parameters.get(name).map(|value| Arc::<str>::from(value.as_str()));
    let node = parameters.get("node").map(|node| {
        node.parse::<u64>()
            .map_err(|_| Problem::invalid(format!("node={node} is not a node id (a number from 1 on)")))
    });
    let query = SessionQuery {
        namespace: text("namespace"),
        state: parameters.get("state").map(|word| state_of(word)).transpose()?,
        user: text("user"),
        node: node.transpose()?,
        prefix: text("prefix"),
        after: parameters.get("cursor").map(|cursor| read_cursor(cursor)).transpose()?,
        limit: limit(&parameters)?,
    };
    let page = state.port.list_sessions(query).await?;
    Ok(Json(SessionsView { sessions: page.sessions, cursor: page.next.as_ref().map(write_cursor) }))
}

pub(super) async fn show(
    State(state): State<AdminState>,
    client_id: ClientId,
    query: Parameters,
) -> Result<Json<SessionDetail>, Problem> {
    let key = key(client_id, query)?;
    match state.port.show_session(key).await? {
        Some(detail) => Ok(Json(detail)),
        None => Err(super::EndError::NotFound.into()),
    }
}

pub(super) async fn end(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    client_id: ClientId,
    query: Parameters,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<EndAnswer>, Problem> {
    let key = key(client_id, query)?;
    let body = body.map_err(|rejection| match rejection.status().as_u16() {
        413 => Problem::too_large(),
        _ => Problem::invalid(rejection.body_text()),
    })?;
    let request = EndRequest::read(&body)
        .map_err(|what| Problem::invalid(format!("the body is not {{\"reason\": …}} as expected: {what}")))?;
    let command = command(&key, &request)?;
    // In a task of its own: a caller that hangs up does not stop half way, nor keep it out of the audit log.
    let task = tokio::spawn(end_and_record(state, caller, key, request, command));
    task.await
        .unwrap_or_else(|_| Err(Problem::new(500, "internal", "the call failed; its outcome is unknown")))
}

fn command(key: &Key, request: &EndRequest) -> Result<EndCommand, Problem> {
    let reason = reason_of(&request.reason).ok_or_else(|| {
        Problem::invalid(format!(
            "reason {:?} is not revoked, quota, source_lost or explicit",
            request.reason
        ))
    })?;
    let will = will_of(request.will.as_deref()).map_err(Problem::invalid)?;
    let owner = request.owner.clone().map(Owner::try_from).transpose();
    let owner = owner.map_err(|error| Problem::invalid(format!("a field of owner {error}")))?;
    if owner.as_ref().is_some_and(|owner| owner.key != *key) {
        return Err(Problem::invalid("owner names another session than the path"));
    }
    Ok(EndCommand { reason, owner, will, release: request.release })
}

async fn end_and_record(
    state: AdminState,
    caller: Caller,
    key: Key,
    request: EndRequest,
    command: EndCommand,
) -> Result<Json<EndAnswer>, Problem> {
    let unrecorded = |error: &dyn std::fmt::Display| Problem::new(503, "audit", format!("{error}"));
    state.audit.check().map_err(|error| unrecorded(&error))?;
    let who = caller.who();
    if request.deny {
        let reason = format!("session end: {}", request.reason).into();
        let denial = DenyCommand { subject: Subject::Client(key.clone()), until: None, reason };
        deny(&state, &who, denial).await?;
    }
    let result = state.port.end_session(key.clone(), command).await;
    let owner = match &result {
        Ok(done) => Some(OwnerView::from(&done.owner)),
        Err(_) => request.owner.clone(),
    };
    let problem = result.as_ref().err().map(|error| Problem::from(error.clone()));
    let record = AuditRecord {
        namespace: key.namespace.to_string(),
        client_id: key.client_id.to_string(),
        owner,
        reason: result
            .as_ref()
            .map_or_else(|_| request.reason.clone(), |done| reason_word(done.reason).to_owned()),
        will: request.will.clone().unwrap_or_else(|| "publish".to_owned()),
        release: request.release,
        result: problem.as_ref().map_or_else(|| "ended".to_owned(), |problem| problem.code().to_owned()),
        revision: result.as_ref().ok().map(|done| done.revision),
        ..AuditRecord::of("session.end", &who)
    };
    if let Err(error) = audit::append(&state.audit, vec![record]).await {
        let what = if problem.is_none() { "the session was ended, but " } else { "" };
        return Err(Problem::new(500, "audit", format!("{what}{error}")));
    }
    match result {
        Ok(done) => Ok(Json(EndAnswer { revision: done.revision, owner: (&done.owner).into() })),
        Err(error) => Err(error.into()),
    }
}

pub(super) async fn audit_page(
    State(state): State<AdminState>,
    query: Parameters,
) -> Result<Json<AuditPage>, Problem> {
    let mut parameters = parameters(query, &["action", "client_id", "result", "limit", "cursor"])?;
    let limit = limit(&parameters)?;
    let mut text = |name: &str| parameters.remove(name);
    let wanted = AuditFilter { action: text("action"), client_id: text("client_id"), result: text("result") };
    let cursor = parameters.get("cursor").map(|cursor| {
        cursor.parse::<u64>().map_err(|_| Problem::invalid("cursor is not one that this API gave out"))
    });
    let cursor = cursor.transpose()?;
    let page = tokio::task::spawn_blocking(move || state.audit.page(limit, cursor, &wanted)).await;
    match page {
        Ok(Ok(page)) => Ok(Json(page)),
        Ok(Err(error)) => Err(Problem::new(500, "audit", error.to_string())),
        Err(_) => Err(Problem::new(500, "internal", "the audit log could not be read")),
    }
}

/// The parameters, none of them unknown: a misspelt filter must not silently select everything.
pub(super) fn parameters(query: Parameters, known: &[&str]) -> Result<HashMap<String, String>, Problem> {
    let Query(mut parameters) = query.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    // What a form sends when nothing was filled in.
    parameters.retain(|name, value| !(value.is_empty() && matches!(name.as_str(), "cursor" | "channel")));
    match parameters.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(Problem::invalid(format!("parameter {name} is not one of {}", known.join(", ")))),
        None => Ok(parameters),
    }
}

pub(super) fn limit(parameters: &HashMap<String, String>) -> Result<usize, Problem> {
    let Some(text) = parameters.get("limit") else { return Ok(LIMIT_DEFAULT) };
    let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
    limit.ok_or_else(|| Problem::invalid(format!("limit={text} is not 1 to {LIMIT_MAX}")))
}

fn state_of(word: &str) -> Result<StateWord, Problem> {
    match word {
        "active" => Ok(StateWord::Active),
        "offline" => Ok(StateWord::Offline),
        "ended" => Ok(StateWord::Ended),
        _ => Err(Problem::invalid(format!("state={word} is not active, offline or ended"))),
    }
}

fn key(client_id: ClientId, query: Parameters) -> Result<Key, Problem> {
    let Path(client_id) = client_id.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let mut parameters = parameters(query, &["namespace"])?;
    let namespace = parameters.remove("namespace").unwrap_or_else(|| NAMESPACE_DEFAULT.to_owned());
    Key::new(namespace.into(), client_id.into())
        .map_err(|error| Problem::invalid(format!("the namespace or ClientID {error}")))
}

/// Opaque to callers: version, length of the namespace, namespace, ClientID.
fn write_cursor(key: &Key) -> String {
    let mut bytes = vec![CURSOR_VERSION];
    bytes.extend_from_slice(&(key.namespace.len() as u32).to_be_bytes());
    bytes.extend_from_slice(key.namespace.as_bytes());
    bytes.extend_from_slice(key.client_id.as_bytes());
    URL_SAFE_NO_PAD.encode(bytes)
}

fn read_cursor(cursor: &str) -> Result<Key, Problem> {
    let read = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let (version, rest) = bytes.split_first()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (namespace, client_id) = rest.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        let text = |bytes| std::str::from_utf8(bytes).ok().map(Arc::<str>::from);
        (*version == CURSOR_VERSION).then_some(())?;
        Key::new(text(namespace)?, text(client_id)?).ok()
    };
    read().ok_or_else(|| Problem::invalid("cursor is not one that this API gave out"))
}
