//! MQTT bytes and sockets: the codec, the sans-IO connection machine, its tokio driver, and the listeners.
//!
//! No ownership or durability decision is taken here: those come through [`service::Service`], which the broker
//! implements. Read [`codec`] (one file per packet), [`connection`] (the pure machine) and [`driver`] (one socket).

pub mod codec;
pub mod connection;
pub mod driver;
pub mod link;
pub mod listener;
pub mod service;
