//! The client side of the admin API: HTTP/1.1 over one connection a call, bounded in time and size.

use std::io::{self, BufRead, BufReader, Read as _, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::Remote;
use super::error::CliError;
use super::link::{CONNECT_TIMEOUT, Link, Trust, dial, is_distrust};
use crate::admin::{ADDRESS_FILE, AdminToken};

/// From sending to the last byte of the answer; an End may take several seconds to be proved.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
const ANSWER_BYTES_MAX: usize = 64 << 20;
const PORT_DEFAULT: u16 = 9883;

/// One node's admin API.
#[derive(Debug)]
pub(super) struct Client {
    /// `host:port`.
    authority: String,
    /// `None`: plain http.
    trust: Option<Trust>,
    token: AdminToken,
}

impl Client {
    /// As the flags say, or as the data directory does.
    pub(super) fn new(remote: &Remote) -> Result<Self, CliError> {
        let Url { secure, authority } = match &remote.admin {
            Some(url) => parse_url(url)?,
            None => read_address(&remote.data_dir)?,
        };
        if !secure && remote.ca.is_some() {
            let what =
                format!("--ca is of no use: {authority} is called over plain http; write https://HOST:PORT");
            return Err(CliError::usage(what));
        }
        let trust = if secure { Some(Trust::new(remote, &authority)?) } else { None };
        let token_file = remote.token_file.clone().unwrap_or_else(|| remote.data_dir.join("admin.token"));
        let token = AdminToken::read(&token_file).map_err(|error| {
            CliError::failed(&format!("no token for the admin API: {error}; use --token-file or --data-dir"))
        })?;
        Ok(Self { authority, trust, token })
    }

    /// `host:port`.
    pub(super) fn authority(&self) -> &str {
        &self.authority
    }

    pub(super) fn get(&self, path: &str) -> Result<Value, CliError> {
        self.call("GET", path, None)
    }

    pub(super) fn post(&self, path: &str, body: &Value) -> Result<Value, CliError> {
        self.call("POST", path, Some(body.to_string()))
    }

    pub(super) fn delete(&self, path: &str) -> Result<Value, CliError> {
        self.call("DELETE", path, None)
    }

    /// Writes the body of an answer to `out` as it comes; how many bytes those are. The node may take its time, but never be silent for long.
    pub(super) fn download(&self, path: &str, out: &mut dyn Write) -> Result<u64, CliError> {
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
            self.authority,
            self.token.secret()
        );
        let unreachable = |error: io::Error| self.unreachable(&error);
        let mut stream = self.dial().map_err(unreachable)?;
        stream.socket().set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(unreachable)?;
        stream.write_all(request.as_bytes()).map_err(unreachable)?;
        let mut answer = BufReader::with_capacity(1 << 20, stream);
        let (status, head) = read_head(&mut answer).map_err(unreachable)?;
        if status == 200 {
            return copy_chunks(&mut answer, out)
                .map_err(|error| CliError::failed(&format!("the answer broke off: {error}")));
        }
        let mut raw = head;
        answer.take(ANSWER_BYTES_MAX as u64).read_to_end(&mut raw).map_err(unreachable)?;
        let body = parse_answer(&raw).map(|(_, body)| body).unwrap_or_default();
        Err(CliError::from_answer(status, &body))
    }

    fn call(&self, method: &str, path: &str, body: Option<String>) -> Result<Value, CliError> {
        let mut request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\nAccept: application/json\r\nConnection: close\r\n",
            self.authority,
            self.token.secret()
        );
        if let Some(body) = body {
            request.push_str(&format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
        } else {
            request.push_str("\r\n");
        }
        let raw = self.exchange(request.as_bytes()).map_err(|error| self.unreachable(&error))?;
        let Some((status, body)) = parse_answer(&raw) else {
            return Err(CliError::failed(&format!("{} did not answer as an admin API does", self.authority)));
        };
        if !(200..300).contains(&status) {
            return Err(CliError::from_answer(status, &body));
        }
        serde_json::from_slice(&body)
            .map_err(|error| CliError::failed(&format!("the answer is not JSON: {error}")))
    }

    fn unreachable(&self, error: &io::Error) -> CliError {
        if is_distrust(error) {
            return CliError::failed(&format!(
                "{}: {error}: nobody here vouches for who answers there; name its authority, or its own certificate, with --ca FILE",
                self.authority
            ));
        }
        CliError::unreachable(format!(
            "{}: {error}; is the node running? see --admin and --data-dir",
            self.authority
        ))
    }

    fn exchange(&self, request: &[u8]) -> io::Result<Vec<u8>> {
        converse(self.dial()?, request)
    }

    fn dial(&self) -> io::Result<Link> {
        dial(&self.authority, self.trust.as_ref())
    }
}

/// Bytes of the longest head of an answer.
const HEAD_BYTES_MAX: u64 = 64 << 10;

/// Status of an answer, and its head with the blank line.
fn read_head(answer: &mut impl BufRead) -> io::Result<(u16, Vec<u8>)> {
    let mut head = Vec::new();
    let mut lines = answer.take(HEAD_BYTES_MAX);
    while !head.ends_with(b"\r\n\r\n") {
        if lines.read_until(b'\n', &mut head)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    let status = std::str::from_utf8(&head).ok();
    let status = status.and_then(|head| head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok());
    let status = status.ok_or_else(|| io::Error::other("it is no admin API"))?;
    Ok((status, head))
}

/// Copies a body of chunks (RFC 9112 §7.1) to its end.
fn copy_chunks(answer: &mut impl BufRead, out: &mut dyn Write) -> io::Result<u64> {
    let cut = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut bytes = 0;
    loop {
        let mut line = String::new();
        answer.take(64).read_line(&mut line)?;
        let size = line.trim_end().split(';').next().unwrap_or_default();
        let size = u64::from_str_radix(size, 16).map_err(|_| cut())?;
        if size == 0 {
            return Ok(bytes);
        }
        if io::copy(&mut answer.take(size), out)? != size {
            return Err(cut());
        }
        answer.read_exact(&mut [0; 2])?;
        bytes += size;
    }
}

fn converse(mut stream: Link, request: &[u8]) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + ANSWER_TIMEOUT;
    stream.socket().set_write_timeout(Some(CONNECT_TIMEOUT))?;
    stream.write_all(request)?;
    let mut answer = Vec::new();
    let mut block = [0; 16 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.socket().set_read_timeout(Some(left))?;
        match stream.read(&mut block) {
            Ok(0) => return Ok(answer),
            Ok(len) => answer.extend_from_slice(&block[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
            // TLS without its last word: whether the answer is whole is seen from the answer.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(answer),
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_BYTES_MAX {
            return Err(io::Error::other("the answer is too large"));
        }
    }
}

/// Status and body of a complete answer; `None` when it is malformed or cut short.
pub(super) fn parse_answer(raw: &[u8]) -> Option<(u16, Vec<u8>)> {
    let end = raw.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&raw[..end]).ok()?;
    let body = &raw[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let (mut length, mut chunked) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let value = value.trim();
        if name.eq_ignore_ascii_case("content-length") {
            length = Some(value.parse::<usize>().ok()?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = value.eq_ignore_ascii_case("chunked");
        }
    }
    let body = match (chunked, length) {
        (true, _) => join_chunks(body)?,
        (false, Some(length)) => body.get(..length)?.to_vec(),
        (false, None) => body.to_vec(),
    };
    Some((status, body))
}

fn join_chunks(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let end = rest.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&rest[..end]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        rest = &rest[end + 2..];
        if size == 0 {
            return Some(body);
        }
        body.extend_from_slice(rest.get(..size)?);
        rest = rest.get(size..)?.strip_prefix(b"\r\n")?;
    }
}

fn read_address(data_dir: &Path) -> Result<Url, CliError> {
    let path = data_dir.join(ADDRESS_FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        CliError::unreachable(format!(
            "{}: {error}; no node with an admin API has run on this data directory: use --admin URL or --data-dir DIR",
            path.display()
        ))
    })?;
    parse_url(text.trim())
}

/// Where an admin API is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Url {
    /// https.
    pub(super) secure: bool,
    /// `host:port`.
    pub(super) authority: String,
}

/// Of `http://host[:port][/]`, the same with https, or `host:port`.
pub(super) fn parse_url(url: &str) -> Result<Url, CliError> {
    let refuse = |what: &str| {
        CliError::usage(format!("admin URL {url:?} {what}; write http://HOST:PORT or https://HOST:PORT"))
    };
    let (secure, rest) = match url.split_once("://") {
        Some(("http", rest)) => (false, rest),
        Some(("https", rest)) => (true, rest),
        Some(_) => return Err(refuse("is neither http nor https")),
        None => (false, url),
    };
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '?' | '#' | '@');
    if rest.is_empty() || rest.contains(odd) {
        return Err(refuse("is not a host and a port"));
    }
    let after_host = rest.rsplit_once(']').map_or(rest, |(_, after)| after);
    match after_host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => Ok(Url { secure, authority: rest.to_owned() }),
        Some(_) => Err(refuse("has no valid port")),
        None => Ok(Url { secure, authority: format!("{rest}:{PORT_DEFAULT}") }),
    }
}

/// Percent-encodes everything but RFC 3986's unreserved characters.
pub(super) fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    // A path segment of dots only would be resolved away on the way.
    match encoded.as_str() {
        "." => "%2E".to_owned(),
        ".." => "%2E%2E".to_owned(),
        _ => encoded,
    }
}

/// `?a=b&c=d` of the parameters that are set.
pub(super) fn query(parameters: &[(&str, Option<String>)]) -> String {
    let set =
        parameters.iter().filter_map(|(name, value)| Some(format!("{name}={}", encode(value.as_deref()?))));
    let joined = set.collect::<Vec<_>>().join("&");
    if joined.is_empty() { joined } else { format!("?{joined}") }
}
