//! Three stores on three data directories that replicate to each other (DESIGN §5): real logs, real fsync, real snapshots; only the way
//! between them is a function call that can be cut.
#![allow(dead_code, clippy::unwrap_used, reason = "each test binary uses a part of these tests' tools")]

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use session::id::Boot;
use session::lifecycle::{Command, Reply};
use session::time::Millis;
use storage::{Formation, GroupId, Options, PeerAddress, PeerError, PeerFuture, Peers, Store};

use crate::support::{self, TestClock};

/// An address where nobody is.
pub(crate) const NOWHERE: &str = "nowhere";

/// The network: which stores run, and which ways are cut.
#[derive(Debug, Clone, Default)]
pub(crate) struct Net(pub(crate) Arc<Mutex<State>>);

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) stores: Vec<(u64, Store)>,
    /// From, to.
    pub(crate) cut: HashSet<(u64, u64)>,
    /// How fast all ways are; `None`: they cost nothing.
    pub(crate) bytes_per_ms: Option<u64>,
}

/// The network as one node sees it.
#[derive(Debug)]
struct Port {
    own: u64,
    net: Net,
}

impl Peers for Port {
    fn call(&self, to: &PeerAddress, request: Bytes, timeout: Duration) -> PeerFuture {
        let right = to.address != NOWHERE;
        let (own, to, net) = (self.own, to.node_id, self.net.clone());
        Box::pin(async move {
            let unreachable = || PeerError::Unreachable { node_id: to, reason: "cut".to_owned() };
            let store = net.way(own, to).filter(|_| right).ok_or_else(unreachable)?;
            if let Some(bytes_per_ms) = net.bytes_per_ms() {
                tokio::time::sleep(Duration::from_millis(request.len() as u64 / bytes_per_ms)).await;
            }
            let unknown = |reason: &str| PeerError::Unknown { node_id: to, reason: reason.to_owned() };
            let answer = tokio::time::timeout(timeout, store.serve_peer(&request));
            let answer = answer.await.map_err(|_| unknown("too slow"))?;
            // The way back may be cut by now.
            net.way(to, own).map(|_| answer).ok_or_else(|| unknown("cut"))
        })
    }
}

impl Net {
    pub(crate) fn way(&self, from: u64, to: u64) -> Option<Store> {
        let state = self.0.lock();
        if state.cut.contains(&(from, to)) {
            return None;
        }
        state.stores.iter().find(|(id, _)| *id == to).map(|(_, store)| store.clone())
    }

    pub(crate) fn bytes_per_ms(&self) -> Option<u64> {
        self.0.lock().bytes_per_ms
    }

    /// Cuts a node off from all others, both ways.
    pub(crate) fn isolate(&self, node: u64) {
        let mut state = self.0.lock();
        for other in 1..=4 {
            state.cut.insert((node, other));
            state.cut.insert((other, node));
        }
    }

    pub(crate) fn heal(&self) {
        self.0.lock().cut.clear();
    }

    pub(crate) async fn start(&self, dir: &Path, node_id: u64, boot: &str, formation: Formation) -> Store {
        let options = Options {
            boot: Boot { node_id, boot_id: boot.into() },
            peers: Some(Arc::new(Port { own: node_id, net: self.clone() })),
            formation,
            ..support::options(&dir.join(node_id.to_string()))
        };
        let store = Store::open(options, TestClock::at(1_000)).await.unwrap();
        self.0.lock().stores.push((node_id, store.clone()));
        store
    }

    pub(crate) async fn stop(&self, node_id: u64) {
        let stopped = {
            let mut state = self.0.lock();
            let at = state.stores.iter().position(|(id, _)| *id == node_id).unwrap();
            state.stores.remove(at).1
        };
        stopped.close().await.unwrap();
    }
}

/// Three nodes, all voters of every group, with their boots announced.
pub(crate) async fn three(net: &Net, dir: &Path) -> [Store; 3] {
    let first = net.start(dir, 1, "boot-1", Formation::Alone).await;
    let second = net.start(dir, 2, "boot-2", Formation::Join).await;
    let third = net.start(dir, 3, "boot-3", Formation::Join).await;
    first.add_node(&address(2)).await.unwrap();
    first.add_node(&address(3)).await.unwrap();
    for store in [&first, &second, &third] {
        announce(store).await;
    }
    [first, second, third]
}

pub(crate) fn address(node_id: u64) -> PeerAddress {
    PeerAddress { node_id, address: format!("node-{node_id}") }
}

pub(crate) async fn announce(store: &Store) {
    for group in groups(store) {
        let start = Command::BootStart { lease_until: Millis(1 << 40) };
        assert!(matches!(persist(store, group, start).await, Reply::Done { .. }));
    }
}

pub(crate) fn groups(store: &Store) -> impl Iterator<Item = GroupId> + use<> {
    (0..store.groups()).map(GroupId)
}

/// Proposes until it is taken: leaders change.
pub(crate) async fn persist(store: &Store, group: GroupId, command: Command) -> Reply {
    let mut last = None;
    for _ in 0..40 {
        match store.call(group, command.clone()).await {
            Ok(reply) => return reply,
            Err(error) => last = Some(error),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("never taken: {last:?}");
}
