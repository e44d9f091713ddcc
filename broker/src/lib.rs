//! The ExactMQ broker: composition root, use cases, routing, admin, configuration, command line.
//!
//! Read [`node`] (start and stop order) first, then [`usecase`] (who may execute for a session, and what is recorded), then
//! [`worker`] and [`route`] (the hot path from PUBLISH to outboxes and inboxes), then [`forward`]
//! (what other nodes are told and sent).

pub mod admin;
pub mod auth;
mod authorities;
pub mod bridge;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod config;
pub mod events;
pub mod forward;
pub mod metrics;
pub mod node;
pub mod overload;
pub mod owners;
pub mod route;
pub mod shared;
pub mod slow;
pub mod trace;
pub mod usecase;
pub mod users;
pub mod worker;
