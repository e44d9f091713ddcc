//! The inboxes and shared subscriptions of a group as operators list them: channels beside those of the queue layer (DESIGN §9).

use std::ops::Bound;
use std::sync::Arc;

use super::Group;
use super::read::SHARE;
use crate::id::Key;
use crate::lifecycle::row::{InboxStat, SessionRow, SubscriptionOptions};

/// The inbox of one lifetime: the consumer is the session's exact owner.
#[derive(Debug, Clone, Copy)]
pub struct InboxRow<'a> {
    /// The row of its ClientID. It is about this lifetime when `row.lifetime` is its number, else about a later one.
    pub row: &'a SessionRow,
    pub lifetime: u64,
    pub session_generation: u64,
    /// The lifetime ended or was replaced: nothing is appended any more, and what is left waits for its reclamation.
    pub sealed: bool,
    /// Exact: what is not acknowledged.
    pub stat: InboxStat,
}

impl Group {
    /// The inboxes of a ClientID, in the order of their generations: those that wait for their reclamation, then the one in use.
    pub fn inboxes<'a>(&'a self, key: &Key) -> impl Iterator<Item = InboxRow<'a>> + use<'a> {
        let slot = self.sessions.get(key);
        let current = slot.filter(|slot| !slot.reclaimable.contains(&slot.row.lifetime));
        let ended = slot.into_iter().flat_map(|slot| slot.reclaimable.iter().map(move |of| (slot, *of)));
        ended.chain(current.map(|slot| (slot, slot.row.lifetime))).filter_map(|(slot, lifetime)| {
            let life = self.lifetimes.get(&lifetime)?;
            let children = life.children.as_deref()?;
            Some(InboxRow {
                row: &slot.row,
                lifetime,
                session_generation: children.session_generation,
                sealed: life.ended,
                stat: children.inbox.stat(),
            })
        })
    }

    /// Stored shared subscriptions of a lifetime, in the order of their filters, which begin with `$share/`; none of an ended one.
    pub fn shared_subscriptions(
        &self,
        lifetime: u64,
    ) -> impl Iterator<Item = (&Arc<str>, &SubscriptionOptions)> {
        self.lifetimes
            .get(&lifetime)
            .filter(|life| !life.ended)
            .and_then(|life| life.children.as_deref())
            .into_iter()
            .flat_map(|children| {
                children.subscriptions.range::<str, _>((Bound::Included(SHARE), Bound::Unbounded))
            })
            .take_while(|(filter, _)| filter.starts_with(SHARE))
    }
}
