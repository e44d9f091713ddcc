//! One bridge from its start to its stop: who runs it, the two connections, what goes over them, and the pause when one is lost.

use std::future::poll_fn;
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use gateway::codec::{
    Filters, Packet, ReasonCode, RetainHandling, Subscribe, SubscribeFilter, Unsubscribe, UserProperties,
    Version,
};
use gateway::connection::Limits;
use gateway::driver::Inlet;
use session::id::Key;
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;

use super::pipe::{GreetError, Greeted, Greeting, Pipe};
use super::relay::{Counts, Fault, Relay, Side, name};
use super::settings::{Settings, server_name};
use super::status::{BridgeState, Status};
use super::topics::Wanted;
use crate::cluster::mark::{Mark, Stage};
use crate::config::{BridgeTopic, HostPort, MqttVersion, TopicDirection};
use crate::shared::Shared;
use crate::worker::Worker;

/// How often it is looked who leads the group of the session, and what went over is counted.
const LOOK_PERIOD: Duration = Duration::from_millis(500);
/// A connection that lasted so long was a good one: the pauses begin anew.
const GOOD_AFTER: Duration = Duration::from_secs(10);
/// Bytes of the largest packet of MQTT.
const PACKET_BYTES_MAX: usize = 268_435_460;
/// How often a message is sent that the other side has no room for, before it is given up.
const QUOTA_TRIES_MAX: u32 = 5;
/// Packet ids of the bridge's own requests; the messages that use them come later, if ever.
const SUBSCRIBE_ID: u16 = 65_535;
const UNSUBSCRIBE_ID: u16 = 65_534;
/// Of the first SUBSCRIBE here, whose answer may come behind the second one.
const EARLY_ID: u16 = 65_533;
/// MQTT 3.1.1 has no way to ask for anything else.
const ECHO: &str = "the other broker knows MQTT 3.1.1 and no bridges: what it is sent on a topic of both directions comes back once";
/// A node with a peer port that took no part in a cluster.
const NO_CLUSTER: &str =
    "this node has a peer port and is of no cluster yet: exactmq cluster init, or exactmq cluster join";
/// How long a good-bye may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Why an attempt, or a connection, is over.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("this broker does not let the bridge in: {0}")]
    Local(#[source] GreetError),
    #[error("{address}: {error}")]
    Remote { address: Arc<str>, error: GreetError },
    #[error("{address} did not answer in time")]
    Timeout { address: Arc<str> },
    #[error("{0}")]
    Fault(#[from] Fault),
    #[error("{} closed the connection{}", name(*.0), .1.as_ref().map(|error| format!(": {error}")).unwrap_or_default())]
    Closed(Side, Option<std::io::Error>),
    #[error("{} was silent for too long", name(*.0))]
    Silent(Side),
    #[error("the workers have stopped")]
    Stopped,
}

/// How a relay came to its end.
enum Over {
    /// The bridge is to stop here.
    Stop,
    Failed(Failure),
}

/// A bridge that runs.
pub(super) struct Runner {
    pub(super) shared: Arc<Shared>,
    pub(super) inlet: Inlet<Worker>,
    pub(super) limits: Limits,
    pub(super) settings: Arc<Settings>,
    pub(super) status: Arc<Status>,
    pub(super) key: Key,
    pub(super) remote_client_id: Arc<str>,
    /// Where it stands whether this node is of a cluster, when it may become one.
    pub(super) mark: Option<PathBuf>,
    /// What an earlier configuration subscribed to at the other broker.
    pub(super) retired: Vec<Box<str>>,
    memory: Memory,
}

/// What is remembered from one attempt to the next.
#[derive(Debug, Default)]
struct Memory {
    /// Which address is next.
    address: usize,
    failures: u32,
    /// A side lost its session, and what the other one remembers of it is not released yet.
    is_new: [bool; 2],
    /// Exchanges that the other broker allows, where that is known.
    receive_maximum: Option<u16>,
    /// The other broker does not know mosquitto's bridge protocol.
    no_bridge_bit: bool,
    /// The message that was refused for a quota last, and how often.
    refused: Option<(Side, u16, u32)>,
}

/// The two connections, ready.
struct Open {
    local: Pipe,
    remote: Pipe,
    relay: Relay,
    /// By side; 0: none.
    keep_alive_sec: [u16; 2],
}

impl Runner {
    pub(super) fn new(
        (shared, inlet, limits): (&Arc<Shared>, &Inlet<Worker>, Limits),
        settings: Arc<Settings>,
        (status, key, remote_client_id): (Arc<Status>, Key, Arc<str>),
        (mark, retired): (Option<PathBuf>, Vec<Box<str>>),
    ) -> Self {
        let (shared, inlet, memory) = (shared.clone(), inlet.clone(), Memory::default());
        Self { shared, inlet, limits, settings, status, key, remote_client_id, mark, retired, memory }
    }

    /// Runs until `stop` says so.
    pub(super) async fn run(mut self, mut stop: watch::Receiver<bool>) {
        let group = self.shared.store.group_of(&self.key);
        while !is_over(&stop) {
            if !self.is_of_its_cluster() {
                self.status.set(BridgeState::Waiting, Some(NO_CLUSTER.to_owned()));
                rest(LOOK_PERIOD, &mut stop).await;
                continue;
            }
            if !self.shared.store.leads(group) {
                self.status.set(BridgeState::Elsewhere, None);
                rest(LOOK_PERIOD, &mut stop).await;
                continue;
            }
            self.status.set(BridgeState::Connecting, None);
            let opened = tokio::select! {
                opened = self.open() => opened,
                () = over(&mut stop) => return,
            };
            let began = Instant::now();
            let failure = match opened {
                Err(failure) => failure,
                Ok(open) => match self.relay(open, &mut stop).await {
                    Over::Stop => continue,
                    Over::Failed(failure) => failure,
                },
            };
            if began.elapsed() >= GOOD_AFTER {
                self.memory.failures = 0;
            }
            self.remember(&failure);
            self.status.failed();
            self.status.set(BridgeState::Waiting, Some(failure.to_string()));
            rest(self.pause(), &mut stop).await;
        }
    }

    /// A session before a join would keep the node from joining.
    fn is_of_its_cluster(&mut self) -> bool {
        let Some(data_dir) = &self.mark else { return true };
        let is_member = matches!(Mark::read(data_dir), Ok(Some(Mark { stage: Stage::Member, .. })));
        if is_member {
            self.mark = None;
        }
        is_member
    }

    fn remember(&mut self, failure: &Failure) {
        self.memory.address = self.memory.address.wrapping_add(1);
        self.memory.failures = self.memory.failures.saturating_add(1);
        self.memory.refused = match (failure, self.memory.refused) {
            (
                Failure::Fault(Fault::NotNow { side, packet_id, reason: ReasonCode::QuotaExceeded }),
                before,
            ) => {
                let same = before.filter(|(of, id, _)| (of, id) == (side, packet_id));
                Some((*side, *packet_id, same.map_or(1, |(_, _, tries)| tries + 1)))
            }
            (_, before) => before,
        };
    }

    /// Doubles with every round over all addresses; a random part of up to a half is left out, so that bridges that lost the same broker do
    /// not come back together.
    fn pause(&self) -> Duration {
        let config = &self.settings.config;
        let addresses = u32::try_from(config.address.0.len()).unwrap_or(u32::MAX).max(1);
        let rounds = (self.memory.failures.saturating_sub(1) / addresses).min(20);
        let full = config.reconnect_min_ms.saturating_mul(1 << rounds).min(config.reconnect_max_ms);
        let random: f64 = rand::random();
        Duration::from_millis(full).mul_f64(1.0 - random / 2.0)
    }

    /// Both connections, with the subscriptions on their way.
    async fn open(&mut self) -> Result<Open, Failure> {
        let settings = self.settings.clone();
        let config = &settings.config;
        let window = config.inflight_max.min(self.memory.receive_maximum.unwrap_or(u16::MAX)).max(1);
        // First here: from now on what is to go over waits in the inbox, whether the other broker is there or not.
        let (mut local, mut here) = self.open_local(window).await?;
        self.memory.is_new[Side::Local as usize] |= !here.session_present;
        let mut is_asked = !config.clean_start && !settings.topics.wanted().0.is_empty();
        if !config.clean_start {
            let closed = |error| Failure::Closed(Side::Local, Some(error));
            local.send_now(&self.local_requests(RetainHandling::DoNotSend)).await.map_err(closed)?;
        }
        let timeout = Duration::from_millis(config.connect_timeout_ms);
        let address = config.address.0[self.memory.address % config.address.0.len()].clone();
        self.status.at(&address.0);
        let opened = tokio::time::timeout(timeout, self.open_remote(&address)).await;
        let (remote, there) = match opened.unwrap_or(Err(Failure::Timeout { address: address.0.clone() })) {
            Ok(opened) => opened,
            Err(failure) => {
                local.close(&[]).await;
                return Err(failure);
            }
        };
        self.memory.is_new[Side::Remote as usize] |= !there.session_present;
        self.memory.receive_maximum = Some(there.capacity.receive_maximum);
        if there.capacity.receive_maximum < window {
            // More may be on its way to it than it takes.
            local.close(&[]).await;
            (local, here) = self.open_local(there.capacity.receive_maximum.max(1)).await?;
            is_asked = false;
        }
        let mut relay = self.begin(&here, &there)?;
        if is_asked {
            relay.expect_answer();
        }
        Ok(Open { local, remote, relay, keep_alive_sec: [here.keep_alive_sec, there.keep_alive_sec] })
    }

    /// A connection to this broker, in the name of the bridge.
    async fn open_local(&self, window: u16) -> Result<(Pipe, Greeted), Failure> {
        let closed = |error| Failure::Closed(Side::Local, Some(error));
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(closed)?;
        ours.set_nonblocking(true).map_err(closed)?;
        let stream = UnixStream::from_std(ours).map_err(closed)?;
        if !self.inlet.admit(&self.settings.name, self.limits.clone(), theirs) {
            return Err(Failure::Stopped);
        }
        let clean_start = self.settings.config.clean_start;
        let greeting = Greeting {
            version: Version::V5,
            client_id: &self.key.client_id,
            user_name: None,
            password: None,
            clean_start,
            session_expiry_sec: if clean_start { 0 } else { u32::MAX },
            keep_alive_sec: 0,
            receive_maximum: window,
            maximum_packet_size: u32::MAX,
            bridge_bit: false,
        };
        let mut pipe = Pipe::new(stream);
        let greeted = pipe.greet(&greeting).await.map_err(Failure::Local)?;
        Ok((pipe, greeted))
    }

    /// A connection to the other broker. With MQTT 3.1.1 mosquitto's bridge protocol is tried first, as mosquitto does.
    async fn open_remote(&mut self, address: &HostPort) -> Result<(Pipe, Greeted), Failure> {
        let failed = |error| Failure::Remote { address: address.0.clone(), error };
        let settings = self.settings.clone();
        let config = &settings.config;
        let v311 = config.version == MqttVersion::V311;
        let remote_client_id = self.remote_client_id.clone();
        let bridge_bit = v311 && !self.memory.no_bridge_bit;
        let greeting = Greeting {
            version: if v311 { Version::V311 } else { Version::V5 },
            client_id: &remote_client_id,
            user_name: config.username.as_deref(),
            password: settings.password.as_deref(),
            clean_start: config.clean_start,
            session_expiry_sec: if config.clean_start { 0 } else { config.session_expiry_s },
            keep_alive_sec: config.keep_alive_s,
            receive_maximum: config.inflight_max.min(self.limits.receive_maximum),
            maximum_packet_size: self.limits.packet_size_max,
            bridge_bit,
        };
        let mut pipe = self.dial(address).await.map_err(|error| failed(error.into()))?;
        let refused = match pipe.greet(&greeting).await {
            Ok(greeted) => return Ok((pipe, greeted)),
            Err(error) => error,
        };
        let may_be_the_bit = match &refused {
            GreetError::Refused { reason, .. } => *reason == ReasonCode::UnsupportedProtocolVersion,
            GreetError::Closed | GreetError::Io(_) | GreetError::Malformed(_) => true,
        };
        if !bridge_bit || !may_be_the_bit {
            return Err(failed(refused));
        }
        let mut pipe = self.dial(address).await.map_err(|error| failed(error.into()))?;
        let greeted = pipe.greet(&Greeting { bridge_bit: false, ..greeting }).await.map_err(failed)?;
        self.memory.no_bridge_bit = true;
        Ok((pipe, greeted))
    }

    async fn dial(&self, address: &HostPort) -> std::io::Result<Pipe> {
        let stream = TcpStream::connect(&*address.0).await?;
        stream.set_nodelay(true)?;
        match &self.settings.tls {
            None => Ok(Pipe::new(stream)),
            Some(connector) => {
                let name = server_name(&self.settings.config, address).map_err(std::io::Error::other)?;
                Ok(Pipe::new(connector.connect(name, stream).await?))
            }
        }
    }

    /// The relay, with everything in it that goes out first.
    fn begin(&self, here: &Greeted, there: &Greeted) -> Result<Relay, Failure> {
        let given_up = self.memory.refused.filter(|(_, _, tries)| *tries >= QUOTA_TRIES_MAX);
        let given_up = given_up.map(|(side, packet_id, _)| (side, packet_id));
        let mut relay = Relay::new(self.settings.topics.clone(), here.capacity, there.capacity, given_up);
        let [local_is_new, remote_is_new] = self.memory.is_new;
        match (local_is_new, remote_is_new) {
            (true, false) => relay.sweep(Side::Remote)?,
            (false, true) => relay.sweep(Side::Local)?,
            // Neither remembers anything of the other one, or both do.
            _ => {}
        }
        // Who lost its session lost retained values with it, as far as it had them from here.
        let handling = |other_is_new: bool| {
            let anew = other_is_new || self.settings.config.clean_start;
            if anew { RetainHandling::Send } else { RetainHandling::SendIfNew }
        };
        let (local, remote) = self.settings.topics.wanted();
        subscribe(&mut relay, Side::Local, &local, handling(remote_is_new))?;
        let old: Vec<&str> =
            self.retired.iter().map(|filter| &**filter).filter(|old| !has(&remote, old)).collect();
        unsubscribe(&mut relay, Side::Remote, &old)?;
        subscribe(&mut relay, Side::Remote, &remote, handling(local_is_new))?;
        Ok(relay)
    }

    /// SUBSCRIBE, and UNSUBSCRIBE for what the stored session has and the configuration has not (any more).
    fn local_requests(&self, handling: RetainHandling) -> Vec<u8> {
        let (local, _) = self.settings.topics.wanted();
        let group = self.shared.store.group_of(&self.key);
        let stored: Vec<Box<str>> = self.shared.store.read(group, |rows| {
            let Some(row) = rows.session(&self.key) else { return Vec::new() };
            rows.subscriptions(row.lifetime).map(|(filter, _)| (&**filter).into()).collect()
        });
        let old: Vec<&str> = stored.iter().map(|filter| &**filter).filter(|old| !has(&local, old)).collect();
        let mut bytes = Vec::new();
        // What cannot be encoded was refused with the configuration.
        let _ = write_unsubscribe(Version::V5, &old, &mut bytes);
        let _ = write_subscribe(Version::V5, &local, (EARLY_ID, handling), &mut bytes);
        bytes
    }

    /// Passes messages on until one of the connections ends.
    async fn relay(&mut self, mut open: Open, stop: &mut watch::Receiver<bool>) -> Over {
        let group = self.shared.store.group_of(&self.key);
        let mut counted = [Counts::default(); 2];
        let mut looks = tokio::time::interval(LOOK_PERIOD);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut pinged_at = [Instant::now(); 2];
        let mut is_up = false;
        let over = loop {
            let turned = tokio::select! {
                turned = poll_fn(|cx| open.turn(cx)) => Some(turned),
                () = over(stop) => break Over::Stop,
                _ = looks.tick() => None,
            };
            if !is_up && open.relay.is_ready() {
                is_up = true;
                self.memory.is_new = [false; 2];
                self.connected(&open.relay);
            }
            match turned {
                Some(Ok(())) => {}
                Some(Err(failure)) => break Over::Failed(failure),
                None => {
                    self.count(&open.relay, &mut counted);
                    if !self.shared.store.leads(group) {
                        break Over::Stop;
                    }
                    if let Err(failure) = open.keep_alive(&mut pinged_at) {
                        break Over::Failed(failure);
                    }
                }
            }
        };
        self.count(&open.relay, &mut counted);
        let Open { local, remote, relay, .. } = open;
        let farewell = async {
            tokio::join!(remote.close(relay.unsent(Side::Remote)), local.close(relay.unsent(Side::Local)))
        };
        // Whoever does not take it sees the socket close.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, farewell).await;
        over
    }

    fn connected(&self, relay: &Relay) {
        let refused = relay
            .refused()
            .map(|(side, reason)| format!("{} does not grant a subscription: {reason:?}", name(side)));
        let is_both = |topic: &BridgeTopic| topic.direction == TopicDirection::Both;
        let echoes = self.memory.no_bridge_bit && self.settings.config.topics.0.iter().any(is_both);
        let lacking = refused.or_else(|| echoes.then(|| ECHO.to_owned()));
        self.status.set(BridgeState::Connected, lacking);
    }

    fn count(&self, relay: &Relay, counted: &mut [Counts; 2]) {
        let since = |side: Side| {
            let (now, before) = (relay.counts(side), counted[side as usize]);
            Counts { passed: now.passed - before.passed, dropped: now.dropped - before.dropped }
        };
        self.status.count(since(Side::Remote), since(Side::Local));
        *counted = Side::BOTH.map(|side| relay.counts(side));
    }
}

impl Open {
    fn pipe(&mut self, side: Side) -> &mut Pipe {
        match side {
            Side::Local => &mut self.local,
            Side::Remote => &mut self.remote,
        }
    }

    /// Reads, handles and writes what can be now. Ready: something was done.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        let mut progressed = false;
        for side in Side::BOTH {
            progressed |= self.take(side)?;
            if !self.relay.may_take(side) {
                continue;
            }
            match self.pipe(side).poll_fill(cx) {
                Poll::Pending => {}
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(Failure::Closed(side, None))),
                Poll::Ready(Ok(_)) => {
                    self.take(side)?;
                    progressed = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Closed(side, Some(error)))),
            }
        }
        for side in Side::BOTH {
            let unsent = self.relay.unsent(side);
            let pipe = match side {
                Side::Local => &mut self.local,
                Side::Remote => &mut self.remote,
            };
            match pipe.poll_send(cx, unsent) {
                Poll::Ready(Ok(0)) | Poll::Pending => {}
                Poll::Ready(Ok(count)) => {
                    self.relay.advance(side, count);
                    progressed = true;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(Failure::Closed(side, Some(error)))),
            }
        }
        if progressed { Poll::Ready(Ok(())) } else { Poll::Pending }
    }

    /// Handles the packets of `side` that are there; whether there were any.
    fn take(&mut self, side: Side) -> Result<bool, Failure> {
        let mut any = false;
        while self.relay.may_take(side) {
            let pipe = match side {
                Side::Local => &mut self.local,
                Side::Remote => &mut self.remote,
            };
            let frame = pipe.frame(self.relay.version(side), PACKET_BYTES_MAX);
            let frame = frame.map_err(|error| Fault::Protocol(name(side), error.to_string()))?;
            let Some(frame) = frame else { break };
            let len = frame.len;
            self.relay.handle(side, frame)?;
            pipe.consume(len);
            any = true;
        }
        Ok(any)
    }

    /// A PINGREQ in time, and an end to a connection that does not answer. This broker asks for none, unless it is told to ask everybody.
    fn keep_alive(&mut self, pinged_at: &mut [Instant; 2]) -> Result<(), Failure> {
        for side in Side::BOTH {
            let keep_alive = Duration::from_secs(u64::from(self.keep_alive_sec[side as usize]));
            if keep_alive.is_zero() {
                continue;
            }
            let pinged_at = &mut pinged_at[side as usize];
            if pinged_at.elapsed() >= keep_alive.mul_f64(0.5) {
                *pinged_at = Instant::now();
                self.relay.send(side, &Packet::PingReq)?;
            }
            // One that is not read cannot be heard.
            if self.relay.may_take(side) && self.pipe(side).heard_at.elapsed() > keep_alive.mul_f64(1.5) {
                return Err(Failure::Silent(side));
            }
        }
        Ok(())
    }
}

fn has(wanted: &[Wanted], filter: &str) -> bool {
    wanted.iter().any(|wanted| &*wanted.filter == filter)
}

async fn rest(pause: Duration, stop: &mut watch::Receiver<bool>) {
    tokio::select! {
        () = tokio::time::sleep(pause) => {}
        () = over(stop) => {}
    }
}

/// Also when nobody is left who could say so.
fn is_over(stop: &watch::Receiver<bool>) -> bool {
    *stop.borrow() || stop.has_changed().is_err()
}

async fn over(stop: &mut watch::Receiver<bool>) {
    // An error says that nobody is left.
    let _ = stop.wait_for(|stop| *stop).await;
}

fn subscribe(
    relay: &mut Relay,
    side: Side,
    wanted: &[Wanted],
    handling: RetainHandling,
) -> Result<(), Fault> {
    if wanted.is_empty() {
        return Ok(());
    }
    let mut bytes = Vec::new();
    write_subscribe(relay.version(side), wanted, (SUBSCRIBE_ID, handling), &mut bytes)
        .map_err(|error| Fault::Protocol(name(side), error.to_string()))?;
    relay.expect_answer();
    relay.queue(side, &bytes);
    Ok(())
}

fn unsubscribe(relay: &mut Relay, side: Side, filters: &[&str]) -> Result<(), Fault> {
    let mut bytes = Vec::new();
    write_unsubscribe(relay.version(side), filters, &mut bytes)
        .map_err(|error| Fault::Protocol(name(side), error.to_string()))?;
    relay.queue(side, &bytes);
    Ok(())
}

fn write_subscribe(
    version: Version,
    wanted: &[Wanted],
    (packet_id, handling): (u16, RetainHandling),
    bytes: &mut Vec<u8>,
) -> Result<(), gateway::codec::Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let v5 = version == Version::V5;
    let mut raw = Vec::new();
    for Wanted { filter, qos } in wanted {
        let filter = SubscribeFilter {
            filter,
            qos: *qos,
            no_local: v5,
            retain_as_published: v5,
            retain_handling: if v5 { handling } else { RetainHandling::Send },
        };
        filter.push(&mut raw)?;
    }
    let filters = Filters::new(version, &raw)?;
    let subscribe = Subscribe { packet_id, identifier: 0, filters, user_properties: UserProperties::EMPTY };
    gateway::codec::write(version, &Packet::Subscribe(subscribe), bytes)
}

fn write_unsubscribe(
    version: Version,
    filters: &[&str],
    bytes: &mut Vec<u8>,
) -> Result<(), gateway::codec::Error> {
    if filters.is_empty() {
        return Ok(());
    }
    let mut raw = Vec::new();
    for filter in filters {
        Unsubscribe::push(&mut raw, filter)?;
    }
    gateway::codec::write(version, &Packet::Unsubscribe(Unsubscribe::new(UNSUBSCRIBE_ID, &raw)?), bytes)
}
