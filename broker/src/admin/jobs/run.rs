//! One job at work: deny, then end session by session, each by the exact owner that its row names.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use session::id::{Key, Owner};
use tokio::task::JoinSet;

use super::file::{self, JobFile, JobFileError};
use super::{JobRequest, JobResult, JobState, JobView, Order, Targets};
use crate::admin::audit::{self, AuditRecord};
use crate::admin::denied::{self, DenyCommand};
use crate::admin::model::reason_word;
use crate::admin::{AdminState, EndCommand, EndError, Problem, SessionQuery, StateWord};

/// Sessions that are ended side by side; their results are recorded together.
const COHORT: usize = 64;
/// How often a session whose owner changes under our hands is tried.
const ATTEMPTS: usize = 5;

/// A job and what is known of it.
#[derive(Debug)]
pub(super) struct Job {
    path: PathBuf,
    view: Mutex<JobView>,
    /// `None`: nothing more is written.
    file: Mutex<Option<JobFile>>,
}

impl Job {
    /// Blocks.
    pub(super) fn create(
        directory: &Path,
        number: u64,
        who: String,
        request: JobRequest,
    ) -> Result<Self, JobFileError> {
        let view = JobView {
            job: number,
            state: JobState::Running,
            detail: None,
            who,
            at_ms: now_ms(),
            finished_at_ms: None,
            request,
            ended: 0,
            gone: 0,
            failed: 0,
        };
        let file = JobFile::create(directory, &view)?;
        let path = directory.join(format!("{number}.jsonl"));
        Ok(Self { path, view: Mutex::new(view), file: Mutex::new(Some(file)) })
    }

    /// A job of an earlier run.
    pub(super) fn over(path: PathBuf, view: JobView) -> Self {
        Self { path, view: Mutex::new(view), file: Mutex::new(None) }
    }

    pub(super) fn view(&self) -> JobView {
        self.view.lock().clone()
    }

    pub(super) fn number(&self) -> u64 {
        self.view.lock().job
    }

    /// Removes its file. Blocks.
    pub(super) fn forget(&self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(file = %self.path.display(), %error, "an old job could not be removed");
        }
    }

    /// Blocks.
    pub(super) fn results(
        &self,
        from: u64,
        limit: usize,
        failed_only: bool,
    ) -> Result<(Vec<JobResult>, Option<u64>), JobFileError> {
        file::results(&self.path, from, limit, failed_only)
    }

    /// Works until all is done or something that all need fails.
    pub(super) async fn run(self: Arc<Self>, state: AdminState, order: Order) {
        let failed = self.steps(&state, &order).await.err();
        let finished_at = now_ms();
        let me = self.clone();
        let text = failed.clone();
        let written = tokio::task::spawn_blocking(move || {
            me.file.lock().take().map_or(Ok(()), |mut file| file.finish(finished_at, text))
        });
        let unwritten = match written.await {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some("the end of the job could not be recorded".to_owned()),
        };
        let mut view = self.view.lock();
        view.detail = failed.or(unwritten);
        view.state = if view.detail.is_some() { JobState::Failed } else { JobState::Done };
        view.finished_at_ms = Some(finished_at);
    }

    async fn steps(self: &Arc<Self>, state: &AdminState, order: &Order) -> Result<(), String> {
        let who = self.view().who;
        for subject in &order.denied {
            let reason = format!("end job {}: {}", self.number(), reason_word(order.reason)).into();
            let command = DenyCommand { subject: subject.clone(), until: None, reason };
            denied::deny(state, &who, command).await.map_err(|problem| problem.detail().to_owned())?;
        }
        match &order.targets {
            Targets::Keys(keys) => {
                for keys in keys.chunks(COHORT) {
                    self.cohort(state, order, keys.to_vec()).await?;
                }
                Ok(())
            }
            Targets::Matching { .. } => self.all_matching(state, order).await,
        }
    }

    async fn all_matching(self: &Arc<Self>, state: &AdminState, order: &Order) -> Result<(), String> {
        let Targets::Matching { namespace, user, prefix } = &order.targets else { return Ok(()) };
        let mut after = None;
        loop {
            let query = SessionQuery {
                namespace: namespace.clone(),
                state: None,
                user: user.clone(),
                node: None,
                prefix: prefix.clone(),
                after,
                limit: COHORT,
            };
            let page = state.port.list_sessions(query).await.map_err(|error| error.to_string())?;
            let lives = page.sessions.iter().filter(|session| session.state != StateWord::Ended);
            let keys = lives.map(|session| Key {
                namespace: session.namespace.clone(),
                client_id: session.client_id.clone(),
            });
            let keys: Vec<Key> = keys.collect();
            if !keys.is_empty() {
                self.cohort(state, order, keys).await?;
            }
            after = page.next;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Ends some sessions side by side and records what became of them.
    async fn cohort(
        self: &Arc<Self>,
        state: &AdminState,
        order: &Order,
        keys: Vec<Key>,
    ) -> Result<(), String> {
        let mut ends = JoinSet::new();
        for key in keys {
            let (state, order) = (state.clone(), order.clone());
            ends.spawn(async move { end_one(&state, &order, key).await });
        }
        let mut ended = ends.join_all().await;
        ended.sort_by(|left, right| left.0.client_id.cmp(&right.0.client_id));
        let job = self.view();
        let records = ended.iter().map(|(result, owner)| AuditRecord {
            namespace: result.namespace.to_string(),
            client_id: result.client_id.to_string(),
            owner: owner.as_ref().map(Into::into),
            subject: Some(format!("end job {}", job.job)),
            reason: reason_word(order.reason).to_owned(),
            will: job.request.will.clone().unwrap_or_else(|| "publish".to_owned()),
            release: order.release,
            result: result.result.clone(),
            revision: result.revision,
            ..AuditRecord::of("session.end", &job.who)
        });
        audit::append(&state.audit, records.collect()).await.map_err(|error| error.to_string())?;
        let results: Vec<JobResult> = ended.into_iter().map(|(result, _)| result).collect();
        let (me, lines) = (self.clone(), results.clone());
        let written = tokio::task::spawn_blocking(move || {
            me.file.lock().as_mut().map_or(Ok(()), |file| file.add(lines))
        });
        written
            .await
            .map_err(|_| "a result could not be recorded".to_owned())?
            .map_err(|error| error.to_string())?;
        let mut view = self.view.lock();
        results.iter().for_each(|result| file::count(&mut view, result));
        Ok(())
    }
}

/// Ends the session of `key` if it lives and is one of those that were asked for. Each try names the exact owner that was read, so
/// that a session that changed hands, or users, meanwhile is looked at anew.
async fn end_one(state: &AdminState, order: &Order, key: Key) -> (JobResult, Option<Owner>) {
    let result = |result: &str, revision, detail: Option<String>| JobResult {
        namespace: key.namespace.clone(),
        client_id: key.client_id.clone(),
        result: result.to_owned(),
        revision,
        detail,
    };
    for _ in 0..ATTEMPTS {
        let row = match state.port.show_session(key.clone()).await {
            Ok(Some(row)) => row,
            Ok(None) => return (result("gone", None, None), None),
            Err(error) => return (result("unavailable", None, Some(error.to_string())), None),
        };
        let wanted = match &order.targets {
            Targets::Matching { user: Some(user), .. } => row.summary.user.as_ref() == Some(user),
            _ => true,
        };
        if row.summary.state == StateWord::Ended || !wanted {
            return (result("gone", Some(row.summary.revision), None), None);
        }
        let owner = match Owner::try_from(row.owner) {
            Ok(owner) => owner,
            Err(error) => return (result("invalid", None, Some(error.to_string())), None),
        };
        let command = EndCommand {
            reason: order.reason,
            owner: Some(owner.clone()),
            will: order.will,
            release: order.release,
        };
        match state.port.end_session(key.clone(), command).await {
            Ok(done) => return (result("ended", Some(done.revision), None), Some(done.owner)),
            Err(EndError::Fenced { .. } | EndError::NotFound) => {}
            Err(error) => {
                let problem = Problem::from(error);
                let detail = Some(problem.detail().to_owned());
                return (result(problem.code(), None, detail), Some(owner));
            }
        }
    }
    (result("fenced", None, Some("its owner changed again and again".to_owned())), None)
}

fn now_ms() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
