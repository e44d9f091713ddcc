//! The few MQTT 3.1.1 packets that a load needs, written without the broker's codec.

/// Appends CONNECT.
pub(crate) fn connect(client_id: &str, clean: bool, out: &mut Vec<u8>) {
    header(0x10, 12 + client_id.len(), out);
    out.extend_from_slice(b"\x00\x04MQTT\x04");
    out.push(if clean { 2 } else { 0 });
    out.extend_from_slice(&[0, 0]);
    text(client_id, out);
}

/// Appends SUBSCRIBE with packet id 1 and these filters.
pub(crate) fn subscribe(filters: &[String], qos: u8, out: &mut Vec<u8>) {
    let len = 2 + filters.iter().map(|filter| filter.len() + 3).sum::<usize>();
    header(0x82, len, out);
    out.extend_from_slice(&[0, 1]);
    for filter in filters {
        text(filter, out);
        out.push(qos);
    }
}

/// Appends PUBLISH; `packet_id` is ignored for QoS 0.
pub(crate) fn publish(topic: &str, qos: u8, retain: bool, packet_id: u16, payload: &[u8], out: &mut Vec<u8>) {
    let id_len = if qos > 0 { 2 } else { 0 };
    header(0x30 | qos << 1 | u8::from(retain), 2 + topic.len() + id_len + payload.len(), out);
    text(topic, out);
    if qos > 0 {
        out.extend_from_slice(&packet_id.to_be_bytes());
    }
    out.extend_from_slice(payload);
}

/// Appends PUBACK 0x40, PUBREC 0x50, PUBREL 0x62 or PUBCOMP 0x70.
pub(crate) fn ack(first: u8, packet_id: u16, out: &mut Vec<u8>) {
    let id = packet_id.to_be_bytes();
    out.extend_from_slice(&[first, 2, id[0], id[1]]);
}

/// One packet at the start of `buffer`: first byte, where its body begins, where it ends.
pub(crate) fn frame(buffer: &[u8]) -> Option<(u8, usize, usize)> {
    let mut len = 0;
    for at in 0..4 {
        let byte = *buffer.get(1 + at)?;
        len |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            let start = 2 + at;
            return (buffer.len() >= start + len).then_some((buffer[0], start, start + len));
        }
    }
    None
}

/// QoS, packet id (0 for QoS 0) and payload of a PUBLISH.
pub(crate) fn read_publish(first: u8, body: &[u8]) -> (u8, u16, &[u8]) {
    let qos = first >> 1 & 3;
    let topic = usize::from(u16::from_be_bytes([body[0], body[1]]));
    if qos == 0 {
        return (0, 0, &body[2 + topic..]);
    }
    let id = u16::from_be_bytes([body[2 + topic], body[3 + topic]]);
    (qos, id, &body[4 + topic..])
}

fn header(first: u8, mut len: usize, out: &mut Vec<u8>) {
    out.push(first);
    loop {
        let byte = (len % 128) as u8;
        len /= 128;
        out.push(if len > 0 { byte | 0x80 } else { byte });
        if len == 0 {
            return;
        }
    }
}

fn text(value: &str, out: &mut Vec<u8>) {
    let len = u16::try_from(value.len()).expect("topics and ids of a load are short");
    out.extend_from_slice(&len.to_be_bytes());
    out.extend_from_slice(value.as_bytes());
}
