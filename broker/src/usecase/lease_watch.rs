//! When the leases of other boots end, on the clock of this process.
//!
//! A committed lease end is a time of the hybrid clock, and wall clocks step. So what counts is when this node first saw a renewal: the
//! boot captured its own deadline before it proposed that renewal, hence its lease ends no later than one lease after this sight, whatever
//! any wall clock does. Where the committed end is further ahead than that, it counts.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use parking_lot::Mutex;
use session::id::Boot;
use session::time::Tick;
use storage::{GroupId, Store};

use crate::clock::NodeClock;

/// What this node saw of the leases of boots that are not retired; bounded by those times the groups.
#[derive(Debug)]
pub struct LeaseWatch {
    store: Store,
    clock: Arc<NodeClock>,
    /// `owner.lease` in milliseconds; that of every node of the cluster.
    lease_ms: u64,
    seen: Mutex<HashMap<(u16, Boot), Seen, RandomState>>,
}

#[derive(Debug, Clone, Copy)]
struct Seen {
    revision: u64,
    ends: Tick,
}

/// The leases of one boot in all groups that know it and have not retired it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    pub boot: Boot,
    /// Revision of its row by group.
    pub revisions: Vec<(GroupId, u64)>,
    /// End of the last one.
    pub ends: Tick,
}

impl Leases {
    /// Whether the boot renewed in a group since `earlier`. A group that retired it meanwhile is no sign of life.
    #[must_use]
    pub fn renewed_since(&self, earlier: &Self) -> bool {
        self.revisions.iter().any(|(group, revision)| {
            !earlier.revisions.iter().any(|(known, old)| known == group && old == revision)
        })
    }
}

impl LeaseWatch {
    #[must_use]
    pub fn new(store: Store, clock: Arc<NodeClock>, lease_ms: u64) -> Self {
        Self { store, clock, lease_ms, seen: Mutex::default() }
    }

    /// Notes what changed. The oftener, the earlier an end is known.
    pub fn look(&self) {
        let mut rows = Vec::new();
        for group in 0..self.store.groups() {
            self.store.read(GroupId(group), |state| {
                let live = state.boots().filter(|row| row.retired.is_none());
                rows.extend(live.map(|row| (group, row.boot.clone(), row.revision, row.lease_until)));
            });
        }
        let (now, now_ms) = (self.clock.tick(), self.clock.millis());
        let mut before = self.seen.lock();
        let mut seen = HashMap::with_capacity_and_hasher(rows.len(), RandomState::default());
        for (group, boot, revision, until) in rows {
            let key = (group, boot);
            let found = match before.get(&key) {
                Some(known) if known.revision == revision => *known,
                _ => {
                    let left_ms = until.0.saturating_sub(now_ms.0).max(self.lease_ms);
                    Seen { revision, ends: now.plus_ms(left_ms) }
                }
            };
            seen.insert(key, found);
        }
        *before = seen;
    }

    /// Every boot that is not retired everywhere, by node.
    #[must_use]
    pub fn all(&self) -> Vec<Leases> {
        let mut all: Vec<Leases> = Vec::new();
        let mut seen: Vec<_> = self.seen.lock().iter().map(|(key, seen)| (key.clone(), *seen)).collect();
        seen.sort_unstable_by(|((a_group, a), _), ((b_group, b), _)| (a, a_group).cmp(&(b, b_group)));
        for ((group, boot), seen) in seen {
            match all.last_mut().filter(|last| last.boot == boot) {
                Some(leases) => {
                    leases.revisions.push((GroupId(group), seen.revision));
                    leases.ends = leases.ends.max(seen.ends);
                }
                None => {
                    let revisions = vec![(GroupId(group), seen.revision)];
                    all.push(Leases { boot, revisions, ends: seen.ends });
                }
            }
        }
        all
    }

    /// The leases of one boot; `None`: no group has it, or all retired it.
    #[must_use]
    pub fn of(&self, boot: &Boot) -> Option<Leases> {
        self.all().into_iter().find(|leases| leases.boot == *boot)
    }
}

#[cfg(test)]
mod tests {
    use session::lifecycle::{Command, Reply, RetireProof};
    use session::time::Millis;
    use storage::{EngineKind, Formation, Options};

    use super::*;
    use crate::clock::ManualTime;

    const LEASE_MS: u64 = 30_000;
    const HOUR_MS: u64 = 3_600_000;

    async fn store(dir: &std::path::Path, boot: &Boot, clock: &Arc<NodeClock>) -> Store {
        let options = Options {
            data_dir: dir.to_owned(),
            boot: boot.clone(),
            groups: 2,
            engine: EngineKind::Memory,
            segment_bytes: 1 << 20,
            checkpoint_bytes: 1 << 20,
            resident_bytes_max: 1 << 20,
            peers: None,
            formation: Formation::Alone,
        };
        Store::open(options, clock.clone()).await.expect("an empty directory")
    }

    async fn renew(store: &Store, clock: &NodeClock, group: u16, revision: u64) {
        let lease_until = clock.millis().plus_ms(LEASE_MS);
        let command = match revision {
            0 => Command::BootStart { lease_until },
            _ => Command::BootRenew { revision, lease_until },
        };
        let reply = store.call(GroupId(group), command).await.expect("it answers");
        assert_eq!(reply, Reply::Done { revision: revision + 1, unchanged: false });
    }

    /// P1: the wait for a lease is as long as the lease, however the wall clock steps; a renewal moves it, in any group.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn p1_steps_of_the_wall_clock_do_not_shorten_the_wait() {
        let dir = tempfile::tempdir().expect("a directory");
        let time = ManualTime::at(10 * HOUR_MS);
        let clock = Arc::new(NodeClock::new(time.clone()));
        let boot = Boot { node_id: 7, boot_id: "b".into() };
        let store = store(dir.path(), &boot, &clock).await;
        let watch = LeaseWatch::new(store.clone(), clock.clone(), LEASE_MS);
        watch.look();
        assert_eq!(watch.of(&boot), None);
        renew(&store, &clock, 0, 0).await;
        renew(&store, &clock, 1, 0).await;
        watch.look();
        let first = watch.of(&boot).expect("seen");
        assert_eq!(first.revisions, [(GroupId(0), 1), (GroupId(1), 1)]);
        assert_eq!(first.ends, clock.tick().plus_ms(LEASE_MS));
        for wall in [11 * HOUR_MS, 9 * HOUR_MS] {
            time.set_wall(wall);
            watch.look();
            assert_eq!(watch.of(&boot).as_ref(), Some(&first));
        }
        // Another node is ahead.
        storage::Clock::observe(&*clock, Millis(12 * HOUR_MS));
        time.advance_ms(10_000);
        watch.look();
        assert!(!watch.of(&boot).expect("seen").renewed_since(&first));
        // The renewal is of before the step: its committed end is in the past here, and counts from when it was seen.
        let lease_until = Millis(10 * HOUR_MS + 2 * LEASE_MS);
        let renewal = Command::BootRenew { revision: 1, lease_until };
        store.call(GroupId(1), renewal).await.expect("it answers");
        watch.look();
        let second = watch.of(&boot).expect("seen");
        assert!(second.renewed_since(&first));
        assert_eq!(second.ends, clock.tick().plus_ms(LEASE_MS));
        store.close().await.expect("it closes");
    }

    #[test]
    fn a_group_that_retired_the_boot_is_no_sign_of_life() {
        let boot = Boot { node_id: 7, boot_id: "b".into() };
        let leases = |revisions: &[(u16, u64)]| Leases {
            boot: boot.clone(),
            revisions: revisions.iter().map(|(group, revision)| (GroupId(*group), *revision)).collect(),
            ends: Tick(0),
        };
        let before = leases(&[(0, 3), (1, 3)]);
        assert!(!leases(&[(1, 3)]).renewed_since(&before));
        assert!(leases(&[(0, 3), (1, 4)]).renewed_since(&before));
        assert!(leases(&[(0, 3), (1, 3), (2, 1)]).renewed_since(&before), "it began in another group");
        assert_eq!(RetireProof::Lease.to_string(), "lease");
    }
}
