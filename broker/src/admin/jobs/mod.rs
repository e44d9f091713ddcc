//! Bulk End: `POST /v1/end` begins a job that ends every session of a user, of a prefix or of a list, each by its exact owner;
//! `GET /v1/end/{job}` tells how far it is, with one result a session.
//!
//! ```text
//! running ──▶ done
//!    │ └────▶ failed        (the store or a record failed: `detail` says which)
//!    └──────▶ interrupted   (the node stopped; a second call goes on with what is left)
//! ```

mod file;
mod run;

use std::collections::BTreeMap;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use session::id::{Key, check_identity};
use session::lifecycle::{EndReason, Subject, WillMode};
use session::limits::{CLIENT_ID_BYTES_MAX, NAMESPACE_BYTES_MAX, UID_BYTES_MAX};

pub use self::file::JobFileError;
use self::run::Job;

use super::model::{reason_of, will_of};
use super::role::Caller;
use super::sessions::{NAMESPACE_DEFAULT, Parameters, limit, parameters};
use super::{AdminState, Problem};

/// Jobs that run at once.
const RUNNING_MAX: usize = 4;
/// Jobs that are remembered, on disk as well.
const JOBS_MAX: usize = 100;
/// ClientIDs of one request.
const CLIENT_IDS_MAX: usize = 10_000;

/// Body of `POST /v1/end`. Exactly one of `user`, `prefix` and `client_ids` says which sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobRequest {
    /// Every session of this user; in all namespaces unless one is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Arc<str>>,
    /// Every session whose ClientID begins with this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<Arc<str>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ids: Option<Vec<Arc<str>>>,
    /// `main` unless given; with `user`: all unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Arc<str>>,
    /// `revoked`, `quota`, `source_lost` or `explicit`.
    pub reason: String,
    /// `publish` (default) or `suppress`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub will: Option<String>,
    #[serde(default)]
    pub release: bool,
    /// First deny the user or the ClientIDs, so that nobody connects again in between.
    #[serde(default)]
    pub deny: bool,
}

/// What a checked request asks for.
#[derive(Debug, Clone)]
struct Order {
    targets: Targets,
    reason: EndReason,
    will: WillMode,
    release: bool,
    /// Who is denied first.
    denied: Vec<Subject>,
}

#[derive(Debug, Clone)]
enum Targets {
    Keys(Vec<Key>),
    Matching { namespace: Option<Arc<str>>, user: Option<Arc<str>>, prefix: Option<Arc<str>> },
}

impl JobRequest {
    fn order(&self) -> Result<Order, Problem> {
        let reason = reason_of(&self.reason).ok_or_else(|| {
            Problem::invalid(format!(
                "reason {:?} is not revoked, quota, source_lost or explicit",
                self.reason
            ))
        })?;
        let will = will_of(self.will.as_deref()).map_err(Problem::invalid)?;
        if let Some(namespace) = &self.namespace {
            checked("namespace", namespace, NAMESPACE_BYTES_MAX)?;
        }
        let (targets, denied) = match (&self.user, &self.prefix, &self.client_ids) {
            (Some(user), None, None) => {
                checked("user", user, UID_BYTES_MAX)?;
                (self.matching(self.namespace.clone()), vec![Subject::User(user.clone())])
            }
            (None, Some(prefix), None) => {
                checked("prefix", prefix, CLIENT_ID_BYTES_MAX)?;
                if self.deny {
                    return Err(Problem::invalid("a prefix cannot be denied: deny a user or ClientIDs"));
                }
                (self.matching(Some(self.namespace())), Vec::new())
            }
            (None, None, Some(client_ids)) => {
                if client_ids.is_empty() || client_ids.len() > CLIENT_IDS_MAX {
                    return Err(Problem::invalid(format!(
                        "client_ids has not 1 to {CLIENT_IDS_MAX} entries"
                    )));
                }
                let keys = self.keys(client_ids)?;
                (Targets::Keys(keys.clone()), keys.into_iter().map(Subject::Client).collect())
            }
            _ => return Err(Problem::invalid("give exactly one of user, prefix and client_ids")),
        };
        let denied = if self.deny { denied } else { Vec::new() };
        Ok(Order { targets, reason, will, release: self.release, denied })
    }

    fn namespace(&self) -> Arc<str> {
        self.namespace.clone().unwrap_or_else(|| NAMESPACE_DEFAULT.into())
    }

    fn matching(&self, namespace: Option<Arc<str>>) -> Targets {
        Targets::Matching { namespace, user: self.user.clone(), prefix: self.prefix.clone() }
    }

    fn keys(&self, client_ids: &[Arc<str>]) -> Result<Vec<Key>, Problem> {
        let namespace = self.namespace();
        let key = |client_id: &Arc<str>| {
            Key::new(namespace.clone(), client_id.clone())
                .map_err(|error| Problem::invalid(format!("ClientID {client_id:?} {error}")))
        };
        let mut keys: Vec<Key> = client_ids.iter().map(key).collect::<Result<_, _>>()?;
        keys.sort_unstable();
        keys.dedup();
        Ok(keys)
    }
}

fn checked(name: &str, value: &str, bytes_max: usize) -> Result<(), Problem> {
    check_identity(value, bytes_max).map_err(|error| Problem::invalid(format!("{name} {error}")))
}

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobState {
    Running,
    Done,
    Failed,
    Interrupted,
}

/// A job without its results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    pub job: u64,
    pub state: JobState,
    /// Why it failed, or what to do about an interruption.
    pub detail: Option<String>,
    pub who: String,
    pub at_ms: u64,
    pub finished_at_ms: Option<u64>,
    pub request: JobRequest,
    /// Sessions that it ended.
    pub ended: u64,
    /// Sessions that were over, or somebody else's, before their turn.
    pub gone: u64,
    /// Sessions that are not (known to be) ended.
    pub failed: u64,
}

/// What became of one session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobResult {
    pub namespace: Arc<str>,
    pub client_id: Arc<str>,
    /// `ended`, `gone`, or the code of the problem that the single call would have answered.
    pub result: String,
    pub revision: Option<u64>,
    pub detail: Option<String>,
}

impl JobResult {
    fn is_failure(&self) -> bool {
        !matches!(&*self.result, "ended" | "gone")
    }
}

/// Answer of `GET /v1/end/{job}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDetail {
    #[serde(flatten)]
    pub view: JobView,
    pub results: Vec<JobResult>,
    /// Give it back as `cursor` for the next page; `null`: there are no more now.
    pub cursor: Option<String>,
}

/// Answer of `GET /v1/end`: newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobList {
    pub jobs: Vec<JobView>,
}

/// The jobs of this node, by number. Those of earlier runs of the node are known from their files.
#[derive(Debug)]
pub struct Jobs {
    directory: PathBuf,
    known: Mutex<BTreeMap<u64, Arc<Job>>>,
}

impl Jobs {
    /// Reads the jobs of earlier runs; those that were not finished are interrupted.
    ///
    /// # Errors
    /// The directory cannot be made or read.
    pub fn open(data_dir: &FilePath) -> Result<Self, JobFileError> {
        let directory = data_dir.join("jobs");
        let known = file::read_all(&directory)?;
        Ok(Self { directory, known: Mutex::new(known) })
    }

    fn get(&self, number: u64) -> Option<Arc<Job>> {
        self.known.lock().get(&number).cloned()
    }

    fn list(&self) -> Vec<JobView> {
        self.known.lock().values().rev().map(|job| job.view()).collect()
    }

    /// Takes a place among those that run and makes its file. Blocks.
    fn begin(&self, who: String, request: JobRequest) -> Result<Arc<Job>, Problem> {
        let mut known = self.known.lock();
        if known.values().filter(|job| job.view().state == JobState::Running).count() >= RUNNING_MAX {
            let detail = format!("{RUNNING_MAX} jobs run already; wait until one is done");
            return Err(Problem::new(409, "busy", detail));
        }
        let number = known.last_key_value().map_or(0, |(number, _)| *number) + 1;
        let job = Job::create(&self.directory, number, who, request)
            .map_err(|error| Problem::new(503, "job", error.to_string()))?;
        let job = Arc::new(job);
        known.insert(number, job.clone());
        while known.len() > JOBS_MAX
            && let Some(old) = known.values().find(|job| job.view().state != JobState::Running).cloned()
        {
            known.remove(&old.number());
            old.forget();
        }
        Ok(job)
    }
}

pub(super) async fn begin(
    State(state): State<AdminState>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Result<(StatusCode, Json<JobView>), Problem> {
    let request: JobRequest = super::read_object(&body, "{\"user\": …, \"reason\": …}")?;
    let order = request.order()?;
    state.audit.check().map_err(|error| Problem::new(503, "audit", error.to_string()))?;
    let jobs = state.jobs.clone();
    let who = caller.who();
    let made = tokio::task::spawn_blocking(move || jobs.begin(who, request)).await;
    let job = made.map_err(|_| Problem::new(500, "internal", "the job could not be made"))??;
    let view = job.view();
    tokio::spawn(job.run(state, order));
    Ok((StatusCode::ACCEPTED, Json(view)))
}

pub(super) async fn list(State(state): State<AdminState>) -> Json<JobList> {
    Json(JobList { jobs: state.jobs.list() })
}

pub(super) async fn show(
    State(state): State<AdminState>,
    number: Result<Path<u64>, PathRejection>,
    query: Parameters,
) -> Result<Json<JobDetail>, Problem> {
    let Path(number) = number.map_err(|_| Problem::invalid("a job is a number"))?;
    let parameters = parameters(query, &["limit", "cursor", "only"])?;
    let failed_only = match parameters.get("only").map(String::as_str) {
        None => false,
        Some("failed") => true,
        Some(word) => return Err(Problem::invalid(format!("only={word} is not failed"))),
    };
    let limit = limit(&parameters)?;
    let from = parameters.get("cursor").map(|cursor| {
        cursor.parse::<u64>().map_err(|_| Problem::invalid("cursor is not one that this API gave out"))
    });
    let from = from.transpose()?.unwrap_or(0);
    let job = state.jobs.get(number);
    let job = job.ok_or_else(|| Problem::new(404, "not_found", format!("there is no job {number}")))?;
    // Before the results: a page may show more than the counters, not less.
    let view = job.view();
    let page = tokio::task::spawn_blocking(move || job.results(from, limit, failed_only)).await;
    match page {
        Ok(Ok((results, next))) => {
            Ok(Json(JobDetail { view, results, cursor: next.map(|next| next.to_string()) }))
        }
        Ok(Err(error)) => Err(Problem::new(500, "job", error.to_string())),
        Err(_) => Err(Problem::new(500, "internal", "the results could not be read")),
    }
}
