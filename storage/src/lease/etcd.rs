//! The backend `etcd`: leases of an etcd cluster 3.4 or newer. All of etcd-client is in this file.
//!
//! A process needs one lease, so one keepalive stream. Streams do not reconnect by themselves: a failed one is made anew by the next
//! keepalive. That a lease is gone is only believed from the TTL that etcd states, never from the text of an error.

use std::collections::HashMap;
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    TlsOptions,
};

use super::{Alive, LeaseBackend, LeaseError, LeaseFuture, LeaseRef};

/// Longest wait for one answer.
const CALL_TIMEOUT: Duration = Duration::from_millis(1_500);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A connection that is silent for the sum of both is dead.
const PING_INTERVAL: Duration = Duration::from_secs(2);
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// etcd gives no shorter lease.
const TTL_SEC_MIN: i64 = 2;
/// gRPC status NOT_FOUND.
const NOT_FOUND: i32 = 5;

#[derive(Debug, Clone)]
pub struct EtcdOptions {
    /// `http://host:port` or `https://host:port`; all members of the cluster.
    pub endpoints: Vec<String>,
    /// Before every key: two systems on one etcd do not meet.
    pub namespace: String,
    /// Name and password, where etcd asks for them.
    pub user: Option<(String, String)>,
    pub tls: Option<EtcdTls>,
}

/// Certificates in PEM.
#[derive(Clone)]
pub struct EtcdTls {
    pub authority: Vec<u8>,
    /// Certificate and key of this client, where etcd asks for one.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
    /// The name in etcd's certificate, where it is not that of the endpoint.
    pub server_name: Option<String>,
}

impl std::fmt::Debug for EtcdTls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdTls").field("server_name", &self.server_name).finish_non_exhaustive()
    }
}

/// Leases of an etcd cluster.
pub struct EtcdBackend {
    client: Client,
    uid: String,
    namespace: String,
    incarnation: u64,
    streams: tokio::sync::Mutex<HashMap<i64, (LeaseKeeper, LeaseKeepAliveStream)>>,
}

impl std::fmt::Debug for EtcdBackend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdBackend").field("uid", &self.uid).finish_non_exhaustive()
    }
}

impl EtcdBackend {
    /// Connects and learns which cluster it is.
    ///
    /// # Errors
    /// Nothing answers within 3 s; certificates or password do not fit.
    pub async fn connect(options: &EtcdOptions) -> Result<Self, LeaseError> {
        let uid = format!("etcd/{}/{}", options.endpoints.join(","), options.namespace);
        let mut connect = ConnectOptions::new()
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_keep_alive(PING_INTERVAL, PING_TIMEOUT)
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if let Some((name, password)) = &options.user {
            connect = connect.with_user(name, password).with_auto_token_refresh(true);
        }
        if let Some(tls) = &options.tls {
            connect = connect.with_tls(tls_options(tls));
        }
        let client =
            bounded(&uid, CONNECT_TIMEOUT, Client::connect(&options.endpoints, Some(connect))).await?;
        let key = format!("{}/v1/incarnation", options.namespace);
        let answer = bounded(&uid, CONNECT_TIMEOUT, client.kv_client().get(key, None)).await?;
        let incarnation = answer.header().map(|header| header.cluster_id()).unwrap_or_default();
        let streams = tokio::sync::Mutex::default();
        Ok(Self { client, uid, namespace: options.namespace.clone(), incarnation, streams })
    }

    fn check(&self, lease: LeaseRef) -> Result<i64, LeaseError> {
        let ours = lease.incarnation == self.incarnation;
        ours.then_some(lease.id.cast_signed()).ok_or_else(|| LeaseError::Incarnation(self.uid.clone()))
    }

    fn seconds(&self, ttl: Duration) -> Result<i64, LeaseError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let refused = || LeaseError::Ttl {
            backend: self.uid.clone(),
            ttl_ms: u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX),
            min_ms: 2_000,
        };
        i64::try_from(seconds).ok().filter(|seconds| *seconds >= TTL_SEC_MIN).ok_or_else(refused)
    }

    /// A lease with a key that shows it: operators see who is there, and the key goes with the lease.
    async fn grant_marked(&self, ttl: Duration) -> Result<LeaseRef, LeaseError> {
        let seconds = self.seconds(ttl)?;
        let granted = self.bounded(self.client.lease_client().grant(seconds, None)).await?;
        let id = granted.id();
        let key = format!("{}/v1/lease/{id:016x}", self.namespace);
        let bound = Some(PutOptions::new().with_lease(id));
        self.bounded(self.client.kv_client().put(key, seconds.to_string(), bound)).await?;
        Ok(LeaseRef { incarnation: self.incarnation, id: id.cast_unsigned() })
    }

    async fn keep(&self, id: i64) -> Alive {
        match tokio::time::timeout(CALL_TIMEOUT, self.keep_on_stream(id)).await {
            Ok(Ok(ttl)) if ttl > 0 => Alive::Left(seconds(ttl)),
            Ok(Ok(_)) => Alive::Gone,
            // Also an error that says "not found": only the TTL is believed.
            Ok(Err(_)) | Err(_) => {
                self.streams.lock().await.remove(&id);
                match self.look(id).await {
                    Alive::Gone => Alive::Gone,
                    Alive::Left(_) | Alive::Unknown => Alive::Unknown,
                }
            }
        }
    }

    async fn keep_on_stream(&self, id: i64) -> Result<i64, Error> {
        let open = self.streams.lock().await.remove(&id);
        let (mut keeper, mut stream) = match open {
            Some(open) => open,
            // Its first message is the answer to a first keepalive, which is swallowed: the one below states the TTL.
            None => self.client.lease_client().keep_alive(id).await?,
        };
        keeper.keep_alive().await?;
        let answer = stream.message().await?.ok_or_else(|| Error::LeaseKeepAliveError("ended".to_owned()))?;
        if answer.ttl() > 0 {
            self.streams.lock().await.insert(id, (keeper, stream));
        }
        Ok(answer.ttl())
    }

    async fn look(&self, id: i64) -> Alive {
        match self.bounded(self.client.lease_client().time_to_live(id, None)).await {
            Ok(answer) if answer.ttl() < 0 => Alive::Gone,
            Ok(answer) => Alive::Left(seconds(answer.ttl())),
            Err(_) => Alive::Unknown,
        }
    }

    async fn bounded<T>(&self, call: impl Future<Output = Result<T, Error>>) -> Result<T, LeaseError> {
        bounded(&self.uid, CALL_TIMEOUT, call).await
    }
}

async fn bounded<T>(
    uid: &str,
    within: Duration,
    call: impl Future<Output = Result<T, Error>>,
) -> Result<T, LeaseError> {
    let unavailable = |reason| LeaseError::Unavailable { backend: uid.to_owned(), reason };
    match tokio::time::timeout(within, call).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Error::GRpcStatus(status))) if status.code() as i32 == NOT_FOUND => Err(LeaseError::Gone),
        Ok(Err(error)) => Err(unavailable(error.to_string())),
        Err(_elapsed) => Err(unavailable(format!("no answer within {} ms", within.as_millis()))),
    }
}

fn tls_options(tls: &EtcdTls) -> TlsOptions {
    let mut options = TlsOptions::new().ca_certificate(Certificate::from_pem(&tls.authority));
    if let Some((certificate, key)) = &tls.identity {
        options = options.identity(Identity::from_pem(certificate, key));
    }
    if let Some(name) = &tls.server_name {
        options = options.domain_name(name);
    }
    options
}

fn seconds(ttl: i64) -> Duration {
    Duration::from_secs(u64::try_from(ttl).unwrap_or_default())
}

impl LeaseBackend for EtcdBackend {
    fn uid(&self) -> &str {
        &self.uid
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn grant(&self, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
        Box::pin(self.grant_marked(ttl))
    }

    fn keepalive(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(leases.len());
            for lease in leases {
                answers.push(match self.check(lease) {
                    Ok(id) => self.keep(id).await,
                    Err(_) => Alive::Gone,
                });
            }
            answers
        })
    }

    fn probe(&self, leases: Vec<LeaseRef>) -> LeaseFuture<'_, Vec<Alive>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(leases.len());
            for lease in leases {
                answers.push(match self.check(lease) {
                    Ok(id) => self.look(id).await,
                    Err(_) => Alive::Gone,
                });
            }
            answers
        })
    }

    /// etcd cannot change a TTL: a new lease takes the old one's place.
    fn set_ttl(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
        Box::pin(async move {
            let id = self.check(lease)?;
            if self.look(id).await == Alive::Gone {
                return Err(LeaseError::Gone);
            }
            let new = self.grant_marked(ttl).await?;
            self.revoke(lease).await?;
            Ok(new)
        })
    }

    fn arm(&self, lease: LeaseRef, ttl: Duration) -> LeaseFuture<'_, Result<LeaseRef, LeaseError>> {
        // A lease that nobody keeps runs down.
        self.set_ttl(lease, ttl)
    }

    fn revoke(&self, lease: LeaseRef) -> LeaseFuture<'_, Result<(), LeaseError>> {
        Box::pin(async move {
            let id = self.check(lease)?;
            self.streams.lock().await.remove(&id);
            match self.bounded(self.client.lease_client().revoke(id)).await {
                Ok(_) | Err(LeaseError::Gone) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}
