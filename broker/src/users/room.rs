//! Room in the inboxes of a user, looked up before a message is appended to one. What is under way to the store is not seen: of messages that
//! are published side by side so many may come on top.

use session::lifecycle::{Target, UserStat};
use smallvec::SmallVec;
use storage::GroupId;

use super::{Uid, UserLimits};
use crate::shared::Shared;

/// The users among whose inboxes one message goes.
#[derive(Debug)]
pub struct UserRoom<'a> {
    shared: &'a Shared,
    /// Bytes of the message.
    len: u64,
    /// With what each has, this message included.
    seen: SmallVec<[(Uid, UserStat); 1]>,
}

impl<'a> UserRoom<'a> {
    /// `None`: inboxes of users are not limited.
    #[must_use]
    pub fn of(shared: &'a Shared, len: usize) -> Option<Self> {
        let UserLimits { inbox_messages_max, inbox_bytes_max, .. } = shared.users.limits();
        (*inbox_messages_max > 0 || *inbox_bytes_max > 0).then(|| Self {
            shared,
            len: len as u64,
            seen: SmallVec::new(),
        })
    }

    /// Takes out the targets whose user has no room; how many.
    pub fn filter(&mut self, group: GroupId, targets: &mut Vec<Target>) -> u64 {
        let before = targets.len();
        targets.retain(|target| self.takes(group, target.lifetime));
        (before - targets.len()) as u64
    }

    /// Whether the user of this inbox has room for the message; it is counted then.
    pub fn takes(&mut self, group: GroupId, lifetime: u64) -> bool {
        let uid = self.shared.store.read(group, |rows| rows.user_of_lifetime(lifetime).cloned());
        // It is gone: the append says so.
        let Some(uid) = uid else { return true };
        let at = match self.seen.iter().position(|(seen, _)| *seen == uid) {
            Some(at) => at,
            None => {
                let stat = self.shared.stored_of(uid.as_ref());
                self.seen.push((uid, stat));
                self.seen.len() - 1
            }
        };
        let has = &mut self.seen[at].1;
        let fits = fits(self.shared.users.limits(), has, self.len);
        if fits {
            has.inbox_messages += 1;
            has.inbox_bytes += self.len;
        }
        fits
    }
}

fn fits(limits: &UserLimits, has: &UserStat, len: u64) -> bool {
    let UserLimits { inbox_messages_max, inbox_bytes_max, .. } = *limits;
    (inbox_messages_max == 0 || has.inbox_messages < inbox_messages_max)
        && (inbox_bytes_max == 0 || has.inbox_bytes.saturating_add(len) <= inbox_bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue 5 §3, P9: both limits hold, each alone too.
    #[test]
    fn p9_both_limits_of_a_user_hold() {
        let has = UserStat { sessions: 1, inbox_messages: 9, inbox_bytes: 900 };
        let limits = |inbox_messages_max, inbox_bytes_max| UserLimits {
            inbox_messages_max,
            inbox_bytes_max,
            ..UserLimits::default()
        };
        assert!(fits(&limits(10, 1_000), &has, 100));
        assert!(!fits(&limits(10, 1_000), &has, 101));
        assert!(!fits(&limits(9, 0), &has, 1));
        assert!(fits(&limits(0, 1_000), &has, 100));
        assert!(fits(&limits(10, 0), &has, u64::MAX));
    }
}
