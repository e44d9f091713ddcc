//! The configuration as text: the example file, and what `check-config` prints.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::error::Origin;
use super::load::Loaded;
use super::schema::{Apply, BRIDGE_KEYS, KEYS, Key, LISTENER_KEYS};
use super::{Bridge, Config, Listener};

const HEAD: &str = "\
# ExactMQ: every key with its default. A key may also be given as the environment variable EXACTMQ_SECTION_KEY (for example
# EXACTMQ_SESSION_RECEIVE_MAXIMUM) or as --set section.key=value. Flags win over the environment, the environment over this
# file. An unknown key, a wrong type or a value out of range is an error. Keys marked \"SIGHUP\" change without a restart.
";

impl Config {
    /// The documented example file: it parses, and gives exactly the defaults.
    #[must_use]
    pub fn example() -> String {
        let mut text = HEAD.to_owned();
        let defaults = Self::default();
        let mut section = "";
        for key in KEYS {
            let (of, name) = key.name.split_once('.').unwrap_or(("", key.name));
            if of != section {
                if section == "node" {
                    example_listener(&mut text);
                }
                section = of;
                let _ = write!(text, "\n[{section}]\n");
            }
            example_key(&mut text, name, key.doc, &(key.allowed)(), (key.show)(&defaults), key.apply);
        }
        example_bridge(&mut text);
        text
    }

    /// Every key with its effective value, as TOML.
    #[must_use]
    pub fn show(&self, origins: &BTreeMap<String, Origin>) -> String {
        let mut text = String::new();
        for (key, value) in self.values() {
            let origin = origins.get(&key).unwrap_or(&Origin::Default);
            let _ = match value {
                Some(value) => writeln!(text, "{key} = {value}  # {origin}"),
                None => writeln!(text, "# {key} is not set"),
            };
        }
        text
    }

    /// Every key with its effective value as TOML, listeners and bridges last; `None`: not set.
    #[must_use]
    pub fn values(&self) -> Vec<(String, Option<String>)> {
        let mut all: Vec<_> = KEYS.iter().map(|key| (key.name.to_owned(), (key.show)(self))).collect();
        for (name, listener) in &self.listeners {
            all.extend(
                LISTENER_KEYS
                    .iter()
                    .map(|key| (format!("listener.{name}.{}", key.name), (key.show)(listener))),
            );
        }
        for (name, bridge) in &self.bridges {
            let shown = |key: &Key<Bridge>| (format!("bridge.{name}.{}", key.name), (key.show)(bridge));
            all.extend(BRIDGE_KEYS.iter().map(shown));
        }
        all
    }
}

impl Loaded {
    /// What `exactmq check-config` prints for a valid configuration.
    #[must_use]
    pub fn report(&self) -> String {
        let mut text = self.config.show(&self.origins);
        for warning in &self.warnings {
            let _ = writeln!(text, "# warning: {warning}");
        }
        text
    }
}

fn example_listener(text: &mut String) {
    text.push_str(
        "\n# One section a listener; this one exists when no other is configured.\n[listener.mqtt]\n",
    );
    let defaults = Listener::default();
    for key in LISTENER_KEYS {
        example_key(text, key.name, key.doc, &(key.allowed)(), (key.show)(&defaults), key.apply);
    }
}

/// There is none by default: all of it is a comment.
fn example_bridge(text: &mut String) {
    text.push_str("\n# One section a bridge to another broker; there is none by default.\n# [bridge.NAME]\n");
    let defaults = Bridge::default();
    for key in BRIDGE_KEYS {
        let _ = writeln!(text, "# {} Allowed: {}. SIGHUP.", key.doc, (key.allowed)());
        let value = (key.show)(&defaults).map_or_else(String::new, |value| format!(" {value}"));
        let _ = writeln!(text, "# {} ={value}", key.name);
    }
}

fn example_key(text: &mut String, name: &str, doc: &str, allowed: &str, value: Option<String>, apply: Apply) {
    let reload = if apply == Apply::Live { " SIGHUP." } else { "" };
    let _ = writeln!(text, "# {doc} Allowed: {allowed}.{reload}");
    let _ = match value {
        Some(value) => writeln!(text, "{name} = {value}"),
        None => writeln!(text, "# {name} ="),
    };
}
