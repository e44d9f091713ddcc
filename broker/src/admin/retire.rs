//! The call that retires a boot: a decision that may have to wait for a lease to run out, and is on record whatever becomes of the caller.
//!
//! A retirement runs by itself once it is asked for. A call waits for it up to [`ANSWER_AFTER`] and is answered 202 then; the same call
//! again waits on for the same retirement.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use session::id::{Boot, check_identity};
use session::limits::{BOOT_ID_BYTES_MAX, RETIRE_TEXT_BYTES_MAX};
use tokio::sync::watch;
use tokio::time::Instant;

use super::audit::{self, AuditRecord};
use super::model::object;
use super::role::Caller;
use super::{AdminState, Problem};
use crate::events::{Event, EventKind};
use crate::usecase::retire::{GroupRetired, RetireBy, RetireError, RetireOrder, RetireProgress, Retired};

/// A call is answered by then; a connection on which nothing happens for longer is closed.
const ANSWER_AFTER: Duration = Duration::from_secs(20);
/// Retirements under way or not yet told to anybody.
const JOBS_MAX: usize = 64;
/// How long an outcome that nobody waited for is kept for the next who asks.
const KEPT: Duration = Duration::from_secs(60);

/// Body of `POST /v1/nodes/{id}/retire`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetireRequest {
    pub boot: String,
    /// Why it is certain that nothing of it runs, in the operator's words.
    #[serde(default)]
    pub attest: Option<String>,
    /// Have the configured fence agent power it off instead.
    #[serde(default)]
    pub fence_agent: bool,
    /// Do not wait for the end of its lease.
    #[serde(default)]
    pub now: bool,
}

/// What one group says of the retirement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetireGroup {
    pub group: u16,
    /// `retired`, `already_retired`, `unknown_boot` or `failed`.
    pub outcome: String,
    /// Why it failed.
    pub detail: Option<String>,
}

/// Answer of a retirement that is complete.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetireAnswer {
    pub node_id: u64,
    pub boot_id: Arc<str>,
    /// By which proof it is retired, as `retired_by` of a boot.
    pub retired_by: String,
    /// It was retired before.
    pub unchanged: bool,
    pub groups: Vec<RetireGroup>,
}

/// Answer 202: it goes on, ask again to wait for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RetireWaiting {
    /// `waiting`.
    pub state: String,
    /// Until the lease of the boot and the drift are over.
    pub remaining_ms: u64,
}

/// Retirements that were asked for.
#[derive(Debug, Default)]
pub struct Retirements(Mutex<Vec<Job>>);

type Outcome = Result<RetireAnswer, Problem>;
/// Where the outcome of a retirement goes, with when it was known.
type Ending = watch::Sender<Option<(Instant, Outcome)>>;

#[derive(Debug, Clone)]
struct Job {
    boot: Boot,
    by: RetireBy,
    progress: Arc<RetireProgress>,
    outcome: watch::Receiver<Option<(Instant, Outcome)>>,
}

impl Job {
    async fn ended(&self) -> Outcome {
        let mut outcome = self.outcome.clone();
        let ended = outcome.wait_for(Option::is_some).await.map(|ended| ended.clone());
        match ended {
            Ok(Some((_, outcome))) => outcome,
            _ => Err(Problem::new(500, "internal", "the call failed; its outcome is unknown")),
        }
    }
}

impl Retirements {
    /// The retirement of this boot that is under way, or a new one: then with where its outcome goes.
    fn find_or_begin(&self, order: &RetireOrder) -> Result<(Job, Option<Ending>), Problem> {
        let mut jobs = self.0.lock();
        let kept = |job: &Job| job.outcome.borrow().as_ref().is_none_or(|(at, _)| at.elapsed() < KEPT);
        jobs.retain(kept);
        if let Some(job) = jobs.iter().find(|job| job.boot == order.boot) {
            if job.by != order.by {
                let detail =
                    "another retirement of this boot is under way, with another proof; wait for its end";
                return Err(Problem::new(409, "busy", detail));
            }
            return Ok((job.clone(), None));
        }
        if jobs.len() >= JOBS_MAX {
            return Err(Problem::new(503, "unavailable", "too many retirements are under way; try again"));
        }
        let (sender, outcome) = watch::channel(None);
        let (boot, by) = (order.boot.clone(), order.by.clone());
        let job = Job { boot, by, progress: Arc::default(), outcome };
        jobs.push(job.clone());
        Ok((job, Some(sender)))
    }

    /// Its outcome was told: who asks next begins anew.
    fn told(&self, job: &Job) {
        self.0.lock().retain(|other| !Arc::ptr_eq(&other.progress, &job.progress));
    }
}

impl From<RetireError> for Problem {
    fn from(error: RetireError) -> Self {
        let detail = error.to_string();
        match error {
            RetireError::NotFound(_) => Self::new(404, "not_found", detail),
            RetireError::Own => Self::new(409, "own_boot", detail),
            RetireError::Alive(_) => Self::new(409, "alive", detail),
            RetireError::NoAgent => Self::new(409, "no_fence_agent", detail),
            RetireError::Unproved(_) => Self::new(503, "unproved", detail),
            RetireError::Unavailable(_) => Self::new(503, "unavailable", detail),
            RetireError::Partial(groups) => {
                let groups: Vec<RetireGroup> = groups.into_iter().map(group).collect();
                // Plain strings and numbers: they always have a JSON form.
                let groups = serde_json::to_value(groups).unwrap_or(Value::Null);
                Self::new(503, "partial", detail).with("groups", groups)
            }
        }
    }
}

fn group((id, retired): (storage::GroupId, GroupRetired)) -> RetireGroup {
    let (outcome, detail) = match retired {
        GroupRetired::Retired => ("retired", None),
        GroupRetired::Already => ("already_retired", None),
        GroupRetired::Unknown => ("unknown_boot", None),
        GroupRetired::Failed(why) => ("failed", Some(why)),
    };
    RetireGroup { group: id.0, outcome: outcome.to_owned(), detail }
}

fn answer(boot: &Boot, retired: Retired) -> RetireAnswer {
    RetireAnswer {
        node_id: boot.node_id,
        boot_id: boot.boot_id.clone(),
        retired_by: retired.proof.word().to_owned(),
        unchanged: retired.unchanged,
        groups: retired.groups.into_iter().map(group).collect(),
    }
}

/// What is wrong with an attestation.
///
/// # Errors
/// It is blank, too long, or holds control characters.
pub fn check_attestation(text: &str) -> Result<(), String> {
    if text.trim().is_empty() {
        return Err("says nothing: write how it is known that nothing of the node runs".to_owned());
    }
    if text.len() > RETIRE_TEXT_BYTES_MAX {
        return Err(format!("has more than {RETIRE_TEXT_BYTES_MAX} bytes"));
    }
    if text.chars().any(char::is_control) {
        return Err("holds control characters: write it on one line".to_owned());
    }
    Ok(())
}

fn order(node_id: u64, request: RetireRequest) -> Result<RetireOrder, Problem> {
    check_identity(&request.boot, BOOT_ID_BYTES_MAX)
        .map_err(|error| Problem::invalid(format!("boot {error}")))?;
    let by = match (request.attest, request.fence_agent) {
        (Some(text), false) => {
            check_attestation(&text).map_err(|what| Problem::invalid(format!("attest {what}")))?;
            RetireBy::Attest(text.into())
        }
        (None, true) => RetireBy::FenceAgent,
        _ => return Err(Problem::invalid("give one proof: attest with a text, or fence_agent true")),
    };
    Ok(RetireOrder { boot: Boot { node_id, boot_id: request.boot.into() }, by, now: request.now })
}

pub(super) async fn retire(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    node_id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let Path(node_id) = node_id.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let node_id = node_id.parse().ok().filter(|id| *id != 0);
    let node_id = node_id.ok_or_else(|| Problem::invalid("the node id is not a number from 1 on"))?;
    let body = body.map_err(|rejection| match rejection.status().as_u16() {
        413 => Problem::too_large(),
        _ => Problem::invalid(rejection.body_text()),
    })?;
    let request: RetireRequest = object(&body).map_err(|what| {
        Problem::invalid(format!("the body is not {{\"boot\": …, \"attest\": …}} as expected: {what}"))
    })?;
    let order = order(node_id, request)?;
    state.audit.check().map_err(|error| Problem::new(503, "audit", error.to_string()))?;
    let (job, begin) = state.retirements.find_or_begin(&order)?;
    if order.now {
        job.progress.hurry();
    }
    if let Some(outcome) = begin {
        let (state, progress) = (state.clone(), job.progress.clone());
        // In a task of its own: a caller that hangs up does not stop it half way, nor keep it out of the audit log.
        tokio::spawn(async move {
            let done = retire_and_record(&state, caller, order, &progress).await;
            outcome.send_replace(Some((Instant::now(), done)));
        });
    }
    if let Ok(outcome) = tokio::time::timeout(ANSWER_AFTER, job.ended()).await {
        state.retirements.told(&job);
        return outcome.map(|answer| Json(answer).into_response());
    }
    let waiting = RetireWaiting { state: "waiting".to_owned(), remaining_ms: job.progress.left_ms() };
    Ok((StatusCode::ACCEPTED, Json(json!(waiting))).into_response())
}

async fn retire_and_record(
    state: &AdminState,
    caller: Caller,
    order: RetireOrder,
    progress: &Arc<RetireProgress>,
) -> Outcome {
    let boot = order.boot.clone();
    let reason = match &order.by {
        RetireBy::Attest(text) => format!("attested: {text}"),
        RetireBy::FenceAgent => "fence agent".to_owned(),
    };
    let result = state.port.retire_boot(order, progress.clone()).await;
    let detail = match &result {
        Ok(retired) => retired.proof.text().map(ToString::to_string),
        Err(error) => Some(error.to_string()),
    };
    let outcome = result.map(|retired| answer(&boot, retired)).map_err(Problem::from);
    let word = match &outcome {
        Ok(answer) if answer.unchanged => "already_retired",
        Ok(_) => "retired",
        Err(problem) => problem.code(),
    };
    if let Ok(answer) = &outcome
        && !answer.unchanged
    {
        let event = Event::new(EventKind::Retired).node(boot.node_id);
        state.events.push(event.detail(answer.retired_by.as_str()));
    }
    let record = AuditRecord {
        reason,
        result: word.to_owned(),
        node_id: Some(boot.node_id),
        boot_id: Some(boot.boot_id.to_string()),
        waited: Some(!progress.is_hurried()),
        detail,
        ..AuditRecord::of("node.retire", &caller.who())
    };
    match audit::append(&state.audit, vec![record]).await {
        Ok(()) => outcome,
        Err(error) => {
            let what = if outcome.is_ok() { "the boot is retired, but " } else { "" };
            Err(Problem::new(500, "audit", format!("{what}{error}")))
        }
    }
}
