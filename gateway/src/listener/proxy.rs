//! The PROXY protocol v2 header in front of a connection: who the client behind the proxy is.

use std::io;

use proxy_header::{ParseConfig, ProxyHeader};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

use super::Origin;

/// Signature, version and command, family and protocol, length.
const FIXED_LEN: usize = 16;
/// Longest header taken; addresses and the TLVs of real proxies need a few hundred bytes.
const HEADER_LEN_MAX: usize = 4096;

/// Reads exactly the header and not a byte of what follows; with `certificate` also whose certificate the proxy verified. The connect
/// timeout of the listener bounds the wait.
pub(super) async fn read_header(
    stream: &mut TcpStream,
    origin: &mut Origin,
    certificate: bool,
) -> io::Result<()> {
    let mut header = vec![0; FIXED_LEN];
    stream.read_exact(&mut header).await?;
    let len = FIXED_LEN + usize::from(u16::from_be_bytes([header[14], header[15]]));
    if len > HEADER_LEN_MAX {
        return Err(invalid("longer than 4,096 bytes"));
    }
    header.resize(len, 0);
    stream.read_exact(&mut header[FIXED_LEN..]).await?;
    let config = ParseConfig { include_tlvs: true, allow_v1: false, allow_v2: true };
    let (header, _) = ProxyHeader::parse(&header, config).map_err(|_| invalid("not version 2"))?;
    // LOCAL (a health check of the proxy) has no address: the proxy's own stays.
    origin.address = header.proxied_address().map(|proxied| proxied.source);
    if let Some(ssl) = header.ssl() {
        origin.secure = ssl.client_ssl();
        if certificate && ssl.client_ssl() && ssl.client_cert_sess() && ssl.verify() == 0 {
            origin.certificate_cn = ssl.cn().map(Into::into);
        }
    }
    Ok(())
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("PROXY protocol header: {why}"))
}
