//! Who a client is, and what it may do: password file, client certificates, tokens, ACL.
//!
//! [`Authority`] is asked by the connect use case once a CONNECT, and by the router per message. It holds one immutable
//! policy that a reload swaps whole; its epoch grows with every swap, so whoever remembers a decision can see that it is old.
//!
//! The first of these that speaks of a client decides about it: its certificate, the password file when it has the user, the token
//! in its password. Nobody is let in by a later one whom an earlier one refused.

mod acl;
mod cache;
mod claimed;
mod error;
mod filter;
mod grants;
mod jwt;
mod password;
mod policy;
mod pool;
mod principal;
mod user_file;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use session::time::Millis;

pub use acl::{Acl, Subscribing};
pub use error::AuthFileError;
pub use grants::{Brought, ClientRules, Grants};
pub use jwt::{KeyMark, TokenFault, Tokens};
pub(crate) use password::same_bytes;
pub use password::{PasswordFile, add_user, remove_user};
pub use principal::{Credentials, Denied, Principal, Proof};

use crate::config::Config;
use crate::metrics::{AuthOutcome, ControlRecorder};
use cache::Cache;
use policy::Policy;
use pool::Pool;

/// A decision that may need a password check on another thread.
pub type Authenticating<'a> = Pin<Box<dyn Future<Output = Result<Principal, Denied>> + Send + 'a>>;

/// Says who a client is.
pub trait Authenticator: Send + Sync + fmt::Debug {
    fn authenticate(&self, credentials: Credentials) -> Authenticating<'_>;
}

/// Says what a user may do.
pub trait Authoriser: Send + Sync + fmt::Debug {
    /// The rules of a client as they are now.
    fn grants(&self, user: Option<&str>, brought: &Brought) -> Grants;
    /// Whether anybody may be denied anything, with the epoch of that answer.
    fn restricts(&self) -> (bool, u64);
    /// Grows with every change of the rules.
    fn epoch(&self) -> u64;
}

/// The access control of one node.
#[derive(Debug)]
pub struct Authority {
    policy: ArcSwap<Policy>,
    epoch: AtomicU64,
    cache: Cache,
    pool: Pool,
    metrics: ControlRecorder,
}

impl Authority {
    /// Reads the files that the configuration names and starts the threads that check passwords.
    ///
    /// # Errors
    /// A file that is missing or has a bad line: nobody is let in on half a policy.
    pub fn open(config: &Config, metrics: ControlRecorder) -> Result<Self, AuthFileError> {
        let policy = Policy::read(config, 1)?;
        let pool = Pool::start(usize::from(config.auth.hash_threads), config.auth.hash_queue_max)
            .map_err(AuthFileError::Threads)?;
        Ok(Self {
            policy: ArcSwap::from_pointee(policy),
            epoch: AtomicU64::new(1),
            cache: Cache::new().map_err(|_| AuthFileError::Random)?,
            pool,
            metrics,
        })
    }

    /// Reads the files again and swaps the policy; the keys of the files whose content changed. The next message of a connected client meets the new rules, and whoever
    /// [`Self::admits`] no more is to be closed.
    ///
    /// # Errors
    /// As [`Authority::open`]; the old policy then stays in force.
    pub fn reload(&self, config: &Config) -> Result<Vec<&'static str>, AuthFileError> {
        let policy = Policy::read(config, self.epoch.load(Ordering::Acquire) + 1)?;
        let epoch = policy.epoch;
        let changed = policy.changed_since(&self.policy.load());
        self.policy.store(Arc::new(policy));
        self.cache.clear();
        // After the store: who sees the new epoch gets the new policy.
        self.epoch.store(epoch, Ordering::Release);
        Ok(changed)
    }

    /// Decides who the client is. Does not block: a password is hashed on the pool unless it was right a short time ago.
    ///
    /// # Errors
    /// Why the client is not let in.
    pub async fn authenticate(&self, credentials: Credentials) -> Result<Principal, Denied> {
        let result = self.decide(credentials).await;
        let outcome = match &result {
            Ok((_, outcome)) => *outcome,
            Err(Denied::Busy) => AuthOutcome::Busy,
            Err(_) => AuthOutcome::Denied,
        };
        self.metrics.auth(outcome);
        result.map(|(principal, _)| principal)
    }

    async fn decide(&self, credentials: Credentials) -> Result<(Principal, AuthOutcome), Denied> {
        let policy = self.policy.load_full();
        if let (true, Some(cn)) = (policy.certificate_user, &credentials.certificate_cn) {
            // A client that says it is someone else than its certificate does is not guessed about.
            let same = credentials.user_name.as_ref().is_none_or(|name| name == cn);
            return if same { certified(cn.clone()) } else { Err(Denied::BadCredentials) };
        }
        let is_of_file = credentials.user_name.as_ref().is_some_and(|user| policy.has_password(user));
        if let (false, Some(tokens), Some(password)) = (is_of_file, &policy.tokens, &credentials.password)
            && Tokens::looks_like_one(password)
        {
            let checked = self.check_token(tokens.clone(), &credentials, password.clone()).await?;
            // Nor is a user of the file let in by a token that a CONNECT without a name brings.
            let is_of_file = checked.0.user.as_ref().is_some_and(|user| policy.has_password(user));
            return if is_of_file { Err(Denied::BadCredentials) } else { Ok(checked) };
        }
        let nobody = || {
            let principal = (Principal::new(None, LOGIN), AuthOutcome::Anonymous);
            policy.anonymous.then_some(principal).ok_or(Denied::NotAuthorized)
        };
        match (&policy.passwords, credentials.user_name, credentials.password) {
            (Some(_), Some(_), None) => Err(Denied::BadCredentials),
            (Some(passwords), Some(user), Some(password)) => {
                self.check_password(&policy, passwords.clone(), credentials.peer, user, password).await
            }
            // A name or a password was given to be looked at: that nothing here can is no reason to let it pass.
            (None, Some(_), _) if policy.authenticates() => Err(Denied::BadCredentials),
            _ => nobody(),
        }
    }

    /// The signature is verified on the pool, as passwords are: what one address floods it with holds up nobody else.
    async fn check_token(
        &self,
        tokens: Arc<Tokens>,
        credentials: &Credentials,
        token: Bytes,
    ) -> Result<(Principal, AuthOutcome), Denied> {
        let (name, client_id) = (credentials.user_name.clone(), credentials.client_id.clone());
        let now_ms = credentials.now.0;
        let check = move || tokens.check(&token, name.as_deref(), &client_id, now_ms);
        let checked = self.pool.run(credentials.peer.ip(), check).await.ok_or(Denied::Busy)?;
        let bearer = checked.map_err(|fault| {
            tracing::debug!(client_id = %credentials.client_id, %fault, "a token is not taken");
            Denied::BadCredentials
        })?;
        let principal = Principal {
            until: Some(Millis(bearer.until_ms)),
            rules: bearer.rules,
            ..Principal::new(Some(bearer.user), Proof::Token(bearer.key))
        };
        named(principal, AuthOutcome::Token)
    }

    async fn check_password(
        &self,
        policy: &Policy,
        passwords: Arc<PasswordFile>,
        peer: SocketAddr,
        user: Arc<str>,
        password: Bytes,
    ) -> Result<(Principal, AuthOutcome), Denied> {
        let tag = self.cache.tag(policy.epoch, &user, &password);
        if policy.cache_ms > 0 && self.cache.contains(&tag) {
            return named(Principal::new(Some(user), LOGIN), AuthOutcome::Cached);
        }
        let name = Arc::clone(&user);
        let verify = move || passwords.verify(&name, &password);
        let right = self.pool.run(peer.ip(), verify).await.ok_or(Denied::Busy)?;
        if !right {
            return Err(Denied::BadCredentials);
        }
        if policy.cache_ms > 0 {
            self.cache.insert(tag, policy.cache_ms, policy.cache_entries_max);
        }
        named(Principal::new(Some(user), LOGIN), AuthOutcome::Password)
    }

    /// Whether a connection of `user` (`None`: anonymous) may stay under the policy as it is now. A changed password closes nothing, a
    /// user that is gone does, and so does the key of a token that is gone.
    #[must_use]
    pub fn admits(&self, user: Option<&str>, proof: Proof) -> bool {
        self.policy.load().admits(user, proof)
    }

    /// The rules of a client as they are now.
    #[must_use]
    pub fn grants(&self, user: Option<&str>, brought: &Brought) -> Grants {
        self.policy.load().grants(user, brought)
    }

    /// Grows with every reload.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

/// A user name that was proved by itself, or nobody.
const LOGIN: Proof = Proof::Login { certified: false };

fn certified(cn: Arc<str>) -> Result<(Principal, AuthOutcome), Denied> {
    named(Principal::new(Some(cn), Proof::Login { certified: true }), AuthOutcome::Certificate)
}

fn named(principal: Principal, outcome: AuthOutcome) -> Result<(Principal, AuthOutcome), Denied> {
    let is_name = |user: &Arc<str>| session::id::check_identity(user, session::limits::UID_BYTES_MAX).is_ok();
    if !principal.user.as_ref().is_none_or(is_name) {
        return Err(Denied::BadCredentials);
    }
    Ok((principal, outcome))
}

impl Authenticator for Authority {
    fn authenticate(&self, credentials: Credentials) -> Authenticating<'_> {
        Box::pin(Self::authenticate(self, credentials))
    }
}

impl Authoriser for Authority {
    fn grants(&self, user: Option<&str>, brought: &Brought) -> Grants {
        Self::grants(self, user, brought)
    }
    fn restricts(&self) -> (bool, u64) {
        let policy = self.policy.load();
        (policy.restricts(), policy.epoch)
    }
    fn epoch(&self) -> u64 {
        Self::epoch(self)
    }
}

#[cfg(test)]
mod acl_test;
#[cfg(test)]
mod auth_test;
