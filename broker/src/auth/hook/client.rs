//! HTTP/1.1 to one address, plain or over TLS, with connections that are used again.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper::{Request, Response, body::Incoming};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::auth::error::{AuthFileError, read_bytes};
use crate::authorities::trusting;
use crate::config::HookUrl;

/// Bytes of the longest answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;
/// Connections kept for the next question.
const IDLE_MAX: usize = 16;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("it did not answer in time")]
    Timeout,
    #[error("status {0}")]
    Status(u16),
    #[error("the answer is not {{\"result\": \"allow\" or \"deny\" or \"ignore\", …}}")]
    Answer,
    #[error("{0}")]
    Connect(std::io::Error),
    #[error("{0}")]
    Http(hyper::Error),
    #[error("the answer is longer than {ANSWER_BYTES_MAX} bytes, or broke off")]
    Body,
}

type Sender = SendRequest<Full<Bytes>>;

pub(super) struct Client {
    url: HookUrl,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    idle: Mutex<Vec<Sender>>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("url", &self.url).finish_non_exhaustive()
    }
}

impl Client {
    pub(super) fn new(url: &HookUrl, authorities: Option<&Path>) -> Result<Self, AuthFileError> {
        let tls = if url.is_secure() { Some(connector(url, authorities)?) } else { None };
        Ok(Self { url: url.clone(), tls, idle: Mutex::default() })
    }

    /// Where it calls, without what may be secret in it.
    pub(super) fn shown(&self) -> &str {
        self.url.authority()
    }

    /// Status and body of the answer.
    pub(super) async fn post(&self, body: Bytes) -> Result<(u16, Bytes), CallError> {
        let kept = self.idle.lock().pop();
        if let Some(mut sender) = kept.filter(SendRequest::is_ready) {
            match sender.send_request(self.request(body.clone())?).await {
                Ok(response) => return self.read(sender, response).await,
                // The other side closed it while it lay idle; what it never took is asked again on a new one.
                Err(error) if error.is_canceled() || error.is_closed() || error.is_incomplete_message() => {}
                Err(error) => return Err(CallError::Http(error)),
            }
        }
        let mut sender = self.connect().await?;
        let response = sender.send_request(self.request(body)?).await.map_err(CallError::Http)?;
        self.read(sender, response).await
    }

    fn request(&self, body: Bytes) -> Result<Request<Full<Bytes>>, CallError> {
        let request = Request::post(self.url.path())
            .header(HOST, self.url.authority())
            .header(CONTENT_TYPE, "application/json")
            .header(ACCEPT, "application/json");
        // What cannot stand in a request was refused with the configuration.
        request.body(Full::new(body)).map_err(|_| CallError::Answer)
    }

    async fn read(&self, sender: Sender, response: Response<Incoming>) -> Result<(u16, Bytes), CallError> {
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|_| CallError::Body)?.to_bytes();
        let mut idle = self.idle.lock();
        if !sender.is_closed() && idle.len() < IDLE_MAX {
            idle.push(sender);
        }
        Ok((status, body))
    }

    async fn connect(&self) -> Result<Sender, CallError> {
        let (host, port) = self.url.host_and_port();
        let stream = TcpStream::connect((host, port)).await.map_err(CallError::Connect)?;
        match &self.tls {
            None => begin(stream).await,
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await.map_err(CallError::Connect)?;
                begin(stream).await
            }
        }
    }
}

async fn begin(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Sender, CallError> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(CallError::Http)?;
    // It ends with its sender.
    tokio::spawn(connection);
    Ok(sender)
}

fn connector(
    url: &HookUrl,
    authorities: Option<&Path>,
) -> Result<(TlsConnector, ServerName<'static>), AuthFileError> {
    let path = authorities.unwrap_or(Path::new("auth.http_ca_file"));
    let refuse = |what: String| AuthFileError::Key { path: path.to_owned(), what };
    let bytes = read_bytes(path)?;
    let config = trusting(&bytes).map_err(refuse)?.with_no_client_auth();
    let (host, _) = url.host_and_port();
    let name = ServerName::try_from(host.to_owned())
        .map_err(|_| refuse(format!("no certificate can be for the host {host:?}")))?;
    Ok((TlsConnector::from(Arc::new(config)), name))
}
