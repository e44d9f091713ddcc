//! The index against the naive matcher, and snapshots that must not change.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::filter_matches;
use super::super::retained::tests::{pattern, topic};
use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Sub {
    id: u32,
    version: u32,
}

impl Subscription for Sub {
    type Id = u32;
    fn id(&self) -> u32 {
        self.id
    }
}

type Model = BTreeMap<(String, u32), Sub>;

fn found(tree: &Tree<Sub>, topic: &str) -> Vec<Sub> {
    let mut out = Matches::new();
    tree.matches(topic, &mut out);
    assert!(out.slices.iter().all(|slice| !slice.is_empty()));
    assert!(out.nodes <= out.slices.len());
    let mut all: Vec<Sub> = out.slices.iter().flat_map(|slice| slice.iter().copied()).collect();
    let mut visited = Vec::new();
    tree.for_each_match(topic, |slice| visited.extend_from_slice(slice));
    assert_eq!(all, visited);
    all.sort_unstable();
    all
}

fn expected(model: &Model, topic: &str) -> Vec<Sub> {
    let mut all: Vec<Sub> =
        model.iter().filter(|((filter, _), _)| filter_matches(filter, topic)).map(|(_, sub)| *sub).collect();
    all.sort_unstable();
    all
}

#[derive(Debug, Clone)]
enum Op {
    Insert(String, u32),
    Remove(String, u32),
    Snapshot,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (pattern(), 0..6_u32).prop_map(|(filter, id)| Op::Insert(filter, id)),
        4 => (pattern(), 0..6_u32).prop_map(|(filter, id)| Op::Remove(filter, id)),
        1 => Just(Op::Snapshot),
    ]
}

proptest! {
    /// Scenario 82, [MQTT-4.7.2-1]: what the index finds is what the naive matcher finds, after any updates; and a
    /// snapshot finds what it held, whatever its writer did since.
    #[test]
    fn the_index_agrees_with_the_naive_matcher(
        ops in prop::collection::vec(op(), 1..150),
        topics in prop::collection::vec(topic(), 1..12),
    ) {
        let mut tree = Tree::new();
        let mut model = Model::new();
        let mut snapshots = Vec::new();
        for (version, op) in (0..).zip(ops) {
            match op {
                Op::Insert(filter, id) => {
                    let sub = Sub { id, version };
                    prop_assert_eq!(tree.insert(&filter, sub), model.insert((filter, id), sub));
                }
                Op::Remove(filter, id) => {
                    prop_assert_eq!(tree.get(&filter, id).copied(), model.get(&(filter.clone(), id)).copied());
                    prop_assert_eq!(tree.remove(&filter, id), model.remove(&(filter, id)));
                }
                Op::Snapshot => snapshots.push((tree.clone(), model.clone())),
            }
            prop_assert_eq!(tree.len(), model.len());
        }
        snapshots.push((tree.clone(), model.clone()));
        for (tree, model) in &snapshots {
            for topic in &topics {
                prop_assert_eq!(found(tree, topic), expected(model, topic), "{}", topic);
            }
        }
        for (filter, id) in model.into_keys() {
            prop_assert!(tree.remove(&filter, id).is_some());
        }
        prop_assert!(tree.is_empty());
        prop_assert!(tree.root.is_empty(), "empty branches are pruned");
    }
}

/// Scenario 81: `#` and `+/…` see no `$` topics; `$SYS/#` sees them.
#[test]
fn leading_wildcards_match_no_dollar_topics() {
    let mut tree = Tree::new();
    for (id, filter) in (0..).zip(["#", "+/a", "+/#", "$SYS/#", "$SYS/a", "$SYS/+"]) {
        tree.insert(filter, Sub { id, version: 0 });
    }
    let ids = |topic: &str| found(&tree, topic).iter().map(|sub| sub.id).collect::<Vec<_>>();
    assert_eq!(ids("$SYS/a"), [3, 4, 5]);
    assert_eq!(ids("$SYS"), [3]);
    assert_eq!(ids("x/a"), [0, 1, 2]);
    assert_eq!(ids("x"), [0, 2]);
}

/// P9: one level with many children, one filter with many subscribers; a snapshot in between stays as it was.
#[test]
fn wide_levels_and_popular_filters() {
    let mut tree = Tree::new();
    for id in 0..20_000 {
        tree.insert(&format!("wide/{id}/x"), Sub { id, version: 0 });
        tree.insert("popular/+", Sub { id, version: 0 });
    }
    let before = tree.clone();
    for id in (0..20_000).rev().filter(|id| id % 3 != 0) {
        assert!(tree.remove(&format!("wide/{id}/x"), id).is_some());
        assert!(tree.remove("popular/+", id).is_some());
    }
    for id in 0..20_000 {
        let left = usize::from(id % 3 == 0);
        assert_eq!(found(&tree, &format!("wide/{id}/x")).len(), left);
        assert_eq!(found(&before, &format!("wide/{id}/x")).len(), 1);
    }
    let mut out = Matches::new();
    before.matches("popular/a", &mut out);
    assert_eq!((out.nodes, out.slices.iter().map(|slice| slice.len()).sum::<usize>()), (1, 20_000));
    assert!(out.slices.windows(2).all(|pair| pair[0][pair[0].len() - 1].id < pair[1][0].id));
    assert_eq!(found(&tree, "popular/a").len(), 6_667);
}

/// P9: the deepest filter allowed is inserted, matched, removed and dropped within the stack.
#[test]
fn the_deepest_filters() {
    let mut tree = Tree::new();
    let deep = vec!["+"; limits::TOPIC_LEVELS_MAX].join("/");
    let topic = "/".repeat(limits::TOPIC_LEVELS_MAX - 1);
    tree.insert(&deep, Sub { id: 1, version: 0 });
    tree.insert(&topic, Sub { id: 2, version: 0 });
    assert_eq!(found(&tree, &topic).len(), 2);
    assert_eq!(found(&tree, &"/".repeat(65_535)).len(), 0);
    assert!(tree.remove(&deep, 1).is_some());
    assert_eq!(found(&tree, &topic).len(), 1);
}
