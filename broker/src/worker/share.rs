//! What a member of a shared subscription leaves when its session ends with its connection: another member gets it (MQTT 5 §4.8.2).

use super::Worker;
use super::client::Session;

impl Worker {
    /// Hands on what was not sent, and what was sent with QoS 1 and not acknowledged. A QoS 2 message that was sent is for nobody else
    /// ([MQTT-4.8.2-5]). An inbox hands on what it holds by itself, when its lifetime is over.
    pub(super) fn leave_shares(&self, session: &mut Session) {
        let unsent = session.post.link.take_left();
        let in_flight = std::mem::take(&mut session.shared);
        for delivery in in_flight.into_values().chain(unsent) {
            if let Some(share) = &delivery.share {
                self.publisher.pass_on(share, &delivery.message);
            }
        }
    }
}
