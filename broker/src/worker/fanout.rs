//! One message to many connections: encoded once per shape, appended to each outbox of this worker; what goes to other
//! workers and to inboxes is collected.

use std::sync::Arc;

use gateway::codec::{Delivery, PublishTemplate, Version};
use gateway::link::{Link, LinkId, MessageDelivery};
use session::id::Key;
use session::lifecycle::Target;
use session::message::{Message, QoS};
use session::time::Millis;
use smallvec::SmallVec;
use storage::GroupId;

use super::Worker;
use super::client::Event;
use super::mail::{Parcel, Taken};
use crate::metrics::DropReason;
use crate::route::{Left, LiveTarget, PartyId, Shape, SharedTarget, Sink, Tried};

/// A buffer that has grown past this is not kept.
const SPARE_BYTES_MAX: usize = 64 * 1024;

/// What is delivered: borrowed from the packet that brought it, or from a message.
#[derive(Debug, Clone, Copy)]
pub(super) struct Parts<'a> {
    pub topic: &'a str,
    pub properties: &'a [u8],
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    pub expires_at: Option<Millis>,
}

/// What another node gets of a message.
#[derive(Debug)]
pub(super) struct NodeTarget {
    pub node: u64,
    /// All its connections that match.
    pub everyone: bool,
    /// One member of each of these shares.
    pub shares: SmallVec<[Left; 1]>,
}

/// An encoding of the message.
struct Encoded {
    version: Version,
    qos: QoS,
    retain: bool,
    identifiers: SmallVec<[u32; 1]>,
    template: PublishTemplate,
}

/// The deliveries of one message.
pub(super) struct Fanout<'a> {
    worker: &'a Worker,
    parts: Parts<'a>,
    /// Made when something needs it: other workers, subscribers with aliases, a message that expires.
    message: Option<Arc<Message>>,
    encoded: SmallVec<[Encoded; 2]>,
    durable: SmallVec<[(GroupId, Vec<Target>); 4]>,
    /// Inboxes of members of shares, and who was tried before.
    shared: Vec<(SharedTarget, Tried)>,
    /// Shares whose member could not take it.
    left: Vec<Left>,
    /// Who was tried before of the share that is being served.
    tried: Tried,
    /// Other workers: whether all their connections get it, and which ones get it singly.
    remote: SmallVec<[(u16, bool, Vec<LiveTarget>); 2]>,
    /// Other nodes.
    nodes: SmallVec<[NodeTarget; 2]>,
    only_inboxes: bool,
    /// Connections were chosen, here or elsewhere.
    to_connections: bool,
    /// Deliveries that an outbox took, by QoS.
    sent: [u64; 3],
    /// Deliveries that found their outbox full.
    refused: u64,
}

impl<'a> Fanout<'a> {
    pub(super) fn new(worker: &'a Worker, parts: Parts<'a>) -> Self {
        Self {
            worker,
            parts,
            message: None,
            encoded: SmallVec::new(),
            durable: SmallVec::new(),
            shared: Vec::new(),
            left: Vec::new(),
            tried: Tried::default(),
            remote: SmallVec::new(),
            nodes: SmallVec::new(),
            only_inboxes: false,
            to_connections: false,
            sent: [0; 3],
            refused: 0,
        }
    }

    pub(super) fn of_message(worker: &'a Worker, message: &'a Arc<Message>) -> Self {
        let parts = Parts {
            topic: message.topic(),
            properties: message.properties(),
            payload: message.payload(),
            qos: message.qos,
            retain: message.retain,
            expires_at: message.expires_at,
        };
        let mut fanout = Self::new(worker, parts);
        fanout.message = Some(Arc::clone(message));
        fanout
    }

    /// Connections were served before: the rest of the fan-out goes to inboxes only.
    pub(super) fn only_inboxes(&mut self) {
        self.only_inboxes = true;
    }

    /// Whether connections were chosen, here or elsewhere.
    pub(super) fn is_to_connections(&self) -> bool {
        self.to_connections
    }

    /// What goes to inboxes.
    pub(super) fn take_durable(&mut self) -> SmallVec<[(GroupId, Vec<Target>); 4]> {
        std::mem::take(&mut self.durable)
    }

    /// What goes to inboxes of members of shares.
    pub(super) fn take_shared(&mut self) -> Vec<(SharedTarget, Tried)> {
        std::mem::take(&mut self.shared)
    }

    /// A share whose member could not take the message.
    pub(super) fn take_left(&mut self) -> Option<Left> {
        self.left.pop()
    }

    /// What is selected from now on goes to a share, behind these.
    pub(super) fn follow(&mut self, tried: &Tried) {
        self.tried = tried.clone();
    }

    /// Leaves what goes to other workers in the batch of the turn.
    pub(super) fn send_parcels(&mut self, publisher: PartyId) {
        for (worker, everyone, targets) in std::mem::take(&mut self.remote) {
            let message = self.message();
            let parcel = Parcel { message, publisher, foreign: None, everyone, targets, taken: None };
            self.worker.batch.borrow_mut().send(worker, parcel);
        }
    }

    /// The same for a message of another node.
    pub(super) fn pass_arrival(&mut self, publisher: Option<&Arc<Key>>, taken: &(Arc<Taken>, u32)) {
        for (worker, everyone, targets) in std::mem::take(&mut self.remote) {
            let parcel = Parcel {
                message: self.message(),
                publisher: PartyId::default(),
                foreign: publisher.cloned(),
                everyone,
                targets,
                taken: Some(taken.clone()),
            };
            self.worker.batch.borrow_mut().send(worker, parcel);
        }
    }

    /// What goes to other nodes.
    pub(super) fn take_nodes(&mut self) -> SmallVec<[NodeTarget; 2]> {
        std::mem::take(&mut self.nodes)
    }

    /// One delivery to a connection of this worker.
    pub(super) fn deliver(&mut self, id: LinkId, shape: Shape<'_>) {
        let worker = self.worker;
        let pushed = worker.links.with(id, |link| self.push(link, shape));
        match pushed {
            Some(true) => {
                self.sent[shape.qos as usize] += 1;
                if self.parts.retain {
                    worker.supersede(id, self.parts.topic);
                }
            }
            not_taken => self.not_taken(id, shape, not_taken.is_some()),
        }
    }

    /// The outbox is full, or there is no such connection any more.
    fn not_taken(&mut self, id: LinkId, shape: Shape<'_>, is_full: bool) {
        match shape.share {
            Some(filter) if Worker::is_passed_on(self.parts.qos) => {
                let mut tried = self.tried.clone();
                tried.add_link(id, is_full);
                self.left.push(Left { filter: Arc::clone(filter), tried });
            }
            _ => self.refused += u64::from(is_full),
        }
    }

    fn push(&mut self, link: &Link<Event>, shape: Shape<'_>) -> bool {
        let client = link.shape();
        // A member that ends leaves what it was sent to another one: it has to be kept.
        let share = shape.share.filter(|_| shape.qos > QoS::AtMostOnce);
        if client.wants_messages || self.parts.expires_at.is_some() || share.is_some() {
            return link.push_message(MessageDelivery {
                message: self.message(),
                qos: shape.qos,
                retain: shape.retain,
                dup: false,
                identifiers: SmallVec::from_slice(shape.identifiers),
                offset: None,
                share: share.cloned(),
            });
        }
        // Too large for any packet: counts as delivered, like any other that the client cannot take.
        let Some(template) = self.template(client.version, shape) else { return true };
        match shape.qos {
            QoS::AtMostOnce => link.push_bytes(template),
            QoS::AtLeastOnce => link.push_exchange(template, false),
            QoS::ExactlyOnce => link.push_exchange(template, true),
        }
    }

    fn template(&mut self, version: Version, shape: Shape<'_>) -> Option<&PublishTemplate> {
        // 3.1.1 has no identifiers: one encoding serves all of them.
        let identifiers = if version == Version::V5 { shape.identifiers } else { &[] };
        let found = self.encoded.iter().position(|encoded| {
            encoded.version == version
                && encoded.qos == shape.qos
                && encoded.retain == shape.retain
                && *encoded.identifiers == *identifiers
        });
        let at = match found {
            Some(at) => at,
            None => {
                let delivery = Delivery {
                    topic: self.parts.topic,
                    properties: self.parts.properties,
                    payload: self.parts.payload,
                    qos: shape.qos,
                    retain: shape.retain,
                    dup: false,
                    packet_id: 0,
                    topic_alias: None,
                    expiry_sec: None,
                    identifiers,
                };
                let template = PublishTemplate::encode(version, &delivery, self.worker.spare.take())?;
                self.encoded.push(Encoded {
                    version,
                    qos: shape.qos,
                    retain: shape.retain,
                    identifiers: SmallVec::from_slice(identifiers),
                    template,
                });
                self.encoded.len() - 1
            }
        };
        Some(&self.encoded[at].template)
    }

    fn message(&mut self) -> Arc<Message> {
        let parts = self.parts;
        Arc::clone(self.message.get_or_insert_with(|| Arc::new(parts.message())))
    }

    fn remote_entry(&mut self, worker: u16) -> &mut (u16, bool, Vec<LiveTarget>) {
        let at = match self.remote.iter().position(|(other, ..)| *other == worker) {
            Some(at) => at,
            None => {
                self.remote.push((worker, false, Vec::new()));
                self.remote.len() - 1
            }
        };
        &mut self.remote[at]
    }
}

impl Drop for Fanout<'_> {
    /// Counts; the buffer of an encoding serves the next message.
    fn drop(&mut self) {
        let stats = &self.worker.stats;
        for (qos, count) in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce].into_iter().zip(self.sent) {
            if count > 0 {
                stats.sent(qos, count, self.parts.payload.len());
            }
        }
        if self.refused > 0 {
            let reason = match self.parts.qos {
                QoS::AtMostOnce if self.worker.is_relieved() => DropReason::Overload,
                _ => DropReason::OutboxFull,
            };
            stats.dropped(reason, self.refused);
        }
        if let Some(encoded) = self.encoded.pop() {
            let buffer = encoded.template.into_buffer();
            if buffer.capacity() <= SPARE_BYTES_MAX {
                self.worker.spare.replace(buffer);
            }
        }
    }
}

impl Sink for Fanout<'_> {
    fn live(&mut self, link: LinkId, shape: Shape<'_>) {
        if self.only_inboxes {
            return;
        }
        self.to_connections = true;
        if link.worker == self.worker.id {
            return self.deliver(link, shape);
        }
        let target = LiveTarget {
            link,
            qos: shape.qos,
            retain: shape.retain,
            identifiers: SmallVec::from_slice(shape.identifiers),
            share: shape.share.cloned(),
            tried: (self.tried != Tried::default()).then(|| Box::new(self.tried.clone())),
        };
        self.remote_entry(link.worker).2.push(target);
    }

    fn remote(&mut self, worker: u16) {
        if !self.only_inboxes {
            self.to_connections = true;
            self.remote_entry(worker).1 = true;
        }
    }

    fn node(&mut self, node: u64, share: Option<&Arc<str>>) {
        if self.only_inboxes {
            return;
        }
        self.to_connections = true;
        let at = match self.nodes.iter().position(|other| other.node == node) {
            Some(at) => at,
            None => {
                self.nodes.push(NodeTarget { node, everyone: false, shares: SmallVec::new() });
                self.nodes.len() - 1
            }
        };
        match share {
            Some(share) => {
                let left = Left { filter: Arc::clone(share), tried: self.tried.clone() };
                self.nodes[at].shares.push(left);
            }
            None => self.nodes[at].everyone = true,
        }
    }

    fn nobody(&mut self, share: &Arc<str>, member: Option<PartyId>) {
        if !self.only_inboxes && Worker::is_passed_on(self.parts.qos) {
            let mut tried = self.tried.clone();
            member.into_iter().for_each(|member| tried.add_member(member));
            self.left.push(Left { filter: Arc::clone(share), tried });
        }
    }

    fn durable(&mut self, group: GroupId, target: Target, share: Option<&Arc<str>>) {
        if let Some(filter) = share {
            let target = SharedTarget { group, target, filter: Arc::clone(filter) };
            self.shared.push((target, self.tried.clone()));
            return;
        }
        match self.durable.iter_mut().find(|(other, _)| *other == group) {
            Some((_, targets)) => targets.push(target),
            None => self.durable.push((group, vec![target])),
        }
    }
}
