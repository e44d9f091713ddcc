//! The calls about queues: channels and their members (DESIGN §9 "Monitor"; lease spec §9, 15.10, R-18).
//!
//! What is listed is the replicated state: channels of the queue layer, the inbox of each durable session, and each shared subscription that
//! a durable session is a member of. `null` is said where the state has no such figure.

use std::fmt;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use session::id::Key;

use super::sessions::{Parameters, limit, parameters};
use super::table::{Order, Position, Value, Word, number, read_cursor, word, words, write_cursor};
use super::{AdminState, Problem};

words! {
    /// What a channel is.
    pub ChannelKind {
        Mpsc = "mpsc", Mpmc = "mpmc", Group = "group",
        /// Part of an MPMC channel, whose backlog counts it too.
        Sub = "sub",
        /// Of a durable session.
        Inbox = "inbox",
        /// A shared subscription; its messages wait in the inboxes of its members.
        Share = "share",
    }
}

words! {
    pub ChannelState {
        Open = "open",
        /// Nothing is appended any more.
        Sealed = "sealed",
        /// Its lease ended, or it was deleted: it is being reclaimed.
        Closing = "closing",
    }
}

words! {
    /// Who keeps a lease alive.
    pub LeaseWord {
        /// Whoever keeps it alive, one TTL after the other.
        Held = "held",
        /// Nobody: it runs down.
        Armed = "armed",
        /// Something else that lives: a channel's members, a session's node.
        Delegated = "delegated",
    }
}

words! {
    /// How a lease stands in the process that answers, where that one holds it.
    pub StandingWord { Held = "held", AtRisk = "at_risk", Lost = "lost" }
}

words! { pub RoleWord { Producer = "producer", Consumer = "consumer" } }

words! {
    pub StatusWord {
        Alive = "alive",
        /// A session without a connection: a member until it ends.
        Offline = "offline",
    }
}

words! {
    /// What channels are sorted by.
    pub ChannelColumn {
        Kind = "kind", Name = "name", Namespace = "namespace", Group = "group", State = "state",
        NodeId = "node_id", Epoch = "epoch", Messages = "messages", Bytes = "bytes", Claimed = "claimed",
        Discarded = "discarded", MessagesMax = "messages_max", BytesMax = "bytes_max",
        Producers = "producers", Consumers = "consumers", TtlMs = "ttl_ms", Lease = "lease",
        LeaseLeftMs = "lease_left_ms", CreatedAtMs = "created_at_ms",
    }
}

words! {
    /// What members are sorted by.
    pub MemberColumn {
        Channel = "channel", Kind = "kind", Role = "role", Status = "status", Name = "name",
        Namespace = "namespace", NodeId = "node_id", Weight = "weight", Credit = "credit", Claims = "claims",
        Appends = "appends", Waiting = "waiting", Lease = "lease", LeaseLeftMs = "lease_left_ms",
        KeepaliveLagMs = "keepalive_lag_ms", SinceMs = "since_ms",
    }
}

/// Which channel; its order is that of the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ChannelId {
    Queue { group: u16, channel: u64 },
    Inbox { key: Key, generation: u64 },
    Share { filter: Arc<str> },
}

/// Which member; its order is that of the table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum MemberId {
    Queue { group: u16, member: u64 },
    Inbox { key: Key, generation: u64 },
    Share { key: Key, filter: Arc<str> },
}

/// `queue/GROUP/NUMBER`, `inbox/NAMESPACE/CLIENT_ID/GENERATION`, or the filter of a shared subscription.
impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue { group, channel } => write!(f, "queue/{group}/{channel}"),
            Self::Inbox { key, generation } => write!(f, "inbox/{}/{generation}", Path(key)),
            Self::Share { filter } => f.write_str(filter),
        }
    }
}

/// `member/GROUP/NUMBER`, or `session/NAMESPACE/CLIENT_ID/GENERATION`.
#[must_use]
pub fn member_text(group: u16, member: u64) -> String {
    format!("member/{group}/{member}")
}

/// The same of a session.
#[must_use]
pub fn session_text(key: &Key, generation: u64) -> String {
    format!("session/{}/{generation}", Path(key))
}

/// A key in a text whose parts end with `/`: those inside of it, and `%`, are percent-encoded.
struct Path<'a>(&'a Key);

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |text: &str| text.replace('%', "%25").replace('/', "%2F");
        write!(f, "{}/{}", part(&self.0.namespace), part(&self.0.client_id))
    }
}

impl ChannelId {
    /// The reverse of its text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.starts_with("$share/") {
            return Some(Self::Share { filter: text.into() });
        }
        let parts: Vec<&str> = text.split('/').collect();
        match parts[..] {
            ["queue", group, channel] => {
                Some(Self::Queue { group: group.parse().ok()?, channel: channel.parse().ok()? })
            }
            ["inbox", namespace, client_id, generation] => {
                let part = |text: &str| Arc::from(text.replace("%2F", "/").replace("%25", "%"));
                let key = Key::new(part(namespace), part(client_id)).ok()?;
                Some(Self::Inbox { key, generation: generation.parse().ok()? })
            }
            _ => None,
        }
    }
}

/// One channel. `null` where a kind has no such figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelView {
    /// Its id.
    pub channel: String,
    pub kind: ChannelKind,
    /// The unique name, the ClientID, or the filter.
    pub name: Option<Arc<str>>,
    /// Of an inbox.
    pub namespace: Option<Arc<str>>,
    /// Of a sub-channel.
    pub parent: Option<String>,
    /// The replication group that holds it; a share has members in several.
    pub group: Option<u16>,
    pub state: ChannelState,
    /// Why nothing is appended any more, where that is known.
    pub sealed_because: Option<String>,
    /// The member that consumes it, as `GET /v1/members` names it; groups and shares have several.
    pub consumer: Option<String>,
    /// The node of an inbox's owner.
    pub node_id: Option<u64>,
    /// Grows with every new consumer: what an older one acknowledges is refused.
    pub epoch: Option<u64>,
    /// Not acknowledged, exactly; those of a share are in the inboxes of its members.
    pub messages: Option<u64>,
    pub bytes: Option<u64>,
    /// Oldest offset that is not acknowledged, and the next one to be given.
    pub base: Option<u64>,
    pub end: Option<u64>,
    /// Of a group: messages that some member has.
    pub claimed: Option<u64>,
    /// Dropped, because their consumer went and nobody else may have them.
    pub discarded: Option<u64>,
    pub messages_max: Option<u64>,
    pub bytes_max: Option<u64>,
    pub producers: Option<u64>,
    pub consumers: Option<u64>,
    /// Of an MPMC channel.
    pub subchannels: Option<u64>,
    /// How long it outlives its last member, or the session its connection; `null`: for ever.
    pub ttl_ms: Option<u64>,
    pub lease: Option<LeaseWord>,
    /// Of an armed lease.
    pub lease_left_ms: Option<u64>,
    pub created_at_ms: Option<u64>,
}

/// One member of one channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its id; a session that is a member of several channels has the same in each.
    pub member: String,
    pub channel: String,
    pub kind: ChannelKind,
    pub role: RoleWord,
    pub status: StatusWord,
    /// The label of its process, or the ClientID.
    pub name: Arc<str>,
    pub namespace: Option<Arc<str>>,
    /// Of a session's owner, now or last.
    pub node_id: Option<u64>,
    /// Owner generation of a session.
    pub epoch: Option<u64>,
    pub weight: Option<u32>,
    /// Of a group's consumer: how many claims it may have, and how many it has.
    pub credit: Option<u32>,
    pub claims: Option<u32>,
    /// Of an inbox whose session is connected to the node that answers: messages that were sent and are not acknowledged.
    pub in_flight: Option<u32>,
    /// Appends of a producer so far.
    pub appends: Option<u64>,
    /// A producer that waits for room.
    pub waiting: bool,
    pub lease: Option<LeaseWord>,
    pub lease_left_ms: Option<u64>,
    /// As the process that answers sees the lease; `null`: it does not hold it.
    pub standing: Option<StandingWord>,
    pub keepalive_lag_ms: Option<u64>,
    /// When it was bound, or connected last.
    pub since_ms: u64,
}

fn text(word: impl Word) -> Option<Value> {
    Some(Value::Text(word.word().into()))
}

fn name(name: Option<&Arc<str>>) -> Option<Value> {
    name.cloned().map(Value::Text)
}

fn count(count: impl Into<Option<u64>>) -> Option<Value> {
    count.into().map(Value::Number)
}

impl ChannelView {
    /// What it has in a column.
    #[must_use]
    pub fn value(&self, column: ChannelColumn) -> Option<Value> {
        match column {
            ChannelColumn::Kind => text(self.kind),
            ChannelColumn::Name => name(self.name.as_ref()),
            ChannelColumn::Namespace => name(self.namespace.as_ref()),
            ChannelColumn::Group => count(self.group.map(u64::from)),
            ChannelColumn::State => text(self.state),
            ChannelColumn::NodeId => count(self.node_id),
            ChannelColumn::Epoch => count(self.epoch),
            ChannelColumn::Messages => count(self.messages),
            ChannelColumn::Bytes => count(self.bytes),
            ChannelColumn::Claimed => count(self.claimed),
            ChannelColumn::Discarded => count(self.discarded),
            ChannelColumn::MessagesMax => count(self.messages_max),
            ChannelColumn::BytesMax => count(self.bytes_max),
            ChannelColumn::Producers => count(self.producers),
            ChannelColumn::Consumers => count(self.consumers),
            ChannelColumn::TtlMs => count(self.ttl_ms),
            ChannelColumn::Lease => self.lease.and_then(text),
            ChannelColumn::LeaseLeftMs => count(self.lease_left_ms),
            ChannelColumn::CreatedAtMs => count(self.created_at_ms),
        }
    }
}

impl MemberView {
    /// What it has in a column.
    #[must_use]
    pub fn value(&self, column: MemberColumn) -> Option<Value> {
        match column {
            MemberColumn::Channel => Some(Value::Text(self.channel.as_str().into())),
            MemberColumn::Kind => text(self.kind),
            MemberColumn::Role => text(self.role),
            MemberColumn::Status => text(self.status),
            MemberColumn::Name => name(Some(&self.name)),
            MemberColumn::Namespace => name(self.namespace.as_ref()),
            MemberColumn::NodeId => count(self.node_id),
            MemberColumn::Weight => count(self.weight.map(u64::from)),
            MemberColumn::Credit => count(self.credit.map(u64::from)),
            MemberColumn::Claims => count(self.claims.map(u64::from)),
            MemberColumn::Appends => count(self.appends),
            MemberColumn::Waiting => count(u64::from(self.waiting)),
            MemberColumn::Lease => self.lease.and_then(text),
            MemberColumn::LeaseLeftMs => count(self.lease_left_ms),
            MemberColumn::KeepaliveLagMs => count(self.keepalive_lag_ms),
            MemberColumn::SinceMs => count(self.since_ms),
        }
    }
}

/// Which channels, in which order, and from where on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelQuery {
    pub kind: Option<ChannelKind>,
    pub state: Option<ChannelState>,
    /// In lower case; the name has it in it.
    pub name: Option<String>,
    /// At least so many messages wait.
    pub min_messages: Option<u64>,
    pub order: Order<ChannelColumn>,
    pub after: Option<Position<ChannelId>>,
    /// 1 to [`super::sessions::LIMIT_MAX`].
    pub limit: usize,
}

impl ChannelQuery {
    /// Whether channels of this kind are wanted at all.
    #[must_use]
    pub fn wants_kind(&self, kind: ChannelKind) -> bool {
        self.kind.is_none_or(|wanted| wanted == kind)
    }

    /// Everything but `after` and `limit`.
    #[must_use]
    pub fn wants(&self, view: &ChannelView) -> bool {
        self.wants_kind(view.kind)
            && self.state.is_none_or(|wanted| wanted == view.state)
            && self.min_messages.is_none_or(|least| view.messages.is_some_and(|messages| messages >= least))
            && has_in_it(view.name.as_deref().unwrap_or_default(), self.name.as_deref())
    }
}

/// Which members, in which order, and from where on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberQuery {
    pub channel: Option<ChannelId>,
    pub kind: Option<ChannelKind>,
    pub role: Option<RoleWord>,
    pub status: Option<StatusWord>,
    /// In lower case; the name has it in it.
    pub name: Option<String>,
    pub node: Option<u64>,
    pub order: Order<MemberColumn>,
    pub after: Option<Position<MemberId>>,
    /// 1 to [`super::sessions::LIMIT_MAX`].
    pub limit: usize,
}

impl MemberQuery {
    /// Everything but `channel`, `after` and `limit`.
    #[must_use]
    pub fn wants(&self, view: &MemberView) -> bool {
        self.kind.is_none_or(|wanted| wanted == view.kind)
            && self.role.is_none_or(|wanted| wanted == view.role)
            && self.status.is_none_or(|wanted| wanted == view.status)
            && self.node.is_none_or(|wanted| view.node_id == Some(wanted))
            && has_in_it(&view.name, self.name.as_deref())
    }
}

fn has_in_it(name: &str, part: Option<&str>) -> bool {
    part.is_none_or(|part| name.to_lowercase().contains(part))
}

/// A page; `next` is the position to go on behind when there are more.
#[derive(Debug, Clone)]
pub struct QueuePage<V, I> {
    pub rows: Vec<V>,
    pub next: Option<Position<I>>,
}

/// A page of channels.
pub type ChannelPage = QueuePage<ChannelView, ChannelId>;
/// A page of members.
pub type MemberPage = QueuePage<MemberView, MemberId>;

/// Answer of `GET /v1/channels`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChannelsView {
    pub channels: Vec<ChannelView>,
    /// Give it back as `cursor`, with the same `sort`, for the next page; `null`: this was the last one.
    pub cursor: Option<String>,
}

/// Answer of `GET /v1/members`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembersView {
    pub members: Vec<MemberView>,
    /// Give it back as `cursor`, with the same `sort`, for the next page; `null`: this was the last one.
    pub cursor: Option<String>,
}

pub(super) const CHANNEL_PARAMETERS: [&str; 7] =
    ["kind", "state", "name", "min_messages", "sort", "limit", "cursor"];
pub(super) const MEMBER_PARAMETERS: [&str; 9] =
    ["channel", "kind", "role", "status", "name", "node", "sort", "limit", "cursor"];

pub(super) async fn channels(
    State(state): State<AdminState>,
    query: Parameters,
) -> Result<Json<ChannelsView>, Problem> {
    let parameters = parameters(query, &CHANNEL_PARAMETERS)?;
    let order = parameters.get("sort").map_or_else(|| Ok(Order::default()), |sort| Order::parse(sort))?;
    let query = ChannelQuery {
        kind: word(&parameters, "kind")?,
        state: word(&parameters, "state")?,
        name: parameters.get("name").map(|name| name.to_lowercase()),
        min_messages: number(&parameters, "min_messages")?,
        after: read_cursor(&order, &parameters)?,
        limit: limit(&parameters)?,
        order: order.clone(),
    };
    let page = state.port.channels(query).await?;
    Ok(Json(ChannelsView { channels: page.rows, cursor: page.next.map(|at| write_cursor(&order, at)) }))
}

pub(super) async fn members(
    State(state): State<AdminState>,
    query: Parameters,
) -> Result<Json<MembersView>, Problem> {
    let parameters = parameters(query, &MEMBER_PARAMETERS)?;
    let order = parameters.get("sort").map_or_else(|| Ok(Order::default()), |sort| Order::parse(sort))?;
    let channel = parameters.get("channel").map(|text| {
        ChannelId::parse(text).ok_or_else(|| {
            Problem::invalid(format!("channel={text} is not an id that GET /v1/channels tells"))
        })
    });
    let query = MemberQuery {
        channel: channel.transpose()?,
        kind: word(&parameters, "kind")?,
        role: word(&parameters, "role")?,
        status: word(&parameters, "status")?,
        name: parameters.get("name").map(|name| name.to_lowercase()),
        node: number(&parameters, "node")?,
        after: read_cursor(&order, &parameters)?,
        limit: limit(&parameters)?,
        order: order.clone(),
    };
    let page = state.port.members(query).await?;
    Ok(Json(MembersView { members: page.rows, cursor: page.next.map(|at| write_cursor(&order, at)) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_back_whatever_is_in_a_name() {
        let key =
            |namespace: &str, client_id: &str| Key::new(namespace.into(), client_id.into()).expect("valid");
        for id in [
            ChannelId::Queue { group: 3, channel: u64::MAX },
            ChannelId::Inbox { key: key("main", "reader"), generation: 1 },
            ChannelId::Inbox { key: key("a/b", "%2F/%25/ä b"), generation: 7 },
            ChannelId::Share { filter: "$share/g/a/#".into() },
        ] {
            assert_eq!(ChannelId::parse(&id.to_string()), Some(id));
        }
        for text in ["", "queue", "queue/0", "queue/0/x", "queue/65536/1", "inbox/a/b", "inbox//b/1", "x/0/1"]
        {
            assert_eq!(ChannelId::parse(text), None, "{text}");
        }
    }
}
