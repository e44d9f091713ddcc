//! An application message as it is routed, queued and stored: one allocation, copied once from the wire.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::time::Millis;

/// Quality of service (MQTT §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[repr(u8)]
pub enum QoS {
    #[default]
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

/// An immutable application message.
///
/// `body` is the topic name, the forwarded MQTT 5 properties and the payload, one after the other. The
/// properties stand there as the wire has them, validated, **without** their length prefix and only those that a
/// server forwards unaltered: Payload Format Indicator, Content Type, Response Topic, Correlation Data and User
/// Property in their order ([MQTT-3.3.2-4], -15, -16, -17, -18, -20). Message Expiry Interval, Topic Alias and Subscription
/// Identifier are never in it: they are written per delivery.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    body: Bytes,
    topic_len: u16,
    properties_len: u32,
    /// QoS with which it was published.
    pub qos: QoS,
    /// The RETAIN flag with which it was published.
    pub retain: bool,
    /// When it expires; `None`: never ([MQTT-3.3.2-5]).
    pub expires_at: Option<Millis>,
}

impl Message {
    /// Copies the three parts into one exact allocation.
    ///
    /// # Panics
    /// When `topic` is longer than 65,535 bytes or `properties` than `u32::MAX`: the codec cannot yield such.
    #[must_use]
    pub fn new(topic: &str, properties: &[u8], payload: &[u8]) -> Self {
        let mut body = Vec::with_capacity(topic.len() + properties.len() + payload.len());
        body.extend_from_slice(topic.as_bytes());
        body.extend_from_slice(properties);
        body.extend_from_slice(payload);
        Self {
            topic_len: u16::try_from(topic.len()).expect("a topic has at most 65,535 bytes"),
            properties_len: u32::try_from(properties.len()).expect("properties fit a packet"),
            body: Bytes::from(body),
            qos: QoS::AtMostOnce,
            retain: false,
            expires_at: None,
        }
    }

    /// Topic name.
    #[must_use]
    pub fn topic(&self) -> &str {
        // Valid by construction; a damaged body read back from disk shows as an empty topic, which nothing matches.
        let topic = self.body.get(..usize::from(self.topic_len)).unwrap_or_default();
        std::str::from_utf8(topic).unwrap_or_default()
    }

    /// Forwarded MQTT 5 properties in wire form, without length prefix.
    #[must_use]
    pub fn properties(&self) -> &[u8] {
        self.body.get(usize::from(self.topic_len)..self.payload_at()).unwrap_or_default()
    }

    /// Application payload.
    #[must_use]
    pub fn payload(&self) -> &[u8] {
        self.body.get(self.payload_at()..).unwrap_or_default()
    }

    /// Bytes of topic, properties and payload.
    #[must_use]
    pub fn len(&self) -> usize {
        self.body.len()
    }

    /// Never true: a message has a topic.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Whether the lengths agree with the body; checked after it was read back from disk.
    #[must_use]
    pub fn is_coherent(&self) -> bool {
        self.payload_at() <= self.body.len()
            && std::str::from_utf8(&self.body[..usize::from(self.topic_len)]).is_ok()
    }

    fn payload_at(&self) -> usize {
        usize::from(self.topic_len) + self.properties_len as usize
    }
}

impl QoS {
    /// The QoS with this number.
    #[must_use]
    pub const fn from_u8(value: u8) -> Option<Self> {
        match value {
            0 => Some(Self::AtMostOnce),
            1 => Some(Self::AtLeastOnce),
            2 => Some(Self::ExactlyOnce),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [MQTT-3.3.2-4] and its like: topic, properties and payload come out as they went in.
    #[test]
    fn a_message_keeps_its_parts() {
        for (topic, properties, payload) in
            [("a/ü", &b"\x01\x01"[..], &b"payload"[..]), ("a", b"", b""), ("a", b"\x01\x00", b"")]
        {
            let message = Message::new(topic, properties, payload);
            assert_eq!(
                (message.topic(), message.properties(), message.payload()),
                (topic, properties, payload)
            );
            assert_eq!(message.len(), topic.len() + properties.len() + payload.len());
            assert!(message.is_coherent());
        }
    }

    /// P10: a message that was damaged on disk is told apart and never panics.
    #[test]
    fn a_damaged_message_is_not_coherent() {
        let whole = Message::new("topic", b"\x01\x01", b"payload");
        let damaged = [
            Message { topic_len: u16::MAX, ..whole.clone() },
            Message { properties_len: u32::MAX, ..whole.clone() },
            Message { body: Bytes::new(), ..whole.clone() },
            Message { body: Bytes::from_static(b"\xff\xfe\xfd\xfc\xfb\x01\x01payload"), ..whole },
        ];
        for message in damaged {
            assert!(!message.is_coherent());
            assert!(
                message.topic().len() + message.properties().len() + message.payload().len() <= message.len()
            );
        }
    }

    #[test]
    fn a_qos_is_0_1_or_2() {
        assert_eq!((0..=2).filter_map(QoS::from_u8).map(|qos| qos as u8).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(QoS::from_u8(3), None);
    }
}
