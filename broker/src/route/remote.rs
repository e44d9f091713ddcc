//! Which other nodes have subscribers of a topic: part of every version of the index, so that matching takes no lock and a plan knows.
//!
//! A node whose table is not known for certain is in [`Remote::everything`]: it gets every message, and what it knows of shares
//! stays as it was.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use hashbrown::HashMap;
use session::topic::{Matches, Subscription, Tree};
use smallvec::SmallVec;

/// One entry of the index of other nodes.
#[derive(Debug, Clone)]
pub(super) enum RemoteSub {
    Node(u64),
    Share(Arc<RemoteShare>),
}

/// The nodes that have members without inbox of one shared subscription.
#[derive(Debug)]
pub struct RemoteShare {
    id: u64,
    /// The whole filter, `$share/` included.
    pub filter: Arc<str>,
    /// Ascending, never empty.
    nodes: Box<[u64]>,
    turn: Arc<AtomicUsize>,
}

/// What a version of the index says of other nodes.
#[derive(Debug, Clone, Default)]
pub struct Remote {
    tree: Option<Tree<RemoteSub>>,
    everything: Arc<[u64]>,
    /// There are other nodes: a session that has no connection here may have one there.
    pub(super) has_nodes: bool,
}

impl Subscription for RemoteSub {
    /// Whether it is a share, and its number.
    type Id = (bool, u64);

    fn id(&self) -> Self::Id {
        match self {
            Self::Node(node) => (false, *node),
            Self::Share(share) => (true, share.id),
        }
    }
}

impl RemoteShare {
    /// The node whose turn it is, of those that were not tried; of all, when all were.
    #[must_use]
    pub fn pick(&self, tried: &[u64]) -> u64 {
        let (turn, len) = (self.turn.fetch_add(1, Ordering::Relaxed), self.nodes.len());
        let mut in_turn = (0..len).map(|step| self.nodes[turn.wrapping_add(step) % len]);
        in_turn.find(|node| !tried.contains(node)).unwrap_or(self.nodes[turn % len])
    }

    /// Whether a node was not tried.
    pub(super) fn has_other(&self, tried: &[u64]) -> bool {
        tried.is_empty() || self.nodes.iter().any(|node| !tried.contains(node))
    }
}

impl Remote {
    /// The nodes that get a message on `topic`, and the shares that other nodes have members of. Topics of one node alone stay there.
    pub(super) fn matches(&self, topic: &str) -> (SmallVec<[u64; 2]>, SmallVec<[Arc<RemoteShare>; 1]>) {
        let (mut nodes, mut shares) = (SmallVec::new(), SmallVec::new());
        if (self.tree.is_none() && self.everything.is_empty()) || topic.starts_with("$SYS") {
            return (nodes, shares);
        }
        nodes.extend_from_slice(&self.everything);
        if let Some(tree) = &self.tree {
            let mut matches = Matches::new();
            tree.matches(topic, &mut matches);
            for sub in matches.slices.iter().flat_map(|slice| slice.iter()) {
                match sub {
                    RemoteSub::Node(node) if !nodes.contains(node) => nodes.push(*node),
                    RemoteSub::Node(_) => {}
                    RemoteSub::Share(share) => shares.push(Arc::clone(share)),
                }
            }
        }
        (nodes, shares)
    }
}

/// The writer's side.
#[derive(Debug, Default)]
pub(super) struct RemoteWriter {
    tree: Tree<RemoteSub>,
    everything: Arc<[u64]>,
    has_nodes: bool,
    /// By the whole filter.
    shares: HashMap<Arc<str>, Arc<RemoteShare>>,
    ids: u64,
}

impl RemoteWriter {
    /// What readers see.
    pub(super) fn version(&self) -> Remote {
        let tree = (!self.tree.is_empty()).then(|| self.tree.clone());
        Remote { tree, everything: Arc::clone(&self.everything), has_nodes: self.has_nodes }
    }

    pub(super) fn set_has_nodes(&mut self, has_nodes: bool) {
        self.has_nodes = has_nodes;
    }

    pub(super) fn has_nodes(&self) -> bool {
        self.has_nodes
    }

    pub(super) fn set_everything(&mut self, nodes: &[u64]) {
        self.everything = Arc::from(nodes);
    }

    /// The nodes with members of the share with this whole filter.
    pub(super) fn share(&self, filter: &str) -> Option<&Arc<RemoteShare>> {
        self.shares.get(filter)
    }

    pub(super) fn add(&mut self, node: u64, filter: &session::topic::TopicFilter) {
        if filter.share().is_none() {
            self.tree.insert(filter.pattern(), RemoteSub::Node(node));
            return;
        }
        let old = self.shares.get(&filter.full);
        let mut nodes = old.map_or_else(Vec::new, |share| share.nodes.to_vec());
        let Err(at) = nodes.binary_search(&node) else { return };
        nodes.insert(at, node);
        let (id, turn) = match old {
            Some(share) => (share.id, Arc::clone(&share.turn)),
            None => {
                self.ids += 1;
                (self.ids, Arc::default())
            }
        };
        self.put(filter, RemoteShare { id, filter: Arc::clone(&filter.full), nodes: nodes.into(), turn });
    }

    pub(super) fn remove(&mut self, node: u64, filter: &session::topic::TopicFilter) {
        if filter.share().is_none() {
            self.tree.remove(filter.pattern(), (false, node));
            return;
        }
        let Some(old) = self.shares.get(&filter.full) else { return };
        let nodes: Box<[u64]> = old.nodes.iter().copied().filter(|other| *other != node).collect();
        if nodes.is_empty() {
            self.tree.remove(filter.pattern(), (true, old.id));
            self.shares.remove(&filter.full);
        } else {
            let (id, turn) = (old.id, Arc::clone(&old.turn));
            self.put(filter, RemoteShare { id, filter: Arc::clone(&filter.full), nodes, turn });
        }
    }

    fn put(&mut self, filter: &session::topic::TopicFilter, share: RemoteShare) {
        let share = Arc::new(share);
        self.shares.insert(Arc::clone(&filter.full), Arc::clone(&share));
        self.tree.insert(filter.pattern(), RemoteSub::Share(share));
    }
}

#[cfg(test)]
mod tests {
    use session::topic::TopicFilter;

    use super::*;

    fn filter(text: &str) -> TopicFilter {
        TopicFilter::parse(text).expect("a valid filter")
    }

    fn nodes(writer: &RemoteWriter, topic: &str) -> Vec<u64> {
        writer.version().matches(topic).0.to_vec()
    }

    /// P7: each node once a message, whatever number of its filters match; nodes that are not known get everything but `$SYS`.
    #[test]
    fn p7_a_node_is_matched_once() {
        let mut writer = RemoteWriter::default();
        for (node, text) in [(2, "a/+"), (2, "a/b"), (3, "#"), (3, "c")] {
            writer.add(node, &filter(text));
        }
        assert_eq!(nodes(&writer, "a/b"), [3, 2]);
        assert_eq!(nodes(&writer, "c"), [3]);
        assert!(nodes(&writer, "$SYS/broker/uptime").is_empty());
        writer.set_everything(&[2, 4]);
        assert_eq!(nodes(&writer, "c"), [2, 4, 3]);
        writer.set_everything(&[]);
        for (node, text) in [(2, "a/+"), (2, "a/b"), (3, "#"), (3, "c"), (9, "never")] {
            writer.remove(node, &filter(text));
        }
        assert!(nodes(&writer, "a/b").is_empty());
        assert!(writer.version().tree.is_none(), "a node without peers looks at nothing");
    }

    /// [MQTT-4.8.2-4]: nodes with members of a share take turns.
    #[test]
    fn mqtt_4_8_2_nodes_of_a_share_take_turns() {
        let mut writer = RemoteWriter::default();
        let share = filter("$share/g/a/#");
        for node in [3, 2, 3] {
            writer.add(node, &share);
        }
        let matched = writer.version().matches("a/b").1;
        assert_eq!(matched.len(), 1);
        assert_eq!([(); 3].map(|()| matched[0].pick(&[])), [2, 3, 2]);
        assert_eq!([(); 3].map(|()| matched[0].pick(&[2])), [3; 3]);
        assert!(matched[0].has_other(&[2]) && !matched[0].has_other(&[3, 2]));
        writer.remove(2, &share);
        assert_eq!(writer.version().matches("a/b").1[0].pick(&[]), 3);
        writer.remove(3, &share);
        assert!(writer.version().matches("a/b").1.is_empty());
        assert!(writer.shares.is_empty());
    }
}
