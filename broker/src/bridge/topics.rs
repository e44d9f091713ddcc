//! Which topic here is which topic at the other broker, as mosquitto's `topic` lines mean it: the first line that matches decides.

use session::message::QoS;
use session::topic::{check_topic_name, filter_matches};

use crate::config::{TopicDirection, Topics};

/// The topics of one bridge, ready to be looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopicMap {
    lines: Box<[Line]>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Line {
    direction: TopicDirection,
    qos: QoS,
    /// Prefix and filter on each side.
    local: Name,
    remote: Name,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Name {
    prefix: Box<str>,
    filter: Box<str>,
}

/// A filter to subscribe to, with the highest QoS.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) filter: Box<str>,
    pub(super) qos: QoS,
}

impl TopicMap {
    pub(super) fn new(topics: &Topics) -> Self {
        let line = |topic: &crate::config::BridgeTopic| Line {
            direction: topic.direction,
            qos: topic.qos,
            local: Name { prefix: (&*topic.local_prefix).into(), filter: topic.local().into() },
            remote: Name { prefix: (&*topic.remote_prefix).into(), filter: topic.remote().into() },
        };
        Self { lines: topics.0.iter().map(line).collect() }
    }

    /// What is subscribed to here, and what at the other broker.
    pub(super) fn wanted(&self) -> (Vec<Wanted>, Vec<Wanted>) {
        let out = self.lines.iter().filter(|line| line.direction.is_out());
        let of_in = self.lines.iter().filter(|line| line.direction.is_in());
        (unique(out.map(|line| (&line.local, line.qos))), unique(of_in.map(|line| (&line.remote, line.qos))))
    }

    /// What the other broker calls a topic of this one; `None`: it is not sent there.
    pub(super) fn out(&self, topic: &str) -> Option<String> {
        let lines = self.lines.iter().filter(|line| line.direction.is_out());
        renamed(lines.map(|line| (&line.local, &line.remote)), topic)
    }

    /// What this broker calls a topic of the other one; `None`: it is not taken.
    pub(super) fn inward(&self, topic: &str) -> Option<String> {
        let lines = self.lines.iter().filter(|line| line.direction.is_in());
        renamed(lines.map(|line| (&line.remote, &line.local)), topic)
    }
}

/// One filter may stand in several lines: it is subscribed to once, with the highest QoS.
fn unique<'a>(lines: impl Iterator<Item = (&'a Name, QoS)>) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    for (Name { filter, .. }, qos) in lines {
        match wanted.iter_mut().find(|known| known.filter == *filter) {
            Some(known) => known.qos = known.qos.max(qos),
            None => wanted.push(Wanted { filter: filter.clone(), qos }),
        }
    }
    wanted
}

fn renamed<'a>(mut lines: impl Iterator<Item = (&'a Name, &'a Name)>, topic: &str) -> Option<String> {
    let (from, to) = lines.find(|(from, _)| filter_matches(&from.filter, topic))?;
    let renamed = format!("{}{}", to.prefix, topic.strip_prefix(&*from.prefix)?);
    // Both prefixes together may make a name that is too long, or none.
    check_topic_name(&renamed).is_ok().then_some(renamed)
}

#[cfg(test)]
#[path = "topics_test.rs"]
mod tests;
