//! The backends `memory` and `embedded`: the lease table of a [`ChannelStore`], reached by its commands. What differs is the store.

use std::sync::Arc;
use std::time::Duration;

use session::lease::{LeaseCommand, LeaseOutcome, LeaseRefusal, LeaseReply, TTL_MS_MIN};

use super::{Alive, LeaseBackend, LeaseError, LeaseFuture, LeaseRef};
use crate::queue::{ChannelStore, Request, Response, Unavailable};

/// Leases of one group of a store.
#[derive(Debug)]
pub struct TableBackend {
    store: Arc<dyn ChannelStore>,
    group: u16,
    uid: String,
}

impl TableBackend {
    #[must_use]
    pub fn new(store: Arc<dyn ChannelStore>, group: u16) -> Self {
        let uid = format!("{}/{group}", store.name());
        Self { store, group, uid }
    }

    /// Does `commands`; the store lets lease time pass first.
    async fn call(&self, commands: Vec<LeaseCommand>) -> Result<Vec<LeaseReply>, Unavailable> {
        match self.store.call(self.group, Request::Leases(commands)).await? {
            Response::Leases(replies) => Ok(replies),
            _ => Err(Unavailable("the store gave another answer than was asked for".to_owned())),
        }
    }

    async fn one(&self, command: LeaseCommand) -> Result<LeaseOutcome, LeaseError> {
        let replies = self.call(vec![command]).await.map_err(|error| self.unavailable(error.0))?;
        let reply = replies.into_iter().next().ok_or_else(|| self.unavailable("no reply".to_owned()))?;
        reply.outcome.map_err(|refusal| match refusal {
            LeaseRefusal::Ttl(ttl_ms) => {
                LeaseError::Ttl { backend: self.uid.clone(), ttl_ms, min_ms: TTL_MS_MIN }
            }
            LeaseRefusal::Gone | LeaseRefusal::NotYours | LeaseRefusal::TooMany(_) => LeaseError::Gone,
        })
    }

    fn unavailable(&self, reason: String) -> LeaseError {
        LeaseError::Unavailable { backend: self.uid.clone(), reason }
    }

    fn check(&self, lease: LeaseRef) -> Result<u64, LeaseError> {
        let ours = lease.incarnation == self.incarnation();
        ours.then_some(lease.id).ok_or_else(|| LeaseError::Incarnation(self.uid.clone()))
    }
}

impl LeaseBackend for TableBackend {
    fn uid(&self) -> &str {
        &self.uid
    }

    /// Each group counts its leases by itself: they are told apart here.
    fn incarnation(&self) -> u64 {
        self.store.incarnation().wrapping_add(u64::from(self.group))
    }

    fn grant(&self, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
        Box::pin(async move {
            match self.one(LeaseCommand::Grant { ttl_ms: millis(ttl) }).await? {
                LeaseOutcome::Granted { lease } => {
                    Ok(LeaseRef { incarnation: self.incarnation(), id: lease })
                }
                other => Err(self.unavailable(format!("unexpected answer {other:?}"))),
            }
        })
    }

    fn keepalive(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>> {
        Box::pin(async move {
            // 0 is no lease: what is of another incarnation is gone.
            let ids = leases.iter().map(|lease| self.check(*lease).unwrap_or(0)).collect();
            match self.one(LeaseCommand::Keepalive { leases: ids }).await {
                Ok(LeaseOutcome::Kept { left_ms }) if left_ms.len() == leases.len() => {
                    left_ms.into_iter().map(alive).collect()
                }
                _ => vec![Alive::Unknown; leases.len()],
            }
        })
    }

    fn probe(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>> {
        Box::pin(async move {
            let ids = leases.iter().map(|lease| self.check(*lease).unwrap_or(0)).collect();
            match self.store.call(self.group, Request::LeasesLeft(ids)).await {
                Ok(Response::LeasesLeft(left_ms)) if left_ms.len() == leases.len() => {
                    left_ms.into_iter().map(alive).collect()
                }
                _ => vec![Alive::Unknown; leases.len()],
            }
        })
    }

    fn set_ttl(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
        Box::pin(async move {
            let id = self.check(lease)?;
            self.one(LeaseCommand::SetTtl { lease: id, ttl_ms: millis(ttl) }).await.map(|_| lease)
        })
    }

    fn arm(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
        Box::pin(async move {
            let id = self.check(lease)?;
            self.one(LeaseCommand::Arm { lease: id, ttl_ms: millis(ttl) }).await.map(|_| lease)
        })
    }

    fn revoke(&self, lease: LeaseRef) -> LeaseFuture<'_, Result<(), LeaseError>> {
        Box::pin(async move {
            let id = self.check(lease)?;
            match self.one(LeaseCommand::Revoke { lease: id }).await {
                Ok(_) | Err(LeaseError::Gone) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}

fn alive(left_ms: Option<u64>) -> Alive {
    left_ms.map_or(Alive::Gone, |left_ms| Alive::Left(Duration::from_millis(left_ms)))
}

/// Rounded down: lease time is never ahead.
fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
