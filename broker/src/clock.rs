//! The clocks of this node: monotonic ticks for local deadlines, hybrid logical milliseconds for what is replicated.

/// `Tick` counts from the start of the process; `Millis` is `max(wall, last seen)` (DESIGN §5 "Time").
#[derive(Debug)]
pub struct NodeClock {
    _private: (),
}
