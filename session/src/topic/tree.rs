//! The subscription index: a persistent (structurally shared) trie, so that readers match on an immutable snapshot
//! while one writer prepares the next one.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;

use foldhash::fast::FixedState;

use super::level::Level;
use super::ordered::{Block, Item};
use super::spread::{Named, Spread};
use crate::limits;

/// An index from topic filters to subscriptions. `clone` is O(1) and shares structure: the broker publishes clones
/// through `arc-swap` and goes on changing its own.
///
/// `S` is one subscription as the broker sees it (cheap to clone); `S::Id` tells subscribers of one filter apart.
/// An update costs a few microseconds at most, whatever shares the tree and however many children a level or
/// subscribers a filter has: what is shared is copied along one path, what is not is changed in place.
#[derive(Clone)]
pub struct Tree<S: Subscription> {
    root: Arc<Node<S>>,
    len: usize,
}

/// What the index needs to know of a subscription.
pub trait Subscription: Clone {
    /// Identity of the subscriber under one filter.
    type Id: Copy + Eq + Ord;
    /// That identity.
    fn id(&self) -> Self::Id;
}

/// Slices of subscriptions that match a topic: one or more slices a matching filter, no slice empty.
///
/// The first eight slices need no allocation; a filter with more than 128 subscribers has several.
#[derive(Debug)]
pub struct Matches<'a, S> {
    pub slices: smallvec::SmallVec<[&'a [S]; 8]>,
    /// Matching filters that have subscribers. When it is at most 1, no subscriber can occur twice, so a caller need not
    /// look for overlaps.
    pub nodes: usize,
}

/// One level of filters, and what lies below it. The levels `+` and `#` are kept apart from the named ones.
#[derive(Clone)]
struct Node<S: Subscription> {
    level: Level,
    /// Subscribers of the filter that ends here.
    here: Subscribers<S>,
    wild: Option<Box<Wild<S>>>,
    children: Children<S>,
}

#[derive(Clone)]
struct Wild<S: Subscription> {
    /// Subscribers of `…/#`.
    hash: Subscribers<S>,
    plus: Option<Arc<Node<S>>>,
}

#[derive(Clone)]
enum Subscribers<S: Subscription> {
    None,
    One(S),
    Many(Arc<Block<S>>),
}

#[derive(Clone)]
enum Children<S: Subscription> {
    None,
    One(Arc<Node<S>>),
    Many(Spread<Node<S>>),
}

impl<S: Subscription> Tree<S> {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        Self { root: Arc::new(Node::new("")), len: 0 }
    }

    /// Adds or replaces the subscription of `subscription.id()` under `pattern` (no `$share/` prefix).
    /// Returns the one that it replaced.
    ///
    /// # Panics
    /// When `pattern` has more than [`limits::TOPIC_LEVELS_MAX`] levels: [`super::TopicFilter::parse`] refuses such.
    pub fn insert(&mut self, pattern: &str, subscription: S) -> Option<S> {
        let replaced = self.subscribers_mut(pattern).insert(subscription);
        self.len += usize::from(replaced.is_none());
        replaced
    }

    /// Removes and returns the subscription of `id` under `pattern`. Empty branches are pruned.
    pub fn remove(&mut self, pattern: &str, id: S::Id) -> Option<S> {
        // Looked up first, so that a miss copies nothing.
        self.get(pattern, id)?;
        let removed = Arc::make_mut(&mut self.root).remove(Some(pattern), id);
        debug_assert!(removed.is_some(), "it was found");
        self.len -= usize::from(removed.is_some());
        removed
    }

    /// The subscription of `id` under `pattern`.
    #[must_use]
    pub fn get(&self, pattern: &str, id: S::Id) -> Option<&S> {
        let mut node = &*self.root;
        for level in pattern.split('/') {
            node = match level {
                "#" => return node.wild.as_ref()?.hash.get(id),
                "+" => node.wild.as_ref()?.plus.as_ref()?,
                _ => node.children.get(level)?,
            };
        }
        node.here.get(id)
    }

    /// All subscriptions whose filter matches `topic`; leading wildcards do not match `$` topics ([MQTT-4.7.2-1]).
    /// They are added to `out`.
    pub fn matches<'a>(&'a self, topic: &str, out: &mut Matches<'a, S>) {
        self.visit(topic, &mut |found: &'a Subscribers<S>| {
            out.nodes += 1;
            found.slices(&mut |slice| out.slices.push(slice));
        });
    }

    /// Calls `each` with every slice of subscriptions whose filter matches `topic`; allocates nothing, however many.
    pub fn for_each_match<'a>(&'a self, topic: &str, mut each: impl FnMut(&'a [S])) {
        self.visit(topic, &mut |found: &'a Subscribers<S>| found.slices(&mut each));
    }

    /// Number of (filter, subscriber) pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody subscribes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    fn visit<'a>(&'a self, topic: &str, found: &mut impl FnMut(&'a Subscribers<S>)) {
        if topic.starts_with('$') {
            // Only what names the first level can match.
            let (first, rest) = split(topic);
            if let Some(node) = self.root.children.get(first) {
                node.visit(rest, found);
            }
        } else {
            self.root.visit(Some(topic), found);
        }
    }

    fn subscribers_mut(&mut self, pattern: &str) -> &mut Subscribers<S> {
        let mut node = Arc::make_mut(&mut self.root);
        for (depth, level) in pattern.split('/').enumerate() {
            assert!(depth < limits::TOPIC_LEVELS_MAX, "a topic filter has at most 256 levels");
            node = match level {
                "#" => return &mut node.wild_mut().hash,
                "+" => Arc::make_mut(node.wild_mut().plus.get_or_insert_with(|| Arc::new(Node::new("+")))),
                _ => node.children.get_or_insert(level),
            };
        }
        &mut node.here
    }
}

impl<S: Subscription> Node<S> {
    fn new(level: &str) -> Self {
        Self { level: Level::new(level), here: Subscribers::None, wild: None, children: Children::None }
    }

    fn wild_mut(&mut self) -> &mut Wild<S> {
        self.wild.get_or_insert_with(|| Box::new(Wild { hash: Subscribers::None, plus: None }))
    }

    fn is_empty(&self) -> bool {
        self.here.is_empty() && self.wild.is_none() && self.children.is_empty()
    }

    /// Visits what matches `rest` below this node; `None`: the topic ends here. Recursion (one turn for each `+`) is as
    /// deep as the filters, at most [`limits::TOPIC_LEVELS_MAX`].
    fn visit<'a>(&'a self, mut rest: Option<&str>, found: &mut impl FnMut(&'a Subscribers<S>)) {
        let mut node = self;
        loop {
            if let Some(wild) = &node.wild {
                // `sport/#` matches `sport`, too.
                if !wild.hash.is_empty() {
                    found(&wild.hash);
                }
                if let (Some(plus), Some(rest)) = (&wild.plus, rest) {
                    plus.visit(split(rest).1, found);
                }
            }
            let Some(levels) = rest else {
                if !node.here.is_empty() {
                    found(&node.here);
                }
                return;
            };
            let (level, behind) = split(levels);
            match node.children.get(level) {
                Some(child) => node = child,
                None => return,
            }
            rest = behind;
        }
    }

    /// Removes below this node; recursion is as deep as the filter.
    fn remove(&mut self, rest: Option<&str>, id: S::Id) -> Option<S> {
        let Some(levels) = rest else {
            return self.here.remove(id);
        };
        let (level, rest) = split(levels);
        if level != "#" && level != "+" {
            return self.children.remove_below(level, rest, id);
        }
        let wild = self.wild.as_mut()?;
        let removed = if level == "#" {
            wild.hash.remove(id)
        } else {
            let plus = Arc::make_mut(wild.plus.as_mut()?);
            let removed = plus.remove(rest, id);
            if plus.is_empty() {
                wild.plus = None;
            }
            removed
        };
        if wild.hash.is_empty() && wild.plus.is_none() {
            self.wild = None;
        }
        removed
    }
}

impl<S: Subscription> Children<S> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    fn get(&self, level: &str) -> Option<&Node<S>> {
        match self {
            Self::None => None,
            Self::One(node) => (node.name() == level.as_bytes()).then_some(&**node),
            Self::Many(children) => children.get(level.as_bytes()),
        }
    }

    fn get_or_insert(&mut self, level: &str) -> &mut Node<S> {
        let make = || Arc::new(Node::new(level));
        if let Self::One(node) = self {
            if node.name() != level.as_bytes() {
                *self = Self::Many(Spread::new(Arc::clone(node)));
            }
        } else if self.is_empty() {
            *self = Self::One(make());
        }
        match self {
            Self::None => unreachable!("it has just got a child"),
            Self::One(node) => Arc::make_mut(node),
            Self::Many(children) => children.get_or_insert(level.as_bytes(), make),
        }
    }

    fn remove_below(&mut self, level: &str, rest: Option<&str>, id: S::Id) -> Option<S> {
        match self {
            Self::None => None,
            Self::One(node) => {
                let child = Arc::make_mut(node);
                let removed = child.remove(rest, id);
                if child.is_empty() {
                    *self = Self::None;
                }
                removed
            }
            Self::Many(children) => {
                let child = children.get_mut(level.as_bytes())?;
                let removed = child.remove(rest, id);
                if child.is_empty() {
                    children.remove(level.as_bytes());
                    if let Some(only) = children.only() {
                        *self = Self::One(Arc::clone(only));
                    }
                }
                removed
            }
        }
    }
}

impl<S: Subscription> Subscribers<S> {
    fn is_empty(&self) -> bool {
        matches!(self, Self::None)
    }

    fn get(&self, id: S::Id) -> Option<&S> {
        match self {
            Self::None => None,
            Self::One(only) => (only.id() == id).then_some(only),
            Self::Many(block) => block.get(id),
        }
    }

    fn insert(&mut self, subscription: S) -> Option<S> {
        let id = subscription.id();
        match self {
            Self::None => {
                *self = Self::One(subscription);
                None
            }
            Self::One(only) if only.id() == id => Some(std::mem::replace(only, subscription)),
            Self::One(only) => {
                let mut both = vec![only.clone(), subscription];
                both.sort_by_key(S::id);
                *self = Self::Many(Arc::new(Block::Leaf(both)));
                None
            }
            Self::Many(block) => {
                let block = Arc::make_mut(block);
                let mut new = Some(subscription);
                let place = block.get_or_insert(id, || new.take().expect("made at most once"));
                new.map(|subscription| std::mem::replace(place, subscription))
            }
        }
    }

    fn remove(&mut self, id: S::Id) -> Option<S> {
        match self {
            Self::None => None,
            Self::One(only) => {
                if only.id() != id {
                    return None;
                }
                match std::mem::replace(self, Self::None) {
                    Self::One(only) => Some(only),
                    _ => None,
                }
            }
            Self::Many(block) => {
                let block = Arc::make_mut(block);
                let removed = block.remove(id);
                if let Some(only) = block.take_only() {
                    *self = Self::One(only);
                }
                removed
            }
        }
    }

    fn slices<'a>(&'a self, visit: &mut impl FnMut(&'a [S])) {
        match self {
            Self::None => {}
            Self::One(only) => visit(std::slice::from_ref(only)),
            Self::Many(block) => block.leaves(visit),
        }
    }
}

impl<S: Subscription> Item for S {
    type Mark = S::Id;
    type Key<'k> = S::Id;
    const LEAF_MAX: usize = 128;

    fn mark(&self) -> S::Id {
        self.id()
    }

    fn mark_of(key: S::Id) -> S::Id {
        key
    }

    fn order(&self, key: S::Id) -> Ordering {
        self.id().cmp(&key)
    }
}

impl<S: Subscription> Named for Node<S> {
    fn name(&self) -> &[u8] {
        self.level.as_bytes()
    }

    fn hash(name: &[u8]) -> u64 {
        let mut hasher = FixedState::with_seed(0x4d51_5454).build_hasher();
        hasher.write(name);
        hasher.finish()
    }
}

impl<S> Matches<'_, S> {
    /// No match yet.
    #[must_use]
    pub fn new() -> Self {
        Self { slices: smallvec::SmallVec::new(), nodes: 0 }
    }
}

impl<S> Default for Matches<'_, S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Subscription> Default for Tree<S> {
    fn default() -> Self {
        Self::new()
    }
}

impl<S: Subscription> fmt::Debug for Tree<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The first level and what follows its `/`.
fn split(levels: &str) -> (&str, Option<&str>) {
    match levels.as_bytes().iter().position(|&byte| byte == b'/') {
        Some(at) => (&levels[..at], Some(&levels[at + 1..])),
        None => (levels, None),
    }
}

#[cfg(test)]
#[path = "tree_test.rs"]
mod tests;
