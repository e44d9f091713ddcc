//! Starting and stopping the admin API of a node: tokens, certificate, audit log, socket, and the file that tells operator commands where it is.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::audit::{Audit, AuditError};
use super::callers::{Callers, Tokens};
use super::jobs::{JobFileError, Jobs};
use super::listener::{SharedTls, serve};
use super::tls::{AdminTls, CERTIFICATE_FILE};
use super::token::TokenError;
use super::{AdminPort, AdminState};
use crate::config::Config;
use crate::events::Feed;
use crate::metrics::Metrics;

/// File in the data directory that holds the URL of the running admin API.
pub const ADDRESS_FILE: &str = "admin.address";

/// Why there is no admin API.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("token of the admin API: {0}")]
    Token(#[from] TokenError),
    #[error("certificate of the admin API: {0}")]
    Tls(String),
    #[error("{0}")]
    Audit(#[from] AuditError),
    #[error("jobs of the admin API: {0}")]
    Jobs(#[from] JobFileError),
    #[error("admin.address {address}: {source}")]
    Bind { address: SocketAddr, source: io::Error },
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
}

/// A running admin API; dropping it stops it without waiting.
#[derive(Debug)]
pub struct Running {
    /// With the port that was really taken.
    pub address: SocketAddr,
    events: Arc<Feed>,
    callers: Arc<Callers>,
    tls: Option<SharedTls>,
    data_dir: PathBuf,
    stop: watch::Sender<bool>,
    task: JoinHandle<io::Result<()>>,
}

impl Running {
    /// From now on these tokens are good, and no others, also for calls that go on; what of them changed.
    pub fn adopt(&self, tokens: Tokens) -> Vec<&'static str> {
        self.callers.adopt(tokens)
    }

    /// Reads certificate and key again, for connections from now on.
    ///
    /// # Errors
    /// They cannot be used: what was in force stays.
    pub fn reload_tls(&self, config: &Config) -> Result<(), StartError> {
        let Some(tls) = &self.tls else { return Ok(()) };
        let Some(new) = AdminTls::read(&config.admin).map_err(StartError::Tls)? else { return Ok(()) };
        let mut tls = tls.lock();
        tls.adopt(&new);
        tls.publish(&self.data_dir)
            .map_err(|source| StartError::File { path: self.data_dir.join(CERTIFICATE_FILE), source })
    }

    /// Takes no more calls and waits for those under way; bound the wait from outside.
    pub async fn stop(self) {
        // Those who watch would never end by themselves.
        self.events.close();
        // The receiver is gone when the server ended by itself: then there is nothing to stop.
        let _ = self.stop.send(true);
        match self.task.await {
            Ok(Ok(())) => (),
            Ok(Err(error)) => tracing::warn!(%error, "the admin API ended with an error"),
            Err(error) => tracing::warn!(%error, "the admin API ended with a panic"),
        }
    }
}

/// Opens tokens, certificate and audit log, binds, writes `admin.address`, prints `listening admin http ADDRESS` (or https) and serves. `None` when
/// `admin.address` is "off". The data directory must exist and be locked by this process. Call it on the control runtime.
///
/// # Errors
/// See [`StartError`]; nothing is left running.
pub async fn start(
    config: &Config,
    port: Arc<dyn AdminPort>,
    metrics: Arc<Metrics>,
) -> Result<Option<Running>, StartError> {
    let data_dir = &config.node.data_dir;
    let Some(wanted) = config.admin.address.0 else {
        // Left from a run that had one.
        return remove(data_dir.join(ADDRESS_FILE)).map(|()| None);
    };
    let callers = Arc::new(Callers::new(Tokens::read(config)?));
    let tls = AdminTls::read(&config.admin).map_err(StartError::Tls)?;
    match &tls {
        Some(tls) => tls
            .publish(data_dir)
            .map_err(|source| StartError::File { path: data_dir.join(CERTIFICATE_FILE), source })?,
        None => remove(data_dir.join(CERTIFICATE_FILE))?,
    }
    let audit = Audit::open(data_dir, config.admin.audit_bytes_max)?;
    let bind = |source| StartError::Bind { address: wanted, source };
    let listener = TcpListener::bind(wanted).await.map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    write_address(data_dir, scheme, address)?;
    let events = port.events();
    let state = AdminState {
        slow: port.slow(),
        port,
        callers: Arc::clone(&callers),
        audit: Arc::new(audit),
        jobs: Arc::new(Jobs::open(data_dir)?),
        retirements: Arc::default(),
        metrics,
        events: Arc::clone(&events),
        metrics_token: config.admin.metrics_token,
    };
    let (stop, mut stopped) = watch::channel(false);
    let tls: Option<SharedTls> = tls.map(|tls| Arc::new(Mutex::new(tls)));
    let task = tokio::spawn(serve(listener, tls.clone(), state, async move {
        // An error means that the sender is gone: the node is, too.
        let _ = stopped.wait_for(|stop| *stop).await;
    }));
    // Nobody may be reading.
    let _ = writeln!(io::stdout().lock(), "listening admin {scheme} {address}");
    Ok(Some(Running { address, events, callers, tls, data_dir: data_dir.clone(), stop, task }))
}

/// A file of a run that had it.
fn remove(path: PathBuf) -> Result<(), StartError> {
    match std::fs::remove_file(&path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StartError::File { path, source }),
        _ => Ok(()),
    }
}

/// Written beside and renamed, so that readers see the whole or the old one.
fn write_address(data_dir: &Path, scheme: &str, address: SocketAddr) -> Result<(), StartError> {
    let path = data_dir.join(ADDRESS_FILE);
    let temporary = data_dir.join(format!("{ADDRESS_FILE}.tmp"));
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "{scheme}://{}", dialable(address))?;
        file.sync_all()?;
        std::fs::rename(&temporary, &path)
    };
    write().map_err(|source| StartError::File { path: path.clone(), source })
}

/// The unspecified address is for binding only.
fn dialable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback: IpAddr =
            if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
        address.set_ip(loopback);
    }
    address
}
