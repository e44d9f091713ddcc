//! What a frame means at this point of a connection.

use session::time::Tick;

use super::alias::AliasesIn;
use super::{ClientLimits, Limits};
use crate::codec::{
    self, Auth, Connect, Disconnect, Frame, Packet, PacketType, Publish, ReasonCode, Version,
};
use crate::service::Ended;

/// Where the connection stands.
/// ```text
/// Greeting ──CONNECT──▶ Connecting ──accept()──▶ Connected ──DISCONNECT, fault──▶ (closed by the driver)
///                        ▲      │
///                        └─AUTH─┘  enhanced authentication
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Greeting,
    Connecting,
    Connected,
}

/// What the driver does with a frame.
#[derive(Debug)]
pub enum Input<'a> {
    /// A valid CONNECT, the first packet: run the use case.
    Connect(Box<Connect<'a>>),
    /// AUTH with the method of the CONNECT.
    Auth(Auth<'a>),
    /// For the service. A PUBLISH has its topic, also when it came as an alias.
    Packet(Packet<'a>),
    /// Answer PINGRESP.
    Ping,
    /// The client said good-bye: close.
    Disconnect,
}

/// A frame that ends the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    pub reason: ReasonCode,
    pub answer: Answer,
}

/// How a fault is told to the client before the close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Nothing,
    /// CONNACK in this version.
    ConnAck(Version),
    Disconnect,
}

/// The first DISCONNECT of the client; kept because its EOF may be seen before it is acted upon (owner spec §7.8).
#[derive(Debug, Clone, Copy)]
struct Receipt {
    at: Tick,
    reason: ReasonCode,
    session_expiry_sec: Option<u32>,
}

/// The protocol state of one connection.
#[derive(Debug)]
pub struct Machine {
    phase: Phase,
    version: Version,
    size_max: u32,
    size_max_connected: u32,
    topic_alias_maximum: u16,
    keep_alive_sec: u16,
    /// Session Expiry Interval of the CONNECT.
    session_expiry_sec: u32,
    receipt: Option<Receipt>,
    aliases: AliasesIn,
    authentication_method: Option<Box<str>>,
}

/// Reasons that a client may give in DISCONNECT (§3.14.2.1).
fn is_client_reason(reason: ReasonCode) -> bool {
    matches!(
        reason.code(),
        0x00 | 0x04 | 0x80..=0x83 | 0x90 | 0x93..=0x99
    )
}

impl Machine {
    /// A connection on a listener with these limits, before its first packet.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        Self {
            phase: Phase::Greeting,
            version: Version::V5,
            size_max: limits.connect_packet_size_max.min(limits.packet_size_max),
            size_max_connected: limits.packet_size_max,
            topic_alias_maximum: limits.topic_alias_maximum,
            keep_alive_sec: 0,
            session_expiry_sec: 0,
            receipt: None,
            aliases: AliasesIn::default(),
            authentication_method: None,
        }
    }

    /// Version of the connection; 5 before its CONNECT.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Whether CONNECT was accepted.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.phase == Phase::Connected
    }

    /// Authentication Method of the CONNECT.
    #[must_use]
    pub fn authentication_method(&self) -> Option<&str> {
        self.authentication_method.as_deref()
    }

    /// CONNECT was accepted. `server_keep_alive_sec` replaces the client's ([MQTT-3.1.2-21]). The Session Expiry Interval of the CONNECT
    /// stays what a DISCONNECT is judged by, whatever was granted: a client that repeats its own does nothing wrong ([MQTT-3.14.2-2]).
    pub fn accept(&mut self, server_keep_alive_sec: Option<u16>) {
        self.phase = Phase::Connected;
        self.size_max = self.size_max_connected;
        if let Some(keep_alive_sec) = server_keep_alive_sec {
            self.keep_alive_sec = keep_alive_sec;
        }
    }

    /// How long the connection may stay without a complete packet: one and a half times the keep alive ([MQTT-3.1.2-22]).
    #[must_use]
    pub fn keep_alive_ms(&self) -> Option<u64> {
        (self.keep_alive_sec > 0).then(|| u64::from(self.keep_alive_sec) * 1500)
    }

    /// How the connection ended, seen from `now`.
    #[must_use]
    pub fn ended(&self, now: Tick) -> Ended {
        if !self.is_connected() {
            return Ended::Unanswered { at: now };
        }
        match self.receipt {
            Some(Receipt { at, reason: ReasonCode::Success, session_expiry_sec }) => {
                Ended::Normal { at, session_expiry_sec }
            }
            Some(Receipt { at, session_expiry_sec, .. }) => Ended::Abnormal { at, session_expiry_sec },
            None => Ended::Abnormal { at: now, session_expiry_sec: None },
        }
    }

    /// The complete frame at the start of `bytes`; `None`: more bytes are needed.
    ///
    /// # Errors
    /// The connection ends, with this answer.
    #[inline]
    pub fn frame<'a>(&self, bytes: &'a [u8]) -> Result<Option<Frame<'a>>, Fault> {
        let size_max = self.size_max as usize;
        let frame = match self.phase {
            Phase::Greeting => codec::first_frame(bytes, size_max),
            Phase::Connecting | Phase::Connected => codec::frame(self.version, bytes, size_max),
        };
        frame.map_err(|error| self.fault(error.reason))
    }

    /// A complete frame.
    ///
    /// # Errors
    /// The connection ends, with this answer.
    pub fn handle_frame<'a>(&'a mut self, now: Tick, frame: Frame<'a>) -> Result<Input<'a>, Fault> {
        if self.phase == Phase::Greeting {
            return self.handle_connect(frame);
        }
        let packet = match codec::read(self.version, codec::From::Client, frame) {
            Ok(packet) => packet,
            Err(error) => return Err(self.fault(error.reason)),
        };
        if self.phase == Phase::Connecting && !matches!(packet, Packet::Auth(_) | Packet::Disconnect(_)) {
            return Err(self.fault(ReasonCode::ProtocolError));
        }
        match packet {
            Packet::Publish(publish) => self.resolve(publish).map(Input::Packet),
            Packet::PingReq => Ok(Input::Ping),
            Packet::Disconnect(disconnect) => self.handle_disconnect(now, &disconnect),
            Packet::Auth(auth) => self.handle_auth(auth),
            Packet::Ack(_) | Packet::Subscribe(_) | Packet::Unsubscribe(_) => Ok(Input::Packet(packet)),
            // A second CONNECT [MQTT-3.1.0-2], or a packet that only a server sends.
            Packet::Connect(_)
            | Packet::ConnAck(_)
            | Packet::SubAck(_)
            | Packet::UnsubAck(_)
            | Packet::PingResp => Err(self.fault(ReasonCode::ProtocolError)),
        }
    }

    /// Bytes that nobody will act upon any more: a DISCONNECT among them still counts (owner spec §7.8).
    pub fn handle_last_words(&mut self, now: Tick, mut bytes: &[u8]) {
        while self.phase != Phase::Greeting && self.receipt.is_none() {
            let Ok(Some(frame)) = self.frame(bytes) else { return };
            bytes = &bytes[frame.len..];
            if frame.packet_type != PacketType::Disconnect {
                continue;
            }
            let Ok(Packet::Disconnect(disconnect)) = codec::read(self.version, codec::From::Client, frame)
            else {
                return;
            };
            // An invalid one leaves no receipt: the end stays abnormal.
            let _ = self.handle_disconnect(now, &disconnect);
            return;
        }
    }

    fn handle_connect<'a>(&mut self, frame: Frame<'a>) -> Result<Input<'a>, Fault> {
        // [MQTT-3.1.0-1]: without a CONNECT there is no version to answer in.
        let nothing = Fault { reason: ReasonCode::ProtocolError, answer: Answer::Nothing };
        if frame.packet_type != PacketType::Connect {
            return Err(nothing);
        }
        match codec::read_connect(frame) {
            Ok(connect) => {
                self.phase = Phase::Connecting;
                self.version = connect.version;
                self.keep_alive_sec = connect.keep_alive_sec;
                self.session_expiry_sec = connect.session_expiry_sec;
                self.authentication_method = connect.authentication_method.map(Into::into);
                Ok(Input::Connect(Box::new(connect)))
            }
            Err(error) => {
                let answer = codec::refusal_version(frame.body).map_or(Answer::Nothing, Answer::ConnAck);
                Err(Fault { reason: error.reason, answer })
            }
        }
    }

    /// Fills the topic of a PUBLISH in from its alias (§3.3.2.3.4).
    fn resolve<'a>(&'a mut self, mut publish: Publish<'a>) -> Result<Packet<'a>, Fault> {
        let Some(alias) = publish.topic_alias else { return Ok(Packet::Publish(publish)) };
        let invalid = self.fault(ReasonCode::TopicAliasInvalid);
        if !publish.topic.is_empty() {
            if !self.aliases.define(alias, publish.topic, self.topic_alias_maximum) {
                return Err(invalid);
            }
            return Ok(Packet::Publish(publish));
        }
        publish.topic = self.aliases.resolve(alias).ok_or(invalid)?;
        Ok(Packet::Publish(publish))
    }

    fn handle_disconnect<'a>(&mut self, now: Tick, disconnect: &Disconnect<'_>) -> Result<Input<'a>, Fault> {
        // §3.14.2.2.2: an expiry of 0 in CONNECT cannot be raised; §3.14.2.2.5: the server reference is the server's.
        let raised = self.session_expiry_sec == 0 && disconnect.session_expiry_sec.is_some_and(|sec| sec > 0);
        if raised || disconnect.server_reference.is_some() || !is_client_reason(disconnect.reason) {
            return Err(self.fault(ReasonCode::ProtocolError));
        }
        if self.receipt.is_none() {
            self.receipt = Some(Receipt {
                at: now,
                reason: disconnect.reason,
                session_expiry_sec: disconnect.session_expiry_sec,
            });
        }
        Ok(Input::Disconnect)
    }

    fn handle_auth<'a>(&self, auth: Auth<'a>) -> Result<Input<'a>, Fault> {
        // [MQTT-4.12.0-5], [MQTT-4.12.1-1]: the method of the CONNECT, in every AUTH.
        if self.authentication_method.is_none() || auth.method != self.authentication_method.as_deref() {
            return Err(self.fault(ReasonCode::ProtocolError));
        }
        let legal = match self.phase {
            Phase::Greeting => false,
            Phase::Connecting => auth.reason == ReasonCode::ContinueAuthentication,
            Phase::Connected => {
                matches!(auth.reason, ReasonCode::ContinueAuthentication | ReasonCode::Reauthenticate)
            }
        };
        if legal { Ok(Input::Auth(auth)) } else { Err(self.fault(ReasonCode::ProtocolError)) }
    }

    fn fault(&self, reason: ReasonCode) -> Fault {
        let answer = match (self.phase, self.version) {
            (Phase::Greeting, _) => Answer::Nothing,
            (Phase::Connecting, version) => Answer::ConnAck(version),
            (Phase::Connected, Version::V311) => Answer::Nothing,
            (Phase::Connected, Version::V5) => Answer::Disconnect,
        };
        Fault { reason, answer }
    }
}

impl ClientLimits {
    /// What this CONNECT says about packets to the client.
    #[must_use]
    pub fn new(connect: &Connect<'_>, limits: &Limits) -> Self {
        Self {
            version: connect.version,
            maximum_packet_size: connect.maximum_packet_size,
            topic_alias_maximum: connect.topic_alias_maximum.min(limits.topic_alias_out_maximum),
            problem_information: connect.request_problem_information,
        }
    }
}
