//! The URL of a service that is asked about clients.

use std::net::IpAddr;
use std::sync::Arc;

use super::value::{Raw, Setting, quote};

/// Bytes of a URL.
const URL_BYTES_MAX: usize = 1_024;

/// `http://HOST[:PORT][/PATH]` or `https://…`. There is no user and no query in it, so that nothing secret stands in a configuration that
/// is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookUrl(Arc<str>);

impl HookUrl {
    /// `None`: it is no such URL.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"))?;
        let odd = |c: char| !c.is_ascii_graphic() || matches!(c, '?' | '#' | '@' | '"' | '\\' | '<' | '>');
        if rest.contains(odd) || text.len() > URL_BYTES_MAX {
            return None;
        }
        let url = Self(text.into());
        url.split_host().map(|_| url.clone())
    }

    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.0.starts_with("https://")
    }

    /// `HOST[:PORT]` as it is written.
    #[must_use]
    pub fn authority(&self) -> &str {
        let rest = self.0.split_once("://").map_or("", |(_, rest)| rest);
        rest.split_once('/').map_or(rest, |(authority, _)| authority)
    }

    /// What is asked for; `/` when nothing is written.
    #[must_use]
    pub fn path(&self) -> &str {
        let at = self.0.len() - self.0.split_once("://").map_or(0, |(_, rest)| rest.len());
        self.0[at..].find('/').map_or("/", |slash| &self.0[at + slash..])
    }

    /// Host without brackets, and port.
    #[must_use]
    pub fn host_and_port(&self) -> (&str, u16) {
        // Looked at when it was made.
        self.split_host().unwrap_or(("", 0))
    }

    fn split_host(&self) -> Option<(&str, u16)> {
        let authority = self.authority();
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']')?;
                host.parse::<std::net::Ipv6Addr>().ok()?;
                (
                    host,
                    port.strip_prefix(':')
                        .map_or(port.is_empty().then_some(None), |port| Some(Some(port)))?,
                )
            }
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let default = if self.is_secure() { 443 } else { 80 };
        let port = match port {
            None => default,
            Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        };
        (!host.is_empty()).then_some((host, port))
    }

    /// Whether the service is on this machine.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let (host, _) = self.host_and_port();
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl Setting for HookUrl {
    fn allowed() -> String {
        "http://HOST[:PORT][/PATH] or https://…, without user and query".to_owned()
    }
    fn parse(raw: &Raw) -> Option<Self> {
        Self::new(raw.text()?.trim())
    }
    fn show(&self) -> Option<String> {
        Some(quote(&self.0))
    }
    fn read(raw: &Raw) -> Result<Self, String> {
        // What was written may hold a password: it is not repeated.
        Self::parse(raw).ok_or_else(|| format!("is not allowed; allowed: {}", Self::allowed()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart_or_refused() {
        for (text, authority, path, host, port, loopback) in [
            ("http://localhost", "localhost", "/", "localhost", 80, true),
            ("http://127.0.0.2:8080/a/b", "127.0.0.2:8080", "/a/b", "127.0.0.2", 8080, true),
            ("https://auth.example/mqtt", "auth.example", "/mqtt", "auth.example", 443, false),
            ("https://[::1]:9/", "[::1]:9", "/", "::1", 9, true),
            ("http://[2001:db8::1]", "[2001:db8::1]", "/", "2001:db8::1", 80, false),
        ] {
            let url = HookUrl::new(text).expect(text);
            assert_eq!((url.authority(), url.path(), url.host_and_port()), (authority, path, (host, port)));
            assert!(url.is_loopback() == loopback && url.is_secure() == text.starts_with("https"), "{text}");
        }
        for text in [
            "",
            "http://",
            "http:///a",
            "ftp://h",
            "h",
            "http://h:0",
            "http://h:x",
            "http://h:70000",
            "http://a:b:c",
            "http://u:p@h",
            "http://h/a?key=secret",
            "http://h/#a",
            "http://h/a b",
            "http://[::1",
            "http://[x]",
            "http://[::1]x",
        ] {
            assert_eq!(HookUrl::new(text), None, "{text}");
        }
    }
}
