//! One suite for leases and channels on every backend: memory, embedded (a real log with fsync), and, with the feature `etcd`, embedded
//! channels whose member leases are in a real etcd. Tests name the items of the acceptance checklist (lease spec §16) that they hold.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "../support/mod.rs"]
mod support;

mod bench;
mod channels;
mod contention;
mod embedded;
mod faults;
mod leases;
mod volume;

#[cfg(feature = "etcd")]
mod etcd;

/// Each case as a test of its own on each backend.
macro_rules! on_every_backend {
    ($cases:ident: $($name:ident),* $(,)?) => {
        mod memory {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let bench = crate::bench::Bench::memory();
                super::$cases::$name(&bench).await;
                bench.end().await;
            })*
        }
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let bench = crate::bench::Bench::embedded().await;
                super::$cases::$name(&bench).await;
                bench.end().await;
            })*
        }
        #[cfg(feature = "etcd")]
        mod etcd {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                let bench = crate::bench::Bench::etcd().await;
                super::$cases::$name(&bench).await;
                bench.end().await;
            })*
        }
    };
}
pub(crate) use on_every_backend;
