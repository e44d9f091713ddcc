//! Looking retained topics up by filter in a sorted map of names, skipping subtrees that cannot match.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

/// Whether `filter` (no `$share/` prefix) matches `topic`, level by level; also the naive oracle of the tests.
///
/// A leading wildcard does not match a topic that starts with `$` ([MQTT-4.7.2-1]); `sport/#` matches `sport`
/// (MQTT §4.7.1.2).
#[must_use]
pub fn filter_matches(filter: &str, topic: &str) -> bool {
    if topic.starts_with('$') && filter.starts_with(['+', '#']) {
        return false;
    }
    let mut names = topic.split('/');
    for level in filter.split('/') {
        if level == "#" {
            return true;
        }
        match names.next() {
            Some(name) if level == "+" || level == name => {}
            _ => return false,
        }
    }
    names.next().is_none()
}

/// Visits every entry of `names` that `filter` (no `$share/` prefix) matches, in order; stops when `visit` returns
/// false.
///
/// A name that does not match tells the least greater name that could; the search goes on there. So a filter costs
/// one seek for each subtree of its wildcards, however many names lie between.
pub fn scan<V>(names: &BTreeMap<Arc<str>, V>, filter: &str, visit: impl FnMut(&str, &V) -> bool) {
    scan_behind(names, filter, None, visit);
}

/// [`scan`] of the names behind `after`: one seek, whatever lies before it.
pub fn scan_behind<V>(
    names: &BTreeMap<Arc<str>, V>,
    filter: &str,
    after: Option<&str>,
    mut visit: impl FnMut(&str, &V) -> bool,
) {
    let prefix = literal_prefix(filter);
    let after = after.filter(|after| *after >= prefix);
    let mut from = after.unwrap_or(prefix).to_owned();
    let mut excluded = after.is_some();
    loop {
        let begin = if std::mem::take(&mut excluded) {
            Bound::Excluded(from.as_str())
        } else {
            Bound::Included(from.as_str())
        };
        let range = names.range::<str, _>((begin, Bound::Unbounded));
        let mut seek = None;
        for (name, value) in range {
            match examine(filter, name) {
                Step::Match => {
                    if !visit(name, value) {
                        return;
                    }
                }
                Step::Next => {}
                Step::End => return,
                Step::Seek(target) => {
                    seek = Some(target);
                    break;
                }
            }
        }
        match seek {
            None => return,
            Some(target) => {
                debug_assert!(target > from, "a seek goes forward");
                from = target;
            }
        }
    }
}

/// What one name tells about itself and about the names behind it.
enum Step {
    Match,
    /// It does not match; the next one may.
    Next,
    /// No name from here on matches.
    End,
    /// No name before this one matches.
    Seek(String),
}

/// The levels before the first wildcard; every match starts with it.
fn literal_prefix(filter: &str) -> &str {
    match filter.find(['+', '#']) {
        Some(0) => "",
        Some(at) => &filter[..at - 1],
        None => filter,
    }
}

fn examine(filter: &str, name: &str) -> Step {
    if name.starts_with('$') && filter.starts_with(['+', '#']) {
        return Step::Seek("%".to_owned()); // the character behind '$': all `$` topics are skipped
    }
    let mut level_at = 0; // where the current level starts in `name`
    let mut plus_end = None; // where the last level that a '+' matched ends in `name`
    let mut levels = filter.split('/').peekable();
    while let Some(level) = levels.next() {
        if level == "#" {
            return Step::Match;
        }
        if level_at > name.len() {
            // Too short: what lies below it can match, and before that its siblings when a '+' matched its last level.
            return if plus_end == Some(name.len()) { Step::Next } else { Step::Seek(format!("{name}/")) };
        }
        let level_end = name[level_at..].find('/').map_or(name.len(), |len| level_at + len);
        if level == "+" {
            plus_end = Some(level_end);
        } else if level != &name[level_at..level_end] {
            let mut wanted = format!("{}{level}", &name[..level_at]);
            if name < wanted.as_str() {
                return Step::Seek(wanted);
            }
            // `a-b` sorts between `a` and `a/b`: what lies below the wanted level may still come.
            wanted.push('/');
            if levels.peek().is_some() && name < wanted.as_str() {
                return Step::Seek(wanted);
            }
            return behind(name, plus_end);
        }
        level_at = level_end + 1;
    }
    // Equal length is a match; a longer name and all its siblings are not.
    if level_at > name.len() { Step::Match } else { behind(name, plus_end) }
}

/// Seeks behind everything below the last level that a '+' matched; `0` is the character behind `/`.
fn behind(name: &str, plus_end: Option<usize>) -> Step {
    match plus_end {
        Some(end) => Step::Seek(format!("{}0", &name[..end])),
        None => Step::End,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(filter: &str, topic: &str, expected: bool) {
        assert_eq!(filter_matches(filter, topic), expected, "{filter:?} {topic:?}");
    }

    /// MQTT §4.7.1, [MQTT-4.7.2-1], [MQTT-4.7.3-4]
    #[test]
    fn the_examples_of_the_specification() {
        for topic in
            ["sport/tennis/player1", "sport/tennis/player1/ranking", "sport/tennis/player1/score/wimbledon"]
        {
            check("sport/tennis/player1/#", topic, true);
        }
        check("sport/#", "sport", true);
        check("sport/#", "sports", false);
        check("#", "a/b", true);
        check("sport/tennis/+", "sport/tennis/player1", true);
        check("sport/tennis/+", "sport/tennis/player1/ranking", false);
        check("sport/+", "sport", false);
        check("sport/+", "sport/", true);
        check("+/+", "/finance", true);
        check("/+", "/finance", true);
        check("+", "/finance", false);
        check("#", "$SYS/monitor", false);
        check("+/monitor/Clients", "$SYS/monitor/Clients", false);
        check("$SYS/#", "$SYS", true);
        check("$SYS/monitor/+", "$SYS/monitor/Clients", true);
        check("ACCOUNTS", "Accounts", false);
    }

    fn scanned(names: &BTreeMap<Arc<str>, ()>, filter: &str) -> Vec<String> {
        let mut found = Vec::new();
        scan(names, filter, |name, ()| {
            found.push(name.to_owned());
            true
        });
        found
    }

    fn map(names: &[&str]) -> BTreeMap<Arc<str>, ()> {
        names.iter().map(|&name| (Arc::from(name), ())).collect()
    }

    /// Scenario 81, [MQTT-4.7.2-1]: `#` and `+/…` do not find `$` topics, `$SYS/#` does.
    #[test]
    fn leading_wildcards_find_no_dollar_topics() {
        let names = map(&["!", "$SYS/a", "$a", "a", "a/b"]);
        assert_eq!(scanned(&names, "#"), ["!", "a", "a/b"]);
        assert_eq!(scanned(&names, "+/+"), ["a/b"]);
        assert_eq!(scanned(&names, "$SYS/#"), ["$SYS/a"]);
    }

    /// `-` sorts before `/`: siblings lie between a topic and what is below it.
    #[test]
    fn names_between_a_topic_and_its_children_do_not_hide_them() {
        let names = map(&["a", "a-b", "a-b/c", "a/b", "a/c/d", "x/a", "x/a-b", "x/a/b"]);
        assert_eq!(scanned(&names, "a/#"), ["a", "a/b", "a/c/d"]);
        assert_eq!(scanned(&names, "+/a/#"), ["x/a", "x/a/b"]);
        assert_eq!(scanned(&names, "+/b"), ["a/b"]);
    }

    #[test]
    fn the_visitor_ends_the_scan() {
        let names = map(&["a", "b", "c"]);
        let mut seen = 0;
        scan(&names, "#", |_, ()| {
            seen += 1;
            seen < 2
        });
        assert_eq!(seen, 2);
    }

    fn level() -> impl Strategy<Value = String> {
        prop::sample::select(vec!["", "a", "a-", "a0", "b", "$", "$a", "é"]).prop_map(str::to_owned)
    }

    pub(crate) fn topic() -> impl Strategy<Value = String> {
        prop::collection::vec(level(), 1..5)
            .prop_map(|levels| levels.join("/"))
            .prop_filter("a topic is not empty", |topic| !topic.is_empty())
    }

    pub(crate) fn pattern() -> impl Strategy<Value = String> {
        let level = prop_oneof![3 => level(), 2 => Just("+".to_owned())];
        (prop::collection::vec(level, 0..5), any::<bool>())
            .prop_map(|(mut levels, hash)| {
                if hash {
                    levels.push("#".to_owned());
                }
                levels.join("/")
            })
            .prop_filter("a filter is not empty", |filter| !filter.is_empty())
    }

    proptest! {
        /// Scenario 82: the scan finds exactly what the naive matcher finds, in order.
        #[test]
        fn a_scan_finds_what_the_naive_matcher_finds(
            names in prop::collection::btree_set(topic(), 0..60),
            filter in pattern(),
        ) {
            let map: BTreeMap<Arc<str>, ()> = names.iter().map(|name| (Arc::from(name.as_str()), ())).collect();
            let expected: Vec<String> =
                names.iter().filter(|name| filter_matches(&filter, name)).cloned().collect();
            prop_assert_eq!(scanned(&map, &filter), expected);
        }

        /// A scan that goes on behind any name, there or not, finds what the whole scan finds behind it.
        #[test]
        fn a_scan_goes_on_where_it_was_left(
            names in prop::collection::btree_set(topic(), 0..60),
            filter in pattern(),
            after in topic(),
        ) {
            let map: BTreeMap<Arc<str>, ()> = names.iter().map(|name| (Arc::from(name.as_str()), ())).collect();
            let mut expected = scanned(&map, &filter);
            expected.retain(|name| *name > after);
            let mut found = Vec::new();
            scan_behind(&map, &filter, Some(&after), |name, ()| {
                found.push(name.to_owned());
                true
            });
            prop_assert_eq!(found, expected);
        }
    }
}
