//! One connection of a load client that notes everything.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use crate::client::{Client, Options};
use crate::history::{Message, Micros, Recorder, What};

use super::Field;

/// Who connects.
#[derive(Debug, Clone)]
pub struct Who {
    pub session: u32,
    pub options: Options,
    /// Number of the user in the history.
    pub user: u8,
    /// Stream of its Wills: it carries one, named after the connection.
    pub will: Option<u32>,
}

/// A connection.
#[derive(Debug)]
pub struct Link {
    pub client: Client,
    pub node: u8,
    pub connection: u32,
    /// Session Present.
    pub present: bool,
    recorder: Recorder,
    session: u32,
    /// Times of PINGREQs without an answer.
    pings: VecDeque<Micros>,
    /// PUBLISH and PUBREC that wait for their answer, by packet id.
    sent: HashMap<u16, (Message, Micros)>,
    received: HashMap<u16, (Message, Micros)>,
    open: bool,
}

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A PUBLISH of the load.
    Message { message: Message, qos: u8, packet_id: u16 },
    /// PUBACK or PUBREC, with its reason.
    Acknowledged { packet_id: u16, reason: u8 },
    /// PUBCOMP.
    Completed { packet_id: u16 },
    /// DISCONNECT with its reason.
    Told { reason: u8 },
    /// PUBREL, which was answered, PINGRESP and the like.
    Other,
}

impl Link {
    /// Connects to node `node` (1, 2, …) and notes how it went.
    ///
    /// # Errors
    /// It was refused with this reason, or (`None`) had no answer.
    pub fn connect(field: &Field, who: &Who, node: u8) -> Result<Self, Option<u8>> {
        let recorder = &field.recorder;
        let connection = recorder.connection();
        let note = |what| recorder.note(who.session, connection, what);
        let mut options = who.options.clone();
        if let Some(stream) = who.will {
            let topic = recorder.topic(stream);
            options = options.will(&topic, &format!("{stream}:{connection}"), 1, false, 0);
        }
        note(What::Connect { node, user: who.user, will: who.will.is_some() });
        let closed = |by_client| {
            note(What::Closed { by_client });
            None
        };
        let address = field.nodes[usize::from(node) - 1];
        let opened = Client::try_open(address, options.v5, field.patience.min(Duration::from_secs(2)));
        let mut client = opened.map_err(|_| closed(true))?;
        client.send(&options.bytes());
        let connack = match client.poll(field.patience) {
            Ok(Some(packet)) if packet.kind() == 2 => packet,
            Ok(_) => return Err(closed(true)),
            Err(()) => return Err(closed(false)),
        };
        if connack.reason() != 0 {
            note(What::Refused { reason: connack.reason() });
            return Err(Some(connack.reason()));
        }
        let present = connack.body[0] & 1 != 0;
        note(What::Connected { present });
        Ok(Self {
            client,
            node,
            connection,
            present,
            recorder: recorder.clone(),
            session: who.session,
            pings: VecDeque::new(),
            sent: HashMap::new(),
            received: HashMap::new(),
            open: true,
        })
    }

    /// The next packet within `limit`.
    ///
    /// # Errors
    /// The socket is closed.
    #[allow(clippy::result_unit_err)]
    pub fn poll(&mut self, limit: Duration) -> Result<Option<Seen>, ()> {
        let packet = match self.client.poll(limit) {
            Ok(Some(packet)) => packet,
            Ok(None) => return Ok(None),
            Err(()) => {
                self.closed(false);
                return Err(());
            }
        };
        Ok(Some(match packet.kind() {
            3 => {
                let publish = packet.publish(self.client.v5);
                let (qos, packet_id, dup) = (publish.qos, publish.packet_id, publish.dup);
                match Message::parse(&publish.payload) {
                    Some(message) => {
                        self.note(What::Deliver { message, qos, packet_id, dup });
                        Seen::Message { message, qos, packet_id }
                    }
                    None => Seen::Other,
                }
            }
            kind @ (4 | 5) => {
                let (packet_id, reason) = (packet.packet_id(), packet.reason());
                let asked = self.sent.remove(&packet_id);
                if let Some((message, asked)) = asked.filter(|_| reason < 0x80) {
                    self.note(What::Acknowledged { message, asked });
                }
                if kind == 5 && reason < 0x80 {
                    self.client.ack(6, packet_id);
                }
                Seen::Acknowledged { packet_id, reason }
            }
            6 => {
                let packet_id = packet.packet_id();
                if let Some((message, asked)) = self.received.remove(&packet_id) {
                    self.note(What::Released { message, asked });
                }
                self.client.ack(7, packet_id);
                Seen::Other
            }
            7 => Seen::Completed { packet_id: packet.packet_id() },
            13 => {
                if let Some(asked) = self.pings.pop_front() {
                    self.note(What::Pong { asked });
                }
                Seen::Other
            }
            14 => Seen::Told { reason: packet.reason() },
            _ => Seen::Other,
        }))
    }

    /// SUBSCRIBE to the topics of these streams; true when each SUBACK came.
    pub fn subscribe(&mut self, streams: &[u32], qos: u8, patience: Duration) -> bool {
        for stream in streams {
            let topic = self.recorder.topic(*stream);
            let asked = self.recorder.now();
            let id = self.client.packet_id();
            let mut body = id.to_be_bytes().to_vec();
            if self.client.v5 {
                body.push(0);
            }
            crate::wire::string(&topic, &mut body);
            body.push(qos);
            self.client.send(&crate::wire::packet(0x82, &body));
            // What is delivered meanwhile stays queued in the client.
            match self.client.try_receive_kind(9, patience) {
                Some(suback) if suback.body.last().is_some_and(|reason| *reason < 0x80) => {
                    self.note(What::Subscribed { stream: *stream, asked });
                }
                _ => return false,
            }
        }
        true
    }

    /// PUBLISH.
    pub fn publish(&mut self, message: Message, flags: u8, packet_id: u16, topic: &str, payload: &[u8]) {
        let bytes = self.client.publish_bytes(topic, payload, flags, packet_id, &[]);
        let asked = self.note(What::Publish { message, dup: flags & 8 != 0 });
        self.sent.insert(packet_id, (message, asked));
        self.client.send(&bytes);
    }

    /// PUBACK or PUBREC for a message.
    pub fn acknowledge(&mut self, message: Message, qos: u8, packet_id: u16) {
        if qos == 0 {
            return;
        }
        let asked = self.note(What::Ack { message });
        if qos == 2 {
            self.received.insert(packet_id, (message, asked));
        }
        self.client.ack(3 + qos, packet_id);
    }

    /// PINGREQ.
    pub fn ping(&mut self) {
        self.pings.push_back(self.recorder.now());
        self.client.send(&[0xC0, 0]);
    }

    /// Asks the connection to act, though another has taken over, and reads until it is closed. False when it is still open after `limit`.
    pub fn probe(mut self, limit: Duration) -> bool {
        self.ping();
        let end = std::time::Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(std::time::Instant::now());
            match self.poll(left) {
                Ok(Some(Seen::Message { message, qos, packet_id })) => {
                    self.acknowledge(message, qos, packet_id)
                }
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(()) => return true,
            }
        }
    }

    /// DISCONNECT with reason 0; true when the broker closed upon it.
    pub fn disconnect(mut self, limit: Duration) -> bool {
        self.note(What::Disconnect);
        self.client.send(&[0xE0, 0]);
        let end = std::time::Instant::now() + limit;
        loop {
            match self.poll(end.saturating_duration_since(std::time::Instant::now())) {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(()) => return true,
            }
        }
    }

    /// DISCONNECT that ends the session with the connection.
    pub fn leave(mut self) {
        self.note(What::Disconnect);
        self.client.send(&[0xE0, 7, 0, 5, 0x11, 0, 0, 0, 0]);
        let _ = self.client.poll(Duration::from_millis(500));
    }

    /// Closes with a reset, as a client that crashed.
    pub fn reset(self) {
        let socket = socket2::SockRef::from(&self.client.stream);
        let _ = socket.set_linger(Some(Duration::ZERO));
    }

    fn closed(&mut self, by_client: bool) {
        if std::mem::replace(&mut self.open, false) {
            self.note(What::Closed { by_client });
        }
    }

    fn note(&self, what: What) -> Micros {
        self.recorder.note(self.session, self.connection, what)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // Noted before the socket is closed.
        self.closed(true);
    }
}
