//! Authentication and rules over HTTP: a service of the operator is asked who a client is, or what it may do.
//!
//! It is asked on the control runtime, by so many at a time and for so long as is configured; no worker waits for it. A hook that does not
//! answer lets nobody in, and is left alone for a while ([`breaker`]).

mod answer;
mod breaker;
mod client;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use ring::{hmac, rand};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

pub(super) use answer::{Answer, Verdict};

use super::error::AuthFileError;
use super::principal::Denied;
use crate::config::{Auth, HookUrl};
use breaker::Breaker;
use client::{CallError, Client};

/// How many wait for each one that is asked about; more are refused at once.
const WAITING_PER_SLOT: usize = 8;

/// What the hook is asked about. Its JSON is the body of the request; the names are contracts.
#[derive(Serialize)]
pub(super) struct Question<'a> {
    pub(super) client_id: &'a str,
    pub(super) username: Option<&'a str>,
    /// When it is UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) password: Option<&'a str>,
    /// When it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) password_base64: Option<String>,
    pub(super) address: String,
    pub(super) certificate_cn: Option<&'a str>,
}

/// Why nothing is known of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Silent {
    /// The hook does not answer as it should.
    Down,
    /// Too many wait for it.
    Busy,
}

impl From<Silent> for Denied {
    fn from(silent: Silent) -> Self {
        match silent {
            Silent::Down => Self::Unavailable,
            Silent::Busy => Self::Busy,
        }
    }
}

/// One service that is asked.
#[derive(Debug)]
pub(super) struct Hook {
    client: Client,
    timeout: Duration,
    cache: Duration,
    entries_max: usize,
    slots: Semaphore,
    waiting: Semaphore,
    breaker: Mutex<Breaker>,
    /// Only keyed digests of what was asked are kept.
    key: hmac::Key,
    known: Mutex<HashMap<[u8; 32], (Answer, Instant)>>,
    /// Where it is asked; `None`: where the caller runs.
    runtime: Option<Handle>,
}

impl Hook {
    /// `None`: there is no URL.
    ///
    /// # Errors
    /// Authorities that cannot be read.
    pub(super) fn open(url: Option<&HookUrl>, auth: &Auth) -> Result<Option<Arc<Self>>, AuthFileError> {
        let Some(url) = url else { return Ok(None) };
        let slots = usize::from(auth.http_in_flight_max);
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &rand::SystemRandom::new());
        Ok(Some(Arc::new(Self {
            client: Client::new(url, auth.http_ca_file.as_deref())?,
            timeout: Duration::from_millis(u64::from(auth.http_timeout_ms)),
            cache: Duration::from_secs(u64::from(auth.http_cache_s)),
            entries_max: auth.cache_entries_max,
            slots: Semaphore::new(slots),
            waiting: Semaphore::new(slots * WAITING_PER_SLOT),
            breaker: Mutex::default(),
            key: key.map_err(|_| AuthFileError::Random)?,
            known: Mutex::default(),
            runtime: Handle::try_current().ok(),
        })))
    }

    /// Whether a URL and its authorities can be used.
    ///
    /// # Errors
    /// Authorities that cannot be read.
    pub(super) fn check(url: &HookUrl, authorities: Option<&Path>) -> Result<(), AuthFileError> {
        Client::new(url, authorities).map(drop)
    }

    /// The answer to a question, at the latest when its time is over.
    ///
    /// # Errors
    /// Nobody is let in then.
    pub(super) async fn ask(
        self: &Arc<Self>,
        question: &Question<'_>,
        now_ms: u64,
    ) -> Result<Answer, Silent> {
        let body = serde_json::to_vec(question).map_err(|_| Silent::Down)?;
        let mut tag = [0; 32];
        tag.copy_from_slice(hmac::sign(&self.key, &body).as_ref());
        if let Some(answer) = self.recall(&tag, now_ms) {
            return Ok(answer);
        }
        let _place = self.waiting.try_acquire().map_err(|_| Silent::Busy)?;
        if !self.breaker.lock().admits(Instant::now()) {
            return Err(Silent::Down);
        }
        let hook = Arc::clone(self);
        // A client that hangs up does not take the outcome with it: the breaker has to hear of it.
        let asking = async move { hook.call(body).await };
        let asked = match &self.runtime {
            Some(runtime) => runtime.spawn(asking).await.unwrap_or(Err(Silent::Down)),
            None => asking.await,
        };
        let answer = asked?;
        self.remember(tag, &answer, now_ms);
        Ok(answer)
    }

    async fn call(&self, body: Vec<u8>) -> Result<Answer, Silent> {
        let asked = async {
            // Closed by nobody.
            let _slot = self.slots.acquire().await.map_err(|_| CallError::Timeout)?;
            self.client.post(body.into()).await
        };
        let outcome = match tokio::time::timeout(self.timeout, asked).await {
            Ok(Ok((200, body))) => Answer::read(&body).ok_or(CallError::Answer),
            Ok(Ok((status, _))) => Err(CallError::Status(status)),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(CallError::Timeout),
        };
        if self.breaker.lock().done(outcome.is_ok(), Instant::now())
            && let Err(error) = &outcome
        {
            tracing::warn!(url = self.client.shown(), %error, "the hook fails; its clients are refused until it answers");
        }
        outcome.map_err(|error| {
            tracing::debug!(url = self.client.shown(), %error, "the hook did not answer");
            Silent::Down
        })
    }

    fn recall(&self, tag: &[u8; 32], now_ms: u64) -> Option<Answer> {
        let known = self.known.lock();
        let (answer, until) = known.get(tag)?;
        (Instant::now() < *until && !answer.is_over(now_ms)).then(|| answer.clone())
    }

    fn remember(&self, tag: [u8; 32], answer: &Answer, now_ms: u64) {
        if self.cache.is_zero() || answer.is_over(now_ms) {
            return;
        }
        let now = Instant::now();
        let mut known = self.known.lock();
        if known.len() >= self.entries_max {
            known.retain(|_, (_, until)| now < *until);
        }
        // Full of live entries: the newcomer is asked about again next time, nobody else pays.
        if known.len() < self.entries_max {
            known.insert(tag, (answer.clone(), now + self.cache));
        }
    }
}
