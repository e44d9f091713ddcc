//! What an operator sees of a session that changes hands: never two owners, counts that are right (scenario 19).

use std::sync::atomic::{AtomicBool, Ordering};

use tests::client::PATIENCE;
use tests::{Client, Node, Options, eventually};

const TAKEOVERS: u32 = 100;

/// Owner generation and state of the only session, as the admin API shows it now.
fn shown(node: &Node) -> Option<(u64, String)> {
    let page: serde_json::Value =
        serde_json::from_str(&node.admin_get("/v1/sessions?prefix=x")).expect("JSON");
    let sessions = page["sessions"].as_array().expect("a page of sessions");
    assert!(sessions.len() <= 1, "one ClientID, {} sessions: {page}", sessions.len());
    let session = sessions.first()?;
    let generation = session["owner_generation"].as_u64().expect("an owner");
    Some((generation, session["state"].to_string().to_lowercase()))
}

/// Scenario 19 (P1): over 100 takeovers the session view shows one session whose owner only goes forward and is never gone, the number of
/// open connections is never above one, and in the end every connection was counted in and out once.
#[test]
fn a_hundred_takeovers_never_show_two_owners() {
    let node = Node::start();
    for options in [Options::v5("x").resume().expiry(600), Options::v3("x").resume()] {
        takeovers(&node, &options);
    }
}

fn takeovers(node: &Node, options: &Options) {
    let opened = node.metric("exactmq_connections_opened_total{protocol=\"tcp\"}");
    let closed = node.metric("exactmq_connections_closed_total{reason=\"abnormal\"}");
    let taken = node.metric("exactmq_takeover_seconds_count{outcome=\"done\"}");
    let done = AtomicBool::new(false);
    let mut holder = Client::connect(node.mqtt, options);
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let (mut last, mut looks) = (0, 0_u32);
            while !done.load(Ordering::Acquire) {
                let (generation, state) = shown(node).expect("the session is there");
                assert!(generation >= last, "the owner went back from {last} to {generation}");
                assert!(state.contains("active"), "{state}");
                last = generation;
                let open = node.metric("exactmq_connections{protocol=\"tcp\"}");
                assert!(open <= 1.0, "{open} connections of one ClientID");
                looks += 1;
            }
            looks
        });
        for _ in 0..TAKEOVERS {
            let next = Client::connect(node.mqtt, options);
            holder.until_closed(PATIENCE);
            holder = next;
        }
        done.store(true, Ordering::Release);
        assert!(watching.join().expect("no panic") > 0);
    });
    assert!(holder.is_alive());
    let since = |series: &str, before: f64| node.metric(series) - before;
    assert_eq!(
        since("exactmq_connections_opened_total{protocol=\"tcp\"}", opened),
        f64::from(TAKEOVERS) + 1.0
    );
    assert_eq!(since("exactmq_connections_closed_total{reason=\"abnormal\"}", closed), f64::from(TAKEOVERS));
    assert_eq!(since("exactmq_takeover_seconds_count{outcome=\"done\"}", taken), f64::from(TAKEOVERS));
    assert_eq!(node.metric("exactmq_connections{protocol=\"tcp\"}"), 1.0);
    holder.reset();
    eventually("no connection and an offline session", PATIENCE, || {
        let open = node.metric("exactmq_connections{protocol=\"tcp\"}");
        let (_, state) = shown(node)?;
        (open == 0.0 && state.contains("offline")).then_some(())
    });
}
