//! What a node believes of others, and what its index does then.

use session::message::Message;

use super::*;
use crate::clock::ManualTime;
use crate::route::PartyId;

struct Here {
    tables: Tables,
    router: Arc<Router>,
    time: Arc<ManualTime>,
}

impl Here {
    fn new() -> Self {
        let metrics = crate::metrics::Metrics::new(1, 1);
        let authority = crate::auth::Authority::open(&crate::config::Config::default(), metrics.control());
        let router = Arc::new(Router::new(Arc::new(authority.expect("the defaults name no file"))));
        let time = ManualTime::at(1_000_000);
        let clock = Arc::new(NodeClock::new(time.clone()));
        let tables = Tables::new(router.clone(), clock.clone(), Arc::new(Withheld::new(clock)), false);
        tables.set_peers(vec![2], &[2]);
        Self { tables, router, time }
    }

    fn say(&self, call: RouteCall<'_>) -> u8 {
        self.tables.take(2, &"boot".into(), call).0
    }

    fn until(&self) -> Millis {
        Millis(1_000_000 + 3_000)
    }

    fn tell_all(&self, round: u64, through: u64, filters: &[&str]) -> [u8; 3] {
        [
            self.say(RouteCall::Begin { round }),
            self.say(RouteCall::Chunk { round, filters: filters.to_vec() }),
            self.say(RouteCall::Finish { round, through, until: self.until() }),
        ]
    }

    /// Whether node 2 gets messages on `topic`.
    fn sends(&self, topic: &str) -> bool {
        let message = Message::new(topic, &[], b"x");
        let route = self.router.route(&message, PartyId::default(), false, None);
        !route.nodes.is_empty()
    }
}

/// P7: a node that can be reached gets everything until it told all it has.
#[test]
fn p7_a_node_that_is_not_known_gets_everything() {
    let here = Here::new();
    assert!(here.sends("a"));
    assert_eq!(here.say(RouteCall::Begin { round: 1 }), DONE);
    assert_eq!(here.say(RouteCall::Chunk { round: 1, filters: vec!["a"] }), DONE);
    assert!(here.sends("b"), "not everything was told");
    assert_eq!(here.say(RouteCall::Finish { round: 1, through: 9, until: here.until() }), DONE);
    assert!(here.sends("a"));
    assert!(!here.sends("b"));
    assert!(here.tables.are_known(&[2]));
    here.time.advance_ms(1_000);
    here.tables.set_reachable(&[]);
    assert!(!here.sends("a"), "out of reach");
    assert_eq!(here.say(RouteCall::Begin { round: 2 }), NOT_REACHED);
    here.tables.set_reachable(&[2]);
    assert!(here.sends("b"), "back, and not known");
}

/// P7: changes follow each other without a gap; one that does not fit makes the node tell everything, and get everything till then.
#[test]
fn p7_a_gap_in_the_changes_is_noticed() {
    let here = Here::new();
    let until = here.until();
    assert_eq!(here.tell_all(1, 4, &["a"]), [DONE; 3]);
    let delta = |base, through, changes| {
        here.say(RouteCall::Delta { base, through, until, changes, stored: Vec::new() })
    };
    assert_eq!(delta(4, 6, vec![("b", true), ("a", false)]), DONE);
    assert!(here.sends("b") && !here.sends("a"));
    assert_eq!(delta(4, 7, vec![("b", true), ("a", false), ("c", true)]), DONE, "its answer was lost");
    assert!(here.sends("c") && !here.sends("a"));
    assert_eq!(delta(8, 9, vec![("d", true)]), TELL_ALL);
    assert!(here.sends("anything"));
    assert_eq!(delta(7, 9, vec![("d", true)]), TELL_ALL, "nothing is known any more");
    assert_eq!(here.tell_all(2, 9, &["c", "d"]), [DONE; 3]);
    assert!(here.sends("d") && !here.sends("b") && !here.sends("anything"));
}

/// P7: a table that nobody confirms is not believed.
#[test]
fn p7_a_table_is_good_for_its_lease() {
    let here = Here::new();
    here.tell_all(1, 1, &["a"]);
    assert!(!here.sends("b"));
    here.time.advance_ms(3_000);
    here.tables.set_reachable(&[2]);
    assert!(here.sends("b"));
    let late = RouteCall::Delta {
        base: 1,
        through: 1,
        until: Millis(2_000_000),
        changes: Vec::new(),
        stored: Vec::new(),
    };
    assert_eq!(here.say(late), TELL_ALL, "it may have told its subscribers without us");
}

/// A part of an earlier telling does not complete a later one.
#[test]
fn p10_parts_of_two_tellings_do_not_mix() {
    let here = Here::new();
    let until = here.until();
    here.say(RouteCall::Begin { round: 1 });
    here.say(RouteCall::Begin { round: 2 });
    assert_eq!(here.say(RouteCall::Finish { round: 1, through: 0, until }), TELL_ALL);
    assert!(here.sends("a"));
    assert_eq!(here.say(RouteCall::Chunk { round: 2, filters: vec!["a"] }), TELL_ALL);
    assert_eq!(here.say(RouteCall::Finish { round: 2, through: 0, until }), TELL_ALL);
}

/// P7: the table of a boot that ended is dropped when its successor speaks.
#[test]
fn p7_the_table_of_a_dead_boot_is_dropped() {
    let here = Here::new();
    here.tell_all(1, 5, &["old"]);
    let boot: Arc<str> = "next".into();
    let until = here.until();
    let change = RouteCall::Delta { base: 5, through: 5, until, changes: Vec::new(), stored: Vec::new() };
    assert_eq!(here.tables.take(2, &boot, change).0, TELL_ALL);
    here.tables.take(2, &boot, RouteCall::Begin { round: 1 });
    here.tables.take(2, &boot, RouteCall::Finish { round: 1, through: 0, until });
    assert!(!here.sends("old"));
}

/// P5, P7: a link that breaks and comes back costs no subscriber that stayed; another boot behind it does.
#[test]
fn p5_a_broken_link_leaves_the_table() {
    let here = Here::new();
    here.tell_all(1, 1, &["a"]);
    here.time.advance_ms(900);
    here.tables.set_reachable(&[]);
    assert!(here.sends("a") && !here.sends("b"), "what is sent waits for the link");
    here.tables.set_reachable(&[2]);
    here.time.advance_ms(900);
    here.tables.set_reachable(&[]);
    assert!(here.sends("a"), "it was back");
    let next: Arc<str> = "next".into();
    here.tables.take(2, &next, RouteCall::Begin { round: 1 });
    here.time.advance_ms(100);
    here.tables.set_reachable(&[]);
    assert!(!here.sends("a"));
}

/// P7: this node relies on its routing to inboxes only while every member's table is good: each vouches for what its subscribers were
/// told.
#[test]
fn p7_a_node_is_certain_while_all_tables_are_good() {
    let here = Here::new();
    assert!(!here.tables.is_certain(), "nothing was told yet");
    here.tell_all(1, 0, &[]);
    assert!(here.tables.is_certain());
    here.tables.set_peers(vec![2, 3], &[2]);
    assert!(!here.tables.is_certain(), "a member that cannot be reached may go on elsewhere");
    here.tables.set_peers(vec![2], &[2]);
    assert!(here.tables.is_certain());
    here.tables.distrust(2);
    assert!(!here.tables.is_certain() && here.sends("a"));
    here.tell_all(2, 0, &[]);
    assert!(here.tables.is_certain());
    here.time.advance_ms(3_000);
    assert!(!here.tables.is_certain(), "at the very moment its lease is over, whoever looks or not");
    here.tables.set_peers(Vec::new(), &[]);
    assert!(here.tables.is_certain(), "there is nobody else");
    let stranger = here.tables.take(9, &"boot".into(), RouteCall::Begin { round: 1 });
    assert!(stranger.0 == NOT_REACHED && !here.tables.is_certain(), "a member that is not known here yet");
}

/// P7: a node whose table was dropped has another mark, which it is told when it can be reached again, and not before; a link that comes
/// back in time leaves the mark.
#[test]
fn p7_messages_that_pass_a_node_by_are_noted() {
    let here = Here::new();
    let told = || here.tables.take(2, &"boot".into(), RouteCall::Begin { round: 1 });
    assert_eq!(told(), (DONE, NOTHING));
    here.time.advance_ms(900);
    here.tables.set_reachable(&[]);
    assert_eq!(told(), (DONE, NOTHING), "they wait for it");
    here.tables.set_reachable(&[2]);
    let mut last = NOTHING;
    for _ in 0..2 {
        here.time.advance_ms(LINGER_MS);
        here.tables.set_reachable(&[]);
        assert_eq!(told(), (NOT_REACHED, NOTHING));
        here.time.advance_ms(LINGER_MS);
        here.tables.set_reachable(&[]);
        here.tables.set_reachable(&[2]);
        let (answer, mark) = told();
        assert!(answer == DONE && mark != NOTHING && mark != last, "once each time");
        last = mark;
    }
    assert_eq!(here.tables.distrust(2), (TELL_ALL, last));
    here.tables.set_peers(Vec::new(), &[]);
    here.tables.set_peers(vec![2], &[2]);
    assert!(told().1 != last, "it was no member for a while");
}

/// P7: a start withholds nothing from nodes that are reached before clients are let in, nor from one that joins and is reached in time;
/// from the others it does.
#[test]
fn p7_a_node_that_is_not_reached_in_time_is_noted() {
    let here = Here::new();
    here.tables.set_peers(vec![2, 3, 4], &[2]);
    here.tables.set_peers(vec![2, 3, 4], &[2, 3]);
    let mark = |node| here.tables.withheld.mark(node);
    assert_eq!([2, 3, 4].map(mark), [NOTHING; 3]);
    here.tables.let_in();
    let first = mark(4);
    assert!(mark(2) == NOTHING && mark(3) == NOTHING && first != NOTHING);
    here.tables.set_peers(vec![2, 3, 4, 5, 6], &[2, 3]);
    here.time.advance_ms(LINGER_MS - 1);
    here.tables.set_peers(vec![2, 3, 4, 5, 6], &[2, 3, 5]);
    here.time.advance_ms(1);
    here.tables.set_peers(vec![2, 3, 4, 5, 6], &[2, 3, 5]);
    assert_eq!([2, 3, 5].map(mark), [NOTHING; 3]);
    assert!(mark(4) == first && mark(6) != NOTHING);
}
