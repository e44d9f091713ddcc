//! What other threads send to a worker, and the handle by which they do.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use gateway::driver::Mailbox;
use gateway::link::{CloseRequest, LinkId};
use session::id::Key;
use session::lifecycle::Reply;
use session::message::{Message, QoS};
use smallvec::SmallVec;
use storage::{CompletionPort, DeliveryPort, GroupId, InboxEntry, Pushed, StorageError};
use tokio::sync::{oneshot, watch};

use super::retained::RetainedPage;
use super::stats::{StatsView, WorkerStats};
use super::sys::SysTopics;
use crate::owners::CloseLinks;
use crate::route::{LiveTarget, PartyId};

/// Bytes of messages on their way to one worker; QoS 0 may use half of them. What comes on top is dropped and counted.
const TRANSIT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Bytes that a message on its way is taken to need beside its body.
const PARCEL_OVERHEAD: usize = 256;

/// One letter to a worker.
#[derive(Debug)]
pub enum Mail {
    /// Messages for connections of the worker.
    Deliver(Vec<Parcel>),
    /// Messages of other nodes, whose subscribers the worker chooses.
    Arrived(Vec<Arrival>),
    /// Replies by token, of the commands of one group or of what else was waited for.
    Committed(Source, Vec<(u64, Result<Reply, Arc<StorageError>>)>),
    /// Messages appended to inboxes whose sessions are connected here.
    Pushed(Vec<Pushed>),
    /// A page of an inbox that was behind.
    InboxPage {
        link: LinkId,
        page: Result<InboxPage, Arc<StorageError>>,
    },
    /// Retained messages of a new subscription.
    Retained {
        link: LinkId,
        found: Result<RetainedPage, Arc<StorageError>>,
    },
    Close(LinkId, CloseRequest),
    /// Another node kept messages from this one.
    Withheld,
    /// So many messages of another node had a topic that nobody may publish to.
    PassedOver(u64),
    /// Somebody waits until all letters before this one are read: dropped then.
    Read(oneshot::Sender<()>),
}

/// Entries of an inbox, and the offset to go on from.
#[derive(Debug)]
pub struct InboxPage {
    pub entries: Vec<InboxEntry>,
    pub next: u64,
}

/// One message for connections of another worker.
#[derive(Debug)]
pub struct Parcel {
    pub message: Arc<Message>,
    /// For No Local.
    pub publisher: PartyId,
    /// The publisher that is no connection of this node (one of another node, or a Will's), for No Local.
    pub foreign: Option<Arc<Key>>,
    /// To every matching session without an inbox: the worker resolves them itself.
    pub everyone: bool,
    /// To these, past any inbox.
    pub targets: Vec<LiveTarget>,
    /// Dropped when the outboxes have it: another node waits for that. With the place of the message in its batch.
    pub taken: Option<(Arc<Taken>, u32)>,
}

/// One message that another node sent here for its live subscribers.
#[derive(Debug)]
pub struct Arrival {
    pub message: Arc<Message>,
    /// Who published it there; `None`: nobody.
    pub publisher: Option<Arc<Key>>,
    /// To every matching subscriber that is connected here.
    pub everyone: bool,
    /// To one member of each of these shares (whole filters).
    pub shares: SmallVec<[Arc<str>; 1]>,
    /// Dropped when the outboxes have it. With the place of the message in its batch.
    pub taken: (Arc<Taken>, u32),
}

/// Messages of a batch, by their place in it, with the shares that nobody here took them for.
pub type Unserved = Vec<(u32, Arc<str>)>;

/// Closes its channel when the last one who still has something to do with a batch drops it.
#[derive(Debug)]
pub struct Taken {
    open: watch::Sender<Unserved>,
}

impl Taken {
    #[must_use]
    pub fn new(open: watch::Sender<Unserved>) -> Self {
        Self { open }
    }

    /// There is no member of the share here any more that could take the message.
    pub(super) fn nobody(&self, message: u32, share: &Arc<str>) {
        self.open.send_modify(|unserved| unserved.push((message, Arc::clone(share))));
    }
}

impl Parcel {
    fn weight(&self) -> usize {
        PARCEL_OVERHEAD + self.message.len() + self.targets.len() * size_of::<LiveTarget>()
    }
}

/// All workers of a node, from any thread.
#[derive(Debug)]
pub struct Workers {
    mailboxes: OnceLock<Arc<[Mailbox<Mail>]>>,
    /// Bytes of parcels on their way, by worker.
    transit: Box<[AtomicUsize]>,
    stats: Box<[Arc<WorkerStats>]>,
    /// Where work goes that would hold a worker up.
    control: tokio::runtime::Handle,
    sys: SysTopics,
}

impl Workers {
    /// Handles of `count` workers; mail that is sent before they run is lost. Must be called on the control runtime.
    #[must_use]
    pub fn new(count: usize) -> Self {
        Self {
            control: tokio::runtime::Handle::current(),
            sys: SysTopics::default(),
            mailboxes: OnceLock::new(),
            transit: (0..count).map(|_| AtomicUsize::new(0)).collect(),
            stats: (0..count).map(|_| Arc::default()).collect(),
        }
    }

    /// Number of workers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.stats.len()
    }

    /// Never true: a node has a worker.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.stats.is_empty()
    }

    /// Counters of all workers together.
    #[must_use]
    pub fn totals(&self) -> StatsView {
        self.stats.iter().fold(StatsView::default(), |sum, stats| sum.plus(&stats.view()))
    }

    /// Letters that wait, by worker.
    #[must_use]
    pub fn mailbox_depths(&self) -> Vec<usize> {
        self.mailboxes.get().map_or_else(Vec::new, |boxes| boxes.iter().map(Mailbox::len).collect())
    }

    /// The `$SYS` topics of the node.
    #[must_use]
    pub fn sys(&self) -> &SysTopics {
        &self.sys
    }

    /// Runs `work` beside the workers: it may take long or read from disk.
    pub(super) fn spawn_blocking(&self, work: impl FnOnce() + Send + 'static) {
        drop(self.control.spawn_blocking(work));
    }

    pub(super) fn open(&self, mailboxes: &Arc<[Mailbox<Mail>]>) {
        // Every worker sets the same; the first one wins.
        let _ = self.mailboxes.set(Arc::clone(mailboxes));
    }

    pub(super) fn stats(&self, worker: u16) -> Arc<WorkerStats> {
        Arc::clone(&self.stats[usize::from(worker)])
    }

    /// Sends one letter; does nothing when the worker has stopped.
    pub(super) fn send(&self, worker: u16, mail: Mail) {
        if let Some(mailbox) = self.mailboxes.get().and_then(|boxes| boxes.get(usize::from(worker))) {
            // A worker that has stopped has no connections: nothing is lost.
            let _ = mailbox.push(mail);
        }
    }

    /// Sends messages; returns how many were dropped because too much is on its way already.
    pub(super) fn deliver(&self, worker: u16, mut parcels: Vec<Parcel>) -> u64 {
        let transit = &self.transit[usize::from(worker)];
        let (weight, dropped) = keep_what_fits(&mut parcels, transit.load(Ordering::Relaxed));
        if !parcels.is_empty() {
            transit.fetch_add(weight, Ordering::Relaxed);
            self.send(worker, Mail::Deliver(parcels));
        }
        dropped
    }

    /// Hands messages of another node to a worker. What is on its way is bounded by the sender, who waits until it was taken.
    pub(crate) fn arrive(&self, worker: u16, arrivals: Vec<Arrival>) {
        self.send(worker, Mail::Arrived(arrivals));
    }

    /// Counts messages of another node that are for nobody.
    pub(crate) fn passed_over(&self, count: u64) {
        if count > 0 {
            self.send(0, Mail::PassedOver(count));
        }
    }

    /// Another node kept messages from this one: the workers close the connections that may have missed any.
    pub(crate) fn withheld(&self) {
        (0..).zip(self.stats.iter()).for_each(|(worker, _)| self.send(worker, Mail::Withheld));
    }

    /// Returns when every letter that is on its way now is read, so that what it brought is in the outboxes; at once where a worker has stopped.
    pub(crate) async fn read(&self) {
        let ask = |worker: u16| {
            let (sender, read) = oneshot::channel();
            self.send(worker, Mail::Read(sender));
            read
        };
        let asked: Vec<_> = (0..).zip(self.stats.iter()).map(|(worker, _)| ask(worker)).collect();
        for read in asked {
            // An error says the same: the letter is gone.
            let _ = read.await;
        }
    }

    /// Runs `work` on the control runtime.
    pub(super) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        drop(self.control.spawn(work));
    }

    /// The worker took these.
    pub(super) fn delivered(&self, worker: u16, parcels: &[Parcel]) {
        let weight = parcels.iter().map(Parcel::weight).sum::<usize>();
        self.transit[usize::from(worker)].fetch_sub(weight, Ordering::Relaxed);
    }
}

/// Drops the parcels that find no room beside `on_their_way` bytes: each is judged by itself, since a turn brings those of one publisher
/// and, for another node's, of many. Bytes of the others, and how many were dropped.
fn keep_what_fits(parcels: &mut Vec<Parcel>, on_their_way: usize) -> (usize, u64) {
    let (count, mut total) = (parcels.len(), on_their_way);
    parcels.retain(|parcel| {
        let room = match parcel.message.qos {
            QoS::AtMostOnce => TRANSIT_BYTES_MAX / 2,
            QoS::AtLeastOnce | QoS::ExactlyOnce => TRANSIT_BYTES_MAX,
        };
        let weight = parcel.weight();
        // One that is too large for the room alone still goes when nothing is on its way.
        let fits = total == 0 || total + weight <= room;
        total += if fits { weight } else { 0 };
        fits
    });
    (total - on_their_way, (count - parcels.len()) as u64)
}

impl CloseLinks for Workers {
    fn close(&self, link: LinkId, request: CloseRequest) {
        self.send(link.worker, Mail::Close(link, request));
    }
}

/// What a reply comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Commands of this group, whose order a lost one breaks.
    Group(GroupId),
    /// Anything else: it has no order that an error could break.
    Other,
}

/// The way back to one worker from the store, of one group or of what else it waits for: a loss in one group holds up nobody in another.
#[derive(Debug)]
pub(super) struct Port {
    worker: u16,
    source: Source,
    workers: Arc<Workers>,
    /// Batches with errors that are on their way to the worker.
    errors: AtomicU64,
}

impl Port {
    pub(super) fn new(worker: u16, source: Source, workers: Arc<Workers>) -> Self {
        Self { worker, source, workers, errors: AtomicU64::new(0) }
    }

    /// The worker has taken in one batch with errors.
    pub(super) fn caught_up(&self) {
        self.errors.fetch_sub(1, Ordering::AcqRel);
    }

    pub(super) fn send(&self, mail: Mail) {
        self.workers.send(self.worker, mail);
    }
}

impl CompletionPort for Port {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        if self.source != Source::Other && batch.iter().any(|(_, reply)| reply.is_err()) {
            self.errors.fetch_add(1, Ordering::AcqRel);
        }
        self.send(Mail::Committed(self.source, batch));
    }

    fn is_behind(&self) -> bool {
        self.errors.load(Ordering::Acquire) > 0
    }
}

impl DeliveryPort for Port {
    fn deliver(&self, batch: Vec<Pushed>) {
        self.send(Mail::Pushed(batch));
    }
}

/// The token of an attached inbox: slot and serial of its link.
pub(super) fn link_token(link: LinkId) -> u64 {
    u64::from(link.serial) << 32 | u64::from(link.slot)
}

/// The link that a token of worker `worker` stands for.
pub(super) fn token_link(worker: u16, token: u64) -> LinkId {
    LinkId { worker, slot: token as u32, serial: (token >> 32) as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(qos: QoS, len: usize) -> Parcel {
        let mut message = Message::new("t", &[], &vec![0; len]);
        message.qos = qos;
        let (publisher, foreign, targets, taken) = (PartyId::default(), None, Vec::new(), None);
        Parcel { message: Arc::new(message), publisher, foreign, everyone: true, targets, taken }
    }

    /// P9: a flood of QoS 0 leaves room for what is acknowledged, and of a turn only what finds no room is dropped.
    #[test]
    fn p9_qos_0_leaves_room_for_acknowledged_messages() {
        let mut flood: Vec<Parcel> = (0..100).map(|_| parcel(QoS::AtMostOnce, 1 << 20)).collect();
        flood.push(parcel(QoS::AtLeastOnce, 1 << 20));
        let (weight, dropped) = keep_what_fits(&mut flood, 0);
        assert_eq!(
            (flood.len(), dropped),
            (32, 69),
            "half of the room, less what 31 parcels need beside bodies"
        );
        assert_eq!(flood.last().map(|parcel| parcel.message.qos), Some(QoS::AtLeastOnce));
        assert_eq!(weight, flood.iter().map(Parcel::weight).sum::<usize>());
        let mut more = vec![parcel(QoS::AtMostOnce, 1), parcel(QoS::ExactlyOnce, 1 << 20)];
        assert_eq!(keep_what_fits(&mut more, weight).1, 1, "QoS 0 has had its half, QoS 2 finds room");
        assert_eq!(more.len(), 1);
        let mut more = vec![parcel(QoS::ExactlyOnce, 1)];
        assert_eq!(keep_what_fits(&mut more, TRANSIT_BYTES_MAX).1, 1);
    }

    /// A message that is larger than the room goes when nothing else is on its way.
    #[test]
    fn a_large_message_reaches_another_worker() {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            let mut large = vec![parcel(qos, TRANSIT_BYTES_MAX), parcel(qos, 1)];
            assert_eq!(keep_what_fits(&mut large, 0).1, 1);
            assert_eq!(large.len(), 1);
            assert_eq!(keep_what_fits(&mut large, 1).1, 1);
        }
    }

    /// P2: a loss in one group, or of what has no order, refuses nothing that is proposed to another group.
    #[tokio::test]
    async fn a_loss_is_told_to_its_own_group_only() {
        let workers = Arc::new(Workers::new(1));
        let port = |source| Port::new(0, source, workers.clone());
        let lost = || Err(Arc::new(StorageError::Unavailable("lost".to_owned())));
        let (one, other) = (port(Source::Group(GroupId(1))), port(Source::Group(GroupId(2))));
        one.complete(vec![(1, lost())]);
        assert!(one.is_behind() && !other.is_behind());
        one.caught_up();
        assert!(!one.is_behind());
        let anything = port(Source::Other);
        anything.complete(vec![(1, lost())]);
        assert!(!anything.is_behind());
    }

    #[test]
    fn a_token_names_its_link() {
        let link = LinkId { worker: 3, slot: 70_000, serial: 4_000_000_000 };
        assert_eq!(token_link(3, link_token(link)), link);
    }
}
