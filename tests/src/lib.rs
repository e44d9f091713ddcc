//! What the suites share: real broker processes, a byte-level MQTT client with an encoder of its own (so that the codec is
//! not its own judge), and waiting for conditions with deadlines.

pub mod chaos;
pub mod client;
pub mod cluster;
pub mod etcd;
pub mod flood;
pub mod history;
pub mod hook;
pub mod load;
pub mod model;
pub mod mosquitto;
pub mod node;
pub mod scram;
pub mod sim;
pub mod users;
pub mod wait;
pub mod wire;

pub use client::{Client, Options};
pub use cluster::Cluster;
pub use etcd::Etcd;
pub use mosquitto::Mosquitto;
pub use node::{Node, Place};
pub use wait::eventually;
pub use wire::Packet;
