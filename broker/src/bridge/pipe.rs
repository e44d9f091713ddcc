//! The bytes of a connection to one of the two brokers, and the greeting on it.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use gateway::codec::{self, ConnAck, Connect, Frame, Login, Packet, ReasonCode, Version};
use session::message::QoS;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};

use super::relay::Capacity;

/// Bytes read at once.
const READ_BYTES: usize = 32 << 10;
/// Bytes of the largest answer to a CONNECT.
const CONNACK_BYTES_MAX: usize = 64 << 10;
/// Set in the protocol level by bridges of mosquitto: no echo of what they publish, RETAIN as published, which MQTT 3.1.1 cannot ask for.
const BRIDGE: u8 = 0x80;

/// Anything that bytes can be exchanged over.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// One connection.
pub(super) struct Pipe {
    stream: Box<dyn Stream>,
    inbuf: Vec<u8>,
    /// Bytes at the start of `inbuf` that are used up.
    used: usize,
    /// The layer below may hold bytes back.
    unflushed: bool,
    pub(super) heard_at: Instant,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum GreetError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it closed the connection without an answer to CONNECT")]
    Closed,
    #[error("its answer to CONNECT is none: {0}")]
    Malformed(String),
    #[error("it refused the CONNECT: {reason:?}{}", text.as_deref().map(|text| format!(" ({text})")).unwrap_or_default())]
    Refused { reason: ReasonCode, text: Option<String> },
}

/// What a CONNECT says, beside what is always so.
#[derive(Debug, Clone)]
pub(super) struct Greeting<'a> {
    pub(super) version: Version,
    pub(super) client_id: &'a str,
    pub(super) user_name: Option<&'a str>,
    pub(super) password: Option<&'a [u8]>,
    pub(super) clean_start: bool,
    pub(super) session_expiry_sec: u32,
    pub(super) keep_alive_sec: u16,
    pub(super) receive_maximum: u16,
    pub(super) maximum_packet_size: u32,
    /// mosquitto's bridge protocol, with MQTT 3.1.1.
    pub(super) bridge_bit: bool,
}

/// What the answer said.
#[derive(Debug, Clone, Copy)]
pub(super) struct Greeted {
    pub(super) capacity: Capacity,
    pub(super) session_present: bool,
    pub(super) keep_alive_sec: u16,
}

impl Pipe {
    pub(super) fn new(stream: impl Stream + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            inbuf: Vec::new(),
            used: 0,
            unflushed: false,
            heard_at: Instant::now(),
        }
    }

    /// CONNECT and its answer.
    pub(super) async fn greet(&mut self, greeting: &Greeting<'_>) -> Result<Greeted, GreetError> {
        let mut bytes = Vec::new();
        let mut connect = Connect::new(greeting.version, greeting.client_id, greeting.clean_start);
        connect.keep_alive_sec = greeting.keep_alive_sec;
        connect.login = Login { user_name: greeting.user_name, password: greeting.password };
        if greeting.version == Version::V5 {
            connect.session_expiry_sec = greeting.session_expiry_sec;
            connect.receive_maximum = greeting.receive_maximum;
            connect.maximum_packet_size = greeting.maximum_packet_size;
        }
        codec::write(greeting.version, &Packet::Connect(Box::new(connect)), &mut bytes)
            .map_err(|error| GreetError::Malformed(error.to_string()))?;
        if greeting.bridge_bit {
            set_bridge_bit(&mut bytes);
        }
        self.send_now(&bytes).await?;
        loop {
            let rest = &self.inbuf[self.used..];
            let frame = codec::frame(greeting.version, rest, CONNACK_BYTES_MAX)
                .map_err(|error| GreetError::Malformed(error.to_string()))?;
            if let Some(frame) = frame {
                let len = frame.len;
                let greeted = answer(greeting, frame)?;
                self.used += len;
                return Ok(greeted);
            }
            if self.stream.read_buf(&mut self.inbuf).await? == 0 {
                return Err(GreetError::Closed);
            }
        }
    }

    /// Writes packets that are encoded already.
    pub(super) async fn send_now(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    /// Reads what is there; 0: nothing more will come.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        self.inbuf.drain(..self.used);
        self.used = 0;
        let old = self.inbuf.len();
        self.inbuf.resize(old + READ_BYTES, 0);
        let mut buffer = ReadBuf::new(&mut self.inbuf[old..]);
        let read = Pin::new(&mut self.stream).poll_read(cx, &mut buffer);
        let count = buffer.filled().len();
        self.inbuf.truncate(old + count);
        ready!(read)?;
        self.heard_at = Instant::now();
        Poll::Ready(Ok(count))
    }

    /// The next packet that is there, and what it is to be used up with.
    pub(super) fn frame(&self, version: Version, size_max: usize) -> Result<Option<Frame<'_>>, codec::Error> {
        codec::frame(version, &self.inbuf[self.used..], size_max)
    }

    pub(super) fn consume(&mut self, len: usize) {
        self.used += len;
    }

    /// Writes some of `bytes`, and what the layer below held back when there are none. Ready(0): all is out.
    pub(super) fn poll_send(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !bytes.is_empty() {
            let count = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes))?;
            self.unflushed = true;
            return Poll::Ready(if count == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(count) });
        }
        if self.unflushed {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(0))
    }

    /// Says good-bye: the session stays as it was asked for.
    pub(super) async fn close(mut self, unsent: &[u8]) {
        // DISCONNECT with reason 0, in both versions.
        let bytes = [unsent, &[0xE0, 0]].concat();
        if self.stream.write_all(&bytes).await.is_ok() {
            // Whoever is not there to hear it will find out.
            let _ = self.stream.shutdown().await;
        }
    }
}

/// Behind the fixed header, the name and its length.
fn set_bridge_bit(connect: &mut [u8]) {
    let length_bytes = connect.iter().skip(1).take_while(|byte| **byte >= 0x80).count() + 1;
    if let Some(level) = connect.get_mut(1 + length_bytes + 6) {
        *level |= BRIDGE;
    }
}

fn answer(greeting: &Greeting<'_>, frame: Frame<'_>) -> Result<Greeted, GreetError> {
    let malformed = |what: String| GreetError::Malformed(what);
    let packet = codec::read(greeting.version, codec::From::Server, frame);
    let Packet::ConnAck(connack) = packet.map_err(|error| malformed(error.to_string()))? else {
        return Err(malformed(format!("{:?}", frame.packet_type)));
    };
    if connack.reason.is_error() {
        let text = connack.reason_string.map(str::to_owned);
        return Err(GreetError::Refused { reason: connack.reason, text });
    }
    Ok(Greeted {
        capacity: capacity(greeting.version, &connack),
        session_present: connack.session_present,
        keep_alive_sec: connack.server_keep_alive_sec.unwrap_or(greeting.keep_alive_sec),
    })
}

fn capacity(version: Version, connack: &ConnAck<'_>) -> Capacity {
    Capacity {
        version,
        receive_maximum: connack.receive_maximum,
        maximum_qos: connack.maximum_qos.and_then(QoS::from_u8).unwrap_or(QoS::ExactlyOnce),
        retain_available: connack.retain_available,
        packet_size_max: connack
            .maximum_packet_size
            .map_or(usize::MAX, |size| usize::try_from(size).unwrap_or(usize::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 5 §6: mosquitto's bridge protocol is level 0x84, whatever the length of the CONNECT; everything else stays.
    #[test]
    fn the_bridge_bit_is_set_in_the_level_alone() {
        for name in ["c", &"c".repeat(300)] {
            let mut plain = Vec::new();
            let connect = Connect::new(Version::V311, name, true);
            codec::write(Version::V311, &Packet::Connect(Box::new(connect)), &mut plain)
                .expect("well-formed");
            let mut marked = plain.clone();
            set_bridge_bit(&mut marked);
            let differ: Vec<_> = plain.iter().zip(&marked).filter(|(a, b)| a != b).collect();
            assert_eq!(differ, [(&4, &0x84)]);
        }
    }
}
