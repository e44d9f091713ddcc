//! Who gets a message: the subscription index (an immutable version, swapped on change), the directory of subscribers,
//! shared subscriptions, and the selection of deliveries.
//!
//! A worker resolves a topic to a [`Plan`] once per version of the index and keeps it ([`PlanCache`]); per message only
//! [`select`] runs: it looks at QoS, RETAIN, No Local and at who is connected.

mod announced;
mod cache;
mod inboxes;
mod plan;
mod readers;
mod remote;
mod router;
mod select;
mod subscriber;
mod subscription;
mod tried;

#[cfg(test)]
mod nodes_test;
#[cfg(test)]
mod router_test;

pub use announced::{Announced, RouteChange, Since};
pub use cache::PlanCache;
pub use plan::{Destination, Grant, Plan, Share};
pub use readers::Readers;
pub use remote::{Remote, RemoteShare};
pub use router::{Followed, LiveTarget, Restored, Route, Router, SharedTarget, Snapshot, SnapshotCache};
pub use select::{
    Foreign, Outgoing, Shape, Sink, select, select_foreign, select_local, select_other_here, select_own,
    share_stamp, stamp_hash,
};
pub use subscriber::{PartyId, Subscriber};
pub use subscription::{Member, ShareGroup, Sub};
pub use tried::{Left, Tried};
