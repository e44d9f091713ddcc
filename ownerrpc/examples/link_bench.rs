//! Measures Service 107 over the link on loopback: round trip with one call at a time, and calls per second with many.
//!
//! `cargo run --release -p ownerrpc --example link_bench -- [CALLS]`. Target: p50 of the round trip at most 100 us.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ownerrpc::link::{
    Clock, Endpoint, Listener, LocalNode, Options, PeerState, Peers, Security, SecuritySettings, Services,
    Unobserved, services,
};
use ownerrpc::server::Quiescing;
use ownerrpc::{Quiesce, QuiesceClient, QuiesceServer};
use session::id::{Key, Owner};

/// Callers of the second measurement.
const CALLERS: u64 = 64;
const WARM_UP: usize = 1_000;

#[derive(Debug, Default)]
struct Logical(AtomicU64);

impl Clock for Logical {
    fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn observe(&self, ms: u64) {
        self.0.fetch_max(ms, Ordering::Relaxed);
    }
}

/// Every owner stopped long ago: what is measured is the link.
struct Retired;

impl Quiesce for Retired {
    fn quiesce<'a>(&'a self, _owner: &'a Owner, _deadline: tokio::time::Instant) -> Quiescing<'a> {
        Box::pin(std::future::ready(Ok(())))
    }
}

fn owner(connection_id: u64) -> Owner {
    Owner {
        key: Key { namespace: Arc::from("main"), client_id: Arc::from("sensor-0123456789") },
        session_generation: 1,
        owner_generation: 7,
        node_id: 2,
        boot_id: Arc::from("00112233445566778899aabbccddeeff"),
        connection_id,
    }
}

fn endpoint(node_id: u64) -> Result<Arc<Endpoint>, Box<dyn std::error::Error>> {
    let settings =
        SecuritySettings { secret: Some(vec![7; 32]), trusted_network: true, ..SecuritySettings::default() };
    let node = LocalNode::new([1; 16], node_id, Arc::from(format!("boot-{node_id}")));
    let security = Security::new(&settings)?;
    let clock = Arc::new(Logical::default());
    Ok(Endpoint::new(node, security, Options::default(), clock, Arc::new(Unobserved))?)
}

fn deadline() -> tokio::time::Instant {
    tokio::time::Instant::now() + Duration::from_secs(5)
}

async fn one_at_a_time(client: &QuiesceClient, calls: usize) -> Result<(), Box<dyn std::error::Error>> {
    let mut latencies_ns = Vec::with_capacity(calls);
    for number in 0..WARM_UP + calls {
        let began = Instant::now();
        client.quiesce(&owner(number as u64 + 1), deadline()).await?;
        if number >= WARM_UP {
            latencies_ns.push(began.elapsed().as_nanos());
        }
    }
    latencies_ns.sort_unstable();
    let at = |share: f64| latencies_ns[((calls - 1) as f64 * share) as usize] as f64 / 1_000.0;
    println!("one call at a time: p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us", at(0.5), at(0.99), at(0.999));
    Ok(())
}

async fn side_by_side(client: &QuiesceClient, calls: usize) -> Result<(), Box<dyn std::error::Error>> {
    let each = calls as u64 / CALLERS;
    let began = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..CALLERS {
        let client = client.clone();
        callers.spawn(async move {
            for number in 0..each {
                client.quiesce(&owner(caller * each + number + 1), deadline()).await?;
            }
            Ok::<(), ownerrpc::QuiesceError>(())
        });
    }
    while let Some(outcome) = callers.join_next().await {
        outcome??;
    }
    let rate = (each * CALLERS) as f64 / began.elapsed().as_secs_f64();
    println!("{CALLERS} callers: {rate:.0} calls a second");
    Ok(())
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let calls =
        std::env::args().nth(1).map_or(Ok(50_000), |calls| calls.parse::<usize>())?.max(CALLERS as usize);
    let (one, two) = (endpoint(1)?, endpoint(2)?);
    let services =
        Services::default().with(services::QUIESCE, Arc::new(QuiesceServer::new(Arc::new(Retired))));
    let listener = Listener::bind(two, "127.0.0.1:0".parse()?, Arc::new(services)).await?;
    let peers = Arc::new(Peers::new(one));
    peers.set(2, &listener.address().to_string());
    if let Some(peer) = peers.get(2) {
        peer.wait_for(|state| matches!(state, PeerState::Up(_))).await;
    }
    let client = QuiesceClient::new(Arc::<Peers>::clone(&peers));
    one_at_a_time(&client, calls).await?;
    side_by_side(&client, calls).await?;
    peers.close(Duration::from_secs(1)).await;
    listener.close(Duration::from_secs(1)).await;
    Ok(())
}
