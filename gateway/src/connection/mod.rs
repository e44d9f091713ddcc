//! The sans-IO connection machine: CONNECT first, keep alive, windows, packet sizes, topic aliases, enhanced
//! authentication, reason codes.

/// What this server offers on a listener; sent in CONNACK.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Largest packet taken from a client, whole packet; before CONNECT is accepted `connect_packet_size_max` holds.
    pub packet_size_max: u32,
    /// Largest CONNECT.
    pub connect_packet_size_max: u32,
    /// Receive Maximum of the server.
    pub receive_maximum: u16,
    /// Topic Alias Maximum of the server.
    pub topic_alias_maximum: u16,
    /// Topic aliases that the server itself uses towards a client, at most what the client allows.
    pub topic_alias_out_maximum: u16,
    /// Bytes that may wait in an outbox.
    pub outbox_bytes_max: usize,
    /// How long a socket may take from accept to a complete CONNECT.
    pub connect_timeout_ms: u64,
}

/// Where the service writes packets: the connection's output buffer with the client's limits in front of it. The developer of the
/// driver fills this in.
#[derive(Debug)]
pub struct Output {
    _private: (),
}

impl Output {
    /// Version of the connection.
    #[must_use]
    pub fn version(&self) -> crate::codec::Version {
        unimplemented!()
    }

    /// Appends a packet other than PUBLISH. Reason strings and user properties are left out when the client asked for none
    /// ([MQTT-3.1.2-29]) or when they would exceed its Maximum Packet Size.
    pub fn packet(&mut self, _packet: &crate::codec::Packet<'_>) {
        unimplemented!()
    }

    /// PUBACK, PUBREC, PUBREL or PUBCOMP without properties: the short form.
    pub fn ack(
        &mut self,
        _ack_type: crate::codec::AckType,
        _packet_id: u16,
        _reason: crate::codec::ReasonCode,
    ) {
        unimplemented!()
    }

    /// Appends a PUBLISH, with a topic alias where the client allows one; false when it exceeds the client's Maximum
    /// Packet Size (the message counts as delivered, [MQTT-3.1.2-25]).
    pub fn publish(
        &mut self,
        _delivery: &crate::link::MessageDelivery,
        _packet_id: u16,
        _expiry_sec: Option<u32>,
    ) -> bool {
        unimplemented!()
    }

    /// Bytes that wait to be written.
    #[must_use]
    pub fn pending(&self) -> usize {
        unimplemented!()
    }
}
