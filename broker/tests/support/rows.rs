//! A real lifecycle group, applied to by hand: the durable truth of the use-case tests without a store.

use std::sync::{Arc, Mutex};

use broker::clock::{ManualTime, NodeClock};
use broker::usecase::authority::{PointRead, begins_fresh, next_generations};
use session::id::{Boot, Key, Owner};
use session::lifecycle::{
    Append, Batch, Command, Connect, Disconnect, DisconnectKind, Group, InboxRead, Outcome, Reply,
    SessionRow, Target, WillRow, WillTemplate,
};
use session::message::{Message, QoS};

/// Boot lease of the tests.
pub const LEASE_MS: u64 = 10_000;

#[derive(Debug)]
pub struct Rows {
    pub time: Arc<ManualTime>,
    pub clock: NodeClock,
    pub boot: Boot,
    group: Mutex<(Group, u64)>,
    connections: Mutex<u64>,
}

/// A Will on `will/c` with this delay in seconds.
pub fn will(delay_sec: u32) -> WillTemplate {
    WillTemplate { message: Message::new("will/c", &[], b"gone"), delay_sec, message_expiry_sec: None }
}

pub fn key(client_id: &str) -> Key {
    Key::new("main".into(), client_id.into()).unwrap()
}

impl Rows {
    pub fn new() -> Self {
        let time = ManualTime::at(1_000_000);
        let clock = NodeClock::new(time.clone());
        let rows = Self {
            time,
            clock,
            boot: Boot { node_id: 1, boot_id: "00112233445566778899aabbccddeeff".into() },
            group: Mutex::new((Group::new(1_000, 1 << 20), 0)),
            connections: Mutex::new(0),
        };
        let lease_until = rows.clock.millis().plus_ms(LEASE_MS);
        rows.apply(Command::BootStart { lease_until });
        rows
    }

    pub fn apply(&self, command: Command) -> Reply {
        let mut group = self.group.lock().unwrap();
        group.1 += 1;
        let index = group.1;
        let batch = Batch { boot: self.boot.clone(), at: self.clock.millis(), commands: vec![command] };
        let mut outcome = Outcome::default();
        group.0.apply(index, &batch, &mut outcome);
        outcome.replies.pop().expect("one reply a command")
    }

    pub fn read(&self, key: &Key) -> PointRead {
        let group = self.group.lock().unwrap();
        let row = group.0.session(key).cloned();
        let lease_until = group.0.boot(&self.boot).map(|boot| boot.lease_until);
        PointRead { complete: true, row, lease_until, bound_until: group.0.bound_until(key) }
    }

    pub fn row(&self, client_id: &str) -> Option<SessionRow> {
        self.read(&key(client_id)).row
    }

    /// Of each unsettled entry of the session's inbox: whether the client may have it already.
    pub fn maybe_sent(&self, lifetime: u64) -> Vec<bool> {
        let mut read = InboxRead::default();
        self.group.lock().unwrap().0.read_inbox(lifetime, 0, 100, &mut read);
        read.entries.iter().map(|entry| entry.maybe_sent).collect()
    }

    /// A QoS 2 message of a share into the session's inbox.
    pub fn share(&self, lifetime: u64) {
        let identifiers = Default::default();
        let target = Target { lifetime, qos: QoS::ExactlyOnce, retain: false, identifiers, shared: true };
        let mut message = Message::new("s", &[], b"x");
        message.qos = QoS::ExactlyOnce;
        let append = Append { message, stamp: None, targets: vec![target] };
        let reply = self.apply(Command::Append(Box::new(append)));
        assert!(matches!(reply, Reply::Appended { accepted: 1, .. }), "{reply:?}");
    }

    /// Offsets that the ended session leaves to other members of its shares.
    pub fn inherited(&self, lifetime: u64) -> Vec<u64> {
        let mut left = Vec::new();
        self.group.lock().unwrap().0.inherited(lifetime, 0, 100, &mut left);
        left.iter().map(|left| left.offset).collect()
    }

    pub fn last_will(&self, client_id: &str) -> Option<WillRow> {
        self.group.lock().unwrap().0.last_will(&key(client_id)).cloned()
    }

    /// A CONNECT of the user `u` straight into the rows.
    pub fn connect(
        &self,
        client_id: &str,
        expiry_sec: u32,
        will: Option<WillTemplate>,
    ) -> (SessionRow, bool) {
        let row = self.row(client_id);
        let fresh = begins_fresh(row.as_ref(), false, self.clock.millis());
        let (session_generation, owner_generation) = next_generations(row.as_ref(), fresh).unwrap();
        let connection_id = {
            let mut connections = self.connections.lock().unwrap();
            *connections += 1;
            *connections
        };
        let owner = Owner {
            key: key(client_id),
            session_generation,
            owner_generation,
            node_id: self.boot.node_id,
            boot_id: self.boot.boot_id.clone(),
            connection_id,
        };
        let connect = Connect {
            owner,
            uid: Some("u".into()),
            previous: row.map(|row| (row.revision, row.owner)),
            clean_start: false,
            expiry_sec,
            will,
        };
        match self.apply(Command::Connect(Box::new(connect))) {
            Reply::Row { row, session_present, .. } => (*row, session_present),
            other => panic!("CONNECT was answered {other:?}"),
        }
    }

    pub fn disconnect(&self, owner: &Owner, normal: bool) {
        let disconnect = Disconnect {
            owner: owner.clone(),
            kind: if normal { DisconnectKind::Normal } else { DisconnectKind::WithWill },
            observed_at: self.clock.millis(),
            expiry_sec: None,
            sent_through: 0,
        };
        let reply = self.apply(Command::Disconnect(Box::new(disconnect)));
        assert!(matches!(reply, Reply::Row { .. }), "Disconnect was answered {reply:?}");
    }
}
