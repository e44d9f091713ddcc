//! Messages that no connection publishes, or waits for any more: Wills, `$SYS`, and what a member of a share leaves to another one.

mod passed_on;

use std::sync::{Arc, Weak};

use hashbrown::HashMap;
use parking_lot::Mutex;
use session::id::Key;
use session::lifecycle::{Append, Command, Conflict, Reply, Stamp, WillKey, WillRow};
use session::message::{Message, QoS};
use storage::{Done, Proposal, StorageError};
use tokio::sync::oneshot;

use super::mail::Parcel;
use super::share::{Place, SharedMessage, is_missing, shared_append};
use crate::auth::Brought;
use crate::forward::{Forward, ForwardedShare};
use crate::metrics::DropReason;
use crate::route::{Left, PartyId, Route, SharedTarget, Tried, stamp_hash};
use crate::shared::Shared;
use crate::usecase::heritage::{HandOn, Heirs, NotHandedOn};
use crate::usecase::will::{NotPublished, PublishFuture, WillPublisher};
use crate::users::UserRoom;
use passed_on::{NodeWays, PassedOn};

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
    passed_on: Arc<PassedOn>,
}

impl SystemPublisher {
    #[must_use]
    pub fn new(shared: Arc<Shared>) -> Self {
        let passed_on = PassedOn::new(Box::new(NodeWays(shared.clone())), &shared.boot.boot_id);
        Self { shared, kept: Arc::default(), passed_on }
    }

    /// Delivers a message to connected subscribers only; nothing of it is stored.
    pub fn publish_live(&self, message: &Arc<Message>) {
        let route = self.shared.router.route(message, PartyId::default(), false, None);
        self.count_unserved(message, &route);
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
        self.count_unserved(message, &route);
        let mut replies = Vec::new();
        let mut retained = None;
        let shared: Vec<_> = std::mem::take(&mut route.shared)
            .into_iter()
            .map(|target| self.give(message, Some(&stamp), Tried::default(), target))
            .collect();
        let mut room = UserRoom::of(&self.shared, message.len());
        for (group, mut targets) in std::mem::take(&mut route.durable) {
            if let Some(room) = &mut room {
                let dropped = room.filter(group, &mut targets);
                self.shared.metrics.control().dropped(DropReason::UserQuota, dropped);
            }
            let append = Append { message: Message::clone(message), stamp: Some(stamp.clone()), targets };
            replies.push(self.propose(group, Command::Append(Box::new(append))));
        }
        if message.retain {
            let group = self.shared.store.group_of_topic(message.topic());
            let retain = Command::Retain { message: Message::clone(message), stamp: Some(stamp) };
            retained = Some(self.propose(group, retain));
        }
        self.keep(message, route);
        let publisher = self.clone();
        Box::pin(async move {
            for given in shared {
                publisher.see_to(Some(given)).await.map_err(|_| NotPublished)?;
            }
            for reply in replies {
                match reply.await {
                    Ok(Ok(reply)) if !matches!(reply, Reply::Conflict(_)) => publisher.count_quota(&reply),
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

    /// Gives a message that a member of a shared subscription left, or could not take, to the next one; nobody waits for it.
    pub(super) fn pass_on(&self, message: &Arc<Message>, stamp: Option<&Stamp>, left: &Left) {
        let mut route = self.shared.router.route_shared(left, message, stamp.map(stamp_hash));
        self.count_unserved(message, &route);
        for target in std::mem::take(&mut route.shared) {
            let place = Place::Inbox(target.group, target.target.lifetime);
            self.passed_on.give(on_its_way(message, stamp, left, place), target);
        }
        self.send_behind(message, None, route, Some((stamp, &left.tried)));
    }

    /// The same for one whose member turned out not to be there.
    pub(super) fn pass_over(&self, mut shared: SharedMessage) {
        shared.pass_over(&self.shared.router);
        self.pass_on(&shared.message, shared.stamp.as_ref(), &shared.left);
    }

    /// Counts a message that nobody of a share takes.
    fn count_unserved(&self, message: &Message, route: &Route) {
        if message.qos > QoS::AtMostOnce {
            let control = self.shared.metrics.control();
            route.unserved.iter().for_each(|left| control.dropped(left.tried.drop_reason(), 1));
        }
    }

    fn count_quota(&self, reply: &Reply) {
        if let Reply::Appended { over_quota, .. } = reply {
            self.shared.metrics.control().dropped(DropReason::InboxQuota, u64::from(*over_quota));
        }
    }

    fn propose(
        &self,
        group: storage::GroupId,
        command: Command,
    ) -> oneshot::Receiver<Result<Reply, Arc<StorageError>>> {
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
        self.send_behind(message, publisher, route, None);
    }

    /// `passed_on`: what is known of a message that other members of its share could not take.
    fn send_behind(
        &self,
        message: &Arc<Message>,
        publisher: Option<&Arc<Key>>,
        route: Route,
        passed_on: Option<(Option<&Stamp>, &Tried)>,
    ) {
        self.send_to_nodes(message, publisher, &route.nodes, passed_on);
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
        passed_on: Option<(Option<&Stamp>, &Tried)>,
    ) {
        let nobody = Tried::default();
        let (stamp, tried) = passed_on.unwrap_or((None, &nobody));
        for (at, (node, _)) in nodes.iter().enumerate() {
            if nodes[..at].iter().any(|(earlier, _)| earlier == node) {
                continue;
            }
            let of_node = || nodes.iter().filter(|(other, _)| other == node);
            let of_share = |filter: &Arc<str>| {
                let left = Left { filter: Arc::clone(filter), tried: tried.clone() };
                let done = match message.qos {
                    QoS::AtMostOnce => None,
                    _ => {
                        let next = on_its_way(message, stamp, &left, Place::Node(*node));
                        Some(self.passed_on.waiter(next)?)
                    }
                };
                Some(ForwardedShare { filter: Arc::clone(filter), done })
            };
            let forward = Forward {
                message: Arc::clone(message),
                publisher: publisher.map(|key| Key::clone(key)),
                everyone: of_node().any(|(_, share)| share.is_none()),
                shares: of_node().filter_map(|(_, share)| share.as_ref()).filter_map(of_share).collect(),
                done: None,
            };
            let dropped = self.shared.forwarding.send(*node, vec![forward]);
            self.shared.metrics.control().dropped(DropReason::ForwardQueueFull, dropped);
        }
    }
}

impl WillPublisher for SystemPublisher {
    fn is_permitted(&self, will: &WillRow) -> bool {
        // The rules that its client came with allowed it at CONNECT, and may be forgotten since.
        let grants = self.shared.auth.grants(will.uid.as_deref(), &Brought::Unknown);
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
            None => {
                let route = self.shared.router.route(message, self.party(&will.key), false, None);
                self.count_unserved(message, &route);
                route
            }
        };
        self.send(message, Some(&Arc::new(will.key.clone())), route);
    }
}

impl SystemPublisher {
    /// Gives the message to the next member: at once to a connection, with an append to an inbox, whose reply is returned.
    fn give_to_next(&self, message: &Arc<Message>, stamp: Option<&Stamp>, left: Left) -> Option<Given> {
        let mut route = self.shared.router.route_shared(&left, message, stamp.map(stamp_hash));
        self.count_unserved(message, &route);
        let Some(target) = route.shared.pop() else {
            self.send_behind(message, None, route, Some((stamp, &left.tried)));
            return None;
        };
        Some(self.give(message, stamp, left.tried, target))
    }

    fn give(
        &self,
        message: &Arc<Message>,
        stamp: Option<&Stamp>,
        tried: Tried,
        target: SharedTarget,
    ) -> Given {
        let reply = self.propose(target.group, shared_append(message, stamp, &target));
        let place = Place::Inbox(target.group, target.target.lifetime);
        let left = Left { filter: target.filter, tried };
        let shared = SharedMessage { message: Arc::clone(message), stamp: stamp.cloned(), left, place };
        Given { shared, reply }
    }

    /// Returns when the append to a member that is there is committed, or there is no such member.
    async fn see_to(&self, mut given: Option<Given>) -> Result<(), NotHandedOn> {
        while let Some(Given { mut shared, reply }) = given {
            match reply.await {
                // That member ended too: the next one.
                Ok(Ok(reply)) if is_missing(&reply) => {
                    shared.pass_over(&self.shared.router);
                    let SharedMessage { message, stamp, left, .. } = shared;
                    if left.tried.is_over() {
                        return Err(NotHandedOn);
                    }
                    given = self.give_to_next(&message, stamp.as_ref(), left);
                }
                Ok(Ok(reply @ Reply::Appended { .. })) => {
                    self.count_quota(&reply);
                    return Ok(());
                }
                _ => return Err(NotHandedOn),
            }
        }
        Ok(())
    }
}

/// An append to the inbox of a share's member that was proposed.
struct Given {
    shared: SharedMessage,
    reply: oneshot::Receiver<Result<Reply, Arc<StorageError>>>,
}

impl Heirs for SystemPublisher {
    fn hand_on(&self, filter: Arc<str>, message: Arc<Message>, stamp: Option<Stamp>) -> HandOn {
        let publisher = self.clone();
        let given = self.give_to_next(&message, stamp.as_ref(), Left::of(&filter));
        Box::pin(async move { publisher.see_to(given).await })
    }
}

fn on_its_way(message: &Arc<Message>, stamp: Option<&Stamp>, left: &Left, place: Place) -> SharedMessage {
    SharedMessage { message: Arc::clone(message), stamp: stamp.cloned(), left: left.clone(), place }
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
