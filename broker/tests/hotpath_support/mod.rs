//! A node in this process and a client that pipelines: it sends packets without waiting and looks at everything that comes.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails the test")]
#![allow(unreachable_pub, dead_code, reason = "each suite uses a part")]

use std::path::Path;
use std::time::Duration;

use broker::config::{Config, Sources};
use broker::node::Node;
use gateway::codec::{self, Packet, Publish, Version};
use gateway::link::LinkId;
use session::id::Key;
use session::lifecycle::SubscriptionOptions;
use session::message::QoS;
use session::topic::TopicFilter;
use storage::GroupId;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(30);

/// Starts a node with two workers and these settings on top.
pub async fn start(data_dir: &Path, settings: &[(&str, &str)]) -> Node {
    let mut flags = vec![
        ("node.data_dir", data_dir.to_str().unwrap()),
        ("listener.mqtt.address", "127.0.0.1:0"),
        ("admin.address", "off"),
        ("node.workers", "2"),
    ];
    flags.extend_from_slice(settings);
    let flags = flags.iter().map(|(key, value)| ("--set".into(), (*key).into(), (*value).into())).collect();
    let config = Config::load(&Sources { file: None, environment: Vec::new(), flags }).unwrap().config;
    Node::start(&config).await.unwrap()
}

/// A member of a share as the routing knows it while its end is not noticed: at a place of this worker where no connection is, or with an
/// inbox (group, lifetime) that is not there.
pub fn gone_member(node: &Node, worker: u16, inbox: Option<(u16, u64)>, filter: &str) {
    gone_member_at(node, LinkId { worker, slot: 9_999, serial: 1 }, inbox, filter);
}

/// The same at this place.
pub fn gone_member_at(node: &Node, link: LinkId, inbox: Option<(u16, u64)>, filter: &str) {
    let router = &node.shared().router;
    let client_id = format!("gone {link:?} {inbox:?}").into();
    let key = Key { namespace: "main".into(), client_id };
    let member = router.open(&key, None, inbox.map(|(group, lifetime)| (GroupId(group), lifetime)));
    router.attach(&member, link);
    let qos = QoS::ExactlyOnce;
    let options = SubscriptionOptions { qos, no_local: false, retain_as_published: false, identifier: 0 };
    router.subscribe(&member, &[(TopicFilter::parse(filter).unwrap(), options)]);
}

/// What a client is sent, as far as these tests look at it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Publish {
        topic: String,
        payload: String,
        qos: u8,
        dup: bool,
        retain: bool,
        packet_id: u16,
    },
    /// First byte of the packet, packet id, reason code.
    Ack(u8, u16, u8),
    /// SUBACK or UNSUBACK with the first reason code.
    Granted(u8),
    Disconnect(u8),
}

pub struct Client {
    stream: TcpStream,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl Client {
    /// Connects with clean start 0; whether there was a session.
    pub async fn connect(
        node: &Node,
        client_id: &str,
        expiry_sec: u32,
        receive_maximum: u16,
    ) -> (Self, bool) {
        let stream = TcpStream::connect(node.address("mqtt").unwrap()).await.unwrap();
        let mut client = Self { stream, buffer: Vec::new(), out: Vec::new() };
        let mut body = Vec::new();
        string(&mut body, "MQTT");
        body.extend_from_slice(&[5, 0, 0, 0, 8, 0x11]);
        body.extend_from_slice(&expiry_sec.to_be_bytes());
        body.push(0x21);
        body.extend_from_slice(&receive_maximum.to_be_bytes());
        string(&mut body, client_id);
        client.raw(0x10, &body);
        client.flush().await;
        let (kind, body) = client.frame().await.expect("a CONNACK");
        assert_eq!((kind, body[1]), (0x20, 0), "CONNECT is accepted");
        (client, body[0] == 1)
    }

    /// Connects as a 3.1.1 client with a clean session.
    pub async fn connect_v3(node: &Node, client_id: &str) -> Self {
        let stream = TcpStream::connect(node.address("mqtt").unwrap()).await.unwrap();
        let mut client = Self { stream, buffer: Vec::new(), out: Vec::new() };
        let mut body = Vec::new();
        string(&mut body, "MQTT");
        body.extend_from_slice(&[4, 2, 0, 0]);
        string(&mut body, client_id);
        client.raw(0x10, &body);
        client.flush().await;
        assert_eq!(client.frame().await, Some((0x20, vec![0, 0])), "CONNECT is accepted");
        client
    }

    /// Queues a packet; `flush` sends it.
    pub fn raw(&mut self, first: u8, body: &[u8]) {
        self.out.push(first);
        let mut len = body.len();
        while len > 127 {
            self.out.push((len % 128) as u8 | 0x80);
            len /= 128;
        }
        self.out.push(len as u8);
        self.out.extend_from_slice(body);
    }

    pub fn publish(&mut self, topic: &str, payload: &str, qos: u8, retain: bool, packet_id: u16) {
        let publish = Publish {
            dup: false,
            qos: QoS::from_u8(qos).unwrap(),
            retain,
            topic,
            packet_id,
            topic_alias: None,
            message_expiry_sec: None,
            properties: &[],
            properties_forwardable: true,
            payload: payload.as_bytes(),
        };
        codec::write(Version::V5, &Packet::Publish(publish), &mut self.out).unwrap();
    }

    pub fn ack(&mut self, first: u8, packet_id: u16) {
        self.raw(first, &packet_id.to_be_bytes());
    }

    pub async fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.stream.write_all(&out).await.unwrap();
    }

    /// Subscribes and waits for SUBACK; its reason code.
    pub async fn subscribe(&mut self, filter: &str, options: u8) -> u8 {
        let mut body = vec![0, 9, 0];
        string(&mut body, filter);
        body.push(options);
        self.raw(0x82, &body);
        self.flush().await;
        match self.next().await {
            Some(Got::Granted(reason)) => reason,
            other => panic!("SUBACK expected, got {other:?}"),
        }
    }

    /// The next packet; `None`: the broker closed.
    pub async fn next(&mut self) -> Option<Got> {
        let (first, body) = self.frame().await?;
        Some(match first >> 4 {
            3 => publish_of(first, &body),
            4..=7 => {
                Got::Ack(first, u16::from_be_bytes([body[0], body[1]]), body.get(2).copied().unwrap_or(0))
            }
            9 | 11 => Got::Granted(body[3]),
            14 => Got::Disconnect(body.first().copied().unwrap_or(0)),
            _ => panic!("packet {first:#x} was not expected"),
        })
    }

    /// The next PUBLISH; nothing else may come before it.
    pub async fn message(&mut self) -> Got {
        let got = self.next().await.expect("a PUBLISH before the end of the stream");
        assert!(matches!(got, Got::Publish { .. }), "a PUBLISH, not {got:?}");
        got
    }

    /// Whether nothing comes before the answer to a PINGREQ.
    pub async fn is_quiet(&mut self) -> bool {
        self.raw(0xC0, &[]);
        self.flush().await;
        matches!(self.frame().await, Some((0xD0, _)))
    }

    async fn frame(&mut self) -> Option<(u8, Vec<u8>)> {
        tokio::time::timeout(PATIENCE, self.read_frame()).await.expect("a packet, or the end, in time")
    }

    async fn read_frame(&mut self) -> Option<(u8, Vec<u8>)> {
        loop {
            if let Some((len, header)) = complete(&self.buffer) {
                let frame: Vec<u8> = self.buffer.drain(..len).collect();
                return Some((frame[0], frame[header..].to_vec()));
            }
            if self.stream.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }
}

/// Length of the packet at the start of `buffer` and of its fixed header.
fn complete(buffer: &[u8]) -> Option<(usize, usize)> {
    let (mut len, mut header) = (0_usize, 1);
    loop {
        let byte = *buffer.get(header)?;
        len |= usize::from(byte & 0x7F) << (7 * (header - 1));
        header += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    (buffer.len() >= header + len).then_some((header + len, header))
}

fn publish_of(first: u8, body: &[u8]) -> Got {
    let mut at = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
    let topic = String::from_utf8(body[2..at].to_vec()).unwrap();
    let qos = (first >> 1) & 3;
    let mut packet_id = 0;
    if qos > 0 {
        packet_id = u16::from_be_bytes([body[at], body[at + 1]]);
        at += 2;
    }
    at += 1 + usize::from(body[at]);
    let payload = String::from_utf8(body[at..].to_vec()).unwrap();
    Got::Publish { topic, payload, qos, dup: first & 8 != 0, retain: first & 1 != 0, packet_id }
}

/// Payload of a PUBLISH.
pub fn payload(got: &Got) -> &str {
    match got {
        Got::Publish { payload, .. } => payload,
        other => panic!("a PUBLISH, not {other:?}"),
    }
}
