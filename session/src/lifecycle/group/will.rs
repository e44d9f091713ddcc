//! Wills: what a lifecycle event does to the Will that the session refers to (owner spec §6.2), and its execution.

use super::rows::RowId;
use super::{Group, WillSlot};
use crate::id::{Boot, Key};
use crate::invariants;
use crate::lifecycle::command::WillKey;
use crate::lifecycle::reply::{Conflict, Reply};
use crate::lifecycle::row::{SessionRow, WillRow, WillStage};
use crate::time::Millis;

/// A lifecycle event as the referenced Will sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WillEvent {
    /// DISCONNECT 0x00.
    NormalDisconnect,
    /// Any other end of the connection; `offline_expires` is `None` when the session ends with it.
    Disconnect {
        at: Millis,
        offline_expires: Option<Millis>,
    },
    /// CONNECT that continues the generation.
    Resume {
        at: Millis,
    },
    /// CONNECT that begins a new generation.
    Fresh {
        at: Millis,
    },
    End {
        at: Millis,
    },
    /// End of a client whose Will must not appear.
    Suppress,
    /// The deadline worker says that it is due.
    Due {
        at: Millis,
    },
}

/// What becomes of the Will.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolution {
    Cancelled,
    Waiting { disconnected_at: Millis, due_at: Millis },
    Ready { disconnected_at: Millis, due_at: Millis },
}

impl Resolution {
    /// Only a Waiting Will stays referenced by its session.
    pub(super) fn detaches(self) -> bool {
        !matches!(self, Self::Waiting { .. })
    }
}

/// The table of owner spec §6.2.
///
/// # Errors
/// `Illegal` for a combination that the table does not have, `NotDue` when a Waiting Will is not due.
pub(super) fn resolve(will: &WillRow, event: WillEvent) -> Result<Resolution, Conflict> {
    match will.stage {
        WillStage::Armed => resolve_armed(will, event),
        WillStage::Waiting => resolve_waiting(will, event),
        _ => Err(Conflict::Illegal),
    }
}

fn resolve_armed(will: &WillRow, event: WillEvent) -> Result<Resolution, Conflict> {
    let ready = |at| Resolution::Ready { disconnected_at: at, due_at: at };
    match event {
        WillEvent::NormalDisconnect | WillEvent::Suppress => Ok(Resolution::Cancelled),
        WillEvent::Disconnect { at, offline_expires } => {
            let delayed = at.plus_ms(u64::from(will.delay_sec) * 1_000);
            let due_at = offline_expires.map_or(at, |expires| delayed.min(expires));
            Ok(if due_at <= at { ready(at) } else { Resolution::Waiting { disconnected_at: at, due_at } })
        }
        WillEvent::Resume { .. } if will.delay_sec > 0 => Ok(Resolution::Cancelled),
        WillEvent::Resume { at } | WillEvent::Fresh { at } | WillEvent::End { at } => Ok(ready(at)),
        WillEvent::Due { .. } => Err(Conflict::Illegal),
    }
}

fn resolve_waiting(will: &WillRow, event: WillEvent) -> Result<Resolution, Conflict> {
    let (Some(disconnected_at), Some(due)) = (will.disconnected_at, will.due_at) else {
        return Err(Conflict::Illegal);
    };
    let ready = |at: Millis| Resolution::Ready { disconnected_at, due_at: due.min(at) };
    match event {
        WillEvent::NormalDisconnect | WillEvent::Disconnect { .. } => Err(Conflict::Illegal),
        WillEvent::Suppress => Ok(Resolution::Cancelled),
        WillEvent::Resume { at } if at < due => Ok(Resolution::Cancelled),
        WillEvent::Due { at } if at < due => Err(Conflict::NotDue),
        WillEvent::Resume { at }
        | WillEvent::Fresh { at }
        | WillEvent::End { at }
        | WillEvent::Due { at } => Ok(ready(at)),
    }
}

impl Group {
    /// Decides, without changing anything, what happens to the Will that `row` refers to.
    ///
    /// # Errors
    /// `Missing` when the referenced row is not there: that is corruption and never "no Will".
    pub(super) fn plan_will(
        &self,
        row: &SessionRow,
        event: WillEvent,
    ) -> Result<Option<(WillKey, Resolution)>, Conflict> {
        if row.will_generation == 0 {
            return Ok(None);
        }
        let key = super::will_key(row);
        let will = self.wills.get(&key).ok_or(Conflict::Missing)?;
        Ok(Some((key, resolve(&will.row, event)?)))
    }

    /// Carries a planned resolution out.
    pub(super) fn settle_will(&mut self, plan: Option<(WillKey, Resolution)>, at: Millis) {
        let Some((key, resolution)) = plan else { return };
        let (stage, disconnected_at, due_at) = match resolution {
            Resolution::Cancelled => return self.remove_will(&key, WillStage::Cancelled),
            Resolution::Waiting { disconnected_at, due_at } => (WillStage::Waiting, disconnected_at, due_at),
            Resolution::Ready { disconnected_at, due_at } => (WillStage::Ready, disconnected_at, due_at),
        };
        self.change_will(&key, |will| {
            will.stage = stage;
            will.disconnected_at = Some(disconnected_at);
            will.due_at = Some(due_at);
            will.updated_at = at.max(will.updated_at);
        });
    }

    pub(super) fn insert_will(&mut self, will: WillRow) {
        invariants::will_shape(&will).unwrap_or_else(|violation| panic!("{violation}"));
        let key = WillKey {
            key: will.key.clone(),
            session_generation: will.session_generation,
            will_generation: will.will_generation,
        };
        self.count_will(will.stage, 1);
        if let Some(slot) = self.sessions.get_mut(&key.key) {
            slot.wills += 1;
        }
        self.events_wills.push((key.clone(), will.stage));
        self.dirty.rows.insert(RowId::Will(key.clone()));
        self.wills.insert(key, WillSlot { row: Box::new(will), stored: false });
    }

    fn change_will(&mut self, key: &WillKey, change: impl FnOnce(&mut WillRow)) {
        let slot = self.wills.get_mut(key).expect("the Will was found when this was planned");
        let (stage_before, due_before) = (slot.row.stage, will_due(&slot.row));
        change(&mut slot.row);
        invariants::will_shape(&slot.row).unwrap_or_else(|violation| panic!("{violation}"));
        let (stage, due) = (slot.row.stage, will_due(&slot.row));
        if due_before != due {
            if let Some(at) = due_before {
                self.deadlines.wills.remove(&(at, key.clone()));
            }
            if let Some(at) = due {
                self.deadlines.wills.insert((at, key.clone()));
                self.deadlines.changed = true;
            }
        }
        if stage_before != stage {
            self.count_will(stage_before, -1);
            self.count_will(stage, 1);
            self.events_wills.push((key.clone(), stage));
        }
        self.dirty.rows.insert(RowId::Will(key.clone()));
    }

    /// Removes a Will that reached the terminal `stage`: nothing needs its row (its append stamp outlives it).
    fn remove_will(&mut self, key: &WillKey, stage: WillStage) {
        let Some(slot) = self.wills.remove(key) else { return };
        if let Some(at) = will_due(&slot.row) {
            self.deadlines.wills.remove(&(at, key.clone()));
        }
        self.count_will(slot.row.stage, -1);
        if let Some(session) = self.sessions.get_mut(&key.key) {
            session.wills -= 1;
        }
        self.events_wills.push((key.clone(), stage));
        let id = RowId::Will(key.clone());
        if slot.stored {
            self.dirty.rows.insert(id);
        } else {
            self.dirty.rows.remove(&id);
        }
    }

    /// A Ready Will, an Executing one whose lease ran out or whose executor is retired, or a renewal by its executor.
    pub(super) fn will_claim(
        &mut self,
        key: &WillKey,
        boot: &Boot,
        lease_until: Millis,
    ) -> Result<Reply, Conflict> {
        let now = self.clock;
        let will = &self.wills.get(key).ok_or(Conflict::Missing)?.row;
        if lease_until <= now {
            return Err(Conflict::Illegal);
        }
        match (will.stage, &will.executor) {
            (WillStage::Ready, _) => {}
            (WillStage::Executing, Some((executor, lease))) if now < *lease => {
                if executor != boot {
                    return Err(Conflict::Fenced);
                }
                if lease_until < *lease {
                    return Err(Conflict::Illegal);
                }
            }
            (WillStage::Executing, _) => {}
            _ => return Err(Conflict::Illegal),
        }
        let boot = self.interned_boot(boot);
        self.change_will(key, |will| {
            will.stage = WillStage::Executing;
            will.executor = Some((boot, lease_until));
            will.updated_at = now.max(will.updated_at);
        });
        Ok(super::done())
    }

    /// Published or Rejected, by its executor within its lease.
    pub(super) fn will_finish(
        &mut self,
        key: &WillKey,
        boot: &Boot,
        stage: WillStage,
    ) -> Result<Reply, Conflict> {
        let now = self.clock;
        let will = &self.wills.get(key).ok_or(Conflict::Missing)?.row;
        match &will.executor {
            Some((executor, lease)) if executor == boot && now < *lease => {}
            Some(_) => return Err(Conflict::Fenced),
            None => return Err(Conflict::Illegal),
        }
        self.remove_will(key, stage);
        if !self.try_remove(&key.key) {
            self.rearm(&key.key);
        }
        Ok(super::done())
    }

    /// Executions of a boot that is proved stopped may be taken over at once.
    pub(super) fn release_executions(&mut self, boot: &Boot, at: Millis) {
        let held: Vec<WillKey> = self
            .wills
            .iter()
            .filter(|(_, will)| {
                will.row.executor.as_ref().is_some_and(|(by, lease)| by == boot && *lease > at)
            })
            .map(|(key, _)| key.clone())
            .collect();
        for key in held {
            self.change_will(&key, |will| {
                if let Some((_, lease)) = &mut will.executor {
                    *lease = at;
                }
            });
        }
    }

    /// The Will that the session refers to, or else the one of the key that was installed last.
    pub(super) fn newest_will(&self, key: &Key) -> Option<&WillRow> {
        self.range_of_wills(key).next_back().map(|(_, row)| row)
    }

    pub(super) fn range_of_wills(&self, key: &Key) -> impl DoubleEndedIterator<Item = (&WillKey, &WillRow)> {
        let first = WillKey { key: key.clone(), session_generation: 0, will_generation: 0 };
        let last = WillKey { key: key.clone(), session_generation: u64::MAX, will_generation: u64::MAX };
        self.wills.range(first..=last).map(|(key, will)| (key, &*will.row))
    }
}

/// When somebody must look at this Will: Waiting ones belong to their session's deadline.
pub(super) fn will_due(will: &WillRow) -> Option<Millis> {
    match will.stage {
        WillStage::Ready => will.due_at,
        WillStage::Executing => will.executor.as_ref().map(|(_, lease)| *lease),
        _ => None,
    }
}
