//! Passwords that were right a short time ago, so that a storm of reconnects does not hash each of them again.
//!
//! Only keyed digests are kept; the key is drawn at start and never leaves the process.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::error::Unspecified;
use ring::{hmac, rand};

#[derive(Debug)]
pub(super) struct Cache {
    key: hmac::Key,
    until: Mutex<HashMap<[u8; 32], Instant>>,
}

impl Cache {
    pub(super) fn new() -> Result<Self, Unspecified> {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new())?;
        Ok(Self { key, until: Mutex::default() })
    }

    /// Digest of one (policy, user, password).
    pub(super) fn tag(&self, epoch: u64, user: &str, password: &[u8]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(&epoch.to_be_bytes());
        context.update(&(user.len() as u64).to_be_bytes());
        context.update(user.as_bytes());
        context.update(password);
        let mut tag = [0; 32];
        tag.copy_from_slice(context.sign().as_ref());
        tag
    }

    pub(super) fn contains(&self, tag: &[u8; 32]) -> bool {
        self.until.lock().get(tag).is_some_and(|until| Instant::now() < *until)
    }

    pub(super) fn insert(&self, tag: [u8; 32], keep_ms: u64, entries_max: usize) {
        let now = Instant::now();
        let mut until = self.until.lock();
        if until.len() >= entries_max {
            until.retain(|_, until| now < *until);
        }
        // Full of live entries: the newcomer is hashed again next time, nobody else pays.
        if until.len() < entries_max {
            until.insert(tag, now + Duration::from_millis(keep_ms));
        }
    }

    pub(super) fn clear(&self) {
        self.until.lock().clear();
    }
}
