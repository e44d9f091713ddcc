//! An admin API in front of a broker that only remembers, for tests of the API and of the command line.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part, and each as its own crate")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::admin::{
    AdminPort, ChannelPage, ChannelQuery, Check, DeniedPage, DeniedView, DenyCommand, EndCommand, EndDone,
    EndError, MemberPage, MemberQuery, NodeView, PortError, PortFuture, QueuePage, Running, SessionDetail,
    SessionPage, SessionQuery, SessionSummary, StateWord, SubscriptionView, start,
};
use broker::config::{AdminAddress, Config};
use broker::metrics::Metrics;
use broker::usecase::retire::{GroupRetired, RetireBy, RetireError, RetireOrder, RetireProgress, Retired};
use serde_json::Value;
use session::id::{Key, Owner};
use session::lifecycle::{RetireProof, Subject};

/// A broker of rows without behaviour.
#[derive(Default)]
pub struct FakeBroker {
    pub sessions: Mutex<BTreeMap<Key, Owner>>,
    pub ended: Mutex<Vec<(Key, EndCommand)>>,
    /// What the next End fails with.
    pub end_error: Mutex<Option<EndError>>,
    pub failing: Mutex<Option<String>>,
    pub denied: Mutex<BTreeSet<Subject>>,
    /// What was asked of the queue monitor.
    pub channel_queries: Mutex<Vec<ChannelQuery>>,
    pub member_queries: Mutex<Vec<MemberQuery>>,
    /// Boots that were retired, with whether that was in a hurry.
    pub retired: Mutex<Vec<(RetireOrder, bool)>>,
    /// What the next retirement fails with.
    pub retire_error: Mutex<Option<RetireError>>,
    /// A retirement waits until this is true, or until it is hurried.
    pub lease_over: AtomicBool,
}

pub fn owner(key: &Key) -> Owner {
    Owner {
        key: key.clone(),
        session_generation: 1,
        owner_generation: 2,
        node_id: 1,
        boot_id: "00ff00ff00ff00ff00ff00ff00ff00ff".into(),
        connection_id: 7,
    }
}

pub fn key(client_id: &str) -> Key {
    Key::new("main".into(), client_id.into()).expect("a valid key")
}

impl FakeBroker {
    pub fn with(client_ids: &[&str]) -> Arc<Self> {
        let broker = Self::default();
        let sessions = client_ids.iter().map(|id| (key(id), owner(&key(id)))).collect();
        *broker.sessions.lock().expect("not poisoned") = sessions;
        Arc::new(broker)
    }
}

fn summary(owner: &Owner) -> SessionSummary {
    SessionSummary {
        namespace: owner.key.namespace.clone(),
        client_id: owner.key.client_id.clone(),
        user: Some("alice".into()),
        state: StateWord::Active,
        end_reason: None,
        node_id: owner.node_id,
        session_generation: owner.session_generation,
        owner_generation: owner.owner_generation,
        revision: 3,
        durable: true,
        expiry_sec: 60,
        connected_at_ms: 1_000,
        updated_at_ms: 2_000,
    }
}

fn denied_view(subject: &Subject) -> DeniedView {
    let (user, key) = match subject {
        Subject::User(user) => (Some(user.clone()), None),
        Subject::Client(key) => (None, Some(key.clone())),
    };
    DeniedView {
        user,
        namespace: key.as_ref().map(|key| key.namespace.clone()),
        client_id: key.map(|key| key.client_id),
        since_ms: 1,
        until_ms: None,
        reason: "".into(),
        complete: true,
    }
}

impl AdminPort for FakeBroker {
    fn list_sessions(&self, query: SessionQuery) -> PortFuture<'_, Result<SessionPage, PortError>> {
        let sessions = self.sessions.lock().expect("not poisoned");
        let wanted = sessions.values().filter(|owner| {
            query.after.as_ref().is_none_or(|after| owner.key > *after)
                && query.wants(&owner.key, Some("alice"), owner.node_id, StateWord::Active)
        });
        let mut rows: Vec<&Owner> = wanted.take(query.limit + 1).collect();
        let more = rows.len() > query.limit;
        rows.truncate(query.limit);
        let next = rows.last().filter(|_| more).map(|owner| owner.key.clone());
        let page = SessionPage { sessions: rows.into_iter().map(summary).collect(), next };
        Box::pin(async { Ok(page) })
    }

    fn show_session(&self, key: Key) -> PortFuture<'_, Result<Option<SessionDetail>, PortError>> {
        let owner = self.sessions.lock().expect("not poisoned").get(&key).cloned();
        let detail = owner.map(|owner| SessionDetail {
            summary: summary(&owner),
            owner: (&owner).into(),
            offline_expires_at_ms: None,
            inbox: None,
            will: None,
            subscriptions: vec![SubscriptionView {
                filter: "a/#".into(),
                qos: 1,
                no_local: false,
                retain_as_published: true,
                identifier: 9,
            }],
            subscriptions_total: 1,
        });
        Box::pin(async { Ok(detail) })
    }

    fn end_session(&self, key: Key, command: EndCommand) -> PortFuture<'_, Result<EndDone, EndError>> {
        let reason = command.reason;
        self.ended.lock().expect("not poisoned").push((key.clone(), command));
        let error = self.end_error.lock().expect("not poisoned").take();
        let owner = self.sessions.lock().expect("not poisoned").remove(&key);
        Box::pin(async move {
            match (error, owner) {
                (Some(error), _) => Err(error),
                (None, None) => Err(EndError::NotFound),
                (None, Some(owner)) => Ok(EndDone { owner, revision: 4, reason }),
            }
        })
    }

    fn deny(&self, command: DenyCommand) -> PortFuture<'_, Result<(), PortError>> {
        self.denied.lock().expect("not poisoned").insert(command.subject);
        Box::pin(async { Ok(()) })
    }

    fn allow(&self, subject: Subject) -> PortFuture<'_, Result<bool, PortError>> {
        let removed = self.denied.lock().expect("not poisoned").remove(&subject);
        Box::pin(async move { Ok(removed) })
    }

    fn denied(&self, after: Option<Subject>, limit: usize) -> PortFuture<'_, Result<DeniedPage, PortError>> {
        let denied = self.denied.lock().expect("not poisoned");
        let behind = denied.iter().filter(|subject| after.as_ref().is_none_or(|after| *subject > after));
        let mut found: Vec<Subject> = behind.take(limit + 1).cloned().collect();
        let more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| more).cloned();
        let page = DeniedPage { denied: found.iter().map(denied_view).collect(), next };
        Box::pin(async { Ok(page) })
    }

    fn channels(&self, query: ChannelQuery) -> PortFuture<'_, Result<ChannelPage, PortError>> {
        self.channel_queries.lock().expect("not poisoned").push(query);
        Box::pin(async { Ok(QueuePage { rows: Vec::new(), next: None }) })
    }

    fn members(&self, query: MemberQuery) -> PortFuture<'_, Result<MemberPage, PortError>> {
        self.member_queries.lock().expect("not poisoned").push(query);
        Box::pin(async { Ok(QueuePage { rows: Vec::new(), next: None }) })
    }

    fn nodes(&self) -> PortFuture<'_, Result<Vec<NodeView>, PortError>> {
        let node = NodeView {
            node_id: 1,
            local: true,
            version: Some("0.1.0".to_owned()),
            connections: Some(2),
            started_at_ms: Some(0),
            lease: None,
            boots: Vec::new(),
        };
        Box::pin(async { Ok(vec![node]) })
    }

    fn retire_boot(
        &self,
        order: RetireOrder,
        progress: Arc<RetireProgress>,
    ) -> PortFuture<'_, Result<Retired, RetireError>> {
        Box::pin(async move {
            if let Some(error) = self.retire_error.lock().expect("not poisoned").take() {
                return Err(error);
            }
            while !self.lease_over.load(Ordering::SeqCst) && !progress.is_hurried() {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            let mut retired = self.retired.lock().expect("not poisoned");
            let unchanged = retired.iter().any(|(known, _)| known.boot == order.boot);
            let proof = match &order.by {
                RetireBy::Attest(text) => RetireProof::Attested { text: text.clone() },
                RetireBy::FenceAgent => RetireProof::FenceAgent { text: "exit 0: off".into() },
            };
            retired.push((order, progress.is_hurried()));
            let group = if unchanged { GroupRetired::Already } else { GroupRetired::Retired };
            Ok(Retired { proof, unchanged, groups: vec![(storage::GroupId(0), group)] })
        })
    }

    fn checks(&self) -> PortFuture<'_, Vec<Check>> {
        let failing = self.failing.lock().expect("not poisoned").clone();
        Box::pin(async {
            vec![
                Check { name: "listeners", result: Ok(()) },
                Check { name: "store", result: failing.map_or(Ok(()), Err) },
            ]
        })
    }
}

/// A served API; ends with its runtime.
pub struct Api {
    pub address: SocketAddr,
    pub directory: tempfile::TempDir,
    running: Running,
    _runtime: tokio::runtime::Runtime,
}

impl Api {
    pub fn start(broker: &Arc<FakeBroker>, adjust: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = Config::default();
        config.node.data_dir = directory.path().to_owned();
        config.admin.address = AdminAddress(Some(([127, 0, 0, 1], 0).into()));
        adjust(&mut config);
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let broker = Arc::clone(broker);
        let running = runtime.block_on(start(&config, broker, Metrics::new(1, 1)));
        let running = running.expect("started").expect("on");
        Self { address: running.address, directory, running, _runtime: runtime }
    }

    pub fn running(&self) -> &Running {
        &self.running
    }

    pub fn token(&self) -> String {
        read(&self.directory.path().join("admin.token"))
    }

    /// Status, headers and body.
    pub fn call(&self, method: &str, path: &str, token: Option<&str>, body: &str) -> (u16, String, String) {
        let authorization =
            token.map_or_else(String::new, |token| format!("Authorization: Bearer {token}\r\n"));
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{authorization}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let mut stream = TcpStream::connect(self.address).expect("connected");
        // The server may answer and close before it took a body that is too large.
        let _ = stream.write_all(request.as_bytes());
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let answer = String::from_utf8(answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        (status, head.to_ascii_lowercase(), body.to_owned())
    }

    /// With the token; body as JSON.
    pub fn json(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, _, body) = self.call(method, path, Some(&self.token()), body);
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}")))
    }
}

pub fn read(path: &Path) -> String {
    std::fs::read_to_string(path).expect("readable").trim().to_owned()
}
