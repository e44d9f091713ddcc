//! SUBSCRIBE and UNSUBSCRIBE (§3.8 to §3.11): judged per filter, stored first when the session is durable, effective on
//! every node before the answer (P7).

use std::sync::Arc;

use gateway::codec::{
    Packet, ReasonCode, RetainHandling, SubAck, Subscribe, SubscribeFilter, UnsubAck, Unsubscribe,
    UserProperties, Version,
};
use gateway::connection::Output;
use session::lifecycle::{Command, SubscriptionOptions, SubscriptionRow};
use session::topic::TopicFilter;
use smallvec::SmallVec;

use super::Worker;
use super::client::Session;
use super::commit::Op;
use super::retained::Wanted;
use crate::route::Subscriber;

/// A SUBSCRIBE that waits to be stored.
#[derive(Debug)]
pub(super) struct SubscribeTicket {
    subscriber: Arc<Subscriber>,
    packet_id: u16,
    /// One a filter, in order.
    reasons: SmallVec<[u8; 8]>,
    granted: Vec<(TopicFilter, SubscriptionOptions)>,
    handling: SmallVec<[RetainHandling; 4]>,
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
        };
        let mut count = session.subscriber.subscription_count();
        for filter in subscribe.filters.iter() {
            match self.judge(session, &filter, ticket.reasons.len(), &mut count) {
                Ok(parsed) => {
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

    pub(super) fn unsubscribe(&self, session: &mut Session, unsubscribe: &Unsubscribe<'_>, out: &mut Output) {
        let mut ticket = UnsubscribeTicket {
            subscriber: Arc::clone(&session.subscriber),
            packet_id: unsubscribe.packet_id,
            reasons: SmallVec::new(),
            filters: Vec::new(),
        };
        for filter in unsubscribe.iter() {
            match TopicFilter::parse(filter) {
                Ok(filter) => {
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
                asked && granted.0.share().is_none()
            });
        let wanted = wanted.map(|(_, ((filter, options), _))| Wanted {
            filter: filter.clone(),
            qos: options.qos,
            identifier: options.identifier,
        });
        self.feed(session, wanted);
    }

    /// UNSUBACK.
    pub(super) fn unsubscribed(
        &self,
        session: &Session,
        ticket: &UnsubscribeTicket,
        existed: &[bool],
        out: &mut Output,
    ) {
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

    /// Whether a filter is granted; `count` is what the session would hold with those granted before it.
    fn judge(
        &self,
        session: &mut Session,
        filter: &SubscribeFilter<'_>,
        before: usize,
        count: &mut usize,
    ) -> Result<TopicFilter, ReasonCode> {
        if before >= self.options.filters_max {
            return Err(ReasonCode::QuotaExceeded);
        }
        let parsed = TopicFilter::parse(filter.filter).map_err(|_| ReasonCode::TopicFilterInvalid)?;
        let client_id = &session.subscriber.key.client_id;
        if !session.access.may_subscribe(&self.shared.auth, client_id, parsed.pattern()) {
            return Err(ReasonCode::NotAuthorized);
        }
        if !session.subscriber.has(&parsed) {
            if *count >= self.options.subscriptions_max {
                return Err(ReasonCode::QuotaExceeded);
            }
            *count += 1;
        }
        Ok(parsed)
    }
}
