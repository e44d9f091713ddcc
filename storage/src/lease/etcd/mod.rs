//! The backend `etcd`: leases of an etcd cluster 3.4 or newer. All of etcd-client is in this directory.
//!
//! A process needs one lease, so one keepalive stream. Streams do not reconnect by themselves: a failed one is made anew by the next
//! keepalive. That a lease is gone is only believed from the TTL that etcd states, never from the text of an error.
//!
//! Each endpoint has a client of its own, and the one that answered last is asked first: a client over all of them would go on asking the
//! dead one in turn.

mod watch;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    ResponseHeader, TlsOptions,
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
    endpoints: Arc<Endpoints>,
    uid: String,
    namespace: String,
    incarnation: u64,
    streams: tokio::sync::Mutex<HashMap<i64, (LeaseKeeper, LeaseKeepAliveStream)>>,
    watch: watch::Watch,
}

/// The members of the cluster, as they were given.
struct Endpoints {
    clients: Vec<Client>,
    /// The one that answered last.
    first: AtomicUsize,
}

impl Endpoints {
    /// The one to ask. Whoever does not say that it answered, also because it no longer waits, leaves the next one to be asked.
    fn attempt(&self) -> Attempt<'_> {
        Attempt { endpoints: self, at: self.first.load(Ordering::Relaxed), answered: false }
    }
}

struct Attempt<'a> {
    endpoints: &'a Endpoints,
    at: usize,
    answered: bool,
}

impl Attempt<'_> {
    fn client(&self) -> &Client {
        &self.endpoints.clients[self.at]
    }

    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let next = (self.at + 1) % self.endpoints.clients.len();
            // Unless somebody else went on meanwhile.
            let _ =
                self.endpoints.first.compare_exchange(self.at, next, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
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
        let mut clients = Vec::with_capacity(options.endpoints.len());
        for endpoint in &options.endpoints {
            // It does not dial before it is asked something; with a password it asks for a token.
            let client = Client::connect([endpoint], Some(connect.clone()));
            match bounded(&uid, CONNECT_TIMEOUT, client).await {
                Ok(client) => clients.push(client),
                Err(error) => tracing::warn!(%endpoint, %error, "an endpoint of etcd is left out"),
            }
        }
        if clients.is_empty() {
            let reason = "no endpoint can be used".to_owned();
            return Err(LeaseError::Unavailable { backend: uid, reason });
        }
        let endpoints = Arc::new(Endpoints { clients, first: AtomicUsize::new(0) });
        let keys = format!("{}/v1/", options.namespace);
        let within = CONNECT_TIMEOUT / u32::try_from(endpoints.clients.len()).unwrap_or(u32::MAX);
        let answer = ask(&endpoints, &uid, within, |client| {
            let key = format!("{keys}incarnation");
            async move { client.kv_client().get(key, None).await }
        });
        let incarnation = answer.await?.header().map(|header| header.cluster_id()).unwrap_or_default();
        let watch = watch::Watch::start(Arc::clone(&endpoints), incarnation, format!("{keys}lease/"));
        let (namespace, streams) = (options.namespace.clone(), tokio::sync::Mutex::default());
        Ok(Self { endpoints, uid, namespace, incarnation, streams, watch })
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
        let grant = |client: Client| async move {
            let granted = client.lease_client().grant(seconds, None).await?;
            self.is_ours(granted.header())?;
            Ok(granted)
        };
        let id = self.ask(grant).await?.id();
        let key = format!("{}/v1/lease/{id:016x}", self.namespace);
        let mark = |client: Client| {
            let (key, bound) = (key.clone(), PutOptions::new().with_lease(id));
            async move {
                let put = client.kv_client().put(key, seconds.to_string(), Some(bound)).await?;
                self.is_ours(put.header())
            }
        };
        self.ask(mark).await?;
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
        let attempt = self.endpoints.attempt();
        let (mut keeper, mut stream) = match open {
            Some(open) => open,
            // Its first message is the answer to a first keepalive, which is swallowed: the one below states the TTL.
            None => attempt.client().lease_client().keep_alive(id).await?,
        };
        keeper.keep_alive().await?;
        let answer = stream.message().await?.ok_or_else(|| Error::LeaseKeepAliveError("ended".to_owned()))?;
        self.is_ours(answer.header())?;
        attempt.answered();
        if answer.ttl() > 0 {
            self.streams.lock().await.insert(id, (keeper, stream));
        }
        Ok(answer.ttl())
    }

    async fn look(&self, id: i64) -> Alive {
        let look = |client: Client| async move {
            let answer = client.lease_client().time_to_live(id, None).await?;
            self.is_ours(answer.header())?;
            Ok(answer)
        };
        match self.ask(look).await {
            Ok(answer) if answer.ttl() < 0 => Alive::Gone,
            Ok(answer) => Alive::Left(seconds(answer.ttl())),
            Err(_) => Alive::Unknown,
        }
    }

    /// An endpoint of another cluster knows nothing of our leases: what it says is no word that one is gone.
    fn is_ours(&self, header: Option<&ResponseHeader>) -> Result<(), Error> {
        is_of(self.incarnation, header)
    }

    async fn ask<T, F>(&self, call: impl Fn(Client) -> F) -> Result<T, LeaseError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let within = CALL_TIMEOUT / u32::try_from(self.endpoints.clients.len()).unwrap_or(u32::MAX);
        ask(&self.endpoints, &self.uid, within, call).await
    }
}

fn is_of(cluster: u64, header: Option<&ResponseHeader>) -> Result<(), Error> {
    let ours = header.is_none_or(|header| header.cluster_id() == cluster);
    ours.then_some(()).ok_or_else(|| Error::EndpointError("it is of another cluster".to_owned()))
}

/// Asks one endpoint after the other until one answers, each for so long. Everything that is asked may be repeated; a lease that was granted
/// without an answer runs down.
async fn ask<T, F>(
    endpoints: &Endpoints,
    uid: &str,
    within: Duration,
    call: impl Fn(Client) -> F,
) -> Result<T, LeaseError>
where
    F: Future<Output = Result<T, Error>>,
{
    let mut last = LeaseError::Gone;
    for _ in &endpoints.clients {
        let attempt = endpoints.attempt();
        match bounded(uid, within, call(attempt.client().clone())).await {
            Err(error @ LeaseError::Unavailable { .. }) => last = error,
            answer => {
                attempt.answered();
                return answer;
            }
        }
    }
    Err(last)
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

    fn news(&self) -> Option<tokio::sync::watch::Receiver<u64>> {
        Some(self.watch.news())
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
            let revoke = |client: Client| async move {
                let revoked = client.lease_client().revoke(id).await?;
                self.is_ours(revoked.header())
            };
            self.streams.lock().await.remove(&id);
            match self.ask(revoke).await {
                Ok(_) | Err(LeaseError::Gone) => Ok(()),
                Err(error) => Err(error),
            }
        })
    }
}
