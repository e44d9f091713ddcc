//! Promises of the ACL: mosquitto's order of decision, and subscriptions that never see more than rules allow.

use super::acl::{Acl, Subscribing};
use super::filter::{covers, is_valid, matches, overlaps};
use super::*;
use crate::config::SubscribeRule;

fn grants_with(text: &str, user: Option<&str>, subscribe: SubscribeRule) -> Grants {
    let acl = Acl::parse(text).expect("valid rules");
    Grants {
        epoch: 1,
        user: user.map(Arc::from),
        rules: Some(acl.rules(user)),
        brought: None,
        is_partial: false,
        subscribe,
    }
}

fn grants(text: &str, user: Option<&str>) -> Grants {
    grants_with(text, user, SubscribeRule::Cover)
}

const RULES: &str = "\
# the anonymous section
topic read public/#
topic deny public/secret/#

user alice
topic home/alice/#
topic write log/alice
topic read a b/c
topic deny home/alice/private

user bob
topic read #

pattern write sensor/%c/data
pattern readwrite user/%u/#
pattern deny user/%u/locked
pattern read in-%c-x/y
";

/// The expected answers are those of mosquitto 2.0.11 with this file.
#[test]
fn rules_decide_as_mosquitto_does() {
    // (user, client id, topic, may publish, may read)
    let table = [
        (None, "c1", "public/a", false, true),
        (None, "c1", "public", false, true),
        (None, "c1", "public/secret/a", false, false),
        (None, "c1", "public/secret", false, false),
        (None, "c1", "home/alice/a", false, false),
        (None, "c1", "sensor/c1/data", true, false),
        (None, "c1", "sensor/c2/data", false, false),
        (None, "c1", "user//x", false, false),
        (Some("alice"), "c1", "home/alice/a/b", true, true),
        (Some("alice"), "c1", "home/alice/private", false, false),
        (Some("alice"), "c1", "home/bob/a", false, false),
        (Some("alice"), "c1", "log/alice", true, false),
        (Some("alice"), "c1", "a b/c", false, true),
        (Some("alice"), "c1", "public/a", false, false),
        (Some("alice"), "c1", "user/alice/x", true, true),
        (Some("alice"), "c1", "user/alice/locked", false, false),
        (Some("alice"), "c1", "user/bob/x", false, false),
        // bob's own grant stands before the denial of the pattern
        (Some("bob"), "c1", "user/bob/locked", false, true),
        (Some("bob"), "c1", "$SYS/broker/uptime", false, false),
        (Some("carol"), "c1", "public/a", false, false),
        (Some("carol"), "c1", "user/carol/x", true, true),
        (Some("carol"), "a/b", "sensor/a/b/data", true, false),
        (Some("carol"), "c1", "in-c1-x/y", false, true),
        (Some("carol"), "a+b", "user/carol/x", false, false),
    ];
    for (user, client_id, topic, publish, read) in table {
        let grants = grants(RULES, user);
        assert_eq!(grants.may_publish(client_id, topic), publish, "publish {user:?} {client_id} {topic}");
        assert_eq!(grants.may_read(client_id, topic), read, "read {user:?} {client_id} {topic}");
    }
}

/// CVE-2017-7650: a client that calls itself `#` or `+` gets nothing from patterns.
#[test]
fn names_that_are_wildcards_match_no_pattern() {
    let rules = "pattern readwrite data/%c\npattern readwrite user/%u\n";
    for (user, client_id) in
        [(Some("u"), "#"), (Some("u"), "+"), (Some("u"), "a+b"), (Some("#"), "c"), (Some("+"), "c")]
    {
        let grants = grants(rules, user);
        assert!(!grants.may_read(client_id, "data/x") && !grants.may_publish(client_id, "user/u"));
        assert_eq!(grants.may_subscribe(client_id, "data/#"), Subscribing::Denied);
    }
}

#[test]
fn an_empty_file_denies_everything_and_no_file_allows_everything() {
    let none = grants("", Some("alice"));
    assert!(!none.may_publish("c", "a") && !none.may_read("c", "a"));
    assert_eq!(none.may_subscribe("c", "a"), Subscribing::Denied);
    let open = Grants { rules: None, ..grants("", None) };
    assert!(open.may_publish("c", "a") && open.may_read("c", "a") && !open.is_restricted());
    assert_eq!(open.may_subscribe("c", "#"), Subscribing::Granted);
}

#[test]
fn sections_of_one_user_are_joined() {
    let rules = "user a\ntopic read x\nuser b\ntopic read y\nuser a\ntopic read z\n";
    assert!(["x", "z"].iter().all(|topic| grants(rules, Some("a")).may_read("c", topic)));
    assert!(!grants(rules, Some("a")).may_read("c", "y"));
}

#[test]
fn a_subscription_is_granted_when_a_read_rule_covers_it() {
    let rules =
        "topic read a/#\ntopic write b\ntopic deny a/secret/#\ntopic read $SYS/#\npattern read dev/%c/#\n";
    let table = [
        ("a/x", Subscribing::Granted, Subscribing::Granted),
        ("a", Subscribing::Granted, Subscribing::Granted),
        ("a/+/x", Subscribing::Filtered, Subscribing::Filtered),
        ("a/#", Subscribing::Filtered, Subscribing::Filtered),
        ("a/secret/x", Subscribing::Denied, Subscribing::Denied),
        ("a/secret/#", Subscribing::Denied, Subscribing::Denied),
        ("b", Subscribing::Denied, Subscribing::Denied),
        ("#", Subscribing::Denied, Subscribing::Filtered),
        ("+/x", Subscribing::Denied, Subscribing::Filtered),
        ("c/#", Subscribing::Denied, Subscribing::Denied),
        ("$SYS/broker/#", Subscribing::Granted, Subscribing::Granted),
        ("dev/me/#", Subscribing::Granted, Subscribing::Granted),
        ("dev/you/#", Subscribing::Denied, Subscribing::Denied),
        ("$share/g/a/x", Subscribing::Granted, Subscribing::Granted),
        ("$share/g/b", Subscribing::Denied, Subscribing::Denied),
    ];
    for (filter, cover, overlap) in table {
        assert_eq!(grants(rules, None).may_subscribe("me", filter), cover, "cover {filter}");
        let lenient = grants_with(rules, None, SubscribeRule::Overlap);
        assert_eq!(lenient.may_subscribe("me", filter), overlap, "overlap {filter}");
    }
}

#[test]
fn a_bad_line_is_an_error_that_names_it() {
    let table = [
        ("topic read a\nuser\n", 2, "names no user"),
        ("topics read a\n", 1, "allowed: user, topic, pattern"),
        ("\n\ntopic reed a\n", 3, "\"reed\" is not read"),
        ("topic\n", 1, "has no topic"),
        ("topic read a#\n", 1, "malformed"),
        ("topic read #/a\n", 1, "malformed"),
        ("pattern read %c+\n", 1, "malformed"),
    ];
    for (text, line, what) in table {
        let (at, message) = Acl::parse(text).expect_err(text);
        assert!(at == line && message.contains(what), "{text:?}: {at} {message}");
    }
}

#[test]
fn filters_relate_as_the_specification_says() {
    assert!(["#", "+", "a/#", "a/+/b", "/", "$SYS/#"].into_iter().all(is_valid));
    assert!(!["", "a#", "#/a", "a+/b", "a\0"].into_iter().any(is_valid));
    let matching = [
        ("a/#", "a", true),
        ("a/+", "a", false),
        ("+/+", "/a", true),
        ("#", "$SYS", false),
        ("a", "a/", false),
    ];
    for (filter, topic, expected) in matching {
        assert_eq!(matches(filter, topic), expected, "{filter} {topic}");
    }
    let covering = [
        ("#", "a/+/#", true),
        ("a/#", "a", true),
        ("a/+", "a/#", false),
        ("a/+", "a/+", true),
        ("a/+/#", "a/#", false),
        ("+", "a", true),
        ("#", "$SYS/#", false),
        ("$SYS/#", "$SYS/a", true),
    ];
    for (outer, inner, expected) in covering {
        assert_eq!(covers(outer, inner), expected, "{outer} {inner}");
    }
    let overlapping = [
        ("a/+", "+/b", true),
        ("a/#", "b/#", false),
        ("a", "a/#", true),
        ("a/b", "a", false),
        ("#", "$SYS/#", false),
    ];
    for (a, b, expected) in overlapping {
        assert_eq!((overlaps(a, b), overlaps(b, a)), (expected, expected), "{a} {b}");
    }
}

proptest::proptest! {
    /// What is covered is matched: no subscription that skips the check at delivery can see a topic without a rule.
    #[test]
    fn covering_and_overlapping_agree_with_matching(
        outer in "([ab+]/){0,3}[ab+#]", inner in "([ab+]/){0,3}[ab+#]", topic in "([ab]/){0,3}[ab]",
    ) {
        if covers(&outer, &inner) && matches(&inner, &topic) {
            proptest::prop_assert!(matches(&outer, &topic));
        }
        if matches(&outer, &topic) && matches(&inner, &topic) {
            proptest::prop_assert!(overlaps(&outer, &inner));
        }
    }
}
