//! The JSON of the API. Field names are contracts; times are milliseconds since the Unix epoch.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use session::id::{IdentityError, Key, Owner};
use session::lifecycle::{EndReason, SessionRow, SessionState, WillMode, WillStage};

/// State of a session, as a filter and in answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateWord {
    Active,
    Offline,
    Ended,
}

impl From<&SessionState> for StateWord {
    fn from(state: &SessionState) -> Self {
        match state {
            SessionState::Active => Self::Active,
            SessionState::Offline { .. } => Self::Offline,
            SessionState::Ended { .. } => Self::Ended,
        }
    }
}

/// The word for a reason.
#[must_use]
pub(crate) const fn reason_word(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "expired",
        EndReason::Quota => "quota",
        EndReason::Revoked => "revoked",
        EndReason::CleanStart => "clean_start",
        EndReason::Explicit => "explicit",
        EndReason::SourceLost => "source_lost",
    }
}

/// The tuple of DESIGN §3.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnerView {
    pub namespace: Arc<str>,
    pub client_id: Arc<str>,
    #[serde(deserialize_with = "whole")]
    pub session_generation: u64,
    #[serde(deserialize_with = "whole")]
    pub owner_generation: u64,
    #[serde(deserialize_with = "whole")]
    pub node_id: u64,
    pub boot_id: Arc<str>,
    #[serde(deserialize_with = "whole")]
    pub connection_id: u64,
}

impl From<&Owner> for OwnerView {
    fn from(owner: &Owner) -> Self {
        Self {
            namespace: Arc::clone(&owner.key.namespace),
            client_id: Arc::clone(&owner.key.client_id),
            session_generation: owner.session_generation,
            owner_generation: owner.owner_generation,
            node_id: owner.node_id,
            boot_id: Arc::clone(&owner.boot_id),
            connection_id: owner.connection_id,
        }
    }
}

impl TryFrom<OwnerView> for Owner {
    type Error = IdentityError;

    fn try_from(view: OwnerView) -> Result<Self, IdentityError> {
        let owner = Self {
            key: Key { namespace: view.namespace, client_id: view.client_id },
            session_generation: view.session_generation,
            owner_generation: view.owner_generation,
            node_id: view.node_id,
            boot_id: view.boot_id,
            connection_id: view.connection_id,
        };
        owner.check().map(|()| owner)
    }
}

/// One line of the list of sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSummary {
    pub namespace: Arc<str>,
    pub client_id: Arc<str>,
    /// `null`: the anonymous user.
    pub user: Option<Arc<str>>,
    pub state: StateWord,
    /// Why it ended.
    pub end_reason: Option<String>,
    /// Node of the current or last owner.
    pub node_id: u64,
    pub session_generation: u64,
    pub owner_generation: u64,
    pub revision: u64,
    /// Whether it survives its connection.
    pub durable: bool,
    /// Session Expiry Interval, seconds; 4294967295: never.
    pub expiry_sec: u32,
    pub connected_at_ms: u64,
    pub updated_at_ms: u64,
}

impl From<&SessionRow> for SessionSummary {
    fn from(row: &SessionRow) -> Self {
        let end_reason = match row.state {
            SessionState::Ended { reason } => Some(reason_word(reason).to_owned()),
            _ => None,
        };
        Self {
            namespace: Arc::clone(&row.owner.key.namespace),
            client_id: Arc::clone(&row.owner.key.client_id),
            user: row.uid.clone(),
            state: (&row.state).into(),
            end_reason,
            node_id: row.owner.node_id,
            session_generation: row.owner.session_generation,
            owner_generation: row.owner.owner_generation,
            revision: row.revision,
            durable: row.durable,
            expiry_sec: row.expiry_sec,
            connected_at_ms: row.connected_at.0,
            updated_at_ms: row.updated_at.0,
        }
    }
}

/// Answer of `GET /v1/sessions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionsView {
    pub sessions: Vec<SessionSummary>,
    /// Give it back as `cursor` for the next page; `null`: this was the last one.
    pub cursor: Option<String>,
}

/// Counters of a durable session's inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InboxView {
    pub messages: u64,
    pub bytes: u64,
    /// First offset that is not acknowledged, and the next one to be given.
    pub base: u64,
    pub end: u64,
}

impl From<session::lifecycle::InboxStat> for InboxView {
    fn from(stat: session::lifecycle::InboxStat) -> Self {
        Self { messages: stat.messages, bytes: stat.bytes, base: stat.base, end: stat.end }
    }
}

/// The Will of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WillView {
    pub phase: String,
    pub delay_sec: u32,
    pub due_at_ms: Option<u64>,
}

impl WillView {
    #[must_use]
    pub fn new(row: &session::lifecycle::WillRow) -> Self {
        let phase = match row.stage {
            WillStage::Armed => "armed",
            WillStage::Waiting => "waiting",
            WillStage::Ready => "ready",
            WillStage::Executing => "executing",
            WillStage::Published => "published",
            WillStage::Cancelled => "cancelled",
            WillStage::Rejected => "rejected",
        };
        Self { phase: phase.to_owned(), delay_sec: row.delay_sec, due_at_ms: row.due_at.map(|at| at.0) }
    }
}

/// One subscription.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscriptionView {
    pub filter: Arc<str>,
    pub qos: u8,
    pub no_local: bool,
    pub retain_as_published: bool,
    /// 0: none.
    pub identifier: u32,
}

/// Answer of `GET /v1/sessions/{client_id}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionDetail {
    #[serde(flatten)]
    pub summary: SessionSummary,
    /// The current or last owner, complete.
    pub owner: OwnerView,
    /// When an offline session ends; `null` for one that never does.
    pub offline_expires_at_ms: Option<u64>,
    /// `null`: it has no inbox.
    pub inbox: Option<InboxView>,
    pub will: Option<WillView>,
    /// The first 1,000; `subscriptions_total` counts all.
    pub subscriptions: Vec<SubscriptionView>,
    pub subscriptions_total: u64,
}

/// Body of `POST /v1/sessions/{client_id}/end`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndRequest {
    /// `revoked`, `quota`, `source_lost` or `explicit`.
    pub reason: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<OwnerView>,
    /// `publish` (default) or `suppress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub will: Option<String>,
    #[serde(default)]
    pub release: bool,
    /// First deny the ClientID, so that nobody connects with it again in between.
    #[serde(default)]
    pub deny: bool,
}

impl EndRequest {
    /// A JSON object and nothing else: a list would pass for the fields in their order.
    ///
    /// # Errors
    /// What is wrong with it, in words of JSON.
    pub(super) fn read(body: &[u8]) -> Result<Self, String> {
        let value: serde_json::Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        let fields = value.as_object().ok_or("it is not an object")?;
        if fields.get("owner").is_some_and(|owner| !owner.is_object() && !owner.is_null()) {
            return Err("owner is not an object".to_owned());
        }
        serde_json::from_value(value).map_err(|error| in_words(&error.to_string()))
    }
}

/// The reasons an operator may give: a session expires, or is replaced by a clean start, without one.
pub(super) fn reason_of(word: &str) -> Option<EndReason> {
    match word {
        "revoked" => Some(EndReason::Revoked),
        "quota" => Some(EndReason::Quota),
        "source_lost" => Some(EndReason::SourceLost),
        "explicit" => Some(EndReason::Explicit),
        _ => None,
    }
}

/// What becomes of the Will; nothing said: it is published.
pub(super) fn will_of(word: Option<&str>) -> Result<WillMode, String> {
    match word {
        None | Some("publish") => Ok(WillMode::Publish),
        Some("suppress") => Ok(WillMode::Suppress),
        Some(other) => Err(format!("will {other:?} is not publish or suppress")),
    }
}

/// A body that is a JSON object and nothing else: a list would pass for the fields in their order.
///
/// # Errors
/// What is wrong with it, in words of JSON.
pub(super) fn object<T: serde::de::DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    let value: serde_json::Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    if !value.is_object() {
        return Err("it is not an object".to_owned());
    }
    serde_json::from_value(value).map_err(|error| in_words(&error.to_string()))
}

/// Rust names of types mean nothing to a caller.
fn in_words(error: &str) -> String {
    [
        ("expected struct EndRequest", "expected an object"),
        ("expected struct OwnerView", "expected an object"),
        ("expected u64", "expected a number from 0 on"),
        ("expected a boolean", "expected true or false"),
    ]
    .iter()
    .fold(error.to_owned(), |text, (rust, word)| text.replace(rust, word))
}

/// Answer of a successful End.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndAnswer {
    /// Final revision of the session.
    pub revision: u64,
    /// The owner that was ended.
    pub owner: OwnerView,
}

/// One start of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BootView {
    pub boot_id: Arc<str>,
    /// Whether it is the one that runs now: the own one of the node that answers, the newest that is not retired of another.
    pub current: bool,
    pub lease_until_ms: u64,
    pub retired_at_ms: Option<u64>,
    /// By which proof: `graceful_receipt`, `crash_receipt`, `attested`, `fence_agent`, `lease`.
    pub retired_by: Option<String>,
    /// What the operator attested, or the fence agent said.
    pub retired_because: Option<Arc<str>>,
}

/// The lease under which a node serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeLeaseView {
    /// `embedded` or `etcd`, as the node that answers is configured.
    pub backend: String,
    /// `held`, `at_risk` (a renewal had no answer; known of the node that answers), `lost`, or `unknown`: etcd does not answer.
    pub state: String,
    /// Why, and what to do; `null`: nothing.
    pub detail: Option<String>,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeView {
    pub node_id: u64,
    /// Whether it is the node that answers.
    pub local: bool,
    /// Version of its program, when known.
    pub version: Option<String>,
    /// Connections it holds, when known.
    pub connections: Option<u64>,
    pub started_at_ms: Option<u64>,
    /// `null`: nothing is known of it.
    #[serde(default)]
    pub lease: Option<NodeLeaseView>,
    /// Newest first.
    pub boots: Vec<BootView>,
}

/// Answer of `GET /v1/nodes`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodesView {
    pub nodes: Vec<NodeView>,
}

/// A whole number, also where it was written with a fraction of zero: to JSON these are the same.
pub(super) fn whole<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    use serde::de::Error as _;
    let number = serde_json::Number::deserialize(from)?;
    let exact = |float: &f64| float.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(float);
    number
        .as_u64()
        .or_else(|| number.as_f64().filter(exact).map(|float| float as u64))
        .ok_or_else(|| D::Error::custom(format!("{number} is not a whole number from 0 on")))
}

/// The same where it may be left out, or be `null`.
pub(super) fn maybe_whole<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    #[derive(Deserialize)]
    struct Whole(#[serde(deserialize_with = "whole")] u64);
    Ok(Option::<Whole>::deserialize(from)?.map(|whole| whole.0))
}
