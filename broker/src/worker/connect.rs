//! CONNECT as the worker sees it: who it is, what it may, then the use case, then the session's state on this worker.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use gateway::codec::{Connect, ReasonCode, Version, Will};
use gateway::link::Link;
use gateway::service::{Accepted, AuthRequest, AuthStep, ConnectRequest, Refused};
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
use super::options::Entrance;
use super::pace::Pace;
use super::publishes::Publishes;
use super::relief::Brought;
use crate::auth::{Credentials, Denied, Principal, Proof, is_bridge_user};
use crate::events::{Event as Told, EventKind};
use crate::metrics::{ConnectOutcome, Level, ProtocolLabel};
use crate::usecase::{ConnectError, ConnectInput, Connected};
use crate::users::{Full, Joining, Seat};

/// Why a CONNECT is refused, for the client and for the metrics.
type Rejection = (Refused, ConnectOutcome);

/// Prefix of assigned client ids ([MQTT-3.1.3-6]).
const ASSIGNED_PREFIX: &str = "exactmq-";

/// What a client is told that comes while the node protects those that it has.
const OVERLOADED: &str = "the node is overloaded; try again later, or another node";

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
        let known = || vec![("client_id", request.packet().client_id.to_owned())];
        let outcome = self.shared.tracer.root("CONNECT", known, self.try_connect(link, &request)).await;
        self.tell_connect(&request, &outcome);
        if let Some(recorder) = &self.recorder {
            recorder.connect(match &outcome {
                Ok(accepted) if accepted.session_present => ConnectOutcome::Resumed,
                Ok(_) => ConnectOutcome::New,
                Err((_, outcome)) => *outcome,
            });
        }
        outcome.map_err(|(refused, _)| refused)
    }

    /// Tells those who watch how a CONNECT was answered.
    fn tell_connect(&self, request: &ConnectRequest, outcome: &Result<Accepted<Session>, Rejection>) {
        let event = match outcome {
            Ok(accepted) => {
                let subscriber = &accepted.session.subscriber;
                let word =
                    if accepted.session_present { ConnectOutcome::Resumed } else { ConnectOutcome::New };
                let event = Told::of(EventKind::Connect, &subscriber.key, subscriber.user.as_ref());
                event.node(self.shared.boot.node_id).detail(word.word())
            }
            Err((_, outcome)) => {
                let packet = request.packet();
                let named = check_identity(packet.client_id, limits::CLIENT_ID_BYTES_MAX).is_ok();
                Told {
                    namespace: Some(self.options.listener(&request.peer.listener).namespace),
                    client_id: named.then(|| packet.client_id.into()),
                    ..Told::new(EventKind::Refused).node(self.shared.boot.node_id).detail(outcome.word())
                }
            }
        };
        self.shared.events.push(event);
    }

    async fn try_connect(
        &self,
        link: Rc<Link<Event>>,
        request: &ConnectRequest,
    ) -> Result<Accepted<Session>, Rejection> {
        let packet = request.packet();
        let deadline = request.received_at.plus_ms(self.options.connect_timeout_ms);
        if self.shared.load.level() >= Level::Overloaded {
            return Err((refusal(ReasonCode::ServerBusy, OVERLOADED), ConnectOutcome::Overload));
        }
        let name = client_id(&packet)?;
        let Entrance { namespace, protocol, rates } = self.options.listener(&request.peer.listener);
        let key = Key { namespace, client_id: Arc::clone(&name.client_id) };
        let authenticated = self.authenticate_client(request, &packet, &key);
        let left = self.shared.clock.until(deadline);
        let principal = match tokio::time::timeout(left, authenticated).await {
            Ok(principal) => principal?,
            Err(_) => return Err(refused(ConnectError::Deadline)),
        };
        let user = principal.user.clone();
        if principal.proof != Proof::Bridge {
            refuse_bridge_names(user.as_deref(), &key.client_id)?;
        }
        let mut access = Access::new(&self.shared.auth, principal.clone());
        // The users may have changed since the password was checked.
        if access.check(&self.shared.auth, self.shared.clock.millis()).is_err() {
            return Err(denial(Denied::NotAuthorized));
        }
        // CONNECT is refused in its commit as well; here it has not cost the session its connection.
        if self.shared.denies(&key, user.as_ref()) {
            return Err(refused(ConnectError::Denied));
        }
        let will = self.will(&packet, &key, &mut access)?;
        let seat = self.seat(user.as_ref(), &key)?;
        let expiry_sec = packet.session_expiry_sec.min(self.options.expiry_max_sec);
        let input = ConnectInput {
            key,
            uid: user,
            clean_start: packet.clean_start,
            expiry_sec,
            will,
            link: link.id(),
            deadline,
        };
        // Users and rules may have changed while the previous owner was isolated: the client must be permitted under the new ones.
        let epoch = access.epoch();
        let permitted = || self.shared.auth.epoch() == epoch || self.is_permitted(&input, &principal);
        let joining = self.join(seat.as_ref(), input.uid.as_ref())?;
        let connected = self.shared.connect(&input, &permitted).await.map_err(refused)?;
        drop(joining);
        let keep_alive_sec = self.keep_alive(packet.keep_alive_sec);
        let session_present = connected.session_present;
        if let Some(recorder) = &self.recorder {
            recorder.connection_opened(protocol);
        }
        let pace = Pace::new(rates, seat.as_ref().map(Seat::used));
        let session = Session { protocol, pace, seat, ..self.session(link, &packet, connected, access) };
        Ok(Accepted {
            session,
            session_present,
            assigned_client_id: name.is_assigned.then(|| Box::from(&*name.client_id)),
            session_expiry_sec: (expiry_sec != packet.session_expiry_sec).then_some(expiry_sec),
            server_keep_alive_sec: keep_alive_sec,
            response_information: None,
            authentication: request
                .authenticated
                .as_ref()
                .map(|done| (done.method.clone(), done.data.clone().unwrap_or_default())),
        })
    }

    /// One step of an enhanced authentication, before CONNACK or again later (MQTT 5 §4.12).
    pub(super) fn authenticate_step(&self, request: AuthRequest) -> Result<AuthStep, Refused> {
        let again = request.again;
        self.shared.auth.exchange(request).map_err(|denied| {
            let (refused, outcome) = denial(denied);
            if let (false, Some(recorder)) = (again, &self.recorder) {
                recorder.connect(outcome);
            }
            refused
        })
    }

    /// Whether the user may be here, with this Will, under the rules as they are now.
    fn is_permitted(&self, input: &ConnectInput, principal: &Principal) -> bool {
        let auth = &self.shared.auth;
        let user = input.uid.as_deref();
        let may_publish = |will: &WillTemplate| {
            let grants = auth.grants(user, &principal.brought());
            grants.may_publish(&input.key.client_id, will.message.topic())
        };
        auth.admits(user, principal.proof) && input.will.as_ref().is_none_or(may_publish)
    }

    /// Who the client is.
    async fn authenticate_client(
        &self,
        request: &ConnectRequest,
        packet: &Connect<'_>,
        key: &Key,
    ) -> Result<Principal, Rejection> {
        if let Some(bridge) = &request.peer.bridge {
            return self.shared.auth.bridge(bridge).map_err(denial);
        }
        if let Some(authenticated) = &request.authenticated {
            // A name beside the method says nothing, or the same.
            let is_other = |name: &&str| !name.is_empty() && **name != *authenticated.user;
            if packet.login.user_name.as_ref().is_some_and(is_other) {
                return Err(denial(Denied::BadCredentials));
            }
            let principal = Principal::new(Some(Arc::clone(&authenticated.user)), Proof::Scram);
            return self.with_rules(request, key, principal).await;
        }
        let credentials = Credentials {
            user_name: packet.login.user_name.map(Arc::from),
            password: packet.login.password.map(bytes::Bytes::copy_from_slice),
            certificate_cn: request.peer.certificate_cn.clone(),
            client_id: Arc::clone(&key.client_id),
            peer: request.peer.address,
            now: self.shared.clock.millis(),
        };
        let mut principal = self.shared.auth.authenticate(credentials).await.map_err(denial)?;
        if let Proof::Login { certified } = &mut principal.proof {
            *certified = principal.user.is_some() && request.peer.certificate_cn == principal.user;
        }
        self.with_rules(request, key, principal).await
    }

    async fn with_rules(
        &self,
        request: &ConnectRequest,
        key: &Key,
        principal: Principal,
    ) -> Result<Principal, Rejection> {
        let now = self.shared.clock.millis();
        let ruled = self.shared.auth.with_rules(principal, &key.client_id, request.peer.address, now);
        ruled.await.map_err(denial)
    }

    /// A place among the connections of the user.
    fn seat(&self, user: Option<&Arc<str>>, key: &Key) -> Result<Option<Seat>, Rejection> {
        let now = self.shared.clock.tick();
        self.shared.users.enter(user, key, now).map_err(|Full| over_quota("limits.user_connections_max"))
    }

    /// A place among the sessions of the user, for a client that has none yet.
    fn join<'a>(
        &self,
        seat: Option<&'a Seat>,
        user: Option<&Arc<str>>,
    ) -> Result<Option<Joining<'a>>, Rejection> {
        let Some(seat) = seat else { return Ok(None) };
        let stored = || self.shared.stored_of(user).sessions;
        let has = |key: &Key| self.shared.has_session(key, user);
        seat.join(stored, has).map_err(|Full| over_quota("limits.user_sessions_max"))
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
        let inbox = row.durable.then_some((group, row.lifetime));
        let (subscriber, resumed) =
            self.shared.open_subscriber(&row.owner.key, (access.user(), access.rules().cloned()), inbox);
        let durable = row.durable.then(|| {
            let session = SessionRef { lifetime: row.lifetime, owner_generation: row.owner.owner_generation };
            let resumed = resumed.iter().copied().collect();
            Box::new(Durable { group, session, resumed, inbox: Inbox::default() })
        });
        let inflight_max = packet.receive_maximum.min(self.options.inflight_max).max(1);
        Session {
            post: Rc::new(Post {
                link,
                committed: RefCell::default(),
                closed: Cell::new(false),
                lost: Cell::new(false),
                orphan: RefCell::default(),
            }),
            entry: Arc::clone(&connected.entry),
            subscriber,
            access,
            version: packet.version,
            scopes: Scopes::default(),
            inbound: Inbound::new(self.receive_maximum(packet.version), &resumed),
            outbound: Outbound::new(inflight_max),
            publishes: Publishes::default(),
            shared: BTreeMap::new(),
            durable,
            pace: None,
            brought: Brought::default(),
            seat: None,
            feed: None,
            is_subscribed: false,
            changing: None,
            failed: false,
            protocol: ProtocolLabel::Tcp,
            guard: Some(connected.guard),
        }
    }

    /// A 3.1.1 client is told no Receive Maximum, so it cannot exceed one: what it has under way is bounded by its open scopes,
    /// when they are used up its socket is not read.
    fn receive_maximum(&self, version: Version) -> u16 {
        match version {
            Version::V5 => self.options.receive_maximum,
            Version::V311 => u16::MAX,
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
        access: &mut Access,
    ) -> Result<Option<WillTemplate>, Rejection> {
        let Some(will) = &packet.will else { return Ok(None) };
        if check_topic_name(will.topic).is_err() || will.topic.starts_with('$') {
            return Err(invalid(
                ReasonCode::TopicNameInvalid,
                "the Will topic is not a topic that clients publish to",
            ));
        }
        if will.topic.len() > limits::WILL_TOPIC_BYTES_MAX {
            return Err(invalid(ReasonCode::TopicNameInvalid, "the Will topic is longer than 2,048 bytes"));
        }
        let too_large = will.retain && will.payload.len() > self.options.retained_bytes_max;
        if will.payload.len() > limits::WILL_PAYLOAD_BYTES_MAX || too_large {
            return Err(invalid(ReasonCode::PacketTooLarge, "the Will payload is too large"));
        }
        if !access.may_publish(&self.shared.auth, &key.client_id, will.topic) {
            return Err((
                refusal(ReasonCode::NotAuthorized, "no permission to publish the Will"),
                ConnectOutcome::NotAuthorized,
            ));
        }
        let mut template = template(will);
        template.delay_sec = template.delay_sec.min(self.options.will_delay_max_sec);
        Ok(Some(template))
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
fn client_id(packet: &Connect<'_>) -> Result<ClientId, Rejection> {
    if packet.client_id.is_empty() {
        if packet.version == Version::V311 && !packet.clean_start {
            return Err(invalid(
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
        Err(error) => Err(invalid(ReasonCode::ClientIdentifierNotValid, &format!("the client id {error}"))),
    }
}

/// Names of bridges are nobody's who comes over a network, whatever vouches for it: a client that had the session of one before there is such a
/// bridge would keep it out.
fn refuse_bridge_names(user: Option<&str>, client_id: &str) -> Result<(), Rejection> {
    if user.is_some_and(is_bridge_user) {
        return Err(denial(Denied::NotAuthorized));
    }
    if is_bridge_user(client_id) {
        return Err(invalid(
            ReasonCode::ClientIdentifierNotValid,
            "client ids that begin with bridge/ are those of bridges",
        ));
    }
    Ok(())
}

fn refusal(reason: ReasonCode, text: &str) -> Refused {
    Refused { reason, text: Some(text.into()), server_reference: None }
}

/// Who is not let in.
fn denial(denied: Denied) -> Rejection {
    let outcome = match denied {
        Denied::BadCredentials => ConnectOutcome::BadCredentials,
        Denied::NotAuthorized | Denied::UnknownMethod => ConnectOutcome::NotAuthorized,
        Denied::Busy => ConnectOutcome::Limit,
        Denied::Unavailable => ConnectOutcome::Unavailable,
    };
    (refusal(denied.reason(), &denied.to_string()), outcome)
}

/// A user has as much as it may. MQTT 3.1.1 has no such return code: its client is told 3, try again later.
fn over_quota(key: &str) -> Rejection {
    let text = format!("the user has as many as {key} allows");
    (refusal(ReasonCode::QuotaExceeded, &text), ConnectOutcome::UserQuota)
}

/// What a client may not ask for.
fn invalid(reason: ReasonCode, text: &str) -> Rejection {
    (refusal(reason, text), ConnectOutcome::Invalid)
}

/// Owner spec §7.2.
fn refused(error: ConnectError) -> Rejection {
    let (reason, outcome) = match error {
        ConnectError::Binding => (ReasonCode::NotAuthorized, ConnectOutcome::Binding),
        ConnectError::Denied => (ReasonCode::Banned, ConnectOutcome::Denied),
        ConnectError::NotAuthorized => (ReasonCode::NotAuthorized, ConnectOutcome::NotAuthorized),
        ConnectError::Conflict => (ReasonCode::ServerBusy, ConnectOutcome::Conflict),
        ConnectError::Limit => (ReasonCode::QuotaExceeded, ConnectOutcome::Limit),
        ConnectError::Unproved => (ReasonCode::ServerUnavailable, ConnectOutcome::Unproved),
        ConnectError::Unavailable => (ReasonCode::ServerUnavailable, ConnectOutcome::Unavailable),
        ConnectError::Deadline => (ReasonCode::ServerUnavailable, ConnectOutcome::Deadline),
        ConnectError::Stopped => (ReasonCode::ServerShuttingDown, ConnectOutcome::Stopped),
    };
    (refusal(reason, &error.to_string()), outcome)
}
