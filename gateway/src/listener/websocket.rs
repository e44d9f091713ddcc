//! MQTT over WebSocket (§6 of both versions): subprotocol `mqtt`, binary frames, packets may span or share them.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io::{self, Read, Write};
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, Bytes};
use tokio_tungstenite::tungstenite::error::ProtocolError;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response, ServerHandshake};
use tokio_tungstenite::tungstenite::http::{HeaderValue, StatusCode};
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};
use tokio_tungstenite::tungstenite::{Error, HandshakeError, Message, WebSocket};

use crate::connection::Limits;
use crate::driver::Raw;

/// The subprotocol ([MQTT-6.0.0-3], [MQTT-6.0.0-4]).
const SUBPROTOCOL: &str = "mqtt";
const PROTOCOL_HEADER: &str = "Sec-WebSocket-Protocol";
const PATHS: [&str; 2] = ["/mqtt", "/"];
/// Allocated for each connection.
const READ_BUFFER: usize = 4 * 1024;
/// Payload of one frame to the client.
const FRAME_OUT_MAX: usize = 16 * 1024;
/// What the library gathers before it writes, and the last wall above it: one frame and the answers to some pings.
const WRITE_BUFFER: usize = FRAME_OUT_MAX;
const WRITE_BUFFER_MAX: usize = 8 * FRAME_OUT_MAX;
/// Messages may carry more than one packet.
const MESSAGE_SLACK: usize = 64 * 1024;
/// Control frames handled before other connections get their turn.
const CONTROL_FRAMES_PER_TURN: u32 = 64;

/// A WebSocket whose binary messages are one byte stream.
pub(crate) struct WebSocketTransport {
    socket: WebSocket<NonBlocking>,
    /// What was not read yet of the last message.
    unread: Bytes,
    /// Nothing more can be read: after an error the library must not be asked again.
    ended: bool,
    /// An answer to a control frame waits for the client to read: until it does, nothing is read from it.
    answer_waits: bool,
}

/// The poll interface as the blocking one that tungstenite wants: pending is `WouldBlock`.
struct NonBlocking {
    raw: Raw,
    waker: Waker,
}

/// The stream of a handshake, which keeps what it is given: what failed is answered over the other handle.
#[derive(Clone)]
struct Handshaking(Rc<RefCell<NonBlocking>>);

/// Upgrades, or answers why not. The connect timeout of the listener bounds the wait.
pub(super) async fn accept(raw: Raw, limits: &Limits) -> io::Result<WebSocketTransport> {
    let message_max = limits.connect_packet_size_max as usize + MESSAGE_SLACK;
    let config = WebSocketConfig::default()
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .max_write_buffer_size(WRITE_BUFFER_MAX)
        .max_message_size(Some(message_max))
        .max_frame_size(Some(message_max));
    let stream = Handshaking(Rc::new(RefCell::new(NonBlocking { raw, waker: Waker::noop().clone() })));
    let mut handshake = Some(ServerHandshake::start(stream.clone(), check_request, Some(config)));
    let upgraded = poll_fn(|cx| {
        let Some(round) = handshake.take() else { return Poll::Ready(Err(Error::AlreadyClosed)) };
        stream.0.borrow_mut().waker.clone_from(cx.waker());
        match round.handshake() {
            // Nothing was read beyond the request, so nothing is in it but the stream.
            Ok(_) => Poll::Ready(Ok(())),
            Err(HandshakeError::Interrupted(round)) => {
                handshake = Some(round);
                Poll::Pending
            }
            Err(HandshakeError::Failure(error)) => Poll::Ready(Err(error)),
        }
    })
    .await;
    if let Err(error) = upgraded {
        if let Some(answer) = answer(&error) {
            stream.send(answer.as_bytes()).await?;
        }
        return Err(to_io(error));
    }
    let stream = Rc::into_inner(stream.0).ok_or(io::ErrorKind::Other)?.into_inner();
    let socket = WebSocket::from_raw_socket(stream, Role::Server, Some(config));
    Ok(WebSocketTransport { socket, unread: Bytes::new(), ended: false, answer_waits: false })
}

/// What a client is told whose request is no upgrade to WebSocket (RFC 6455 §4.2); `None`: nobody is there to be told, or was told.
fn answer(error: &Error) -> Option<String> {
    let Error::Protocol(error) = error else { return None };
    let (head, text) = match error {
        ProtocolError::WrongHttpMethod => {
            ("405 Method Not Allowed\r\nAllow: GET\r\nConnection: close", "only GET upgrades to WebSocket\n")
        }
        ProtocolError::MissingConnectionUpgradeHeader | ProtocolError::MissingUpgradeWebSocketHeader => (
            "426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade, close",
            "this is MQTT over WebSocket: ask for an upgrade\n",
        ),
        ProtocolError::MissingSecWebSocketVersionHeader => (
            "426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nConnection: Upgrade, close",
            "the version of WebSocket must be 13\n",
        ),
        ProtocolError::MissingSecWebSocketKey => {
            ("400 Bad Request\r\nConnection: close", "Sec-WebSocket-Key is missing\n")
        }
        _ => ("400 Bad Request\r\nConnection: close", "this is no request for an upgrade to WebSocket\n"),
    };
    let len = text.len();
    Some(format!("HTTP/1.1 {head}\r\nContent-Type: text/plain\r\nContent-Length: {len}\r\n\r\n{text}"))
}

/// Path and subprotocol; the answer names the subprotocol.
#[expect(clippy::result_large_err, reason = "the type of the error is the library's")]
fn check_request(request: &Request, mut response: Response) -> Result<Response, ErrorResponse> {
    if !PATHS.contains(&request.uri().path()) {
        return Err(refusal(StatusCode::NOT_FOUND, "MQTT is at /mqtt\n"));
    }
    let offers = request.headers().get_all(PROTOCOL_HEADER);
    let offered = offers.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
    if !offered.map(str::trim).any(|name| name == SUBPROTOCOL) {
        return Err(refusal(StatusCode::BAD_REQUEST, "the subprotocol must be mqtt\n"));
    }
    response.headers_mut().insert(PROTOCOL_HEADER, HeaderValue::from_static(SUBPROTOCOL));
    Ok(response)
}

fn refusal(status: StatusCode, why: &str) -> ErrorResponse {
    let mut response = ErrorResponse::new(Some(why.to_owned()));
    *response.status_mut() = status;
    response
}

impl WebSocketTransport {
    pub(crate) fn raw(&self) -> &Raw {
        &self.socket.get_ref().raw
    }

    pub(crate) fn raw_mut(&mut self) -> &mut Raw {
        &mut self.socket.get_mut().raw
    }

    /// CONNECT was accepted: messages may be as large as packets.
    pub(crate) fn set_packet_size_max(&mut self, packet_size_max: u32) {
        let message_max = Some(packet_size_max as usize + MESSAGE_SLACK);
        self.socket.set_config(|config| {
            config.max_message_size = message_max;
            config.max_frame_size = message_max;
        });
    }

    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        self.socket.get_mut().waker.clone_from(cx.waker());
        for _ in 0..CONTROL_FRAMES_PER_TURN {
            if !self.unread.is_empty() {
                let n = self.unread.len().min(into.len());
                self.unread.copy_to_slice(&mut into[..n]);
                if self.unread.is_empty() {
                    self.unread = Bytes::new();
                }
                return Poll::Ready(Ok(n));
            }
            if self.ended {
                return Poll::Ready(Ok(0));
            }
            if self.answer_waits {
                ready!(self.poll_flush(cx))?;
                self.answer_waits = false;
            }
            match self.socket.read() {
                Ok(Message::Binary(message)) => self.unread = message,
                // [MQTT-6.0.0-1]
                Ok(Message::Text(_)) => {
                    self.ended = true;
                    return Poll::Ready(Err(io::ErrorKind::InvalidData.into()));
                }
                Ok(Message::Ping(_)) => self.answer_waits = true,
                Ok(Message::Pong(_) | Message::Frame(_)) => {}
                Ok(Message::Close(_)) | Err(Error::ConnectionClosed | Error::AlreadyClosed) => {
                    self.ended = true
                }
                Err(error) => {
                    let outcome = or_pending(error);
                    self.ended = outcome.is_ready();
                    return outcome;
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        // One frame at a time below, so that its buffer stays small.
        ready!(self.poll_flush(cx))?;
        let frame = &bytes[..bytes.len().min(FRAME_OUT_MAX)];
        match self.socket.write(Message::Binary(Bytes::copy_from_slice(frame))) {
            Ok(()) => Poll::Ready(Ok(frame.len())),
            // It stands in the buffer of the socket.
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                Poll::Ready(Ok(frame.len()))
            }
            Err(error) => Poll::Ready(Err(to_io(error))),
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.get_mut().waker.clone_from(cx.waker());
        match self.socket.flush() {
            Ok(()) => Poll::Ready(Ok(())),
            Err(error) => or_pending(error),
        }
    }

    /// Sends a close frame if the socket takes it at once. It proves nothing: the socket is closed by its owner.
    pub(crate) fn close(&mut self, cx: &mut Context<'_>) {
        self.socket.get_mut().waker.clone_from(cx.waker());
        if self.socket.close(None).is_ok() {
            let _ = self.socket.flush();
        }
    }
}

fn or_pending<T>(error: Error) -> Poll<io::Result<T>> {
    match error {
        Error::Io(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
        error => Poll::Ready(Err(to_io(error))),
    }
}

fn to_io(error: Error) -> io::Error {
    match error {
        Error::Io(error) => error,
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

impl Handshaking {
    async fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        poll_fn(|cx| {
            let raw = &mut self.0.borrow_mut().raw;
            while !bytes.is_empty() {
                match ready!(raw.poll_write(cx, bytes))? {
                    0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    written => bytes = &bytes[written..],
                }
            }
            raw.poll_flush(cx)
        })
        .await
    }
}

impl Read for Handshaking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.borrow_mut().read(into)
    }
}

impl Write for Handshaking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.borrow_mut().flush()
    }
}

impl Read for NonBlocking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut cx = Context::from_waker(&self.waker);
        or_would_block(self.raw.poll_read(&mut cx, into))
    }
}

impl Write for NonBlocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut cx = Context::from_waker(&self.waker);
        or_would_block(self.raw.poll_write(&mut cx, bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut cx = Context::from_waker(&self.waker);
        or_would_block(self.raw.poll_flush(&mut cx))
    }
}

fn or_would_block<T>(poll: Poll<io::Result<T>>) -> io::Result<T> {
    match poll {
        Poll::Ready(outcome) => outcome,
        Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
    }
}
