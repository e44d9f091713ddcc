//! Says where a started node really listens: on stdout for people, in the data directory for programs and the operator commands.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use serde_json::json;

use super::output::print;
use crate::config::Protocol;

/// Holds the URL of the admin API, for operator commands.
pub(super) const ADMIN_ADDRESS: &str = "admin.address";
/// Holds all listeners.
const LISTENERS: &str = "listeners.json";

/// A bound listener.
#[derive(Debug, Clone)]
pub struct Bound {
    pub name: Arc<str>,
    pub protocol: Protocol,
    /// With the port that was really taken.
    pub address: SocketAddr,
}

/// Prints `listening NAME PROTOCOL ADDRESS` for each listener and `listening admin http ADDRESS`, after it wrote
/// `listeners.json` and `admin.address`: who reads a line finds the files complete.
///
/// # Errors
/// I/O in the data directory.
pub fn announce(data_dir: &Path, listeners: &[Bound], admin: Option<SocketAddr>) -> io::Result<()> {
    let bound: Vec<_> = listeners
        .iter()
        .map(|it| json!({ "name": &*it.name, "protocol": it.protocol.word(), "address": it.address.to_string() }))
        .collect();
    let document = json!({ "listeners": bound, "admin": admin.map(|address| address.to_string()) });
    replace(data_dir, LISTENERS, &format!("{document:#}\n"))?;
    match admin {
        Some(address) => replace(data_dir, ADMIN_ADDRESS, &format!("http://{}\n", dialable(address)))?,
        None => match std::fs::remove_file(data_dir.join(ADMIN_ADDRESS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => (),
        },
    }
    for it in listeners {
        print(&format!("listening {} {} {}\n", it.name, it.protocol.word(), it.address));
    }
    if let Some(address) = admin {
        print(&format!("listening admin http {address}\n"));
    }
    Ok(())
}

/// The unspecified address is for binding only.
fn dialable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() {
            [127, 0, 0, 1].into()
        } else {
            std::net::Ipv6Addr::LOCALHOST.into()
        });
    }
    address
}

/// Beside it first, then renamed over it: never half a file.
fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let temporary = directory.join(format!("{name}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&temporary, directory.join(name))?;
    File::open(directory)?.sync_all()
}
