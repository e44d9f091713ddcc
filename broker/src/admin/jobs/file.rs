//! A job on disk: `jobs/NUMBER.jsonl`, a line for what was asked, one a session, and one for its end. Lines are fsynced before they count.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::run::Job;
use super::{JobRequest, JobResult, JobState, JobView};

const SUFFIX: &str = "jsonl";
/// Bytes of a file that are read; a longer one was not written by this program.
const READ_BYTES_MAX: u64 = 4 << 30;

/// The files of the jobs cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct JobFileError {
    pub path: PathBuf,
    pub source: io::Error,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Begun { job: u64, who: String, at_ms: u64, request: JobRequest },
    Session(JobResult),
    Finished { at_ms: u64, failed: Option<String> },
}

/// The file of one job, open for writing.
#[derive(Debug)]
pub(super) struct JobFile {
    path: PathBuf,
    file: File,
}

impl JobFile {
    /// Makes the file with its first line.
    pub(super) fn create(directory: &Path, view: &JobView) -> Result<Self, JobFileError> {
        let path = directory.join(format!("{}.{SUFFIX}", view.job));
        let made = || {
            let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path)?;
            File::open(directory)?.sync_all()?;
            Ok(file)
        };
        let file = made().map_err(|source| JobFileError { path: path.clone(), source })?;
        let mut made = Self { path, file };
        made.append(&[Line::Begun {
            job: view.job,
            who: view.who.clone(),
            at_ms: view.at_ms,
            request: view.request.clone(),
        }])?;
        Ok(made)
    }

    pub(super) fn add(&mut self, results: Vec<JobResult>) -> Result<(), JobFileError> {
        let lines: Vec<Line> = results.into_iter().map(Line::Session).collect();
        self.append(&lines)
    }

    pub(super) fn finish(&mut self, at_ms: u64, failed: Option<String>) -> Result<(), JobFileError> {
        self.append(&[Line::Finished { at_ms, failed }])
    }

    fn append(&mut self, lines: &[Line]) -> Result<(), JobFileError> {
        let write = || {
            let mut bytes = Vec::new();
            for line in lines {
                serde_json::to_writer(&mut bytes, line)?;
                bytes.push(b'\n');
            }
            (&self.file).write_all(&bytes)?;
            self.file.sync_data()
        };
        write().map_err(|source| JobFileError { path: self.path.clone(), source })
    }
}

/// Every job of earlier runs, by number. A file that is no job's is passed over with a warning.
pub(super) fn read_all(directory: &Path) -> Result<BTreeMap<u64, Arc<Job>>, JobFileError> {
    let fault = |source| JobFileError { path: directory.to_owned(), source };
    std::fs::create_dir_all(directory).map_err(fault)?;
    let mut jobs = BTreeMap::new();
    for entry in std::fs::read_dir(directory).map_err(fault)? {
        let path = entry.map_err(fault)?.path();
        match read(&path) {
            Ok(view) => drop(jobs.insert(view.job, Arc::new(Job::over(path, view)))),
            Err(error) => tracing::warn!(file = %path.display(), %error, "not a job; it is passed over"),
        }
    }
    Ok(jobs)
}

fn read(path: &Path) -> io::Result<JobView> {
    let mut lines = lines(path)?;
    let Some(Ok(Line::Begun { job, who, at_ms, request })) = lines.next() else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its first line does not begin a job"));
    };
    let mut view = JobView {
        job,
        state: JobState::Interrupted,
        detail: Some("the node stopped; repeat the call to end what is left".to_owned()),
        who,
        at_ms,
        finished_at_ms: None,
        request,
        ended: 0,
        gone: 0,
        failed: 0,
    };
    for line in lines {
        match line? {
            Line::Session(result) => count(&mut view, &result),
            Line::Finished { at_ms, failed } => {
                view.state = if failed.is_some() { JobState::Failed } else { JobState::Done };
                (view.detail, view.finished_at_ms) = (failed, Some(at_ms));
            }
            Line::Begun { .. } => {}
        }
    }
    Ok(view)
}

pub(super) fn count(view: &mut JobView, result: &JobResult) {
    match &*result.result {
        "ended" => view.ended += 1,
        "gone" => view.gone += 1,
        _ => view.failed += 1,
    }
}

/// Whole lines of a file; one that was torn by a crash is passed over.
fn lines(path: &Path) -> io::Result<impl Iterator<Item = io::Result<Line>> + use<>> {
    use std::io::Read as _;
    let file = BufReader::new(File::open(path)?.take(READ_BYTES_MAX));
    Ok(file.lines().filter_map(|line| match line {
        Ok(line) => serde_json::from_str(&line).ok().map(Ok),
        Err(error) => Some(Err(error)),
    }))
}

/// Up to `limit` results from the `from`-th on, and where to go on when there may be more.
pub(super) fn results(
    path: &Path,
    from: u64,
    limit: usize,
    failed_only: bool,
) -> Result<(Vec<JobResult>, Option<u64>), JobFileError> {
    let fault = |source| JobFileError { path: path.to_owned(), source };
    let mut page = Vec::new();
    let mut seen = 0;
    for line in lines(path).map_err(fault)? {
        let Line::Session(result) = line.map_err(fault)? else { continue };
        seen += 1;
        if seen <= from || (failed_only && !result.is_failure()) {
            continue;
        }
        if page.len() == limit {
            return Ok((page, Some(seen - 1)));
        }
        page.push(result);
    }
    Ok((page, None))
}
