//! The handshake: two hellos, then proof from both sides, the dialer's first (WIRE.md §3).
//!
//! Nothing but control frames of at most 512 bytes is read before both sides are proved, and an acceptor computes nothing with
//! the secret for somebody who has not proved that he knows it.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use ring::rand::SecureRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::control::{self, Control};
use super::endpoint::LocalNode;
use super::error::HandshakeError;
use super::frame::{self, Frame, HEADER_BYTES};
use super::hello::{self, Hello, NONCE_BYTES};
use super::observer::PeerInfo;
use super::refusal::{Refusal, RefusalKind};
use super::secret::{Role, Transcript};
use super::security::Security;
use super::stream::Stream;
use super::tls;

/// ```text
///   dialer ── 1 hello ──▶ acceptor
///   dialer ◀── 2 hello ── acceptor    both agree on cluster, nodes, method and version, or close
///   dialer ── 3 proof ──▶ acceptor    or a refusal: wrong secret, not admitted
///   dialer ◀── 4 proof ── acceptor
/// ```
#[derive(Debug, Clone, Copy)]
#[repr(u64)]
enum Step {
    DialerHello = 1,
    AcceptorHello = 2,
    DialerProof = 3,
    AcceptorProof = 4,
}

/// An authenticated connection.
pub(super) struct Agreed {
    pub(super) stream: Stream,
    pub(super) peer: Arc<PeerInfo>,
}

/// Opens a link to `node_id`; 0: to whoever is there.
pub(super) async fn dial(
    node: &LocalNode,
    security: &Security,
    node_id: u64,
    tcp: TcpStream,
) -> Result<Agreed, HandshakeError> {
    let address = tcp.peer_addr()?;
    let mut stream = match &security.tls {
        None => Stream::Tcp(tcp),
        Some(tls) => Stream::Tls(Box::new(tls.dial(tcp).await.map_err(HandshakeError::Tls)?)),
    };
    let mine = node.hello(security, node_id)?;
    let mine_bytes = mine.encode();
    send(&mut stream, Step::DialerHello, &mine_bytes).await?;
    let theirs_bytes = receive(&mut stream, Step::AcceptorHello).await?;
    let theirs = Hello::decode(&theirs_bytes)?;
    let version = hello::agree(&mine, &theirs, &mine)?;
    let exporter = check_channel(&stream, security, theirs.from)?;
    let transcript = Transcript {
        dialer: &mine_bytes,
        acceptor: &theirs_bytes,
        version,
        tls_exporter: exporter.as_ref().map(<[u8; 32]>::as_slice),
    };
    send(&mut stream, Step::DialerProof, &prove(security, Role::Dialer, &transcript)).await?;
    let proof = receive(&mut stream, Step::AcceptorProof).await?;
    verify(security, Role::Acceptor, &transcript, &proof)?;
    Ok(Agreed { stream, peer: peer(&theirs, version, address) })
}

/// Answers a dialer. `admit` is asked once the dialer is proved.
pub(super) async fn accept(
    node: &LocalNode,
    security: &Security,
    tcp: TcpStream,
    address: SocketAddr,
    admit: impl FnOnce(&PeerInfo) -> Result<(), Refusal>,
) -> Result<Agreed, HandshakeError> {
    let mut stream = match &security.tls {
        None => Stream::Tcp(tcp),
        Some(tls) => Stream::Tls(Box::new(tls.accept(tcp).await.map_err(HandshakeError::Tls)?)),
    };
    let theirs_bytes = receive(&mut stream, Step::DialerHello).await?;
    let theirs = Hello::decode(&theirs_bytes)?;
    let mine = node.hello(security, theirs.from)?;
    let mine_bytes = mine.encode();
    // Also when the two do not fit: the dialer is to see why.
    send(&mut stream, Step::AcceptorHello, &mine_bytes).await?;
    let version = hello::agree(&theirs, &mine, &mine)?;
    let exporter = check_channel(&stream, security, theirs.from)?;
    let transcript = Transcript {
        dialer: &theirs_bytes,
        acceptor: &mine_bytes,
        version,
        tls_exporter: exporter.as_ref().map(<[u8; 32]>::as_slice),
    };
    let proof = receive(&mut stream, Step::DialerProof).await?;
    if let Err(error) = verify(security, Role::Dialer, &transcript, &proof) {
        refuse(&mut stream, Refusal::new(RefusalKind::Proof, "")).await;
        return Err(error);
    }
    let peer = peer(&theirs, version, address);
    if let Err(refusal) = admit(&peer) {
        let error = match refusal.kind {
            RefusalKind::NotAdmitted => HandshakeError::NotAdmitted(peer.node_id),
            _ => HandshakeError::Refused(refusal.clone()),
        };
        refuse(&mut stream, refusal).await;
        return Err(error);
    }
    send(&mut stream, Step::AcceptorProof, &prove(security, Role::Acceptor, &transcript)).await?;
    Ok(Agreed { stream, peer })
}

impl LocalNode {
    fn hello(&self, security: &Security, to: u64) -> Result<Hello, HandshakeError> {
        let mut nonce = [0; NONCE_BYTES];
        ring::rand::SystemRandom::new().fill(&mut nonce).map_err(|_| HandshakeError::Random)?;
        Ok(Hello {
            method: security.method(),
            versions: self.versions,
            cluster_id: self.cluster_id,
            from: self.node_id,
            to,
            nonce,
            boot_id: Arc::clone(&self.boot_id),
        })
    }
}

fn peer(theirs: &Hello, version: u16, address: SocketAddr) -> Arc<PeerInfo> {
    Arc::new(PeerInfo {
        node_id: theirs.from,
        boot_id: Arc::clone(&theirs.boot_id),
        cluster_id: theirs.cluster_id,
        version,
        address,
    })
}

/// The certificate belongs to the node that said hello; what binds proofs to this TLS session.
fn check_channel(
    stream: &Stream,
    security: &Security,
    node_id: u64,
) -> Result<Option<[u8; 32]>, HandshakeError> {
    let (Stream::Tls(stream), Some(tls)) = (stream, &security.tls) else { return Ok(None) };
    tls.check_node(stream, node_id).map_err(|source| HandshakeError::Certificate { node_id, source })?;
    let exporter =
        tls::exporter(stream).map_err(|error| HandshakeError::Tls(std::io::Error::other(error)))?;
    Ok(Some(exporter))
}

/// Empty without a secret: certificates have proved it.
fn prove(security: &Security, role: Role, transcript: &Transcript<'_>) -> Bytes {
    let proof = security.secret.as_ref().map(|secret| secret.prove(role, transcript));
    proof.map_or_else(Bytes::new, |proof| Bytes::copy_from_slice(&proof))
}

fn verify(
    security: &Security,
    role: Role,
    transcript: &Transcript<'_>,
    proof: &[u8],
) -> Result<(), HandshakeError> {
    let right = match &security.secret {
        Some(secret) => secret.verify(role, transcript, proof),
        None => proof.is_empty(),
    };
    if right { Ok(()) } else { Err(HandshakeError::Proof) }
}

async fn send(stream: &mut Stream, step: Step, payload: &[u8]) -> Result<(), HandshakeError> {
    let mut out = frame::header(control::HANDSHAKE, step as u64, payload.len()).to_vec();
    out.extend_from_slice(payload);
    stream.write_all(&out).await?;
    stream.flush().await?;
    Ok(())
}

/// Best effort: the other side learns why, if it still listens.
async fn refuse(stream: &mut Stream, refusal: Refusal) {
    let mut out = bytes::BytesMut::new();
    Control::Refusal(refusal).write(0, &mut out);
    if stream.write_all(&out).await.is_ok() {
        let _ = stream.shutdown().await;
    }
}

/// Reads exactly one frame, so that what follows the handshake is still in the socket.
async fn receive(stream: &mut Stream, step: Step) -> Result<Bytes, HandshakeError> {
    let mut header = [0; HEADER_BYTES];
    stream.read_exact(&mut header).await?;
    let (length, rest) = header.split_first_chunk::<4>().ok_or(HandshakeError::Malformed)?;
    let (service, request_id) = rest.split_first_chunk::<2>().ok_or(HandshakeError::Malformed)?;
    let service = u16::from_be_bytes(*service);
    let request_id = request_id.first_chunk().map_or(0, |id| u64::from_be_bytes(*id));
    let length = u32::from_be_bytes(*length) as usize;
    let bytes = (length + 4).checked_sub(HEADER_BYTES).ok_or(HandshakeError::Malformed)?;
    if bytes > control::PAYLOAD_BYTES_MAX {
        return Err(HandshakeError::Malformed);
    }
    let mut payload = vec![0; bytes];
    stream.read_exact(&mut payload).await?;
    let frame = Frame { service, request_id, payload: payload.into() };
    if service == control::REFUSAL {
        let Ok(Control::Refusal(refusal)) = Control::read(&frame) else {
            return Err(HandshakeError::Malformed);
        };
        return Err(HandshakeError::Refused(refusal));
    }
    if service != control::HANDSHAKE || request_id != step as u64 {
        return Err(HandshakeError::Malformed);
    }
    Ok(frame.payload)
}

#[cfg(test)]
#[path = "handshake_test.rs"]
mod tests;
