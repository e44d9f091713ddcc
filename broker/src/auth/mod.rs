//! Who a client is, and what it may do: password file, client certificates, tokens, SCRAM, an HTTP hook, ACL.
//!
//! [`Authority`] is asked by the connect use case once a CONNECT, and by the router per message. It holds one immutable
//! policy that a reload swaps whole; its epoch grows with every swap, so whoever remembers a decision can see that it is old.
//!
//! The first of these that speaks of a client decides about it: its certificate, the password file when it has the user, the token
//! in its password, the hook. A CONNECT with an Authentication Method is for SCRAM alone. Nobody is let in by a later one whom an earlier one refused.

mod acl;
mod bridge;
mod cache;
mod claimed;
mod error;
mod filter;
mod grants;
mod hook;
mod jwt;
mod password;
mod policy;
mod pool;
mod principal;
mod scram;
mod user_file;

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use gateway::service::{AuthRequest, AuthStep, Authenticated};
use ring::rand::{SecureRandom as _, SystemRandom};
use session::time::Millis;

pub use acl::{Acl, Subscribing};
pub use bridge::{bridge_user, is_bridge_user};
pub use error::AuthFileError;
pub(crate) use error::read_text;
pub use grants::{Brought, ClientRules, Grants};
pub use jwt::{KeyMark, TokenFault, Tokens};
pub(crate) use password::same_bytes;
pub use password::{PasswordFile, add_user, remove_user};
pub use policy::check_hooks;
pub use principal::{Credentials, Denied, Principal, Proof};
pub use scram::{ScramFile, add_scram_user, remove_scram_user};
pub(crate) use user_file::Editing;

use crate::config::Config;
use crate::metrics::{AuthOutcome, ControlRecorder};
use acl::Who;
use cache::Cache;
use hook::{Answer, Hook, Question, Verdict};
use policy::Policy;
use pool::Pool;
use scram::Challenge;

/// Bytes of a nonce, before it is written in base64.
const NONCE_BYTES: usize = 18;

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
    random: SystemRandom,
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
            random: SystemRandom::new(),
            metrics,
        })
    }

    /// Reads the files again and swaps the policy; the keys of the files whose content changed. The next message of a connected client
    /// meets the new rules, and whoever [`Self::admits`] no more is to be closed.
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
        let is_of_file = credentials.user_name.as_ref().is_some_and(|user| policy.has_user(user));
        if let (false, Some(tokens), Some(password)) = (is_of_file, &policy.tokens, &credentials.password)
            && Tokens::looks_like_one(password)
        {
            let checked = self.check_token(tokens.clone(), &credentials, password.clone()).await?;
            return of_no_file(&policy, checked);
        }
        if let (false, Some(hook)) = (is_of_file, &policy.hook)
            && let Some(checked) = ask_hook(hook, &credentials).await?
        {
            return of_no_file(&policy, checked);
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

    /// A bridge of this node, which needs no proof. It may do what its topics say, and no rule denies to its user.
    ///
    /// # Errors
    /// There is no such bridge (any more).
    pub fn bridge(&self, name: &str) -> Result<Principal, Denied> {
        let policy = self.policy.load();
        let rules = policy.bridges.get(&*bridge_user(name)).ok_or(Denied::NotAuthorized)?;
        let principal = Principal::new(Some(bridge_user(name)), Proof::Bridge);
        Ok(Principal { rules: Some(Arc::clone(rules)), ..principal })
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

    /// Whoever is let in, with the rules that the hook for rules adds to those it brought.
    ///
    /// # Errors
    /// The hook does not let it in, or does not answer.
    pub async fn with_rules(
        &self,
        principal: Principal,
        client_id: &str,
        peer: SocketAddr,
        now: Millis,
    ) -> Result<Principal, Denied> {
        let policy = self.policy.load_full();
        let Some(hook) = &policy.rules_hook else { return Ok(principal) };
        let question = Question {
            client_id,
            username: principal.user.as_deref(),
            password: None,
            password_base64: None,
            address: peer.ip().to_canonical().to_string(),
            certificate_cn: None,
        };
        let answer = hook.ask(&question, now.0).await?;
        match answer.result {
            Verdict::Ignore => return Ok(principal),
            Verdict::Deny => return Err(Denied::NotAuthorized),
            Verdict::Allow if answer.is_over(now.0) => return Err(Denied::NotAuthorized),
            Verdict::Allow => {}
        }
        let added = rules_of(&answer, principal.user.as_deref(), client_id)?;
        let until = [principal.until, answer.until_ms().map(Millis)].into_iter().flatten().min();
        let rules = match (principal.rules, added) {
            (Some(brought), Some(added)) => Some(Arc::new(brought.joined(&added))),
            (brought, added) => brought.or(added),
        };
        Ok(Principal { until, rules, ..principal })
    }

    /// One step of an enhanced authentication (MQTT 5 §4.12) with SCRAM-SHA-256.
    ///
    /// # Errors
    /// The method is not known here, or why the client is not let in.
    pub fn exchange(&self, request: AuthRequest) -> Result<AuthStep, Denied> {
        let policy = self.policy.load();
        let file = policy.scram.as_ref().filter(|_| &*request.method == scram::METHOD);
        let Some(file) = file else { return Err(Denied::UnknownMethod) };
        let step = match request.state {
            None => Challenge::new(file, &request.data, &self.nonce()?).map(|challenge| AuthStep::Continue {
                data: challenge.server_first().as_bytes().into(),
                state: Box::new(challenge),
            }),
            // No other state was given out.
            Some(state) => match state.downcast::<Challenge>() {
                Ok(challenge) => challenge.finish(&request.data).map(|finished| {
                    self.metrics.auth(AuthOutcome::Scram);
                    AuthStep::Complete(Authenticated {
                        user: finished.user,
                        method: request.method.clone(),
                        data: Some(finished.server_final),
                    })
                }),
                Err(_) => return Err(Denied::NotAuthorized),
            },
        };
        step.map_err(|fault| {
            tracing::debug!(peer = %request.peer.address, %fault, "a SCRAM exchange failed");
            self.metrics.auth(AuthOutcome::Denied);
            Denied::NotAuthorized
        })
    }

    fn nonce(&self) -> Result<String, Denied> {
        let mut nonce = [0; NONCE_BYTES];
        self.random.fill(&mut nonce).map_err(|_| Denied::Busy)?;
        Ok(STANDARD.encode(nonce))
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

/// Nor is a user of a file let in by somebody else whom a CONNECT without a name asks.
fn of_no_file(
    policy: &Policy,
    checked: (Principal, AuthOutcome),
) -> Result<(Principal, AuthOutcome), Denied> {
    let is_of_file = checked.0.user.as_ref().is_some_and(|user| policy.has_user(user));
    if is_of_file { Err(Denied::BadCredentials) } else { Ok(checked) }
}

/// `None`: the hook does not know the client.
async fn ask_hook(
    hook: &Arc<Hook>,
    credentials: &Credentials,
) -> Result<Option<(Principal, AuthOutcome)>, Denied> {
    let now_ms = credentials.now.0;
    let password = credentials.password.as_deref();
    let text = password.and_then(|password| std::str::from_utf8(password).ok());
    let question = Question {
        client_id: &credentials.client_id,
        username: credentials.user_name.as_deref(),
        password: text,
        password_base64: password.filter(|_| text.is_none()).map(|password| STANDARD.encode(password)),
        address: credentials.peer.ip().to_canonical().to_string(),
        certificate_cn: credentials.certificate_cn.as_deref(),
    };
    let answer = hook.ask(&question, now_ms).await?;
    match answer.result {
        Verdict::Ignore => return Ok(None),
        Verdict::Deny => return Err(Denied::BadCredentials),
        Verdict::Allow if answer.is_over(now_ms) => return Err(Denied::BadCredentials),
        Verdict::Allow => {}
    }
    let said = || credentials.user_name.clone().filter(|name| !name.is_empty());
    let user = answer.user.as_deref().map(Arc::from).or_else(said);
    let rules = rules_of(&answer, user.as_deref(), &credentials.client_id)?;
    let principal =
        Principal { until: answer.until_ms().map(Millis), rules, ..Principal::new(user, Proof::Hook) };
    named(principal, AuthOutcome::Hook).map(Some)
}

/// Rules that cannot be read are no rules to let anybody in with.
fn rules_of(
    answer: &Answer,
    user: Option<&str>,
    client_id: &str,
) -> Result<Option<Arc<ClientRules>>, Denied> {
    let Some(acl) = &answer.acl else { return Ok(None) };
    let rules = ClientRules::read(acl, Who { user, client_id });
    rules.map(|rules| Some(Arc::new(rules))).ok_or(Denied::Unavailable)
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
