//! What the queue layer asks of a group: pages of records with their bodies, lease time, and who waits.

use std::time::Instant;

use session::lifecycle::Group;
use session::queue::{Page, Refusal};

use super::{Machine, READ_AGAIN_MAX};
use crate::StorageError;
use crate::queue::{LogPage, LogRecord, PAGE_BYTES_MAX, Wakes};

impl Machine {
    pub(super) fn see_lease_time(&self, clock: u64) {
        let mut seen = self.lease_clock.lock();
        if seen.0 != clock {
            *seen = (clock, Instant::now());
        }
    }

    /// See [`crate::Store::lease_clock`].
    pub(crate) fn lease_clock(&self) -> (u64, Instant) {
        *self.lease_clock.lock()
    }

    /// Who waits for commits of channels.
    pub(crate) fn wakes(&self) -> &Wakes {
        &self.wakes
    }

    /// A page of a log of the queue layer, with its bodies; `read` fills it. A body that is nowhere is lost, and says so: it is no dead
    /// end.
    pub(crate) fn read_records(
        &self,
        read: impl Fn(&Group, &mut Page) -> Result<(), Refusal>,
    ) -> Result<Result<LogPage, Refusal>, StorageError> {
        for attempt in 1..=READ_AGAIN_MAX {
            let mut page = Page::default();
            if let Err(refusal) = self.read(|group| read(group, &mut page)) {
                return Ok(Err(refusal));
            }
            if let Some(page) = self.with_bodies(page, attempt == READ_AGAIN_MAX)? {
                return Ok(Ok(page));
            }
        }
        Ok(Ok(LogPage::default()))
    }

    /// `None`: a body went since the page was read; unless it is the last attempt, then it is lost.
    fn with_bodies(&self, page: Page, last: bool) -> Result<Option<LogPage>, StorageError> {
        let mut whole = LogPage { next: page.next, sealed: page.sealed, ..LogPage::default() };
        let mut bytes = 0;
        for record in page.records {
            let message = match record.message {
                Some(message) => Some(message),
                None => self.body(record.body)?,
            };
            if message.is_none() && !last {
                return Ok(None);
            }
            bytes += message.as_ref().map_or(0, |message| message.len());
            if bytes > PAGE_BYTES_MAX && !whole.records.is_empty() {
                (whole.next, whole.sealed) = (record.offset, None);
                break;
            }
            let (offset, redelivered) = (record.offset, record.redelivered);
            whole.records.push(LogRecord { offset, redelivered, message });
        }
        Ok(Some(whole))
    }
}
