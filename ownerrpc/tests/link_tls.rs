//! Mutual TLS between nodes: the authority decides who is one, names decide which one, and a secret may be asked for on top.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use ownerrpc::link::{
    HandshakeError, LinkDown, RefusalKind, Security, SecurityError, SecuritySettings, TlsError, TlsSettings,
};
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use support::*;

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: rcgen::Certificate,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        Self { issuer: Issuer::new(params, key), certificate }
    }

    /// Settings of a node whose certificate bears `name`.
    fn settings(&self, name: &str) -> TlsSettings {
        let mut params = CertificateParams::new(vec![name.into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        TlsSettings {
            certificates_pem: certificate.pem().into(),
            private_key_pem: key.serialize_pem().into(),
            authorities_pem: self.certificate.pem().into(),
            node_name: Some("node-{node}.mq.example".into()),
        }
    }

    fn node(&self, node_id: u64) -> Node {
        self.named(node_id, &format!("node-{node_id}.mq.example"))
    }

    fn named(&self, node_id: u64, name: &str) -> Node {
        Node::with(node(node_id), tls(self.settings(name), None), quick())
    }
}

fn tls(settings: TlsSettings, secret: Option<[u8; 32]>) -> Security {
    let secret = secret.map(|secret| secret.to_vec());
    Security::new(&SecuritySettings { secret, tls: Some(settings), trusted_network: false }).unwrap()
}

/// DESIGN §8: mutual TLS; also calls larger than a record and many at a time.
#[tokio::test]
async fn nodes_with_certificates_of_one_authority_are_peers() {
    let authority = Authority::new();
    let (one, two) = (authority.node(1), authority.node(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    assert_eq!(up(&peer).await.node_id, 2);
    let large = vec![3; 60_000];
    let answer = within(peer.call(ECHO, large.clone().into(), soon())).await.unwrap();
    assert_eq!(answer, large);
    assert_eq!(echo(&peer, b"small").await.unwrap(), "small");
}

/// A certificate of somebody else's authority is none, on either side.
#[tokio::test]
async fn a_foreign_authority_is_refused_by_both_sides() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let (one, two) = (theirs.node(1), ours.node(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    assert!(matches!(&*down(&peer).await, LinkDown::Handshake(HandshakeError::Tls(_))));
    until("the acceptor refuses too", || two.recorder.count("refused: TLS") > 0).await;
    assert_eq!(two.recorder.count("up"), 0);
    // One that trusts our authority but shows a certificate of another one: the acceptor decides.
    let mut settings = theirs.settings("node-1.mq.example");
    settings.authorities_pem = ours.certificate.pem().into();
    let one = Node::with(node(1), tls(settings, None), quick());
    let peer = one.dial(2, listener.address());
    assert!(matches!(&*down(&peer).await, LinkDown::Handshake(_)));
    until("the acceptor refuses", || two.recorder.count("refused: TLS") > 1).await;
    assert_eq!(two.recorder.count("up"), 0);
}

/// A certificate speaks for its node only.
#[tokio::test]
async fn a_certificate_of_another_node_is_refused() {
    let authority = Authority::new();
    let two = authority.node(2);
    let listener = two.listen().await;
    let impostor = authority.named(1, "node-3.mq.example");
    let peer = impostor.dial(2, listener.address());
    down(&peer).await;
    until("the acceptor sees it", || {
        two.recorder.count("refused: the certificate is not that of node 1") > 0
    })
    .await;
    // The other way round: who answers at the address of node 2 is not node 2.
    let false_two = authority.named(2, "node-3.mq.example");
    let at_false_two = false_two.listen().await;
    let one = authority.node(1);
    let peer = one.dial(2, at_false_two.address());
    let why = down(&peer).await;
    assert!(matches!(&*why, LinkDown::Handshake(HandshakeError::Certificate { node_id: 2, .. })), "{why}");
    assert_eq!((two.recorder.count("up"), false_two.recorder.count("up")), (0, 0));
}

/// The secret over TLS: the proofs are bound to the session, and a wrong one is refused.
#[tokio::test]
async fn a_secret_may_be_asked_for_on_top_of_certificates() {
    let authority = Authority::new();
    let with = |node_id: u64, secret| {
        let settings = authority.settings(&format!("node-{node_id}.mq.example"));
        Node::with(node(node_id), tls(settings, secret), quick())
    };
    let two = with(2, Some(SECRET));
    let listener = two.listen().await;
    let one = with(1, Some(SECRET));
    let peer = one.dial(2, listener.address());
    up(&peer).await;
    assert_eq!(echo(&peer, b"both").await.unwrap(), "both");
    let wrong = with(3, Some([8; 32]));
    let peer = wrong.dial(2, listener.address());
    let why = down(&peer).await;
    assert!(
        matches!(&*why, LinkDown::Handshake(HandshakeError::Refused(refusal)) if refusal.kind == RefusalKind::Proof)
    );
    let without = with(4, None);
    let peer = without.dial(2, listener.address());
    assert!(matches!(&*down(&peer).await, LinkDown::Handshake(HandshakeError::Method)));
}

/// Certificates that were replaced count from the next link on.
#[tokio::test]
async fn certificates_can_be_replaced() {
    let (old, new) = (Authority::new(), Authority::new());
    let (one, two) = (old.node(1), new.node(2));
    let listener = two.listen().await;
    let peer = one.dial(2, listener.address());
    down(&peer).await;
    one.endpoint.set_security(tls(new.settings("node-1.mq.example"), None));
    up(&peer).await;
}

/// Plain TCP and TLS do not meet half way.
#[tokio::test]
async fn plain_and_tls_do_not_mix() {
    let authority = Authority::new();
    let (plain_one, tls_two) = (Node::new(1), authority.node(2));
    let listener = tls_two.listen().await;
    let peer = plain_one.dial(2, listener.address());
    assert!(matches!(&*down(&peer).await, LinkDown::Handshake(_)));
    let (tls_one, plain_two) = (authority.node(1), Node::new(2));
    let listener = plain_two.listen().await;
    let peer = tls_one.dial(2, listener.address());
    assert!(matches!(&*down(&peer).await, LinkDown::Handshake(_)));
}

/// P10: what is wrong with the files is said.
#[test]
fn unusable_certificates_are_refused_with_their_reason() {
    let authority = Authority::new();
    let refused = |change: fn(&mut TlsSettings)| {
        let mut settings = authority.settings("node-1.mq.example");
        change(&mut settings);
        match Security::new(&SecuritySettings { tls: Some(settings), ..SecuritySettings::default() }) {
            Err(SecurityError::Tls(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(refused(|s| s.certificates_pem.clear()), TlsError::NoCertificate));
    assert!(matches!(refused(|s| s.private_key_pem.clear()), TlsError::PrivateKey(_)));
    assert!(matches!(refused(|s| s.authorities_pem.clear()), TlsError::NoAuthority));
    assert!(matches!(refused(|s| s.node_name = Some("node".into())), TlsError::NodeName(_)));
    assert!(matches!(refused(|s| s.node_name = Some("{node} x".into())), TlsError::NodeName(_)));
}
