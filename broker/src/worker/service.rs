//! `gateway::service::Service` for one worker: which part of the worker each call goes to.

use std::rc::Rc;
use std::sync::Arc;

use gateway::codec::{Packet, ReasonCode};
use gateway::connection::Output;
use gateway::link::{Link, MessageDelivery};
use gateway::service::{
    Accepted, AuthRequest, AuthStep, Authenticated, ConnectRequest, Disconnecting, Ended, LocalFuture,
    Refused, Service,
};
use session::message::QoS;
use session::time::Tick;

use super::Worker;
use super::access::Unwelcome;
use super::client::{Event, Session};
use super::fanout::Fanout;
use super::inbox::{cancel, is_expired, remaining_sec};
use super::mail::{Arrival, Mail, Parcel, token_link};
use super::relief::Brought;
use crate::events::{Event as Told, EventKind};
use crate::metrics::{CloseReason, DropReason};
use crate::route::{Foreign, Outgoing, PartyId, Shape, Tried, select_foreign, select_local, select_own};
use crate::usecase::DisconnectInput;

/// Unread completions are bounded by the scopes that produced them; new work is bounded by these.
const FENCED: Disconnecting = Disconnecting { reason: ReasonCode::ServerBusy, text: None };

/// Why a client that may not stay is closed.
fn unwelcome(why: Unwelcome) -> Disconnecting {
    let text = match why {
        Unwelcome::Removed => None,
        Unwelcome::Other => Some("another user than the one of the session"),
        Unwelcome::Expired => Some("the credentials expired; connect again with new ones"),
    };
    Disconnecting { reason: ReasonCode::NotAuthorized, text }
}

/// A command was refused or has no answer. DISCONNECT has no "Server unavailable" (§3.14.2.1).
const STORE_LOST: Disconnecting =
    Disconnecting { reason: ReasonCode::ImplementationSpecificError, text: None };

/// Messages were acknowledged and not given to this subscriber. None of the other Reason Codes of DISCONNECT applies (§3.14.2.1): the node
/// is neither busy nor shutting down, which would send the client elsewhere or let it wait, and no packet of the client was at fault.
const WITHHELD: Disconnecting = Disconnecting {
    reason: ReasonCode::UnspecifiedError,
    text: Some("messages from another node may be missing; connect again and subscribe"),
};

impl Service for Worker {
    type Session = Session;
    type Event = Event;
    type Mail = Mail;

    fn mail(self: &Rc<Self>, batch: &mut Vec<Mail>) {
        self.read_clock();
        self.set_mailbox_depth(batch.len());
        for mail in batch.drain(..) {
            self.take_mail(mail);
        }
        self.flush();
    }

    fn is_settled(&self) -> bool {
        self.has_no_uncertain()
    }

    fn tick(self: &Rc<Self>) {
        self.read_clock();
        self.feel_load();
        self.housekeep();
    }

    fn now(&self) -> Tick {
        self.shared.clock.tick()
    }

    fn connect(
        self: &Rc<Self>,
        link: Rc<Link<Event>>,
        request: ConnectRequest,
    ) -> LocalFuture<Result<Accepted<Session>, Refused>> {
        Box::pin(Rc::clone(self).connect_session(link, request))
    }

    fn authenticate(
        self: &Rc<Self>,
        _link: Rc<Link<Event>>,
        request: AuthRequest,
    ) -> LocalFuture<Result<AuthStep, Refused>> {
        Box::pin(std::future::ready(self.authenticate_step(request)))
    }

    fn reauthenticated(
        &self,
        session: &mut Session,
        authenticated: Authenticated,
    ) -> Result<(), Disconnecting> {
        if session.access.user() == Some(&authenticated.user) {
            Ok(())
        } else {
            Err(unwelcome(Unwelcome::Other))
        }
    }

    fn server_reference(&self, listener: &str) -> Option<Arc<str>> {
        self.shared.references.get()?.get(listener).cloned()
    }

    fn connected(&self, session: &mut Session, out: &mut Output) {
        self.read_clock();
        self.shared.router.attach(&session.subscriber, session.post.link.id());
        self.attach_inbox(session);
        if let Some(until) = session.access.until() {
            self.expiries.borrow_mut().insert((until, session.post.link.id()));
        }
        self.pump_inbox(session, out);
    }

    fn may_read(&self, session: &Session) -> bool {
        session.scopes.open() < self.options.operations_max
            && session.publishes.has_room()
            && session.changing.as_ref().is_none_or(|changing| changing.has_room())
            && !self.is_paced(session)
    }

    fn holds_back(&self, session: &Session) -> bool {
        self.holds_back_paced(session)
    }

    fn turn_begin(&self, session: &mut Session) -> Result<(), Disconnecting> {
        self.read_clock();
        session.access.check(&self.shared.auth, self.now_ms.get()).map_err(unwelcome)?;
        if session.post.lost.get() {
            return Err(STORE_LOST);
        }
        let scope =
            self.shared.owners.registry().begin(self.now.get(), &session.entry).map_err(|_| FENCED)?;
        session.scopes.enter(scope);
        session.brought = Brought::default();
        Ok(())
    }

    fn packet(
        &self,
        session: &mut Session,
        packet: &Packet<'_>,
        out: &mut Output,
    ) -> Result<(), Disconnecting> {
        match packet {
            Packet::Publish(publish) => {
                self.relieve(session, publish);
                return self.publish(session, publish, out);
            }
            Packet::Ack(ack) => return self.acknowledgement(session, ack, out),
            Packet::Subscribe(subscribe) => self.subscribe(session, subscribe, out),
            Packet::Unsubscribe(unsubscribe) => return self.unsubscribe(session, unsubscribe, out),
            // The connection machine lets no other packet through.
            _ => return Err(Disconnecting { reason: ReasonCode::ProtocolError, text: None }),
        }
        Ok(())
    }

    fn turn_end(&self, session: &mut Session, out: &mut Output) {
        self.pump_inbox(session, out);
        if session.feed.is_some() {
            self.go_on_feeding(session);
        }
        self.end_turn(session);
    }

    fn events(
        &self,
        session: &mut Session,
        events: &mut Vec<Event>,
        out: &mut Output,
    ) -> Result<(), Disconnecting> {
        self.read_clock();
        let mut misses = false;
        for event in events.drain(..) {
            match event {
                Event::Wake => {}
                Event::Withheld => misses |= session.misses_what_is_withheld(),
                Event::Pushed(pushed) => self.inbox_pushed(session, pushed),
                Event::InboxPage(page) => self.inbox_page(session, page),
                Event::Retained(found) => self.feed_found(session, found),
            }
        }
        self.settle(session, out);
        if let Err(why) = session.access.check(&self.shared.auth, self.now_ms.get()) {
            self.end_turn(session);
            return Err(unwelcome(why));
        }
        if session.failed {
            self.end_turn(session);
            return Err(STORE_LOST);
        }
        if misses {
            self.end_turn(session);
            return Err(WITHHELD);
        }
        self.pump_inbox(session, out);
        self.go_on_outside_turns(session);
        Ok(())
    }

    fn may_write(&self, session: &Session) -> bool {
        session.entry.may_write(self.shared.clock.tick())
    }

    fn begin_exchange(&self, session: &mut Session, exactly_once: bool) -> Option<u16> {
        session.outbound.begin(exactly_once)
    }

    fn deliver(&self, session: &mut Session, delivery: &MessageDelivery, out: &mut Output) -> bool {
        if let Some(offset) = delivery.offset {
            return self.deliver_entry(session, delivery, offset, out);
        }
        if is_expired(&delivery.message, self.now_ms.get()) {
            self.stats.dropped(DropReason::Expired, 1);
            return true;
        }
        let mut packet_id = 0;
        if delivery.qos != QoS::AtMostOnce {
            match session.outbound.begin(delivery.qos == QoS::ExactlyOnce) {
                Some(id) => packet_id = id,
                None => return false,
            }
        }
        let expiry_sec = remaining_sec(&delivery.message, self.now_ms.get());
        if !out.publish(delivery, packet_id, expiry_sec) {
            self.stats.dropped(DropReason::TooLarge, 1);
            cancel(session, packet_id, delivery.qos);
        } else if delivery.qos == QoS::AtLeastOnce && delivery.share.is_some() {
            session.shared.insert(packet_id, delivery.clone());
        }
        true
    }

    fn drained(&self, session: &mut Session, out: &mut Output) {
        self.pump_inbox(session, out);
        self.go_on_outside_turns(session);
    }

    fn closed(self: &Rc<Self>, mut session: Session, ended: Ended) {
        self.read_clock();
        session.post.closed.set(true);
        if let Some(until) = session.access.until() {
            self.expiries.borrow_mut().remove(&(until, session.post.link.id()));
        }
        self.forget_pace(&session);
        self.shared.router.detach(&session.subscriber, session.post.link.id());
        self.detach_inbox(&session);
        if session.durable.is_none() {
            self.shared.router.forget(&session.subscriber);
        }
        self.leave_shares(&mut session);
        self.end_feed(&mut session);
        // A turn that was cut short, and completions that nobody looked at any more.
        // What is collected leaves before the proof that the owner stopped.
        self.flush();
        session.scopes.leave();
        self.settle_left_over(&mut session);
        let sent_through = session.durable.as_ref().map_or(0, |durable| durable.inbox.sent_through());
        let (normal, at, expiry_sec, accepted) = match ended {
            Ended::Normal { at, session_expiry_sec } => (true, at, session_expiry_sec, true),
            Ended::Abnormal { at, session_expiry_sec } => (false, at, session_expiry_sec, true),
            Ended::Unanswered { at } => (false, at, None, false),
        };
        // The same cap as for CONNECT.
        let expiry_sec = expiry_sec.map(|sec| sec.min(self.options.expiry_max_sec));
        if let Some(recorder) = &self.recorder {
            let reason = match ended {
                Ended::Normal { .. } => CloseReason::Normal,
                Ended::Abnormal { .. } => CloseReason::Abnormal,
                Ended::Unanswered { .. } => CloseReason::Unanswered,
            };
            recorder.connection_closed(session.protocol, reason);
            let subscriber = &session.subscriber;
            let event = Told::of(EventKind::Disconnect, &subscriber.key, subscriber.user.as_ref());
            self.shared.events.push(event.node(self.shared.boot.node_id).detail(reason.word()));
        }
        let ago_ms = self.now.get().ms_since(at);
        let observed_at = session::time::Millis(self.now_ms.get().0.saturating_sub(ago_ms));
        match session.guard.take() {
            Some(guard) if accepted => {
                guard.closed(DisconnectInput { normal, expiry_sec, observed: at, observed_at, sent_through });
            }
            Some(guard) => guard.refused(),
            None => {}
        }
        self.keep_orphan(Box::new(session));
    }
}

impl Worker {
    /// What goes on when a turn ends: everything collected leaves, the scope stays open while a command of it waits.
    fn end_turn(&self, session: &mut Session) {
        self.flush_acks(session);
        session.scopes.leave();
        let waiting = session.outbound.in_flight();
        session.subscriber.set_load(u32::try_from(waiting).unwrap_or(u32::MAX));
        self.flush();
    }

    /// The same for work that no packet of the client started: it is admitted now, or left until it can be.
    fn go_on_outside_turns(&self, session: &mut Session) {
        let has_acks = session.durable.as_ref().is_some_and(|durable| durable.inbox.has_acks());
        if (has_acks || Self::feed_needs_scope(session)) && !session.scopes.in_turn() {
            match self.shared.owners.registry().begin(self.now.get(), &session.entry) {
                Ok(scope) => session.scopes.enter(scope),
                // Every scope waits for a commit: the next completion comes by here again.
                Err(_) => return,
            }
        }
        if session.feed.is_some() {
            self.go_on_feeding(session);
        }
        self.end_turn(session);
    }

    fn take_mail(self: &Rc<Self>, mail: Mail) {
        match mail {
            Mail::Deliver(parcels) => {
                self.shared.workers.delivered(self.id, &parcels);
                for parcel in parcels {
                    self.deliver_parcel(&parcel);
                }
            }
            Mail::Arrived(arrivals) => {
                for arrival in arrivals {
                    self.deliver_arrival(&arrival);
                }
            }
            Mail::Committed(source, batch) => self.committed(source, batch),
            Mail::Pushed(batch) => {
                for pushed in batch {
                    let link = token_link(self.id, pushed.token);
                    // A connection that is gone: the entry waits in its inbox.
                    let _ = self.links.with(link, |link| link.push_event(Event::Pushed(pushed)));
                }
            }
            Mail::InboxPage { link, page } => {
                let _ = self.links.with(link, |link| link.push_event(Event::InboxPage(page)));
            }
            Mail::Retained { link, found } => {
                let _ = self.links.with(link, |link| link.push_event(Event::Retained(found)));
            }
            Mail::Close(link, request) => {
                let _ = self.links.with(link, |link| link.request_close(request));
            }
            Mail::Withheld => self.links.for_each(|link| link.push_event(Event::Withheld)),
            Mail::PassedOver(count) => self.stats.dropped(DropReason::TooDeep, count),
            Mail::Read(waits) => drop(waits),
        }
    }

    /// A message of another node, for connections of this one: this worker serves its own, and tells the other workers.
    fn deliver_arrival(&self, arrival: &Arrival) {
        let message = &arrival.message;
        let plan = self.plan(message.topic());
        let mut fanout = Fanout::of_message(self, message);
        let outgoing = Outgoing {
            qos: message.qos,
            retain: message.retain,
            publisher: PartyId::default(),
            queue_qos0_offline: self.options.queue_qos0_offline,
            stamp: None,
        };
        let foreign = Foreign {
            publisher: arrival.publisher.as_deref(),
            everyone: arrival.everyone,
            shares: &arrival.shares,
        };
        select_foreign(&plan, &outgoing, &foreign, &mut fanout);
        self.pass_on_here(&mut fanout, message, &arrival.taken);
        fanout.pass_arrival(arrival.publisher.as_ref(), &arrival.taken);
    }

    /// A message of another worker, for connections of this one.
    fn deliver_parcel(&self, parcel: &Parcel) {
        let message: &Arc<session::message::Message> = &parcel.message;
        let mut fanout = Fanout::of_message(self, message);
        if parcel.everyone {
            let plan = self.plan(message.topic());
            let outgoing = Outgoing {
                qos: message.qos,
                retain: message.retain,
                publisher: parcel.publisher,
                queue_qos0_offline: false,
                stamp: None,
            };
            match &parcel.foreign {
                Some(publisher) => select_own(&plan, &outgoing, Some(publisher), &mut fanout),
                None => {
                    select_local(&plan, &outgoing, &mut fanout);
                }
            }
        }
        for target in &parcel.targets {
            let shape = Shape {
                qos: target.qos,
                retain: target.retain,
                identifiers: &target.identifiers,
                share: target.share.as_ref(),
            };
            fanout.follow(target.tried.as_deref().unwrap_or(&Tried::default()));
            fanout.deliver(target.link, shape);
        }
        match &parcel.taken {
            Some(taken) => {
                self.pass_on_here(&mut fanout, message, taken);
                fanout.pass_arrival(parcel.foreign.as_ref(), taken);
            }
            None => {
                while let Some(left) = fanout.take_left() {
                    self.publisher.pass_on(message, None, &left);
                }
            }
        }
    }
}
