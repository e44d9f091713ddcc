//! All tokens that are good now: the one of the first start and those of the tokens file. A reload swaps them at once, also under calls
//! that go on.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use arc_swap::ArcSwap;
use ring::digest::{SHA256, digest};
use tokio::sync::watch;

use super::role::{Caller, Role};
use super::token::{AdminToken, TokenError};
use super::tokens_file::TokensFile;
use crate::auth::same_bytes;
use crate::config::Config;

/// SHA-256 of a token, which is random: nothing that could be guessed stands behind it.
pub(super) fn mark_of(secret: &[u8]) -> [u8; 32] {
    let mut mark = [0; 32];
    mark.copy_from_slice(digest(&SHA256, secret).as_ref());
    mark
}

/// One good token.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    /// `None`: the one of the first start.
    name: Option<Arc<str>>,
    role: Role,
    mark: [u8; 32],
}

/// The tokens of one look at their files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens(Vec<Known>);

impl Tokens {
    /// Reads both files; that of the first token is made when it is missing.
    ///
    /// # Errors
    /// A file that cannot be read or used: nobody is let in on half of what was meant.
    pub fn read(config: &Config) -> Result<Self, TokenError> {
        let path = config.token_file();
        let first = AdminToken::open(&path)?;
        if first.is_exposed() {
            tracing::warn!(file = %path.display(), "others than its owner may read the admin token; chmod 600 it");
        }
        let first = Known { name: None, role: Role::Admin, mark: mark_of(first.secret().as_bytes()) };
        let further = read_further(config)?.into_iter().flat_map(|file| file.tokens);
        let further =
            further.map(|token| Known { name: Some(token.name), role: token.role, mark: token.mark });
        Ok(Self(std::iter::once(first).chain(further).collect()))
    }
}

/// The tokens file; `None`: there is none, and none was named.
pub(crate) fn read_further(config: &Config) -> Result<Option<TokensFile>, TokenError> {
    let path = config.tokens_file();
    let there = |path: &Path| path.try_exists().unwrap_or(true);
    if config.admin.tokens_file.is_none() && !there(&path) {
        return Ok(None);
    }
    TokensFile::read(&path).map(Some)
}

/// Says who calls.
#[derive(Debug)]
pub struct Callers {
    tokens: ArcSwap<Tokens>,
    /// Changes with every swap.
    turns: watch::Sender<()>,
}

impl Callers {
    #[must_use]
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens: ArcSwap::from_pointee(tokens), turns: watch::Sender::new(()) }
    }

    /// From now on these tokens are good, and no others; what of them changed.
    pub fn adopt(&self, tokens: Tokens) -> Vec<&'static str> {
        let before = self.tokens.swap(Arc::new(tokens));
        let now = self.tokens.load();
        self.turns.send_replace(());
        let first = before.0.first() != now.0.first();
        let further = before.0.get(1..) != now.0.get(1..);
        let changed = [("admin.token_file", first), ("admin.tokens_file", further)];
        changed.into_iter().filter_map(|(key, changed)| changed.then_some(key)).collect()
    }

    /// Whoever has the token in this header. Looks at all of them, whichever it is.
    pub(super) fn find(&self, header: &[u8], from: SocketAddr) -> Option<Caller> {
        let (scheme, presented) = header.split_at_checked("Bearer ".len())?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        let mark = mark_of(presented.trim_ascii());
        let mut found = None;
        for known in &self.tokens.load().0 {
            if same_bytes(&known.mark, &mark) && found.is_none() {
                found = Some(known.clone());
            }
        }
        let Known { name, role, mark } = found?;
        Some(Caller { name, role, mark, needs: Role::Admin, from })
    }

    /// Whether the token of a call that goes on is still good for it.
    fn allows(&self, caller: &Caller) -> bool {
        let is_it = |known: &&Known| known.name == caller.name && known.mark == caller.mark;
        self.tokens.load().0.iter().find(is_it).is_some_and(|known| known.role >= caller.needs)
    }

    /// Returns when the token is not good for the call any more.
    pub(super) async fn revoked(&self, caller: &Caller) {
        let mut turns = self.turns.subscribe();
        while self.allows(caller) {
            if turns.changed().await.is_err() {
                return;
            }
        }
    }
}
