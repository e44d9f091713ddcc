//! The queue layer inside the group: its leases and channels change in the same log, and its records share the message bodies.

use super::Group;
use super::messages::Messages;
use crate::lease::LeaseCommand;
use crate::lifecycle::reply::Reply;
use crate::message::Message;
use crate::queue::{Bodies, Page, QueueCommand, Refusal, Space};
use crate::time::Millis;

impl Bodies for Messages {
    fn put(&mut self, message: &Message) -> u64 {
        self.insert(message, 1)
    }

    fn release(&mut self, id: u64) {
        Self::release(self, id);
    }

    fn expires_at(&self, id: u64) -> Option<Millis> {
        Self::expires_at(self, id)
    }

    fn get(&self, id: u64) -> Option<std::sync::Arc<Message>> {
        self.body(id).cloned()
    }
}

impl Group {
    pub(super) fn lease(&mut self, command: &LeaseCommand) -> Reply {
        Reply::Lease(self.space.apply_lease(command, &mut self.messages))
    }

    pub(super) fn queue(&mut self, command: &QueueCommand) -> Reply {
        Reply::Queue(self.space.apply_queue(command, self.clock, &mut self.messages))
    }

    /// Leases and channels of the queue layer.
    #[must_use]
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Records of a log that a consumer owns: [`Space::read`].
    ///
    /// # Errors
    /// As there.
    pub fn read_channel(
        &self,
        at: (u64, u64, u64),
        from: u64,
        max: usize,
        out: &mut Page,
    ) -> Result<(), Refusal> {
        self.space.read(at, from, max, &self.messages, out)
    }

    /// Records that a group member has claimed: [`Space::claimed`].
    ///
    /// # Errors
    /// As there.
    pub fn read_claimed(&self, member: u64, from: u64, max: usize, out: &mut Page) -> Result<(), Refusal> {
        self.space.claimed(member, from, max, &self.messages, out)
    }
}
