//! The admin API: HTTP and JSON in front of what the broker can tell and do. Names of paths, fields and codes are contracts.
//!
//! It decides nothing: every call goes through [`AdminPort`], which the running broker implements. Here are the tokens and their roles, the
//! audit log, paging, and the translation of results into `application/problem+json`.

mod audit;
mod backup;
mod callers;
mod cluster;
mod dashboard;
mod denied;
mod etag;
mod events;
mod jobs;
mod listener;
mod model;
mod openapi;
mod problem;
mod queues;
mod reload;
mod retire;
mod role;
mod sessions;
mod slow;
mod start;
mod stream;
pub(crate) mod table;
mod tls;
mod token;
mod tokens_file;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use session::id::{Key, Owner};
use session::lifecycle::{EndReason, Subject, WillMode};

pub use audit::{Audit, AuditError, AuditPage, AuditRecord};
pub(crate) use callers::read_further;
pub use callers::{Callers, Tokens};
pub use cluster::{RemoveAnswer, UnretiredBoot};
pub use denied::{DeniedList, DeniedPage, DeniedView, DenyCommand, DenyRequest};
pub use events::EventHello;
pub use jobs::{JobDetail, JobFileError, JobList, JobRequest, JobResult, JobState, JobView, Jobs};
pub(crate) use model::reason_word as end_reason_word;
pub use model::{
    BootView, EndAnswer, EndRequest, InboxView, NodeLeaseView, NodeView, NodesView, OwnerView, SessionDetail,
    SessionSummary, SessionsView, StateWord, SubscriptionView, WillView,
};
pub use problem::Problem;
pub use queues::{
    ChannelColumn, ChannelId, ChannelKind, ChannelPage, ChannelQuery, ChannelState, ChannelView,
    ChannelsView, LeaseWord, MemberColumn, MemberId, MemberPage, MemberQuery, MemberView, MembersView,
    QueuePage, RoleWord, StandingWord, StatusWord, member_text, session_text,
};
pub use reload::{ReloadDone, ReloadError};
pub use retire::{RetireAnswer, RetireGroup, RetireRequest, RetireWaiting, Retirements, check_attestation};
pub use role::{Role, WhoView};
pub use start::{ADDRESS_FILE, Running, StartError, start};
pub use table::{Best, Order, Position, Value, Word};
pub use tls::{AdminTls, CERTIFICATE_FILE};
pub use token::{AdminToken, TokenError};
pub use tokens_file::{NamedToken, TokensFile, add_token, remove_token};

use crate::bridge::{BridgeView, BridgesView};
use crate::cluster::Member;
use crate::events::Feed;
use crate::metrics::Metrics;
use crate::slow::SlowLog;
use crate::trace::Tracer;
use crate::usecase::retire::{RetireError, RetireOrder, RetireProgress, Retired};

/// Bytes of the largest request body.
const BODY_BYTES_MAX: usize = 64 << 10;

/// An answer of the broker that takes time.
pub type PortFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the admin API asks of the running broker. Every call is bounded in time by the broker.
pub trait AdminPort: Send + Sync + 'static {
    /// One page of sessions in key order.
    fn list_sessions(&self, query: SessionQuery) -> PortFuture<'_, Result<SessionPage, PortError>>;
    /// One session; `None`: there is no row.
    fn show_session(&self, key: Key) -> PortFuture<'_, Result<Option<SessionDetail>, PortError>>;
    /// Ends a lifetime (owner spec §8). The caller holds no scope.
    fn end_session(&self, key: Key, command: EndCommand) -> PortFuture<'_, Result<EndDone, EndError>>;
    /// Makes sure that somebody may not connect any more: a CONNECT that is answered later was refused or is in the rows by now.
    fn deny(&self, command: DenyCommand) -> PortFuture<'_, Result<(), PortError>>;
    /// Lets somebody connect again; false: it was not denied.
    fn allow(&self, subject: Subject) -> PortFuture<'_, Result<bool, PortError>>;
    /// Who is denied, from the first behind `after`, users before ClientIDs.
    fn denied(&self, after: Option<Subject>, limit: usize) -> PortFuture<'_, Result<DeniedPage, PortError>>;
    /// One page of channels: of the queue layer, inboxes, shares.
    fn channels(&self, query: ChannelQuery) -> PortFuture<'_, Result<ChannelPage, PortError>>;
    /// One page of members of channels.
    fn members(&self, query: MemberQuery) -> PortFuture<'_, Result<MemberPage, PortError>>;
    /// All nodes with their boots.
    fn nodes(&self) -> PortFuture<'_, Result<Vec<NodeView>, PortError>>;
    /// Retires a boot whose node is gone. As long as its lease; `progress` says how long and may hurry it.
    fn retire_boot(
        &self,
        order: RetireOrder,
        progress: Arc<RetireProgress>,
    ) -> PortFuture<'_, Result<Retired, RetireError>>;
    /// What writes a backup of this node, with everything that was acknowledged before the call. It blocks.
    fn backup(&self) -> PortFuture<'_, Result<BackupWrite, PortError>> {
        Box::pin(async { Err(PortError::Unavailable("there is no store".to_owned())) })
    }
    /// The node in its cluster; `None`: there is nothing to say.
    fn cluster(&self) -> Option<Arc<Member>> {
        None
    }
    /// What happens on this node, for those who watch.
    fn events(&self) -> Arc<Feed> {
        Arc::default()
    }
    /// Traces of calls; `None`: nobody wants any.
    fn tracer(&self) -> Option<Tracer> {
        None
    }
    /// Where slow calls are counted.
    fn slow(&self) -> Arc<SlowLog> {
        Arc::default()
    }
    /// The node that answers, and its boot.
    fn boot(&self) -> (u64, Arc<str>) {
        (1, Arc::from("boot"))
    }
    /// Bridges of this node to other brokers.
    fn bridges(&self) -> Vec<BridgeView> {
        Vec::new()
    }
    /// Reads the configuration and the files of users and rules again.
    fn reload(&self) -> PortFuture<'_, Result<ReloadDone, ReloadError>> {
        Box::pin(async { Err(ReloadError::Unavailable("nothing here takes a reload".to_owned())) })
    }
    /// What must be true for this node to serve clients.
    fn checks(&self) -> PortFuture<'_, Vec<Check>>;
}

/// Writes a backup.
pub type BackupWrite = Box<dyn FnOnce(&mut dyn std::io::Write) -> Result<(), storage::StorageError> + Send>;

/// Which sessions, and from where on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionQuery {
    pub namespace: Option<Arc<str>>,
    pub state: Option<StateWord>,
    /// Exactly this user.
    pub user: Option<Arc<str>>,
    /// Last owner on this node.
    pub node: Option<u64>,
    /// The ClientID begins with this.
    pub prefix: Option<Arc<str>>,
    /// The page begins behind this key.
    pub after: Option<Key>,
    /// 1 to [`sessions::LIMIT_MAX`].
    pub limit: usize,
}

impl SessionQuery {
    /// Whether a session with these facts is wanted (everything but `after` and `limit`).
    #[must_use]
    pub fn wants(&self, key: &Key, user: Option<&str>, node: u64, state: StateWord) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && self.prefix.as_ref().is_none_or(|prefix| key.client_id.starts_with(&**prefix))
            && self.user.as_ref().is_none_or(|wanted| Some(&**wanted) == user)
            && self.node.is_none_or(|wanted| wanted == node)
            && self.state.is_none_or(|wanted| wanted == state)
    }
}

/// A page; `next` is the key to go on behind when there may be more. A page may be short, even empty, and still have a `next`.
#[derive(Debug, Clone, Default)]
pub struct SessionPage {
    pub sessions: Vec<SessionSummary>,
    pub next: Option<Key>,
}

/// An operator's decision about one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndCommand {
    pub reason: EndReason,
    /// End exactly this owner; `None`: read the current one first and end exactly that.
    pub owner: Option<Owner>,
    pub will: WillMode,
    /// Also drop the binding of the ClientID to its user, once reclaimed.
    pub release: bool,
}

/// The session is ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndDone {
    /// The owner that was ended.
    pub owner: Owner,
    /// Final revision of the row.
    pub revision: u64,
    /// Why it ended: what the first End said.
    pub reason: EndReason,
}

/// Why a session is not (known to be) ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndError {
    #[error("there is no such session")]
    NotFound,
    #[error("another owner has the session now")]
    Fenced { current: Option<Box<Owner>> },
    #[error("it is not proved that the owner stopped: {0}")]
    Unproved(String),
    #[error("the connection of the owner could not be closed")]
    Close,
    #[error("the owner did not stop in time; nothing was ended, try again")]
    Deadline,
    #[error("{0}")]
    Invalid(String),
    /// The fate of the End is unknown: ask again, an ended session answers with success.
    #[error("the store is not available: {0}")]
    Unavailable(String),
}

/// Why the broker cannot answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    #[error("not available: {0}")]
    Unavailable(String),
    /// A named bound is reached.
    #[error("{0}")]
    Limit(String),
}

/// One condition of health.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// A fixed word, for example `store`.
    pub name: &'static str,
    /// `Err`: what is wrong and what to do.
    pub result: Result<(), String>,
}

/// What the handlers share.
#[derive(Clone)]
pub struct AdminState {
    pub port: Arc<dyn AdminPort>,
    pub callers: Arc<Callers>,
    pub audit: Arc<Audit>,
    pub jobs: Arc<Jobs>,
    pub retirements: Arc<Retirements>,
    pub metrics: Arc<Metrics>,
    pub events: Arc<Feed>,
    pub slow: Arc<SlowLog>,
    /// `/metrics` asks for the token too.
    pub metrics_token: bool,
}

/// Every route: path and methods. [`role`] says who may call which.
fn routes() -> Vec<(&'static str, MethodRouter<AdminState>)> {
    vec![
        ("/", get(dashboard::page)),
        ("/assets/{name}", get(dashboard::asset)),
        ("/openapi.json", get(openapi::openapi)),
        ("/health/live", get(live)),
        ("/health/ready", get(ready)),
        ("/metrics", get(metrics)),
        ("/v1/sessions", get(sessions::list)),
        ("/v1/sessions/{client_id}", get(sessions::show)),
        ("/v1/sessions/{client_id}/end", post(sessions::end)),
        ("/v1/end", get(jobs::list).post(jobs::begin)),
        ("/v1/end/{job}", get(jobs::show)),
        ("/v1/denied", get(denied::list).post(denied::add).delete(denied::remove)),
        ("/v1/channels", get(queues::channels)),
        ("/v1/members", get(queues::members)),
        ("/v1/bridges", get(bridges)),
        ("/v1/nodes", get(nodes)),
        ("/v1/nodes/{id}/retire", post(retire::retire)),
        ("/v1/cluster", get(cluster::show)),
        ("/v1/cluster/init", post(cluster::init)),
        ("/v1/cluster/join", post(cluster::join)),
        ("/v1/cluster/remove", post(cluster::remove)),
        ("/v1/backup", post(backup::backup)),
        ("/v1/events", get(events::watch)),
        ("/v1/reload", post(reload::reload)),
        ("/v1/audit", get(sessions::audit_page)),
        ("/v1/whoami", get(role::whoami)),
    ]
}

/// The whole API.
pub fn router(state: AdminState) -> Router {
    let mut router = Router::new();
    for (path, methods) in routes() {
        let methods = if role::is_open(path) && !(path == "/metrics" && state.metrics_token) {
            methods
        } else {
            let gate = role::Gate { callers: Arc::clone(&state.callers), path };
            methods.layer(from_fn(etag::tag)).layer(from_fn_with_state(gate, role::require))
        };
        router = router.route(path, methods);
    }
    router
        .fallback(problem::no_route)
        .method_not_allowed_fallback(problem::no_method)
        .layer(from_fn_with_state(state.port.tracer(), slow::trace))
        .layer(from_fn_with_state(Arc::clone(&state.slow), slow::look))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn(problem::no_large_bodies))
        .layer(from_fn(problem::no_plain_errors))
        .with_state(state)
}

/// A JSON object and nothing else: a list would pass for the fields in their order.
fn read_object<T: serde::de::DeserializeOwned>(body: &[u8], form: &str) -> Result<T, Problem> {
    let read = || {
        let value: serde_json::Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if !value.is_object() {
            return Err("it is not an object".to_owned());
        }
        serde_json::from_value(value).map_err(|error| error.to_string())
    };
    read().map_err(|what: String| Problem::invalid(format!("the body is not {form} as expected: {what}")))
}

async fn live() -> Json<serde_json::Value> {
    Json(serde_json::json!({ "status": "live" }))
}

async fn ready(State(state): State<AdminState>) -> Response {
    let checks = state.port.checks().await;
    let failing: Vec<_> = checks
        .iter()
        .filter_map(|check| check.result.as_ref().err().map(|what| (check.name, what)))
        .map(|(name, what)| serde_json::json!({ "check": name, "detail": what }))
        .collect();
    if failing.is_empty() {
        let names: Vec<_> = checks.iter().map(|check| check.name).collect();
        return Json(serde_json::json!({ "status": "ready", "checks": names })).into_response();
    }
    let detail = "this node does not serve clients now; `failing` says why";
    Problem::new(503, "not_ready", detail).with("failing", failing.into()).into_response()
}

async fn metrics(State(state): State<AdminState>) -> Response {
    let content_type = [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (content_type, state.metrics.render()).into_response()
}

async fn bridges(State(state): State<AdminState>) -> Json<BridgesView> {
    Json(BridgesView { bridges: state.port.bridges() })
}

async fn nodes(State(state): State<AdminState>) -> Result<Json<NodesView>, Problem> {
    Ok(Json(NodesView { nodes: state.port.nodes().await? }))
}

#[cfg(test)]
mod audit_test;
#[cfg(test)]
mod openapi_test;
