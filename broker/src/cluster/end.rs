//! `End` where the owner lives (service 160): its node alone can hold back what the end of the connection would set off, the Will above all
//! ([`WillMode::Suppress`](session::lifecycle::WillMode)), and tell the client why.
//!
//! A node that cannot be reached, or that is too old to know the service, is asked by Service 107 instead: it proves the same.

use std::sync::Arc;

use bytes::Bytes;
use ownerrpc::link::services::END;
use ownerrpc::link::{Answer, Call, Refusal, RefusalKind, Service};
use serde::{Deserialize, Serialize};
use session::id::Owner;
use session::lifecycle::{EndReason, SessionRow, WillMode};
use tokio::time::Instant;

use super::calls::{NotAnswered, PeerCalls};
use crate::shared::Shared;
use crate::usecase::EndInput;
use crate::usecase::end::EndError;

/// What is asked, as JSON: rare, and read by people.
#[derive(Debug, Serialize, Deserialize)]
struct Ask {
    owner: Owner,
    reason: EndReason,
    will: WillMode,
    /// Milliseconds that the call may take.
    within_ms: u64,
}

/// What became of it.
type Outcome = Result<Box<SessionRow>, EndError>;

/// Has the node of `input.owner` end it; `None`: that node does nothing of the kind, and nothing was done.
pub(crate) async fn ask(peers: &dyn PeerCalls, input: &EndInput, deadline: Instant) -> Option<Outcome> {
    let within = deadline.saturating_duration_since(Instant::now());
    let ask = Ask {
        owner: input.owner.clone(),
        reason: input.reason,
        will: input.will,
        within_ms: u64::try_from(within.as_millis()).unwrap_or(u64::MAX),
    };
    let payload = Bytes::from(serde_json::to_vec(&ask).ok()?);
    match peers.call(input.owner.node_id, END, payload, deadline).await {
        Ok(answer) => Some(serde_json::from_slice(&answer).unwrap_or(Err(EndError::Evidence))),
        Err(error @ (NotAnswered::Unreachable { .. } | NotAnswered::Refused { .. })) => {
            tracing::debug!(%error, "the owner's node does not end its session itself");
            None
        }
        Err(error @ NotAnswered::Unknown { .. }) => {
            tracing::debug!(%error, "the owner's node did not say whether it ended a session");
            Some(Err(EndError::Deadline))
        }
    }
}

/// Ends owners of this node for others.
pub(super) struct OwnEnds(pub(super) Arc<Shared>);

impl Service for OwnEnds {
    fn call(&self, call: Call) -> Answer {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let malformed =
                |error: serde_json::Error| Refusal::new(RefusalKind::Malformed, error.to_string());
            let ask: Ask = serde_json::from_slice(&call.payload).map_err(malformed)?;
            if ask.owner.node_id != shared.boot.node_id {
                return Err(Refusal::new(RefusalKind::Malformed, "the owner is of another node"));
            }
            let deadline = shared.clock.tick().plus_ms(ask.within_ms);
            let input = EndInput { owner: ask.owner, reason: ask.reason, will: ask.will, release: false };
            let outcome: Outcome = shared.end(&input, deadline).await.map(Box::new);
            let failed = |error: serde_json::Error| Refusal::new(RefusalKind::Failed, error.to_string());
            Ok(Bytes::from(serde_json::to_vec(&outcome).map_err(failed)?))
        })
    }
}
