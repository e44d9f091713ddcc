//! A client that publishes a thousand messages a second and, when it is thrown out, comes back at once, on as many connections as a test says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::client::{Client, Options, PATIENCE};
use crate::wire::Packet;

const PER_SECOND: u64 = 1_000;
const TICK: Duration = Duration::from_millis(5);
/// Unacknowledged QoS 1 messages: less than the broker allows.
const IN_FLIGHT_MAX: usize = 20;
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// What one connection loop was told.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Told {
    /// Reasons of CONNACK packets that refused, without repetitions.
    pub refused: Vec<u8>,
    /// Reasons of DISCONNECT packets, without repetitions.
    pub disconnected: Vec<u8>,
    /// Times it was let in.
    pub connected: u64,
}

/// The running loops.
#[derive(Debug)]
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    loops: Vec<JoinHandle<Told>>,
}

impl Flood {
    /// One loop for each of these; they publish to `topic`, with QoS 0 and 1.
    #[must_use]
    pub fn start(address: SocketAddr, all: &[Options], topic: &str) -> Self {
        let (stop, sent, refused) =
            (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
        let loops = all
            .iter()
            .map(|options| {
                let (options, topic) = (options.clone(), topic.to_owned());
                let (stop, sent, refused) = (stop.clone(), sent.clone(), refused.clone());
                std::thread::spawn(move || {
                    let mut told = Told::default();
                    while !stop.load(Ordering::Relaxed) {
                        if !turn(address, &options, &topic, (&stop, &sent), &mut told) {
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        std::thread::sleep(PAUSE);
                    }
                    told
                })
            })
            .collect();
        Self { stop, sent, refused, loops }
    }

    /// Messages that were written to sockets.
    #[must_use]
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Attempts that did not get in.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Ends all loops; what each was told.
    ///
    /// # Panics
    /// When one of them did.
    #[must_use]
    pub fn stop(self) -> Vec<Told> {
        self.stop.store(true, Ordering::Relaxed);
        self.loops.into_iter().map(|one| one.join().expect("no panic")).collect()
    }
}

fn note(reasons: &mut Vec<u8>, reason: u8) {
    if reasons.last() != Some(&reason) {
        reasons.push(reason);
    }
}

/// Connects and publishes until the connection ends; false: it was not let in.
fn turn(
    address: SocketAddr,
    options: &Options,
    topic: &str,
    (stop, sent): (&AtomicBool, &AtomicU64),
    told: &mut Told,
) -> bool {
    let Ok(mut client) = Client::try_open(address, options.v5, PATIENCE) else { return false };
    client.send(&options.bytes());
    let Ok(Some(connack)) = client.poll(PATIENCE) else { return false };
    if connack.reason() != 0 {
        note(&mut told.refused, connack.reason());
        return false;
    }
    told.connected += 1;
    let (began, mut written, mut in_flight) = (Instant::now(), 0, 0_usize);
    while !stop.load(Ordering::Relaxed) {
        let due = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX) * PER_SECOND / 1_000;
        while written < due {
            let qos = u8::from(written % 10 == 0 && in_flight < IN_FLIGHT_MAX);
            in_flight += usize::from(qos);
            let id = if qos > 0 { client.packet_id() } else { 0 };
            let bytes = client.publish_bytes(topic, b"x", qos << 1, id, &[]);
            client.send(&bytes);
            written += 1;
            sent.fetch_add(1, Ordering::Relaxed);
        }
        match client.poll(TICK) {
            Ok(None) => {}
            Ok(Some(packet)) => hear(&packet, &mut in_flight, told),
            Err(()) => return true,
        }
    }
    true
}

fn hear(packet: &Packet, in_flight: &mut usize, told: &mut Told) {
    match packet.kind() {
        4 => *in_flight = in_flight.saturating_sub(1),
        14 => note(&mut told.disconnected, packet.reason()),
        _ => {}
    }
}
