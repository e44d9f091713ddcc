//! Topic aliases of one connection, a table for each direction (MQTT 5 §3.3.2.3.4).

use std::hash::BuildHasher;

use foldhash::fast::FixedState;

/// Aliases that the client defined; as long as the highest one used, at most the server's Topic Alias Maximum.
#[derive(Debug, Default)]
pub(super) struct AliasesIn {
    topics: Vec<Option<Box<str>>>,
}

impl AliasesIn {
    /// Binds `alias` to `topic`; false when it is 0 or above `maximum` ([MQTT-3.3.2-8], [MQTT-3.3.2-9]).
    pub(super) fn define(&mut self, alias: u16, topic: &str, maximum: u16) -> bool {
        if alias == 0 || alias > maximum {
            return false;
        }
        let index = usize::from(alias) - 1;
        if index >= self.topics.len() {
            self.topics.resize(index + 1, None);
        }
        if self.topics[index].as_deref() != Some(topic) {
            self.topics[index] = Some(topic.into());
        }
        true
    }

    /// The topic of `alias`, if it was defined on this connection ([MQTT-3.3.2-7]).
    pub(super) fn resolve(&self, alias: u16) -> Option<&str> {
        self.topics.get(usize::from(alias).checked_sub(1)?)?.as_deref()
    }
}

/// Longest topic that gets an alias: bounds the memory of the table.
const TOPIC_LEN_MAX: usize = 1024;
/// Shortest one: an alias costs three bytes.
const TOPIC_LEN_MIN: usize = 4;

/// Aliases that the server uses: a topic has one possible alias, chosen by its hash, and the newest topic keeps it.
#[derive(Debug)]
pub(super) struct AliasesOut {
    topics: Box<[Option<Box<str>>]>,
}

/// How a topic goes out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aliased {
    /// Name only.
    Plain,
    /// Name and alias: the client learns it.
    Define(u16),
    /// Alias only.
    Known(u16),
}

impl AliasesOut {
    /// A table of `maximum` aliases; `None` for 0.
    pub(super) fn new(maximum: u16) -> Option<Box<Self>> {
        (maximum > 0).then(|| Box::new(Self { topics: vec![None; usize::from(maximum)].into() }))
    }

    pub(super) fn look_up(&self, topic: &str) -> Aliased {
        if !(TOPIC_LEN_MIN..=TOPIC_LEN_MAX).contains(&topic.len()) {
            return Aliased::Plain;
        }
        let index = self.index(topic);
        // The table has at most 65,535 entries.
        let alias = index as u16 + 1;
        if self.topics[index].as_deref() == Some(topic) {
            Aliased::Known(alias)
        } else {
            Aliased::Define(alias)
        }
    }

    /// The client was told: `topic` has its alias from now on.
    pub(super) fn remember(&mut self, topic: &str) {
        let index = self.index(topic);
        self.topics[index] = Some(topic.into());
    }

    fn index(&self, topic: &str) -> usize {
        let hash = FixedState::default().hash_one(topic);
        (hash % self.topics.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [MQTT-3.3.2-8], [MQTT-3.3.2-9]: 0 and aliases above the maximum are refused; a redefinition replaces.
    #[test]
    fn inbound_table_is_bounded_and_replaces() {
        let mut table = AliasesIn::default();
        assert!(!table.define(0, "a", 3));
        assert!(!table.define(4, "a", 3));
        assert!(table.define(3, "a", 3));
        assert_eq!(table.resolve(3), Some("a"));
        assert!(table.define(3, "b", 3));
        assert_eq!(table.resolve(3), Some("b"));
        assert_eq!(table.resolve(1), None);
        assert_eq!(table.resolve(0), None);
    }

    /// [MQTT-3.1.2-26]: aliases out stay within the client's maximum; a colliding topic takes the alias over.
    #[test]
    fn outbound_table_stays_within_the_maximum() {
        let mut table = AliasesOut::new(1).expect("one alias");
        assert_eq!(table.look_up("topic/a"), Aliased::Define(1));
        table.remember("topic/a");
        assert_eq!(table.look_up("topic/a"), Aliased::Known(1));
        assert_eq!(table.look_up("topic/b"), Aliased::Define(1));
        table.remember("topic/b");
        assert_eq!(table.look_up("topic/a"), Aliased::Define(1));
        assert_eq!(table.look_up("ab"), Aliased::Plain);
        assert!(AliasesOut::new(0).is_none());
    }
}
