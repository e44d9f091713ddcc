//! A socket of the admin API, plain or with TLS. The handshake happens with the first read, so that nobody holds up who comes next.

use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{Accept, TlsAcceptor};

pub(super) enum Stream {
    Plain(TcpStream),
    Handshake(Box<Accept<TcpStream>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake failed.
    Broken,
}

impl Stream {
    pub(super) fn new(stream: TcpStream, tls: Option<TlsAcceptor>) -> Self {
        match tls {
            None => Self::Plain(stream),
            Some(acceptor) => Self::Handshake(Box::new(acceptor.accept(stream))),
        }
    }

    pub(super) fn is_in_handshake(&self) -> bool {
        matches!(self, Self::Handshake(_))
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut dyn Open>> {
        if let Self::Handshake(accept) = self {
            *self = match ready!(Pin::new(&mut **accept).poll(cx)) {
                Ok(stream) => Self::Tls(Box::new(stream)),
                Err(error) => {
                    tracing::debug!(%error, "a TLS handshake with the admin API failed");
                    Self::Broken
                }
            };
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(stream),
            Self::Tls(stream) => Ok(&mut **stream),
            Self::Handshake(_) | Self::Broken => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }
}

/// A stream that takes and gives bytes.
trait Open: AsyncRead + AsyncWrite + Unpin {}

impl<T: AsyncRead + AsyncWrite + Unpin> Open for T {}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let stream = ready!(self.poll_open(cx))?;
        Pin::new(stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let stream = ready!(self.poll_open(cx))?;
        Pin::new(stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(*self, Self::Handshake(_) | Self::Broken) {
            return Poll::Ready(Ok(()));
        }
        let stream = ready!(self.poll_open(cx))?;
        Pin::new(stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if matches!(*self, Self::Handshake(_) | Self::Broken) {
            return Poll::Ready(Ok(()));
        }
        let stream = ready!(self.poll_open(cx))?;
        Pin::new(stream).poll_shutdown(cx)
    }
}
