//! The backend `etcd`: leases of an etcd cluster 3.4 or newer. All of etcd-client is in this directory.
//!
//! A process needs one lease, so one keepalive stream. Streams do not reconnect by themselves: a failed one is made anew by the next
//! keepalive. That a lease is gone is only believed from the TTL that etcd states, never from the text of an error.
//!
//! Each endpoint has a client of its own, and the one that answered last is asked first: a client over all of them would go on asking the
//! dead one in turn.

mod claims;
mod watch;

use std::collections::HashMap;
use std::error::Error as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{
    Certificate, Client, ConnectOptions, Error, Identity, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
    ResponseHeader, TlsOptions,
};

pub use super::etcd_options::{EtcdOptions, EtcdTls};
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
/// Causes of an error that are looked at.
const CAUSES_MAX: usize = 16;
/// gRPC statuses with which etcd turns away whom it does not know or trust: INVALID_ARGUMENT (also a wrong password), PERMISSION_DENIED,
/// FAILED_PRECONDITION (a password where none is asked for), UNAUTHENTICATED.
const REFUSALS: [i32; 4] = [3, 7, 9, 16];

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
    members: Vec<Member>,
    /// The one that answered last.
    first: AtomicUsize,
    connect: ConnectOptions,
}

/// One of them. With a password a client asks for a token before it is there: a member that is down at first is asked when its turn comes.
struct Member {
    endpoint: String,
    client: tokio::sync::OnceCell<Client>,
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
    async fn client(&self) -> Result<Client, Error> {
        let member = &self.endpoints.members[self.at];
        let connect = || Client::connect([&member.endpoint], Some(self.endpoints.connect.clone()));
        member.client.get_or_try_init(connect).await.cloned()
    }

    fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.answered {
            let next = (self.at + 1) % self.endpoints.members.len();
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
            connect = connect.with_user(name, &password.0).with_auto_token_refresh(true);
        }
        if let Some(tls) = &options.tls {
            connect = connect.with_tls(tls_options(tls));
        }
        let member = |endpoint: &String| Member { endpoint: endpoint.clone(), client: <_>::default() };
        let members: Vec<Member> = options.endpoints.iter().map(member).collect();
        let endpoints = Arc::new(Endpoints { members, first: AtomicUsize::new(0), connect });
        let keys = format!("{}/v1/", options.namespace);
        let within = CONNECT_TIMEOUT / u32::try_from(endpoints.members.len().max(1)).unwrap_or(u32::MAX);
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
            None => attempt.client().await?.lease_client().keep_alive(id).await?,
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
        let within = CALL_TIMEOUT / u32::try_from(self.endpoints.members.len()).unwrap_or(u32::MAX);
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
    let none =
        || LeaseError::Unavailable { backend: uid.to_owned(), reason: "it has no endpoint".to_owned() };
    let mut last = None;
    for _ in &endpoints.members {
        let attempt = endpoints.attempt();
        let asked = async { call(attempt.client().await?).await };
        match bounded(uid, within, asked).await {
            Err(error @ LeaseError::Unavailable { .. }) => last = last.or(Some(error)),
            // Another one may let us in; if none does, that says more than silence.
            Err(error @ LeaseError::Refused { .. }) => last = Some(error),
            answer => {
                attempt.answered();
                return answer;
            }
        }
    }
    Err(last.unwrap_or_else(none))
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
        Ok(Err(error)) if is_refusal(&error) => {
            Err(LeaseError::Refused { backend: uid.to_owned(), reason: reason(&error) })
        }
        Ok(Err(error)) => Err(unavailable(reason(&error))),
        Err(_elapsed) => Err(unavailable(format!("no answer within {} ms", within.as_millis()))),
    }
}

/// Whether it turned us away, or showed a certificate that is not to be trusted. What is refused by mistake is only told otherwise: no lease
/// lives or dies by it.
fn is_refusal(error: &Error) -> bool {
    match error {
        Error::GRpcStatus(status) if REFUSALS.contains(&(status.code() as i32)) => true,
        Error::InvalidArgs(_) | Error::InvalidUri(_) => true,
        error => causes(error).iter().any(|cause| {
            // What TLS finds wrong is data that is not valid.
            let io = cause.downcast_ref::<std::io::Error>();
            io.is_some_and(|io| io.kind() == std::io::ErrorKind::InvalidData)
        }),
    }
}

fn causes(error: &Error) -> Vec<&(dyn std::error::Error + 'static)> {
    let first = match error {
        Error::GRpcStatus(status) => status.source(),
        Error::TransportError(error) => Some(error as _),
        Error::IoError(error) => Some(error as _),
        _ => None,
    };
    let mut causes = Vec::new();
    let mut next = first;
    while let Some(cause) = next.filter(|_| causes.len() < CAUSES_MAX) {
        causes.push(cause);
        next = cause.source();
    }
    causes
}

/// In words, with its innermost cause, which is the one that says something.
fn reason(error: &Error) -> String {
    let said = match error {
        Error::GRpcStatus(status) => status.message().to_owned(),
        error => error.to_string(),
    };
    match causes(error).last() {
        Some(cause) if !said.contains(&cause.to_string()) => format!("{said}: {cause}"),
        _ => said,
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
