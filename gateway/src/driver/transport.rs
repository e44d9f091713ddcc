//! The bytes of one connection: plain TCP on a fast path, TLS and WebSocket behind the same four calls.

use std::io::{self, Read};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::listener::websocket::WebSocketTransport;

/// What MQTT runs on.
pub(crate) enum Transport {
    Tcp(TcpStream),
    /// One end of a socket pair: the other one is in this process.
    Local(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    WebSocket(Box<WebSocketTransport>),
}

/// What WebSocket runs on.
pub(crate) enum Raw {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Transport {
    /// Reads into `into`; 0: the peer will send nothing more.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => read_stream(stream, cx, into),
            Self::Local(stream) => read_stream(stream, cx, into),
            Self::Tls(stream) => read_stream(&mut **stream, cx, into),
            Self::WebSocket(socket) => socket.poll_read(cx, into),
        }
    }

    /// Reads what the kernel has at this moment, whatever the reactor has noticed yet: a DISCONNECT that arrived before a
    /// takeover's CONNECT must be seen, although its readiness event may still wait (owner spec §7.8).
    pub(crate) fn read_now(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => (&*SockRef::from(&*stream)).read(into),
            Self::Local(stream) => (&*SockRef::from(&*stream)).read(into),
            Self::Tls(stream) => {
                let (socket, session) = stream.get_mut();
                session.read_tls(&mut &*SockRef::from(&*socket))?;
                session.process_new_packets().map_err(io::Error::other)?;
                session.reader().read(into)
            }
            Self::WebSocket(socket) => match socket.poll_read(cx, into) {
                Poll::Ready(result) => result,
                Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Takes some of `bytes`; they may wait in a layer below until [`Self::poll_flush`].
    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Local(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::WebSocket(socket) => socket.poll_write(cx, bytes),
        }
    }

    /// Ready when the kernel has everything.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Local(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::WebSocket(socket) => socket.poll_flush(cx),
        }
    }

    /// Nothing more will be written: tells the layers and the peer, without waiting.
    pub(crate) fn finish(&mut self, cx: &mut Context<'_>) {
        // The close is decided; whether the peer hears of it in good order is its own matter.
        match self {
            Self::Tcp(_) | Self::Local(_) => {}
            Self::Tls(stream) => say_goodbye(stream, cx),
            Self::WebSocket(socket) => {
                socket.close(cx);
                if let Raw::Tls(stream) = socket.raw_mut() {
                    say_goodbye(stream, cx);
                }
            }
        }
        let _ = self.socket().shutdown(std::net::Shutdown::Write);
    }

    /// The close that follows is a reset: the kernel forgets what the peer has not taken.
    pub(crate) fn set_reset(&self) {
        let _ = self.socket().set_linger(Some(Duration::ZERO));
    }

    fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream),
            Self::Local(stream) => SockRef::from(stream),
            Self::Tls(stream) => SockRef::from(stream.get_ref().0),
            Self::WebSocket(socket) => match socket.raw() {
                Raw::Tcp(stream) => SockRef::from(stream),
                Raw::Tls(stream) => SockRef::from(stream.get_ref().0),
            },
        }
    }
}

impl Raw {
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => read_stream(stream, cx, into),
            Self::Tls(stream) => read_stream(&mut **stream, cx, into),
        }
    }

    pub(crate) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }
}

fn read_stream<T: AsyncRead + Unpin>(
    stream: &mut T,
    cx: &mut Context<'_>,
    into: &mut [u8],
) -> Poll<io::Result<usize>> {
    let mut buffer = ReadBuf::new(into);
    match Pin::new(stream).poll_read(cx, &mut buffer) {
        Poll::Ready(Ok(())) => Poll::Ready(Ok(buffer.filled().len())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
        Poll::Pending => Poll::Pending,
    }
}

/// Sends close_notify if the socket takes it at once.
fn say_goodbye(stream: &mut TlsStream<TcpStream>, cx: &mut Context<'_>) {
    stream.get_mut().1.send_close_notify();
    let _ = Pin::new(stream).poll_flush(cx);
}
