//! The ends of connections and lifetimes: disconnect, `End`, deadlines (owner spec §5.4 events 3 to 6, §7.4, §7.5, §8).

use super::Group;
use super::will::WillEvent;
use crate::id::Key;
use crate::lifecycle::command::{Disconnect, DisconnectKind, End, WillMode};
use crate::lifecycle::reply::{Conflict, Reply};
use crate::lifecycle::row::{EndReason, SessionRow, SessionState};
use crate::time::Millis;

/// A row ended by `End` that would otherwise go at once stays this long, so that a repeated `End` is answered with it.
pub(super) const END_RECEIPT_MS: u64 = 60_000;

/// One connection is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct Close {
    pub observed_at: Millis,
    pub kind: DisconnectKind,
    pub expiry_sec: Option<u32>,
    pub sent_through: u64,
}

impl Group {
    pub(super) fn disconnect(&mut self, command: &Disconnect, digest: [u8; 32]) -> Result<Reply, Conflict> {
        let key = &command.owner.key;
        let row = &self.sessions.get(key).ok_or(Conflict::Missing)?.row;
        if row.owner != command.owner {
            return Err(Conflict::Fenced);
        }
        if row.state != SessionState::Active {
            // An exact retry, or somebody else recorded this end already.
            return Ok(Reply::Row { row: Box::new(row.clone()), unchanged: true, session_present: false });
        }
        let close = Close {
            observed_at: command.observed_at,
            kind: command.kind,
            expiry_sec: command.expiry_sec,
            sent_through: command.sent_through,
        };
        let row = self.close(key, &close, digest)?;
        Ok(Reply::Row { row: Box::new(row), unchanged: false, session_present: false })
    }

    /// Closes the connection of an Active row: Offline, or Ended when its expiry is 0.
    pub(super) fn close(
        &mut self,
        key: &Key,
        close: &Close,
        digest: [u8; 32],
    ) -> Result<SessionRow, Conflict> {
        let old = &self.sessions.get(key).ok_or(Conflict::Missing)?.row;
        let at = close.observed_at.min(self.clock).max(old.updated_at);
        let expiry_sec = close.expiry_sec.unwrap_or(old.expiry_sec);
        if old.expiry_sec == 0 && expiry_sec > 0 {
            return Err(Conflict::Illegal);
        }
        let revision = old.revision.checked_add(1).ok_or(Conflict::Exhausted)?;
        let (state, offline_expires) = if expiry_sec == 0 {
            (SessionState::Ended { reason: EndReason::Expired }, None)
        } else {
            let offline_expires_at = at.plus_expiry(expiry_sec);
            (SessionState::Offline { offline_expires_at }, Some(offline_expires_at))
        };
        let event = match close.kind {
            DisconnectKind::Normal => WillEvent::NormalDisconnect,
            DisconnectKind::WithWill => WillEvent::Disconnect { at, offline_expires },
        };
        let plan = self.plan_will(old, event)?;
        let detached = plan.as_ref().is_none_or(|(_, resolution)| resolution.detaches());
        let next = SessionRow {
            revision,
            state,
            expiry_sec,
            will_generation: if detached { 0 } else { old.will_generation },
            updated_at: at,
            last_digest: digest,
            ..old.clone()
        };
        self.settle_will(plan, at);
        self.note_sent(next.lifetime, close.sent_through);
        Ok(self.finish(next))
    }

    pub(super) fn end(&mut self, command: &End, digest: [u8; 32]) -> Result<Reply, Conflict> {
        let key = &command.owner.key;
        let slot = self.sessions.get(key).ok_or(Conflict::Missing)?;
        let old = &slot.row;
        if old.owner != command.owner {
            return Err(Conflict::Fenced);
        }
        if slot.ended() {
            // The first reason wins; the Will of the first end is not touched.
            return Ok(Reply::Row { row: Box::new(old.clone()), unchanged: true, session_present: false });
        }
        if old.revision != command.revision {
            return Err(Conflict::Fenced);
        }
        let at = command.observed_at.min(self.clock).max(old.updated_at);
        match (command.reason, old.state) {
            (EndReason::Expired, SessionState::Offline { offline_expires_at })
                if offline_expires_at <= at => {}
            (EndReason::Expired, SessionState::Offline { .. }) => return Err(Conflict::NotDue),
            (EndReason::Expired | EndReason::CleanStart, _) => return Err(Conflict::Illegal),
            _ => {}
        }
        let revision = old.revision.checked_add(1).ok_or(Conflict::Exhausted)?;
        let event = match command.will {
            WillMode::Publish => WillEvent::End { at },
            WillMode::Suppress => WillEvent::Suppress,
        };
        let plan = self.plan_will(old, event)?;
        let next = SessionRow {
            revision,
            state: SessionState::Ended { reason: command.reason },
            will_generation: 0,
            updated_at: at,
            last_digest: digest,
            ..old.clone()
        };
        let receipt = !(slot.ever_durable && old.uid.is_some());
        let was_active = old.state == SessionState::Active;
        self.settle_will(plan, at);
        if was_active {
            self.note_sent(next.lifetime, command.sent_through);
        }
        if receipt {
            let until = self.clock.plus_ms(END_RECEIPT_MS);
            if let Some(slot) = self.sessions.get_mut(key) {
                slot.keep_until = Some(until);
            }
        }
        let row = self.finish(next);
        Ok(Reply::Row { row: Box::new(row), unchanged: false, session_present: false })
    }

    /// A Waiting Will is due, or an Offline session expired.
    pub(super) fn reconcile(
        &mut self,
        key: &Key,
        revision: u64,
        digest: [u8; 32],
    ) -> Result<Reply, Conflict> {
        let old = &self.sessions.get(key).ok_or(Conflict::Missing)?.row;
        if old.last_digest == digest {
            return Ok(Reply::Done { revision: old.revision, unchanged: true });
        }
        if old.revision != revision {
            return Err(Conflict::Fenced);
        }
        let SessionState::Offline { offline_expires_at } = old.state else {
            return Ok(Reply::Done { revision: old.revision, unchanged: true });
        };
        let at = self.clock.max(old.updated_at);
        let plan = self.plan_will(old, WillEvent::Due { at })?;
        let expired = offline_expires_at <= at;
        if plan.is_none() && !expired {
            return Err(Conflict::NotDue);
        }
        let revision = old.revision.checked_add(1).ok_or(Conflict::Exhausted)?;
        let state = if expired { SessionState::Ended { reason: EndReason::Expired } } else { old.state };
        let next = SessionRow {
            revision,
            state,
            will_generation: 0,
            updated_at: at,
            last_digest: digest,
            ..old.clone()
        };
        self.settle_will(plan, at);
        self.finish(next);
        Ok(Reply::Done { revision, unchanged: false })
    }

    /// Writes a row that is not Active any more and lets go of what ended with it.
    fn finish(&mut self, next: SessionRow) -> SessionRow {
        let key = next.owner.key.clone();
        let ended = matches!(next.state, SessionState::Ended { .. });
        let mut row = next.clone();
        let lifetime = next.lifetime;
        self.put_row(next);
        if ended {
            self.retire_lifetime(&key, lifetime);
            self.note_reclaimed(&key);
            if let Some(slot) = self.sessions.get(&key) {
                row.reclaimed_through = slot.row.reclaimed_through;
            }
        }
        if !(ended && self.try_remove(&key)) {
            self.rearm(&key);
        }
        row
    }

    /// The consumer wrote everything below `sent_through` to its client.
    pub(super) fn note_sent(&mut self, lifetime: u64, sent_through: u64) {
        let Some(life) = self.lifetimes.get_mut(&lifetime) else { return };
        let Some(children) = life.children.as_deref_mut() else { return };
        let through = sent_through.min(children.inbox.sendable_end());
        if through > children.inbox.log.delivered {
            children.inbox.log.delivered = through;
            children.touch(lifetime, &mut self.dirty.lifetimes);
        }
    }
}
