//! What a node that stops in order says to the others (service 150), and what they do then: they tell it where its clients may go, and
//! commit that its boot is over, so that its sessions can be taken over while it is away (DESIGN §6, §7).
//!
//! A boot cannot retire itself: it runs while it proposes. Its receipt is on its disk before it says farewell, and the link proves who speaks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hashbrown::HashMap;
use ownerrpc::link::services::CLUSTER;
use serde::{Deserialize, Serialize};
use session::id::Boot;
use session::lifecycle::{Command, Conflict, Reply, RetireProof};
use storage::{GroupId, Store};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::calls::PeerCalls;
use crate::clock::NodeClock;
use crate::config::Config;

/// How long one node is asked where clients may go.
const ASK_TIMEOUT: Duration = Duration::from_millis(300);
/// How long one node may take to commit the end of this boot.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(3);
/// Nodes that are asked where clients may go, at most.
const ASKED_MAX: usize = 3;

/// Where clients reach a listener, by its name.
pub type Served = BTreeMap<Arc<str>, String>;

/// What is said, as JSON: rare, and read by people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(super) enum Farewell {
    /// Where do your clients connect?
    Served,
    /// This boot of mine stopped in order, with all connections up to this one.
    Stopped { boot_id: String, connection_id_max: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub(super) enum Reaction {
    Served { listeners: Served },
    Retired,
    No { reason: String },
}

/// What this node answers.
#[derive(Debug, Clone)]
pub(super) struct Reacting {
    pub store: Store,
    pub clock: Arc<NodeClock>,
    pub served: Arc<Served>,
}

/// Where clients reach the listeners of this node, as far as it is configured.
#[must_use]
pub fn served(config: &Config) -> Served {
    let advertised = |(name, listener): (&Arc<str>, &crate::config::Listener)| {
        Some((Arc::clone(name), listener.advertise.as_ref()?.0.to_string()))
    };
    config.listeners.iter().filter_map(advertised).collect()
}

impl Reacting {
    /// `boot` is who speaks, as its link proved.
    pub(super) async fn react(&self, boot: Boot, farewell: Farewell) -> Reaction {
        match farewell {
            Farewell::Served => Reaction::Served { listeners: (*self.served).clone() },
            Farewell::Stopped { boot_id, .. } if *boot_id != *boot.boot_id => {
                Reaction::No { reason: "a node says farewell for its own boot only".to_owned() }
            }
            Farewell::Stopped { connection_id_max, .. } => match self.retire(&boot).await {
                Ok(()) => {
                    tracing::info!(node_id = boot.node_id, boot = %boot.boot_id, connection_id_max, "a node stopped in order");
                    Reaction::Retired
                }
                Err(reason) => Reaction::No { reason },
            },
        }
    }

    async fn retire(&self, boot: &Boot) -> Result<(), String> {
        let mut groups = JoinSet::new();
        for group in (0..self.store.groups()).map(GroupId) {
            let observed_at = self.clock.millis();
            let proof = RetireProof::GracefulReceipt;
            let retire = Command::BootRetire { boot: boot.clone(), proof, observed_at };
            let store = self.store.clone();
            groups.spawn(async move { store.call(group, retire).await });
        }
        while let Some(reply) = groups.join_next().await {
            match reply.map_err(|error| error.to_string())?.map_err(|error| error.to_string())? {
                // A boot that this group never heard of owns nothing in it.
                Reply::Done { .. } | Reply::Conflict(Conflict::Missing) => {}
                reply => return Err(format!("the end of the boot is refused: {reply:?}")),
            }
        }
        Ok(())
    }
}

/// Where the clients of this node may go, by listener: the addresses of the first node that has some.
pub(crate) async fn references(peers: &dyn PeerCalls) -> HashMap<Arc<str>, Arc<str>> {
    for node in peers.reachable().into_iter().take(ASKED_MAX) {
        if let Ok(Reaction::Served { listeners }) = say(peers, node, &Farewell::Served, ASK_TIMEOUT).await
            && !listeners.is_empty()
        {
            return listeners.into_iter().map(|(name, address)| (name, address.into())).collect();
        }
    }
    HashMap::new()
}

/// Has another node commit that `boot`, whose receipt is written, is over; whether one did.
pub(crate) async fn retire(peers: &dyn PeerCalls, boot: &Boot, connection_id_max: u64) -> bool {
    let farewell = Farewell::Stopped { boot_id: boot.boot_id.to_string(), connection_id_max };
    for node in peers.reachable() {
        match say(peers, node, &farewell, RETIRE_TIMEOUT).await {
            Ok(Reaction::Retired) => return true,
            Ok(answer) => tracing::warn!(node, ?answer, "a node does not commit the end of this one"),
            Err(error) => tracing::warn!(node, error, "a node does not commit the end of this one"),
        }
    }
    false
}

async fn say(
    peers: &dyn PeerCalls,
    node: u64,
    farewell: &Farewell,
    timeout: Duration,
) -> Result<Reaction, String> {
    let payload = serde_json::to_vec(farewell).map_err(|error| error.to_string())?;
    let answer = peers.call(node, CLUSTER, Bytes::from(payload), Instant::now() + timeout).await;
    let answer = answer.map_err(|error| error.to_string())?;
    serde_json::from_slice(&answer).map_err(|error| error.to_string())
}
