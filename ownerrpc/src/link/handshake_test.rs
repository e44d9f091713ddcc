//! The handshake against peers that do not keep to it: strangers, mirrors, men in the middle, garbage.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::*;
use crate::link::hello::NO_CLUSTER;
use crate::link::security::SecuritySettings;

const SECRET: [u8; 32] = [7; 32];
const LIMIT: Duration = Duration::from_secs(10);

fn node(node_id: u64) -> LocalNode {
    LocalNode::new([1; 16], node_id, Arc::from(format!("boot-{node_id}")))
}

fn secret(bytes: [u8; 32]) -> Security {
    let settings = SecuritySettings {
        secret: Some(bytes.to_vec()),
        trusted_network: true,
        ..SecuritySettings::default()
    };
    Security::new(&settings).expect("a secret on a trusted network")
}

struct Outcome {
    dialer: Result<Arc<PeerInfo>, HandshakeError>,
    acceptor: Result<Arc<PeerInfo>, HandshakeError>,
}

impl Outcome {
    fn dialer_error(&self) -> &HandshakeError {
        self.dialer.as_ref().expect_err("the dialer refuses")
    }

    fn acceptor_error(&self) -> &HandshakeError {
        self.acceptor.as_ref().expect_err("the acceptor refuses")
    }
}

async fn socket_pair() -> (TcpStream, TcpStream, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (dialer, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
    let (accepted, from) = accepted.expect("accepted");
    (dialer.expect("connected"), accepted, from)
}

async fn shake(dialer: (LocalNode, Security, u64), acceptor: (LocalNode, Security)) -> Outcome {
    let (outbound, inbound, from) = socket_pair().await;
    let dial = dial(&dialer.0, &dialer.1, dialer.2, outbound);
    let accept = accept(&acceptor.0, &acceptor.1, inbound, from, |_| Ok(()));
    // Each side drops its socket as soon as it has refused.
    let (dialer, acceptor) = timeout(LIMIT, async { tokio::join!(dial, accept) }).await.expect("bounded");
    Outcome { dialer: dialer.map(|agreed| agreed.peer), acceptor: acceptor.map(|agreed| agreed.peer) }
}

/// DESIGN §8: both learn who the other is.
#[tokio::test]
async fn two_nodes_with_the_secret_know_each_other() {
    let outcome = shake((node(1), secret(SECRET), 2), (node(2), secret(SECRET))).await;
    let (at_dialer, at_acceptor) = (outcome.dialer.expect("agreed"), outcome.acceptor.expect("agreed"));
    assert_eq!((at_dialer.node_id, &*at_dialer.boot_id, at_dialer.version), (2, "boot-2", 1));
    assert_eq!((at_acceptor.node_id, &*at_acceptor.boot_id, at_acceptor.version), (1, "boot-1", 1));
    assert_eq!(at_acceptor.cluster_id, [1; 16]);
}

/// DESIGN §8: a stranger gets in nowhere, and an acceptor proves nothing to one.
#[tokio::test]
async fn a_wrong_secret_is_refused_by_both_sides() {
    let outcome = shake((node(1), secret([8; 32]), 2), (node(2), secret(SECRET))).await;
    assert!(matches!(outcome.acceptor_error(), HandshakeError::Proof));
    assert!(matches!(
        outcome.dialer_error(),
        HandshakeError::Refused(Refusal { kind: RefusalKind::Proof, .. })
    ));
}

#[tokio::test]
async fn a_node_of_another_cluster_is_refused_by_both_sides() {
    let mut other = node(1);
    other.cluster_id = [2; 16];
    let outcome = shake((other, secret(SECRET), 2), (node(2), secret(SECRET))).await;
    assert!(matches!(outcome.acceptor_error(), HandshakeError::Cluster));
    assert!(matches!(outcome.dialer_error(), HandshakeError::Cluster));
}

/// A node behind the address of another one, as after a change of addresses.
#[tokio::test]
async fn another_node_than_wanted_is_refused() {
    let outcome = shake((node(1), secret(SECRET), 3), (node(2), secret(SECRET))).await;
    assert!(matches!(outcome.acceptor_error(), HandshakeError::Node { wanted: 3, found: 2 }));
    assert!(matches!(outcome.dialer_error(), HandshakeError::Node { wanted: 3, found: 2 }));
}

#[tokio::test]
async fn a_node_does_not_link_to_itself() {
    let outcome = shake((node(1), secret(SECRET), 0), (node(1), secret(SECRET))).await;
    assert!(matches!(outcome.acceptor_error(), HandshakeError::Node { .. }));
    assert!(matches!(outcome.dialer_error(), HandshakeError::Node { .. }));
}

/// A node that joins knows neither cluster nor node behind the address; it learns both.
#[tokio::test]
async fn a_joining_node_learns_cluster_and_node() {
    let mut joining = node(9);
    joining.cluster_id = NO_CLUSTER;
    let outcome = shake((joining, secret(SECRET), 0), (node(2), secret(SECRET))).await;
    let found = outcome.dialer.expect("agreed");
    assert_eq!((found.node_id, found.cluster_id), (2, [1; 16]));
    assert_eq!(outcome.acceptor.expect("agreed").cluster_id, NO_CLUSTER);
}

/// DESIGN §8: rolling upgrade; the dialer may be the older or the newer one.
#[tokio::test]
async fn adjacent_versions_interoperate_and_distant_ones_say_why_not() {
    let with = |dialer, acceptor| {
        let (mut one, mut two) = (node(1), node(2));
        (one.versions, two.versions) = (dialer, acceptor);
        shake((one, secret(SECRET), 2), (two, secret(SECRET)))
    };
    for (dialer, acceptor, expected) in [((1, 1), (1, 2), 1), ((1, 2), (1, 1), 1), ((2, 3), (1, 3), 3)] {
        let outcome = with(dialer, acceptor).await;
        assert_eq!(outcome.dialer.expect("agreed").version, expected);
        assert_eq!(outcome.acceptor.expect("agreed").version, expected);
    }
    let outcome = with((1, 1), (2, 3)).await;
    let version = |ours, theirs| (ours, theirs);
    assert!(matches!(outcome.dialer_error(), HandshakeError::Version { ours, theirs }
        if version(*ours, *theirs) == ((1, 1), (2, 3))));
    assert!(matches!(outcome.acceptor_error(), HandshakeError::Version { ours, theirs }
        if version(*ours, *theirs) == ((2, 3), (1, 1))));
}

#[tokio::test]
async fn who_is_not_admitted_learns_it() {
    let (outbound, inbound, from) = socket_pair().await;
    let (one, two, key) = (node(1), node(2), secret(SECRET));
    let refuse = |peer: &PeerInfo| {
        assert_eq!(peer.node_id, 1);
        Err(Refusal::new(RefusalKind::NotAdmitted, "removed"))
    };
    let (dialer, acceptor) =
        tokio::join!(dial(&one, &key, 2, outbound), accept(&two, &key, inbound, from, refuse));
    assert!(matches!(acceptor.err(), Some(HandshakeError::NotAdmitted(1))));
    assert!(matches!(dialer.err(), Some(HandshakeError::Refused(refusal)) if refusal.text == "removed"));
}

/// An attacker without the secret, holding the other end of a socket.
struct Attacker(Stream);

impl Attacker {
    async fn receive(&mut self, step: Step) -> Bytes {
        receive(&mut self.0, step).await.expect("the victim speaks")
    }

    async fn send(&mut self, step: Step, payload: &[u8]) {
        send(&mut self.0, step, payload).await.expect("the victim listens");
    }
}

fn fake_hello(from: u64, to: u64) -> Hello {
    Hello {
        method: hello::Method::Secret,
        versions: (1, 1),
        cluster_id: [1; 16],
        from,
        to,
        nonce: [0; NONCE_BYTES],
        boot_id: Arc::from("fake"),
    }
}

/// DESIGN §8: no reflection. What the dialer proved is sent back to it.
#[tokio::test]
async fn a_proof_that_is_sent_back_proves_nothing() {
    let (outbound, inbound, _) = socket_pair().await;
    let (one, key) = (node(1), secret(SECRET));
    let victim = dial(&one, &key, 2, outbound);
    let attack = async {
        let mut attacker = Attacker(Stream::Tcp(inbound));
        attacker.receive(Step::DialerHello).await;
        attacker.send(Step::AcceptorHello, &fake_hello(2, 1).encode()).await;
        let proof = attacker.receive(Step::DialerProof).await;
        attacker.send(Step::AcceptorProof, &proof).await;
    };
    let (victim, ()) = tokio::join!(victim, attack);
    assert!(matches!(victim.err(), Some(HandshakeError::Proof)));
}

/// The dialer's own hello, sent back, is not that of another node.
#[tokio::test]
async fn a_hello_that_is_sent_back_is_refused() {
    let (outbound, inbound, _) = socket_pair().await;
    let (one, key) = (node(1), secret(SECRET));
    let attack = async {
        let mut attacker = Attacker(Stream::Tcp(inbound));
        let hello = attacker.receive(Step::DialerHello).await;
        attacker.send(Step::AcceptorHello, &hello).await;
    };
    let (victim, ()) = tokio::join!(dial(&one, &key, 0, outbound), attack);
    assert!(matches!(victim.err(), Some(HandshakeError::Node { .. })));
}

/// Node 1 dials the attacker, who at the same time dials node 1 as node 2 and passes what he gets from one connection to the
/// other: the sides are part of what is proved.
#[tokio::test]
async fn proofs_of_one_connection_do_not_fit_another() {
    let (outbound, to_dialer, _) = socket_pair().await;
    let (to_acceptor, inbound, from) = socket_pair().await;
    let (one, key) = (node(1), secret(SECRET));
    let attack = async {
        let (mut dialled, mut dialling) =
            (Attacker(Stream::Tcp(to_dialer)), Attacker(Stream::Tcp(to_acceptor)));
        dialled.receive(Step::DialerHello).await;
        dialling.send(Step::DialerHello, &fake_hello(2, 1).encode()).await;
        let hello = dialling.receive(Step::AcceptorHello).await;
        // The nonce of one of its connections is offered on the other.
        let mut mirrored = Hello::decode(&hello).expect("legal");
        (mirrored.from, mirrored.to) = (2, 1);
        dialled.send(Step::AcceptorHello, &mirrored.encode()).await;
        let proof = dialled.receive(Step::DialerProof).await;
        dialling.send(Step::DialerProof, &proof).await;
        // The acceptor refuses; the dialer waits for a proof that does not come.
        assert!(receive(&mut dialling.0, Step::AcceptorProof).await.is_err());
    };
    let (dialer, acceptor, ()) =
        tokio::join!(dial(&one, &key, 2, outbound), accept(&one, &key, inbound, from, |_| Ok(())), attack);
    assert!(dialer.is_err());
    assert!(matches!(acceptor.err(), Some(HandshakeError::Proof)));
}

/// A recorded handshake is worthless: the acceptor's nonce is new.
#[tokio::test]
async fn a_replayed_handshake_is_refused() {
    let key = secret(SECRET);
    let two = node(2);
    let mut recorded: Option<(Bytes, Bytes)> = None;
    for replay in [false, true] {
        let (outbound, inbound, from) = socket_pair().await;
        let dialer = async {
            let mut dialer = Attacker(Stream::Tcp(outbound));
            if let Some((hello, proof)) = &recorded {
                dialer.send(Step::DialerHello, hello).await;
                dialer.receive(Step::AcceptorHello).await;
                dialer.send(Step::DialerProof, proof).await;
                return None;
            }
            let hello = fake_hello(1, 2).encode();
            dialer.send(Step::DialerHello, &hello).await;
            let theirs = dialer.receive(Step::AcceptorHello).await;
            let transcript = Transcript { dialer: &hello, acceptor: &theirs, version: 1, tls_exporter: None };
            let proof = prove(&key, Role::Dialer, &transcript);
            dialer.send(Step::DialerProof, &proof).await;
            dialer.receive(Step::AcceptorProof).await;
            Some((hello, proof))
        };
        let (heard, accepted) = tokio::join!(dialer, accept(&two, &key, inbound, from, |_| Ok(())));
        assert_eq!(accepted.is_err(), replay);
        recorded = heard.or(recorded);
    }
}

/// P9: garbage costs a bounded read and the connection.
#[tokio::test]
async fn garbage_instead_of_a_hello_is_refused() {
    let cases: [&[u8]; 6] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0xFF; 64],
        &[0; 64],
        &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xFC, 0x03, 0x03, 0, 0, 0],
        &[0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
        &[0, 0, 0, 10, 0, 107, 0, 0, 0, 0, 0, 0, 0, 1],
    ];
    for garbage in cases {
        let (mut outbound, inbound, from) = socket_pair().await;
        outbound.write_all(garbage).await.expect("sent");
        let (two, key) = (node(2), secret(SECRET));
        let accepted = timeout(LIMIT, accept(&two, &key, inbound, from, |_| Ok(()))).await.expect("at once");
        assert!(matches!(
            accepted.err(),
            Some(HandshakeError::Malformed | HandshakeError::Hello(_) | HandshakeError::Io(_))
        ));
        let mut rest = Vec::new();
        let _ = outbound.read_to_end(&mut rest).await;
        assert!(rest.is_empty(), "nothing is said to a stranger");
    }
}
