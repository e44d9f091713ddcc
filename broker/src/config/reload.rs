//! What SIGHUP changes, and what it cannot.

use std::collections::BTreeMap;

use super::Config;
use super::schema::{Apply, KEYS, LISTENER_KEYS};

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
            if self.is_live(new, key) { &mut reload.changed } else { &mut reload.needs_restart }
                .push(key.clone());
        }
        reload
    }

    /// Whether a reload to `new` applies this key: a listener that is new or gone waits for a restart as a whole.
    fn is_live(&self, new: &Self, key: &str) -> bool {
        if ["admin.tls_cert", "admin.tls_key", "admin.tls_client_ca"].contains(&key) {
            // The socket of the admin API speaks http or https for as long as it is open.
            return self.admin.is_secure() == new.admin.is_secure();
        }
        if key.starts_with("bridge.") {
            return true;
        }
        let Some((listener, name)) = key.strip_prefix("listener.").and_then(|rest| rest.rsplit_once('.'))
        else {
            return KEYS.iter().any(|known| known.name == key && known.apply == Apply::Live);
        };
        let runs = self.listeners.contains_key(listener) && new.listeners.contains_key(listener);
        runs && LISTENER_KEYS.iter().any(|known| known.name == name && known.apply == Apply::Live)
    }

    /// The running configuration with every reloadable value of `new`.
    #[must_use]
    pub fn reloaded(&self, new: &Self) -> Self {
        let mut merged = self.clone();
        for key in KEYS.iter().filter(|key| key.apply == Apply::Live) {
            (key.copy)(new, &mut merged);
        }
        if self.admin.is_secure() != new.admin.is_secure() {
            let now = self.admin.clone();
            (merged.admin.tls_cert, merged.admin.tls_key) = (now.tls_cert, now.tls_key);
            merged.admin.tls_client_ca = now.tls_client_ca;
        }
        for (name, listener) in &mut merged.listeners {
            let Some(new) = new.listeners.get(name) else { continue };
            for key in LISTENER_KEYS.iter().filter(|key| key.apply == Apply::Live) {
                (key.copy)(new, listener);
            }
        }
        merged.bridges.clone_from(&new.bridges);
        merged
    }
}
