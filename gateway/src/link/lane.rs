//! Deliveries in their order of arrival: encoded bytes in one buffer, with marks where something other than QoS 0 bytes stands.

use std::collections::VecDeque;

use super::MessageDelivery;
use crate::driver::buffers;

/// Bytes that a queued message is taken to need beside its body.
const MESSAGE_OVERHEAD: usize = 64;

/// Marks for which an empty lane keeps room.
const MARKS_KEPT: usize = 16;

/// A queue of deliveries. Runs of QoS 0 bytes need no mark as long as nothing else waits.
#[derive(Debug, Default)]
pub(crate) struct Lane {
    bytes: Vec<u8>,
    /// Start of what was not taken yet.
    at: usize,
    /// QoS 0 bytes in front of the first mark.
    lead: usize,
    marks: VecDeque<Mark>,
    /// Estimated bytes of the messages among the marks.
    message_weight: usize,
}

#[derive(Debug)]
enum Mark {
    Bytes(usize),
    Exchange { len: u32, packet_id_at: u32, exactly_once: bool },
    Message(Box<MessageDelivery>),
}

/// What stands at the front of a lane.
#[derive(Debug)]
pub(crate) enum Entry<'a> {
    /// One or more whole QoS 0 packets.
    Bytes(&'a [u8]),
    /// A QoS > 0 packet without its packet id.
    Exchange {
        bytes: &'a [u8],
        packet_id_at: usize,
        exactly_once: bool,
    },
    Message(&'a MessageDelivery),
}

/// What a queued message counts for.
pub(super) fn weight(delivery: &MessageDelivery) -> usize {
    delivery.message.len() + MESSAGE_OVERHEAD
}

impl Lane {
    pub(crate) fn is_empty(&self) -> bool {
        self.lead == 0 && self.marks.is_empty()
    }

    pub(crate) fn weight(&self) -> usize {
        self.bytes.len() - self.at + self.message_weight
    }

    pub(crate) fn push_bytes(&mut self, packet: &[u8]) {
        self.append(packet);
        match self.marks.back_mut() {
            None => self.lead += packet.len(),
            Some(Mark::Bytes(run)) => *run += packet.len(),
            Some(_) => self.marks.push_back(Mark::Bytes(packet.len())),
        }
    }

    pub(crate) fn push_exchange(&mut self, packet: &[u8], packet_id_at: usize, exactly_once: bool) {
        self.append(packet);
        // A packet has at most 268,435,460 bytes (§2.1.4), so both numbers fit.
        let (len, packet_id_at) = (packet.len() as u32, packet_id_at as u32);
        self.marks.push_back(Mark::Exchange { len, packet_id_at, exactly_once });
    }

    pub(crate) fn push_message(&mut self, delivery: Box<MessageDelivery>) {
        self.message_weight += weight(&delivery);
        self.marks.push_back(Mark::Message(delivery));
    }

    /// The entry at the front.
    pub(crate) fn front(&self) -> Option<Entry<'_>> {
        if self.lead > 0 {
            return Some(Entry::Bytes(&self.bytes[self.at..self.at + self.lead]));
        }
        Some(match self.marks.front()? {
            Mark::Bytes(run) => Entry::Bytes(&self.bytes[self.at..self.at + run]),
            Mark::Exchange { len, packet_id_at, exactly_once } => Entry::Exchange {
                bytes: &self.bytes[self.at..self.at + *len as usize],
                packet_id_at: *packet_id_at as usize,
                exactly_once: *exactly_once,
            },
            Mark::Message(delivery) => Entry::Message(delivery),
        })
    }

    /// Drops the entry at the front.
    pub(crate) fn pop(&mut self) {
        if self.lead > 0 {
            self.at += std::mem::take(&mut self.lead);
        } else {
            match self.marks.pop_front() {
                Some(Mark::Bytes(run)) => self.at += run,
                Some(Mark::Exchange { len, .. }) => self.at += len as usize,
                Some(Mark::Message(delivery)) => self.message_weight -= weight(&delivery),
                None => {}
            }
        }
        self.compact();
    }

    /// Moves the entry at the front to the back of `other`.
    pub(crate) fn pop_into(&mut self, other: &mut Self) {
        match self.front() {
            Some(Entry::Bytes(bytes)) => other.push_bytes(bytes),
            Some(Entry::Exchange { bytes, packet_id_at, exactly_once }) => {
                other.push_exchange(bytes, packet_id_at, exactly_once);
            }
            Some(Entry::Message(_)) => {
                if let Some(Mark::Message(delivery)) = self.marks.pop_front() {
                    self.message_weight -= weight(&delivery);
                    other.push_message(delivery);
                }
                return;
            }
            None => {}
        }
        self.pop();
    }

    /// The whole buffer, when it holds nothing but QoS 0 packets that were never touched: it can be written as it is.
    pub(crate) fn take_plain(&mut self) -> Option<Vec<u8>> {
        if self.lead == 0 || self.at != 0 || !self.marks.is_empty() {
            return None;
        }
        self.lead = 0;
        Some(std::mem::take(&mut self.bytes))
    }

    /// Puts `front` before what is here.
    pub(crate) fn prepend(&mut self, mut front: Self) {
        let mut back = std::mem::take(self);
        while back.front().is_some() {
            back.pop_into(&mut front);
        }
        back.release();
        *self = front;
    }

    /// Gives the buffer back to the worker.
    pub(crate) fn release(self) {
        buffers::give(self.bytes);
    }

    /// The same; deliveries of shared subscriptions go to `left`.
    pub(super) fn release_shared(self, left: &mut Vec<MessageDelivery>) {
        for mark in self.marks {
            if let Mark::Message(delivery) = mark
                && delivery.share.is_some()
            {
                left.push(*delivery);
            }
        }
        buffers::give(self.bytes);
    }

    fn append(&mut self, packet: &[u8]) {
        if self.bytes.capacity() == 0 {
            self.bytes = buffers::take();
        }
        self.bytes.extend_from_slice(packet);
    }

    fn compact(&mut self) {
        const WORTH_MOVING: usize = 64 * 1024;
        if self.at == self.bytes.len() {
            self.at = 0;
            self.bytes.clear();
            if self.is_empty() {
                buffers::give(std::mem::take(&mut self.bytes));
                if self.marks.capacity() > MARKS_KEPT {
                    self.marks = VecDeque::new();
                }
            }
        } else if self.at >= WORTH_MOVING && self.at * 2 >= self.bytes.len() {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
    }
}
