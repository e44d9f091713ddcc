//! Messages that no connection publishes: Wills and `$SYS`.

use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use parking_lot::Mutex;
use session::id::Key;
use session::lifecycle::{Append, Command, Conflict, Reply, Stamp, WillKey, WillRow};
use session::message::Message;
use storage::{Done, Proposal};
use tokio::sync::oneshot;

use super::mail::Parcel;
use crate::forward::Forward;
use crate::metrics::DropReason;
use crate::route::{PartyId, Route, stamp_hash};
use crate::shared::Shared;
use crate::usecase::heritage::{HandOn, Heirs, NotHandedOn};
use crate::usecase::will::{NotPublished, PublishFuture, WillPublisher};

/// Members of a share that are tried, should they end one by one while a message is handed on.
const MEMBERS_TRIED_MAX: usize = 16;
/// Live parts of Wills whose durable part is under way; beyond it those of dead executions are dropped.
const KEPT_MAX: usize = 4_096;

/// Where messages that are kept go, by their address.
type Kept = HashMap<usize, (Weak<Message>, Route)>;

/// Puts messages of the node itself into the routing.
#[derive(Debug, Clone)]
pub struct SystemPublisher {
    shared: Arc<Shared>,
    /// What `publish` selected for live delivery, until `deliver_live` of the same message: a share group picks once.
    kept: Arc<Mutex<Kept>>,
}

impl SystemPublisher {
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared, kept: Arc::default() }
    }

    /// Delivers a message to connected subscribers only; nothing of it is stored.
    pub fn publish_live(&self, message: &Arc<Message>) {
        let route = self.shared.router.route(message, PartyId::default(), false, None);
        self.send(message, None, route);
    }

    /// The session of a Will as the routing knows it, for No Local ([MQTT-3.8.3-3]).
    fn party(&self, key: &Key) -> PartyId {
        let group = self.shared.store.group_of(key);
        let lifetime = self.shared.store.read(group, |rows| rows.session(key).map(|row| row.lifetime));
        let subscriber = lifetime.and_then(|lifetime| self.shared.router.find(group, lifetime));
        subscriber.map_or_else(PartyId::default, |subscriber| subscriber.id())
    }

    /// Appends a Will to the inboxes of its durable subscribers, under its key, and stores it when it is retained.
    fn publish_durable(&self, will: &WillKey, message: &Arc<Message>) -> PublishFuture {
        let queue_qos0_offline = self.shared.options.queue_qos0_offline;
        let stamp = Stamp::Will(will.clone());
        let (party, hash) = (self.party(&will.key), Some(stamp_hash(&stamp)));
        let mut route = self.shared.router.route(message, party, queue_qos0_offline, hash);
        let mut replies = Vec::new();
        let mut retained = None;
        for (group, targets) in std::mem::take(&mut route.durable) {
            let append = Append { message: Message::clone(message), stamp: Some(stamp.clone()), targets };
            replies.push(self.propose(group, Command::Append(Box::new(append))));
        }
        if message.retain {
            let group = self.shared.store.group_of_topic(message.topic());
            let retain = Command::Retain { message: Message::clone(message), stamp: Some(stamp) };
            retained = Some(self.propose(group, retain));
        }
        self.keep(message, route);
        Box::pin(async move {
            for reply in replies {
                match reply.await {
                    Ok(Ok(reply)) if !matches!(reply, Reply::Conflict(_)) => {}
                    _ => return Err(NotPublished),
                }
            }
            match retained {
                None => Ok(()),
                Some(reply) => match reply.await {
                    // There are as many as there may be: it is delivered and not retained.
                    Ok(Ok(Reply::Conflict(Conflict::Quota))) => Ok(()),
                    Ok(Ok(reply)) if !matches!(reply, Reply::Conflict(_)) => Ok(()),
                    _ => Err(NotPublished),
                },
            }
        })
    }

    /// Gives a message that a member of the shared subscription `filter` left to the next one; nobody waits for it.
    pub(super) fn pass_on(&self, filter: &str, message: &Arc<Message>) {
        let mut route = self.shared.router.route_shared(filter, message, None);
        for (group, targets) in std::mem::take(&mut route.durable) {
            let append = Append { message: Message::clone(message), stamp: None, targets };
            let command = Command::Append(Box::new(append));
            self.shared.store.propose(group, vec![Proposal { command, done: Done::Nobody }]);
        }
        self.send(message, None, route);
    }

    fn propose(
        &self,
        group: storage::GroupId,
        command: Command,
    ) -> oneshot::Receiver<Result<Reply, Arc<storage::StorageError>>> {
        let (sender, receiver) = oneshot::channel();
        self.shared.store.propose(group, vec![Proposal { command, done: Done::Once(sender) }]);
        receiver
    }

    fn keep(&self, message: &Arc<Message>, route: Route) {
        let mut kept = self.kept.lock();
        if kept.len() >= KEPT_MAX {
            kept.retain(|_, (message, _)| message.strong_count() > 0);
        }
        kept.insert(address(message), (Arc::downgrade(message), route));
    }

    /// `publisher`: whose it is, for No Local.
    fn send(&self, message: &Arc<Message>, publisher: Option<&Arc<Key>>, route: Route) {
        self.send_to_nodes(message, publisher, &route.nodes);
        let mut parcels: Vec<(u16, Parcel)> =
            route.workers.iter().map(|worker| (*worker, parcel(message, publisher, true))).collect();
        for target in route.live {
            let worker = target.link.worker;
            let at = parcels.iter().position(|(other, _)| *other == worker);
            let at = at.unwrap_or_else(|| {
                parcels.push((worker, parcel(message, publisher, false)));
                parcels.len() - 1
            });
            parcels[at].1.targets.push(target);
        }
        for (worker, parcel) in parcels {
            let dropped = self.shared.workers.deliver(worker, vec![parcel]);
            self.shared.metrics.control().dropped(DropReason::MailboxFull, dropped);
        }
    }
}

impl SystemPublisher {
    /// To live subscribers of other nodes; nobody waits for it.
    fn send_to_nodes(
        &self,
        message: &Arc<Message>,
        publisher: Option<&Arc<Key>>,
        nodes: &[(u64, Option<Arc<str>>)],
    ) {
        for (at, (node, _)) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|(earlier, _)| earlier == node) {
                continue;
            }
            let of_node = || nodes.iter().filter(|(other, _)| other == node);
            let forward = Forward {
                message: Arc::clone(message),
                publisher: publisher.map(|key| Key::clone(key)),
                everyone: of_node().any(|(_, share)| share.is_none()),
                shares: of_node().filter_map(|(_, share)| share.clone()).collect(),
                done: None,
            };
            let dropped = self.shared.forwarding.send(*node, vec![forward]);
            self.shared.metrics.control().dropped(DropReason::ForwardQueueFull, dropped);
        }
    }
}

impl WillPublisher for SystemPublisher {
    fn is_permitted(&self, will: &WillRow) -> bool {
        let grants = self.shared.auth.grants(will.uid.as_deref());
        grants.may_publish(&will.key.client_id, will.message.topic())
    }

    fn publish(&self, will: &WillKey, message: &Arc<Message>) -> PublishFuture {
        if self.shared.forwarding.is_certain() {
            return self.publish_durable(will, message);
        }
        let (publisher, will, message) = (self.clone(), will.clone(), Arc::clone(message));
        Box::pin(async move {
            publisher.shared.forwarding.certain().await.map_err(|_| NotPublished)?;
            publisher.publish_durable(&will, &message).await
        })
    }

    fn deliver_live(&self, will: &WillKey, message: &Arc<Message>) {
        let kept = self.kept.lock().remove(&address(message));
        let route = match kept {
            Some((_, route)) => route,
            None => self.shared.router.route(message, self.party(&will.key), false, None),
        };
        self.send(message, Some(&Arc::new(will.key.clone())), route);
    }
}

impl SystemPublisher {
    /// Gives the message to the next member: at once to a connection, with an append to an inbox, whose reply is returned.
    fn hand_to_next(&self, filter: &str, message: &Arc<Message>, stamp: Option<&Stamp>) -> Option<Handed> {
        let mut route = self.shared.router.route_shared(filter, message, stamp.map(stamp_hash));
        let Some((group, targets)) = route.durable.pop() else {
            self.send(message, None, route);
            return None;
        };
        let lifetime = targets.first()?.lifetime;
        let append = Append { message: Message::clone(message), stamp: stamp.cloned(), targets };
        let reply = self.propose(group, Command::Append(Box::new(append)));
        Some(Handed { group, lifetime, reply })
    }
}

/// An append to the inbox of a share's member that was proposed.
struct Handed {
    group: storage::GroupId,
    lifetime: u64,
    reply: oneshot::Receiver<Result<Reply, Arc<storage::StorageError>>>,
}

impl Heirs for SystemPublisher {
    fn hand_on(&self, filter: Arc<str>, message: Arc<Message>, stamp: Option<Stamp>) -> HandOn {
        let publisher = Self::new(self.shared.clone());
        let mut handed = self.hand_to_next(&filter, &message, stamp.as_ref());
        Box::pin(async move {
            for _ in 0..MEMBERS_TRIED_MAX {
                let Some(Handed { group, lifetime, reply }) = handed else { return Ok(()) };
                match reply.await {
                    // That member ended too: the next one.
                    Ok(Ok(Reply::Appended { missing: 1, .. })) => {
                        publisher.shared.router.forget_inbox(group, lifetime);
                        handed = publisher.hand_to_next(&filter, &message, stamp.as_ref());
                    }
                    Ok(Ok(Reply::Appended { .. })) => return Ok(()),
                    _ => return Err(NotHandedOn),
                }
            }
            Err(NotHandedOn)
        })
    }
}

fn parcel(message: &Arc<Message>, publisher: Option<&Arc<Key>>, everyone: bool) -> Parcel {
    Parcel {
        message: Arc::clone(message),
        publisher: PartyId::default(),
        foreign: publisher.cloned(),
        everyone,
        targets: Vec::new(),
        taken: None,
    }
}

/// Tells messages in the same execution apart.
fn address(message: &Arc<Message>) -> usize {
    Arc::as_ptr(message) as usize
}
