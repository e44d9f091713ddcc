//! Pages of inboxes with their bodies, and what a session leaves to the other members of its shares.

use std::sync::Arc;

use session::lifecycle::{Group, InboxRead, Inherited};

use super::{Machine, READ_AGAIN_MAX};
use crate::StorageError;
use crate::store::{Heirloom, Heritage, InboxEntry};

/// Messages of an ended lifetime that are looked up at once.
const INHERITED_AT_ONCE: usize = 256;

impl Machine {
    /// See [`crate::Store::read_inbox`].
    pub(crate) fn read_inbox(
        &self,
        lifetime: u64,
        from: u64,
        max: usize,
        bytes_max: usize,
    ) -> Result<(Vec<InboxEntry>, u64), StorageError> {
        let mut page = InboxRead::default();
        'again: for _ in 0..READ_AGAIN_MAX {
            page.entries.clear();
            {
                let _told = self.telling.read();
                self.state.read().group.read_inbox(lifetime, from, max, &mut page);
            }
            self.fetch_bodies(&mut page, bytes_max)?;
            let mut entries = Vec::with_capacity(page.entries.len());
            for delivery in page.entries.drain(..) {
                // Settled and checkpointed since the page was read: the next reading does not show it any more.
                let Some(message) = delivery.message else { continue 'again };
                entries.push(InboxEntry {
                    offset: delivery.offset,
                    qos: delivery.qos,
                    retain: delivery.retain,
                    received: delivery.received,
                    maybe_sent: delivery.maybe_sent,
                    identifiers: delivery.identifiers,
                    message,
                });
            }
            return Ok((entries, page.next));
        }
        Err(self.missing_body(&format!("inbox {lifetime}")))
    }

    /// Brings the bodies of a page that are on disk only, together. What would go beyond `bytes_max` is cut off: the page ends before it.
    fn fetch_bodies(&self, page: &mut InboxRead, bytes_max: usize) -> Result<(), StorageError> {
        let (mut bytes, mut kept) = (0_u64, 0);
        for delivery in &page.entries {
            if kept > 0 && bytes + delivery.len > bytes_max as u64 {
                break;
            }
            bytes += delivery.len;
            kept += 1;
        }
        if let Some(first_cut) = page.entries.get(kept) {
            page.next = first_cut.offset;
            page.entries.truncate(kept);
        }
        let missing = page.entries.iter().enumerate().filter(|(_, delivery)| delivery.message.is_none());
        let (at, ids): (Vec<usize>, Vec<u64>) =
            missing.map(|(at, delivery)| (at, delivery.message_id)).unzip();
        if ids.is_empty() {
            return Ok(());
        }
        let entries = &mut page.entries;
        self.engine().visit_bodies(&ids, &mut |number, row| {
            entries[at[number]].message = Some(Arc::new(Group::decode_body(row)?));
            Ok(())
        })
    }

    /// See [`crate::Store::inherited`].
    pub(crate) fn inherited(&self, lifetime: u64, from: u64) -> Result<Heritage, StorageError> {
        self.heritage(|group, filters, found| {
            let shared = group.shared_filters(lifetime);
            filters.extend(shared.map(|(filter, identifier)| (Arc::clone(filter), identifier)));
            group.inherited(lifetime, from, INHERITED_AT_ONCE, found)
        })
    }

    /// See [`crate::Store::unbound`].
    pub(crate) fn unbound(&self, lifetime: u64, from: u64) -> Result<Heritage, StorageError> {
        self.heritage(|group, filters, found| {
            let shared = group.shared_subscriptions(lifetime);
            filters.extend(shared.map(|(filter, options)| (Arc::clone(filter), options.identifier)));
            group.unbound(lifetime, from, INHERITED_AT_ONCE, found)
        })
    }

    fn heritage(
        &self,
        read: impl FnOnce(&Group, &mut Vec<(Arc<str>, u32)>, &mut Vec<Inherited>) -> Option<u64>,
    ) -> Result<Heritage, StorageError> {
        let (mut found, mut filters) = (Vec::new(), Vec::new());
        let next = read(&self.state.read().group, &mut filters, &mut found);
        let mut messages = Vec::with_capacity(found.len());
        for Inherited { offset, identifiers, message, message_id } in found {
            let message = match message {
                Some(message) => Some(message),
                None => self.body(message_id)?,
            };
            // Without a body it was reclaimed since the page was read.
            messages.extend(message.map(|message| Heirloom { offset, identifiers, message }));
        }
        Ok(Heritage { filters, messages, next })
    }
}
