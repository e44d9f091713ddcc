//! Bridges: what this broker exchanges with other MQTT brokers (ADR 0014).
//!
//! A bridge is a client of both. Here it comes in through a socket pair ([`gateway::driver::Inlet`]) as the user and session `bridge/NAME`,
//! so its messages wait in an inbox, under the quotas and in the monitor, as those of any client do. In a cluster the node that leads the group
//! of that session runs it; that there is one at a time is what exact ownership of the session makes sure of.
//!
//! Read [`relay`] for what is promised of a message, [`run`] for the life of a connection.

mod parked;
mod pipe;
mod relay;
mod run;
mod settings;
mod status;
mod topics;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gateway::connection::Limits;
use gateway::driver::Inlet;
use parking_lot::Mutex;
use session::id::Key;
use tokio::sync::watch;
use tokio::task::JoinHandle;

pub use settings::SettingsError;
pub use status::{BridgeState, BridgeView, BridgesView};

use crate::auth::bridge_user;
use crate::config::{Bridge, Config};
use crate::shared::Shared;
use crate::worker::Worker;
use run::Runner;
use settings::Settings;
use status::Status;

/// The bridges of this node.
pub struct Bridges {
    shared: Arc<Shared>,
    inlet: Inlet<Worker>,
    limits: Limits,
    namespace: Arc<str>,
    /// The data directory of a node that may be one of a cluster.
    mark: Option<PathBuf>,
    running: Mutex<BTreeMap<Arc<str>, Running>>,
}

struct Running {
    settings: Arc<Settings>,
    status: Arc<Status>,
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
    /// What configurations before this one subscribed to at the other broker.
    retired: Vec<Box<str>>,
}

/// Reads the files that the bridges of a configuration name.
///
/// # Errors
/// Those that cannot be used.
pub fn check(config: &Config) -> Vec<SettingsError> {
    config.bridges.iter().filter_map(|(name, bridge)| Settings::read(name, bridge).err()).collect()
}

impl Bridges {
    /// Starts those of the configuration.
    ///
    /// # Errors
    /// A file that one of them names cannot be used.
    pub fn start(
        shared: &Arc<Shared>,
        inlet: Inlet<Worker>,
        config: &Config,
    ) -> Result<Arc<Self>, SettingsError> {
        let read = |(name, bridge): (&Arc<str>, &Bridge)| Settings::read(name, bridge);
        let settings = config.bridges.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let bridges = Arc::new(Self {
            shared: shared.clone(),
            inlet,
            limits: limits(config),
            namespace: config.namespace(),
            mark: config.cluster.peer.0.map(|_| config.node.data_dir.clone()),
            running: Mutex::default(),
        });
        for settings in settings {
            bridges.begin(settings);
        }
        Ok(bridges)
    }

    /// Those whose configuration, or a file that it names, changed begin anew; what is gone stops. Which bridges that was, and what is wrong
    /// with those that cannot be changed: they go on as they are.
    pub fn reload(&self, config: &Config) -> (Vec<String>, Vec<SettingsError>) {
        let gone: Vec<Arc<str>> = {
            let running = self.running.lock();
            running.keys().filter(|name| !config.bridges.contains_key(*name)).cloned().collect()
        };
        for name in gone {
            if let Some(running) = self.running.lock().remove(&name) {
                running.stop.send_replace(true);
            }
        }
        let (mut changed, mut faults) = (Vec::new(), Vec::new());
        for (name, bridge) in &config.bridges {
            match Settings::read(name, bridge) {
                Err(error) => faults.push(error),
                Ok(settings) => {
                    let same = |running: &Running| *running.settings == settings;
                    if !self.running.lock().get(name).is_some_and(same) {
                        changed.push(format!("bridge {name}"));
                        self.begin(settings);
                    }
                }
            }
        }
        (changed, faults)
    }

    fn begin(&self, settings: Settings) {
        let name = settings.name.clone();
        let settings = Arc::new(settings);
        let before = self.running.lock().remove(&name);
        let key = Key { namespace: self.namespace.clone(), client_id: bridge_user(&name) };
        let remote_client_id = self.remote_client_id(&settings);
        let status = Arc::new(Status::new(&self.shared, &name, key.clone(), remote_client_id.clone()));
        let mut retired = Vec::new();
        let before = before.map(|running| {
            running.stop.send_replace(true);
            status.adopt(&running.status.view());
            retired = running.retired;
            retired.extend(running.settings.topics.wanted().1.into_iter().map(|wanted| wanted.filter));
            running.task
        });
        let parts = (status.clone(), key, remote_client_id);
        let runner = Runner::new(
            (&self.shared, &self.inlet, self.limits.clone()),
            settings.clone(),
            parts,
            (self.mark.clone(), retired.clone()),
        );
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            if let Some(before) = before {
                // Two would take each other's sessions.
                let _ = before.await;
            }
            runner.run(stopped).await;
        });
        self.running.lock().insert(name, Running { settings, status, stop, task, retired });
    }

    /// The same on every node of the cluster, and another one in another cluster.
    fn remote_client_id(&self, settings: &Settings) -> Arc<str> {
        settings.config.client_id.clone().unwrap_or_else(|| {
            let cluster: String = self.shared.store.identity().cluster_id[..4]
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect();
            format!("exactmq-{cluster}-{}", settings.name).into()
        })
    }

    /// How each stands, by name.
    #[must_use]
    pub fn views(&self) -> Vec<BridgeView> {
        self.running.lock().values().map(|running| running.status.view()).collect()
    }

    /// Takes leave of all other brokers; what cannot be said within `timeout` is seen by them.
    pub async fn stop(&self, timeout: Duration) {
        let running = std::mem::take(&mut *self.running.lock());
        for one in running.values() {
            one.stop.send_replace(true);
        }
        let ended = async {
            for one in running.into_values() {
                // It has ended, or panicked.
                let _ = one.task.await;
            }
        };
        let _ = tokio::time::timeout(timeout, ended).await;
    }
}

impl std::fmt::Debug for Bridges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bridges").field("running", &self.running.lock().keys()).finish_non_exhaustive()
    }
}

/// What a bridge may send here: as much as a client of any listener.
fn limits(config: &Config) -> Limits {
    let largest = config.listeners.values().map(|listener| listener.packet_size_max).max();
    let packet_size_max = largest.unwrap_or_else(|| crate::config::Listener::default().packet_size_max);
    Limits {
        packet_size_max,
        connect_packet_size_max: packet_size_max,
        receive_maximum: config.session.receive_maximum,
        topic_alias_maximum: 0,
        topic_alias_out_maximum: 0,
        outbox_bytes_max: config.session.outbox_bytes_max,
        connect_timeout_ms: config.owner.connect_timeout_ms,
    }
}
