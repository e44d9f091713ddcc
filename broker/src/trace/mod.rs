//! Spans of what is rare and takes time: CONNECT, End, calls of the admin API, retirement, calls to other nodes. Never of a message.
//!
//! They go to a collector in OTLP/HTTP (`log.otlp_endpoint`), by a build with the feature `otel`; without it nothing here does anything. A span
//! is kept by the future that it is about: `root` begins a trace where
//! none is open, `child` hangs a span on the one that it runs under, if there is one.

use std::future::Future;

use crate::config::Config;
use crate::metrics::ControlRecorder;

#[cfg(feature = "otel")]
mod collector;
#[cfg(feature = "otel")]
mod otlp;

/// What is known of a span beside its name and times.
pub type Attributes = Vec<(&'static str, String)>;

/// Decides what is traced, and keeps the way to the collector. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Tracer {
    #[cfg(feature = "otel")]
    collector: Option<std::sync::Arc<collector::Collector>>,
}

/// Why spans cannot be sent.
#[derive(Debug, thiserror::Error)]
#[error(
    "this build of exactmq sends no spans: build it with `cargo build --release --locked -p broker --features otel`, or leave log.otlp_endpoint out"
)]
pub struct NotBuiltIn;

/// Whether this build can do what the configuration says.
///
/// # Errors
/// It sends no spans, and is asked to.
pub const fn check(config: &Config) -> Result<(), NotBuiltIn> {
    if config.log.otlp_endpoint.is_some() && !cfg!(feature = "otel") { Err(NotBuiltIn) } else { Ok(()) }
}

#[cfg(not(feature = "otel"))]
impl Tracer {
    /// There is nothing to send to.
    #[must_use]
    pub fn start(_config: &Config, _metrics: ControlRecorder) -> Self {
        Self {}
    }

    /// Runs `work`.
    pub async fn root<T, E>(
        &self,
        _name: &'static str,
        _attributes: impl FnOnce() -> Attributes,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        work.await
    }

    /// There is nothing to send.
    pub async fn flush(&self) {}
}

/// Runs `work` under the span that is open here, as a part of it.
#[cfg(not(feature = "otel"))]
pub async fn child<T, E>(_name: &'static str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    work.await
}

#[cfg(feature = "otel")]
pub use traced::child;

#[cfg(feature = "otel")]
mod traced {
    use std::sync::Arc;
    use std::time::{SystemTime, UNIX_EPOCH};

    use tokio::time::Instant;

    use super::collector::Collector;
    use super::otlp::Span;
    use super::{Attributes, Config, ControlRecorder, Future, Tracer};

    tokio::task_local! {
        /// The span that is open where this future runs.
        static OPEN: Context;
    }

    #[derive(Clone)]
    struct Context {
        collector: Arc<Collector>,
        trace_id: [u8; 16],
        span_id: [u8; 8],
    }

    /// A span until its work is over. One whose work is dropped ends then, as a failure.
    struct Unfinished {
        context: Context,
        parent_id: Option<[u8; 8]>,
        name: &'static str,
        attributes: Attributes,
        began_ns: u64,
        began: Instant,
        failed: bool,
    }

    impl Unfinished {
        fn begin(
            context: Context,
            parent_id: Option<[u8; 8]>,
            name: &'static str,
            attributes: Attributes,
        ) -> Self {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let began_ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
            Self { context, parent_id, name, attributes, began_ns, began: Instant::now(), failed: true }
        }

        async fn over<T, E>(mut self, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
            let outcome = OPEN.scope(self.context.clone(), work).await;
            self.failed = outcome.is_err();
            outcome
        }
    }

    impl Drop for Unfinished {
        fn drop(&mut self) {
            // By the monotonic clock: the wall clock may step meanwhile.
            let took_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.context.collector.take(Span {
                trace_id: self.context.trace_id,
                span_id: self.context.span_id,
                parent_id: self.parent_id,
                name: self.name,
                attributes: std::mem::take(&mut self.attributes),
                began_ns: self.began_ns,
                ended_ns: self.began_ns.saturating_add(took_ns),
                failed: self.failed,
            });
        }
    }

    impl Tracer {
        /// Begins to send, where the configuration says where to.
        #[must_use]
        pub fn start(config: &Config, metrics: ControlRecorder) -> Self {
            let endpoint = config.log.otlp_endpoint.as_ref();
            let start = |url| Arc::new(Collector::start(url, config, metrics));
            Self { collector: endpoint.map(start) }
        }

        /// Runs `work` as a part of the trace that is open here, else as one of its own, if it is among those that are sampled.
        pub async fn root<T, E>(
            &self,
            name: &'static str,
            attributes: impl FnOnce() -> Attributes,
            work: impl Future<Output = Result<T, E>>,
        ) -> Result<T, E> {
            let Some(collector) = &self.collector else { return work.await };
            if let Ok(open) = OPEN.try_with(Clone::clone) {
                let context = Context { span_id: rand::random(), ..open.clone() };
                return Unfinished::begin(context, Some(open.span_id), name, attributes()).over(work).await;
            }
            if !collector.samples() {
                return work.await;
            }
            let context =
                Context { collector: collector.clone(), trace_id: rand::random(), span_id: rand::random() };
            Unfinished::begin(context, None, name, attributes()).over(work).await
        }

        /// Sends what waits, for a moment.
        pub async fn flush(&self) {
            if let Some(collector) = &self.collector {
                collector.flush().await;
            }
        }
    }

    /// Runs `work` under the span that is open here, as a part of it.
    pub async fn child<T, E>(name: &'static str, work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let Ok(open) = OPEN.try_with(Clone::clone) else { return work.await };
        let parent_id = Some(open.span_id);
        let context = Context { span_id: rand::random(), ..open };
        Unfinished::begin(context, parent_id, name, Vec::new()).over(work).await
    }
}
