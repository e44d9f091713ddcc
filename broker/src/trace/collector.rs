//! The way to the collector: a bounded queue, batches, one POST at a time. Whoever ends a span never waits for it.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::Request;
use hyper::client::conn::http1::handshake;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};

use super::otlp::{self, Span};
use crate::config::{Config, HookUrl};
use crate::metrics::ControlRecorder;

/// Spans that wait; more are dropped and counted.
const QUEUE_MAX: usize = 4_096;
/// Spans of one request.
const BATCH_MAX: usize = 512;
/// How long a span waits for others to go with it.
const BATCH_PAUSE: Duration = Duration::from_secs(1);
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(5);
/// How long a stop waits for the last one.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of the longest answer.
const ANSWER_BYTES_MAX: usize = 64 << 10;

enum Told {
    Span(Box<Span>),
    /// Everything before it is to be sent now.
    Flush(oneshot::Sender<()>),
}

#[derive(Debug)]
pub(super) struct Collector {
    sender: mpsc::Sender<Told>,
    sample_ratio: f64,
    metrics: ControlRecorder,
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Span(_) => "Span",
            Self::Flush(_) => "Flush",
        })
    }
}

impl Collector {
    /// On the runtime that it is called on.
    pub(super) fn start(url: &HookUrl, config: &Config, metrics: ControlRecorder) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let resource = vec![
            ("service.name", "exactmq".to_owned()),
            ("service.version", env!("CARGO_PKG_VERSION").to_owned()),
            ("service.instance.id", config.node.id.to_string()),
        ];
        let exporter = Exporter { url: url.clone(), resource, metrics: metrics.clone(), is_away: false };
        tokio::spawn(exporter.run(receiver));
        Self { sender, sample_ratio: config.log.otlp_sample_ratio.0, metrics }
    }

    /// Whether the trace that begins is one to keep.
    pub(super) fn samples(&self) -> bool {
        self.sample_ratio >= 1.0 || rand::random::<f64>() < self.sample_ratio
    }

    pub(super) fn take(&self, span: Span) {
        if self.sender.try_send(Told::Span(Box::new(span))).is_err() {
            self.metrics.spans(0, 1);
        }
    }

    pub(super) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let flushed = async {
            if self.sender.send(Told::Flush(done)).await.is_ok() {
                // An error says that nobody sends any more.
                let _ = is_done.await;
            }
        };
        let _ = tokio::time::timeout(FLUSH_TIMEOUT, flushed).await;
    }
}

struct Exporter {
    url: HookUrl,
    resource: Vec<(&'static str, String)>,
    metrics: ControlRecorder,
    /// The last request failed: it was said.
    is_away: bool,
}

impl Exporter {
    async fn run(mut self, mut receiver: mpsc::Receiver<Told>) {
        let mut batch: Vec<Span> = Vec::new();
        loop {
            let told = if batch.is_empty() {
                receiver.recv().await
            } else {
                match tokio::time::timeout(BATCH_PAUSE, receiver.recv()).await {
                    Ok(told) => told,
                    Err(_elapsed) => {
                        self.send(&mut batch).await;
                        continue;
                    }
                }
            };
            match told {
                Some(Told::Span(span)) => {
                    batch.push(*span);
                    if batch.len() >= BATCH_MAX {
                        self.send(&mut batch).await;
                    }
                }
                Some(Told::Flush(done)) => {
                    self.send(&mut batch).await;
                    // Whoever waited may have gone.
                    let _ = done.send(());
                }
                None => return self.send(&mut batch).await,
            }
        }
    }

    /// A batch that cannot be delivered is dropped: what is old is of no use, and nothing may pile up.
    async fn send(&mut self, batch: &mut Vec<Span>) {
        let spans = std::mem::take(batch);
        if spans.is_empty() {
            return;
        }
        let body = Bytes::from(otlp::request(&self.resource, &spans));
        let count = spans.len() as u64;
        let posted = tokio::time::timeout(TIMEOUT, post(&self.url, body)).await;
        match posted.unwrap_or_else(|_| Err("it did not answer in time".to_owned())) {
            Ok(()) => {
                self.metrics.spans(count, 0);
                self.is_away = false;
            }
            Err(error) => {
                self.metrics.spans(0, count);
                if !std::mem::replace(&mut self.is_away, true) {
                    tracing::warn!(collector = self.url.authority(), %error, "spans are dropped");
                }
            }
        }
    }
}

async fn post(url: &HookUrl, body: Bytes) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect(url.host_and_port()).await.map_err(|error| text(&error))?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    // It ends with its sender.
    tokio::spawn(connection);
    let request = Request::post(url.path())
        .header(HOST, url.authority())
        .header(CONTENT_TYPE, "application/x-protobuf")
        .body(Full::new(body))
        .map_err(|error| text(&error))?;
    let response = sender.send_request(request).await.map_err(|error| text(&error))?;
    let status = response.status();
    let rest = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    rest.map_err(|error| error.to_string())?;
    if status.is_success() { Ok(()) } else { Err(format!("status {status}")) }
}
