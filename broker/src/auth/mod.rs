//! Who a client is, and what it may do: password file, client certificates, ACL.
//!
//! [`Authority`] is asked by the connect use case once a CONNECT, and by the router per message. It holds one immutable
//! policy that a reload swaps whole; its epoch grows with every swap, so whoever remembers a decision can see that it is old.

mod acl;
mod cache;
mod error;
mod filter;
mod password;
mod pool;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use bytes::Bytes;
use gateway::codec::ReasonCode;

pub use acl::{Acl, Subscribing};
pub use error::AuthFileError;
pub(crate) use password::same_bytes;
pub use password::{PasswordFile, add_user, remove_user};

use crate::config::{Config, SubscribeRule};
use crate::metrics::{AuthOutcome, ControlRecorder};
use acl::Rules;
use cache::Cache;
use pool::Pool;

/// What a CONNECT presents.
#[derive(Clone)]
pub struct Credentials {
    pub user_name: Option<Arc<str>>,
    /// Any bytes (MQTT 5 §3.1.3.6).
    pub password: Option<Bytes>,
    /// Common name of the verified client certificate.
    pub certificate_cn: Option<Arc<str>>,
    pub client_id: Arc<str>,
    pub peer: SocketAddr,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let password = self.password.as_ref().map(|_| "…");
        f.debug_struct("Credentials")
            .field("user_name", &self.user_name)
            .field("password", &password)
            .field("certificate_cn", &self.certificate_cn)
            .field("client_id", &self.client_id)
            .field("peer", &self.peer)
            .finish()
    }
}

/// An authenticated user; `None` is the anonymous one. A name that nothing verified never gets here.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Principal {
    pub user: Option<Arc<str>>,
}

/// Why a client is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    #[error("user name or password is wrong")]
    BadCredentials,
    #[error("credentials are needed")]
    NotAuthorized,
    /// Too many password checks wait.
    #[error("too many clients are being authenticated; try again")]
    Busy,
}

impl Denied {
    /// For CONNACK; 3.1.1 return codes 4, 5 and 3.
    #[must_use]
    pub const fn reason(self) -> ReasonCode {
        match self {
            Self::BadCredentials => ReasonCode::BadUserNameOrPassword,
            Self::NotAuthorized => ReasonCode::NotAuthorized,
            Self::Busy => ReasonCode::ServerBusy,
        }
    }
}

/// A decision that may need a password check on another thread.
pub type Authenticating<'a> = Pin<Box<dyn Future<Output = Result<Principal, Denied>> + Send + 'a>>;

/// Says who a client is.
pub trait Authenticator: Send + Sync + fmt::Debug {
    fn authenticate(&self, credentials: Credentials) -> Authenticating<'_>;
}

/// Says what a user may do.
pub trait Authoriser: Send + Sync + fmt::Debug {
    /// The rules of a user as they are now.
    fn grants(&self, user: Option<&str>) -> Grants;
    /// Grows with every change of the rules.
    fn epoch(&self) -> u64;
}

/// The rules of one user under one policy. Cheap to clone; keep it with the session and take it anew when the epoch moved.
#[derive(Debug, Clone)]
pub struct Grants {
    epoch: u64,
    user: Option<Arc<str>>,
    /// `None`: no ACL, everything is allowed.
    rules: Option<Arc<Rules>>,
    subscribe: SubscribeRule,
}

impl Grants {
    /// Epoch of the policy that these rules come from.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Whether there is an ACL at all; without one every question is answered yes.
    #[must_use]
    pub fn is_restricted(&self) -> bool {
        self.rules.is_some()
    }

    #[must_use]
    pub fn may_publish(&self, client_id: &str, topic: &str) -> bool {
        match &self.rules {
            None => true,
            Some(rules) => rules.may_write(self.user.as_deref(), client_id, topic),
        }
    }

    /// Whether a message on `topic` may be delivered.
    #[must_use]
    pub fn may_read(&self, client_id: &str, topic: &str) -> bool {
        match &self.rules {
            None => true,
            Some(rules) => rules.may_read(self.user.as_deref(), client_id, topic),
        }
    }

    /// Whether `filter` may be subscribed to, `$share/…/` included or not.
    #[must_use]
    pub fn may_subscribe(&self, client_id: &str, filter: &str) -> Subscribing {
        match &self.rules {
            None => Subscribing::Granted,
            Some(rules) => rules.subscribing(self.user.as_deref(), client_id, filter, self.subscribe),
        }
    }
}

/// How a connection proved who it is: what has to go on being true for it to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// A password, or nothing for the anonymous user. `certified`: the client's certificate names the same user.
    Login { certified: bool },
    /// An authentication method, which asks again by itself.
    Method,
}

/// Which files had another content at a reload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct FilesChanged {
    pub passwords: bool,
    pub rules: bool,
}

/// Everything that one configuration says about access.
#[derive(Debug)]
struct Policy {
    epoch: u64,
    passwords: Option<Arc<PasswordFile>>,
    acl: Option<Acl>,
    anonymous: bool,
    certificate_user: bool,
    subscribe: SubscribeRule,
    cache_ms: u64,
    cache_entries_max: usize,
    /// Digests of the password file and the rule file.
    digests: [Option<Digest>; 2],
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

impl Policy {
    fn read(config: &Config, epoch: u64) -> Result<Self, AuthFileError> {
        let auth = &config.auth;
        Ok(Self {
            epoch,
            passwords: auth.password_file.as_deref().map(PasswordFile::read).transpose()?.map(Arc::new),
            acl: config.acl.file.as_deref().map(Acl::read).transpose()?,
            anonymous: config.anonymous(),
            certificate_user: auth.certificate_user,
            subscribe: config.acl.subscribe,
            cache_ms: u64::from(auth.cache_s) * 1_000,
            cache_entries_max: auth.cache_entries_max,
            digests: [digest(auth.password_file.as_deref())?, digest(config.acl.file.as_deref())?],
        })
    }
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

    /// Reads the files again and swaps the policy. The next message of a connected client meets the new rules, and whoever
    /// [`Self::admits`] no more is to be closed.
    ///
    /// # Errors
    /// As [`Authority::open`]; the old policy then stays in force.
    pub fn reload(&self, config: &Config) -> Result<FilesChanged, AuthFileError> {
        let policy = Policy::read(config, self.epoch.load(Ordering::Acquire) + 1)?;
        let epoch = policy.epoch;
        let [passwords, rules] = {
            let before = self.policy.load();
            [0, 1].map(|file| before.digests[file] != policy.digests[file])
        };
        self.policy.store(Arc::new(policy));
        self.cache.clear();
        // After the store: who sees the new epoch gets the new policy.
        self.epoch.store(epoch, Ordering::Release);
        Ok(FilesChanged { passwords, rules })
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
        if let (true, Some(cn)) = (policy.certificate_user, credentials.certificate_cn) {
            // A client that says it is someone else than its certificate does is not guessed about.
            let same = credentials.user_name.is_none_or(|name| name == cn);
            return if same { named(cn, AuthOutcome::Certificate) } else { Err(Denied::BadCredentials) };
        }
        let anonymous = || {
            let principal = (Principal { user: None }, AuthOutcome::Anonymous);
            policy.anonymous.then_some(principal).ok_or(Denied::NotAuthorized)
        };
        let Some(passwords) = policy.passwords.clone() else { return anonymous() };
        let Some(user) = credentials.user_name else { return anonymous() };
        let Some(password) = credentials.password else { return Err(Denied::BadCredentials) };

        let tag = self.cache.tag(policy.epoch, &user, &password);
        if policy.cache_ms > 0 && self.cache.contains(&tag) {
            return named(user, AuthOutcome::Cached);
        }
        let name = Arc::clone(&user);
        let verify = move || passwords.verify(&name, &password);
        let right = self.pool.run(credentials.peer.ip(), verify).await.ok_or(Denied::Busy)?;
        if !right {
            return Err(Denied::BadCredentials);
        }
        if policy.cache_ms > 0 {
            self.cache.insert(tag, policy.cache_ms, policy.cache_entries_max);
        }
        named(user, AuthOutcome::Password)
    }

    /// Whether a connection of `user` (`None`: anonymous) may stay under the policy as it is now. A changed password closes nothing, a
    /// user that is gone does.
    #[must_use]
    pub fn admits(&self, user: Option<&str>, proof: Proof) -> bool {
        let policy = self.policy.load();
        match (user, proof) {
            (_, Proof::Method) => true,
            (None, Proof::Login { .. }) => policy.anonymous,
            (Some(user), Proof::Login { certified }) => {
                (certified && policy.certificate_user)
                    || policy.passwords.as_ref().is_some_and(|passwords| passwords.contains(user))
            }
        }
    }

    /// The rules of a user as they are now.
    #[must_use]
    pub fn grants(&self, user: Option<&str>) -> Grants {
        let policy = self.policy.load();
        Grants {
            epoch: policy.epoch,
            user: user.map(Arc::from),
            rules: policy.acl.as_ref().map(|acl| acl.rules(user)),
            subscribe: policy.subscribe,
        }
    }

    /// Grows with every reload.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }
}

/// SHA-256 of a file.
type Digest = [u8; 32];

fn digest(path: Option<&std::path::Path>) -> Result<Option<Digest>, AuthFileError> {
    let Some(path) = path else { return Ok(None) };
    let text = error::read_text(path)?;
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    Ok(Digest::try_from(digest.as_ref()).ok())
}

fn named(user: Arc<str>, outcome: AuthOutcome) -> Result<(Principal, AuthOutcome), Denied> {
    session::id::check_identity(&user, session::limits::UID_BYTES_MAX).map_err(|_| Denied::BadCredentials)?;
    Ok((Principal { user: Some(user) }, outcome))
}

impl Authenticator for Authority {
    fn authenticate(&self, credentials: Credentials) -> Authenticating<'_> {
        Box::pin(Self::authenticate(self, credentials))
    }
}

impl Authoriser for Authority {
    fn grants(&self, user: Option<&str>) -> Grants {
        Self::grants(self, user)
    }
    fn epoch(&self) -> u64 {
        Self::epoch(self)
    }
}

#[cfg(test)]
mod acl_test;
#[cfg(test)]
mod auth_test;
