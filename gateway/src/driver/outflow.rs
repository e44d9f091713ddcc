//! From the outbox to the socket: what waits is moved only as fast as the socket takes it.

use std::task::{Context, Poll};

use session::message::QoS;

use super::close::Finish;
use super::task::Connection;
use crate::connection::Output;
use crate::link::{Entry, Lane};
use crate::service::Service;

/// Output that is filled from the outbox before the socket is asked.
const OUTPUT_FILL: usize = 256 * 1024;

impl<S: Service> Connection<S> {
    /// Moves deliveries to the output and the output to the socket, until nothing waits or the socket is full.
    pub(super) fn pour(&mut self, cx: &mut Context<'_>) -> Result<(), Finish> {
        loop {
            let filled = !self.blocked && self.fill()?;
            self.flush(cx)?;
            if !filled || self.blocked {
                return Ok(());
            }
        }
    }

    /// Writes what waits; `blocked` says whether the socket took it all.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>) -> Result<(), Finish> {
        let Some(transport) = &mut self.transport else { return Ok(()) };
        let was_blocked = self.blocked;
        if self.out.pending() == 0 && !was_blocked {
            return Ok(());
        }
        if self.session.as_ref().is_some_and(|session| !self.worker.service.may_write(session)) {
            return Err(Finish::silent());
        }
        let mut progress = false;
        self.blocked = false;
        while self.out.pending() > 0 {
            match transport.poll_write(cx, self.out.unsent()) {
                Poll::Ready(Ok(n)) if n > 0 => {
                    self.out.advance(n);
                    progress = true;
                }
                Poll::Ready(_) => return Err(Finish::gone()),
                Poll::Pending => {
                    self.blocked = true;
                    break;
                }
            }
        }
        match transport.poll_flush(cx) {
            Poll::Ready(Ok(())) => {}
            Poll::Ready(Err(_)) => return Err(Finish::gone()),
            Poll::Pending => self.blocked = true,
        }
        if was_blocked && progress {
            self.renew_keep_alive(self.worker.service.now());
        }
        Ok(())
    }

    /// Fills the output from the outbox; whether there may be more to take.
    fn fill(&mut self) -> Result<bool, Finish> {
        let Some(session) = &mut self.session else { return Ok(false) };
        let service = &*self.worker.service;
        let out = &mut self.out;
        let mut held = self.link.take_held();
        let mut arrivals = self.link.take_arrivals();
        if held.is_none() && arrivals.is_empty() {
            self.link.put_back_arrivals(arrivals);
            return Ok(false);
        }
        if let Some(held) = &mut held {
            release_held(service, session, held, out);
        }
        held = held.filter(|held| !held.is_empty());
        if let Some(packets) = arrivals.take_plain() {
            out.adopt(packets);
        }
        while out.pending() < OUTPUT_FILL
            && let Some(entry) = arrivals.front()
        {
            match entry {
                Entry::Bytes(packets) => out.append(packets),
                Entry::Message(delivery) if delivery.qos == QoS::AtMostOnce => {
                    service.deliver(session, delivery, out);
                }
                // In order: what follows a held exchange waits behind it ([MQTT-4.6.0-6]).
                entry => {
                    if held.is_some() || !begin(service, session, &entry, out) {
                        arrivals.pop_into(held.get_or_insert_default());
                        continue;
                    }
                }
            }
            arrivals.pop();
        }
        let more = !arrivals.is_empty() || (held.is_some() && out.pending() >= OUTPUT_FILL);
        let empty = arrivals.is_empty() && held.is_none();
        self.link.put_back_arrivals(arrivals);
        self.link.put_back_held(held);
        if empty && self.link.take_refused() {
            service.drained(session, out);
        }
        self.check_output()?;
        Ok(more || !self.link.arrivals_are_empty())
    }
}

/// Moves held exchanges out while the client's window has room.
fn release_held<S: Service>(service: &S, session: &mut S::Session, held: &mut Lane, out: &mut Output) {
    while out.pending() < OUTPUT_FILL
        && let Some(entry) = held.front()
    {
        if !begin(service, session, &entry, out) {
            return;
        }
        held.pop();
    }
}

/// Writes an exchange when the service has a packet id for it.
fn begin<S: Service>(service: &S, session: &mut S::Session, entry: &Entry<'_>, out: &mut Output) -> bool {
    match entry {
        Entry::Bytes(packets) => out.append(packets),
        Entry::Exchange { bytes, packet_id_at, exactly_once } => {
            let Some(packet_id) = service.begin_exchange(session, *exactly_once) else { return false };
            out.append_exchange(bytes, *packet_id_at, packet_id);
        }
        Entry::Message(delivery) => return service.deliver(session, delivery, out),
    }
    true
}
