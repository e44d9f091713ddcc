//! openraft's state machine of one group: the pure `Group` under one lock, its engine, and who is told of what was applied.

mod inboxes;
mod records;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, Entry, EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageIOError,
};
use parking_lot::{Mutex, RwLock};
use serde::{Deserialize, Serialize};
use session::id::Boot;
use session::lifecycle::{Appended, Group, InboxRead, Outcome};
use session::message::Message;
use session::time::Millis;
use tokio::sync::Notify;

use super::checkpoint::Meter;
use super::forward::Forwarded;
use super::log_store::LogStore;
use super::proposed::Proposed;
use super::snapshot::SnapshotData;
use super::{LogId, Membership, RaftError, Types};
use crate::StorageError;
use crate::engine::{BodyRows, Closed, Engine, Rows, Visit};
use crate::port::{DeliveryPort, EventPort, Pushed};
use crate::queue::Wakes;
use crate::store::{Clock, Failure, GroupId};
use crate::wal::Recovered;

/// Version of the meta value and of the rows. A change that older versions cannot read raises it.
const FORMAT: u16 = 5;
/// The oldest that is read, and written as [`FORMAT`] from then on: it had bodies of messages among the rows.
const FORMAT_MIN: u16 = 4;
/// An inbox page whose bodies went to disk while it was read is read again so often before that counts as damage.
const READ_AGAIN_MAX: usize = 16;
/// Bytes of bodies on disk that are a backlog, and the part of them below which it is as good as gone.
const BACKLOG_MIN: u64 = 64 << 20;
const BACKLOG_GONE: u64 = 8;
/// What a row takes on disk besides the body of a message, about.
const ROW_BYTES: u64 = 256;
/// Evicting goes below the budget by this part of it, so that it does not run for every message.
const EVICT_MARGIN: u64 = 4;
/// Retained messages looked up under one lock.
const RETAINED_AT_ONCE: usize = 4_096;
/// Entries read at once when consumers are told of an installed snapshot.
const CATCH_UP_ENTRIES: usize = 1_024;

#[derive(Debug, Clone)]
pub(crate) struct MachineOptions {
    pub(crate) group: u16,
    pub(crate) groups: u16,
    /// Bodies of this group that may be resident.
    pub(crate) resident_bytes_max: u64,
    /// Where snapshots from other nodes are received.
    pub(crate) incoming_dir: PathBuf,
}

#[derive(Debug)]
pub(crate) struct Machine {
    options: MachineOptions,
    /// Replaced by [`Closed`] at close.
    engine: RwLock<Arc<dyn Engine>>,
    state: RwLock<State>,
    /// Held while an entry is applied and told: what a page of an inbox shows, its proposer was told of before.
    telling: RwLock<()>,
    /// Held while rows go to the engine: drained rows must be committed before anything is drained or evicted again.
    checkpointing: Mutex<()>,
    clock: Arc<dyn Clock>,
    meter: Arc<Meter>,
    failure: Arc<Failure>,
    deadlines: Arc<Notify>,
    resident: AtomicU64,
    /// Bytes of bodies at the last checkpoint; 0: most of a backlog is gone since, and the next one was asked for.
    kept: AtomicU64,
    events: RwLock<Option<Arc<dyn EventPort>>>,
    forwarded: Forwarded,
    /// Members of channels, and the keeper, who wait for a commit.
    wakes: Wakes,
    /// Lease time as last applied, and when that was.
    lease_clock: Mutex<(u64, Instant)>,
    /// This node is the only one that has the group: nobody else applies or is asked.
    alone: AtomicBool,
}

#[derive(Debug)]
struct State {
    group: Group,
    attached: HashMap<u64, Attached, foldhash::fast::RandomState>,
    meta: Meta,
    /// `meta` of the last checkpoint, to skip one that would change nothing.
    checkpointed: Option<LogId>,
}

#[derive(Debug, Clone)]
struct Attached {
    port: Arc<dyn DeliveryPort>,
    token: u64,
}

/// The meta value beside the rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Meta {
    format: u16,
    /// Groups of the data directory: slots map to them, so it never changes.
    pub(super) groups: u16,
    pub(super) applied: Option<LogId>,
    pub(super) membership: Membership,
    /// Latest time in an applied batch.
    pub(super) at: Millis,
}

impl Meta {
    pub(super) fn encode(&self) -> Vec<u8> {
        postcard::to_allocvec(self).expect("meta is plain data")
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        let damaged = |what: String| StorageError::damaged("state".as_ref(), 0, what);
        let meta: Self = postcard::from_bytes(bytes).map_err(|error| damaged(format!("meta: {error}")))?;
        if !(FORMAT_MIN..=FORMAT).contains(&meta.format) {
            let found = meta.format;
            return Err(damaged(format!(
                "state has format {found}, this version reads {FORMAT_MIN} to {FORMAT}"
            )));
        }
        Ok(Self { format: FORMAT, ..meta })
    }

    pub(super) fn snapshot_meta(&self, group: u16) -> SnapshotMeta<u64, openraft::BasicNode> {
        let id = self.applied.map(|id| format!("{}-{}", id.leader_id.term, id.index)).unwrap_or_default();
        SnapshotMeta {
            last_log_id: self.applied,
            last_membership: self.membership.clone(),
            snapshot_id: format!("g{group}-{id}"),
        }
    }
}

impl Machine {
    /// Loads the group from its engine.
    ///
    /// # Errors
    /// Damage, another number of groups, I/O.
    pub(crate) fn open(
        options: MachineOptions,
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        meter: Arc<Meter>,
        failure: Arc<Failure>,
        deadlines: Arc<Notify>,
        boot: Boot,
    ) -> Result<Self, StorageError> {
        let meta = match engine.meta()? {
            Some(bytes) => Meta::decode(&bytes)?,
            None => {
                let meta = Meta { format: FORMAT, groups: options.groups, ..Meta::default() };
                engine.write(&Rows::default(), &meta.encode())?;
                meta
            }
        };
        if meta.groups != options.groups {
            return Err(StorageError::Foreign {
                found: format!("a node with {} groups", meta.groups),
                wanted: format!(
                    "one with {} (cluster.groups is fixed when the data is made)",
                    options.groups
                ),
            });
        }
        clock.observe(meta.at);
        let group = load(engine.as_ref())?;
        let checkpointed = meta.applied;
        let lease_clock = group.space().leases().clock();
        let alone = is_alone(&meta.membership, boot.node_id);
        Ok(Self {
            options,
            engine: RwLock::new(engine),
            state: RwLock::new(State { group, attached: HashMap::default(), meta, checkpointed }),
            telling: RwLock::new(()),
            checkpointing: Mutex::new(()),
            clock,
            meter,
            failure,
            deadlines,
            resident: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            events: RwLock::new(None),
            forwarded: Forwarded::new(boot),
            wakes: Wakes::default(),
            lease_clock: Mutex::new((lease_clock, Instant::now())),
            alone: AtomicBool::new(alone),
        })
    }

    pub(crate) fn read<R>(&self, f: impl FnOnce(&Group) -> R) -> R {
        f(&self.state.read().group)
    }

    /// Last applied entry.
    pub(crate) fn applied(&self) -> Option<LogId> {
        self.state.read().meta.applied
    }

    pub(crate) fn applied_index(&self) -> u64 {
        self.applied().map_or(0, |applied| applied.index)
    }

    /// The log goes on where the state ends: what was purged from it is in the state.
    ///
    /// # Errors
    /// The state is older than that, or empty: its file was lost or replaced.
    pub(crate) fn check_reaches(&self, log: &Recovered) -> Result<(), StorageError> {
        let applied = self.applied().map(|applied| applied.index);
        let Some(purged) = log.marks.purged.as_ref().map(|purged| purged.index) else { return Ok(()) };
        if applied.is_some_and(|applied| applied >= purged) {
            return Ok(());
        }
        let has = applied.map_or_else(|| "is empty".to_owned(), |applied| format!("ends at entry {applied}"));
        let what = format!("the state {has}, but the log begins behind entry {purged}");
        Err(StorageError::damaged(&self.engine().path(), 0, what))
    }

    fn engine(&self) -> Arc<dyn Engine> {
        Arc::clone(&self.engine.read())
    }

    /// Lets the engine's files go. Waits for a checkpoint that runs.
    pub(crate) fn close(&self) {
        let _one = self.checkpointing.lock();
        *self.engine.write() = Arc::new(Closed);
    }

    /// Batches of this node that another one leads.
    pub(crate) fn forwarded(&self) -> &Forwarded {
        &self.forwarded
    }

    /// Whether this node is the only one that has the group.
    pub(crate) fn is_alone(&self) -> bool {
        self.alone.load(Ordering::Acquire)
    }

    pub(super) fn node_id(&self) -> u64 {
        self.forwarded.boot().node_id
    }

    fn count_nodes(&self, membership: &Membership) {
        self.alone.store(is_alone(membership, self.node_id()), Ordering::Release);
    }

    pub(super) fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// See [`crate::Store::watch`].
    pub(crate) fn watch(&self, port: Arc<dyn EventPort>) {
        *self.events.write() = Some(port);
    }

    pub(super) const fn group_id(&self) -> GroupId {
        GroupId(self.options.group)
    }

    /// See [`crate::Store::attach`].
    pub(crate) fn attach(&self, lifetime: u64, port: Arc<dyn DeliveryPort>, token: u64) -> u64 {
        // Under the lock of `apply`: what is applied before this is below the returned end, what is applied after it is pushed.
        let mut state = self.state.write();
        state.attached.insert(lifetime, Attached { port, token });
        state.group.inbox(lifetime).map_or(0, |inbox| inbox.end)
    }

    /// See [`crate::Store::detach`].
    pub(crate) fn detach(&self, lifetime: u64, token: u64) {
        let mut state = self.state.write();
        if state.attached.get(&lifetime).is_some_and(|attached| attached.token == token) {
            state.attached.remove(&lifetime);
        }
    }

    /// See [`crate::Store::retained_from`]: of this group, behind `after`. `left` counts down; false: the visitor wants no more.
    pub(crate) fn retained_from(
        &self,
        filter: &str,
        after: Option<&str>,
        left: &mut usize,
        visit: &mut dyn FnMut(Arc<Message>) -> bool,
    ) -> Result<bool, StorageError> {
        let mut after = after.map(Box::<str>::from);
        while *left > 0 {
            let max = (*left).min(RETAINED_AT_ONCE);
            let mut found = Vec::new();
            self.state.read().group.retained_behind(filter, after.as_deref(), &mut |topic, message, id| {
                // A name is only needed for the last one, and for those whose body has to be fetched: they may be replaced meanwhile.
                let last = found.len() + 1 == max;
                let topic = (last || message.is_none()).then(|| Box::<str>::from(topic));
                found.push((topic, message.cloned(), id));
                !last
            });
            let full = found.len() == max;
            for (topic, message, message_id) in found {
                let message = match (message, &topic) {
                    (Some(message), _) => Some(message),
                    (None, Some(topic)) => match self.body(message_id)? {
                        Some(message) => Some(message),
                        None => self.retained_now(topic)?,
                    },
                    (None, None) => None,
                };
                after = topic;
                let Some(message) = message else { continue };
                *left -= 1;
                if !visit(message) {
                    return Ok(false);
                }
            }
            if !full {
                break;
            }
        }
        Ok(true)
    }

    /// The retained message of one topic; `None`: it was removed.
    fn retained_now(&self, topic: &str) -> Result<Option<Arc<Message>>, StorageError> {
        for _ in 0..READ_AGAIN_MAX {
            let mut found = None;
            self.state.read().group.retained(topic, &mut |_, message, message_id| {
                found = Some((message.cloned(), message_id));
                false
            });
            match found {
                None => return Ok(None),
                Some((Some(message), _)) => return Ok(Some(message)),
                Some((None, message_id)) => {
                    if let Some(message) = self.body(message_id)? {
                        return Ok(Some(message));
                    }
                }
            }
        }
        Err(self.missing_body(&format!("retained message of {topic:?}")))
    }

    fn body(&self, message_id: u64) -> Result<Option<Arc<Message>>, StorageError> {
        let row = self.engine().get(&Group::body_key(message_id))?;
        Ok(row.map(|row| Group::decode_body(&row)).transpose()?.map(Arc::new))
    }

    fn missing_body(&self, of: &str) -> StorageError {
        let what = format!("group {}: a message body of the {of} is missing", self.options.group);
        StorageError::damaged("state".as_ref(), 0, what)
    }

    /// Applies one entry and tells everybody who waits.
    fn apply(&self, entry: Entry<Types>) {
        let _telling = self.telling.write();
        let mut state = self.state.write();
        state.meta.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Membership(membership) => {
                state.meta.membership = Membership::new(Some(entry.log_id), membership);
                self.count_nodes(&state.meta.membership);
            }
            EntryPayload::Normal(proposed) => {
                let batch = proposed.batch();
                // Before the rows are seen: who reads one finds its times behind the clock.
                self.clock.observe(batch.at);
                let mut outcome = Outcome::default();
                state.group.apply(entry.log_id.index, proposed.serial(), batch, &mut outcome);
                state.meta.at = state.meta.at.max(batch.at);
                let pushes = state.pushes(&outcome.appended);
                for lifetime in &outcome.ended {
                    state.attached.remove(lifetime);
                }
                let stat = state.group.stat();
                let resident = stat.messages_resident_bytes;
                self.see_drain(stat.messages_bytes);
                self.see_lease_time(state.group.space().leases().clock());
                drop(state);
                self.tell(&proposed, outcome, pushes, resident);
            }
        }
    }

    fn tell(&self, proposed: &Proposed, outcome: Outcome, pushes: Pushes, resident: u64) {
        match self.forwarded.take(proposed.serial(), proposed.batch()) {
            Some(ours) => ours.applied(outcome.replies),
            None => proposed.applied(outcome.replies),
        }
        for (port, batch) in pushes {
            port.deliver(batch);
        }
        let quiet = outcome.ended.is_empty()
            && outcome.wills.is_empty()
            && outcome.over_quota.is_empty()
            && outcome.subscribed.is_empty();
        if !quiet {
            let events = self.events.read().clone();
            if let Some(events) = events {
                events.subscribed(self.group_id(), outcome.subscribed);
                events.changed(self.group_id(), outcome.ended, outcome.wills);
                events.over_quota(self.group_id(), outcome.over_quota);
            }
        }
        if outcome.deadlines_changed {
            self.deadlines.notify_one();
        }
        self.wakes
            .wake(&outcome.wakes, |member| self.read(|group| group.space().member_stat(member).is_some()));
        if outcome.leases_changed {
            self.wakes.wake_keeper();
        }
        let before = self.resident.swap(resident, Ordering::Relaxed);
        let budget = self.options.resident_bytes_max;
        if before <= budget && resident > budget {
            self.meter.due_now();
        }
    }

    /// Makes everything applied durable in the engine. The state is locked only while changed rows are copied out. The caller holds
    /// `checkpointing`.
    fn checkpoint_locked(&self) -> Result<(), StorageError> {
        let (rows, meta) = {
            let mut state = self.state.write();
            if state.checkpointed == state.meta.applied {
                return Ok(());
            }
            (changed_rows(&mut state.group), state.meta.clone())
        };
        tracing::debug!(group = self.options.group, rows = rows.len(), "checkpoint");
        if let Err(error) = self.engine().write(&rows, &meta.encode()) {
            // The rows are drained and lost for the next checkpoint: from here on only a restart is right.
            self.failure.set(&error);
            return Err(error);
        }
        drop(rows);
        let mut state = self.state.write();
        state.checkpointed = meta.applied;
        self.kept.store(state.group.stat().messages_bytes, Ordering::Relaxed);
        self.evict_locked(&mut state);
        Ok(())
    }

    /// Most of a backlog that is on disk is gone: its space is given back with the next checkpoint, which is made now.
    fn see_drain(&self, bytes: u64) {
        let kept = self.kept.load(Ordering::Relaxed);
        if kept >= BACKLOG_MIN && bytes <= kept / BACKLOG_GONE {
            self.kept.store(0, Ordering::Relaxed);
            self.meter.due_now();
        }
    }

    /// Forgets resident bodies over the budget that are on disk.
    pub(super) fn evict(&self) {
        let _one = self.checkpointing.lock();
        self.evict_locked(&mut self.state.write());
    }

    fn evict_locked(&self, state: &mut State) {
        let budget = self.options.resident_bytes_max;
        if state.group.stat().messages_resident_bytes > budget {
            state.group.evict(budget - budget / EVICT_MARGIN);
        }
        let resident = state.group.stat().messages_resident_bytes;
        self.resident.store(resident, Ordering::Relaxed);
        if resident > budget && state.checkpointed != state.meta.applied {
            // What came meanwhile is not on disk yet, and it is over the budget already: no later message crosses it.
            self.meter.due_now();
        }
    }

    /// Gives space of the disk back after a backlog.
    pub(super) fn give_back(&self) -> Result<(), StorageError> {
        let _one = self.checkpointing.lock();
        let stat = self.read(Group::stat);
        let rows = stat.messages_stored
            + stat.inbox_messages
            + stat.subscriptions
            + stat.sessions_active
            + stat.sessions_offline
            + stat.sessions_ended;
        self.engine().give_back(rows.saturating_mul(ROW_BYTES), stat.messages_bytes)
    }

    fn snapshot(&self, checkpoint: bool) -> Result<Option<Snapshot<Types>>, StorageError> {
        let _one = self.checkpointing.lock();
        if checkpoint {
            self.checkpoint_locked()?;
        }
        let view = self.engine().view()?;
        let Some(meta) = view.meta()?.map(|bytes| Meta::decode(&bytes)).transpose()? else { return Ok(None) };
        if meta.applied.is_none() && !checkpoint {
            return Ok(None);
        }
        let meta = meta.snapshot_meta(self.options.group);
        Ok(Some(Snapshot { meta, snapshot: Box::new(SnapshotData::from_view(view)) }))
    }

    /// The state as it is now, durable in the engine.
    pub(crate) fn cut(&self) -> Result<SnapshotData, StorageError> {
        match self.snapshot(true)? {
            Some(snapshot) => Ok(*snapshot.snapshot),
            None => Err(StorageError::damaged("state".as_ref(), 0, "the meta value is missing")),
        }
    }

    /// While it is held, nothing is applied here.
    pub(crate) fn still(&self) -> parking_lot::RwLockWriteGuard<'_, ()> {
        self.telling.write()
    }

    /// Replaces the whole state, then tells attached consumers of what they have not seen.
    fn install(
        &self,
        meta: &SnapshotMeta<u64, openraft::BasicNode>,
        data: &SnapshotData,
    ) -> Result<(), StorageError> {
        let _one = self.checkpointing.lock();
        let found = Meta::decode(&data.verify()?)?;
        let new = Meta {
            applied: meta.last_log_id,
            membership: meta.last_membership.clone(),
            groups: self.options.groups,
            ..found
        };
        let replaced = self.engine().replace(&mut |put| data.rows(put), &new.encode());
        let group = replaced.and_then(|()| load(self.engine().as_ref())).inspect_err(|error| {
            self.failure.set(error);
        })?;
        self.clock.observe(new.at);
        let (seen, attached) = {
            let mut state = self.state.write();
            let seen: Vec<_> = (state.attached.keys())
                .map(|lifetime| (*lifetime, state.group.inbox(*lifetime).map_or(0, |inbox| inbox.end)))
                .collect();
            self.resident.store(group.stat().messages_resident_bytes, Ordering::Relaxed);
            self.see_lease_time(group.space().leases().clock());
            state.group = group;
            state.checkpointed = new.applied;
            state.meta = new;
            self.count_nodes(&state.meta.membership);
            (seen, state.attached.clone())
        };
        self.forwarded.lose_all();
        let events = self.events.read().clone();
        if let Some(events) = events {
            events.replaced(self.group_id());
        }
        for (lifetime, end) in seen {
            if let Some(attached) = attached.get(&lifetime) {
                self.catch_up(lifetime, end, attached)?;
            }
        }
        self.deadlines.notify_one();
        self.wakes.wake_all();
        Ok(())
    }

    fn catch_up(&self, lifetime: u64, from: u64, to: &Attached) -> Result<(), StorageError> {
        let mut from = from;
        loop {
            let (entries, next) = self.read_inbox(lifetime, from, CATCH_UP_ENTRIES, usize::MAX)?;
            if entries.is_empty() {
                return Ok(());
            }
            let pushed = entries.into_iter().map(|entry| Pushed {
                token: to.token,
                offset: entry.offset,
                message: entry.message,
                qos: entry.qos,
                retain: entry.retain,
                identifiers: entry.identifiers,
            });
            to.port.deliver(pushed.collect());
            from = next;
        }
    }
}

fn is_alone(membership: &Membership, node_id: u64) -> bool {
    membership.nodes().all(|(id, _)| *id == node_id)
}

type Pushes = Vec<(Arc<dyn DeliveryPort>, Vec<Pushed>)>;

impl State {
    /// What attached consumers are told of these appends: one batch per port, in commit order.
    fn pushes(&self, appended: &[Appended]) -> Pushes {
        let mut pushes: Pushes = Vec::new();
        if self.attached.is_empty() {
            return pushes;
        }
        let mut page = InboxRead::default();
        for append in appended {
            let Some(attached) = self.attached.get(&append.lifetime) else { continue };
            page.entries.clear();
            self.group.read_inbox(append.lifetime, append.offset, 1, &mut page);
            let Some(delivery) = page.entries.pop().filter(|delivery| delivery.offset == append.offset)
            else {
                // Settled by a later command of the same batch.
                continue;
            };
            let Some(message) = delivery.message else { continue };
            let pushed = Pushed {
                token: attached.token,
                offset: delivery.offset,
                message,
                qos: delivery.qos,
                retain: delivery.retain,
                identifiers: delivery.identifiers,
            };
            match pushes.iter_mut().find(|(port, _)| same(port, &attached.port)) {
                Some((_, batch)) => batch.push(pushed),
                None => pushes.push((Arc::clone(&attached.port), vec![pushed])),
            }
        }
        pushes
    }
}

fn same(a: &Arc<dyn DeliveryPort>, b: &Arc<dyn DeliveryPort>) -> bool {
    std::ptr::addr_eq(Arc::as_ptr(a), Arc::as_ptr(b))
}

/// What changed since the last time, which forgets it.
pub(super) fn changed_rows(group: &mut Group) -> Rows {
    let (mut rows, mut bodies) = (Rows::default(), BodyRows::default());
    let mut body = |id, body: Option<&Arc<Message>>| bodies.push(id, body);
    group.drain_rows(&mut |key, value| rows.push(key, value), &mut body);
    rows.bodies = bodies;
    rows
}

pub(super) fn load(engine: &dyn Engine) -> Result<Group, StorageError> {
    load_rows(|visit| engine.view()?.scan(visit))
}

/// The group whose rows `scan` visits.
pub(super) fn load_rows(
    scan: impl FnOnce(&mut Visit<'_>) -> Result<(), StorageError>,
) -> Result<Group, StorageError> {
    // A new group has no quotas until a command brings some: nothing of this node's configuration may decide what `apply` does.
    let mut group = Group::new(u64::MAX, u64::MAX);
    scan(&mut |key, value| group.load(key, value).map_err(StorageError::from))?;
    group.finish_load()?;
    Ok(group)
}

/// The side of the machine that openraft drives.
#[derive(Debug, Clone)]
pub(crate) struct StateMachine {
    pub(super) machine: Arc<Machine>,
    /// Its purges wait for what the engine holds.
    pub(super) log: LogStore,
}

impl StateMachine {
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Machine) -> Result<T, StorageError> + Send + 'static,
    ) -> Result<T, std::io::Error> {
        let machine = Arc::clone(&self.machine);
        tokio::task::spawn_blocking(move || work(&machine))
            .await
            .map_err(std::io::Error::other)?
            .map_err(std::io::Error::other)
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Membership), RaftError> {
        let state = self.machine.state.read();
        Ok((state.meta.applied, state.meta.membership.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, RaftError>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        Ok(entries.into_iter().map(|entry| self.machine.apply(entry)).collect())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<SnapshotData>, RaftError> {
        let options = &self.machine.options;
        let name = format!("g{:03}.incoming", options.group);
        SnapshotData::receive(options.incoming_dir.join(name))
            .inspect(|data| tracing::info!(path = ?data.path(), "receiving a snapshot"))
            .map(Box::new)
            .map_err(|error| StorageIOError::write_snapshot(None, AnyError::new(&error)).into())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, openraft::BasicNode>,
        snapshot: Box<SnapshotData>,
    ) -> Result<(), RaftError> {
        let meta = meta.clone();
        let signature = meta.signature();
        let upto = meta.last_log_id;
        let installed = self.blocking(move |machine| machine.install(&meta, &snapshot)).await;
        match installed {
            Ok(()) => self.log.covered(upto),
            Err(_) => self.log.not_covered(),
        }
        installed
            .map_err(|error| StorageIOError::write_snapshot(Some(signature), AnyError::new(&error)).into())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>, RaftError> {
        self.blocking(|machine| machine.snapshot(false))
            .await
            .map_err(|error| StorageIOError::read_snapshot(None, AnyError::new(&error)).into())
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, RaftError> {
        let built = self.blocking(|machine| {
            let missing = || StorageError::damaged("state".as_ref(), 0, "the meta value is missing");
            machine.snapshot(true)?.ok_or_else(missing)
        });
        let built = built.await.inspect(|built| self.log.covered(built.meta.last_log_id));
        built.map_err(|error| StorageIOError::write_snapshot(None, AnyError::new(&error)).into())
    }
}
