//! Tests of the replicated lifecycle: a small world of one group, one boot and whoever connects.

mod append;
mod boot;
mod deny;
mod inboxes;
mod lifecycle;
mod model;
mod purity;
mod quota;
mod rebind;
mod reclaim;
mod retained;
mod wills;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::id::{Boot, Key, Owner};
use crate::lifecycle::{
    Ack, AckKind, Append, Batch, Command, Conflict, Connect, Disconnect, DisconnectKind, End, EndReason,
    Group, InboxRead, Outcome, QuotaRule, Reply, SessionRef, SessionRow, SessionState, Stamp,
    SubscriptionOptions, SubscriptionRow, Target, WillMode, WillStage, WillTemplate,
};
use crate::message::{Message, QoS};
use crate::time::Millis;

pub(super) fn boot(node_id: u64, name: &str) -> Boot {
    Boot { node_id, boot_id: name.into() }
}

pub(super) fn key(client_id: &str) -> Key {
    Key { namespace: "main".into(), client_id: client_id.into() }
}

pub(super) fn message(topic: &str, payload: &str) -> Message {
    let mut message = Message::new(topic, &[], payload.as_bytes());
    message.qos = QoS::ExactlyOnce;
    message
}

pub(super) fn target(lifetime: u64, qos: QoS) -> Target {
    Target { lifetime, qos, retain: false, identifiers: smallvec::SmallVec::new(), shared: false }
}

pub(super) fn will(delay_sec: u32) -> Option<WillTemplate> {
    Some(WillTemplate { message: message("will", "gone"), delay_sec, message_expiry_sec: None })
}

/// A group, its log, and the time of the next batch.
#[derive(Debug)]
pub(super) struct World {
    pub group: Group,
    pub boot: Boot,
    pub now: u64,
    pub index: u64,
    pub log: Vec<Batch>,
    pub outcome: Outcome,
    /// What was stored.
    pub disk: Rows,
    connection: u64,
}

/// A CONNECT in the making: resumes, expiry 60 s, user `alice`, no Will.
#[derive(Debug, Clone)]
pub(super) struct Dial {
    pub client_id: &'static str,
    pub uid: Option<&'static str>,
    pub clean_start: bool,
    pub expiry_sec: u32,
    pub will: Option<WillTemplate>,
}

pub(super) fn dial(client_id: &'static str) -> Dial {
    Dial { client_id, uid: Some("alice"), clean_start: false, expiry_sec: 60, will: None }
}

impl World {
    pub(super) fn new() -> Self {
        Self::with_quota(1_000, 1 << 20)
    }

    pub(super) fn with_quota(messages: u64, bytes: u64) -> Self {
        let mut world = Self {
            group: Group::new(messages, bytes),
            boot: boot(1, "boot-a"),
            now: 1_000,
            index: 0,
            log: Vec::new(),
            outcome: Outcome::default(),
            disk: Rows::new(),
            connection: 0,
        };
        let reply = world.apply(Command::BootStart { lease_until: Millis(1_000_000) });
        assert_eq!(reply, Reply::Done { revision: 1, unchanged: false });
        world
    }

    /// Applies a batch of one command and checks every invariant afterwards.
    pub(super) fn apply(&mut self, command: Command) -> Reply {
        self.apply_all(vec![command]).pop().expect("one reply a command")
    }

    pub(super) fn apply_all(&mut self, commands: Vec<Command>) -> Vec<Reply> {
        let batch = Batch { boot: self.boot.clone(), at: Millis(self.now), commands };
        self.index += 1;
        self.outcome = Outcome::default();
        self.group.apply(self.index, 0, &batch, &mut self.outcome);
        self.group.check().expect("invariants hold after every batch");
        self.log.push(batch);
        self.outcome.replies.clone()
    }

    pub(super) fn at(&mut self, now: u64) -> &mut Self {
        self.now = now;
        self
    }

    /// The CONNECT that a correct broker proposes now.
    pub(super) fn connect_command(&mut self, dial: &Dial) -> Command {
        let key = key(dial.client_id);
        self.connection += 1;
        let old = self.group.session(&key).cloned();
        let fresh = old.as_ref().is_none_or(|row| {
            dial.clean_start
                || match row.state {
                    SessionState::Active => row.expiry_sec == 0,
                    SessionState::Offline { offline_expires_at } => offline_expires_at <= Millis(self.now),
                    SessionState::Ended { .. } => true,
                }
        });
        let owner = Owner {
            key,
            session_generation: old.as_ref().map_or(0, |row| row.owner.session_generation) + u64::from(fresh),
            owner_generation: old.as_ref().map_or(0, |row| row.owner.owner_generation) + 1,
            node_id: self.boot.node_id,
            boot_id: self.boot.boot_id.clone(),
            connection_id: self.connection,
        };
        Command::Connect(Box::new(Connect {
            owner,
            uid: dial.uid.map(Into::into),
            previous: old.map(|row| (row.revision, row.owner)),
            clean_start: dial.clean_start,
            expiry_sec: dial.expiry_sec,
            will: dial.will.clone(),
        }))
    }

    pub(super) fn connect(&mut self, dial: &Dial) -> (SessionRow, bool) {
        let command = self.connect_command(dial);
        match self.apply(command) {
            Reply::Row { row, unchanged: false, session_present } => (*row, session_present),
            other => panic!("CONNECT was refused: {other:?}"),
        }
    }

    pub(super) fn disconnect_command(&self, client_id: &str, kind: DisconnectKind) -> Command {
        let row = self.row(client_id);
        Command::Disconnect(Box::new(Disconnect {
            owner: row.owner.clone(),
            kind,
            observed_at: Millis(self.now),
            expiry_sec: None,
            sent_through: 0,
        }))
    }

    pub(super) fn disconnect(&mut self, client_id: &str, kind: DisconnectKind) -> SessionRow {
        let command = self.disconnect_command(client_id, kind);
        row_of(self.apply(command))
    }

    /// The connection breaks.
    pub(super) fn drop_connection(&mut self, client_id: &str) -> SessionRow {
        self.disconnect(client_id, DisconnectKind::WithWill)
    }

    pub(super) fn end_command(&self, client_id: &str, reason: EndReason, will: WillMode) -> Command {
        let row = self.row(client_id);
        Command::End(Box::new(End {
            owner: row.owner.clone(),
            revision: row.revision,
            reason,
            observed_at: Millis(self.now),
            will,
            sent_through: 0,
        }))
    }

    pub(super) fn row(&self, client_id: &str) -> &SessionRow {
        self.group.session(&key(client_id)).expect("the row is there")
    }

    pub(super) fn session(&self, client_id: &str) -> SessionRef {
        let row = self.row(client_id);
        SessionRef { lifetime: row.lifetime, owner_generation: row.owner.owner_generation }
    }

    pub(super) fn append(&mut self, payload: &str, targets: &[(u64, QoS)]) -> Reply {
        self.append_stamped(message("t", payload), None, targets)
    }

    pub(super) fn append_stamped(
        &mut self,
        message: Message,
        stamp: Option<Stamp>,
        targets: &[(u64, QoS)],
    ) -> Reply {
        let targets = targets.iter().map(|(lifetime, qos)| target(*lifetime, *qos)).collect();
        self.apply(Command::Append(Box::new(Append { message, stamp, targets })))
    }

    pub(super) fn ack(&mut self, client_id: &str, acks: &[(u64, AckKind)]) -> Reply {
        let session = self.session(client_id);
        let acks = acks.iter().map(|(offset, kind)| Ack { offset: *offset, kind: *kind }).collect();
        self.apply(Command::Ack { session, acks })
    }

    pub(super) fn inbox(&self, client_id: &str) -> InboxRead {
        let mut read = InboxRead::default();
        self.group.read_inbox(self.row(client_id).lifetime, 0, usize::MAX, &mut read);
        read
    }

    /// Payloads of all unsettled entries, with their offsets; from disk where they are not resident.
    pub(super) fn payloads(&self, client_id: &str) -> Vec<(u64, String)> {
        let read = self.inbox(client_id);
        let text = |message_id: u64, message: &Option<Arc<Message>>| {
            let message = self.body(message_id, message.as_ref());
            String::from_utf8_lossy(message.payload()).into_owned()
        };
        read.entries.iter().map(|entry| (entry.offset, text(entry.message_id, &entry.message))).collect()
    }

    /// A message, from disk when it is not resident.
    pub(super) fn body(&self, message_id: u64, resident: Option<&Arc<Message>>) -> Message {
        match resident {
            Some(message) => Message::clone(message),
            None => {
                Group::decode_body(&self.disk[&Group::body_key(message_id)]).expect("it was written by us")
            }
        }
    }

    pub(super) fn subscribe(&mut self, client_id: &str, filters: &[&str]) -> Reply {
        let session = self.session(client_id);
        let options = SubscriptionOptions {
            qos: QoS::AtLeastOnce,
            no_local: false,
            retain_as_published: false,
            identifier: 0,
        };
        let filters =
            filters.iter().map(|filter| SubscriptionRow { filter: (*filter).into(), options }).collect();
        self.apply(Command::Subscribe { session, filters })
    }

    /// Stage and due time of the only Will of a client.
    pub(super) fn will_of(&self, client_id: &str) -> Option<(WillStage, Option<Millis>)> {
        self.group.last_will(&key(client_id)).map(|will| (will.stage, will.due_at))
    }

    /// Rows are stored, the process is gone, rows are loaded.
    pub(super) fn reload(&mut self) {
        drain_into(&mut self.group, &mut self.disk);
        assert_eq!(dump(&self.group, &self.disk), self.disk, "what is stored is what there is");
        self.group = load(&self.disk);
        self.group.check().expect("a loaded group is coherent");
    }
}

pub(super) fn row_of(reply: Reply) -> SessionRow {
    match reply {
        Reply::Row { row, .. } => *row,
        other => panic!("expected a row: {other:?}"),
    }
}

pub(super) fn refused(reply: &Reply) -> Conflict {
    match reply {
        Reply::Conflict(conflict) => *conflict,
        other => panic!("expected a refusal: {other:?}"),
    }
}

pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// All rows of a group; bodies that are not resident are looked up in `disk`.
pub(super) fn dump(group: &Group, disk: &Rows) -> Rows {
    let mut rows = Rows::new();
    let mut last = Vec::new();
    group.dump(&mut |key, value| {
        assert!(key > &last[..], "dump visits rows in key order");
        last = key.to_vec();
        let value = value.map_or_else(|| disk[key].clone(), <[u8]>::to_vec);
        rows.insert(key.to_vec(), value);
    });
    rows
}

pub(super) fn load(rows: &Rows) -> Group {
    let mut group = Group::new(1, 1);
    for (key, value) in rows {
        group.load(key, value).expect("rows that were written can be loaded");
    }
    group.finish_load().expect("rows that were written are coherent");
    group
}

/// Applies what a drain visits to a store.
pub(super) fn drain_into(group: &mut Group, disk: &mut Rows) {
    group.drain_dirty(&mut |key, value| {
        match value {
            Some(value) => disk.insert(key.to_vec(), value.to_vec()),
            None => disk.remove(key),
        };
    });
}
