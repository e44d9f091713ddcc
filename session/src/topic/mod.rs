//! Topic names and filters, and the index that finds the subscribers of a topic (MQTT §4.7, §4.8.2).

mod filter;
mod level;
mod name;
mod ordered;
mod retained;
mod spread;
mod tree;

pub use filter::{FilterError, TopicFilter};
pub use name::{TopicError, check_topic_name};
pub use retained::{filter_matches, scan, scan_behind};
pub use tree::{Matches, Subscription, Tree};
