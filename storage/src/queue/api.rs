//! The entry: one call makes a channel or joins it, by a name that everybody knows.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use session::queue::{Bind, Bound, Kind, QueueCommand, QueueReply, Role, Spec, Target};

use super::consumer::Consumer;
use super::producer::Producer;
use super::{QueueError, QueueStore, Request, Response};
use crate::lease::LeaseGuard;

/// Tries of a Bind whose reply was lost; they find the member that an earlier one made.
const BIND_TRIES: u32 = 5;
/// Tries with a new lease, where the one of the process turns out to be gone.
const LEASE_TRIES: u32 = 2;
const BIND_PAUSE: Duration = Duration::from_millis(200);

/// What everybody who joins a channel must say alike, and what is the member's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelConfig {
    /// Records that are not acknowledged, at most; for MPMC per consumer. At least 1.
    pub capacity: u64,
    /// Their bytes, at most. Default 64 MiB.
    pub capacity_bytes: u64,
    /// How long the channel outlives its last member; at least 1 s.
    pub ttl: Duration,
    /// 1 to 10,000. Under contention producers append, and MPMC consumers receive, in proportion. The member's own.
    pub weight: u32,
    /// Claims of a group consumer that are not settled, at most. The member's own.
    pub credit: u32,
}

impl ChannelConfig {
    /// With a capacity in records and a TTL; weight 1.
    #[must_use]
    pub fn new(capacity: u64, ttl: Duration) -> Self {
        Self { capacity, capacity_bytes: 64 << 20, ttl, weight: 1, credit: 1_024 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChanType {
    Mpsc,
    Mpmc,
    /// Late binding: a record is a consumer's only once it took it.
    Group,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChanRole {
    Producer,
    Consumer,
}

#[derive(Debug)]
pub enum Endpoint {
    Producer(Producer),
    Consumer(Consumer),
}

impl Endpoint {
    /// # Errors
    /// [`QueueError::InvalidConfiguration`]: it is a consumer.
    pub fn producer(self) -> Result<Producer, QueueError> {
        match self {
            Self::Producer(producer) => Ok(producer),
            Self::Consumer(_) => Err(QueueError::InvalidConfiguration("it is a consumer".to_owned())),
        }
    }

    /// # Errors
    /// [`QueueError::InvalidConfiguration`]: it is a producer.
    pub fn consumer(self) -> Result<Consumer, QueueError> {
        match self {
            Self::Consumer(consumer) => Ok(consumer),
            Self::Producer(_) => Err(QueueError::InvalidConfiguration("it is a producer".to_owned())),
        }
    }
}

/// A bound member, for the endpoint that is made of it.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) store: QueueStore,
    pub(super) group: u16,
    pub(super) bound: Bound,
    pub(super) guard: LeaseGuard,
}

/// Makes the channel of that name, or joins it. The channel and the membership appear in one step or not at all.
///
/// # Errors
/// Another configuration ([`QueueError::Mismatch`]), a second consumer of an MPSC channel ([`QueueError::Occupied`]), a sealed channel
/// for a producer, a store or lease backend that does not answer.
pub async fn new_or_bind_with_unique_key(
    store: &QueueStore,
    config: &ChannelConfig,
    unique_id: &str,
    chan_type: ChanType,
    chan_role: ChanRole,
) -> Result<Endpoint, QueueError> {
    let kind = match chan_type {
        ChanType::Mpsc => Kind::Mpsc,
        ChanType::Mpmc => Kind::Mpmc,
        ChanType::Group => Kind::Group,
    };
    let role = match chan_role {
        ChanRole::Producer => Role::Producer,
        ChanRole::Consumer => Role::Consumer { credit: config.credit },
    };
    let ttl_ms = u64::try_from(config.ttl.as_millis()).unwrap_or(u64::MAX);
    let spec = Spec { messages_max: config.capacity, bytes_max: config.capacity_bytes, ttl_ms };
    let group = store.group_of(unique_id);
    let target = Target::Named { name: unique_id.into(), kind, spec };
    let mut tries = 0;
    let (bound, guard) = loop {
        let (guard, lease) = store.member_lease(group, &format!("{unique_id} {chan_role:?}")).await?;
        let nonce = RandomState::new().hash_one(lease);
        let (target, label) = (target.clone(), store.label().into());
        match join(store, group, Bind { target, role, lease, nonce, weight: config.weight, label }).await {
            Err(QueueError::LeaseLost) if tries < LEASE_TRIES => {
                tries += 1;
                store.forget_lease(group, lease).await;
            }
            bound => break (bound?, guard),
        }
    };
    let joined = Joined { store: store.clone(), group, bound, guard };
    match chan_role {
        ChanRole::Producer => Ok(Endpoint::Producer(Producer::new(joined)?)),
        ChanRole::Consumer => Ok(Endpoint::Consumer(Consumer::new(joined)?)),
    }
}

async fn join(store: &QueueStore, group: u16, bind: Bind) -> Result<Bound, QueueError> {
    let mut tries = 0;
    loop {
        let request = Request::Queue(QueueCommand::Bind(Box::new(bind.clone())));
        match store.channels().call(group, request).await {
            Ok(Response::Queue(QueueReply::Bound(bound))) => return Ok(bound),
            Ok(Response::Queue(QueueReply::Refused(refusal))) => return Err(refusal.into()),
            Ok(other) => return Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
            Err(error) => {
                tries += 1;
                if tries >= BIND_TRIES {
                    return Err(error.into());
                }
                tokio::time::sleep(BIND_PAUSE).await;
            }
        }
    }
}

/// Tells the channel that a member goes. What is unreachable is left to the lease.
pub(super) async fn leave(
    store: &QueueStore,
    group: u16,
    member: u64,
    delivered: Vec<(u64, u64)>,
) -> Result<(), QueueError> {
    let request = Request::Queue(QueueCommand::Leave { member, delivered });
    match store.channels().call(group, request).await? {
        Response::Queue(_) => Ok(()),
        other => Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
    }
}
