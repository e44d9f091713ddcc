//! The client side of SCRAM-SHA-256 over AUTH packets, written from RFC 5802 and MQTT 5 §4.12.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::{digest, hmac, pbkdf2};

use crate::client::{Client, Options};
use crate::wire::{self, Packet};

pub const METHOD: &str = "SCRAM-SHA-256";

/// One exchange as the client knows it.
#[derive(Debug, Clone)]
pub struct Scram {
    pub user: String,
    password: String,
    nonce: String,
    server_signature: Option<String>,
}

impl Scram {
    #[must_use]
    pub fn new(user: &str, password: &str) -> Self {
        let nonce = STANDARD.encode(rand::random::<[u8; 12]>());
        Self { user: user.into(), password: password.into(), nonce, server_signature: None }
    }

    fn bare(&self) -> String {
        format!("n={},r={}", self.user, self.nonce)
    }

    /// `client-first-message`.
    #[must_use]
    pub fn first(&self) -> String {
        format!("n,,{}", self.bare())
    }

    /// `client-final-message` to this `server-first-message`.
    ///
    /// # Panics
    /// When that is malformed.
    pub fn last(&mut self, server_first: &str) -> String {
        let parts: Vec<&str> = server_first.split(',').collect();
        let [nonce, salt, count] = parts.as_slice() else { panic!("{server_first}") };
        assert!(nonce[2..].starts_with(&self.nonce) && nonce.len() > 2 + self.nonce.len(), "{nonce}");
        let salt = STANDARD.decode(&salt[2..]).expect("base64");
        let count: u32 = count[2..].parse().expect("a number");
        let mut salted = [0; 32];
        let count = count.try_into().expect("not zero");
        pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, count, &salt, self.password.as_bytes(), &mut salted);
        let sign = |key: &[u8], text: &[u8]| hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text);
        let client_key = sign(&salted, b"Client Key");
        let stored = digest::digest(&digest::SHA256, client_key.as_ref());
        let without_proof = format!("c=biws,{nonce}");
        let message = format!("{},{server_first},{without_proof}", self.bare());
        let signature = sign(stored.as_ref(), message.as_bytes());
        let proof: Vec<u8> =
            client_key.as_ref().iter().zip(signature.as_ref()).map(|(key, sign)| key ^ sign).collect();
        let server_key = sign(&salted, b"Server Key");
        self.server_signature = Some(STANDARD.encode(sign(server_key.as_ref(), message.as_bytes())));
        format!("{without_proof},p={}", STANDARD.encode(proof))
    }

    /// Whether the broker proved that it knows the verifier.
    #[must_use]
    pub fn is_proved_by(&self, server_final: &[u8]) -> bool {
        self.server_signature.as_ref().is_some_and(|sign| server_final == format!("v={sign}").as_bytes())
    }
}

fn properties(method: &str, data: &[u8]) -> Vec<u8> {
    let mut properties = vec![0x15];
    wire::string(method, &mut properties);
    properties.push(0x16);
    wire::string(data, &mut properties);
    properties
}

/// A CONNECT that begins an exchange.
#[must_use]
pub fn connect_with(mut options: Options, method: &str, data: &[u8]) -> Options {
    options.properties.extend(properties(method, data));
    options
}

/// AUTH with this reason.
#[must_use]
pub fn auth(reason: u8, method: &str, data: &[u8]) -> Vec<u8> {
    let properties = properties(method, data);
    let mut body = vec![reason];
    wire::varint(properties.len(), &mut body);
    body.extend(properties);
    wire::packet(0xF0, &body)
}

/// Authentication Data of an AUTH or a CONNACK.
///
/// # Panics
/// When there is none.
#[must_use]
pub fn data(packet: &Packet) -> Vec<u8> {
    let at = if packet.kind() == 2 { 2 } else { 1 };
    let (len, used) = wire::read_varint(&packet.body[at..]).expect("a length");
    let properties = &packet.body[at + used..at + used + len];
    assert_eq!(wire::property(properties, 0x15).as_deref(), Some(METHOD.as_bytes()));
    wire::property(properties, 0x16).expect("data")
}

/// Runs a whole exchange with CONNECT; the client, its CONNACK, and what it knows.
///
/// # Panics
/// When the broker does not follow the protocol.
#[must_use]
pub fn connect(address: std::net::SocketAddr, options: Options, mut scram: Scram) -> (Client, Packet, Scram) {
    let mut client = Client::open(address, true);
    client.send(&connect_with(options, METHOD, scram.first().as_bytes()).bytes());
    let asked = client.receive();
    if asked.kind() == 2 {
        return (client, asked, scram);
    }
    assert_eq!((asked.kind(), asked.body[0]), (15, 0x18), "{asked:02x?}");
    let last = scram.last(&String::from_utf8(data(&asked)).expect("UTF-8"));
    client.send(&auth(0x18, METHOD, last.as_bytes()));
    let connack = client.receive();
    assert_eq!(connack.kind(), 2, "{connack:02x?}");
    (client, connack, scram)
}
