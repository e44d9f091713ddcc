//! Bridges of this node as users: they prove nothing, since nobody else can come in the way they do, and may do what their topics say.

use std::collections::HashMap;
use std::sync::Arc;

use super::acl::{Access, Rule};
use super::grants::ClientRules;
use crate::config::{Bridge, Config};

/// What the users of bridges begin with. Nobody who comes over a network is let in under such a name.
const PREFIX: &str = "bridge/";

/// The user of the bridge with this name; also its ClientID here.
#[must_use]
pub fn bridge_user(name: &str) -> Arc<str> {
    format!("{PREFIX}{name}").into()
}

/// Whether the name is one that only a bridge of this node has.
#[must_use]
pub fn is_bridge_user(user: &str) -> bool {
    user.starts_with(PREFIX)
}

/// The rules of every bridge, by its user.
pub(super) fn rules(config: &Config) -> HashMap<Arc<str>, Arc<ClientRules>> {
    let of = |(name, bridge): (&Arc<str>, &Bridge)| (bridge_user(name), Arc::new(rules_of(bridge)));
    config.bridges.iter().map(of).collect()
}

fn rules_of(bridge: &Bridge) -> ClientRules {
    let rule = |topic: &crate::config::BridgeTopic| {
        let access = match (topic.direction.is_out(), topic.direction.is_in()) {
            (true, true) => Access::ReadWrite,
            (false, _) => Access::Write,
            (true, false) => Access::Read,
        };
        Rule { access, filter: topic.local().into() }
    };
    ClientRules(bridge.topics.0.iter().map(rule).collect())
}
