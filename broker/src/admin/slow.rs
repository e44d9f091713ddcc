//! Calls of the API that took longer than `log.slow_ms`.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::middleware::Next;
use axum::response::Response;

use crate::metrics::SlowLabel;
use crate::slow::SlowLog;

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
