//! Where packets to a client are written: one buffer with the client's limits in front of it.

use super::alias::{Aliased, AliasesOut};
use crate::codec::{
    self, Ack, AckType, Auth, Delivery, Disconnect, Packet, PacketType, ReasonCode, UserProperties, Version,
};
use crate::driver::{buffers, traffic};
use crate::link::MessageDelivery;

/// What a client said about packets to it in its CONNECT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientLimits {
    pub version: Version,
    /// Bytes of a whole packet; `u32::MAX`: no limit.
    pub maximum_packet_size: u32,
    /// Aliases that the server may use; the smaller of the client's maximum and the server's own.
    pub topic_alias_maximum: u16,
    /// Request Problem Information ([MQTT-3.1.2-29]).
    pub problem_information: bool,
}

/// Where the service writes packets: the connection's output buffer with the client's limits in front of it. The buffer comes
/// from the worker's pool with the first byte and goes back with the last.
#[derive(Debug)]
pub struct Output {
    /// Whole packets; starts at a packet boundary.
    buffer: Vec<u8>,
    /// Bytes of it that the socket has taken.
    sent: usize,
    limits: ClientLimits,
    aliases: Option<Box<AliasesOut>>,
    failure: Option<ReasonCode>,
}

impl Output {
    /// An empty output to a client with these limits.
    #[must_use]
    pub fn new(limits: ClientLimits) -> Self {
        Self { buffer: Vec::new(), sent: 0, limits, aliases: None, failure: None }
    }

    /// Version of the connection.
    #[must_use]
    pub fn version(&self) -> Version {
        self.limits.version
    }

    /// What the client said in its CONNECT.
    #[must_use]
    pub fn client_limits(&self) -> ClientLimits {
        self.limits
    }

    /// Appends a packet other than PUBLISH. Reason strings and user properties are left out when the client asked for none
    /// ([MQTT-3.1.2-29]) or when they would exceed its Maximum Packet Size. A packet that does not fit without them ends the
    /// connection: the client cannot be answered ([MQTT-3.1.2-24]).
    pub fn packet(&mut self, packet: &Packet<'_>) {
        let start = self.begin();
        if self.limits.problem_information {
            if codec::write(self.limits.version, packet, &mut self.buffer).is_ok() && self.fits(start) {
                traffic::sent(&self.buffer[start..]);
                return;
            }
            self.buffer.truncate(start);
        }
        let bare = without_problem_information(packet);
        let written = codec::write(self.limits.version, bare.as_ref().unwrap_or(packet), &mut self.buffer);
        if written.is_err() || !self.fits(start) {
            self.buffer.truncate(start);
            self.failure.get_or_insert(ReasonCode::PacketTooLarge);
        }
        traffic::sent(&self.buffer[start..]);
    }

    /// PUBACK, PUBREC, PUBREL or PUBCOMP without properties: the short form.
    pub fn ack(&mut self, ack_type: AckType, packet_id: u16, reason: ReasonCode) {
        let start = self.begin();
        let written =
            codec::write_ack_short(self.limits.version, ack_type, packet_id, reason, &mut self.buffer);
        if written.is_err() || !self.fits(start) {
            self.buffer.truncate(start);
            self.failure.get_or_insert(ReasonCode::PacketTooLarge);
        }
        traffic::sent(&self.buffer[start..]);
    }

    /// Appends a PUBLISH, with a topic alias where the client allows one; false when it exceeds the client's Maximum
    /// Packet Size (the message counts as delivered, [MQTT-3.1.2-25]).
    pub fn publish(&mut self, delivery: &MessageDelivery, packet_id: u16, expiry_sec: Option<u32>) -> bool {
        let message = &*delivery.message;
        let aliased = self.alias(message.topic());
        let (topic, topic_alias) = match aliased {
            Aliased::Plain => (message.topic(), None),
            Aliased::Define(alias) => (message.topic(), Some(alias)),
            Aliased::Known(alias) => ("", Some(alias)),
        };
        let packet = Delivery {
            topic,
            dup: delivery.dup,
            packet_id,
            topic_alias,
            expiry_sec,
            identifiers: &delivery.identifiers,
            ..Delivery::of(message, delivery.qos, delivery.retain)
        };
        let start = self.begin();
        let size_max = self.limits.maximum_packet_size as usize;
        if packet.write(self.limits.version, size_max, &mut self.buffer).is_err() {
            return false;
        }
        traffic::sent(&self.buffer[start..]);
        if let (Aliased::Define(_), Some(aliases)) = (aliased, &mut self.aliases) {
            aliases.remember(message.topic());
        }
        true
    }

    /// Bytes that wait to be written.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len() - self.sent
    }

    /// The bytes that wait, for tests of a service without a socket; empties the output.
    pub fn take_bytes(&mut self) -> Vec<u8> {
        let bytes = self.unsent().to_vec();
        self.advance(bytes.len());
        bytes
    }

    fn alias(&mut self, topic: &str) -> Aliased {
        if self.limits.topic_alias_maximum == 0 || self.limits.version != Version::V5 {
            return Aliased::Plain;
        }
        if self.aliases.is_none() {
            self.aliases = AliasesOut::new(self.limits.topic_alias_maximum);
        }
        self.aliases.as_ref().map_or(Aliased::Plain, |aliases| aliases.look_up(topic))
    }

    fn begin(&mut self) -> usize {
        if self.buffer.capacity() == 0 {
            self.buffer = buffers::take();
        }
        self.buffer.len()
    }

    fn fits(&self, start: usize) -> bool {
        self.buffer.len() - start <= self.limits.maximum_packet_size as usize
    }
}

/// The driver's side.
impl Output {
    /// Why the connection must end: a packet that it owes cannot be represented for this client.
    pub(crate) fn failure(&self) -> Option<ReasonCode> {
        self.failure
    }

    pub(crate) fn ping_response(&mut self) {
        const PINGRESP: [u8; 2] = [0xD0, 0];
        traffic::sent(&PINGRESP);
        self.append(&PINGRESP);
    }

    /// Appends whole encoded packets, which were counted when they were left in the link.
    pub(crate) fn append(&mut self, packets: &[u8]) {
        self.begin();
        self.buffer.extend_from_slice(packets);
    }

    /// Appends an encoded PUBLISH and sets its packet id.
    pub(crate) fn append_exchange(&mut self, packet: &[u8], packet_id_at: usize, packet_id: u16) {
        let start = self.begin();
        self.buffer.extend_from_slice(packet);
        let at = start + packet_id_at;
        if let Some(hole) = self.buffer.get_mut(at..at + 2) {
            hole.copy_from_slice(&packet_id.to_be_bytes());
        }
    }

    /// Takes a buffer of whole packets over when nothing waits; else copies it.
    pub(crate) fn adopt(&mut self, packets: Vec<u8>) {
        if self.buffer.is_empty() {
            buffers::give(std::mem::replace(&mut self.buffer, packets));
        } else {
            self.buffer.extend_from_slice(&packets);
            buffers::give(packets);
        }
    }

    pub(crate) fn unsent(&self) -> &[u8] {
        &self.buffer[self.sent..]
    }

    /// The socket took `n` bytes.
    pub(crate) fn advance(&mut self, n: usize) {
        const WORTH_MOVING: usize = 64 * 1024;
        self.sent += n;
        if self.sent >= self.buffer.len() {
            self.sent = 0;
            self.buffer.clear();
            buffers::give(std::mem::take(&mut self.buffer));
        } else if self.sent >= WORTH_MOVING && self.sent * 2 >= self.buffer.len() {
            let (before, _) = packet_bounds(&self.buffer, self.sent);
            self.buffer.drain(..before);
            self.sent -= before;
        }
    }

    /// Drops every packet of which the socket has not taken a byte yet.
    pub(crate) fn drop_unsent_packets(&mut self) {
        let (_, after) = packet_bounds(&self.buffer, self.sent);
        self.buffer.truncate(after);
    }

    /// Appends a DISCONNECT for a v5 client; a 3.1.1 client is told nothing ([MQTT-3.14.0-1]).
    pub(crate) fn disconnect(&mut self, reason: ReasonCode, text: Option<&str>, reference: Option<&str>) {
        if self.limits.version == Version::V5 {
            self.packet(&Packet::Disconnect(Disconnect {
                reason: disconnect_reason(reason),
                session_expiry_sec: None,
                reason_string: text,
                server_reference: reference,
                user_properties: UserProperties::EMPTY,
            }));
        }
    }

    pub(crate) fn auth(&mut self, reason: ReasonCode, method: &str, data: Option<&[u8]>) {
        self.packet(&Packet::Auth(Auth {
            reason,
            method: Some(method),
            data,
            reason_string: None,
            user_properties: UserProperties::EMPTY,
        }));
    }
}

/// What a DISCONNECT may say of `reason` ([MQTT-3.14.2-1]): one that only a CONNACK has would not be sent at all.
fn disconnect_reason(reason: ReasonCode) -> ReasonCode {
    if reason.allowed_in(PacketType::Disconnect, codec::From::Server) {
        return reason;
    }
    match reason {
        ReasonCode::ServerUnavailable => ReasonCode::ServerBusy,
        ReasonCode::BadUserNameOrPassword | ReasonCode::ClientIdentifierNotValid | ReasonCode::Banned => {
            ReasonCode::NotAuthorized
        }
        _ => ReasonCode::UnspecifiedError,
    }
}

/// The last packet boundary at or before `at` and the first one at or behind it, in a buffer that starts at a boundary.
fn packet_bounds(buffer: &[u8], at: usize) -> (usize, usize) {
    let (mut before, mut after) = (0, 0);
    while after < at {
        before = after;
        let (mut len, mut shift, mut index) = (0_usize, 0, after + 1);
        while let Some(&byte) = buffer.get(index) {
            len |= usize::from(byte & 0x7F) << shift;
            index += 1;
            shift += 7;
            if byte & 0x80 == 0 || shift > 21 {
                break;
            }
        }
        after = (index + len).min(buffer.len());
    }
    if after == at { (at, at) } else { (before, after) }
}

/// The same packet without reason string and user properties; `None` when it has no such field.
fn without_problem_information<'a>(packet: &Packet<'a>) -> Option<Packet<'a>> {
    let user_properties = UserProperties::EMPTY;
    Some(match packet {
        Packet::ConnAck(connack) => {
            let mut bare = connack.clone();
            bare.reason_string = None;
            bare.user_properties = user_properties;
            Packet::ConnAck(bare)
        }
        Packet::Ack(ack) => Packet::Ack(Ack { reason_string: None, user_properties, ..*ack }),
        Packet::SubAck(ack) => Packet::SubAck(codec::SubAck { reason_string: None, user_properties, ..*ack }),
        Packet::UnsubAck(ack) => {
            Packet::UnsubAck(codec::UnsubAck { reason_string: None, user_properties, ..*ack })
        }
        Packet::Disconnect(disconnect) => {
            Packet::Disconnect(Disconnect { reason_string: None, user_properties, ..*disconnect })
        }
        Packet::Auth(auth) => Packet::Auth(Auth { reason_string: None, user_properties, ..*auth }),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [MQTT-3.14.2-1]: whatever the reason for which the server closes, a v5 client is told one that a DISCONNECT may carry.
    #[test]
    fn mqtt_3_14_2_1_every_reason_is_told() {
        let limits = ClientLimits {
            version: Version::V5,
            maximum_packet_size: u32::MAX,
            topic_alias_maximum: 0,
            problem_information: true,
        };
        for reason in (1..=u8::MAX).filter_map(ReasonCode::from_code) {
            let mut out = Output::new(limits);
            out.disconnect(reason, None, None);
            assert_eq!(out.failure(), None, "{reason:?}");
            let [0xE0, 1, told] = *out.unsent() else { panic!("{reason:?}: {:?}", out.unsent()) };
            let told = ReasonCode::from_code(told).expect("a reason code");
            assert!(told.allowed_in(PacketType::Disconnect, codec::From::Server), "{reason:?}");
            if reason.allowed_in(PacketType::Disconnect, codec::From::Server) {
                assert_eq!(told, reason);
            }
        }
    }
}
