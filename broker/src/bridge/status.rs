//! How a bridge stands, for operators: the API, metrics, events and `$SYS`.

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use session::id::Key;

use super::relay::Counts;
use crate::admin::Word as _;
use crate::admin::table::words;
use crate::events::{Event, EventKind};
use crate::shared::Shared;
use crate::worker::SystemPublisher;

words! {
    /// What a bridge does now.
    pub BridgeState {
        /// Messages go over it.
        Connected = "connected",
        /// It dials the other broker, or waits for its answers.
        Connecting = "connecting",
        /// An attempt failed; the next one comes after a pause.
        Waiting = "waiting",
        /// Another node runs it: the one that leads the group of its session.
        Elsewhere = "elsewhere",
    }
}

/// One bridge as `GET /v1/bridges` tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BridgeView {
    pub name: Arc<str>,
    pub state: BridgeState,
    /// When it came to be so.
    pub since_ms: u64,
    /// The node that runs it; `null`: none that this one knows of.
    pub node_id: Option<u64>,
    /// The address that it is at, or tried last.
    pub address: Option<Arc<str>>,
    /// Why it is not connected, or what it does not get although it is.
    pub error: Option<Arc<str>>,
    /// `ClientID` and user of its session here.
    pub client_id: Arc<str>,
    /// `ClientID` at the other broker.
    pub remote_client_id: Arc<str>,
    /// Since this node started: acknowledged by the other broker, or sent there with QoS 0.
    pub messages_out: u64,
    /// Acknowledged by this broker, or taken with QoS 0.
    pub messages_in: u64,
    /// Not taken by the other side for good.
    pub dropped_out: u64,
    pub dropped_in: u64,
    /// Attempts that failed since it was last connected.
    pub failures: u64,
}

/// All bridges that this node knows of.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct BridgesView {
    pub bridges: Vec<BridgeView>,
}

/// The state of one bridge, and who is told of it.
pub(super) struct Status {
    shared: Arc<Shared>,
    publisher: SystemPublisher,
    key: Key,
    state: Mutex<BridgeView>,
}

impl Drop for Status {
    fn drop(&mut self) {
        self.shared.metrics.bridge_state(Some(self.state.get_mut().state), None);
    }
}

impl Status {
    pub(super) fn new(shared: &Arc<Shared>, name: &Arc<str>, key: Key, remote_client_id: Arc<str>) -> Self {
        let state = BridgeView {
            name: name.clone(),
            state: BridgeState::Waiting,
            since_ms: shared.clock.millis().0,
            node_id: None,
            address: None,
            error: None,
            client_id: key.client_id.clone(),
            remote_client_id,
            messages_out: 0,
            messages_in: 0,
            dropped_out: 0,
            dropped_in: 0,
            failures: 0,
        };
        shared.metrics.bridge_state(None, Some(state.state));
        let publisher = SystemPublisher::new(shared.clone());
        Self { shared: shared.clone(), publisher, key, state: Mutex::new(state) }
    }

    pub(super) fn view(&self) -> BridgeView {
        self.state.lock().clone()
    }

    /// Begins where the one before it stopped counting.
    pub(super) fn adopt(&self, before: &BridgeView) {
        let mut state = self.state.lock();
        state.messages_out = before.messages_out;
        state.messages_in = before.messages_in;
        state.dropped_out = before.dropped_out;
        state.dropped_in = before.dropped_in;
    }

    pub(super) fn at(&self, address: &Arc<str>) {
        self.state.lock().address = Some(address.clone());
    }

    /// The state that it is in now.
    pub(super) fn set(&self, state: BridgeState, error: Option<String>) {
        let changed = {
            let mut view = self.state.lock();
            let changed = view.state != state || view.error.as_deref() != error.as_deref();
            let node_id = self.shared.boot.node_id;
            view.node_id = match state {
                BridgeState::Elsewhere => self.leader(),
                _ => Some(node_id),
            };
            match state {
                BridgeState::Connected | BridgeState::Elsewhere => view.failures = 0,
                BridgeState::Waiting | BridgeState::Connecting => {}
            }
            if changed {
                self.shared.metrics.bridge_state(Some(view.state), Some(state));
                view.state = state;
                view.since_ms = self.shared.clock.millis().0;
                view.error = error.as_deref().map(Arc::from);
            }
            changed
        };
        if changed {
            self.tell(state, error);
        }
    }

    /// An attempt failed.
    pub(super) fn failed(&self) {
        self.state.lock().failures += 1;
    }

    /// What went over since `before`.
    pub(super) fn count(&self, out: Counts, of_in: Counts) {
        let mut view = self.state.lock();
        view.messages_out += out.passed;
        view.dropped_out += out.dropped;
        view.messages_in += of_in.passed;
        view.dropped_in += of_in.dropped;
        drop(view);
        self.shared.metrics.control().bridged((out.passed, out.dropped), (of_in.passed, of_in.dropped));
    }

    fn leader(&self) -> Option<u64> {
        let group = self.shared.store.group_of(&self.key);
        self.shared.store.status().into_iter().find(|status| status.group == group)?.leader
    }

    fn tell(&self, state: BridgeState, error: Option<String>) {
        let name = self.state.lock().name.clone();
        match (&error, state) {
            (Some(error), _) => tracing::warn!(bridge = %name, state = state.word(), %error, "bridge"),
            (None, _) => tracing::info!(bridge = %name, state = state.word(), "bridge"),
        }
        // Attempts between two failures would be all that there is to see.
        if state != BridgeState::Connecting {
            let detail = match error {
                Some(error) => format!("{}: {error}", state.word()),
                None => state.word().to_owned(),
            };
            let event = Event::of(EventKind::Bridge, &self.key, Some(&self.key.client_id));
            self.shared.events.push(event.node(self.shared.boot.node_id).detail(detail));
        }
        let value = if state == BridgeState::Connected { "1" } else { "0" };
        let figure = format!("connection/{name}/state");
        self.shared.workers.sys().set(&figure, value, &self.publisher);
    }
}
