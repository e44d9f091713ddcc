//! What SIGHUP changes, and what it cannot.

use std::collections::BTreeMap;

use super::Config;
use super::schema::{Apply, KEYS};

/// The difference between the running configuration and a newly read one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reload {
    /// Keys whose new value is in effect.
    pub changed: Vec<String>,
    /// Keys whose new value waits for a restart.
    pub needs_restart: Vec<String>,
}

impl Config {
    /// What a reload to `new` would do.
    #[must_use]
    pub fn reload(&self, new: &Self) -> Reload {
        let before: BTreeMap<String, Option<String>> = self.values().into_iter().collect();
        let after: BTreeMap<String, Option<String>> = new.values().into_iter().collect();
        let mut reload = Reload::default();
        for key in before.keys().chain(after.keys().filter(|key| !before.contains_key(*key))) {
            if before.get(key) == after.get(key) {
                continue;
            }
            let live = KEYS.iter().any(|known| known.name == key && known.apply == Apply::Live);
            if live { &mut reload.changed } else { &mut reload.needs_restart }.push(key.clone());
        }
        reload
    }

    /// The running configuration with every reloadable value of `new`.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> Self {
        let mut merged = self.clone();
        for key in KEYS.iter().filter(|key| key.apply == Apply::Live) {
            (key.copy)(new, &mut merged);
        }
        merged
    }
}
