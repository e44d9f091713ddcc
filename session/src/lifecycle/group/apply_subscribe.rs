//! Stored subscriptions of durable sessions.

use std::sync::Arc;

use super::Group;
use super::rows::RowId;
use crate::lifecycle::command::{SessionRef, SubscriptionRow};
use crate::lifecycle::reply::{Conflict, Reply};

/// A topic filter is a UTF-8 string of the wire (MQTT 5 §1.5.4).
const FILTER_BYTES_MAX: usize = 65_535;

impl Group {
    pub(super) fn subscribe(
        &mut self,
        session: SessionRef,
        filters: &[SubscriptionRow],
    ) -> Result<Reply, Conflict> {
        if filters.iter().any(|row| row.filter.is_empty() || row.filter.len() > FILTER_BYTES_MAX) {
            return Err(Conflict::Illegal);
        }
        let (children, dirty, stat) = self.fenced(session)?;
        let mut new = Vec::with_capacity(filters.len());
        for row in filters {
            let before = match children.subscriptions.get_mut(&row.filter) {
                Some(options) => Some(std::mem::replace(options, row.options)),
                None => children.subscriptions.insert(row.filter.clone(), row.options),
            };
            new.push(before.is_none());
            stat.subscriptions += u64::from(before.is_none());
            if before != Some(row.options) {
                dirty.rows.insert(RowId::Subscription(session.lifetime, row.filter.clone()));
            }
        }
        self.events_subscribed.push(session.lifetime);
        Ok(Reply::Subscribed { new })
    }

    pub(super) fn unsubscribe(
        &mut self,
        session: SessionRef,
        filters: &[Arc<str>],
    ) -> Result<Reply, Conflict> {
        let (children, dirty, stat) = self.fenced(session)?;
        let mut existed = Vec::with_capacity(filters.len());
        for filter in filters {
            let removed = children.subscriptions.remove(filter).is_some();
            existed.push(removed);
            stat.subscriptions -= u64::from(removed);
            if removed {
                dirty.rows.insert(RowId::Subscription(session.lifetime, filter.clone()));
            }
        }
        self.events_subscribed.push(session.lifetime);
        Ok(Reply::Unsubscribed { existed })
    }
}
