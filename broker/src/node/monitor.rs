//! Channels and their members, as operators ask for them: read from the replicated state, a little at a time, so that no commit waits
//! for a long list.

mod walk;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use session::id::Key;
use session::lease::LeaseState;
use session::lifecycle::{Group, InboxRow, SessionRow, SessionState};
use session::queue::{ChannelStat, Hold, Kind, MemberStat, Role, SealReason};
use session::time::Millis;
use storage::GroupId;
use storage::lease::{LeaseRef, LeaseView, Standing};
use tokio::sync::{Semaphore, SemaphorePermit};

use self::walk::{Place, Seen, Shares, WORK_AT_ONCE, Work, walk};
use super::operator::Operator;
use crate::admin::table::{Best, Position};
use crate::admin::{
    ChannelId, ChannelKind, ChannelPage, ChannelQuery, ChannelState, ChannelView, LeaseWord, MemberId,
    MemberPage, MemberQuery, MemberView, PortError, QueuePage, RoleWord, StandingWord, StatusWord,
    end_reason_word, member_text, session_text,
};

/// Lists that are made at a time: each may look at every row of the node.
const LISTS_MAX: usize = 2;
/// How long one waits for its turn.
const TURN_WAIT: Duration = Duration::from_secs(5);
/// Shared subscriptions that are counted for one page.
const SHARES_MAX: usize = 100_000;

/// A page in the making.
struct Table<'a, Q, I, V> {
    query: &'a Q,
    best: Best<I, V>,
    /// Rows come in the order of the table: a stream that filled the page need not be read on.
    by_id: bool,
    now: Millis,
}

type Channels<'a> = Table<'a, ChannelQuery, ChannelId, ChannelView>;
type Members<'a> = Table<'a, MemberQuery, MemberId, MemberView>;

impl<Q, I: Ord + Clone, V> Table<'_, Q, I, V> {
    fn is_done(&self) -> bool {
        self.by_id && self.best.is_full()
    }
}

impl Channels<'_> {
    /// Whether it is on the page or may be behind it.
    fn offer(&mut self, id: ChannelId, view: ChannelView) -> bool {
        let wanted = self.query.wants(&view);
        if wanted {
            self.best.offer(self.query.order.position(id, |column| view.value(column)), view);
        }
        wanted
    }
}

impl Members<'_> {
    fn offer(&mut self, id: MemberId, view: MemberView) -> bool {
        let wanted = self.query.wants(&view);
        if wanted {
            self.best.offer(self.query.order.position(id, |column| view.value(column)), view);
        }
        wanted
    }
}

/// Whose turn it is to make a list.
#[derive(Debug)]
pub(super) struct Turns(Semaphore);

impl Default for Turns {
    fn default() -> Self {
        Self(Semaphore::new(LISTS_MAX))
    }
}

impl Turns {
    async fn take(&self, wait: Duration) -> Result<SemaphorePermit<'_>, PortError> {
        match tokio::time::timeout(wait, self.0.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            // It is never closed.
            Ok(Err(_)) | Err(_) => {
                let what =
                    format!("{LISTS_MAX} lists of channels or members are being made; ask again later");
                Err(PortError::Unavailable(what))
            }
        }
    }
}

impl Operator {
    pub(super) async fn channels_page(&self, query: ChannelQuery) -> Result<ChannelPage, PortError> {
        let _turn = self.lists.take(TURN_WAIT).await?;
        self.newest_of_all().await?;
        let mut table = Table {
            best: Best::new(query.limit, query.after.clone()),
            by_id: query.order.is_by_id(),
            query: &query,
            now: self.shared.clock.millis(),
        };
        if query.kind.is_none_or(|kind| !matches!(kind, ChannelKind::Inbox | ChannelKind::Share)) {
            self.queue_channels(&mut table).await;
        }
        if query.wants_kind(ChannelKind::Inbox) && !table.is_done() {
            self.inbox_channels(&mut table).await;
        }
        if query.wants_kind(ChannelKind::Share) && !table.is_done() {
            self.share_channels(&mut table).await?;
        }
        let (rows, next) = table.best.finish();
        Ok(QueuePage { rows, next })
    }

    pub(super) async fn members_page(&self, query: MemberQuery) -> Result<MemberPage, PortError> {
        let _turn = self.lists.take(TURN_WAIT).await?;
        self.newest_of_all().await?;
        let mut table = Table {
            best: Best::new(query.limit, query.after.clone()),
            by_id: query.order.is_by_id(),
            query: &query,
            now: self.shared.clock.millis(),
        };
        let of_queues = |kind| !matches!(kind, ChannelKind::Inbox | ChannelKind::Share);
        let (queues, inboxes, shares) = match &query.channel {
            None => (
                query.kind.is_none_or(of_queues),
                query.kind.is_none_or(|kind| kind == ChannelKind::Inbox),
                query.kind.is_none_or(|kind| kind == ChannelKind::Share),
            ),
            Some(id) => (
                matches!(id, ChannelId::Queue { .. }),
                matches!(id, ChannelId::Inbox { .. }),
                matches!(id, ChannelId::Share { .. }),
            ),
        };
        if queues {
            self.queue_members(&mut table).await;
        }
        if inboxes && !table.is_done() {
            self.inbox_members(&mut table).await;
        }
        if shares && !table.is_done() {
            self.share_members(&mut table).await;
        }
        let (mut rows, next) = table.best.finish();
        // Not while rows are read: the routing reads the store under its own lock.
        rows.iter_mut().for_each(|row| row.in_flight = self.in_flight(row));
        Ok(QueuePage { rows, next })
    }

    fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.shared.store.groups()).map(GroupId)
    }

    async fn newest_of_all(&self) -> Result<(), PortError> {
        for group in self.groups() {
            self.newest(group).await?;
        }
        Ok(())
    }

    async fn queue_channels(&self, table: &mut Channels<'_>) {
        let (first, mut after) = match behind(table.by_id, table.query.after.as_ref()) {
            None => (0, 0),
            Some(ChannelId::Queue { group, channel }) => (*group, *channel),
            Some(_) => return,
        };
        for group in self.groups().skip(usize::from(first)) {
            let stale = self.stale(group);
            loop {
                let flow = self.shared.store.read(group, |rows| {
                    let mut work = Work::begin();
                    for stat in rows.space().channels_after(after) {
                        // Its figures are put together from those of its parts.
                        work.spend(1 + stat.subs + stat.producers + stat.consumers);
                        after = stat.channel;
                        let id = ChannelId::Queue { group: group.0, channel: stat.channel };
                        table.offer(id, queue_channel(&stat, group, stale));
                        if work.is_over() || table.is_done() {
                            return ControlFlow::Continue(());
                        }
                    }
                    ControlFlow::Break(())
                });
                if flow.is_break() || table.is_done() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if table.is_done() {
                return;
            }
            after = 0;
        }
    }

    async fn inbox_channels(&self, table: &mut Channels<'_>) {
        let from = match behind(table.by_id, table.query.after.as_ref()) {
            None | Some(ChannelId::Queue { .. }) => None,
            Some(ChannelId::Inbox { key, generation }) => Some((key.clone(), *generation)),
            Some(ChannelId::Share { .. }) => return,
        };
        let enough = if table.by_id { table.query.limit + 1 } else { usize::MAX };
        for group in self.groups() {
            let mut wanted = 0;
            self.each_session(group, from.as_ref(), |rows, row, work| {
                for inbox in rows.inboxes(&row.owner.key) {
                    work.spend(1);
                    let generation = inbox.session_generation;
                    let id = ChannelId::Inbox { key: row.owner.key.clone(), generation };
                    // Those before the page are not on it, and do not fill it.
                    let before =
                        from.as_ref().is_some_and(|(key, seen)| (&row.owner.key, generation) <= (key, *seen));
                    let view = inbox_channel(&inbox, group, rows.quotas(), table.now);
                    wanted += usize::from(table.offer(id, view) && !before);
                }
                if wanted < enough { Seen::All } else { Seen::Enough }
            })
            .await;
        }
    }

    async fn share_channels(&self, table: &mut Channels<'_>) -> Result<(), PortError> {
        // Filter to members.
        let mut shares: BTreeMap<Arc<str>, u64> = BTreeMap::new();
        for group in self.groups() {
            let mut of_session = Shares::default();
            self.each_session(group, None, |rows, row, work| {
                let seen = of_session.walk(rows, row, work, |filter| {
                    if let Some(members) = shares.get_mut(filter) {
                        *members += 1;
                    } else if table.query.wants(&share_channel(filter, 0)) {
                        shares.insert(filter.clone(), 1);
                    }
                });
                if shares.len() <= SHARES_MAX { seen } else { Seen::Enough }
            })
            .await;
        }
        if shares.len() > SHARES_MAX {
            let what = format!("there are more than {SHARES_MAX} shared subscriptions; narrow it with name=");
            return Err(PortError::Limit(what));
        }
        for (at, (filter, members)) in shares.into_iter().enumerate() {
            if at % WORK_AT_ONCE == 0 {
                tokio::task::yield_now().await;
            }
            table.offer(ChannelId::Share { filter: filter.clone() }, share_channel(&filter, members));
        }
        Ok(())
    }

    async fn queue_members(&self, table: &mut Members<'_>) {
        let (first, mut after) = match behind(table.by_id, table.query.after.as_ref()) {
            None => (0, 0),
            Some(MemberId::Queue { group, member }) => (*group, *member),
            Some(_) => return,
        };
        let held = self.held_leases();
        for group in self.groups().skip(usize::from(first)) {
            let only = match table.query.channel {
                Some(ChannelId::Queue { group: of, .. }) if of != group.0 => continue,
                Some(ChannelId::Queue { channel, .. }) => Some(channel),
                _ => None,
            };
            let stale = self.stale(group);
            loop {
                let flow = self.shared.store.read(group, |rows| {
                    let mut work = Work::begin();
                    for stat in rows.space().members_after(after) {
                        work.spend(1);
                        after = stat.member;
                        if only.is_none_or(|only| only == stat.channel) {
                            let id = MemberId::Queue { group: group.0, member: stat.member };
                            let lease = held.get(&self.shared.queues.lease_ref(group.0, stat.lease));
                            table.offer(id, queue_member(rows, &stat, group, (lease, stale)));
                        }
                        if work.is_over() || table.is_done() {
                            return ControlFlow::Continue(());
                        }
                    }
                    ControlFlow::Break(())
                });
                if flow.is_break() || table.is_done() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            if table.is_done() {
                return;
            }
            after = 0;
        }
    }

    async fn inbox_members(&self, table: &mut Members<'_>) {
        if let Some(ChannelId::Inbox { key, generation }) = table.query.channel.clone() {
            let group = self.shared.store.group_of(&key);
            return self.shared.store.read(group, |rows| {
                let row = rows.session(&key).filter(|row| row.owner.session_generation == generation);
                if let Some(row) = row.filter(|row| has_inbox(row)) {
                    let channel = ChannelId::Inbox { key: key.clone(), generation }.to_string();
                    let view = session_member(row, channel, ChannelKind::Inbox, table.now);
                    table.offer(MemberId::Inbox { key: key.clone(), generation }, view);
                }
            });
        }
        let from = match behind(table.by_id, table.query.after.as_ref()) {
            None | Some(MemberId::Queue { .. }) => None,
            Some(MemberId::Inbox { key, generation }) => Some((key.clone(), *generation)),
            Some(MemberId::Share { .. }) => return,
        };
        let enough = if table.by_id { table.query.limit + 1 } else { usize::MAX };
        for group in self.groups() {
            let mut wanted = 0;
            self.each_session(group, from.as_ref(), |_, row, _| {
                let (key, generation) = (&row.owner.key, row.owner.session_generation);
                let before = from.as_ref().is_some_and(|(last, seen)| (key, generation) <= (last, *seen));
                if has_inbox(row) && !before {
                    let channel = ChannelId::Inbox { key: key.clone(), generation }.to_string();
                    let view = session_member(row, channel, ChannelKind::Inbox, table.now);
                    wanted +=
                        usize::from(table.offer(MemberId::Inbox { key: key.clone(), generation }, view));
                }
                if wanted < enough { Seen::All } else { Seen::Enough }
            })
            .await;
        }
    }

    async fn share_members(&self, table: &mut Members<'_>) {
        let from = match behind(table.by_id, table.query.after.as_ref()) {
            Some(MemberId::Share { key, .. }) => Some((key.clone(), 0)),
            _ => None,
        };
        let only = match &table.query.channel {
            Some(ChannelId::Share { filter }) => Some(filter.clone()),
            _ => None,
        };
        let behind = behind(table.by_id, table.query.after.as_ref()).cloned();
        let enough = if table.by_id { table.query.limit + 1 } else { usize::MAX };
        for group in self.groups() {
            let (mut wanted, mut of_session) = (0, Shares::default());
            self.each_session(group, from.as_ref(), |rows, row, work| {
                let seen = of_session.walk(rows, row, work, |filter| {
                    if only.as_ref().is_some_and(|only| only != filter) {
                        return;
                    }
                    let id = MemberId::Share { key: row.owner.key.clone(), filter: filter.clone() };
                    if behind.as_ref().is_some_and(|behind| id <= *behind) {
                        return;
                    }
                    let view = session_member(row, filter.to_string(), ChannelKind::Share, table.now);
                    wanted += usize::from(table.offer(id, view));
                });
                if wanted < enough { seen } else { Seen::Enough }
            })
            .await;
        }
    }

    /// Shows the sessions of a group in key order to `visit`, from the key of `from` on, until it has enough.
    async fn each_session(
        &self,
        group: GroupId,
        from: Option<&(Key, u64)>,
        mut visit: impl FnMut(&Group, &SessionRow, &mut Work) -> Seen,
    ) {
        let mut place = from.map_or_else(Place::default, |(key, _)| Place::at(key));
        while self.shared.store.read(group, |rows| walk(rows, &mut place, &mut visit)) {
            tokio::task::yield_now().await;
        }
    }

    /// Messages that the session of an inbox was sent and has not acknowledged, where it is connected here.
    fn in_flight(&self, row: &MemberView) -> Option<u32> {
        if row.status != StatusWord::Alive || row.node_id != Some(self.shared.boot.node_id) {
            return None;
        }
        let Some(ChannelId::Inbox { key, generation }) = ChannelId::parse(&row.channel) else { return None };
        let group = self.shared.store.group_of(&key);
        let lifetime = self.shared.store.read(group, |rows| {
            let row = rows.session(&key).filter(|row| row.owner.session_generation == generation);
            row.map(|row| row.lifetime)
        });
        let subscriber = self.shared.router.find(group, lifetime?).filter(|found| found.is_live());
        subscriber.map(|subscriber| subscriber.load())
    }

    /// How long ago the lease time of a group was brought forward last.
    fn stale(&self, group: GroupId) -> Duration {
        self.shared.store.lease_clock(group).1.elapsed()
    }

    /// The leases that this process holds.
    fn held_leases(&self) -> BTreeMap<LeaseRef, LeaseView> {
        self.shared.queues.leases().view().into_iter().map(|view| (view.lease, view)).collect()
    }
}

/// Behind which row the page begins, where rows come in the order of the table; else each of them has to be looked at.
fn behind<I>(by_id: bool, after: Option<&Position<I>>) -> Option<&I> {
    after.filter(|_| by_id).map(|after| &after.id)
}

fn has_inbox(row: &SessionRow) -> bool {
    row.durable && !matches!(row.state, SessionState::Ended { .. })
}

/// A lease of the table, `stale` after its time was brought forward.
fn lease_of(left_ms: Option<u64>, state: LeaseWord, stale: Duration) -> (Option<LeaseWord>, Option<u64>) {
    match left_ms {
        None => (None, None),
        Some(u64::MAX) => (Some(LeaseWord::Delegated), None),
        Some(left) => (Some(state), Some(left.saturating_sub(millis(stale)))),
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn kind_of(kind: Kind, is_sub: bool) -> ChannelKind {
    match kind {
        _ if is_sub => ChannelKind::Sub,
        Kind::Mpsc => ChannelKind::Mpsc,
        Kind::Mpmc => ChannelKind::Mpmc,
        Kind::Group => ChannelKind::Group,
    }
}

fn seal_word(reason: SealReason) -> &'static str {
    match reason {
        SealReason::Expired => "expired",
        SealReason::Deleted => "deleted",
        SealReason::Closed => "closed",
        SealReason::SessionEnded => "session_ended",
    }
}

fn queue_channel(stat: &ChannelStat, group: GroupId, stale: Duration) -> ChannelView {
    let is_sub = stat.parent != 0;
    let kind = kind_of(stat.kind, is_sub);
    // The records of an MPMC channel are in its sub-channels.
    let has_log = kind != ChannelKind::Mpmc;
    let (lease, lease_left_ms) = lease_of(stat.lease_left_ms, LeaseWord::Armed, stale);
    let id = |channel| ChannelId::Queue { group: group.0, channel }.to_string();
    ChannelView {
        channel: id(stat.channel),
        kind,
        name: stat.name.clone(),
        namespace: None,
        parent: is_sub.then(|| id(stat.parent)),
        group: Some(group.0),
        state: match (stat.closing, stat.sealed) {
            (true, _) => ChannelState::Closing,
            (false, Some(_)) => ChannelState::Sealed,
            // Of a sub-channel that was adopted.
            (false, None) if stat.draining => ChannelState::Sealed,
            (false, None) => ChannelState::Open,
        },
        sealed_because: match stat.sealed {
            Some(reason) => Some(seal_word(reason).to_owned()),
            None => stat.draining.then(|| "adopted".to_owned()),
        },
        consumer: (stat.consumer != 0).then(|| member_text(group.0, stat.consumer)),
        node_id: None,
        epoch: Some(stat.epoch).filter(|_| has_log),
        messages: Some(stat.messages),
        bytes: Some(stat.bytes),
        base: has_log.then_some(stat.base),
        end: has_log.then_some(stat.end),
        claimed: (stat.kind == Kind::Group).then_some(stat.claimed),
        discarded: Some(stat.discarded),
        messages_max: Some(stat.spec.messages_max),
        bytes_max: Some(stat.spec.bytes_max),
        producers: (!is_sub).then_some(stat.producers),
        consumers: (!is_sub).then_some(stat.consumers),
        subchannels: (kind == ChannelKind::Mpmc).then_some(stat.subs),
        ttl_ms: Some(stat.spec.ttl_ms),
        lease,
        lease_left_ms,
        created_at_ms: Some(stat.created_at.0),
    }
}

fn inbox_channel(inbox: &InboxRow<'_>, group: GroupId, quotas: (u64, u64), now: Millis) -> ChannelView {
    let row = inbox.row;
    let is_current = row.lifetime == inbox.lifetime;
    let is_live = is_current && !inbox.sealed;
    let (lease, lease_left_ms) = if is_live { session_lease(row, now) } else { (None, None) };
    let key = &row.owner.key;
    let sealed_because = match row.state {
        SessionState::Ended { reason } if is_current => Some(end_reason_word(reason).to_owned()),
        // An earlier lifetime: the row is about a later one.
        _ => None,
    };
    let generation = inbox.session_generation;
    ChannelView {
        channel: ChannelId::Inbox { key: key.clone(), generation }.to_string(),
        kind: ChannelKind::Inbox,
        name: Some(key.client_id.clone()),
        namespace: Some(key.namespace.clone()),
        parent: None,
        group: Some(group.0),
        state: if inbox.sealed { ChannelState::Sealed } else { ChannelState::Open },
        sealed_because,
        consumer: (is_live && row.state == SessionState::Active).then(|| session_text(key, generation)),
        node_id: is_current.then_some(row.owner.node_id),
        epoch: is_current.then_some(row.owner.owner_generation),
        messages: Some(inbox.stat.messages),
        bytes: Some(inbox.stat.bytes),
        base: Some(inbox.stat.base),
        end: Some(inbox.stat.end),
        claimed: None,
        discarded: None,
        messages_max: Some(quotas.0),
        bytes_max: Some(quotas.1),
        producers: None,
        consumers: Some(u64::from(is_live)),
        subchannels: None,
        ttl_ms: (is_current && row.expiry_sec != u32::MAX).then_some(u64::from(row.expiry_sec) * 1_000),
        lease,
        lease_left_ms,
        created_at_ms: None,
    }
}

/// Connected, its node holds it; offline, it runs down, unless it never expires.
fn session_lease(row: &SessionRow, now: Millis) -> (Option<LeaseWord>, Option<u64>) {
    match row.state {
        SessionState::Active => (Some(LeaseWord::Delegated), None),
        SessionState::Offline { offline_expires_at } if offline_expires_at != Millis::NEVER => {
            (Some(LeaseWord::Armed), Some(offline_expires_at.0.saturating_sub(now.0)))
        }
        SessionState::Offline { .. } | SessionState::Ended { .. } => (None, None),
    }
}

fn share_channel(filter: &Arc<str>, members: u64) -> ChannelView {
    ChannelView {
        channel: filter.to_string(),
        kind: ChannelKind::Share,
        name: Some(filter.clone()),
        namespace: None,
        parent: None,
        group: None,
        state: ChannelState::Open,
        sealed_because: None,
        consumer: None,
        node_id: None,
        epoch: None,
        messages: None,
        bytes: None,
        base: None,
        end: None,
        claimed: None,
        discarded: None,
        messages_max: None,
        bytes_max: None,
        producers: None,
        consumers: Some(members),
        subchannels: None,
        ttl_ms: None,
        lease: None,
        lease_left_ms: None,
        created_at_ms: None,
    }
}

fn queue_member(
    rows: &Group,
    stat: &MemberStat,
    group: GroupId,
    (held, stale): (Option<&LeaseView>, Duration),
) -> MemberView {
    let table = rows.space().leases();
    let (lease, lease_left_ms) = match stat.lease {
        Hold::Own(id) => {
            let state = table.state(id).map_or(LeaseWord::Held, lease_word);
            lease_of(table.left_ms(id), state, stale)
        }
        // Another backend has it: only who holds it knows.
        Hold::Foreign { .. } => (held.map(|_| LeaseWord::Held), held.map(|view| millis(view.remaining))),
    };
    let (role, credit) = match stat.role {
        Role::Producer => (RoleWord::Producer, None),
        Role::Consumer { credit } => (RoleWord::Consumer, Some(credit)),
    };
    let kind = rows.space().kind(stat.channel).unwrap_or(Kind::Mpsc);
    let claims = credit.filter(|_| kind == Kind::Group);
    MemberView {
        member: member_text(group.0, stat.member),
        channel: ChannelId::Queue { group: group.0, channel: stat.channel }.to_string(),
        kind: kind_of(kind, false),
        role,
        status: StatusWord::Alive,
        name: stat.label.clone(),
        namespace: None,
        node_id: None,
        epoch: None,
        weight: Some(stat.weight),
        credit: claims,
        claims: claims.map(|_| stat.claims),
        in_flight: None,
        appends: (role == RoleWord::Producer).then_some(stat.appends),
        waiting: stat.waiting,
        lease,
        lease_left_ms,
        standing: held.map(|view| match view.standing {
            Standing::Held => StandingWord::Held,
            Standing::AtRisk => StandingWord::AtRisk,
            Standing::Lost => StandingWord::Lost,
        }),
        keepalive_lag_ms: held.map(|view| millis(view.since_kept)),
        since_ms: stat.bound_at.0,
    }
}

fn lease_word(state: LeaseState) -> LeaseWord {
    match state {
        LeaseState::Held => LeaseWord::Held,
        LeaseState::Armed => LeaseWord::Armed,
        LeaseState::Delegated => LeaseWord::Delegated,
    }
}

fn session_member(row: &SessionRow, channel: String, kind: ChannelKind, now: Millis) -> MemberView {
    let (lease, lease_left_ms) = session_lease(row, now);
    let key = &row.owner.key;
    MemberView {
        member: session_text(key, row.owner.session_generation),
        channel,
        kind,
        role: RoleWord::Consumer,
        status: if row.state == SessionState::Active { StatusWord::Alive } else { StatusWord::Offline },
        name: key.client_id.clone(),
        namespace: Some(key.namespace.clone()),
        node_id: Some(row.owner.node_id),
        epoch: Some(row.owner.owner_generation),
        weight: None,
        credit: None,
        claims: None,
        in_flight: None,
        appends: None,
        waiting: false,
        lease,
        lease_left_ms,
        standing: None,
        keepalive_lag_ms: None,
        since_ms: row.connected_at.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// P9: a few lists at a time, however many are asked for; one that does not get its turn is refused.
    #[tokio::test]
    async fn p9_few_lists_are_made_at_a_time() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..LISTS_MAX {
            held.push(turns.take(Duration::ZERO).await.expect("a turn is free"));
        }
        assert!(matches!(turns.take(Duration::from_millis(1)).await, Err(PortError::Unavailable(_))));
        let (turn, ()) = tokio::join!(turns.take(TURN_WAIT), async { held.clear() });
        assert!(turn.is_ok());
    }
}
