//! The driver by itself: a peer that says nothing, one that reads nothing, one that leaves.

use std::time::Duration;

use bytes::{BufMut, Bytes};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::*;
use crate::link::options::CALL_BYTES;
use crate::link::outbox::Queued;

const LIMIT: Duration = Duration::from_secs(20);
const TICK: Duration = Duration::from_millis(20);

#[derive(Debug)]
struct StandsStill;

impl Clock for StandsStill {
    fn now_ms(&self) -> u64 {
        1
    }

    fn observe(&self, _ms: u64) {}
}

/// Takes everything and says nothing.
struct Deaf;

impl Side for Deaf {
    fn control(&mut self, _request_id: u64, _control: Control) -> Result<(), Violation> {
        Ok(())
    }

    fn service(&mut self, _frame: Frame, _cx: &mut Context<'_>) -> Result<(), Violation> {
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Violation> {
        Ok(())
    }

    fn poll(&mut self, _cx: &mut Context<'_>) {}
}

async fn driver() -> (Driver<Deaf>, Arc<Outbox>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("bound");
    let (ours, theirs) = tokio::join!(TcpStream::connect(address), listener.accept());
    let outbox = Arc::new(Outbox::new(64 << 20));
    let limits = Arc::new(Limits::default().with(9_000, 32 << 20));
    let environment = Environment { clock: Arc::new(StandsStill), limits, tick: TICK };
    let stream = Stream::Tcp(ours.expect("connected"));
    (Driver::new(stream, Arc::clone(&outbox), Deaf, environment), outbox, theirs.expect("accepted").0)
}

fn control(control: &Control) -> BytesMut {
    let mut out = BytesMut::new();
    control.write(0, &mut out);
    out
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_dead() {
    let (driver, _outbox, _peer) = driver().await;
    let why = timeout(LIMIT, driver).await.expect("noticed");
    assert!(matches!(why, LinkDown::Silent(100)), "{why}");
}

/// P9: one that talks on but takes nothing of what waits for it does not hold that for ever.
#[tokio::test]
async fn a_peer_that_reads_nothing_is_dead() {
    let (driver, outbox, mut peer) = driver().await;
    // More than the kernel takes.
    let payload = Bytes::from(vec![0; 32 << 20]);
    let space = outbox.reserve(payload.len()).await.expect("room");
    assert_eq!(space.num_permits(), payload.len() + CALL_BYTES);
    outbox.push(Queued { service: 9_000, request_id: 1, budget_ms: None, payload }, space).expect("open");
    let talks = async {
        while peer.write_all(&control(&Control::Ping)).await.is_ok() {
            tokio::time::sleep(TICK / 4).await;
        }
    };
    let why = tokio::select! {
        why = timeout(LIMIT, driver) => why.expect("noticed"),
        () = talks => panic!("the connection is open"),
    };
    assert!(matches!(why, LinkDown::Stalled(100)), "{why}");
    assert!(outbox.reserve(1).await.is_err(), "nobody waits for space on it");
}

#[tokio::test]
async fn a_peer_that_says_goodbye_left() {
    for says_goodbye in [true, false] {
        let (driver, _outbox, mut peer) = driver().await;
        let mut last = control(&Control::Time(7));
        if says_goodbye {
            last.put_slice(&control(&Control::Goodbye));
        }
        peer.write_all(&last).await.expect("sent");
        drop(peer);
        let why = timeout(LIMIT, driver).await.expect("noticed");
        assert!(
            if says_goodbye { matches!(why, LinkDown::Left) } else { matches!(why, LinkDown::Eof) },
            "{why}"
        );
    }
}

/// What is queued when a link is finished arrives before its end, and the peer may end it in its own time.
#[tokio::test]
async fn a_finished_link_is_emptied_first() {
    use tokio::io::AsyncReadExt;
    let (driver, outbox, mut peer) = driver().await;
    outbox.control(0, &Control::Goodbye).expect("room");
    outbox.finish();
    let reads = async {
        let mut all = Vec::new();
        peer.read_to_end(&mut all).await.expect("a clean end");
        drop(peer);
        all
    };
    let (why, all) = timeout(LIMIT, async { tokio::join!(driver, reads) }).await.expect("bounded");
    assert!(matches!(why, LinkDown::Stopped), "{why}");
    assert_eq!(all, [control(&Control::Time(1)), control(&Control::Goodbye)].concat());
}
