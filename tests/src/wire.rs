//! Packets as bytes, written independently of the broker's codec.

/// A packet as it came over the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// First byte: type and flags.
    pub first: u8,
    pub body: Vec<u8>,
}

/// A PUBLISH taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Publish {
    pub dup: bool,
    pub qos: u8,
    pub retain: bool,
    pub topic: String,
    /// 0 for QoS 0.
    pub packet_id: u16,
    /// Property bytes without their length (MQTT 5).
    pub properties: Vec<u8>,
    pub payload: Vec<u8>,
}

impl Packet {
    /// Packet type, 1 to 15.
    #[must_use]
    pub fn kind(&self) -> u8 {
        self.first >> 4
    }

    /// Packet id of an acknowledgement, SUBACK or UNSUBACK.
    #[must_use]
    pub fn packet_id(&self) -> u16 {
        u16::from_be_bytes([self.body[0], self.body[1]])
    }

    /// Reason code of an acknowledgement (0 in the short form).
    #[must_use]
    pub fn reason(&self) -> u8 {
        match self.kind() {
            2 => self.body[1],
            14 => self.body.first().copied().unwrap_or(0),
            _ => self.body.get(2).copied().unwrap_or(0),
        }
    }

    /// The PUBLISH in it.
    ///
    /// # Panics
    /// When it is not a well-formed PUBLISH.
    #[must_use]
    pub fn publish(&self, v5: bool) -> Publish {
        assert_eq!(self.kind(), 3, "not a PUBLISH: {self:02x?}");
        let qos = (self.first >> 1) & 3;
        let len = usize::from(u16::from_be_bytes([self.body[0], self.body[1]]));
        let topic = String::from_utf8(self.body[2..2 + len].to_vec()).expect("topic is UTF-8");
        let mut at = 2 + len;
        let packet_id = if qos > 0 {
            at += 2;
            u16::from_be_bytes([self.body[at - 2], self.body[at - 1]])
        } else {
            0
        };
        let mut properties = Vec::new();
        if v5 {
            let (size, used) = read_varint(&self.body[at..]).expect("property length");
            at += used;
            properties = self.body[at..at + size].to_vec();
            at += size;
        }
        Publish {
            dup: self.first & 8 != 0,
            qos,
            retain: self.first & 1 != 0,
            topic,
            packet_id,
            properties,
            payload: self.body[at..].to_vec(),
        }
    }

    /// The whole packet again.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        packet(self.first, &self.body)
    }
}

/// A packet with this first byte and body.
#[must_use]
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    varint(body.len(), &mut out);
    out.extend_from_slice(body);
    out
}

/// Appends a variable byte integer.
///
/// # Panics
/// Above 268,435,455.
pub fn varint(mut value: usize, out: &mut Vec<u8>) {
    assert!(value <= 268_435_455);
    loop {
        let byte = (value % 128) as u8;
        value /= 128;
        if value == 0 {
            out.push(byte);
            return;
        }
        out.push(byte | 0x80);
    }
}

/// Value and length of a variable byte integer, `None` when incomplete.
#[must_use]
pub fn read_varint(bytes: &[u8]) -> Option<(usize, usize)> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(4) {
        value |= usize::from(byte & 0x7F) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, at + 1));
        }
    }
    None
}

/// Appends a length-prefixed string or binary.
///
/// # Panics
/// Above 65,535 bytes.
pub fn string(value: impl AsRef<[u8]>, out: &mut Vec<u8>) {
    let value = value.as_ref();
    out.extend_from_slice(&u16::try_from(value.len()).expect("at most 65,535 bytes").to_be_bytes());
    out.extend_from_slice(value);
}

/// Looks a property up in property bytes (without length): returns the raw value of the first one with this id.
/// Knows every property of MQTT 5 §2.2.2.2.
///
/// # Panics
/// When the bytes are not well-formed properties.
#[must_use]
pub fn property(properties: &[u8], wanted: u8) -> Option<Vec<u8>> {
    all_properties(properties).into_iter().find(|(id, _)| *id == wanted).map(|(_, value)| value)
}

/// All properties in order; strings without their length prefix, user properties as the raw pair.
///
/// # Panics
/// When the bytes are not well-formed properties.
#[must_use]
pub fn all_properties(properties: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < properties.len() {
        let id = properties[at];
        at += 1;
        let text = |at: usize| usize::from(u16::from_be_bytes([properties[at], properties[at + 1]]));
        let (skip, len) = match id {
            0x01 | 0x17 | 0x19 | 0x24 | 0x25 | 0x28 | 0x29 | 0x2A => (0, 1),
            0x13 | 0x21 | 0x22 | 0x23 => (0, 2),
            0x02 | 0x11 | 0x18 | 0x27 => (0, 4),
            0x0B => (0, read_varint(&properties[at..]).expect("a varint").1),
            0x03 | 0x08 | 0x09 | 0x12 | 0x15 | 0x16 | 0x1A | 0x1C | 0x1F => (2, text(at)),
            0x26 => {
                let name = text(at);
                (0, 2 + name + 2 + text(at + 2 + name))
            }
            other => panic!("unknown property {other:#04x}"),
        };
        at += skip;
        found.push((id, properties[at..at + len].to_vec()));
        at += len;
    }
    found
}
