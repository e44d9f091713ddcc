//! Claims of nodes: one key a node that goes with its lease, and one record a boot that stays until the boot is over for everybody.
//!
//! ```text
//! {namespace}/v1/node/{node id}            the claim as JSON; under the node's lease
//! {namespace}/v1/boot/{node id}/{boot id}  id of the latest lease of that boot, in hex; under none
//! ```
//! The record is what makes "gone" a word of etcd: without it a missing key could as well be one that was never there.

use std::sync::Arc;

use etcd_client::{Client, Compare, CompareOp, GetOptions, PutOptions, Txn, TxnOp, TxnOpResponse};

use super::EtcdBackend;
use crate::lease::nodes::{ClaimError, NodeClaim, NodeLeases};
use crate::lease::{Alive, LeaseBackend, LeaseError, LeaseFuture, LeaseRef};

/// How often a claim that stands in the way is ended before it is given up: others may claim at the same time.
const ATTEMPTS: usize = 4;
/// Claims that are listed at most.
const CLAIMS_MAX: i64 = 1_024;
/// Records that one request drops.
const FORGOTTEN_AT_ONCE: usize = 64;

/// The claim that stands, and the lease that it is under (0: none).
struct Standing {
    value: Vec<u8>,
    lease: i64,
}

impl EtcdBackend {
    fn node_key(&self, node_id: u64) -> String {
        format!("{}/v1/node/{node_id}", self.namespace)
    }

    fn boot_key(&self, node_id: u64, boot_id: &str) -> String {
        format!("{}/v1/boot/{node_id}/{boot_id}", self.namespace)
    }

    /// `None`: it is made. Otherwise the one that stands in the way, which may be this very one: an answer may have been lost.
    async fn try_claim(
        &self,
        claim: &NodeClaim,
        value: &[u8],
        lease: i64,
    ) -> Result<Option<Standing>, LeaseError> {
        let (node, boot) = (self.node_key(claim.node_id), self.boot_key(claim.node_id, &claim.boot_id));
        let make = |client: Client| {
            let txn = Txn::new()
                .when([Compare::version(node.as_str(), CompareOp::Equal, 0)])
                .and_then([
                    TxnOp::put(node.as_str(), value, Some(PutOptions::new().with_lease(lease))),
                    TxnOp::put(boot.as_str(), format!("{lease:016x}"), None),
                ])
                .or_else([TxnOp::get(node.as_str(), None)]);
            async move {
                let answer = client.kv_client().txn(txn).await?;
                self.is_ours(answer.header())?;
                Ok(answer)
            }
        };
        let answer = self.ask(make).await?;
        if answer.succeeded() {
            return Ok(None);
        }
        let found = answer.op_responses().into_iter().find_map(|said| match said {
            TxnOpResponse::Get(got) => got
                .kvs()
                .first()
                .map(|found| Standing { value: found.value().to_vec(), lease: found.lease() }),
            _ => None,
        });
        let vanished = || self.unavailable("a claim was there and is not");
        found.map(Some).ok_or_else(vanished)
    }

    fn unavailable(&self, reason: &str) -> LeaseError {
        LeaseError::Unavailable { backend: self.uid.clone(), reason: reason.to_owned() }
    }

    async fn make_claim(
        &self,
        claim: &NodeClaim,
        lease: LeaseRef,
        ended: &[Arc<str>],
    ) -> Result<(), ClaimError> {
        let id = self.check(lease)?;
        let value = serde_json::to_vec(claim).map_err(|error| self.unavailable(&error.to_string()))?;
        for _ in 0..ATTEMPTS {
            let Some(standing) = self.try_claim(claim, &value, id).await? else { return Ok(()) };
            if standing.lease == id {
                return Ok(());
            }
            let holder: NodeClaim = serde_json::from_slice(&standing.value).map_err(|_| {
                let key = self.node_key(claim.node_id);
                let reason = format!(
                    "{key} holds what this version cannot read; remove it if nothing of that node runs"
                );
                LeaseError::Refused { backend: self.uid.clone(), reason }
            })?;
            let gives_way = holder.boot_id == claim.boot_id || ended.contains(&holder.boot_id);
            if !gives_way || standing.lease == 0 {
                return Err(ClaimError::Taken(Box::new(holder)));
            }
            let old = LeaseRef { incarnation: self.incarnation, id: standing.lease.cast_unsigned() };
            self.revoke(old).await?;
        }
        Err(self.unavailable("other claims of the node came and went").into())
    }

    /// The latest lease of a boot; `None`: there is no record of it.
    async fn lease_of(&self, key: &str) -> Result<Option<i64>, LeaseError> {
        let get = |client: Client| async move {
            let got = client.kv_client().get(key, None).await?;
            self.is_ours(got.header())?;
            Ok(got)
        };
        let got = self.ask(get).await?;
        let id = got.kvs().first().and_then(|found| found.value_str().ok());
        Ok(id.and_then(|id| u64::from_str_radix(id, 16).ok()).map(u64::cast_signed))
    }

    async fn boot_alive(&self, node_id: u64, boot_id: &str) -> Result<Alive, LeaseError> {
        let key = self.boot_key(node_id, boot_id);
        let Some(lease) = self.lease_of(&key).await? else { return Ok(Alive::Unknown) };
        match self.look(lease).await {
            // Unless it took another one meanwhile.
            Alive::Gone if self.lease_of(&key).await? == Some(lease) => Ok(Alive::Gone),
            Alive::Gone | Alive::Unknown => Ok(Alive::Unknown),
            left => Ok(left),
        }
    }

    async fn all_claims(&self) -> Result<Vec<NodeClaim>, LeaseError> {
        let keys = format!("{}/v1/node/", self.namespace);
        let get = |client: Client| {
            let (keys, options) = (keys.as_str(), GetOptions::new().with_prefix().with_limit(CLAIMS_MAX));
            async move {
                let got = client.kv_client().get(keys, Some(options)).await?;
                self.is_ours(got.header())?;
                Ok(got)
            }
        };
        let got = self.ask(get).await?;
        // What another version wrote and this one cannot read is nobody that it knows.
        Ok(got.kvs().iter().filter_map(|found| serde_json::from_slice(found.value()).ok()).collect())
    }

    async fn drop_records(&self, node_id: u64, boots: &[Arc<str>]) -> Result<(), LeaseError> {
        for some in boots.chunks(FORGOTTEN_AT_ONCE) {
            let delete = |client: Client| {
                let keys = some.iter().map(|boot| TxnOp::delete(self.boot_key(node_id, boot), None));
                let txn = Txn::new().and_then(keys.collect::<Vec<_>>());
                async move { self.is_ours(client.kv_client().txn(txn).await?.header()) }
            };
            self.ask(delete).await?;
        }
        Ok(())
    }
}

impl NodeLeases for EtcdBackend {
    fn claim<'a>(
        &'a self,
        claim: &'a NodeClaim,
        lease: LeaseRef,
        ended: &'a [Arc<str>],
    ) -> LeaseFuture<'a, Result<(), ClaimError>> {
        Box::pin(self.make_claim(claim, lease, ended))
    }

    fn claims(&self) -> LeaseFuture<'_, Result<Vec<NodeClaim>, LeaseError>> {
        Box::pin(self.all_claims())
    }

    fn boot<'a>(&'a self, node_id: u64, boot_id: &'a str) -> LeaseFuture<'a, Alive> {
        Box::pin(async move { self.boot_alive(node_id, boot_id).await.unwrap_or(Alive::Unknown) })
    }

    fn forget<'a>(&'a self, node_id: u64, boots: &'a [Arc<str>]) -> LeaseFuture<'a, Result<(), LeaseError>> {
        Box::pin(self.drop_records(node_id, boots))
    }
}
