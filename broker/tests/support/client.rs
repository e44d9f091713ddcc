//! A small MQTT 5 client on bytes: enough to see what the broker does, and nothing more.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PATIENCE: Duration = Duration::from_secs(10);

pub struct Client {
    stream: TcpStream,
    next_id: u16,
    /// PUBLISH packets that came while something else was awaited.
    messages: Vec<(String, Vec<u8>)>,
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn packet(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![kind];
    let mut left = body.len();
    loop {
        let byte = u8::try_from(left % 128).unwrap();
        left /= 128;
        out.push(if left > 0 { byte | 0x80 } else { byte });
        if left == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    out
}

impl Client {
    pub async fn dial(address: SocketAddr) -> Self {
        Self { stream: TcpStream::connect(address).await.unwrap(), next_id: 1, messages: Vec::new() }
    }

    /// CONNECT with clean start 0; Session Present.
    pub async fn connect(&mut self, client_id: &str, expiry_sec: u32) -> bool {
        self.send_connect(client_id, expiry_sec).await;
        let (kind, body) = self.packet().await.expect("CONNACK");
        assert_eq!((kind, body[1]), (0x20, 0), "CONNECT is accepted");
        body[0] & 1 == 1
    }

    /// CONNECT with a Will without delay, QoS 1; Session Present.
    pub async fn connect_with_will(&mut self, client_id: &str, topic: &str, payload: &[u8]) -> bool {
        let mut body = Vec::new();
        string(&mut body, "MQTT");
        body.extend_from_slice(&[5, 0x0C, 0, 60, 5, 0x11]);
        body.extend_from_slice(&300_u32.to_be_bytes());
        string(&mut body, client_id);
        body.push(0);
        string(&mut body, topic);
        body.extend_from_slice(&u16::try_from(payload.len()).unwrap().to_be_bytes());
        body.extend_from_slice(payload);
        self.send(&packet(0x10, &body)).await;
        let (kind, body) = self.packet().await.expect("CONNACK");
        assert_eq!((kind, body[1]), (0x20, 0), "CONNECT is accepted");
        body[0] & 1 == 1
    }

    /// Whether CONNECT is accepted.
    pub async fn try_connect(&mut self, client_id: &str, expiry_sec: u32) -> bool {
        self.send_connect(client_id, expiry_sec).await;
        matches!(self.packet().await, Some((0x20, body)) if body[1] == 0)
    }

    async fn send_connect(&mut self, client_id: &str, expiry_sec: u32) {
        let mut body = Vec::new();
        string(&mut body, "MQTT");
        body.extend_from_slice(&[5, 0, 0, 60, 5, 0x11]);
        body.extend_from_slice(&expiry_sec.to_be_bytes());
        string(&mut body, client_id);
        self.send(&packet(0x10, &body)).await;
    }

    async fn send(&mut self, bytes: &[u8]) {
        // A peer that closed shows when it is read.
        let _ = self.stream.write_all(bytes).await;
    }

    fn id(&mut self) -> [u8; 2] {
        self.next_id += 1;
        self.next_id.to_be_bytes()
    }

    pub async fn subscribe(&mut self, filter: &str, qos: u8) {
        let mut body = self.id().to_vec();
        body.push(0);
        string(&mut body, filter);
        body.push(qos);
        self.send(&packet(0x82, &body)).await;
        self.expect(0x90).await;
    }

    /// Returns after PUBACK.
    pub async fn publish(&mut self, topic: &str, payload: &[u8], qos: u8) {
        assert_eq!(qos, 1, "this client publishes with QoS 1");
        let mut body = Vec::new();
        string(&mut body, topic);
        body.extend_from_slice(&self.id());
        body.push(0);
        body.extend_from_slice(payload);
        self.send(&packet(0x32, &body)).await;
        self.expect(0x40).await;
    }

    /// The next message; acknowledges it.
    pub async fn message(&mut self) -> (String, Vec<u8>) {
        loop {
            if !self.messages.is_empty() {
                return self.messages.remove(0);
            }
            let (kind, body) = self.packet().await.expect("a PUBLISH before the end of the stream");
            self.take(kind, &body).await;
        }
    }

    async fn expect(&mut self, wanted: u8) -> Vec<u8> {
        loop {
            let (kind, body) = self.packet().await.expect("an answer before the end of the stream");
            if kind == wanted {
                return body;
            }
            self.take(kind, &body).await;
        }
    }

    async fn take(&mut self, kind: u8, body: &[u8]) {
        if kind & 0xF0 != 0x30 {
            return;
        }
        let topic_end = 2 + usize::from(u16::from_be_bytes([body[0], body[1]]));
        let topic = String::from_utf8(body[2..topic_end].to_vec()).unwrap();
        let mut at = topic_end;
        if kind & 0x06 != 0 {
            let id = [body[at], body[at + 1]];
            at += 2;
            self.send(&[0x40, 2, id[0], id[1]]).await;
        }
        at += 1 + usize::from(body[at]);
        self.messages.push((topic, body[at..].to_vec()));
    }

    async fn packet(&mut self) -> Option<(u8, Vec<u8>)> {
        tokio::time::timeout(PATIENCE, self.read_packet()).await.expect("an answer or the end in time")
    }

    async fn read_packet(&mut self) -> Option<(u8, Vec<u8>)> {
        let kind = self.stream.read_u8().await.ok()?;
        let (mut len, mut shift) = (0_usize, 0);
        loop {
            let byte = self.stream.read_u8().await.ok()?;
            len |= usize::from(byte & 0x7F) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
        let mut body = vec![0; len];
        self.stream.read_exact(&mut body).await.ok()?;
        Some((kind, body))
    }

    pub async fn is_closed(&mut self) -> bool {
        self.is_closed_within(PATIENCE).await
    }

    /// Whether the broker closes the socket within `wait`.
    pub async fn is_closed_within(&mut self, wait: Duration) -> bool {
        let read_all = async { while self.read_packet().await.is_some() {} };
        tokio::time::timeout(wait, read_all).await.is_ok()
    }

    /// Reads to the end; reason of the DISCONNECT before it.
    pub async fn last_disconnect_reason(&mut self) -> Option<u8> {
        let mut reason = None;
        while let Some((kind, body)) = self.packet().await {
            if kind == 0xE0 {
                reason = Some(body.first().copied().unwrap_or(0));
            }
        }
        reason
    }
}
