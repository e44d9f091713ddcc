//! A blocking byte-level client: it does what a test says, right or wrong.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::wire::{self, Packet, Publish};

/// How long a test waits for one packet.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What CONNECT says.
#[derive(Debug, Clone)]
pub struct Options {
    pub v5: bool,
    pub client_id: String,
    pub clean: bool,
    pub keep_alive_sec: u16,
    pub user: Option<String>,
    pub password: Option<String>,
    /// Property bytes of CONNECT, without length.
    pub properties: Vec<u8>,
    pub will: Option<WillOptions>,
}

/// The Will of a CONNECT.
#[derive(Debug, Clone, Default)]
pub struct WillOptions {
    pub topic: String,
    pub payload: Vec<u8>,
    pub qos: u8,
    pub retain: bool,
    /// Property bytes, without length.
    pub properties: Vec<u8>,
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    pub stream: TcpStream,
    pub v5: bool,
    buffer: Vec<u8>,
    next_id: u16,
}

impl Options {
    /// MQTT 5, clean start, no expiry, keep alive 60 s.
    #[must_use]
    pub fn v5(client_id: &str) -> Self {
        Self {
            v5: true,
            client_id: client_id.into(),
            clean: true,
            keep_alive_sec: 60,
            user: None,
            password: None,
            properties: Vec::new(),
            will: None,
        }
    }

    /// MQTT 3.1.1, clean session, keep alive 60 s.
    #[must_use]
    pub fn v3(client_id: &str) -> Self {
        Self { v5: false, ..Self::v5(client_id) }
    }

    /// Clean Start / Clean Session 0.
    #[must_use]
    pub fn resume(mut self) -> Self {
        self.clean = false;
        self
    }

    /// Session Expiry Interval in seconds (MQTT 5).
    #[must_use]
    pub fn expiry(mut self, sec: u32) -> Self {
        self.properties.push(0x11);
        self.properties.extend_from_slice(&sec.to_be_bytes());
        self
    }

    /// Receive Maximum (MQTT 5).
    #[must_use]
    pub fn receive_maximum(mut self, value: u16) -> Self {
        self.properties.push(0x21);
        self.properties.extend_from_slice(&value.to_be_bytes());
        self
    }

    /// Maximum Packet Size (MQTT 5).
    #[must_use]
    pub fn maximum_packet_size(mut self, value: u32) -> Self {
        self.properties.push(0x27);
        self.properties.extend_from_slice(&value.to_be_bytes());
        self
    }

    #[must_use]
    pub fn keep_alive(mut self, sec: u16) -> Self {
        self.keep_alive_sec = sec;
        self
    }

    #[must_use]
    pub fn login(mut self, user: &str, password: &str) -> Self {
        self.user = Some(user.into());
        self.password = Some(password.into());
        self
    }

    /// A Will with this delay in seconds (delay only on MQTT 5).
    #[must_use]
    pub fn will(mut self, topic: &str, payload: &str, qos: u8, retain: bool, delay_sec: u32) -> Self {
        let mut properties = Vec::new();
        if self.v5 && delay_sec > 0 {
            properties.push(0x18);
            properties.extend_from_slice(&delay_sec.to_be_bytes());
        }
        self.will =
            Some(WillOptions { topic: topic.into(), payload: payload.into(), qos, retain, properties });
        self
    }

    /// The CONNECT packet.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        let mut body = Vec::new();
        wire::string("MQTT", &mut body);
        body.push(if self.v5 { 5 } else { 4 });
        let mut flags = u8::from(self.clean) << 1;
        if let Some(will) = &self.will {
            flags |= 4 | will.qos << 3 | u8::from(will.retain) << 5;
        }
        flags |= u8::from(self.password.is_some()) << 6 | u8::from(self.user.is_some()) << 7;
        body.push(flags);
        body.extend_from_slice(&self.keep_alive_sec.to_be_bytes());
        if self.v5 {
            wire::varint(self.properties.len(), &mut body);
            body.extend_from_slice(&self.properties);
        }
        wire::string(&self.client_id, &mut body);
        if let Some(will) = &self.will {
            if self.v5 {
                wire::varint(will.properties.len(), &mut body);
                body.extend_from_slice(&will.properties);
            }
            wire::string(&will.topic, &mut body);
            wire::string(&will.payload, &mut body);
        }
        for text in [&self.user, &self.password].into_iter().flatten() {
            wire::string(text, &mut body);
        }
        wire::packet(0x10, &body)
    }
}

impl Client {
    /// A socket without CONNECT.
    ///
    /// # Panics
    /// When nobody listens.
    #[must_use]
    pub fn open(address: SocketAddr, v5: bool) -> Self {
        Self::try_open(address, v5, PATIENCE).expect("the broker listens")
    }

    /// The same where nobody may listen. Writes that take longer than `limit` fail too.
    ///
    /// # Errors
    /// What the system says.
    pub fn try_open(address: SocketAddr, v5: bool, limit: Duration) -> std::io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(limit))?;
        Ok(Self { stream, v5, buffer: Vec::new(), next_id: 0 })
    }

    /// Over a socket that is connected.
    ///
    /// # Panics
    /// When the system refuses a setting.
    #[must_use]
    pub fn over(stream: TcpStream, v5: bool) -> Self {
        stream.set_nodelay(true).expect("a socket");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket");
        Self { stream, v5, buffer: Vec::new(), next_id: 0 }
    }

    /// Sends CONNECT and returns the client with the CONNACK.
    ///
    /// # Panics
    /// When no CONNACK comes.
    #[must_use]
    pub fn try_connect(address: SocketAddr, options: &Options) -> (Self, Packet) {
        let mut client = Self::open(address, options.v5);
        client.send(&options.bytes());
        let connack = client.receive();
        assert_eq!(connack.kind(), 2, "CONNACK expected: {connack:02x?}");
        (client, connack)
    }

    /// Connects with success and returns the client and Session Present.
    ///
    /// # Panics
    /// When CONNECT is refused.
    #[must_use]
    pub fn connect_present(address: SocketAddr, options: &Options) -> (Self, bool) {
        let (client, connack) = Self::try_connect(address, options);
        assert_eq!(connack.reason(), 0, "CONNECT refused: {connack:02x?}");
        (client, connack.body[0] & 1 != 0)
    }

    /// Connects with success.
    ///
    /// # Panics
    /// When CONNECT is refused.
    #[must_use]
    pub fn connect(address: SocketAddr, options: &Options) -> Self {
        Self::connect_present(address, options).0
    }

    /// Writes raw bytes; a closed socket shows at the next receive.
    pub fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// The next packet.
    ///
    /// # Panics
    /// When none comes within [`PATIENCE`], or the socket closes.
    pub fn receive(&mut self) -> Packet {
        match self.poll(PATIENCE) {
            Ok(Some(packet)) => packet,
            Ok(None) => panic!("no packet within {PATIENCE:?}"),
            Err(()) => panic!("the socket was closed while a packet was expected"),
        }
    }

    /// The next packet within `limit`; `Ok(None)`: none came; `Err`: the socket is closed.
    ///
    /// # Errors
    /// EOF or reset.
    #[allow(clippy::result_unit_err)]
    pub fn poll(&mut self, limit: Duration) -> Result<Option<Packet>, ()> {
        let end = Instant::now() + limit;
        loop {
            if let Some(packet) = self.take() {
                return Ok(Some(packet));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.stream.set_read_timeout(Some(left)).map_err(|_| ())?;
            let mut chunk = [0; 65_536];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(()),
                Ok(len) => self.buffer.extend_from_slice(&chunk[..len]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Err(()),
            }
        }
    }

    /// Reads until the socket closes and returns the packets that came before.
    ///
    /// # Panics
    /// When it stays open for `limit`.
    pub fn until_closed(&mut self, limit: Duration) -> Vec<Packet> {
        let end = Instant::now() + limit;
        let mut packets = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.poll(left) {
                Ok(Some(packet)) => packets.push(packet),
                Ok(None) => panic!("still open after {limit:?}; got {packets:02x?}"),
                Err(()) => return packets,
            }
        }
    }

    /// PINGREQ, PINGRESP; false when the socket is closed or anything else fails.
    pub fn is_alive(&mut self) -> bool {
        self.send(&[0xC0, 0]);
        loop {
            match self.poll(PATIENCE) {
                Ok(Some(packet)) if packet.kind() == 13 => return true,
                Ok(Some(_)) => {}
                _ => return false,
            }
        }
    }

    /// The next PUBLISH; PUBACK and the like in between are an error.
    ///
    /// # Panics
    /// When something else comes.
    pub fn receive_publish(&mut self) -> Publish {
        let v5 = self.v5;
        self.receive().publish(v5)
    }

    /// Asserts that nothing comes for a while: a PINGREQ is answered first, so everything sent before it would have come.
    ///
    /// # Panics
    /// When a packet comes.
    pub fn expect_nothing(&mut self) {
        self.send(&[0xC0, 0]);
        let packet = self.receive();
        assert_eq!(packet.kind(), 13, "nothing but PINGRESP expected: {packet:02x?}");
    }

    /// A packet id that this client did not use lately.
    pub fn packet_id(&mut self) -> u16 {
        self.next_id = if self.next_id == u16::MAX { 1 } else { self.next_id + 1 };
        self.next_id
    }

    /// SUBSCRIBE with one filter and its options byte; returns the SUBACK's reason code. PUBLISH packets that overtake it stay queued.
    ///
    /// # Panics
    /// When no SUBACK comes.
    pub fn subscribe(&mut self, filter: &str, options: u8) -> u8 {
        self.subscribe_with(filter, options, &[])
    }

    /// The same with property bytes (MQTT 5).
    ///
    /// # Panics
    /// When no SUBACK comes.
    pub fn subscribe_with(&mut self, filter: &str, options: u8, properties: &[u8]) -> u8 {
        let id = self.packet_id();
        let mut body = id.to_be_bytes().to_vec();
        if self.v5 {
            wire::varint(properties.len(), &mut body);
            body.extend_from_slice(properties);
        }
        wire::string(filter, &mut body);
        body.push(options);
        self.send(&wire::packet(0x82, &body));
        let suback = self.receive_kind(9);
        assert_eq!(suback.packet_id(), id);
        *suback.body.last().expect("a reason code")
    }

    /// UNSUBSCRIBE with one filter; returns the reason (0 on 3.1.1).
    ///
    /// # Panics
    /// When no UNSUBACK comes.
    pub fn unsubscribe(&mut self, filter: &str) -> u8 {
        let id = self.packet_id();
        let mut body = id.to_be_bytes().to_vec();
        if self.v5 {
            body.push(0);
        }
        wire::string(filter, &mut body);
        self.send(&wire::packet(0xA2, &body));
        let unsuback = self.receive_kind(11);
        assert_eq!(unsuback.packet_id(), id);
        if self.v5 { *unsuback.body.last().expect("a reason code") } else { 0 }
    }

    /// Waits for a packet of this type; others that come first are kept in order behind it.
    ///
    /// # Panics
    /// When it does not come.
    pub fn receive_kind(&mut self, kind: u8) -> Packet {
        self.try_receive_kind(kind, PATIENCE).unwrap_or_else(|| panic!("no packet of type {kind}"))
    }

    /// The same; `None` when it does not come within `limit` or the socket closes.
    pub fn try_receive_kind(&mut self, kind: u8, limit: Duration) -> Option<Packet> {
        let end = Instant::now() + limit;
        let mut others = Vec::new();
        loop {
            let packet = self.poll(end.saturating_duration_since(Instant::now()));
            if let Ok(Some(packet)) = packet {
                if packet.kind() != kind {
                    others.push(packet);
                    continue;
                }
                let mut rest: Vec<u8> = others.iter().flat_map(Packet::bytes).collect();
                rest.append(&mut self.buffer);
                self.buffer = rest;
                return Some(packet);
            }
            let mut rest: Vec<u8> = others.iter().flat_map(Packet::bytes).collect();
            rest.append(&mut self.buffer);
            self.buffer = rest;
            return None;
        }
    }

    /// A PUBLISH packet.
    #[must_use]
    pub fn publish_bytes(
        &self,
        topic: &str,
        payload: &[u8],
        flags: u8,
        packet_id: u16,
        properties: &[u8],
    ) -> Vec<u8> {
        let mut body = Vec::new();
        wire::string(topic, &mut body);
        if (flags >> 1) & 3 > 0 {
            body.extend_from_slice(&packet_id.to_be_bytes());
        }
        if self.v5 {
            wire::varint(properties.len(), &mut body);
            body.extend_from_slice(properties);
        }
        body.extend_from_slice(payload);
        wire::packet(0x30 | flags, &body)
    }

    /// Publishes and completes the exchange; returns the reason of the first acknowledgement (0 for QoS 0).
    ///
    /// # Panics
    /// When an acknowledgement is missing.
    pub fn publish(&mut self, topic: &str, payload: impl AsRef<[u8]>, qos: u8, retain: bool) -> u8 {
        let id = if qos > 0 { self.packet_id() } else { 0 };
        let bytes = self.publish_bytes(topic, payload.as_ref(), qos << 1 | u8::from(retain), id, &[]);
        self.send(&bytes);
        match qos {
            0 => 0,
            1 => {
                let ack = self.receive_kind(4);
                assert_eq!(ack.packet_id(), id);
                ack.reason()
            }
            _ => {
                let rec = self.receive_kind(5);
                assert_eq!(rec.packet_id(), id);
                if rec.reason() < 0x80 {
                    self.ack(6, id);
                    assert_eq!(self.receive_kind(7).packet_id(), id);
                }
                rec.reason()
            }
        }
    }

    /// Sends PUBACK (4), PUBREC (5), PUBREL (6) or PUBCOMP (7) in its short form.
    pub fn ack(&mut self, kind: u8, packet_id: u16) {
        let flags = if kind == 6 { 2 } else { 0 };
        let id = packet_id.to_be_bytes();
        self.send(&[kind << 4 | flags, 2, id[0], id[1]]);
    }

    /// Receives one PUBLISH and completes its exchange.
    ///
    /// # Panics
    /// When something else comes.
    pub fn take_message(&mut self) -> Publish {
        let publish = self.receive_publish();
        self.settle(&publish);
        publish
    }

    /// Completes the exchange of a received PUBLISH.
    ///
    /// # Panics
    /// When PUBREL does not come.
    pub fn settle(&mut self, publish: &Publish) {
        match publish.qos {
            1 => self.ack(4, publish.packet_id),
            2 => {
                self.ack(5, publish.packet_id);
                assert_eq!(self.receive_kind(6).packet_id(), publish.packet_id);
                self.ack(7, publish.packet_id);
            }
            _ => {}
        }
    }

    /// DISCONNECT with reason 0 and close.
    pub fn disconnect(mut self) {
        self.send(&[0xE0, 0]);
        self.until_closed(PATIENCE);
    }

    /// Closes with a reset (RST), as a crashed client does.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.stream);
        let _ = socket.set_linger(Some(Duration::ZERO));
    }

    fn take(&mut self) -> Option<Packet> {
        let (len, used) = read_header(&self.buffer)?;
        if self.buffer.len() < 1 + used + len {
            return None;
        }
        let packet = Packet { first: self.buffer[0], body: self.buffer[1 + used..1 + used + len].to_vec() };
        self.buffer.drain(..1 + used + len);
        Some(packet)
    }
}

fn read_header(buffer: &[u8]) -> Option<(usize, usize)> {
    wire::read_varint(buffer.get(1..)?)
}
