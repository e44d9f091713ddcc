//! Retained messages of the topics that belong to this group (MQTT 5 §3.3.1.3).

use std::sync::Arc;

use super::messages::MESSAGE_BYTES_MAX;
use super::rows::RowId;
use super::stamps::Use;
use super::{Group, RetainedVisitor};
use crate::lifecycle::command::Stamp;
use crate::lifecycle::reply::{Conflict, Reply};
use crate::message::Message;
use crate::topic;

impl Group {
    /// Replaces the retained message of a topic; an empty payload, or one that expired already, removes it. One with a stamp that
    /// was seen changes nothing: a newer value may have come since. `Quota` when the group is full and the topic has none yet.
    pub(super) fn retain(&mut self, message: &Message, stamp: Option<&Stamp>) -> Result<Reply, Conflict> {
        let name = message.topic();
        if name.is_empty() || name.contains('\0') || message.len() >= MESSAGE_BYTES_MAX as usize {
            return Err(Conflict::Illegal);
        }
        if let Some(stamp) = stamp
            && self.seen(stamp, Use::Retain)
        {
            return Ok(Reply::Done { revision: 0, unchanged: true });
        }
        let expired = message.expires_at.is_some_and(|at| at <= self.clock);
        let removes = message.payload().is_empty() || expired;
        if !removes && self.stat.retained >= self.quota_retained && !self.retained.contains_key(name) {
            return Err(Conflict::Quota);
        }
        if let Some(stamp) = stamp {
            self.record(stamp, Use::Retain);
        }
        if removes {
            let existed = self.remove_retained(name);
            return Ok(Reply::Done { revision: 0, unchanged: !existed });
        }
        let id = self.messages.insert(message, 1);
        let topic: Arc<str> = match self.retained.get_key_value(name) {
            Some((topic, _)) => topic.clone(),
            None => name.into(),
        };
        if let Some(old) = self.retained.insert(topic.clone(), id) {
            self.forget_retained_body(&topic, old);
        } else {
            self.stat.retained += 1;
        }
        if let Some(at) = message.expires_at {
            self.retained_expiry.insert((at, topic.clone()));
        }
        self.dirty.rows.insert(RowId::Retained(topic));
        Ok(Reply::Done { revision: 0, unchanged: false })
    }

    /// Removes the retained message of a topic; false when there was none.
    pub(super) fn remove_retained(&mut self, name: &str) -> bool {
        let Some((topic, id)) = self.retained.remove_entry(name) else { return false };
        self.forget_retained_body(&topic, id);
        self.stat.retained -= 1;
        self.dirty.rows.insert(RowId::Retained(topic));
        true
    }

    fn forget_retained_body(&mut self, topic: &Arc<str>, id: u64) {
        if let Some(at) = self.messages.expires_at(id) {
            self.retained_expiry.remove(&(at, topic.clone()));
        }
        self.messages.release(id);
    }

    pub(super) fn scan_retained(&self, filter: &str, after: Option<&str>, visit: &mut RetainedVisitor<'_>) {
        topic::scan_behind(&self.retained, filter, after, |name, id| {
            let expired = self.messages.expires_at(*id).is_some_and(|at| at <= self.clock);
            expired || visit(name, self.messages.body(*id), *id)
        });
    }
}
