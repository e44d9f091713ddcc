//! Boots: start, lease, retirement (DESIGN §4 "Boot lease", §7).

use super::apply_disconnect::Close;
use super::rows::RowId;
use super::{BootState, Group};
use crate::id::Boot;
use crate::lifecycle::command::{DisconnectKind, RetireProof};
use crate::lifecycle::reply::{Conflict, Reply};
use crate::lifecycle::row::{BootRow, SessionState};
use crate::limits::RETIRE_TEXT_BYTES_MAX;
use crate::time::Millis;

impl Group {
    /// Whether commands of `boot` are accepted.
    pub(super) fn boot_is_live(&self, boot: &Boot) -> bool {
        self.boot(boot).is_some_and(|row| row.retired.is_none())
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
        let row = BootRow { boot: boot.clone(), revision: 1, lease_until, retired: None };
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

    /// The same boot with the shared strings of its row.
    pub(super) fn interned_boot(&self, boot: &Boot) -> Boot {
        self.boot(boot).map_or_else(|| boot.clone(), |row| row.boot.clone())
    }
}
