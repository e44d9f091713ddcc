//! Who ended or retired what, when, why, with which result: one JSON line a decision, fsynced before the answer goes out.
//!
//! `audit.jsonl` grows to its limit, then becomes `audit.1.jsonl` in place of the one before: at most two files. After a
//! failed write nothing more is ended over the API, since it could not be recorded.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::model::OwnerView;

pub(super) const CURRENT: &str = "audit.jsonl";
const OLDER: &str = "audit.1.jsonl";
/// Bytes of one line; a ClientID of 1,024 bytes escapes to six times that, and stands there twice.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// Bytes read from a file for one page.
pub(super) const READ_BYTES_MAX: u64 = 8 << 20;

/// One decision.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditRecord {
    /// Grows by one; set when the record is written.
    pub seq: u64,
    /// When it was written, milliseconds since the Unix epoch.
    pub at_ms: u64,
    /// `session.end`, `node.retire`, `deny.add`, `deny.remove`, `cluster.init`, `cluster.join`, `cluster.remove`, `reload` or `backup`.
    pub action: String,
    pub who: String,
    /// Of the session; empty when it is about something else.
    pub namespace: String,
    pub client_id: String,
    /// What else it is about, for example `user alice` or `end job 3`.
    #[serde(default)]
    pub subject: Option<String>,
    /// The owner that was ended, or that was to be.
    pub owner: Option<OwnerView>,
    pub reason: String,
    pub will: String,
    pub release: bool,
    /// `ended`, `gone`, `retired`, `already_retired`, `done`, or the code of the problem that was answered.
    pub result: String,
    pub revision: Option<u64>,
    /// The node and the boot that were retired, or were to be.
    #[serde(default)]
    pub node_id: Option<u64>,
    #[serde(default)]
    pub boot_id: Option<String>,
    /// Whether the end of its lease was waited for.
    #[serde(default)]
    pub waited: Option<bool>,
    /// What the fence agent said, or what was wrong.
    #[serde(default)]
    pub detail: Option<String>,
}

impl AuditRecord {
    /// A record about nothing yet.
    #[must_use]
    pub fn of(action: &str, who: &str) -> Self {
        Self {
            seq: 0,
            at_ms: 0,
            action: action.to_owned(),
            who: who.to_owned(),
            namespace: String::new(),
            client_id: String::new(),
            subject: None,
            owner: None,
            reason: String::new(),
            will: String::new(),
            release: false,
            result: String::new(),
            revision: None,
            node_id: None,
            boot_id: None,
            waited: None,
            detail: None,
        }
    }
}

/// Which records; what is `None` does not matter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    pub action: Option<String>,
    pub client_id: Option<String>,
    pub result: Option<String>,
}

impl AuditFilter {
    fn wants(&self, record: &AuditRecord) -> bool {
        let is = |wanted: &Option<String>, value: &str| wanted.as_ref().is_none_or(|wanted| wanted == value);
        is(&self.action, &record.action)
            && is(&self.client_id, &record.client_id)
            && is(&self.result, &record.result)
    }
}

/// Answer of `GET /v1/audit`: newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditPage {
    pub records: Vec<AuditRecord>,
    /// Give it back as `cursor` for older ones; `null`: there are none.
    pub cursor: Option<String>,
}

/// Why a decision cannot be recorded or read.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    #[error("the audit log {path} failed: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("an earlier write to the audit log failed; free space or replace the disk, then restart")]
    Poisoned,
}

/// The audit log of one node.
#[derive(Debug)]
pub struct Audit {
    directory: PathBuf,
    bytes_max: u64,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    /// `None`: poisoned.
    file: Option<File>,
    bytes: u64,
    next_seq: u64,
}

impl Audit {
    /// Opens or makes the log in the data directory. A torn last line is closed off, so that it stays alone.
    ///
    /// # Errors
    /// I/O.
    pub fn open(directory: &Path, bytes_max: u64) -> Result<Self, AuditError> {
        let path = directory.join(CURRENT);
        let open = || {
            let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(&path)?;
            let mut bytes = file.metadata()?.len();
            if bytes > 0 {
                let mut last = [0];
                file.seek(SeekFrom::End(-1))?;
                file.read_exact(&mut last)?;
                if last != *b"\n" {
                    file.write_all(b"\n")?;
                    bytes += 1;
                }
            }
            file.sync_all()?;
            File::open(directory)?.sync_all()?;
            Ok((file, bytes))
        };
        let (file, bytes) = open().map_err(|source| AuditError::Io { path: path.clone(), source })?;
        let audit = Self {
            directory: directory.to_owned(),
            bytes_max,
            log: Mutex::new(Log { file: Some(file), bytes, next_seq: 1 }),
        };
        let newest =
            audit.page(1, None, &AuditFilter::default())?.records.first().map_or(0, |record| record.seq);
        audit.log.lock().next_seq = newest + 1;
        Ok(audit)
    }

    /// Whether the next decision can be recorded, as far as is known.
    ///
    /// # Errors
    /// When an earlier write failed.
    pub fn check(&self) -> Result<(), AuditError> {
        if self.log.lock().file.is_some() { Ok(()) } else { Err(AuditError::Poisoned) }
    }

    /// Writes records and fsyncs them together; `seq` and `at_ms` are set here. Blocks.
    ///
    /// # Errors
    /// I/O: the log then takes no more records.
    pub fn append(&self, records: Vec<AuditRecord>) -> Result<(), AuditError> {
        let mut log = self.log.lock();
        let Some(mut file) = log.file.take() else { return Err(AuditError::Poisoned) };
        let at_ms = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        let write = || {
            for mut record in records {
                (record.seq, record.at_ms) = (log.next_seq, at_ms);
                let mut line = serde_json::to_vec(&record)?;
                line.push(b'\n');
                if log.bytes > 0 && log.bytes + line.len() as u64 > self.bytes_max {
                    file.sync_data()?;
                    file = self.rotate()?;
                    log.bytes = 0;
                }
                file.write_all(&line)?;
                log.bytes += line.len() as u64;
                log.next_seq += 1;
            }
            file.sync_data()
        };
        write().map_err(|source| AuditError::Io { path: self.directory.join(CURRENT), source })?;
        log.file = Some(file);
        Ok(())
    }

    fn rotate(&self) -> io::Result<File> {
        std::fs::rename(self.directory.join(CURRENT), self.directory.join(OLDER))?;
        let path = self.directory.join(CURRENT);
        let file = OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(path)?;
        File::open(&self.directory)?.sync_all()?;
        Ok(file)
    }

    /// Up to `limit` wanted records before sequence number `before`, newest first; maybe fewer, even none, although there are more. Blocks.
    ///
    /// # Errors
    /// I/O.
    pub fn page(
        &self,
        limit: usize,
        before: Option<u64>,
        wanted: &AuditFilter,
    ) -> Result<AuditPage, AuditError> {
        let mut look = Look {
            limit,
            wanted,
            before: before.unwrap_or(u64::MAX),
            budget: READ_BYTES_MAX,
            records: Vec::new(),
        };
        for name in [CURRENT, OLDER] {
            let path = self.directory.join(name);
            match look.collect(&path) {
                Ok(true) => {
                    let cursor = Some(look.before.to_string());
                    return Ok(AuditPage { records: look.records, cursor });
                }
                Ok(false) => {}
                Err(source) if source.kind() == io::ErrorKind::NotFound => (),
                Err(source) => return Err(AuditError::Io { path, source }),
            }
        }
        Ok(AuditPage { records: look.records, cursor: None })
    }
}

/// [`Audit::append`] from a task.
pub(super) async fn append(audit: &Arc<Audit>, records: Vec<AuditRecord>) -> Result<(), AuditError> {
    let audit = Arc::clone(audit);
    let written = tokio::task::spawn_blocking(move || audit.append(records)).await;
    written.unwrap_or(Err(AuditError::Poisoned))
}

/// One page in the making.
struct Look<'a> {
    limit: usize,
    wanted: &'a AuditFilter,
    /// Everything from here on was looked at.
    before: u64,
    /// Bytes that may still be read.
    budget: u64,
    records: Vec<AuditRecord>,
}

impl Look<'_> {
    /// Reads `path` from its end; true when records were left out. Lines that are no record (torn by a crash) are passed over.
    fn collect(&mut self, path: &Path) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let mut end = end_of(&mut file, self.before)?;
        // Bytes of a line whose beginning is in an earlier block.
        let mut tail = Vec::new();
        while end > 0 {
            if self.budget == 0 {
                return Ok(true);
            }
            let len = end.min(LINE_BYTES_MAX);
            self.budget = self.budget.saturating_sub(len);
            end -= len;
            let mut block = read_at(&mut file, end, len)?;
            block.append(&mut tail);
            let mut lines = block.split(|byte| *byte == b'\n');
            let first = lines.next().unwrap_or_default();
            let whole: Vec<&[u8]> =
                if end == 0 { std::iter::once(first).chain(lines).collect() } else { lines.collect() };
            for line in whole.iter().rev().filter(|line| !line.is_empty()) {
                let Ok(record) = serde_json::from_slice::<AuditRecord>(line) else { continue };
                if record.seq >= self.before {
                    continue;
                }
                let wanted = self.wanted.wants(&record);
                if wanted && self.records.len() >= self.limit {
                    return Ok(true);
                }
                self.before = record.seq;
                self.records.extend(wanted.then_some(record));
            }
            if end > 0 {
                tail = first.to_vec();
            }
        }
        Ok(false)
    }
}

fn read_at(file: &mut File, at: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut block = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut block)?;
    Ok(block)
}

/// An offset behind which no record before `before` begins, and not far behind the last of them: so that a page in the middle of a large file
/// is not looked for from its end.
fn end_of(file: &mut File, before: u64) -> io::Result<u64> {
    let end = file.metadata()?.len();
    let (mut low, mut high) = (0, end);
    while before != u64::MAX && high - low > LINE_BYTES_MAX {
        let middle = low + (high - low) / 2;
        let block = read_at(file, middle, (2 * LINE_BYTES_MAX).min(end - middle))?;
        let mut lines = block.split(|byte| *byte == b'\n').skip(1);
        let first = lines.find_map(|line| serde_json::from_slice::<AuditRecord>(line).ok());
        if first.is_some_and(|record| record.seq < before) {
            low = middle;
        } else {
            high = middle;
        }
    }
    // The last of them may begin before `high` and end behind it.
    Ok(end.min(high.saturating_add(2 * LINE_BYTES_MAX)))
}
