//! Acknowledgements from a client: PUBACK, PUBREC, PUBREL, PUBCOMP (§4.3).

use gateway::codec::{Ack, AckType, ReasonCode, Version};
use gateway::connection::Output;
use gateway::service::Disconnecting;
use session::lifecycle::Command;
use session::qos::{Outbound, OutboundError, Settled};

use super::Worker;
use super::client::Session;
use super::commit::Op;
use crate::metrics::StageLabel;

const PROTOCOL_ERROR: Disconnecting = Disconnecting {
    reason: ReasonCode::ProtocolError,
    text: Some("the acknowledgement does not fit its exchange"),
};

impl Worker {
    /// # Errors
    /// The acknowledgement is of the wrong type for its exchange.
    pub(super) fn acknowledgement(
        &self,
        session: &mut Session,
        ack: &Ack<'_>,
        out: &mut Output,
    ) -> Result<(), Disconnecting> {
        match ack.ack_type {
            AckType::PubAck => self.finish(session, ack.packet_id, Outbound::puback),
            AckType::PubComp => self.finish(session, ack.packet_id, Outbound::pubcomp),
            AckType::PubRec if ack.reason.is_error() => {
                self.finish(session, ack.packet_id, Outbound::pubrec_refused)
            }
            AckType::PubRec => received(session, ack.packet_id, out),
            AckType::PubRel => {
                self.release(session, ack.packet_id, out);
                Ok(())
            }
        }
    }

    /// PUBREL: the id is free again; PUBCOMP follows the commit of that.
    ///
    /// One that overtakes the PUBREC of its publish waits for that: what is released may have been lost otherwise (P5).
    pub(super) fn release(&self, session: &mut Session, packet_id: u16, out: &mut Output) {
        if session.publishes.release_early(packet_id) {
            return;
        }
        let known = session.inbound.release(packet_id);
        let durable = session.durable.as_mut().map(|durable| {
            durable.resumed.remove(&packet_id);
            (durable.group, durable.session)
        });
        if let (true, Some((group, owner))) = (known, durable) {
            let command = Command::Release { session: owner, packet_id };
            if self.propose(session, group, command, Op::Released { packet_id }) {
                return;
            }
        }
        let reason = if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
        out.ack(AckType::PubComp, packet_id, reason);
    }
}

impl Worker {
    /// The exchange is over.
    fn finish(
        &self,
        session: &mut Session,
        packet_id: u16,
        finish: impl FnOnce(&mut Outbound, u16) -> Result<Settled, OutboundError>,
    ) -> Result<(), Disconnecting> {
        let finished = finish(&mut session.outbound, packet_id);
        if finished == Ok(Settled::Transient) && !session.shared.is_empty() {
            session.shared.remove(&packet_id);
        }
        match finished {
            Ok(Settled::Inbox { offset }) => {
                if let Some(durable) = &mut session.durable
                    && let Some(took_ns) = durable.inbox.acknowledged(offset, self.now.get())
                {
                    self.stage(StageLabel::Client, took_ns);
                }
                Ok(())
            }
            // An id that is not in flight: a late answer to an exchange that is over.
            Ok(Settled::Transient) | Err(OutboundError::UnknownPacketId) => Ok(()),
            Err(OutboundError::WrongKind) => Err(PROTOCOL_ERROR),
        }
    }
}

/// PUBREC of success: PUBREL follows, for an inbox entry after the receipt is committed.
fn received(session: &mut Session, packet_id: u16, out: &mut Output) -> Result<(), Disconnecting> {
    match session.outbound.pubrec(packet_id) {
        Ok(Settled::Transient) => out.ack(AckType::PubRel, packet_id, ReasonCode::Success),
        Ok(Settled::Inbox { offset }) => {
            if let Some(durable) = &mut session.durable {
                durable.inbox.received(offset, packet_id);
            }
        }
        Err(OutboundError::UnknownPacketId) => {
            let reason = match out.version() {
                Version::V5 => ReasonCode::PacketIdentifierNotFound,
                Version::V311 => ReasonCode::Success,
            };
            out.ack(AckType::PubRel, packet_id, reason);
        }
        Err(OutboundError::WrongKind) => return Err(PROTOCOL_ERROR),
    }
    Ok(())
}
