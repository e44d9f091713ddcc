//! CONNECT as the worker sees it: who it is, what it may, then the use case, then the session's state on this worker.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use gateway::codec::{Connect, ReasonCode, Version, Will};
use gateway::link::Link;
use gateway::service::{Accepted, ConnectRequest, Refused};
use session::id::{Key, check_identity};
use session::lifecycle::{SessionRef, WillTemplate};
use session::limits;
use session::message::Message;
use session::qos::{Inbound, Outbound};
use session::topic::check_topic_name;

use super::Worker;
use super::access::Access;
use super::client::{Durable, Event, Post, Scopes, Session};
use super::inbox::Inbox;
use super::publishes::Publishes;
use crate::usecase::{ConnectError, ConnectInput, Connected};

/// Prefix of assigned client ids ([MQTT-3.1.3-6]).
const ASSIGNED_PREFIX: &str = "exactmq-";

/// What came of the client's name.
struct ClientId {
    client_id: Arc<str>,
    is_assigned: bool,
}

impl Worker {
    /// The whole CONNECT: see [`gateway::service::Service::connect`].
    pub(super) async fn connect_session(
        self: Rc<Self>,
        link: Rc<Link<Event>>,
        request: ConnectRequest,
    ) -> Result<Accepted<Session>, Refused> {
        let packet = request.packet();
        let deadline = request.received_at.plus_ms(self.options.connect_timeout_ms);
        let name = client_id(&packet)?;
        let namespace = self.options.namespace(&request.peer.listener);
        let key = Key { namespace, client_id: Arc::clone(&name.client_id) };
        let access = Access::default();
        let will = self.will(&packet, &key, &access)?;
        let expiry_sec = packet.session_expiry_sec.min(self.options.expiry_max_sec);
        let input = ConnectInput {
            key,
            uid: None,
            clean_start: packet.clean_start,
            expiry_sec,
            will,
            link: link.id(),
            deadline,
        };
        let connected = self.shared.connect(&input, &|| true).await.map_err(refused)?;
        let keep_alive_sec = self.keep_alive(packet.keep_alive_sec);
        let session_present = connected.session_present;
        let session = self.session(link, &packet, connected, access);
        Ok(Accepted {
            session,
            session_present,
            assigned_client_id: name.is_assigned.then(|| Box::from(&*name.client_id)),
            session_expiry_sec: (expiry_sec != packet.session_expiry_sec).then_some(expiry_sec),
            server_keep_alive_sec: keep_alive_sec,
            response_information: None,
            authentication: None,
        })
    }

    /// The state of an accepted session on this worker.
    fn session(
        &self,
        link: Rc<Link<Event>>,
        packet: &Connect<'_>,
        connected: Connected,
        access: Access,
    ) -> Session {
        let row = &connected.row;
        let group = self.shared.store.group_of(&row.owner.key);
        let durable = row.durable.then(|| {
            let resumed = self.shared.store.read(group, |rows| rows.received(row.lifetime));
            let session = SessionRef { lifetime: row.lifetime, owner_generation: row.owner.owner_generation };
            Box::new(Durable { group, session, resumed, inbox: Inbox::default() })
        });
        let inbox = durable.as_ref().map(|durable| (durable.group, durable.session.lifetime));
        let received = durable.as_ref().map_or(&[][..], |durable| &durable.resumed);
        let inflight_max = packet.receive_maximum.min(self.options.inflight_max).max(1);
        Session {
            post: Rc::new(Post {
                link,
                committed: RefCell::default(),
                closed: Cell::new(false),
                orphan: RefCell::default(),
            }),
            entry: Arc::clone(&connected.entry),
            subscriber: self.shared.router.open(&row.owner.key, inbox),
            access,
            version: packet.version,
            scopes: Scopes::default(),
            inbound: Inbound::new(self.options.receive_maximum, received),
            outbound: Outbound::new(inflight_max),
            publishes: Publishes::default(),
            durable,
            feed: None,
            failed: false,
            guard: Some(connected.guard),
        }
    }

    /// The keep alive that the server imposes, when it differs from what the client asked ([MQTT-3.1.2-21]).
    fn keep_alive(&self, asked_sec: u16) -> Option<u16> {
        let max = self.options.keep_alive_max_sec;
        (max != 0 && (asked_sec == 0 || asked_sec > max)).then_some(max)
    }

    fn will(
        &self,
        packet: &Connect<'_>,
        key: &Key,
        access: &Access,
    ) -> Result<Option<WillTemplate>, Refused> {
        let Some(will) = &packet.will else { return Ok(None) };
        if check_topic_name(will.topic).is_err() || will.topic.starts_with('$') {
            return Err(refusal(
                ReasonCode::TopicNameInvalid,
                "the Will topic is not a topic that clients publish to",
            ));
        }
        if will.topic.len() > limits::WILL_TOPIC_BYTES_MAX {
            return Err(refusal(ReasonCode::TopicNameInvalid, "the Will topic is longer than 2,048 bytes"));
        }
        let too_large = will.retain && will.payload.len() > self.options.retained_bytes_max;
        if will.payload.len() > limits::WILL_PAYLOAD_BYTES_MAX || too_large {
            return Err(refusal(ReasonCode::PacketTooLarge, "the Will payload is too large"));
        }
        if !access.may_publish(key, will.topic) {
            return Err(refusal(ReasonCode::NotAuthorized, "no permission to publish the Will"));
        }
        Ok(Some(template(will)))
    }
}

fn template(will: &Will<'_>) -> WillTemplate {
    let properties = will.properties_collected.as_deref().unwrap_or(will.properties);
    let mut message = Message::new(will.topic, properties, will.payload);
    message.qos = will.qos;
    message.retain = will.retain;
    WillTemplate { message, delay_sec: will.delay_sec, message_expiry_sec: will.message_expiry_sec }
}

/// [MQTT-3.1.3-5] to -9: any valid name up to the limit; an empty one gets a random one.
fn client_id(packet: &Connect<'_>) -> Result<ClientId, Refused> {
    if packet.client_id.is_empty() {
        if packet.version == Version::V311 && !packet.clean_start {
            return Err(refusal(
                ReasonCode::ClientIdentifierNotValid,
                "an empty client id needs a clean session",
            ));
        }
        let random: u128 = rand::random();
        return Ok(ClientId {
            client_id: format!("{ASSIGNED_PREFIX}{random:032x}").into(),
            is_assigned: true,
        });
    }
    match check_identity(packet.client_id, limits::CLIENT_ID_BYTES_MAX) {
        Ok(()) => Ok(ClientId { client_id: packet.client_id.into(), is_assigned: false }),
        Err(error) => Err(Refused {
            reason: ReasonCode::ClientIdentifierNotValid,
            text: Some(format!("the client id {error}").into()),
            server_reference: None,
        }),
    }
}

fn refusal(reason: ReasonCode, text: &str) -> Refused {
    Refused { reason, text: Some(text.into()), server_reference: None }
}

/// Owner spec §7.2.
fn refused(error: ConnectError) -> Refused {
    let reason = match error {
        ConnectError::Binding | ConnectError::NotAuthorized => ReasonCode::NotAuthorized,
        ConnectError::Conflict => ReasonCode::ServerBusy,
        ConnectError::Limit => ReasonCode::QuotaExceeded,
        ConnectError::Unproved | ConnectError::Unavailable | ConnectError::Deadline => {
            ReasonCode::ServerUnavailable
        }
        ConnectError::Stopped => ReasonCode::ServerShuttingDown,
    };
    Refused { reason, text: Some(error.to_string().into()), server_reference: None }
}
