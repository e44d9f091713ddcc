//! Calls of the API that took longer than `log.slow_ms`, and traces of all of them.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::metrics::SlowLabel;
use crate::slow::SlowLog;
use crate::trace::Tracer;

/// It waits for a lease to run out, which is no fault of anybody.
const WAITS: &str = "/v1/nodes/{id}/retire";

pub(super) async fn look(State(slow): State<Arc<SlowLog>>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    let method = request.method().clone();
    // The path as it is declared: no ClientID of a path gets into the log.
    let path = request.extensions().get::<MatchedPath>().cloned();
    let response = next.run(request).await;
    let path = path.as_ref().map_or("", |path| path.as_str());
    let took_ns = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    if path != WAITS
        && let Some(line) = slow.look(SlowLabel::Admin, took_ns)
    {
        tracing::warn!(
            operation = SlowLabel::Admin.word(), took_ms = line.took_ms, %method, path,
            status = response.status().as_u16(), suppressed = line.suppressed, "slow operation"
        );
    }
    response
}

/// A trace of each call, named after what is called.
pub(super) async fn trace(State(tracer): State<Option<Tracer>>, request: Request, next: Next) -> Response {
    let Some(tracer) = tracer else { return next.run(request).await };
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().cloned();
    let known = || {
        let route = path.as_ref().map_or("", MatchedPath::as_str).to_owned();
        vec![("http.request.method", method.to_string()), ("http.route", route)]
    };
    let call = async {
        let response = next.run(request).await;
        if response.status().is_server_error() { Err(Box::new(response)) } else { Ok(response) }
    };
    tracer.root("admin call", known, call).await.unwrap_or_else(|response| *response)
}
