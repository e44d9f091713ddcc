//! Who gets a message: the subscription index (an immutable version, swapped on change), the directory of subscribers,
//! shared subscriptions, and the selection of deliveries.
//!
//! A worker resolves a topic to a [`Plan`] once per version of the index and keeps it ([`PlanCache`]); per message only
//! [`select`] runs: it looks at QoS, RETAIN, No Local and at who is connected.

mod cache;
mod plan;
mod readers;
mod router;
mod select;
mod subscriber;
mod subscription;

#[cfg(test)]
mod router_test;

pub use cache::PlanCache;
pub use plan::{Destination, Grant, Plan};
pub use readers::Readers;
pub use router::{Followed, LiveTarget, Restored, Route, Router, Snapshot, SnapshotCache};
pub use select::{Outgoing, Shape, Sink, select, select_local, stamp_hash};
pub use subscriber::{PartyId, Subscriber};
pub use subscription::{Member, ShareGroup, Sub};
