//! Who waits for which node, with another node's tables behind a network that loses what a test wants it to lose.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use bytes::Bytes;
use gateway::link::LinkId;
use session::id::Key;
use session::lifecycle::SubscriptionOptions;
use session::message::{Message, QoS};
use session::topic::TopicFilter;
use storage::{GroupId, StorageError};

use super::super::tables::Tables;
use super::super::wire::RouteCall;
use super::super::withheld::Withheld;
use super::*;
use crate::cluster::{CallFuture, NotAnswered};
use crate::route::{PartyId, Router, Subscriber};

#[derive(Debug, Default)]
struct Port(Mutex<Vec<u64>>);

impl CompletionPort for Port {
    fn complete(&self, batch: Vec<(u64, Result<Reply, Arc<StorageError>>)>) {
        self.0.lock().extend(batch.into_iter().map(|(token, _)| token));
    }
}

fn router() -> Arc<Router> {
    let metrics = crate::metrics::Metrics::new(1, 1);
    let authority = crate::auth::Authority::open(&crate::config::Config::default(), metrics.control());
    Arc::new(Router::new(Arc::new(authority.expect("the defaults name no file"))))
}

type Heard = (u8, Vec<(GroupId, u64)>);

/// What is changed while everything is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum During {
    /// "late" is subscribed to; no change is told behind that.
    Once,
    /// It is subscribed to, given up, and subscribed to again behind more than fits into one call.
    Churn,
    /// Much more is subscribed to than fits into one call.
    Flood,
}

/// Times that connections were closed since messages may be missing.
#[derive(Debug, Default)]
struct Closings(AtomicU64);

impl Missed for Closings {
    fn missed(&self, node: u64) {
        assert_eq!(node, 2);
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Node 2 as node 1 calls it.
#[derive(Debug)]
struct Other {
    tables: Tables,
    withheld: Arc<Withheld>,
    router: Arc<Router>,
    lose_answers: AtomicBool,
    lose_calls: AtomicBool,
    /// What happens when Begin arrives, to this router.
    late: Option<(During, Arc<Router>)>,
    /// It had a valid table without "late" after a call.
    missed_late: AtomicBool,
    /// Times that Begin arrived.
    begins: AtomicU64,
    /// It takes Begin and nothing else.
    only_begins: AtomicBool,
    /// It takes its time for each part of everything.
    is_slow: AtomicBool,
    /// The newest format that it reads.
    reads: AtomicU8,
    /// Formats and stored changes that it heard of.
    heard: Mutex<Vec<Heard>>,
}

impl PeerCalls for Other {
    fn nodes(&self) -> Vec<u64> {
        vec![2]
    }

    fn reachable(&self) -> Vec<u64> {
        vec![2]
    }

    fn call(&self, node_id: u64, _service: u16, payload: Bytes, _deadline: Instant) -> CallFuture {
        let lost = Err(NotAnswered::Unknown { node_id, reason: String::new() });
        let mut answer = lost.clone();
        let is_chunk = matches!(RouteCall::read(&payload), Ok(RouteCall::Chunk { .. }));
        if !self.lose_calls.load(Ordering::SeqCst) {
            let read = RouteCall::read(&payload).expect("legal");
            if payload[0] > self.reads.load(Ordering::SeqCst) {
                let reason = "an unknown format".to_owned();
                let refused = Err(NotAnswered::Refused { node_id, malformed: true, reason });
                return Box::pin(std::future::ready(refused));
            }
            if let RouteCall::Delta { stored, .. } = &read {
                self.heard.lock().push((payload[0], stored.clone()));
            }
            match &read {
                RouteCall::Begin { .. } => {
                    self.begins.fetch_add(1, Ordering::SeqCst);
                    if let Some((during, router)) = &self.late {
                        during.happen(router);
                    }
                }
                RouteCall::Delta { .. } if matches!(self.late, Some((During::Once, _))) => {
                    return Box::pin(std::future::pending());
                }
                _ if self.only_begins.load(Ordering::SeqCst) => return Box::pin(std::future::ready(lost)),
                _ => {}
            }
            let (told, mark) = self.tables.take(1, &"boot".into(), read);
            answer = Ok(wire::told(payload[0], told, mark));
            if self.tables.are_known(&[1]) && !self.sends("late") {
                self.missed_late.store(true, Ordering::SeqCst);
            }
        }
        if self.lose_answers.load(Ordering::SeqCst) {
            answer = lost;
        }
        let pause = if is_chunk && self.is_slow.load(Ordering::SeqCst) { CHUNK } else { Duration::ZERO };
        Box::pin(async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            answer
        })
    }
}

impl Other {
    /// Whether it sends messages on `topic` to node 1.
    fn sends(&self, topic: &str) -> bool {
        let message = Message::new(topic, &[], b"x");
        !self.router.route(&message, PartyId::default(), false, None).nodes.is_empty()
    }
}

impl During {
    fn happen(self, router: &Router) {
        if self == Self::Flood {
            return flood(router);
        }
        let late = subscribe(router, "late", 999_999);
        if self == Self::Churn {
            router.forget(&late);
            (0..10_000).for_each(|at| drop(subscribe(router, &format!("other/{at}"), 1_000_000 + at)));
            subscribe(router, "late", 999_999);
        }
    }
}

/// Makes a subscription of a session without inbox.
fn subscribe(router: &Router, topic: &str, client: u64) -> Arc<Subscriber> {
    let client_id = client.to_string().into();
    let subscriber = router.open(&Key { namespace: "n".into(), client_id }, None, None);
    router.attach(&subscriber, LinkId { worker: 0, slot: 1, serial: 1 });
    let qos = QoS::AtMostOnce;
    let options = SubscriptionOptions { qos, no_local: false, retain_as_published: false, identifier: 0 };
    let filter = TopicFilter::parse(topic).expect("a valid filter");
    router.subscribe(&subscriber, &[(filter, options)]);
    subscriber
}

/// How long a slow node takes for a part of everything.
const CHUNK: Duration = Duration::from_millis(500);
/// More than as many parts as it takes in while a shared subscription waits.
const PARTS: u64 = 12;

fn flood(router: &Router) {
    let long = "x".repeat(PAGE_BYTES_MAX / 2);
    (0..PARTS).for_each(|at| drop(subscribe(router, &format!("{at}/{long}"), 2_000_000 + at)));
}

struct Pair {
    other: Arc<Other>,
    here: Arc<Router>,
    confirmations: Arc<Confirmations>,
    port: Arc<Port>,
    closings: Arc<Closings>,
    running: tokio::task::JoinHandle<()>,
}

impl Pair {
    fn new() -> Self {
        Self::with(None, true)
    }

    /// `is_reached`: node 2 can call node 1.
    fn with(during: Option<During>, is_reached: bool) -> Self {
        let (here, there) = (router(), router());
        let clock = Arc::new(NodeClock::default());
        let withheld = Arc::new(Withheld::new(clock.clone()));
        let tables = Tables::new(there.clone(), clock.clone(), withheld.clone(), false);
        tables.set_peers(vec![1], if is_reached { &[1] } else { &[] });
        let other = Arc::new(Other {
            tables,
            withheld,
            router: there,
            lose_answers: AtomicBool::new(false),
            lose_calls: AtomicBool::new(false),
            late: during.map(|during| (during, here.clone())),
            missed_late: AtomicBool::new(false),
            begins: AtomicU64::new(0),
            only_begins: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            reads: AtomicU8::new(wire::ROUTES_NEWEST),
            heard: Mutex::default(),
        });
        let (confirmations, closings) = (Arc::<Confirmations>::default(), Arc::<Closings>::default());
        let announcer = Announcer {
            node: 2,
            peers: other.clone(),
            clock,
            announced: here.announce(),
            confirmations: confirmations.clone(),
            rounds: 0,
            telling_since: None,
            format: wire::ROUTES_NEWEST,
            missed: closings.clone(),
            withheld: NOTHING,
        };
        confirmations.set(2, Some(Belief::Doubted(0)));
        let running = tokio::spawn(announcer.run());
        Self { other, here, confirmations, port: Arc::default(), closings, running }
    }

    /// Subscribes here and asks for confirmation under `token`.
    fn subscribe(&self, topic: &str, token: u64) {
        subscribe(&self.here, topic, token);
        let has_share = topic.starts_with("$share/");
        self.confirmations.wait(self.here.announced(), has_share, self.port.clone(), token);
    }

    fn closings(&self) -> u64 {
        self.closings.0.load(Ordering::SeqCst)
    }

    async fn known(&self) {
        until("the table is known", || self.other.tables.are_known(&[1])).await;
    }

    /// Whether the other node sends messages on `topic` here.
    fn sends(&self, topic: &str) -> bool {
        self.other.sends(topic)
    }

    async fn confirmed(&self, token: u64) {
        until("the subscription is confirmed", || self.port.0.lock().contains(&token)).await;
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        self.running.abort();
    }
}

async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// P7: confirmed is what the other node has; many at once as well as one by one.
#[tokio::test]
async fn p7_a_confirmed_subscription_is_known_there() {
    let pair = Pair::new();
    pair.known().await;
    for token in 0..200 {
        let topic = format!("t/{token}");
        pair.subscribe(&topic, token);
        pair.confirmed(token).await;
        assert!(pair.sends(&topic));
    }
    (200..3_000).for_each(|token| pair.subscribe(&format!("t/{token}"), token));
    pair.confirmed(2_999).await;
    assert!((0..3_000).all(|token| pair.sends(&format!("t/{token}"))));
    assert!(!pair.sends("t/none"));
}

/// P7: when answers are lost, a subscription is confirmed only once the other node has it, or believes no table any more.
#[tokio::test]
async fn p7_a_lost_answer_confirms_nothing() {
    let pair = Pair::new();
    pair.known().await;
    pair.other.lose_calls.store(true, Ordering::SeqCst);
    pair.subscribe("a", 1);
    until("a call was lost", || {
        pair.confirmations.state.lock().beliefs.values().any(|belief| matches!(belief, Belief::Doubted(_)))
    })
    .await;
    assert!(pair.port.0.lock().is_empty() && !pair.sends("a"));
    pair.other.lose_calls.store(false, Ordering::SeqCst);
    pair.confirmed(1).await;
    assert!(pair.sends("a"), "it has the table, or sends everything");
    pair.known().await;
    assert!(pair.sends("a") && !pair.sends("b"));
}

/// P7, P9: a node that stays silent is waited for until it cannot believe its table any more, and no longer.
#[tokio::test]
async fn p7_a_silent_node_is_waited_for_until_its_lease_is_over() {
    let pair = Pair::new();
    pair.known().await;
    pair.other.lose_calls.store(true, Ordering::SeqCst);
    pair.other.lose_answers.store(true, Ordering::SeqCst);
    pair.subscribe("a", 1);
    pair.confirmed(1).await;
    pair.other.tables.look_again();
    assert!(pair.sends("a"), "it sends everything by then");
    pair.subscribe("b", 2);
    pair.confirmed(2).await;
}

/// P7: a subscription that was confirmed at once, because the node sends everything while it is told, is in the table when that becomes
/// valid.
#[tokio::test]
async fn p7_a_subscription_made_while_everything_is_told_is_in_the_table() {
    let pair = Pair::with(Some(During::Once), true);
    pair.known().await;
    assert!(pair.sends("late"));
    assert!(!pair.sends("other"));
}

/// P7: so is one that was made, given up and made again meanwhile, whatever else changed: it is not missing for a moment.
#[tokio::test]
async fn p7_a_subscription_made_anew_while_everything_is_told_is_never_missing() {
    let pair = Pair::with(Some(During::Churn), true);
    pair.known().await;
    pair.subscribe("last", 1);
    pair.confirmed(1).await;
    assert!(pair.sends("late") && pair.sends("last") && pair.sends("other/9999") && !pair.sends("none"));
    assert!(!pair.other.missed_late.load(Ordering::SeqCst));
}

/// P7: a node that hears this one and cannot call it yet would give its messages to nobody here: a subscription waits until it can, and
/// it sends everything from then on.
#[tokio::test]
async fn p7_a_subscription_waits_for_a_node_that_cannot_call_yet() {
    let pair = Pair::with(None, false);
    pair.subscribe("a", 1);
    until("it says so", || pair.other.begins.load(Ordering::SeqCst) > 1).await;
    assert!(pair.port.0.lock().is_empty() && !pair.sends("a"));
    pair.other.tables.set_reachable(&[1]);
    assert!(pair.sends("a") && pair.sends("b"), "before it is told anything");
    pair.confirmed(1).await;
    pair.known().await;
    assert!(pair.sends("a") && !pair.sends("b"));
}

/// P7, P9: one that cannot call for long is waited for once, not for each subscription; when it can, it sends everything until it has the
/// table.
#[tokio::test]
async fn p9_a_node_that_never_calls_is_waited_for_once() {
    let pair = Pair::with(None, false);
    pair.subscribe("t/0", 0);
    pair.confirmed(0).await;
    let refused = pair.other.begins.load(Ordering::SeqCst);
    for token in 1..100 {
        pair.subscribe(&format!("t/{token}"), token);
        assert!(pair.port.0.lock().contains(&token), "at once");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(pair.other.begins.load(Ordering::SeqCst) > refused, "it was asked meanwhile");
    pair.other.tables.set_reachable(&[1]);
    assert!(pair.sends("t/0") && pair.sends("none"));
    pair.known().await;
    assert!((0..100).all(|token| pair.sends(&format!("t/{token}"))) && !pair.sends("none"));
}

/// P7: a node that sends everything names no share that it does not know: a shared subscription waits until it does, others do not.
#[tokio::test]
async fn p7_a_shared_subscription_waits_for_a_node_that_sends_everything() {
    let pair = Pair::new();
    pair.known().await;
    pair.subscribe("base", 0);
    pair.confirmed(0).await;
    pair.other.only_begins.store(true, Ordering::SeqCst);
    let everything = || pair.confirmations.state.lock().beliefs.get(&2) == Some(&Belief::Everything);
    until("it is told everything anew", everything).await;
    pair.subscribe("$share/g/s", 1);
    pair.subscribe("a", 2);
    pair.confirmed(2).await;
    assert!(!pair.port.0.lock().contains(&1));
    pair.other.only_begins.store(false, Ordering::SeqCst);
    pair.confirmed(1).await;
    pair.known().await;
    assert!(pair.sends("s"));
}

/// P7, P9: it does not wait for ever for a node that comes to know nothing.
#[tokio::test]
async fn p9_a_shared_subscription_waits_for_a_bounded_time() {
    let pair = Pair::new();
    pair.known().await;
    pair.other.only_begins.store(true, Ordering::SeqCst);
    pair.subscribe("$share/g/s", 1);
    pair.confirmed(1).await;
}

/// P7, P9: nor while it is being told so much that it takes long, whether that was there at the beginning or came meanwhile; others do
/// not wait for that at all.
#[tokio::test]
async fn p9_no_subscription_waits_for_a_long_telling() {
    let waits = |during: Option<During>| async move {
        let pair = Pair::with(during, true);
        pair.other.is_slow.store(true, Ordering::SeqCst);
        if during.is_none() {
            flood(&pair.here);
        }
        until("it is being told", || pair.other.begins.load(Ordering::SeqCst) > 0).await;
        let began = Instant::now();
        pair.subscribe("$share/g/s", 1);
        pair.subscribe("a", 2);
        pair.confirmed(2).await;
        assert!(began.elapsed() < CHUNK, "it sends everything");
        pair.confirmed(1).await;
        let waited = began.elapsed();
        assert!(waited >= SHARES_WAIT - CALL && waited <= SHARES_WAIT + CALL, "{waited:?}");
        assert!(!pair.other.tables.are_known(&[1]));
        pair.known().await;
        assert!(began.elapsed() > SHARES_WAIT + CALL, "it took long");
        assert!(pair.sends("s") && pair.sends("a") && !pair.sends("none"));
    };
    tokio::join!(waits(None), waits(Some(During::Flood)));
}

/// P7: a SUBACK of a durable session waits until the other node was told how far it has to follow the group.
#[tokio::test]
async fn p7_a_stored_subscription_is_told_before_it_is_confirmed() {
    let pair = Pair::new();
    pair.known().await;
    assert!(pair.other.tables.is_certain());
    let number = pair.here.stored_changed(GroupId(3), 77);
    pair.confirmations.wait(number, false, pair.port.clone(), 1);
    pair.confirmed(1).await;
    assert!(pair.other.heard.lock().contains(&(wire::ROUTES_NEWEST, vec![(GroupId(3), 77)])));
}

/// DESIGN §8: a node of the version before is told what it can read, and a SUBACK does not wait for the rest for ever.
#[tokio::test]
async fn a_node_of_the_version_before_is_told_in_its_format() {
    let pair = Pair::new();
    pair.other.reads.store(wire::ROUTES_OLD, Ordering::SeqCst);
    pair.known().await;
    let number = pair.here.stored_changed(GroupId(3), 77);
    pair.confirmations.wait(number, false, pair.port.clone(), 1);
    pair.subscribe("a", 2);
    pair.confirmed(1).await;
    pair.confirmed(2).await;
    assert!(pair.sends("a") && !pair.sends("b"));
    let heard = pair.other.heard.lock().clone();
    assert!(heard.iter().all(|(_, stored)| stored.is_empty()), "{heard:?}");
}

/// P7: connections that may have missed messages are closed once for each time that another node kept some from this one, as soon as it
/// can be heard again: after its table was dropped as well as when its queue gave messages up.
#[tokio::test]
async fn p7_a_node_learns_once_that_messages_passed_it_by() {
    let pair = Pair::new();
    pair.subscribe("a", 1);
    pair.known().await;
    until("it gets nothing any more", || {
        pair.other.tables.set_reachable(&[]);
        !pair.sends("a")
    })
    .await;
    let begins = pair.other.begins.load(Ordering::SeqCst);
    until("it is not told before it can be reached", || pair.other.begins.load(Ordering::SeqCst) > begins)
        .await;
    assert_eq!(pair.closings(), 0);
    let back = Instant::now();
    pair.other.tables.set_reachable(&[1]);
    until("it learns of it", || pair.closings() > 0).await;
    assert!(back.elapsed() < Duration::from_secs(1), "without a message: {:?}", back.elapsed());
    pair.known().await;
    let heard = |pair: &Pair| pair.other.heard.lock().len();
    let before = heard(&pair);
    until("it confirms its table", || heard(&pair) > before + 1).await;
    assert_eq!(pair.closings(), 1, "once");
    let lost = Instant::now();
    pair.other.withheld.note(1);
    until("it learns of the next time", || pair.closings() > 1).await;
    assert!(lost.elapsed() < Duration::from_secs(1), "its table is good: {:?}", lost.elapsed());
    assert!(pair.other.begins.load(Ordering::SeqCst) > 0 && pair.closings() == 2);
}

/// P7: a link that is broken for less than a second, and a subscription that nobody knew of, close nothing.
#[tokio::test]
async fn p7_nothing_is_closed_when_nothing_was_withheld() {
    let pair = Pair::new();
    pair.known().await;
    for round in 0..5 {
        pair.other.tables.set_reachable(&[]);
        pair.subscribe(&format!("t/{round}"), round);
        tokio::time::sleep(Duration::from_millis(50)).await;
        pair.other.tables.set_reachable(&[1]);
        pair.confirmed(round).await;
    }
    pair.other.lose_answers.store(true, Ordering::SeqCst);
    tokio::time::sleep(BEAT * 2).await;
    pair.other.lose_answers.store(false, Ordering::SeqCst);
    pair.subscribe("last", 9);
    pair.confirmed(9).await;
    pair.known().await;
    assert_eq!(pair.closings(), 0);
}

/// P7: each mark counts once, none says nothing, and a boot that withheld nothing yet closes nobody.
#[tokio::test]
async fn p7_a_mark_counts_once() {
    let (here, closings) = (router(), Arc::<Closings>::default());
    let mut announcer = Announcer {
        node: 2,
        peers: Arc::new(crate::cluster::NoPeers),
        clock: Arc::default(),
        announced: here.announce(),
        confirmations: Arc::default(),
        rounds: 0,
        telling_since: None,
        format: wire::ROUTES_NEWEST,
        missed: closings.clone(),
        withheld: NOTHING,
    };
    for (at, (answer, mark, total)) in [
        (wire::DONE, NOTHING, 0),
        (wire::DONE, 5, 1),
        (wire::TELL_ALL, 5, 1),
        (wire::NOT_REACHED, 6, 1),
        (wire::TELL_ALL, 7, 2),
        (wire::DONE, NOTHING, 2),
        (wire::DONE, 9, 3),
    ]
    .into_iter()
    .enumerate()
    {
        let told = announcer.told(Ok(wire::told(wire::ROUTES_NEWEST, answer, mark)));
        assert_eq!(told.is_err(), answer == wire::NOT_REACHED);
        assert_eq!(closings.0.load(Ordering::SeqCst), total, "answer {at}");
    }
    assert!(announcer.told(Ok(wire::told(2, wire::DONE, 11))).is_ok());
    assert!(announcer.told(Ok(Bytes::from_static(&[wire::DONE, 1]))).is_err());
    assert_eq!(closings.0.load(Ordering::SeqCst), 3);
}

/// DESIGN §8: a node of a version before tells no mark; its answers count as before. One that refuses for another reason is asked again in
/// the newest format.
#[tokio::test]
async fn a_node_of_the_version_before_tells_no_mark() {
    for reads in wire::ROUTES_OLD..wire::ROUTES_NEWEST {
        let pair = Pair::new();
        pair.other.reads.store(reads, Ordering::SeqCst);
        pair.known().await;
        pair.other.withheld.note(1);
        let number = pair.here.stored_changed(GroupId(3), 77);
        pair.confirmations.wait(number, false, pair.port.clone(), 1);
        pair.confirmed(1).await;
        assert!(pair.other.heard.lock().iter().all(|(format, _)| *format == reads));
        assert_eq!(pair.closings(), 0);
    }
}
