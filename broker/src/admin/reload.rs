//! The call that does what SIGHUP does, and says what came of it.

use axum::Json;
use axum::extract::{Extension, State};
use serde::{Deserialize, Serialize};

use super::audit::AuditRecord;
use super::role::Caller;
use super::{AdminState, Problem};

/// What a reload did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReloadDone {
    /// Keys, and files, whose new value is in effect.
    pub changed: Vec<String>,
    /// Keys whose new value waits for a restart.
    pub needs_restart: Vec<String>,
    /// Certificates and keys that could not be used: those listeners keep what they have.
    pub failed: Vec<String>,
}

/// Why nothing was reloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// The configuration, or a file of users or rules, has a fault: the running one stays.
    #[error("{0}")]
    Faulty(String),
    #[error("not available: {0}")]
    Unavailable(String),
}

impl From<ReloadError> for Problem {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::Faulty(_) => Self::new(409, "faulty", error.to_string()),
            ReloadError::Unavailable(_) => Self::new(503, "unavailable", error.to_string()),
        }
    }
}

pub(super) async fn reload(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
) -> Result<Json<ReloadDone>, Problem> {
    // In a task of its own: a caller that hangs up does not keep it out of the audit log.
    let task = tokio::spawn(async move {
        state.audit.check().map_err(|error| Problem::new(503, "audit", error.to_string()))?;
        let done = state.port.reload().await.map_err(Problem::from);
        let record = AuditRecord {
            result: done.as_ref().map_or_else(|problem| problem.code().to_owned(), |_| "done".to_owned()),
            ..AuditRecord::of("reload", &caller.who())
        };
        super::audit::append(&state.audit, vec![record])
            .await
            .map_err(|error| Problem::new(500, "audit", error.to_string()))?;
        done
    });
    task.await.unwrap_or_else(|_| Err(Problem::new(500, "internal", "the call failed; repeat it"))).map(Json)
}
