//! The end of a connection: one attempt to tell the client why, never a wait, then the physical close, then the report
//! (owner spec §11).

use std::task::{Context, Poll};

use super::buffers::Scratch;
use super::task::{Connection, Stage};
use crate::codec::ReasonCode;
use crate::link::CloseRequest;
use crate::service::{Disconnecting, Service};

/// How a connection is to end.
#[derive(Debug)]
pub(super) struct Finish {
    /// DISCONNECT for a connected v5 client.
    notice: Option<Disconnecting>,
    /// Packets that the socket has not begun to take are dropped.
    reset: bool,
    /// The client did nothing wrong: a DISCONNECT among its unread bytes counts (owner spec §7.8).
    listen: bool,
}

impl Finish {
    /// The client is gone or said good-bye.
    pub(super) fn gone() -> Self {
        Self { notice: None, reset: false, listen: true }
    }

    /// Nothing (more) to say.
    pub(super) fn silent() -> Self {
        Self { notice: None, reset: false, listen: false }
    }

    /// The server ends it, for this reason.
    pub(super) fn with(reason: ReasonCode) -> Self {
        Self::because(Disconnecting { reason, text: None })
    }

    /// The client broke the protocol.
    pub(super) fn fault(reason: ReasonCode) -> Self {
        Self { listen: false, ..Self::with(reason) }
    }

    /// The service ends it.
    pub(super) fn because(why: Disconnecting) -> Self {
        Self { notice: Some(why), reset: false, listen: true }
    }

    pub(super) fn requested(request: CloseRequest) -> Self {
        let notice = request.notice.map(|reason| Disconnecting { reason, text: None });
        Self { notice, reset: request.reset, listen: true }
    }
}

impl<S: Service> Connection<S> {
    /// Ends the connection now. Bounded: writes what the socket takes at once, reads at most one buffer.
    pub(super) fn close(&mut self, cx: &mut Context<'_>, finish: Finish) {
        let over = self.session.as_ref().is_some_and(|session| !self.worker.service.may_write(session));
        if finish.reset || over {
            self.out.drop_unsent_packets();
        }
        // Neither the rest of a packet, nor what a layer below holds, may leave any more; that it is over may be said.
        let mute = over && (self.out.pending() > 0 || self.blocked);
        if let Some(Disconnecting { reason, text }) = finish.notice
            && self.machine.is_connected()
        {
            let stops = reason == ReasonCode::ServerShuttingDown;
            let service = &self.worker.service;
            let reference = stops.then(|| service.server_reference(&self.endpoint.name)).flatten();
            self.out.disconnect(reason, text, reference.as_deref());
        }
        if self.transport.is_some() {
            let written = !mute && self.write_at_once(cx);
            if written && let Some(transport) = &mut self.transport {
                transport.finish(cx);
            }
            // Unread bytes would turn the close into a reset that overtakes the notice at the peer.
            self.read_last_words(cx, finish.listen);
            if !written && let Some(transport) = &self.transport {
                transport.set_reset();
            }
        }
        self.close_physically();
    }

    /// Drops the socket, then reports. Does nothing the second time.
    pub(super) fn close_physically(&mut self) {
        if matches!(self.stage, Stage::Closed) {
            return;
        }
        // An opening holds the socket, a connect future must not outlive it.
        self.stage = Stage::Closed;
        drop(self.transport.take());
        self.worker.remove(&self.link);
        self.link.shut();
        if let Some(session) = self.session.take() {
            let service = &self.worker.service;
            service.closed(session, self.machine.ended(service.now()));
        }
    }

    /// Whether the kernel took everything.
    fn write_at_once(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(transport) = &mut self.transport else { return false };
        while self.out.pending() > 0 {
            match transport.poll_write(cx, self.out.unsent()) {
                Poll::Ready(Ok(n)) if n > 0 => self.out.advance(n),
                _ => return false,
            }
        }
        matches!(transport.poll_flush(cx), Poll::Ready(Ok(())))
    }

    fn read_last_words(&mut self, cx: &mut Context<'_>, listen: bool) {
        let Some(transport) = &mut self.transport else { return };
        let mut scratch = Scratch::take();
        let mut filled = 0;
        while filled < scratch.bytes().len() {
            match transport.read_now(cx, &mut scratch.bytes()[filled..]) {
                Ok(n) if n > 0 => filled += n,
                _ => break,
            }
        }
        if listen {
            let now = self.worker.service.now();
            self.inbuf.extend_from_slice(&scratch.bytes()[..filled]);
            self.machine.handle_last_words(now, &self.inbuf);
        }
    }
}
