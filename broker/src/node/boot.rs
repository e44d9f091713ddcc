//! Boots of this node: the id of this one, what proves that earlier ones stopped, and their retirement by commit (DESIGN §7).

use std::sync::Arc;

use ring::rand::{SecureRandom, SystemRandom};
use session::id::{Boot, Owner};
use session::lifecycle::{Command, Conflict, Group, QuotaRule, Reply, RetireProof, SessionRow, SessionState};
use session::topic::TopicFilter;
use storage::boot::{Boots, Proof, Recovered};
use storage::{GroupId, Store};

use super::ServeError;
use crate::clock::NodeClock;
use crate::config::{Config, OnQuota};
use crate::route::{Followed, Restored, Router};
use crate::usecase::isolation::Receipts;
use crate::usecase::lease::LeaseError;

/// Sessions restored under one version of the routing index.
const RESTORE_PAGE: usize = 4_096;

/// 16 random bytes as 32 lowercase hex characters.
///
/// # Errors
/// The system has no randomness.
pub(super) fn new_boot_id() -> Result<Arc<str>, ServeError> {
    use std::fmt::Write as _;
    let mut bytes = [0_u8; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| ServeError::Randomness)?;
    let mut text = String::with_capacity(32);
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text.into())
}

/// What proves that a boot stopped: its retirement by commit, or its receipt on disk.
#[derive(Debug)]
pub(super) struct BootEvidence {
    pub boots: Arc<Boots>,
    pub store: Store,
}

impl Receipts for BootEvidence {
    fn is_retired(&self, owner: &Owner) -> bool {
        let boot = Boot { node_id: owner.node_id, boot_id: owner.boot_id.clone() };
        let group = self.store.group_of(&owner.key);
        self.store.read(group, |rows| rows.boot(&boot).is_some_and(|row| row.retired.is_some()))
    }

    fn covers(&self, owner: &Owner) -> bool {
        self.is_retired(owner)
            || match self.boots.lookup(owner) {
                Ok(Proof::Graceful | Proof::Crashed) => true,
                Ok(Proof::Unknown) => false,
                Err(error) => {
                    tracing::error!(%error, "a boot receipt could not be read");
                    false
                }
            }
    }
}

/// Retires the earlier boots of this node that are proved stopped: their sessions become Offline, their Wills and expiries run, and their
/// receipts are no longer needed.
///
/// # Errors
/// A group does not answer.
pub(super) async fn retire_earlier(
    boots: &Boots,
    recovered: &Recovered,
    store: &Store,
    clock: &NodeClock,
) -> Result<(), ServeError> {
    let graceful =
        recovered.graceful.iter().map(|found| (found.boot.boot_id.clone(), RetireProof::GracefulReceipt));
    let crashed = recovered.crashed.iter().map(|boot_id| (boot_id.clone(), RetireProof::CrashReceipt));
    for (boot_id, proof) in graceful.chain(crashed) {
        let boot = Boot { node_id: boots.current().node_id, boot_id };
        for group in (0..store.groups()).map(GroupId) {
            let observed_at = clock.millis();
            let retire = Command::BootRetire { boot: boot.clone(), proof: proof.clone(), observed_at };
            match store.call(group, retire).await {
                // A boot that this group never heard of owns nothing in it.
                Ok(Reply::Done { .. } | Reply::Conflict(Conflict::Missing)) => {}
                Ok(reply) => {
                    tracing::error!(?reply, boot = %boot.boot_id, "an earlier boot could not be retired");
                    return Err(ServeError::Retire);
                }
                Err(error) => return Err(ServeError::Proposal(error)),
            }
        }
        boots.prune(&boot)?;
    }
    Ok(())
}

/// The stamps of a publisher are kept this much longer than its session can last after it went offline.
const STAMPS_BEYOND_S: u64 = 24 * 60 * 60;

/// Makes the configured quotas of inboxes and retained messages and what gives way to them those of every group: they are part of its state, which brings along those
/// of an earlier start; a new group has none.
///
/// # Errors
/// A group does not answer, or refuses.
pub(super) async fn set_quotas(store: &Store, config: &Config) -> Result<(), ServeError> {
    let (messages, bytes) = (config.session.inbox_messages_max, config.session.inbox_bytes_max);
    let rule = match config.session.on_quota {
        OnQuota::DropNew => QuotaRule::DropNew,
        OnQuota::DropOld => QuotaRule::DropOld,
        OnQuota::End => QuotaRule::End,
    };
    // The topics are spread over the groups by their hash, and so is the limit.
    let retained_max = config.limits.retained_messages_max.div_ceil(u64::from(store.groups()));
    // A received id may be repeated as long as its session is there.
    let stamps_ms = (u64::from(config.session.expiry_max_s) + STAMPS_BEYOND_S) * 1_000;
    for group in (0..store.groups()).map(GroupId) {
        let stored = store.read(group, |rows| {
            (rows.quotas(), rows.quota_rule(), rows.quota_retained(), rows.stamp_retention_ms())
        });
        let quotas = (stored.0 != (messages, bytes)).then_some(Command::Quotas { messages, bytes });
        let rule = (stored.1 != rule).then_some(Command::QuotaRule(rule));
        let retained = (stored.2 != retained_max).then_some(Command::RetainedQuota(retained_max));
        let stamps = (stored.3 < stamps_ms).then_some(Command::StampRetention { ms: stamps_ms });
        for command in quotas.into_iter().chain(rule).chain(retained).chain(stamps) {
            match store.call(group, command).await {
                Ok(Reply::Done { .. }) => {}
                // Nothing but the retirement of this boot refuses it.
                Ok(_) => return Err(ServeError::Lease(LeaseError::Retired)),
                Err(error) => return Err(ServeError::Proposal(error)),
            }
        }
    }
    Ok(())
}

/// The stored subscriptions of a durable lifetime that lives; `None`: it does not, any more.
pub(crate) fn stored_routes(store: &Store, boot: &Boot, group: GroupId, lifetime: u64) -> Option<Followed> {
    store.read(group, |rows| {
        let row = rows.session_by_lifetime(lifetime)?;
        let lives =
            row.durable && row.lifetime == lifetime && !matches!(row.state, SessionState::Ended { .. });
        let owner = &row.owner;
        let owned_here = row.state == SessionState::Active
            && owner.node_id == boot.node_id
            && owner.boot_id == boot.boot_id;
        lives.then(|| Followed { session: restored(rows, row, group), owned_here })
    })
}

fn restored(rows: &Group, row: &SessionRow, group: GroupId) -> Restored {
    let filters =
        rows.subscriptions(row.lifetime).filter_map(|(filter, options)| match TopicFilter::parse(filter) {
            Ok(parsed) => Some((parsed, *options)),
            Err(error) => {
                tracing::error!(%error, "a stored subscription is not valid and is left out");
                None
            }
        });
    Restored {
        key: row.owner.key.clone(),
        user: row.uid.clone(),
        inbox: (group, row.lifetime),
        filters: filters.collect(),
    }
}

/// Durable lifetimes of a group that live.
pub(crate) fn durable_lifetimes(store: &Store, group: GroupId) -> Vec<u64> {
    store.read(group, |rows| {
        let durable = rows.sessions_after(None).filter(|row| row.durable);
        durable
            .filter(|row| !matches!(row.state, SessionState::Ended { .. }))
            .map(|row| row.lifetime)
            .collect()
    })
}

/// Takes the subscriptions of all durable sessions into the routing, so that nothing published from now on passes them by.
pub(super) fn restore_routes(store: &Store, router: &Router) {
    for group in (0..store.groups()).map(GroupId) {
        let mut after = None;
        loop {
            let (page, last) = store.read(group, |rows| {
                let mut page = Vec::new();
                let mut last = None;
                for row in rows.sessions_after(after.as_ref()).take(RESTORE_PAGE) {
                    last = Some(row.owner.key.clone());
                    if !row.durable || matches!(row.state, SessionState::Ended { .. }) {
                        continue;
                    }
                    page.push(restored(rows, row, group));
                }
                (page, last)
            });
            if !page.is_empty() {
                router.restore(page);
            }
            if last.is_none() {
                break;
            }
            after = last;
        }
    }
}
