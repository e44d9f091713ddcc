//! What each user has in a group: derived from the rows, for quotas that are held against it before something is proposed. `apply` never
//! reads it.

use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;

use super::Group;
use crate::id::Key;

/// What a user has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UserStat {
    /// Sessions that did not end.
    pub sessions: u64,
    /// In the inboxes of its sessions, those that wait for their reclamation among them.
    pub inbox_messages: u64,
    pub inbox_bytes: u64,
}

impl std::ops::Add for UserStat {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            sessions: self.sessions + other.sessions,
            inbox_messages: self.inbox_messages + other.inbox_messages,
            inbox_bytes: self.inbox_bytes + other.inbox_bytes,
        }
    }
}

impl std::iter::Sum for UserStat {
    fn sum<I: Iterator<Item = Self>>(stats: I) -> Self {
        stats.fold(Self::default(), std::ops::Add::add)
    }
}

/// `None`: everybody who is anonymous, together.
type Uid = Option<Arc<str>>;

/// Users by number: a lifetime knows its own, so that the hot path needs no look-up by name.
#[derive(Debug, Default)]
pub(super) struct Users {
    numbers: HashMap<Uid, u32, FixedState>,
    slots: Vec<Slot>,
    free: Vec<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    uid: Uid,
    lifetimes: u64,
    stat: UserStat,
}

impl Users {
    /// A lifetime of the user begins.
    pub(super) fn enter(&mut self, uid: Option<&Arc<str>>) -> u32 {
        let number = match self.numbers.get(&uid.cloned()) {
            Some(number) => *number,
            None => {
                let slot = Slot { uid: uid.cloned(), ..Slot::default() };
                let number = match self.free.pop() {
                    Some(number) => {
                        self.slots[number as usize] = slot;
                        number
                    }
                    None => {
                        self.slots.push(slot);
                        u32::try_from(self.slots.len() - 1).expect("users are fewer than their sessions")
                    }
                };
                self.numbers.insert(uid.cloned(), number);
                number
            }
        };
        self.slots[number as usize].lifetimes += 1;
        number
    }

    /// A lifetime is forgotten. Its session ended before, and its inbox is empty.
    pub(super) fn leave(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.lifetimes -= 1;
        if slot.lifetimes == 0 {
            self.numbers.remove(&slot.uid.take());
            *slot = Slot::default();
            self.free.push(number);
        }
    }

    pub(super) fn stat(&mut self, number: u32) -> &mut UserStat {
        &mut self.slots[number as usize].stat
    }

    fn of(&self, uid: Option<&Arc<str>>) -> Option<&UserStat> {
        let number = self.numbers.get(&uid.cloned())?;
        Some(&self.slots[*number as usize].stat)
    }

    /// Over all users.
    pub(super) fn total(&self) -> UserStat {
        self.slots.iter().map(|slot| slot.stat).sum()
    }

    pub(super) fn lifetimes(&self) -> u64 {
        self.slots.iter().map(|slot| slot.lifetimes).sum()
    }
}

impl Group {
    /// What a user has here; `None`: everybody who is anonymous.
    #[must_use]
    pub fn user(&self, uid: Option<&Arc<str>>) -> UserStat {
        self.users.of(uid).copied().unwrap_or_default()
    }

    /// The user whose inbox a lifetime has.
    #[must_use]
    pub fn user_of_lifetime(&self, lifetime: u64) -> Option<&Option<Arc<str>>> {
        let life = self.lifetimes.get(&lifetime)?;
        Some(&self.users.slots[life.user as usize].uid)
    }

    /// Counts a session of the current lifetime of a row in or out.
    pub(super) fn count_session(&mut self, lifetime: u64, by: i64) {
        let Some(life) = self.lifetimes.get(&lifetime) else { return };
        let sessions = &mut self.users.stat(life.user).sessions;
        *sessions = sessions.checked_add_signed(by).expect("sessions of a user are counted both ways");
    }

    /// A lifetime is forgotten.
    pub(super) fn forget_lifetime(&mut self, lifetime: u64) {
        if let Some(life) = self.lifetimes.remove(&lifetime) {
            self.users.leave(life.user);
        }
    }

    /// The user of a row, as far as it was loaded.
    pub(super) fn uid_of(&self, key: &Key) -> Option<Arc<str>> {
        self.sessions.get(key).and_then(|slot| slot.row.uid.clone())
    }
}
