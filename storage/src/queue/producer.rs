//! A producer: one append at a time, stamped, so that a retry appends nothing twice and a record is never half there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use session::message::{Message, QoS};
use session::queue::{QueueCommand, QueueReply, Refusal};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use super::api::{Joined, leave};
use super::children::Child;
use super::latency::Stage;
use super::{QueueError, Request, Response};
use crate::lease::LeaseFuture;

/// Between two tries of an append whose fate is not known.
const RETRY_MIN: Duration = Duration::from_millis(50);
const RETRY_MAX: Duration = Duration::from_secs(2);

/// One record to append.
#[derive(Debug, Clone)]
pub struct Record {
    payload: Vec<u8>,
    expires_in: Option<Duration>,
    exclusive: bool,
}

impl Record {
    #[must_use]
    pub fn new(payload: impl Into<Vec<u8>>) -> Self {
        Self { payload: payload.into(), expires_in: None, exclusive: false }
    }

    /// Nobody gets it later than that; it is skipped and counted.
    #[must_use]
    pub fn expires_in(self, after: Duration) -> Self {
        Self { expires_in: Some(after), ..self }
    }

    /// In a group: once a consumer took it, no other one gets it, whatever becomes of that one.
    #[must_use]
    pub fn exclusive(self) -> Self {
        Self { exclusive: true, ..self }
    }
}

impl<T: Into<Vec<u8>>> From<T> for Record {
    fn from(payload: T) -> Self {
        Self::new(payload)
    }
}

/// Appends records. Dropping it only signals: its membership ends with its lease; [`Producer::close`] ends it at once.
#[derive(Debug)]
pub struct Producer {
    core: Arc<Core>,
}

#[derive(Debug)]
struct Core {
    joined: Joined,
    /// Number of the last append that was done.
    sequence: Arc<tokio::sync::Mutex<u64>>,
    closed: AtomicBool,
    closing: Notify,
    left: tokio::sync::Mutex<bool>,
}

impl Producer {
    pub(super) fn new(joined: Joined) -> Result<Self, QueueError> {
        let core = Arc::new(Core {
            joined,
            sequence: Arc::default(),
            closed: AtomicBool::new(false),
            closing: Notify::new(),
            left: tokio::sync::Mutex::new(false),
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
    pub fn producer_id(&self) -> u64 {
        self.core.joined.bound.member
    }

    /// Whether this bind made the channel.
    #[must_use]
    pub fn created(&self) -> bool {
        self.core.joined.bound.created
    }

    /// Appends one record; waits for room as long as it takes. Returns when it is durable.
    ///
    /// # Errors
    /// [`QueueError::ProducerClosed`], [`QueueError::LeaseLost`], a sealed channel, a record that is too large.
    pub async fn put_data(&self, record: impl Into<Record>) -> Result<(), QueueError> {
        self.put_batch(vec![record.into()], None).await
    }

    /// The same, waiting for room at most so long.
    ///
    /// # Errors
    /// Also [`QueueError::MessageBufferFull`]: nothing was appended.
    pub async fn put_data_within(&self, record: impl Into<Record>, wait: Duration) -> Result<(), QueueError> {
        self.put_batch(vec![record.into()], Some(wait)).await
    }

    /// Appends records, all or none, one after the other. Dropping the future while it waits for room appends nothing; while it waits
    /// for the disk, all or nothing: then nobody knows which, as when a process dies.
    ///
    /// # Errors
    /// As [`Producer::put_data_within`].
    pub async fn put_batch(&self, records: Vec<Record>, wait: Option<Duration>) -> Result<(), QueueError> {
        let core = Arc::clone(&self.core);
        let deadline = wait.map(|wait| Instant::now() + wait);
        let now = core.joined.store.channels().now();
        let message = |record: Record| {
            let mut message = Message::new("", &[], &record.payload);
            message.qos = if record.exclusive { QoS::ExactlyOnce } else { QoS::AtLeastOnce };
            message.expires_at = record
                .expires_in
                .map(|after| now.plus_ms(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
            message
        };
        let messages: Vec<Message> = records.into_iter().map(message).collect();
        // Dropped with this future; the append itself is never cut off in the middle.
        let (_alive, gone) = oneshot::channel::<()>();
        let append = tokio::spawn(async move { core.append(messages, deadline, gone).await });
        append.await.unwrap_or_else(|error| Err(QueueError::Internal(error.to_string())))
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.core.closed.load(Ordering::Acquire)
    }

    /// Stops admission, lets an append that is under way end, leaves the channel. Idempotent; after an error it can be repeated.
    ///
    /// # Errors
    /// The store did not answer: the membership then ends with its lease.
    pub async fn close(&self) -> Result<(), QueueError> {
        Arc::clone(&self.core).close().await
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::Release);
        self.core.closing.notify_waiters();
    }
}

impl Core {
    async fn append(
        &self,
        messages: Vec<Message>,
        deadline: Option<Instant>,
        mut gone: oneshot::Receiver<()>,
    ) -> Result<(), QueueError> {
        let began = Instant::now();
        let lost = self.joined.guard.lost();
        tokio::pin!(lost);
        let mut sequence = self.sequence.lock().await;
        let member = self.joined.bound.member;
        let command = QueueCommand::Append { member, sequence: *sequence + 1, messages };
        let mut retry = RETRY_MIN;
        loop {
            let closing = self.closing.notified();
            tokio::pin!(closing);
            closing.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return Err(QueueError::ProducerClosed);
            }
            if self.joined.guard.standing() == crate::lease::Standing::Lost {
                return Err(QueueError::LeaseLost);
            }
            let asked = Instant::now();
            let answer = self.ask(command.clone()).await;
            self.joined.store.observe(Stage::PutAppend, asked.elapsed());
            let pause = match answer {
                Ok(QueueReply::Appended { .. }) => {
                    self.joined.store.observe(Stage::Put, began.elapsed());
                    *sequence += 1;
                    return Ok(());
                }
                Ok(QueueReply::Refused(Refusal::Full)) => None,
                Ok(QueueReply::Refused(Refusal::Fenced)) => return Err(QueueError::LeaseLost),
                Ok(QueueReply::Refused(refusal)) => return Err(refusal.into()),
                Ok(other) => return Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
                // The stamp makes repeating it safe.
                Err(_unknown) => Some(retry),
            };
            let store = self.joined.store.channels();
            let wait = async {
                match pause {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => {
                        if store.call(self.joined.group, Request::Wait { member }).await.is_err() {
                            tokio::time::sleep(retry).await;
                        }
                    }
                }
            };
            let timeout = async {
                match deadline.filter(|_| pause.is_none()) {
                    Some(deadline) => tokio::time::sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let (given_up, waiting) = (pause.is_none(), Instant::now());
            tokio::select! {
                () = wait => {}
                () = &mut closing => {}
                () = &mut lost => return Err(QueueError::LeaseLost),
                () = timeout => {
                    self.withdraw().await;
                    return Err(QueueError::MessageBufferFull);
                }
                _ = &mut gone, if given_up => {
                    self.withdraw().await;
                    return Err(QueueError::MessageBufferFull);
                }
            }
            if given_up {
                self.joined.store.observe(Stage::PutRoom, waiting.elapsed());
            }
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    async fn ask(&self, command: QueueCommand) -> Result<QueueReply, QueueError> {
        let store = self.joined.store.channels();
        match store.call(self.joined.group, Request::Queue(command)).await? {
            Response::Queue(reply) => Ok(reply),
            other => Err(QueueError::Internal(format!("unexpected answer {other:?}"))),
        }
    }

    /// Others need not keep room for it; where that is not heard, the next append or the end of the lease says it.
    async fn withdraw(&self) {
        let _ = self.ask(QueueCommand::Withdraw { member: self.joined.bound.member }).await;
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
            // An append that is under way ends first: what it says is then true.
            let _last = self.sequence.lock().await;
            leave(&self.joined.store, self.joined.group, self.joined.bound.member, Vec::new()).await?;
            *left = true;
            Ok(())
        })
    }
}
