//! Starting and stopping the admin API of a node: token, audit log, socket, and the file that tells operator commands where it is.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::audit::{Audit, AuditError};
use super::jobs::{JobFileError, Jobs};
use super::listener::serve;
use super::token::{AdminToken, TokenError};
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
    stop: watch::Sender<bool>,
    task: JoinHandle<io::Result<()>>,
}

impl Running {
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

/// Opens token and audit log, binds, writes `admin.address`, prints `listening admin http ADDRESS` and serves. `None` when
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
        let path = data_dir.join(ADDRESS_FILE);
        return match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => Err(StartError::File { path, source }),
            _ => Ok(None),
        };
    };
    let token_file = config.token_file();
    let token = AdminToken::open(&token_file)?;
    if token.is_exposed() {
        tracing::warn!(file = %token_file.display(), "others than its owner may read the admin token; chmod 600 it");
    }
    let audit = Audit::open(data_dir, config.admin.audit_bytes_max)?;
    let bind = |source| StartError::Bind { address: wanted, source };
    let listener = TcpListener::bind(wanted).await.map_err(bind)?;
    let address = listener.local_addr().map_err(bind)?;
    write_address(data_dir, address)?;
    let events = port.events();
    let state = AdminState {
        slow: port.slow(),
        port,
        token: Arc::new(token),
        audit: Arc::new(audit),
        jobs: Arc::new(Jobs::open(data_dir)?),
        retirements: Arc::default(),
        metrics,
        events: Arc::clone(&events),
        metrics_token: config.admin.metrics_token,
    };
    let (stop, mut stopped) = watch::channel(false);
    let task = tokio::spawn(serve(listener, state, async move {
        // An error means that the sender is gone: the node is, too.
        let _ = stopped.wait_for(|stop| *stop).await;
    }));
    // Nobody may be reading.
    let _ = writeln!(io::stdout().lock(), "listening admin http {address}");
    Ok(Some(Running { address, events, stop, task }))
}

/// Written beside and renamed, so that readers see the whole or the old one.
fn write_address(data_dir: &Path, address: SocketAddr) -> Result<(), StartError> {
    let path = data_dir.join(ADDRESS_FILE);
    let temporary = data_dir.join(format!("{ADDRESS_FILE}.tmp"));
    let write = || {
        let mut file = File::create(&temporary)?;
        writeln!(file, "http://{}", dialable(address))?;
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
