//! The subscription index: a persistent (structurally shared) trie, so that readers match on an immutable snapshot
//! while one writer prepares the next one.

/// An index from topic filters to subscriptions. `clone` is O(1) and shares structure: the broker publishes clones
/// through `arc-swap` and goes on changing its own.
///
/// `S` is one subscription as the broker sees it (cheap to clone); `S::Id` tells subscribers of one filter apart.
#[derive(Debug, Clone)]
pub struct Tree<S> {
    _root: std::marker::PhantomData<S>,
}

/// What the index needs to know of a subscription.
pub trait Subscription: Clone {
    /// Identity of the subscriber under one filter.
    type Id: Copy + Eq + Ord;
    /// That identity.
    fn id(&self) -> Self::Id;
}

/// Slices of subscriptions that match a topic, one slice a matching filter. When it holds one slice, no subscriber can
/// occur twice, so a caller need not look for overlaps.
#[derive(Debug)]
pub struct Matches<'a, S> {
    pub slices: smallvec::SmallVec<[&'a [S]; 8]>,
}

impl<S: Subscription> Tree<S> {
    /// An empty index.
    #[must_use]
    pub fn new() -> Self {
        unimplemented!()
    }

    /// Adds or replaces the subscription of `subscription.id()` under `pattern` (no `$share/` prefix).
    /// Returns the one that it replaced.
    pub fn insert(&mut self, _pattern: &str, _subscription: S) -> Option<S> {
        unimplemented!()
    }

    /// Removes and returns the subscription of `id` under `pattern`. Empty branches are pruned.
    pub fn remove(&mut self, _pattern: &str, _id: S::Id) -> Option<S> {
        unimplemented!()
    }

    /// All subscriptions whose filter matches `topic`; leading wildcards do not match `$` topics ([MQTT-4.7.2-1]).
    pub fn matches<'a>(&'a self, _topic: &str, _out: &mut Matches<'a, S>) {
        unimplemented!()
    }

    /// Number of (filter, subscriber) pairs.
    #[must_use]
    pub fn len(&self) -> usize {
        unimplemented!()
    }
}
