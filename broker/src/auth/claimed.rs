//! The list of rules that a token or a hook gives a client, as JSON:
//! `[{"permission": "allow", "action": "subscribe", "topic": "home/%u/#"}, …]`.

use serde::Deserialize;

use super::acl::{Access, Rule, Who, substitute};
use super::filter::is_valid;
use super::grants::ClientRules;

/// Rules of one client.
const RULES_MAX: usize = 256;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    permission: Permission,
    action: Action,
    topic: String,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Permission {
    Allow,
    Deny,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Action {
    Publish,
    Subscribe,
    All,
}

impl ClientRules {
    /// These and more.
    pub(super) fn joined(&self, more: &Self) -> Self {
        Self(self.0.iter().chain(&more.0).cloned().collect())
    }

    /// `%c` and `%u` stand for the client's names. `None`: it is no list of rules, or the names of the client would act as wildcards in
    /// it: nobody is let in on half of what was meant.
    pub(super) fn read(value: &serde_json::Value, who: Who<'_>) -> Option<Self> {
        let entries = Vec::<Entry>::deserialize(value).ok().filter(|entries| entries.len() <= RULES_MAX)?;
        entries.into_iter().map(|entry| rule(&entry, who)).collect::<Option<_>>().map(Self)
    }
}

fn rule(entry: &Entry, who: Who<'_>) -> Option<Rule> {
    let access = match (entry.permission, entry.action) {
        (Permission::Allow, Action::Publish) => Access::Write,
        (Permission::Allow, Action::Subscribe) => Access::Read,
        (Permission::Allow, Action::All) => Access::ReadWrite,
        (Permission::Deny, Action::Publish) => Access::DenyWrite,
        (Permission::Deny, Action::Subscribe) => Access::DenyRead,
        (Permission::Deny, Action::All) => Access::Deny,
    };
    let names_client = ["%c", "%u"].iter().any(|name| entry.topic.contains(name));
    let filter = if names_client {
        if who.is_wildcard() || who.user.is_none() && entry.topic.contains("%u") {
            return None;
        }
        String::from_utf8(substitute(&entry.topic, who.client_id, who.user.unwrap_or("")).into_vec()).ok()?
    } else {
        entry.topic.clone()
    };
    is_valid(&filter).then(|| Rule { access, filter: filter.into() })
}
