//! Messages and their acknowledgements between two brokers, sans-IO: bytes of complete packets in, bytes to write out.
//!
//! Nothing is remembered here that would be missed after a crash. A message keeps its packet id on the way, each step of its exchange is
//! passed on when the other broker has answered it, and both brokers keep their own half of it in their sessions: who sends repeats what
//! was not acknowledged, who receives knows a repetition of QoS 2 by its id. So a message is acknowledged to its sender when the receiver
//! has acknowledged it, not before, and QoS 2 is exactly once for as long as both sessions live (ADR 0014).

use std::collections::{HashMap, HashSet};

use gateway::codec::{
    self, Ack, AckType, Disconnect, Frame, Packet, Publish, ReasonCode, Version, forwarded_properties,
};
use session::message::QoS;

use super::parked::{self, Parked};
use super::topics::TopicMap;

/// Unsent bytes to one broker above which the other one is not read, or QoS 0 for it is dropped.
const UNSENT_BYTES_MAX: usize = 256 << 10;

/// One of the two brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Side {
    Local,
    Remote,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Local, Self::Remote];

    pub(super) const fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }
}

/// What one broker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capacity {
    pub(super) version: Version,
    /// Exchanges towards it.
    pub(super) receive_maximum: u16,
    pub(super) maximum_qos: QoS,
    pub(super) retain_available: bool,
    pub(super) packet_size_max: usize,
}

/// Why the two connections end.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Fault {
    #[error("{0} breaks the protocol: {1}")]
    Protocol(&'static str, String),
    /// It may take the message later: it is sent again.
    #[error("{} does not take a message now: {reason:?}", name(*side))]
    NotNow { side: Side, packet_id: u16, reason: ReasonCode },
    #[error("{} ended the connection: {reason:?}", name(*side))]
    Disconnected { side: Side, reason: ReasonCode },
}

pub(super) const fn name(side: Side) -> &'static str {
    match side {
        Side::Local => "this broker",
        Side::Remote => "the other broker",
    }
}

/// Messages since the relay began, by the side that they went to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Acknowledged there, or written with QoS 0.
    pub(super) passed: u64,
    /// Refused for good, too large, or QoS 0 in a jam.
    pub(super) dropped: u64,
}

/// How far a message is that went to a side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flow {
    /// PUBACK is awaited; `received` is the QoS that its sender gave it.
    Acked { received: QoS },
    /// PUBREC is awaited.
    Received,
    /// PUBREL of the sender is awaited.
    Released,
    /// PUBCOMP is awaited.
    Completed,
}

struct End {
    capacity: Capacity,
    out: Vec<u8>,
    /// Bytes at the start of `out` that are written.
    written: usize,
    /// Messages on their way to it, by packet id.
    flows: HashMap<u16, Flow>,
    /// Messages from it that the other side has no room for yet.
    parked: Parked,
    /// QoS 2 ids of messages from it whose exchange ends here: its PUBREL is answered at once.
    own: HashSet<u16>,
    /// PUBCOMP that are awaited for [`Relay::sweep`].
    sweeping: u32,
    counts: Counts,
}

/// The two ends of a bridge.
pub(super) struct Relay {
    topics: TopicMap,
    local: End,
    remote: End,
    /// A message that was refused too often: it is given up.
    given_up: Option<(Side, u16)>,
    /// The first subscription that a broker refused.
    refused: Option<(Side, ReasonCode)>,
    /// SUBSCRIBE that are not answered.
    unanswered: u32,
}

impl Relay {
    pub(super) fn new(
        topics: TopicMap,
        local: Capacity,
        remote: Capacity,
        given_up: Option<(Side, u16)>,
    ) -> Self {
        Self {
            topics,
            local: End::new(local),
            remote: End::new(remote),
            given_up,
            refused: None,
            unanswered: 0,
        }
    }

    fn end(&mut self, side: Side) -> &mut End {
        match side {
            Side::Local => &mut self.local,
            Side::Remote => &mut self.remote,
        }
    }

    fn at(&self, side: Side) -> &End {
        match side {
            Side::Local => &self.local,
            Side::Remote => &self.remote,
        }
    }

    pub(super) fn version(&self, side: Side) -> Version {
        self.at(side).capacity.version
    }

    pub(super) fn counts(&self, side: Side) -> Counts {
        self.at(side).counts
    }

    pub(super) fn refused(&self) -> Option<(Side, ReasonCode)> {
        self.refused
    }

    /// Bytes for `side` that are not written.
    pub(super) fn unsent(&self, side: Side) -> &[u8] {
        let end = self.at(side);
        &end.out[end.written..]
    }

    /// So many of them were.
    pub(super) fn advance(&mut self, side: Side, count: usize) {
        let end = self.end(side);
        end.written += count;
        if end.written == end.out.len() {
            end.out.clear();
            end.written = 0;
        }
    }

    /// Queues a packet of the bridge itself.
    pub(super) fn send(&mut self, side: Side, packet: &Packet<'_>) -> Result<(), Fault> {
        self.end(side).write(packet).map_err(|error| Fault::Protocol(name(side), error.to_string()))
    }

    /// The other side lost its session and uses packet ids anew, which `side` may hold for those of the lost one: the next message under one
    /// would pass for a repetition and be lost. Releases all there are; nothing comes to `side` before it has answered.
    pub(super) fn sweep(&mut self, side: Side) -> Result<(), Fault> {
        for packet_id in 1..=u16::MAX {
            self.answer(side, AckType::PubRel, packet_id)?;
            self.end(side).sweeping += 1;
        }
        Ok(())
    }

    /// Queues packets that are encoded already.
    pub(super) fn queue(&mut self, side: Side, bytes: &[u8]) {
        self.end(side).out.extend_from_slice(bytes);
    }

    /// Whether every sweep is over, and every subscription answered.
    pub(super) fn is_ready(&self) -> bool {
        self.local.sweeping == 0 && self.remote.sweeping == 0 && self.unanswered == 0
    }

    /// A SUBSCRIBE was sent, whose answer comes.
    pub(super) fn expect_answer(&mut self) {
        self.unanswered += 1;
    }

    /// Whether the next packet of `side` may be looked at. A window that is full is no reason not to: what makes room in it comes from both
    /// sides. This broker is always read while the other one is not, so that acknowledgements get through and the two cannot wait for each other.
    pub(super) fn may_take(&self, side: Side) -> bool {
        if self.at(side.other()).sweeping > 0 {
            return false;
        }
        let is_drained = |to: Side| self.unsent(to).len() < UNSENT_BYTES_MAX;
        match side {
            Side::Remote => is_drained(Side::Local),
            Side::Local => is_drained(Side::Remote) || !is_drained(Side::Local),
        }
    }

    /// Whether a message from `side` has to wait: behind others, or for one that is on its way to end.
    fn must_wait(&self, side: Side, publish: &Publish<'_>) -> bool {
        let to = self.at(side.other());
        let is_new = !to.flows.contains_key(&publish.packet_id);
        publish.qos > QoS::AtMostOnce && is_new && (to.is_full() || !self.at(side).parked.is_empty())
    }

    fn park(&mut self, side: Side, publish: &Publish<'_>, frame: Frame<'_>) -> Result<(), Fault> {
        let broken = |what: String| Err(Fault::Protocol(name(side), what));
        let (packet_id, parked) = (publish.packet_id, &mut self.end(side).parked);
        if parked.has(packet_id) {
            // Repeated on one connection, as MQTT 3.1.1 allows.
            return if publish.dup { Ok(()) } else { broken(format!("packet id {packet_id} is in use")) };
        }
        if parked.push(packet_id, frame) {
            return Ok(());
        }
        let most = parked::BYTES_MAX;
        broken(format!(
            "it has more than {most} bytes under way: lower its window (mosquitto: max_inflight_messages)"
        ))
    }

    /// Passes on what waits of `from`, as far as there is room.
    fn unpark(&mut self, from: Side) -> Result<(), Fault> {
        let to = from.other();
        while !self.at(to).is_full() {
            let Some(packet) = self.end(from).parked.pop() else { return Ok(()) };
            let read = codec::read(self.version(from), codec::From::Server, packet.frame());
            // It was read before it was parked.
            if let Ok(Packet::Publish(publish)) = read {
                self.publish(from, &publish)?;
            }
        }
        Ok(())
    }

    /// A complete packet from `side`.
    ///
    /// # Errors
    /// The two connections end.
    pub(super) fn handle(&mut self, side: Side, frame: Frame<'_>) -> Result<(), Fault> {
        let broken = |what: String| Fault::Protocol(name(side), what);
        let packet = codec::read(self.version(side), codec::From::Server, frame);
        match packet.map_err(|error| broken(error.to_string()))? {
            Packet::Publish(publish) if self.must_wait(side, &publish) => self.park(side, &publish, frame),
            Packet::Publish(publish) => self.publish(side, &publish),
            Packet::Ack(ack) => {
                self.ack(side, &ack)?;
                self.unpark(side.other())
            }
            Packet::SubAck(suback) => {
                self.unanswered = self.unanswered.saturating_sub(1);
                let refused = suback
                    .reasons
                    .iter()
                    .find_map(|&code| ReasonCode::from_code(code).filter(|r| r.is_error()));
                self.refused = self.refused.or(refused.map(|reason| (side, reason)));
                Ok(())
            }
            Packet::UnsubAck(_) | Packet::PingResp => Ok(()),
            Packet::Disconnect(Disconnect { reason, .. }) => Err(Fault::Disconnected { side, reason }),
            other => Err(broken(format!("{:?} is not expected", other.packet_type()))),
        }
    }

    fn publish(&mut self, from: Side, publish: &Publish<'_>) -> Result<(), Fault> {
        let to = from.other();
        if publish.topic_alias.is_some() {
            return Err(Fault::Protocol(name(from), "a topic alias, of which none were allowed".to_owned()));
        }
        let packet_id = publish.packet_id;
        if let Some(flow) =
            self.at(to).flows.get(&packet_id).copied().filter(|_| publish.qos > QoS::AtMostOnce)
        {
            if !publish.dup {
                return Err(Fault::Protocol(name(from), format!("packet id {packet_id} is in use")));
            }
            // Repeated on one connection, as MQTT 3.1.1 allows; PUBREC once more where the first one may be what it missed.
            return if flow == Flow::Released {
                self.answer(from, AckType::PubRec, packet_id)
            } else {
                Ok(())
            };
        }
        let topic = match from {
            Side::Local => self.topics.out(publish.topic),
            Side::Remote => self.topics.inward(publish.topic),
        };
        // What was subscribed to by an earlier configuration is nobody's loss.
        let Some(topic) = topic else { return self.settle(from, publish.qos, packet_id) };
        let end = self.end(to);
        let qos = publish.qos.min(end.capacity.maximum_qos);
        if qos == QoS::AtMostOnce && end.out.len() - end.written >= UNSENT_BYTES_MAX {
            end.counts.dropped += 1;
            return self.settle(from, publish.qos, packet_id);
        }
        if !end.forward(publish, &topic, qos) {
            end.counts.dropped += 1;
            return self.settle(from, publish.qos, packet_id);
        }
        match qos {
            QoS::AtMostOnce => {
                end.counts.passed += 1;
                return self.settle(from, publish.qos, packet_id);
            }
            QoS::AtLeastOnce => end.flows.insert(packet_id, Flow::Acked { received: publish.qos }),
            QoS::ExactlyOnce => end.flows.insert(packet_id, Flow::Received),
        };
        Ok(())
    }

    fn ack(&mut self, from: Side, ack: &Ack<'_>) -> Result<(), Fault> {
        let packet_id = ack.packet_id;
        match ack.ack_type {
            AckType::PubAck | AckType::PubRec => self.received(from, ack),
            AckType::PubRel => {
                let to = from.other();
                if self.end(from).own.remove(&packet_id)
                    || self.at(to).capacity.maximum_qos < QoS::ExactlyOnce
                {
                    return self.answer(from, AckType::PubComp, packet_id);
                }
                self.end(to).flows.insert(packet_id, Flow::Completed);
                self.answer(to, AckType::PubRel, packet_id)
            }
            AckType::PubComp => {
                let end = self.end(from);
                if end.sweeping > 0 {
                    end.sweeping -= 1;
                    return Ok(());
                }
                if end.flows.remove(&packet_id) != Some(Flow::Completed) {
                    return Err(Fault::Protocol(name(from), format!("PUBCOMP {packet_id} answers nothing")));
                }
                end.counts.passed += 1;
                self.answer(from.other(), AckType::PubComp, packet_id)
            }
        }
    }

    /// PUBACK or PUBREC of a message that went to `from`.
    fn received(&mut self, from: Side, ack: &Ack<'_>) -> Result<(), Fault> {
        let (packet_id, sender) = (ack.packet_id, from.other());
        let given_up = self.given_up == Some((from, packet_id));
        let end = self.end(from);
        let flow = match (end.flows.get(&packet_id).copied(), ack.ack_type) {
            (Some(flow @ Flow::Acked { .. }), AckType::PubAck)
            | (Some(flow @ Flow::Received), AckType::PubRec) => flow,
            // PUBREC again, for a message that was repeated.
            (Some(Flow::Released | Flow::Completed), AckType::PubRec) => return Ok(()),
            _ => {
                let what = format!("{:?} {packet_id} answers nothing", ack.ack_type);
                return Err(Fault::Protocol(name(from), what));
            }
        };
        if ack.reason.is_error() {
            if is_passing(ack.reason) && !given_up {
                return Err(Fault::NotNow { side: from, packet_id, reason: ack.reason });
            }
            end.flows.remove(&packet_id);
            end.counts.dropped += 1;
            let qos = match flow {
                Flow::Acked { received } => received,
                _ => QoS::ExactlyOnce,
            };
            return self.settle(sender, qos, packet_id);
        }
        match flow {
            Flow::Acked { received } => {
                end.flows.remove(&packet_id);
                end.counts.passed += 1;
                self.settle(sender, received, packet_id)
            }
            _ => {
                end.flows.insert(packet_id, Flow::Released);
                self.answer(sender, AckType::PubRec, packet_id)
            }
        }
    }

    /// The exchange of a message from `side` ends here: nobody else has to answer any more.
    fn settle(&mut self, side: Side, qos: QoS, packet_id: u16) -> Result<(), Fault> {
        match qos {
            QoS::AtMostOnce => Ok(()),
            QoS::AtLeastOnce => self.answer(side, AckType::PubAck, packet_id),
            QoS::ExactlyOnce => {
                self.end(side).own.insert(packet_id);
                self.answer(side, AckType::PubRec, packet_id)
            }
        }
    }

    fn answer(&mut self, side: Side, ack_type: AckType, packet_id: u16) -> Result<(), Fault> {
        self.send(side, &Packet::Ack(Ack::new(ack_type, packet_id, ReasonCode::Success)))
    }
}

/// Whether the same message may be taken later.
fn is_passing(reason: ReasonCode) -> bool {
    matches!(
        reason,
        ReasonCode::UnspecifiedError
            | ReasonCode::ImplementationSpecificError
            | ReasonCode::PacketIdentifierInUse
            | ReasonCode::QuotaExceeded
    )
}

impl End {
    fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            out: Vec::new(),
            written: 0,
            flows: HashMap::new(),
            parked: Parked::default(),
            own: HashSet::new(),
            sweeping: 0,
            counts: Counts::default(),
        }
    }

    /// Whether as many messages are on their way to it as it takes.
    fn is_full(&self) -> bool {
        self.flows.len() >= usize::from(self.capacity.receive_maximum)
    }

    fn write(&mut self, packet: &Packet<'_>) -> Result<(), codec::Error> {
        codec::write(self.capacity.version, packet, &mut self.out)
    }

    /// False: it is larger than this side takes.
    fn forward(&mut self, publish: &Publish<'_>, topic: &str, qos: QoS) -> bool {
        let mut scratch = Vec::new();
        let start = self.out.len();
        let packet = Packet::Publish(Publish {
            dup: publish.dup && qos > QoS::AtMostOnce,
            qos,
            retain: publish.retain && self.capacity.retain_available,
            topic,
            packet_id: if qos == QoS::AtMostOnce { 0 } else { publish.packet_id },
            topic_alias: None,
            message_expiry_sec: publish.message_expiry_sec,
            properties: forwarded_properties(publish.properties, &mut scratch),
            properties_forwardable: true,
            payload: publish.payload,
        });
        if self.write(&packet).is_err() || self.out.len() - start > self.capacity.packet_size_max {
            self.out.truncate(start);
            return false;
        }
        true
    }
}

#[cfg(test)]
#[path = "relay_test.rs"]
mod tests;
