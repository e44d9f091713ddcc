//! An abstract replicated log: terms, a quorum rule, leader change, refusal by a minority, a log whose unsynced tail a crash may tear
//! off, and snapshots for those who lag. openraft has its own suites; here it is only the ground that the lifecycle stands on. Elections
//! are held by the world (`faults.rs`), which picks a candidate that a majority may vote for.
//!
//! The rows are real: entries are encoded `Batch`es, applied by `session::lifecycle::Group`; snapshots are its stored rows.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use session::lifecycle::{Batch, Group, Outcome};

/// Stored rows by key.
pub type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// Applied entries after which a node checkpoints its rows and purges its log.
const CHECKPOINT_ENTRIES: u64 = 300;
/// Entries of one message.
const PAGE: usize = 64;
/// Inbox quotas: never reached here.
const QUOTA_MESSAGES: u64 = 1_000_000;
const QUOTA_BYTES: u64 = 1 << 40;

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub term: u64,
    /// Number that the proposing boot gave it; 0: a leader's blank.
    pub serial: u64,
    /// A stored `Batch`; empty: a leader's blank.
    pub batch: Bytes,
}

/// What a crash leaves of one node.
#[derive(Debug, Default)]
pub struct Disk {
    pub term: u64,
    /// Entries up to `base` are in `rows` only.
    pub base: u64,
    pub base_term: u64,
    pub log: Vec<Entry>,
    /// Entries up to here survive a crash.
    pub synced: u64,
    /// Grows when entries are cut off: a sync that was under way says nothing of those that came in their place.
    pub cuts: u64,
    pub rows: Arc<Rows>,
    /// Receipts of earlier boots: highest connection id by boot.
    pub receipts: BTreeMap<Arc<str>, u64>,
    /// The boot that was started and has no receipt yet.
    pub marker: Option<Arc<str>>,
}

/// What nodes say to each other.
#[derive(Debug, Clone)]
pub enum Msg {
    Append {
        term: u64,
        prev: u64,
        prev_term: u64,
        entries: Vec<Entry>,
        commit: u64,
        round: u64,
    },
    Snapshot {
        term: u64,
        index: u64,
        index_term: u64,
        rows: Arc<Rows>,
        round: u64,
    },
    Ack {
        term: u64,
        matched: u64,
        round: u64,
    },
    Reject {
        term: u64,
        hint: u64,
    },
    Propose {
        serial: u64,
        batch: Bytes,
    },
    NotLeader {
        serial: u64,
    },
    Read {
        id: u64,
    },
    ReadAt {
        id: u64,
        index: Option<u64>,
    },
    /// Service 107, in the bytes of `ownerrpc`.
    Call {
        id: u64,
        bytes: Bytes,
        wait_ms: u64,
    },
    Answer {
        id: u64,
        bytes: Bytes,
    },
}

/// What a node does after it heard something.
#[derive(Debug, Default)]
pub struct Out {
    pub send: Vec<(usize, Msg)>,
    /// The log grew: sync it.
    pub sync: bool,
    /// A snapshot replaced the rows.
    pub replaced: bool,
}

#[derive(Debug)]
struct Lead {
    next: Vec<u64>,
    matched: Vec<u64>,
    round: u64,
    rounds: Vec<u64>,
    /// (round that must be answered, who asks, its number, the index)
    reads: Vec<(u64, usize, u64, u64)>,
}

/// One applied entry.
#[derive(Debug)]
pub struct Applied {
    pub index: u64,
    pub serial: u64,
    pub batch: Batch,
    pub outcome: Outcome,
}

/// What one node knows and a crash takes.
#[derive(Debug)]
pub struct Raft {
    me: usize,
    nodes: usize,
    pub group: Group,
    pub commit: u64,
    /// Entries up to here are those of the leader of this term.
    verified: u64,
    pub leader: Option<usize>,
    lead: Option<Lead>,
}

impl Disk {
    pub fn last(&self) -> u64 {
        self.base + self.log.len() as u64
    }

    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base { Some(self.base_term) } else { self.entry(index).map(|entry| entry.term) }
    }

    pub fn entry(&self, index: u64) -> Option<&Entry> {
        let at = usize::try_from(index.checked_sub(self.base + 1)?).ok()?;
        self.log.get(at)
    }

    fn truncate(&mut self, last: u64) {
        self.log.truncate(usize::try_from(last - self.base).unwrap_or(0));
        self.synced = self.synced.min(last);
        self.cuts += 1;
    }

    /// The power goes: of what was not synced, `kept` entries made it whole; the next one is torn and found so by its checksum.
    pub fn crash(&mut self, kept: u64) {
        let last = self.last().min(self.synced + kept);
        self.truncate(last);
        self.synced = self.last();
    }

    /// # Panics
    /// When rows that the simulation stored cannot be loaded: that is a violation by itself.
    pub fn load(&self) -> Group {
        load(&self.rows)
    }
}

/// # Panics
/// When stored rows cannot be loaded.
pub fn load(rows: &Rows) -> Group {
    let mut group = Group::new(QUOTA_MESSAGES, QUOTA_BYTES);
    for (key, value) in rows {
        group.load(key, value).expect("rows that were stored can be loaded");
    }
    if !rows.is_empty() {
        group.finish_load().expect("rows that were stored are coherent");
    }
    group
}

impl Raft {
    pub fn new(me: usize, nodes: usize, disk: &Disk) -> Self {
        Self {
            me,
            nodes,
            group: disk.load(),
            commit: disk.base,
            verified: disk.base,
            leader: None,
            lead: None,
        }
    }

    pub fn leads(&self) -> bool {
        self.lead.is_some()
    }

    fn majority(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn others(&self) -> impl Iterator<Item = usize> + use<> {
        let me = self.me;
        (0..self.nodes).filter(move |node| *node != me)
    }

    /// A majority voted for this node in `term`.
    pub fn win(&mut self, disk: &mut Disk, term: u64) -> Out {
        disk.term = term;
        disk.log.push(Entry { term, serial: 0, batch: Bytes::new() });
        let next = vec![disk.last(); self.nodes];
        let matched = vec![0; self.nodes];
        let rounds = vec![0; self.nodes];
        self.lead = Some(Lead { next, matched, round: 1, rounds, reads: Vec::new() });
        self.leader = Some(self.me);
        self.verified = disk.last();
        self.beat(disk)
    }

    /// This node voted for another one in `term`, or heard of it.
    pub fn follow(&mut self, disk: &mut Disk, term: u64, leader: Option<usize>) {
        if term > disk.term {
            disk.term = term;
            self.verified = self.commit;
        }
        self.lead = None;
        self.leader = leader;
    }

    /// What a leader says regularly.
    pub fn beat(&mut self, disk: &Disk) -> Out {
        if let Some(lead) = &mut self.lead {
            for (next, matched) in lead.next.iter_mut().zip(&lead.matched) {
                // What was sent and not acknowledged may be lost; of who never answered nothing is known yet.
                *next = if *matched > 0 { (*next).min(matched + 1) } else { *next };
            }
        }
        let mut out = Out { sync: true, ..Out::default() };
        self.replicate(disk, &mut out);
        out
    }

    fn replicate(&mut self, disk: &Disk, out: &mut Out) {
        let others = self.others();
        let commit = self.commit;
        let Some(lead) = &mut self.lead else { return };
        for node in others {
            let next = lead.next[node];
            let message = match next.checked_sub(1).and_then(|prev| Some((prev, disk.term_at(prev)?))) {
                Some((prev, prev_term)) => {
                    let from = usize::try_from(prev - disk.base).unwrap_or(0);
                    let to = disk.log.len().min(from + PAGE);
                    let entries = disk.log[from..to].to_vec();
                    lead.next[node] = next + entries.len() as u64;
                    Msg::Append { term: disk.term, prev, prev_term, entries, commit, round: lead.round }
                }
                None => {
                    lead.next[node] = disk.base + 1;
                    let (index, index_term, rows) = (disk.base, disk.base_term, disk.rows.clone());
                    Msg::Snapshot { term: disk.term, index, index_term, rows, round: lead.round }
                }
            };
            out.send.push((node, message));
        }
    }

    /// Takes one batch into the log of the leader; false: this node does not lead.
    pub fn propose(&mut self, disk: &mut Disk, serial: u64, batch: Bytes, out: &mut Out) -> bool {
        if self.lead.is_none() {
            return false;
        }
        disk.log.push(Entry { term: disk.term, serial, batch });
        self.verified = disk.last();
        out.sync = true;
        self.replicate(disk, out);
        true
    }

    /// Up to where a read must see; answered when a majority still follows.
    pub fn read(&mut self, disk: &Disk, from: usize, id: u64, out: &mut Out) {
        let own = disk.term_at(self.commit) == Some(disk.term);
        let commit = self.commit;
        match &mut self.lead {
            Some(lead) if own => {
                lead.round += 1;
                lead.reads.push((lead.round, from, id, commit));
                self.replicate(disk, out);
            }
            _ => out.send.push((from, Msg::ReadAt { id, index: None })),
        }
    }

    /// Entries up to `through` of this node's log are synced.
    pub fn synced(&mut self, disk: &mut Disk, through: u64, cuts: u64) -> Out {
        let mut out = Out::default();
        if cuts != disk.cuts {
            return out;
        }
        disk.synced = disk.synced.max(through);
        let synced = disk.synced;
        if let Some(lead) = &mut self.lead {
            lead.matched[self.me] = synced;
            self.advance(disk, &mut out);
        } else if let Some(leader) = self.leader {
            let matched = synced.min(self.verified);
            out.send.push((leader, Msg::Ack { term: disk.term, matched, round: 0 }));
        }
        out
    }

    /// Hears what another node says about the log.
    pub fn hear(&mut self, disk: &mut Disk, from: usize, message: Msg, lies: bool) -> Out {
        let mut out = Out::default();
        match message {
            Msg::Append { term, .. } | Msg::Snapshot { term, .. } if term < disk.term => {
                out.send.push((from, Msg::Reject { term: disk.term, hint: 0 }));
            }
            Msg::Append { term, prev, prev_term, entries, commit, round } => {
                self.follow(disk, term, Some(from));
                let message = self.append(disk, prev, prev_term, entries, commit, round, lies);
                out.sync = true;
                out.send.push((from, message));
            }
            Msg::Snapshot { term, index, index_term, rows, round } => {
                self.follow(disk, term, Some(from));
                if index > self.commit {
                    disk.log.clear();
                    (disk.base, disk.base_term, disk.rows) = (index, index_term, rows);
                    disk.synced = index;
                    disk.cuts += 1;
                    self.group = disk.load();
                    self.commit = index;
                    out.replaced = true;
                }
                self.verified = self.verified.max(index);
                let matched = disk.synced.min(self.verified);
                out.send.push((from, Msg::Ack { term, matched, round }));
            }
            Msg::Ack { term, matched, round } => {
                self.acknowledged(disk, from, term, matched, round, &mut out)
            }
            Msg::Reject { term, hint } => {
                if term > disk.term {
                    self.follow(disk, term, None);
                } else if let Some(lead) = &mut self.lead {
                    lead.next[from] = (hint + 1).min(lead.next[from]).max(1);
                }
            }
            _ => {}
        }
        out
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one message")]
    fn append(
        &mut self,
        disk: &mut Disk,
        prev: u64,
        prev_term: u64,
        entries: Vec<Entry>,
        commit: u64,
        round: u64,
        lies: bool,
    ) -> Msg {
        if prev > disk.last() || (prev > disk.base && disk.term_at(prev) != Some(prev_term)) {
            let hint = disk.last().min(prev.saturating_sub(1)).max(self.commit);
            return Msg::Reject { term: disk.term, hint };
        }
        let end = prev + entries.len() as u64;
        for (entry, index) in entries.into_iter().zip(prev + 1..) {
            match disk.term_at(index) {
                _ if index <= disk.base => {}
                Some(term) if term == entry.term => {}
                Some(_) => {
                    disk.truncate(index - 1);
                    disk.log.push(entry);
                }
                None => disk.log.push(entry),
            }
        }
        self.verified = self.verified.max(end);
        self.commit = self.commit.max(commit.min(end));
        let synced = if lies { disk.last() } else { disk.synced };
        Msg::Ack { term: disk.term, matched: synced.min(self.verified), round }
    }

    fn acknowledged(&mut self, disk: &Disk, from: usize, term: u64, matched: u64, round: u64, out: &mut Out) {
        if term != disk.term {
            return;
        }
        let Some(lead) = &mut self.lead else { return };
        lead.matched[from] = lead.matched[from].max(matched);
        lead.next[from] = lead.next[from].max(matched + 1);
        lead.rounds[from] = lead.rounds[from].max(round);
        lead.rounds[self.me] = lead.round;
        let mut rounds = lead.rounds.clone();
        rounds.sort_unstable();
        let followed = rounds[self.nodes - self.majority()];
        let lead = self.lead.as_mut().expect("it was there");
        lead.reads.retain(|(round, from, id, index)| {
            let answered = *round <= followed;
            if answered {
                out.send.push((*from, Msg::ReadAt { id: *id, index: Some(*index) }));
            }
            !answered
        });
        self.advance(disk, out);
        if self.lead.as_ref().is_some_and(|lead| lead.next[from] <= disk.last()) {
            self.replicate(disk, out);
        }
    }

    /// Commits what a majority has synced, of this term only.
    fn advance(&mut self, disk: &Disk, out: &mut Out) {
        let Some(lead) = &self.lead else { return };
        let mut matched = lead.matched.clone();
        matched.sort_unstable();
        let held = matched[self.nodes - self.majority()];
        if held > self.commit && disk.term_at(held) == Some(disk.term) {
            self.commit = held;
            self.replicate(disk, out);
        }
    }

    /// Applies what is committed. `clock`: the mutant that reads one.
    pub fn apply(&mut self, disk: &Disk, clock: Option<session::time::Millis>) -> Vec<Applied> {
        let mut done = Vec::new();
        while self.group.applied() < self.commit {
            let index = self.group.applied() + 1;
            let Some(entry) = disk.entry(index) else { break };
            if entry.batch.is_empty() {
                self.group.skip(index);
                continue;
            }
            let mut batch: Batch =
                postcard::from_bytes(&entry.batch).expect("a batch that was encoded can be decoded");
            batch.at = clock.unwrap_or(batch.at);
            let mut outcome = Outcome::default();
            self.group.apply(index, &batch, &mut outcome);
            done.push(Applied { index, serial: entry.serial, batch, outcome });
        }
        done
    }

    /// Stores the rows and purges the log, when it is long enough.
    pub fn checkpoint(&mut self, disk: &mut Disk) {
        let applied = self.group.applied();
        if applied.saturating_sub(disk.base) < CHECKPOINT_ENTRIES || disk.synced < applied {
            return;
        }
        let Some(term) = disk.term_at(applied) else { return };
        let rows = Arc::make_mut(&mut disk.rows);
        self.group.drain_dirty(&mut |key, value| {
            match value {
                Some(value) => rows.insert(key.to_vec(), value.to_vec()),
                None => rows.remove(key),
            };
        });
        disk.log.drain(..usize::try_from(applied - disk.base).unwrap_or(0));
        (disk.base, disk.base_term) = (applied, term);
    }
}

/// All rows of a group: equal logs give equal rows (L1).
pub fn rows_of(group: &Group) -> Rows {
    let mut rows = Rows::new();
    group.dump(&mut |key, value| {
        rows.insert(key.to_vec(), value.unwrap_or_default().to_vec());
    });
    rows
}

/// The first row in which two states differ. A body that one of them has on disk only is empty here, and no difference.
pub fn difference(one: &Rows, other: &Rows) -> Option<String> {
    if one == other {
        return None;
    }
    let differs = |key: &&Vec<u8>| match (one.get(*key), other.get(*key)) {
        (Some(left), Some(right)) => left != right && !left.is_empty() && !right.is_empty(),
        _ => true,
    };
    let key = one.keys().chain(other.keys()).find(differs)?;
    let (left, right) = (one.get(key), other.get(key));
    Some(format!("row {:?} is {left:02x?} and {right:02x?}", String::from_utf8_lossy(key)))
}
