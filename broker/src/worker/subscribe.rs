//! SUBSCRIBE and UNSUBSCRIBE (§3.8 to §3.11): judged per filter, stored first when the session is durable, effective on
//! every node before the answer (P7).

use std::sync::Arc;

use gateway::codec::{
    Packet, ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeFilter, UnsubAck, Unsubscribe,
    UserProperties, Version,
};
use gateway::connection::Output;
use gateway::service::Disconnecting;
use hashbrown::HashMap;
use session::lifecycle::{Command, SubscriptionOptions, SubscriptionRow};
use session::topic::TopicFilter;
use smallvec::SmallVec;

use super::Worker;
use super::client::Session;
use super::commit::Op;
use super::retained::Wanted;
use crate::route::Subscriber;
use crate::users::{Reserved, UserUse};

/// Filters in packets of one session that are not answered; beyond it nothing more is read. What one read brought may come on top.
const CHANGING_MAX: usize = 4_096;

/// Nothing in UNSUBACK tells a 3.1.1 client that a subscription goes on.
const TOO_MANY_FILTERS: Disconnecting = Disconnecting {
    reason: ReasonCode::QuotaExceeded,
    text: Some("UNSUBSCRIBE has more topic filters than limits.filters_max"),
};

/// What a session will be subscribed to once everything under way is stored: a limit is held against that, since a client need not
/// wait for SUBACK.
#[derive(Debug, Default)]
pub(super) struct Changing {
    filters: HashMap<Arc<str>, Change, foldhash::fast::RandomState>,
    /// Filters in packets that are not answered, each as often as it is named.
    pending: usize,
    /// Subscriptions then.
    count: usize,
}

#[derive(Debug)]
struct Change {
    /// Packets that name the filter, each as often as it does.
    pending: usize,
    /// It is subscribed to then.
    held: bool,
}

impl Changing {
    /// Whether more may be read from the client.
    pub(super) fn has_room(&self) -> bool {
        self.pending < CHANGING_MAX
    }

    /// Whether `filter` is subscribed to then, if a packet under way names it.
    fn held(&self, filter: &TopicFilter) -> Option<bool> {
        self.filters.get(&filter.full).map(|change| change.held)
    }

    fn set(&mut self, filter: &TopicFilter, was_held: bool, held: bool) {
        self.pending += 1;
        self.count = self.count + usize::from(held) - usize::from(was_held).min(self.count);
        let new = || Change { pending: 0, held };
        let change = self.filters.entry(Arc::clone(&filter.full)).or_insert_with(new);
        change.pending += 1;
        change.held = held;
    }

    /// A packet that names `filter` is answered.
    fn answered(&mut self, filter: &TopicFilter) {
        self.pending = self.pending.saturating_sub(1);
        if let Some(change) = self.filters.get_mut(&filter.full) {
            change.pending -= 1;
            if change.pending == 0 {
                self.filters.remove(&filter.full);
            }
        }
    }
}

impl Session {
    /// Whether it will be subscribed to `filter` once everything under way is stored.
    fn holds(&self, filter: &TopicFilter) -> bool {
        let changing = self.changing.as_ref().and_then(|changing| changing.held(filter));
        changing.unwrap_or_else(|| self.subscriber.has(filter))
    }

    /// Subscriptions then.
    fn subscription_count(&self) -> usize {
        self.changing.as_ref().map_or_else(|| self.subscriber.subscription_count(), |changing| changing.count)
    }

    /// Whether a message that no node sent here may be missing for good. A subscription that was not answered yet promises nothing, and
    /// its retained messages are read after that; what has an inbox gets everything by that.
    pub(super) fn misses_what_is_withheld(&self) -> bool {
        self.durable.is_none() && self.is_subscribed && self.subscriber.subscription_count() > 0
    }

    /// A packet under way begins or ends a subscription.
    fn change(&mut self, filter: &TopicFilter, held: bool) {
        let (was_held, count) = (self.holds(filter), self.subscription_count());
        let changing =
            self.changing.get_or_insert_with(|| Box::new(Changing { count, ..Changing::default() }));
        changing.set(filter, was_held, held);
    }

    /// A packet that names these is answered.
    fn changed<'a>(&mut self, filters: impl IntoIterator<Item = &'a TopicFilter>) {
        let Some(changing) = &mut self.changing else { return };
        filters.into_iter().for_each(|filter| changing.answered(filter));
        if changing.pending == 0 {
            self.changing = None;
        }
    }
}

/// A SUBSCRIBE that waits to be stored.
#[derive(Debug)]
pub(super) struct SubscribeTicket {
    subscriber: Arc<Subscriber>,
    packet_id: u16,
    /// One a filter, in order.
    reasons: SmallVec<[u8; 8]>,
    granted: Vec<(TopicFilter, SubscriptionOptions)>,
    handling: SmallVec<[RetainHandling; 4]>,
    /// Places among the subscriptions of the user, until those are counted.
    reserved: SmallVec<[Reserved; 1]>,
}

/// An UNSUBSCRIBE that waits to be stored.
#[derive(Debug)]
pub(super) struct UnsubscribeTicket {
    subscriber: Arc<Subscriber>,
    packet_id: u16,
    /// One a filter, in order; 0 where the outcome decides.
    reasons: SmallVec<[u8; 8]>,
    filters: Vec<TopicFilter>,
}

impl Worker {
    pub(super) fn subscribe(&self, session: &mut Session, subscribe: &Subscribe<'_>, out: &mut Output) {
        let mut ticket = SubscribeTicket {
            subscriber: Arc::clone(&session.subscriber),
            packet_id: subscribe.packet_id,
            reasons: SmallVec::new(),
            granted: Vec::new(),
            handling: SmallVec::new(),
            reserved: SmallVec::new(),
        };
        for filter in subscribe.filters.iter() {
            match self.judge(session, &filter, ticket.reasons.len()) {
                Ok((parsed, reserved)) => {
                    session.change(&parsed, true);
                    ticket.reserved.extend(reserved);
                    let options = SubscriptionOptions {
                        qos: filter.qos,
                        no_local: filter.no_local,
                        retain_as_published: filter.retain_as_published,
                        identifier: subscribe.identifier,
                    };
                    ticket.reasons.push(filter.qos as u8);
                    ticket.granted.push((parsed, options));
                    ticket.handling.push(filter.retain_handling);
                }
                Err(refusal) => ticket.reasons.push(match session.version {
                    Version::V5 => refusal.code(),
                    Version::V311 => ReasonCode::UnspecifiedError.code(),
                }),
            }
        }
        let durable = session.durable.as_ref().map(|durable| (durable.group, durable.session));
        match durable {
            Some((group, owner)) if !ticket.granted.is_empty() => {
                let filters = ticket.granted.iter().map(|(filter, options)| SubscriptionRow {
                    filter: Arc::clone(&filter.full),
                    options: *options,
                });
                let command = Command::Subscribe { session: owner, filters: filters.collect() };
                // Not proposed only when fenced: then nobody is answered either.
                self.propose(session, group, command, Op::Subscribed(Box::new(ticket)));
            }
            _ => {
                let new = self.shared.router.subscribe(&session.subscriber, &ticket.granted);
                let number = self.shared.router.announced();
                let has_share = ticket.granted.iter().any(|(filter, _)| filter.share().is_some());
                if ticket.granted.is_empty() || self.shared.forwarding.is_confirmed(number, has_share) {
                    return self.subscribed(session, &ticket, &new, out);
                }
                // Not there only when fenced: then nobody is answered either.
                if let Some(waiter) = self.pend(session, Op::Announced(Box::new((ticket, new)))) {
                    self.shared.forwarding.confirm(number, has_share, waiter);
                }
            }
        }
    }

    /// # Errors
    /// A 3.1.1 client cannot be told that it names more filters than are taken: close with this reason.
    pub(super) fn unsubscribe(
        &self,
        session: &mut Session,
        unsubscribe: &Unsubscribe<'_>,
        out: &mut Output,
    ) -> Result<(), Disconnecting> {
        let mut ticket = UnsubscribeTicket {
            subscriber: Arc::clone(&session.subscriber),
            packet_id: unsubscribe.packet_id,
            reasons: SmallVec::new(),
            filters: Vec::new(),
        };
        for filter in unsubscribe.iter() {
            if ticket.reasons.len() >= self.options.filters_max {
                if session.version == Version::V311 {
                    return Err(TOO_MANY_FILTERS);
                }
                // Quota exceeded is none of the reasons of UNSUBACK (§3.11.3).
                ticket.reasons.push(ReasonCode::ImplementationSpecificError.code());
                continue;
            }
            match TopicFilter::parse(filter) {
                Ok(filter) => {
                    session.change(&filter, false);
                    ticket.reasons.push(ReasonCode::Success.code());
                    ticket.filters.push(filter);
                }
                Err(_) => ticket.reasons.push(ReasonCode::TopicFilterInvalid.code()),
            }
        }
        let durable = session.durable.as_ref().map(|durable| (durable.group, durable.session));
        match durable {
            Some((group, owner)) if !ticket.filters.is_empty() => {
                let filters = ticket.filters.iter().map(|filter| Arc::clone(&filter.full)).collect();
                let command = Command::Unsubscribe { session: owner, filters };
                self.propose(session, group, command, Op::Unsubscribed(Box::new(ticket)));
            }
            _ => {
                let existed = self.shared.router.unsubscribe(&session.subscriber, &ticket.filters);
                self.unsubscribed(session, &ticket, &existed, out);
            }
        }
        Ok(())
    }

    /// A stored subscription takes effect.
    pub(super) fn take_effect(&self, ticket: &SubscribeTicket) {
        self.shared.router.subscribe(&ticket.subscriber, &ticket.granted);
    }

    /// A subscription that is not stored any more ends.
    pub(super) fn end_effect(&self, ticket: &UnsubscribeTicket) {
        self.shared.router.unsubscribe(&ticket.subscriber, &ticket.filters);
    }

    /// SUBACK, then the retained messages ([MQTT-3.8.4-4], §3.3.1.3).
    pub(super) fn subscribed(
        &self,
        session: &mut Session,
        ticket: &SubscribeTicket,
        new: &[bool],
        out: &mut Output,
    ) {
        session.changed(ticket.granted.iter().map(|(filter, _)| filter));
        session.is_subscribed |= !ticket.granted.is_empty();
        out.packet(&Packet::SubAck(SubAck {
            packet_id: ticket.packet_id,
            reasons: &ticket.reasons,
            reason_string: None,
            user_properties: UserProperties::EMPTY,
        }));
        let wanted =
            ticket.granted.iter().zip(&ticket.handling).enumerate().filter(|(at, (granted, handling))| {
                let asked = match handling {
                    RetainHandling::Send => true,
                    RetainHandling::SendIfNew => new.get(*at).copied().unwrap_or(false),
                    RetainHandling::DoNotSend => false,
                };
                // One without inbox may have been unsubscribed from before the other nodes knew of it ([MQTT-3.10.4-2]).
                asked && granted.0.share().is_none() && session.subscriber.has(&granted.0)
            });
        let wanted: Vec<Wanted> = wanted
            .map(|(_, ((filter, options), _))| Wanted {
                filter: filter.clone(),
                qos: options.qos,
                identifier: options.identifier,
            })
            .collect();
        self.feed(session, wanted);
    }

    /// UNSUBACK. Nothing is added for these filters from now on, so what is left of their retained messages is not sent
    /// ([MQTT-3.10.4-2]).
    pub(super) fn unsubscribed(
        &self,
        session: &mut Session,
        ticket: &UnsubscribeTicket,
        existed: &[bool],
        out: &mut Output,
    ) {
        session.changed(&ticket.filters);
        if let Some(feed) = &mut session.feed {
            ticket.filters.iter().for_each(|filter| feed.forget(filter));
        }
        let mut existed = existed.iter();
        let mut reasons = ticket.reasons.clone();
        for reason in reasons.iter_mut().filter(|reason| **reason == ReasonCode::Success.code()) {
            if existed.next() == Some(&false) {
                *reason = ReasonCode::NoSubscriptionExisted.code();
            }
        }
        if session.version == Version::V311 {
            reasons.clear();
        }
        out.packet(&Packet::UnsubAck(UnsubAck {
            packet_id: ticket.packet_id,
            reasons: &reasons,
            reason_string: None,
            user_properties: UserProperties::EMPTY,
        }));
    }

    /// Whether a filter is granted, with its place among those of the user, where they are limited; `before` are those before it in the
    /// packet.
    fn judge(
        &self,
        session: &mut Session,
        filter: &SubscribeFilter<'_>,
        before: usize,
    ) -> Result<(TopicFilter, Option<Reserved>), ReasonCode> {
        if before >= self.options.filters_max {
            return Err(ReasonCode::QuotaExceeded);
        }
        let parsed = TopicFilter::parse(filter.filter).map_err(|_| ReasonCode::TopicFilterInvalid)?;
        let client_id = &session.subscriber.key.client_id;
        if !session.access.may_subscribe(&self.shared.auth, client_id, parsed.pattern()) {
            return Err(ReasonCode::NotAuthorized);
        }
        if session.holds(&parsed) {
            return Ok((parsed, None));
        }
        if session.durable.is_some() && self.takes_nothing_durable() {
            return Err(ReasonCode::QuotaExceeded);
        }
        if session.subscription_count() >= self.options.subscriptions_max {
            return Err(ReasonCode::QuotaExceeded);
        }
        let reserved = self.reserve_subscription(session)?;
        Ok((parsed, reserved))
    }

    /// A place among the subscriptions of the user.
    fn reserve_subscription(&self, session: &Session) -> Result<Option<Reserved>, ReasonCode> {
        let Some(seat) = &session.seat else { return Ok(None) };
        let max = seat.limits().subscriptions_max;
        if max == 0 {
            return Ok(None);
        }
        let stored = self.shared.router.len_of(session.access.user());
        UserUse::reserve(seat.used(), stored, max).map(Some).ok_or(ReasonCode::QuotaExceeded)
    }
}
