//! A consumer: reads ahead as far as it was asked to, hands out, and commits only what the application acknowledges.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use session::queue::{Kind, QueueCommand, QueueReply, RECORDS_AT_ONCE, Refusal, SealReason, Settle};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::api::{Joined, leave};
use super::children::Child;
use super::latency::Stage;
use super::{LogPage, QueueError, Request, Response};
use crate::lease::{LeaseFuture, Standing};

/// Between two tries at a store that does not answer.
const RETRY: Duration = Duration::from_millis(200);

/// Names one record of one owner of a log: what an older owner acknowledges with it is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecordId {
    pub channel: u64,
    pub epoch: u64,
    pub offset: u64,
}

/// One record, to be acknowledged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub id: RecordId,
    pub payload: bytes::Bytes,
    /// It may have been handed out before, by this consumer's predecessor.
    pub redelivered: bool,
}

/// What a consumer skipped, and how much it handed out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConsumerStat {
    pub delivered: u64,
    pub redelivered: u64,
    pub expired: u64,
    pub lost: u64,
}

/// Reads records. Dropping it only signals: its membership ends with its lease; [`Consumer::close`] ends it at once.
#[derive(Debug)]
pub struct Consumer {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    joined: Joined,
    state: tokio::sync::Mutex<State>,
    closed: AtomicBool,
    closing: Notify,
    left: tokio::sync::Mutex<bool>,
    counters: [AtomicU64; 4],
    /// Claimed records of a group that are buffered or handed out and not settled.
    known: parking_lot::Mutex<BTreeSet<u64>>,
    /// There may be claims that are ours and not known: a reply was lost, or a record was claimed again while its release was under way.
    /// 0: there are none.
    recheck: AtomicU64,
    released: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// Where each owned log is read on: channel to epoch and offset.
    cursors: BTreeMap<u64, (u64, u64)>,
    buffer: VecDeque<Item>,
    /// Read and not worth handing out: to be settled without the application.
    skipped: Vec<RecordId>,
    sealed: Option<SealReason>,
}

impl Consumer {
    pub(super) fn new(joined: Joined) -> Result<Self, QueueError> {
        let core = Arc::new(Core {
            joined,
            state: tokio::sync::Mutex::default(),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            left: tokio::sync::Mutex::new(false),
            counters: Default::default(),
            known: parking_lot::Mutex::default(),
            recheck: AtomicU64::new(0),
            released: Notify::new(),
        });
        let store = core.joined.store.clone();
        store.register(&(Arc::clone(&core) as Arc<dyn Child>))?;
        Ok(Self { core })
    }

    /// Group and number of the channel.
    #[must_use]
    pub fn chan_id(&self) -> (u16, u64) {
        (self.core.joined.group, self.core.joined.bound.channel)
    }

    #[must_use]
    pub fn consumer_id(&self) -> u64 {
        self.core.joined.bound.member
    }

    /// Up to `batch` records, as soon as there is one; `prefetch` more are read ahead. `wait`: at most so long, `None`: as long as it
    /// takes. Dropping the future loses nothing.
    ///
    /// # Errors
    /// [`QueueError::NoNewMessage`]: none came in time. [`QueueError::ChannelClosed`]: none will come any more.
    /// [`QueueError::LeaseLost`], [`QueueError::Fenced`].
    pub async fn get_data(
        &self,
        batch: usize,
        wait: Option<Duration>,
        prefetch: usize,
    ) -> Result<Vec<Item>, QueueError> {
        self.core.get(batch.max(1), wait.map(|wait| Instant::now() + wait), prefetch).await
    }

    /// Settles records. Repeating it is harmless. Those of a log that has another owner now are not settled.
    ///
    /// # Errors
    /// [`QueueError::Fenced`] when any of them has another owner; the others are settled. [`QueueError::Unavailable`]: repeat it.
    pub async fn ack(&self, ids: &[RecordId]) -> Result<(), QueueError> {
        self.core.settle_timed(ids, Settle::Ack).await
    }

    /// Gives records of a group back to whoever comes next, in their old place.
    ///
    /// # Errors
    /// As [`Consumer::ack`]; the channel is no group.
    pub async fn release(&self, ids: &[RecordId]) -> Result<(), QueueError> {
        if self.core.joined.bound.kind != Kind::Group {
            return Err(Refusal::WrongKind.into());
        }
        self.core.settle_timed(ids, Settle::Release).await
    }

    #[must_use]
    pub fn stat(&self) -> ConsumerStat {
        let [delivered, redelivered, expired, lost] =
            std::array::from_fn(|at| self.core.counters[at].load(Ordering::Relaxed));
        ConsumerStat { delivered, redelivered, expired, lost }
    }

    /// Stops handing out, tells the channel what was handed out, leaves it. Idempotent; after an error it can be repeated. What is not
    /// acknowledged comes to the next consumer; only what was handed out here is marked as redelivered there.
    ///
    /// # Errors
    /// The store did not answer: the membership then ends with its lease.
    pub async fn close(&self) -> Result<(), QueueError> {
        Arc::clone(&self.core).close().await
    }
}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::Release);
        self.core.closing.notify_waiters();
    }
}

fn closed() -> QueueError {
    QueueError::ChannelClosed("this consumer is closed".to_owned())
}

impl Core {
    async fn get(
        &self,
        batch: usize,
        deadline: Option<Instant>,
        prefetch: usize,
    ) -> Result<Vec<Item>, QueueError> {
        let lost = self.joined.guard.lost();
        tokio::pin!(lost);
        let began = Instant::now();
        let mut state = self.state.lock().await;
        loop {
            let closing = self.closing.notified();
            tokio::pin!(closing);
            closing.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return Err(closed());
            }
            if self.joined.guard.standing() == Standing::Lost {
                return Err(QueueError::LeaseLost);
            }
            let target = batch.saturating_add(prefetch).min(RECORDS_AT_ONCE);
            let asked = Instant::now();
            let filled = self.fill(&mut state, target).await;
            self.joined.store.observe(Stage::GetRead, asked.elapsed());
            if !state.buffer.is_empty() {
                let take = batch.min(state.buffer.len());
                let items: Vec<Item> = state.buffer.drain(..take).collect();
                self.count(0, items.len());
                self.count(1, items.iter().filter(|item| item.redelivered).count());
                self.joined.store.observe(Stage::Get, began.elapsed());
                return Ok(items);
            }
            match filled {
                Err(QueueError::Unavailable(_)) => {
                    if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                        return Err(QueueError::NoNewMessage);
                    }
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
                Err(error) => return Err(error),
                Ok(()) => {}
            }
            if let Some(reason) = state.sealed {
                return Err(QueueError::sealed(reason));
            }
            let store = self.joined.store.channels();
            let timeout = async {
                match deadline {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let waiting = Instant::now();
            tokio::select! {
                woken = store.call(self.joined.group, Request::Wait { member: self.joined.bound.member }) => {
                    if woken.is_err() {
                        tokio::time::sleep(RETRY).await;
                    }
                }
                () = &mut closing => {}
                () = self.released.notified() => {}
                () = &mut lost => return Err(QueueError::LeaseLost),
                () = timeout => return Err(QueueError::NoNewMessage),
            }
            self.joined.store.observe(Stage::GetWait, waiting.elapsed());
        }
    }

    /// Reads until `target` records are buffered or nothing more is there.
    async fn fill(&self, state: &mut State, target: usize) -> Result<(), QueueError> {
        if state.buffer.len() >= target {
            return Ok(());
        }
        let filled = match self.joined.bound.kind {
            Kind::Group => self.fill_claims(state, target).await,
            Kind::Mpsc | Kind::Mpmc => self.fill_logs(state, target).await,
        };
        let skipped = std::mem::take(&mut state.skipped);
        if !skipped.is_empty() {
            // Not heard: they are skipped again by whoever reads them next.
            let _ = self.settle(&skipped, Settle::Ack).await;
        }
        filled
    }

    async fn fill_logs(&self, state: &mut State, target: usize) -> Result<(), QueueError> {
        let member = self.joined.bound.member;
        let Response::Owned(owned) = self.call(Request::Owned { member }).await? else {
            return Err(QueueError::Internal("unexpected answer".to_owned()));
        };
        let owned = owned.map_err(gone)?;
        // What went to another one is not handed out any more.
        let is_owned =
            |channel: u64, epoch: u64| owned.iter().any(|log| (log.channel, log.epoch) == (channel, epoch));
        state.buffer.retain(|item| is_owned(item.id.channel, item.id.epoch));
        state.cursors.retain(|channel, (epoch, _)| is_owned(*channel, *epoch));
        let mut sealed = None;
        for log in &owned {
            let (_, from) = *state.cursors.entry(log.channel).or_insert((log.epoch, log.base));
            let room = target.saturating_sub(state.buffer.len());
            if room == 0 {
                return Ok(());
            }
            let at = (member, log.channel, log.epoch);
            let max = u32::try_from(room).unwrap_or(u32::MAX);
            let page = match self.page(Request::Read { at, from, max }).await {
                // It went between the two looks.
                Err(QueueError::Fenced) => continue,
                page => page?,
            };
            state.cursors.insert(log.channel, (log.epoch, page.next));
            sealed = if page.records.is_empty() { page.sealed } else { None };
            self.take(state, log.channel, log.epoch, page);
        }
        state.sealed = sealed;
        Ok(())
    }

    async fn fill_claims(&self, state: &mut State, target: usize) -> Result<(), QueueError> {
        let (member, channel) = (self.joined.bound.member, self.joined.bound.channel);
        let room = u32::try_from(target - state.buffer.len()).unwrap_or(u32::MAX);
        // Set until the reply is there: this future may be dropped.
        let doubts = self.recheck.fetch_add(1, Ordering::AcqRel);
        let recheck = doubts > 0;
        let claim = QueueCommand::Claim { member, max: room };
        let offsets = match self.ask(claim).await? {
            QueueReply::Claimed { offsets } => offsets,
            QueueReply::Refused(refusal) => return Err(gone(refusal)),
            other => return Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
        };
        // What an earlier claim took whose reply was lost is looked for from the beginning.
        let mut from = if recheck { 0 } else { offsets.first().copied().unwrap_or(u64::MAX) };
        let last = if recheck { u64::MAX } else { offsets.last().copied().unwrap_or(u64::MAX) };
        loop {
            let page = self.page(Request::Claimed { member, from, max: room }).await?;
            let next = page.next;
            if page.records.is_empty() {
                state.sealed = page.sealed.filter(|_| offsets.is_empty());
                break;
            }
            let fresh: Vec<_> = {
                let mut known = self.known.lock();
                page.records.into_iter().filter(|record| known.insert(record.offset)).collect()
            };
            self.take(state, channel, 0, LogPage { records: fresh, ..LogPage::default() });
            if next > last {
                break;
            }
            from = next;
        }
        // Whatever raised it meanwhile keeps it raised.
        let _ = self.recheck.compare_exchange(doubts + 1, 0, Ordering::AcqRel, Ordering::Acquire);
        Ok(())
    }

    /// Sorts a page into what is handed out and what is skipped.
    fn take(&self, state: &mut State, channel: u64, epoch: u64, page: LogPage) {
        let now = self.joined.store.channels().now();
        for record in page.records {
            let id = RecordId { channel, epoch, offset: record.offset };
            match record.message {
                Some(message) if message.expires_at.is_none_or(|at| at > now) => {
                    let payload = bytes::Bytes::copy_from_slice(message.payload());
                    state.buffer.push_back(Item { id, payload, redelivered: record.redelivered });
                }
                Some(_expired) => {
                    self.count(2, 1);
                    state.skipped.push(id);
                }
                None => {
                    self.count(3, 1);
                    state.skipped.push(id);
                }
            }
        }
    }

    /// The same for the application.
    async fn settle_timed(&self, ids: &[RecordId], how: Settle) -> Result<(), QueueError> {
        let asked = Instant::now();
        let settled = self.settle(ids, how).await;
        self.joined.store.observe(Stage::Ack, asked.elapsed());
        settled
    }

    async fn settle(&self, ids: &[RecordId], how: Settle) -> Result<(), QueueError> {
        let member = self.joined.bound.member;
        let mut fenced = false;
        let mut by_log: BTreeMap<(u64, u64), Vec<u64>> = BTreeMap::new();
        for id in ids {
            by_log.entry((id.channel, id.epoch)).or_default().push(id.offset);
        }
        for ((channel, epoch), offsets) in by_log {
            for offsets in offsets.chunks(RECORDS_AT_ONCE) {
                let command = if self.joined.bound.kind == Kind::Group {
                    let settles = offsets.iter().map(|offset| (*offset, how)).collect();
                    QueueCommand::Settle { member, settles }
                } else {
                    let sparse = offsets.to_vec();
                    QueueCommand::Ack { member, channel, epoch, through: 0, sparse }
                };
                match self.ask(command).await? {
                    QueueReply::Settled { .. } if self.joined.bound.kind == Kind::Group => {
                        let mut known = self.known.lock();
                        for offset in offsets {
                            known.remove(offset);
                        }
                        if how == Settle::Release {
                            self.recheck.fetch_add(1, Ordering::AcqRel);
                            self.released.notify_one();
                        }
                    }
                    QueueReply::Settled { .. } => {}
                    // A drained sub-channel goes with its last record: then it was settled before.
                    QueueReply::Refused(Refusal::Missing) => {}
                    QueueReply::Refused(Refusal::Fenced) => fenced = true,
                    QueueReply::Refused(refusal) => return Err(refusal.into()),
                    other => return Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
                }
            }
        }
        match fenced {
            false => Ok(()),
            // It gave them up itself.
            true if self.closed.load(Ordering::Acquire) => Err(closed()),
            true => Err(QueueError::Fenced),
        }
    }

    async fn call(&self, request: Request) -> Result<Response, QueueError> {
        Ok(self.joined.store.channels().call(self.joined.group, request).await?)
    }

    async fn ask(&self, command: QueueCommand) -> Result<QueueReply, QueueError> {
        match self.call(Request::Queue(command)).await? {
            Response::Queue(reply) => Ok(reply),
            other => Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
        }
    }

    async fn page(&self, request: Request) -> Result<LogPage, QueueError> {
        match self.call(request).await? {
            Response::Page(page) => Ok(page?),
            other => Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
        }
    }

    fn count(&self, at: usize, by: usize) {
        self.counters[at].fetch_add(by as u64, Ordering::Relaxed);
    }
}

/// The member is not there any more: its lease ended.
fn gone(refusal: Refusal) -> QueueError {
    match refusal {
        Refusal::Fenced | Refusal::Missing => QueueError::LeaseLost,
        other => other.into(),
    }
}

impl Child for Core {
    fn close(self: Arc<Self>) -> LeaseFuture<'static, Result<(), QueueError>> {
        Box::pin(async move {
            self.closed.store(true, Ordering::Release);
            self.closing.notify_waiters();
            let mut left = self.left.lock().await;
            if *left {
                return Ok(());
            }
            let state = self.state.lock().await;
            // What waits in the buffer was not handed out.
            let mut delivered: BTreeMap<u64, u64> =
                state.cursors.iter().map(|(channel, (_, next))| (*channel, *next)).collect();
            for item in state.buffer.iter().rev() {
                delivered.insert(item.id.channel, item.id.offset);
            }
            let delivered = delivered.into_iter().collect();
            leave(&self.joined.store, self.joined.group, self.joined.bound.member, delivered).await?;
            *left = true;
            Ok(())
        })
    }
}
