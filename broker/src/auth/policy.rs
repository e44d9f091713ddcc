//! Everything that one configuration says about access, read whole.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::acl::{Acl, Rules};
use super::bridge;
use super::error::{self, AuthFileError};
use super::grants::{Brought, ClientRules, Grants};
use super::hook::Hook;
use super::jwt::Tokens;
use super::password::PasswordFile;
use super::principal::Proof;
use super::scram::ScramFile;
use crate::config::{Config, SubscribeRule};

#[derive(Debug)]
pub(super) struct Policy {
    pub(super) epoch: u64,
    pub(super) passwords: Option<Arc<PasswordFile>>,
    pub(super) tokens: Option<Arc<Tokens>>,
    pub(super) scram: Option<Arc<ScramFile>>,
    pub(super) hook: Option<Arc<Hook>>,
    /// The hook for rules.
    pub(super) rules_hook: Option<Arc<Hook>>,
    /// What bridges of this node may do, by their users.
    pub(super) bridges: HashMap<Arc<str>, Arc<ClientRules>>,
    acl: Option<Acl>,
    pub(super) anonymous: bool,
    pub(super) certificate_user: bool,
    subscribe: SubscribeRule,
    pub(super) cache_ms: u64,
    pub(super) cache_entries_max: usize,
    contents: Vec<(&'static str, Option<Digest>)>,
}

/// SHA-256 of a file.
type Digest = [u8; 32];

impl Policy {
    pub(super) fn read(config: &Config, epoch: u64) -> Result<Self, AuthFileError> {
        let auth = &config.auth;
        Ok(Self {
            epoch,
            passwords: auth.password_file.as_deref().map(PasswordFile::read).transpose()?.map(Arc::new),
            tokens: Tokens::read(auth)?.map(Arc::new),
            scram: auth.scram_file.as_deref().map(ScramFile::read).transpose()?.map(Arc::new),
            hook: Hook::open(auth.http_url.as_ref(), auth)?,
            rules_hook: Hook::open(config.acl.http_url.as_ref(), auth)?,
            bridges: bridge::rules(config),
            acl: config.acl.file.as_deref().map(Acl::read).transpose()?,
            anonymous: config.anonymous(),
            certificate_user: auth.certificate_user,
            subscribe: config.acl.subscribe,
            cache_ms: u64::from(auth.cache_s) * 1_000,
            cache_entries_max: auth.cache_entries_max,
            contents: contents(config)?,
        })
    }

    /// Keys of the files that have another content than they had under `before`.
    pub(super) fn changed_since(&self, before: &Self) -> Vec<&'static str> {
        let pairs = before.contents.iter().zip(&self.contents);
        pairs.filter(|(before, now)| before != now).map(|(_, (key, _))| *key).collect()
    }

    /// Whether somebody who gives no name, or a name and no proof, is asked for one.
    pub(super) fn authenticates(&self) -> bool {
        self.passwords.is_some() || self.tokens.is_some() || self.scram.is_some() || self.hook.is_some()
    }

    /// Whether the password file decides about this user.
    pub(super) fn has_password(&self, user: &str) -> bool {
        self.passwords.as_ref().is_some_and(|passwords| passwords.contains(user))
    }

    /// Whether a file decides about this user.
    pub(super) fn has_user(&self, user: &str) -> bool {
        self.has_password(user) || self.scram.as_ref().is_some_and(|scram| scram.contains(user))
    }

    /// See [`super::Authority::admits`].
    pub(super) fn admits(&self, user: Option<&str>, proof: Proof) -> bool {
        match (user, proof) {
            // Whom a file has by now, the file decides about.
            (Some(user), Proof::Token(_) | Proof::Hook) if self.has_user(user) => false,
            (_, Proof::Token(key)) => self.tokens.as_ref().is_some_and(|tokens| tokens.has(key)),
            (None, Proof::Login { .. }) => self.anonymous,
            (Some(user), Proof::Bridge) => self.bridges.contains_key(user),
            (None, Proof::Bridge) => false,
            (_, Proof::Hook) => self.hook.is_some(),
            (None, Proof::Scram) => false,
            (Some(user), Proof::Scram) => self.scram.as_ref().is_some_and(|scram| scram.contains(user)),
            (Some(user), Proof::Login { certified }) => {
                (certified && self.certificate_user) || self.has_password(user)
            }
        }
    }

    /// Whether there may be rules that are in no file.
    fn may_bring_rules(&self) -> bool {
        self.tokens.is_some() || self.hook.is_some() || self.rules_hook.is_some()
    }

    /// Whether anybody may be denied anything.
    pub(super) fn restricts(&self) -> bool {
        self.acl.is_some() || self.may_bring_rules()
    }

    pub(super) fn grants(&self, user: Option<&str>, brought: &Brought) -> Grants {
        let of_file = self.acl.as_ref().map(|acl| acl.rules(user));
        let brings = self.rules_hook.is_some()
            || user.is_some_and(bridge::is_bridge_user)
            || self.may_bring_rules() && !user.is_some_and(|user| self.has_user(user));
        let (brought, is_partial) = match brought {
            Brought::Known(rules) => (rules.clone(), false),
            Brought::Unknown => (None, brings),
        };
        Grants {
            epoch: self.epoch,
            user: user.map(Arc::from),
            // Where there is no file, rules that a client brought are all that it has.
            rules: of_file.or_else(|| brought.as_ref().map(|_| Arc::new(Rules::default()))),
            brought,
            is_partial,
            subscribe: self.subscribe,
        }
    }
}

/// Whether the hooks of a configuration can be asked.
///
/// # Errors
/// Authorities that cannot be read.
pub fn check_hooks(config: &Config) -> Result<(), AuthFileError> {
    let urls = config.auth.http_url.iter().chain(&config.acl.http_url);
    urls.into_iter().try_for_each(|url| Hook::check(url, config.auth.http_ca_file.as_deref()))
}

fn contents(config: &Config) -> Result<Vec<(&'static str, Option<Digest>)>, AuthFileError> {
    let auth = &config.auth;
    let files = [
        ("auth.password_file", &auth.password_file),
        ("acl.file", &config.acl.file),
        ("auth.jwt_secret_file", &auth.jwt_secret_file),
        ("auth.jwt_public_key_file", &auth.jwt_public_key_file),
        ("auth.jwt_jwks_file", &auth.jwt_jwks_file),
        ("auth.scram_file", &auth.scram_file),
        ("auth.http_ca_file", &auth.http_ca_file),
    ];
    files.into_iter().map(|(key, path)| Ok((key, path.as_deref().map(digest).transpose()?))).collect()
}

fn digest(path: &Path) -> Result<Digest, AuthFileError> {
    let text = error::read_content(path)?;
    let mut digest = Digest::default();
    digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, &text).as_ref());
    Ok(digest)
}
