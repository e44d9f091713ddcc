//! What a worker does for one connection: CONNECT through the real use case, then admitted turns. Publishes are appended in their order and
//! acknowledged after their commit; the inbox is delivered in offset order within the client's window, by `session::qos`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use broker::usecase::authority::{Authority, PointRead, Unavailable};
use broker::usecase::connect::ConnectCase;
use broker::usecase::disconnect::IntentClaim;
use broker::usecase::end::{Call, EndCase, EndError};
use broker::usecase::{ConnectError, ConnectInput, Connected, DisconnectInput, EndInput};
use session::id::{Boot, Key, Owner};
use session::lifecycle::{
    Ack, AckKind, Append, Command, InboxRead, Reply, SessionRef, SessionRow, Stamp, SubscriptionOptions,
    SubscriptionRow, WillMode, WillTemplate,
};
use session::message::{Message, QoS};
use session::owner::{Entry, OwnerError, Scope};
use session::qos::{Inbound, Outbound, Received, Settled};
use storage::StorageError;
use tokio::sync::{mpsc, oneshot};

use super::calls::Proves;
use super::mutant::Mutant;
use super::node::{Forgotten, Node, Socket};
use super::world::{CONNECT_MS, LEASE_MS};

/// Publishes that wait for their commit on one connection.
const PUBLISHES_MAX: usize = 32;
/// Inbox entries that are read at once.
const PAGE: usize = 32;

/// A CONNECT.
#[derive(Debug, Clone)]
pub struct Hello {
    pub key: Key,
    pub uid: Arc<str>,
    pub clean_start: bool,
    pub expiry_sec: u32,
    pub will: Option<WillTemplate>,
    pub receive_maximum: u16,
}

/// Packets of a client.
#[derive(Debug, Clone)]
pub enum ToServer {
    Subscribe { filters: Vec<Arc<str>> },
    Publish { packet_id: u16, dup: bool, message: Message },
    PubAck(u16),
    PubRec(u16),
    PubRel(u16),
    PubComp(u16),
    Disconnect,
}

/// Packets of the server.
#[derive(Debug, Clone)]
pub enum ToClient {
    ConnAck { session_present: bool, received: Vec<u16> },
    Refused(ConnectError),
    SubAck,
    Publish { packet_id: u16, dup: bool, qos: QoS, message: Arc<Message> },
    PubAck(u16),
    PubRec(u16),
    PubRel(u16),
    PubComp(u16),
}

impl std::fmt::Display for ToClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Publish { packet_id, dup, qos, message } => {
                let text = String::from_utf8_lossy(message.payload());
                write!(f, "PUBLISH {packet_id} QoS {} DUP {dup} {text:?}", *qos as u8)
            }
            other => write!(f, "{other:?}"),
        }
    }
}

/// What goes on when a commit came.
#[derive(Debug)]
enum Then {
    Subscribed,
    /// The received id of a QoS 2 publish is stored: it is routed now.
    Received {
        packet_id: u16,
        message: Message,
    },
    Appended {
        packet_id: u16,
        qos: QoS,
    },
    Acked {
        received: Vec<u16>,
    },
    Released {
        packet_id: u16,
    },
}

/// A commit under way, and the scope that it belongs to.
#[derive(Debug)]
struct Pending {
    reply: oneshot::Receiver<Result<Reply, Arc<StorageError>>>,
    scope: Scope,
    then: Then,
}

struct Connection {
    node: Arc<Node>,
    entry: Arc<Entry>,
    row: SessionRow,
    client: mpsc::UnboundedSender<ToClient>,
    inbound: Inbound,
    outbound: Outbound,
    pending: VecDeque<Pending>,
    next: u64,
    sent_through: u64,
    /// Ids of the mutant that does not derive them.
    own_ids: std::collections::BTreeMap<u16, u16>,
    acks: Vec<Ack>,
    receipts: Vec<u16>,
}

/// The connection cannot go on.
struct Over;

/// A client opened a socket to `node`.
pub fn accept(
    node: &Arc<Node>,
    hello: Hello,
    from_client: mpsc::UnboundedReceiver<ToServer>,
    client: mpsc::UnboundedSender<ToClient>,
) {
    let task = serve(node.clone(), hello, from_client, client);
    node.power.spawn(task);
}

async fn serve(
    node: Arc<Node>,
    hello: Hello,
    mut from_client: mpsc::UnboundedReceiver<ToServer>,
    client: mpsc::UnboundedSender<ToClient>,
) {
    let (link, socket) = node.sockets.open();
    let input = ConnectInput {
        key: hello.key.clone(),
        uid: Some(hello.uid.clone()),
        clean_start: hello.clean_start,
        expiry_sec: hello.expiry_sec,
        will: hello.will.clone(),
        link,
        deadline: node.clock.tick().plus_ms(CONNECT_MS),
    };
    let connected = node.connect(&input).await;
    let Connected { entry, row, session_present, guard } = match connected {
        Ok(connected) => connected,
        Err(error) => {
            node.sockets.open.lock().remove(&link);
            crate::step!(node.world, "node {} refuses {}: {error}", node.at + 1, hello.key.client_id);
            let _ = client.send(ToClient::Refused(error));
            return;
        }
    };
    let _ = socket.owner.set(entry.owner().clone());
    node.world.oracle.connected(&node.world, entry.owner(), &hello.uid);
    let (received, durable) = {
        let raft = node.raft.lock();
        (raft.group.received(row.lifetime), row.durable)
    };
    let mut connection = Connection {
        inbound: Inbound::new(64, &received),
        outbound: Outbound::new(hello.receive_maximum),
        node: node.clone(),
        entry,
        row,
        client,
        pending: VecDeque::new(),
        next: 0,
        sent_through: 0,
        own_ids: std::collections::BTreeMap::new(),
        acks: Vec::new(),
        receipts: Vec::new(),
    };
    if durable {
        if node.world.has(Mutant::SkipUnsettled) && session_present {
            connection.next =
                node.raft.lock().group.inbox(connection.row.lifetime).map_or(0, |stat| stat.end);
        }
        node.consumers.lock().insert(connection.row.lifetime, socket.clone());
    }
    let normal = match connection
        .turn(|this, _| this.write(ToClient::ConnAck { session_present, received: received.clone() }))
    {
        Ok(()) => connection.live(&socket, &mut from_client).await,
        Err(Over) => false,
    };
    connection.close(link, guard, normal);
}

impl Connection {
    /// Reads, writes and commits until the socket is to be closed; whether the client said goodbye.
    async fn live(&mut self, socket: &Socket, from_client: &mut mpsc::UnboundedReceiver<ToServer>) -> bool {
        loop {
            if socket.asked.lock().is_some() || self.pump().is_err() {
                return false;
            }
            let unrouted = self.pending.iter().any(|one| matches!(one.then, Then::Received { .. }));
            let reads = !unrouted && self.pending.len() < PUBLISHES_MAX;
            tokio::select! {
                biased;
                () = socket.wake.notified() => {}
                reply = first(&mut self.pending) => {
                    if self.go_on(reply).is_err() {
                        return false;
                    }
                }
                packet = from_client.recv(), if reads => match packet {
                    None => return false,
                    Some(ToServer::Disconnect) => return true,
                    Some(packet) => {
                        if self.turn(|this, scope| this.packet(packet, scope)).is_err() {
                            return false;
                        }
                    }
                },
            }
        }
    }

    /// One admitted turn.
    fn turn(&mut self, work: impl FnOnce(&mut Self, Scope) -> Result<(), Over>) -> Result<(), Over> {
        let now = self.node.clock.tick();
        match self.node.owners.registry().begin(now, &self.entry) {
            Ok(scope) => work(self, scope),
            Err(_) => Err(Over),
        }
    }

    /// Writes one packet: an act of the owner.
    fn write(&self, packet: ToClient) -> Result<(), Over> {
        self.node.world.oracle.acts(&self.node.world, self.entry.owner(), &packet);
        crate::step!(
            self.node.world,
            "node {} owner {} of {} writes {packet}",
            self.node.at + 1,
            self.entry.owner().owner_generation,
            self.entry.owner().key.client_id
        );
        self.client.send(packet).map_err(|_| Over)
    }

    fn propose(&mut self, command: Command, scope: Scope, then: Then) {
        let reply = self.node.ask(command);
        self.pending.push_back(Pending { reply, scope, then });
    }

    fn session(&self) -> SessionRef {
        SessionRef { lifetime: self.row.lifetime, owner_generation: self.row.owner.owner_generation }
    }

    fn packet(&mut self, packet: ToServer, scope: Scope) -> Result<(), Over> {
        match packet {
            ToServer::Subscribe { filters } => {
                let options = SubscriptionOptions {
                    qos: QoS::ExactlyOnce,
                    no_local: false,
                    retain_as_published: false,
                    identifier: 0,
                };
                let filters = filters.into_iter().map(|filter| SubscriptionRow { filter, options }).collect();
                let command = Command::Subscribe { session: self.session(), filters };
                self.propose(command, scope, Then::Subscribed);
                Ok(())
            }
            ToServer::Publish { packet_id, message, .. } => self.publish(packet_id, message, scope),
            ToServer::PubAck(packet_id) => self.settle(packet_id, Outbound::puback),
            ToServer::PubComp(packet_id) => self.settle(packet_id, Outbound::pubcomp),
            ToServer::PubRec(packet_id) => self.received(packet_id),
            ToServer::PubRel(packet_id) => {
                let known = self.inbound.release(packet_id);
                if known && self.row.durable {
                    let command = Command::Release { session: self.session(), packet_id };
                    self.propose(command, scope, Then::Released { packet_id });
                    return Ok(());
                }
                self.write(ToClient::PubComp(packet_id))
            }
            ToServer::Disconnect => Err(Over),
        }
    }

    fn publish(&mut self, packet_id: u16, message: Message, scope: Scope) -> Result<(), Over> {
        match message.qos {
            QoS::AtMostOnce => {}
            QoS::AtLeastOnce => self.inbound.publish_qos1().map_err(|_| Over)?,
            QoS::ExactlyOnce => {
                let received = self.inbound.publish_qos2(packet_id).map_err(|_| Over)?;
                if self.row.durable {
                    // Also an id of an earlier connection: its append may be missing, the stamp tells.
                    let command = Command::Receive { session: self.session(), packet_id };
                    self.propose(command, scope, Then::Received { packet_id, message });
                    return Ok(());
                }
                if received == Received::Duplicate {
                    return self.write(ToClient::PubRec(packet_id));
                }
            }
        }
        self.append(packet_id, message, None, scope, false)
    }

    fn append(
        &mut self,
        packet_id: u16,
        message: Message,
        stamp: Option<Stamp>,
        scope: Scope,
        first: bool,
    ) -> Result<(), Over> {
        let qos = message.qos;
        let targets = self.node.route(&message);
        if targets.is_empty() {
            return self.answer(packet_id, qos);
        }
        let stamp = if self.node.world.has(Mutant::AppendWithoutStamp) { None } else { stamp };
        let command = Command::Append(Box::new(Append { message, stamp, targets }));
        if self.node.world.has(Mutant::AckBeforeCommit) {
            self.answer(packet_id, qos)?;
        }
        let then = Then::Appended { packet_id, qos };
        let reply = self.node.ask(command);
        let pending = Pending { reply, scope, then };
        if first {
            self.pending.push_front(pending)
        } else {
            self.pending.push_back(pending)
        }
        Ok(())
    }

    fn answer(&mut self, packet_id: u16, qos: QoS) -> Result<(), Over> {
        match qos {
            QoS::AtMostOnce => Ok(()),
            QoS::AtLeastOnce => {
                self.inbound.acked();
                self.write(ToClient::PubAck(packet_id))
            }
            QoS::ExactlyOnce => self.write(ToClient::PubRec(packet_id)),
        }
    }

    /// The commit at the front came; what follows from it is written under the scope that was open all along.
    fn go_on(&mut self, reply: Option<Reply>) -> Result<(), Over> {
        let Some(Pending { scope, then, .. }) = self.pending.pop_front() else { return Ok(()) };
        let Some(reply) = reply else {
            self.node.hold(scope);
            return Err(Over);
        };
        if scope.check(self.node.clock.tick()).is_err() {
            return Err(Over);
        }
        match (then, reply) {
            (Then::Subscribed, Reply::Subscribed { .. }) => self.write(ToClient::SubAck),
            (Then::Received { packet_id, message }, Reply::Received { sequence, .. }) => {
                let stamp = Stamp::Publisher {
                    key: self.row.owner.key.clone(),
                    lifetime: self.row.lifetime,
                    packet_id,
                    sequence,
                };
                self.append(packet_id, message, Some(stamp), scope, true)
            }
            (Then::Appended { packet_id, qos }, Reply::Appended { .. }) => {
                if self.node.world.has(Mutant::AckBeforeCommit) {
                    return Ok(());
                }
                self.answer(packet_id, qos)
            }
            (Then::Acked { received }, Reply::Done { .. }) => {
                received.into_iter().try_for_each(|packet_id| self.write(ToClient::PubRel(packet_id)))
            }
            (Then::Released { packet_id }, Reply::Released { .. }) => {
                self.write(ToClient::PubComp(packet_id))
            }
            _ => Err(Over),
        }
    }

    fn settle(
        &mut self,
        packet_id: u16,
        finish: impl FnOnce(&mut Outbound, u16) -> Result<Settled, session::qos::OutboundError>,
    ) -> Result<(), Over> {
        let inner = self.inner_id(packet_id);
        if let Ok(Settled::Inbox { offset }) = finish(&mut self.outbound, inner) {
            self.acks.push(Ack { offset, kind: AckKind::Settled });
        }
        Ok(())
    }

    fn received(&mut self, packet_id: u16) -> Result<(), Over> {
        let inner = self.inner_id(packet_id);
        match self.outbound.pubrec(inner) {
            Ok(Settled::Inbox { offset }) => {
                self.acks.push(Ack { offset, kind: AckKind::Received });
                self.receipts.push(packet_id);
                Ok(())
            }
            Ok(Settled::Transient) => Ok(()),
            Err(_) => self.write(ToClient::PubRel(packet_id)),
        }
    }

    fn inner_id(&self, packet_id: u16) -> u16 {
        self.own_ids.iter().find(|(_, outer)| **outer == packet_id).map_or(packet_id, |(inner, _)| *inner)
    }

    fn outer_id(&mut self, packet_id: u16) -> u16 {
        if !self.node.world.has(Mutant::PacketIdOfConnection) {
            return packet_id;
        }
        let next = u16::try_from(self.own_ids.len() + 1).unwrap_or(1);
        *self.own_ids.entry(packet_id).or_insert(next)
    }

    /// Records what the client answered, then delivers as far as its window allows.
    fn pump(&mut self) -> Result<(), Over> {
        if !self.row.durable {
            return Ok(());
        }
        self.record()?;
        let mut page = InboxRead::default();
        self.node.raft.lock().group.read_inbox(self.row.lifetime, self.next, PAGE, &mut page);
        if page.entries.is_empty() {
            return Ok(());
        }
        match self.node.owners.registry().begin(self.node.clock.tick(), &self.entry) {
            Ok(scope) => self.deliver(page, scope)?,
            // Too much waits for commits: it goes on when one comes.
            Err(OwnerError::Limit) => return Ok(()),
            Err(_) => return Err(Over),
        }
        // QoS 0 is settled by its delivery: no answer comes that would bring the next turn.
        self.record()
    }

    /// Commits what is settled.
    fn record(&mut self) -> Result<(), Over> {
        if self.acks.is_empty() {
            return Ok(());
        }
        self.turn(|this, scope| {
            let acks = std::mem::take(&mut this.acks);
            let received = std::mem::take(&mut this.receipts);
            let command = Command::Ack { session: this.session(), acks };
            this.propose(command, scope, Then::Acked { received });
            Ok(())
        })
    }

    fn deliver(&mut self, page: InboxRead, scope: Scope) -> Result<(), Over> {
        for entry in page.entries {
            let exactly_once = entry.qos == QoS::ExactlyOnce;
            let mut packet_id = 0;
            if entry.qos == QoS::AtMostOnce {
                self.acks.push(Ack { offset: entry.offset, kind: AckKind::Settled });
            } else {
                match self.outbound.begin_inbox(entry.offset, exactly_once, entry.received) {
                    Some(id) => packet_id = self.outer_id(id),
                    None => return Ok(()),
                }
            }
            self.next = entry.offset + 1;
            if entry.received {
                self.write(ToClient::PubRel(packet_id))?;
                continue;
            }
            self.sent_through = self.sent_through.max(self.next);
            let dup = entry.maybe_sent && entry.qos != QoS::AtMostOnce;
            let dup = dup && !self.node.world.has(Mutant::ResendWithoutDup);
            let message = match entry.message {
                Some(message) => message,
                None => self.stored(entry.message_id)?,
            };
            self.write(ToClient::Publish { packet_id, dup, qos: entry.qos, message })?;
        }
        drop(scope);
        Ok(())
    }

    /// A body that is on disk only.
    fn stored(&self, message_id: u64) -> Result<Arc<Message>, Over> {
        let disk = self.node.disk();
        let body = disk.rows.get(&session::lifecycle::Group::body_key(message_id));
        let message = body.and_then(|body| session::lifecycle::Group::decode_body(body).ok());
        match message {
            Some(message) => Ok(Arc::new(message)),
            None => {
                self.node.world.fail(&format!("P4: the body {message_id} is referred to and not stored"));
                Err(Over)
            }
        }
    }

    /// The socket is closed first, then that is told; what was admitted is waited for.
    fn close(
        self,
        link: gateway::link::LinkId,
        guard: broker::usecase::disconnect::OwnerGuard,
        normal: bool,
    ) {
        let Self { node, row, client, pending, sent_through, .. } = self;
        drop(client);
        node.sockets.open.lock().remove(&link);
        if row.durable {
            let mut consumers = node.consumers.lock();
            let mine = |socket: &Arc<Socket>| socket.owner.get() == Some(&row.owner);
            if consumers.get(&row.lifetime).is_some_and(mine) {
                consumers.remove(&row.lifetime);
            }
        }
        crate::step!(
            node.world,
            "node {} owner {} of {} closed, normal {normal}, sent through {sent_through}",
            node.at + 1,
            row.owner.owner_generation,
            row.owner.key.client_id
        );
        if !normal {
            node.publish_by_own_timer(&row);
        }
        guard.closed(DisconnectInput { sent_through, ..DisconnectInput::seen_now(&node.clock, normal) });
        if !pending.is_empty() {
            let power = node.power.clone();
            power.spawn(async move {
                for one in pending {
                    if !matches!(one.reply.await, Ok(Ok(_))) {
                        node.hold(one.scope);
                    }
                }
            });
        }
    }
}

/// The reply to the oldest commit under way; never when there is none.
async fn first(pending: &mut VecDeque<Pending>) -> Option<Reply> {
    match pending.front_mut() {
        Some(one) => (&mut one.reply).await.ok().and_then(Result::ok),
        None => std::future::pending().await,
    }
}

impl Authority for Node {
    async fn read(&self, key: &Key) -> Result<PointRead, Unavailable> {
        if !self.barrier().await {
            return Err(Unavailable);
        }
        let raft = self.raft.lock();
        let row = raft.group.session(key);
        let lease_until = row.and_then(|row| {
            let boot = Boot { node_id: row.owner.node_id, boot_id: row.owner.boot_id.clone() };
            raft.group.boot(&boot).map(|boot| boot.lease_until)
        });
        let bound_until = raft.group.bound_until(key);
        Ok(PointRead { complete: true, row: row.cloned(), lease_until, bound_until })
    }

    async fn commit(
        &self,
        _key: &Key,
        before: Option<Command>,
        command: Command,
    ) -> Result<Reply, Unavailable> {
        if let Some(before) = before {
            self.propose(before, storage::Done::Nobody);
        }
        self.call(command).await.ok_or(Unavailable)
    }
}

impl Node {
    /// `Shared::connect` of the broker.
    async fn connect(self: &Arc<Self>, input: &ConnectInput) -> Result<Connected, ConnectError> {
        if self.owners.lease_until() <= self.clock.tick() {
            return Err(ConnectError::Unavailable);
        }
        let mut input = input.clone();
        if self.world.has(Mutant::AnyUser) {
            let row = self.raft.lock().group.session(&input.key).and_then(|row| row.uid.clone());
            input.uid = row.or(input.uid);
        }
        let isolation = Proves(self);
        let case = ConnectCase {
            boot: &self.boot,
            clock: &self.clock,
            owners: &self.owners,
            disconnects: &self.disconnects,
            queue: &self.queue,
            authority: &**self,
            isolation: &isolation,
            over: &Forgotten,
            wills: None,
            lease_ms: LEASE_MS,
            takeovers: None,
        };
        case.run(&input, &|| true).await
    }

    /// `Shared::end` of the broker: ends exactly this owner.
    pub async fn end(self: &Arc<Self>, input: &EndInput) -> Result<SessionRow, EndError> {
        let isolation = Proves(self);
        let own = Some((&self.boot, self.owners.lease_until()));
        let case = EndCase { authority: &**self, isolation: &isolation, clock: &self.clock, own };
        let cancelled = AtomicBool::new(false);
        let call = Call { deadline: self.clock.tick().plus_ms(CONNECT_MS), cancelled: &cancelled };
        let mut input = input.clone();
        if self.world.has(Mutant::EndLosesWill) {
            input.will = WillMode::Suppress;
        }
        let mut attempts = 0;
        loop {
            let current = self.raft.lock().group.session(&input.owner.key).map(|row| row.owner.clone());
            let claim = (self.is_mine(&input.owner) && current.as_ref() == Some(&input.owner))
                .then(|| self.disconnects.claim(&input.owner))
                .flatten();
            let sent = || claim.as_ref().and_then(IntentClaim::held).map_or(0, |closed| closed.sent_through);
            let outcome = if self.world.has(Mutant::EndWithoutProof) {
                let case = EndCase { authority: &**self, isolation: &Unproved, clock: &self.clock, own };
                case.run(&call, &input, &sent).await
            } else {
                case.run(&call, &input, &sent).await
            };
            match outcome {
                Ok(row) => {
                    if let Some(claim) = claim {
                        claim.replace();
                    }
                    return Ok(row);
                }
                Err(EndError::Conflict | EndError::Clock) if attempts < 3 => {
                    attempts += 1;
                    drop(claim);
                    tokio::time::sleep(super::calls::ms(10)).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// The mutant: an isolation that asks nobody.
struct Unproved;

impl broker::usecase::isolation::Isolation for Unproved {
    fn quiesce<'a>(
        &'a self,
        _owner: &'a Owner,
        _deadline: session::time::Tick,
    ) -> broker::usecase::isolation::IsolationFuture<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
}
