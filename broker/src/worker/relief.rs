//! What a worker does while the node is overloaded: QoS 0 for slow subscribers is dropped earlier, and who publishes much at once is read
//! less often. What was promised is kept: QoS 1 and 2, and the sessions that are there.

use gateway::codec::Publish;
use gateway::driver::TICK_PERIOD_MS;

use super::Worker;
use super::client::Session;
use super::pace::Pace;
use crate::metrics::Level;
use crate::overload::Pulse;

/// Publishing more than this in one turn is much at once.
const MESSAGES_AT_ONCE: u32 = 64;
const BYTES_AT_ONCE: usize = 16 << 10;

/// What a connection published in one turn.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Brought {
    messages: u32,
    bytes: usize,
}

/// Milliseconds for which a connection is not read that published much at once.
const fn pause_ms(level: Level) -> u64 {
    match level {
        Level::Normal | Level::Busy => 0,
        Level::Overloaded => 100,
        Level::Critical => 500,
    }
}

/// By how many powers of two outboxes are smaller for QoS 0.
const fn relief(level: Level) -> u32 {
    match level {
        Level::Normal | Level::Busy => 0,
        Level::Overloaded => 2,
        Level::Critical => 4,
    }
}

impl Worker {
    pub(super) fn pulse(&self) -> &Pulse {
        &self.shared.load.pulses()[usize::from(self.id)]
    }

    /// Tells how late this worker is, and takes over how loaded the node is.
    pub(super) fn feel_load(&self) {
        self.pulse().beat(self.now.get(), TICK_PERIOD_MS);
        let level = self.shared.load.level();
        if self.level.replace(level) != level {
            self.links.set_relief(relief(level));
        }
    }

    /// Whether QoS 0 finds smaller outboxes.
    pub(super) fn is_relieved(&self) -> bool {
        relief(self.level.get()) > 0
    }

    /// Whether nothing is taken on that lasts.
    pub(super) fn takes_nothing_durable(&self) -> bool {
        self.level.get() >= Level::Critical
    }

    /// A connection that publishes much at once is not read for a while.
    pub(super) fn relieve(&self, session: &mut Session, publish: &Publish<'_>) {
        let pause_ms = pause_ms(self.level.get());
        if pause_ms == 0 {
            return;
        }
        let brought = &mut session.brought;
        brought.messages += 1;
        brought.bytes += publish.topic.len() + publish.payload.len();
        if brought.messages >= MESSAGES_AT_ONCE || brought.bytes >= BYTES_AT_ONCE {
            *brought = Brought::default();
            let pace = session.pace.get_or_insert_with(Box::<Pace>::default);
            pace.relieve(self.now.get().plus_ms(pause_ms));
        }
    }
}
