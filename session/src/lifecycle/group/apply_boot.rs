//! Boots: start, lease, retirement (DESIGN §4 "Boot lease", §7).

use super::apply_disconnect::Close;
use super::digest::digest;
use super::rows::RowId;
use super::{BootState, Group};
use crate::id::Boot;
use crate::lifecycle::command::{Command, DisconnectKind, RetireProof};
use crate::lifecycle::reply::{Conflict, Reply};
use crate::lifecycle::row::{BootRow, SessionState};
use crate::limits::RETIRE_TEXT_BYTES_MAX;
use crate::time::Millis;

impl Group {
    /// Whether commands of `boot` are accepted.
    pub(super) fn boot_is_live(&self, boot: &Boot) -> bool {
        self.boot(boot).is_some_and(|row| row.retired.is_none())
    }

    /// Whether a later batch of `boot` was applied before the one numbered `serial` (0: without a number), or that one itself.
    ///
    /// A boot proposes one batch at a time. When it learns not what became of one, it goes on with the next, and clients do what they
    /// lost again, here or elsewhere; the lost batch must not be applied behind that ([MQTT-4.6.0-6], P5).
    pub(super) fn is_late(&self, boot: &Boot, serial: u64) -> bool {
        serial != 0 && self.boot(boot).is_some_and(|row| serial <= row.serial)
    }

    /// From now on batches of `boot` up to `serial` are late.
    pub(super) fn pass_serial(&mut self, boot: &Boot, serial: u64) {
        let Some(state) = self.boots.get_mut(boot) else { return };
        if serial > state.row.serial {
            state.row.serial = serial;
            self.dirty.rows.insert(RowId::Boot(state.row.boot.clone()));
        }
    }

    pub(super) fn boot_start(&mut self, boot: &Boot, lease_until: Millis) -> Result<Reply, Conflict> {
        if let Some(row) = self.boot(boot) {
            if row.retired.is_some() {
                return Err(Conflict::BootRetired);
            }
            return Ok(Reply::Done { revision: row.revision, unchanged: true });
        }
        if boot.node_id == 0
            || crate::id::check_identity(&boot.boot_id, crate::limits::BOOT_ID_BYTES_MAX).is_err()
        {
            return Err(Conflict::Illegal);
        }
        let row = BootRow { boot: boot.clone(), revision: 1, lease_until, retired: None, serial: 0 };
        self.boots.insert(boot.clone(), BootState { row, sessions: 0 });
        self.dirty.rows.insert(RowId::Boot(boot.clone()));
        Ok(Reply::Done { revision: 1, unchanged: false })
    }

    pub(super) fn boot_renew(
        &mut self,
        boot: &Boot,
        revision: u64,
        lease_until: Millis,
    ) -> Result<Reply, Conflict> {
        let state = self.boots.get_mut(boot).ok_or(Conflict::Missing)?;
        let row = &mut state.row;
        if row.revision == revision.saturating_add(1) && row.lease_until == lease_until {
            return Ok(Reply::Done { revision: row.revision, unchanged: true });
        }
        if row.revision != revision {
            return Err(Conflict::Fenced);
        }
        if revision == u64::MAX {
            return Err(Conflict::Exhausted);
        }
        if lease_until < row.lease_until {
            return Err(Conflict::Illegal);
        }
        row.revision += 1;
        row.lease_until = lease_until;
        let revision = row.revision;
        self.dirty.rows.insert(RowId::Boot(boot.clone()));
        Ok(Reply::Done { revision, unchanged: false })
    }

    /// Retires `boot` and disconnects all its Active sessions, in key order. A boot cannot prove its own end: it is
    /// running while it proposes. `silent_since`: the revision that its lease must still have.
    pub(super) fn boot_retire(
        &mut self,
        proposer: &Boot,
        boot: &Boot,
        silent_since: Option<u64>,
        (proof, observed_at): (&RetireProof, Millis),
        digest: [u8; 32],
    ) -> Result<Reply, Conflict> {
        let long = proof.text().is_some_and(|text| text.len() > RETIRE_TEXT_BYTES_MAX);
        if proposer == boot || long {
            return Err(Conflict::Illegal);
        }
        let now = self.clock;
        let state = self.boots.get_mut(boot).ok_or(Conflict::Missing)?;
        let row = &mut state.row;
        if row.retired.is_some() {
            return Ok(Reply::Done { revision: row.revision, unchanged: true });
        }
        if silent_since.is_some_and(|revision| revision != row.revision) {
            return Err(Conflict::Fenced);
        }
        let stopped_at = row.lease_until.min(observed_at).min(now);
        row.revision = row.revision.saturating_add(1);
        row.retired = Some((now, proof.clone()));
        let revision = row.revision;
        self.dirty.rows.insert(RowId::Boot(boot.clone()));
        let held: Vec<_> = self
            .sessions
            .iter()
            .filter(|slot| {
                let owner = &slot.row.owner;
                slot.row.state == SessionState::Active
                    && owner.node_id == boot.node_id
                    && owner.boot_id == boot.boot_id
            })
            .map(|slot| slot.row.owner.key.clone())
            .collect();
        for key in held {
            let close = Close {
                observed_at: stopped_at,
                kind: DisconnectKind::WithWill,
                expiry_sec: None,
                // What the dead boot wrote is not known: everything may have been sent.
                sent_through: u64::MAX,
            };
            // A row whose Will is missing is corrupt; it stays as it is rather than lose the Will silently.
            let _ = self.close(&key, &close, digest);
        }
        self.release_executions(boot, now);
        Ok(Reply::Done { revision, unchanged: false })
    }

    /// Retires every boot that is not, as entry `index` at time `at`: this state begins a cluster of its own, in which none of them runs.
    /// How many those were.
    ///
    /// # Panics
    /// When `index` does not grow.
    pub fn retire_all(&mut self, index: u64, at: Millis, proof: &RetireProof) -> u64 {
        self.skip(index);
        self.clock = self.clock.max(at);
        let live = self.boots().filter(|row| row.retired.is_none());
        let live: Vec<Boot> = live.map(|row| row.boot.clone()).collect();
        let mut retired = 0;
        for boot in live {
            let command = Command::BootRetire { boot: boot.clone(), proof: proof.clone(), observed_at: at };
            // Nobody in this cluster.
            let proposer = Boot { node_id: 0, boot_id: "".into() };
            let done = self.boot_retire(&proposer, &boot, None, (proof, at), digest(&command));
            retired += u64::from(done.is_ok());
        }
        // Nobody waits for news of a state that is not served yet.
        let _ = std::mem::take(&mut self.events_ended);
        let _ = std::mem::take(&mut self.events_wills);
        let _ = std::mem::take(&mut self.events_over_quota);
        let _ = std::mem::take(&mut self.events_subscribed);
        retired
    }

    /// The same boot with the shared strings of its row.
    pub(super) fn interned_boot(&self, boot: &Boot) -> Boot {
        self.boot(boot).map_or_else(|| boot.clone(), |row| row.boot.clone())
    }
}
