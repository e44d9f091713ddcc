//! Rules between keys: what is wrong although each value is fine by itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::error::{Origin, Problem};
use super::{Admin, Bridge, BridgeProtocol, ClientAuth, Config, LeaseHome, Listener, Queue};

pub(super) fn check(
    config: &Config,
    origins: &BTreeMap<String, Origin>,
    problems: &mut Vec<Problem>,
    warnings: &mut Vec<Problem>,
) {
    let origin = |key: &str| origins.get(key).cloned().unwrap_or(Origin::Default);
    for (name, listener) in &config.listeners {
        let key = |field: &str| format!("listener.{name}.{field}");
        let mut problem =
            |field: &str, message: String| problems.push(Problem { origin: origin(&key(field)), message });
        check_tls(name, listener, &mut problem);
        if listener.proxy_certificate_user && !listener.proxy_protocol {
            let message = format!("listener.{name}.proxy_certificate_user is set, but proxy_protocol is not");
            problem("proxy_certificate_user", message);
        }
        if listener.connect_packet_size_max > listener.packet_size_max
            && origins.contains_key(&key("connect_packet_size_max"))
        {
            let message = format!("listener.{name}.connect_packet_size_max is above packet_size_max");
            problem("connect_packet_size_max", message);
        }
        if is_reachable(&listener.address) && !is_guarded(config, listener) {
            let message = format!(
                "listener.{name}.address {} is reachable from outside and nothing authenticates its clients; set \
                 auth.password_file or another authenticator, or tls_client_auth = \"required\", or write auth.anonymous = true if everyone may come in",
                listener.address
            );
            problem("address", message);
        }
        if listener.proxy_certificate_user && config.auth.certificate_user {
            let field = "proxy_certificate_user";
            let message = format!(
                "listener.{name}.{field} lets whoever reaches {} log in as any user; see to it that only the proxy does",
                listener.address
            );
            warnings.push(Problem { origin: origin(&key(field)), message });
        }
    }
    for (name, bridge) in &config.bridges {
        check_bridge(name, bridge, (origins, problems));
    }
    check_ways(config, &origin, problems);
    if config.log.otlp_endpoint.as_ref().is_some_and(super::HookUrl::is_secure) {
        let message = "log.otlp_endpoint is https: spans are sent in plain http, to a collector on this machine or a network of its own";
        problems.push(Problem { origin: origin("log.otlp_endpoint"), message: message.to_owned() });
    }
    check_hooks(config, &origin, problems);
    check_duplicates(config, &origin, problems);
    check_namespaces(config, &origin, problems);
    check_cluster(config, &origin, problems);
    check_queue(&config.queue, &origin, (&mut *problems, &mut *warnings));
    if config.isolation.fence_auto && config.isolation.fence_agent.is_none() {
        let message = "isolation.fence_auto is true, but isolation.fence_agent says not what to run";
        problems.push(Problem { origin: origin("isolation.fence_auto"), message: message.to_owned() });
    }
    if !config.auth.is_configured() && config.acl.file.is_some() && !certificates(config) {
        let message = "without an authenticator or client certificates every client is anonymous: the user \
                       sections of acl.file match nobody";
        warnings.push(Problem { origin: origin("acl.file"), message: message.to_owned() });
    }
    check_admin(&config.admin, &origin, (problems, warnings));
}

/// The token does not cross a network where others may read it.
fn check_admin(
    admin: &Admin,
    origin: &impl Fn(&str) -> Origin,
    (problems, warnings): (&mut Vec<Problem>, &mut Vec<Problem>),
) {
    let mut problem = |key: &str, message: String| problems.push(Problem { origin: origin(key), message });
    match (&admin.tls_cert, &admin.tls_key) {
        (Some(_), None) => {
            problem("admin.tls_cert", "admin.tls_key is missing: the certificate needs it".to_owned())
        }
        (None, Some(_)) => {
            problem("admin.tls_key", "admin.tls_cert is missing: the key is of no use alone".to_owned())
        }
        (None, None) if admin.tls_client_ca.is_some() => {
            let message = "admin.tls_client_ca is set, but the admin API speaks no TLS: set admin.tls_cert and admin.tls_key";
            problem("admin.tls_client_ca", message.to_owned());
        }
        _ => {}
    }
    let reachable = admin.address.0.filter(is_reachable);
    if let Some(address) = reachable.filter(|_| !admin.is_secure() && !admin.plain) {
        let message = format!(
            "admin.address {address} is reachable from outside and would speak plain http: set admin.tls_cert and admin.tls_key, or \
             write admin.plain = true if nobody can listen on the way"
        );
        problem("admin.address", message);
    }
    if let Some(address) = reachable.filter(|_| !admin.is_secure() && admin.plain) {
        let message = format!("admin.address {address} is reachable from outside and speaks plain http");
        warnings.push(Problem { origin: origin("admin.plain"), message });
    }
}

/// A password may cross a network without TLS, as it does from any client: that is the operator's to say.
/// A bridge to this very broker would pass each message on to itself for ever, and two with one ClientID at one broker take its session from each
/// other.
fn check_ways(config: &Config, origin: &impl Fn(&str) -> Origin, problems: &mut Vec<Problem>) {
    let mut seen: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for (name, bridge) in &config.bridges {
        for address in bridge.address.0.iter() {
            if config.listeners.values().any(|listener| leads_to(&address.0, &listener.address)) {
                let message = format!("bridge.{name}.address {} is a listener of this broker", address.0);
                problems.push(Problem { origin: origin(&format!("bridge.{name}.address")), message });
            }
            let Some(client_id) = bridge.client_id.as_deref() else { continue };
            if let Some(other) = seen.insert((client_id, &address.0), name) {
                let message = format!(
                    "bridge.{name}.client_id is also that of bridge.{other}, at the same address {}: they would take each other's session",
                    address.0
                );
                problems.push(Problem { origin: origin(&format!("bridge.{name}.client_id")), message });
                break;
            }
        }
    }
}

/// Whether who dials `address` comes to this listener, as far as the text says it.
fn leads_to(address: &str, listener: &SocketAddr) -> bool {
    let Some((host, port)) = address.rsplit_once(':') else { return false };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    let listens_there = listener.ip().is_unspecified() && is_loopback
        || host == "localhost" && listener.ip().is_loopback()
        || host.parse() == Ok(listener.ip());
    port.parse() == Ok(listener.port()) && listener.port() != 0 && listens_there
}

fn check_bridge(
    name: &str,
    bridge: &Bridge,
    (origins, problems): (&BTreeMap<String, Origin>, &mut Vec<Problem>),
) {
    let prefix = format!("bridge.{name}.");
    let written = || {
        let mut of_bridge = origins.iter().filter(|(key, _)| key.starts_with(&prefix));
        of_bridge.next().map_or(Origin::Default, |(_, origin)| origin.clone())
    };
    // What is wrong with a value was said; that it is missing would be a second complaint.
    let named = |field: &str| {
        let start = format!("{prefix}{field} ");
        problems.iter().any(|problem| problem.message.starts_with(&start))
    };
    let mut faults = Vec::new();
    if bridge.address.0.is_empty() && !named("address") {
        faults.push(("address", format!("{prefix}address is missing: say where the other broker is")));
    }
    if bridge.topics.0.is_empty() && !named("topics") {
        faults.push(("topics", format!("{prefix}topics is missing: say what is exchanged")));
    }
    let files = [("tls_ca", &bridge.tls_ca), ("tls_cert", &bridge.tls_cert), ("tls_key", &bridge.tls_key)];
    if bridge.protocol == BridgeProtocol::Tls {
        if bridge.tls_ca.is_none() {
            let message =
                format!("{prefix}tls_ca is missing: it says who signs the certificate of the other broker");
            faults.push(("protocol", message));
        }
        if bridge.tls_cert.is_some() != bridge.tls_key.is_some() {
            faults.push(("tls_cert", format!("{prefix}tls_cert and {prefix}tls_key are needed together")));
        }
    } else if let Some((field, _)) = files.iter().find(|(_, file)| file.is_some()) {
        faults.push((field, format!("{prefix}{field} is set, but its protocol is not tls")));
    }
    if bridge.password_file.is_some() && bridge.username.is_none() {
        faults.push(("password_file", format!("{prefix}username is missing: password_file needs it")));
    }
    if bridge.reconnect_min_ms > bridge.reconnect_max_ms {
        faults.push(("reconnect_min_ms", format!("{prefix}reconnect_min_ms is above reconnect_max_ms")));
    }
    for (field, message) in faults {
        let origin = origins.get(&format!("{prefix}{field}")).cloned().unwrap_or_else(written);
        problems.push(Problem { origin, message });
    }
}

/// Passwords do not cross a network where others may read them.
fn check_hooks(config: &Config, origin: &impl Fn(&str) -> Origin, problems: &mut Vec<Problem>) {
    for (key, url) in [("auth.http_url", &config.auth.http_url), ("acl.http_url", &config.acl.http_url)] {
        let Some(url) = url else { continue };
        let message = if url.is_secure() && config.auth.http_ca_file.is_none() {
            format!("{key} is https, and auth.http_ca_file says not who signs its certificate")
        } else if !url.is_secure() && !url.is_loopback() {
            format!("{key} is plain http to another machine: passwords could be read on the way; use https")
        } else {
            continue;
        };
        problems.push(Problem { origin: origin(key), message });
    }
}

fn check_tls(name: &str, listener: &Listener, problem: &mut impl FnMut(&str, String)) {
    let files = [("tls_cert", &listener.tls_cert), ("tls_key", &listener.tls_key)];
    if listener.protocol.is_secure() {
        for (field, file) in files {
            if file.is_none() {
                let protocol = listener.protocol.word();
                problem("protocol", format!("listener.{name}.{field} is missing, and {protocol} needs it"));
            }
        }
        if listener.tls_client_auth != ClientAuth::None && listener.tls_client_ca.is_none() {
            let message =
                format!("listener.{name}.tls_client_ca is missing: it says who signs client certificates");
            problem("tls_client_auth", message);
        }
        return;
    }
    let client_ca = ("tls_client_ca", &listener.tls_client_ca);
    for (field, file) in files.into_iter().chain([client_ca]) {
        if file.is_some() {
            problem(field, format!("listener.{name}.{field} is set, but its protocol is not tls or wss"));
        }
    }
    if listener.tls_client_auth != ClientAuth::None {
        let message = format!("listener.{name}.tls_client_auth is set, but its protocol is not tls or wss");
        problem("tls_client_auth", message);
    }
}

/// Bytes of the largest packet in a cluster: with all that goes with it, it must fit into one call of the peer link.
const REPLICATED_BYTES_MAX: u32 = 4 << 20;

/// DESIGN §8: no secret and no certificate, no peer port.
fn check_cluster(config: &Config, origin: &impl Fn(&str) -> Origin, problems: &mut Vec<Problem>) {
    let cluster = &config.cluster;
    let mut problem = |key: &str, message: String| problems.push(Problem { origin: origin(key), message });
    let secrets = [
        ("cluster.secret", cluster.secret.is_some()),
        ("cluster.secret_file", cluster.secret_file.is_some()),
    ];
    if secrets.iter().all(|(_, set)| *set) {
        let message = "cluster.secret and cluster.secret_file are both set; the secret has one place";
        problem("cluster.secret", message.to_owned());
    }
    let files = [
        ("cluster.tls_cert", cluster.tls_cert.is_some()),
        ("cluster.tls_key", cluster.tls_key.is_some()),
        ("cluster.tls_ca", cluster.tls_ca.is_some()),
    ];
    let tls = files.iter().any(|(_, set)| *set);
    for (key, _) in files.iter().filter(|(_, set)| tls && !*set) {
        problem(key, format!("{key} is missing: certificate, key and authorities are needed together"));
    }
    let Some(peer) = cluster.peer.0 else {
        if cluster.advertise.is_some() {
            let message = "cluster.advertise is set, but cluster.peer is off: there is nothing to dial";
            problem("cluster.advertise", message.to_owned());
        }
        return;
    };
    let secret = secrets.iter().any(|(_, set)| *set);
    if !secret && !tls {
        let message = "cluster.peer is set, but peers cannot be told from strangers; set cluster.secret_file, or \
                       cluster.tls_cert, cluster.tls_key and cluster.tls_ca";
        problem("cluster.peer", message.to_owned());
    } else if !tls && !cluster.trusted_network {
        let message = "a cluster secret without TLS protects only on a network where nobody listens; set cluster.tls_cert, \
                       cluster.tls_key and cluster.tls_ca, or write cluster.trusted_network = true";
        problem("cluster.peer", message.to_owned());
    }
    for (name, _) in config.listeners.iter().filter(|(_, it)| it.packet_size_max > REPLICATED_BYTES_MAX) {
        let message = format!(
            "listener.{name}.packet_size_max is above {REPLICATED_BYTES_MAX}, which is what one message may have between nodes"
        );
        problem(&format!("listener.{name}.packet_size_max"), message);
    }
    if peer.ip().is_unspecified() && cluster.advertise.is_none() {
        let message = format!(
            "cluster.peer {peer} is no address that other nodes could dial; set cluster.advertise = \"HOST:PORT\""
        );
        problem("cluster.peer", message);
    }
}

/// Bytes of the namespace in etcd.
const ETCD_NAMESPACE_BYTES_MAX: usize = 256;

fn check_queue(
    queue: &Queue,
    origin: &impl Fn(&str) -> Origin,
    (problems, warnings): (&mut Vec<Problem>, &mut Vec<Problem>),
) {
    // What is wrong with them was said; that they are missing would be a second complaint.
    let named = problems.iter().any(|problem| problem.message.starts_with("queue.etcd_endpoints "));
    let mut problem = |key: &str, message: String| problems.push(Problem { origin: origin(key), message });
    let namespace = &*queue.etcd_namespace;
    let odd = |c: char| c.is_whitespace() || c.is_control();
    if namespace.len() > ETCD_NAMESPACE_BYTES_MAX || namespace.contains(odd) || namespace.ends_with('/') {
        let message = format!(
            "queue.etcd_namespace {namespace:?} must have at most {ETCD_NAMESPACE_BYTES_MAX} bytes, no blanks, and no '/' at its end"
        );
        problem("queue.etcd_namespace", message);
    }
    let files = [
        ("queue.etcd_tls_ca", queue.etcd_tls_ca.is_some()),
        ("queue.etcd_tls_cert", queue.etcd_tls_cert.is_some()),
        ("queue.etcd_tls_key", queue.etcd_tls_key.is_some()),
    ];
    let access = [
        ("queue.etcd_user", queue.etcd_user.is_some()),
        ("queue.etcd_password_file", queue.etcd_password_file.is_some()),
    ];
    for [(key, set), (other, other_set)] in [[files[1], files[2]], access] {
        if set != other_set {
            let (missing, given) = if set { (other, key) } else { (key, other) };
            problem(given, format!("{missing} is missing: {given} needs it"));
        }
    }
    if queue.leases == LeaseHome::Embedded {
        let endpoints = ("queue.etcd_endpoints", queue.etcd_endpoints.is_some());
        let unused = [endpoints].into_iter().chain(files).chain(access).find(|(_, set)| *set);
        if let Some((key, _)) = unused {
            let message = format!("{key} is set, but queue.leases is \"embedded\": etcd is not used");
            warnings.push(Problem { origin: origin(key), message });
        }
        return;
    }
    let Some(endpoints) = &queue.etcd_endpoints else {
        if !named {
            let message = "queue.leases is \"etcd\", but queue.etcd_endpoints says not where that is";
            problem("queue.leases", message.to_owned());
        }
        return;
    };
    let secure = endpoints.0.iter().filter(|url| url.starts_with("https://")).count();
    if secure != 0 && secure != endpoints.0.len() {
        let message = "queue.etcd_endpoints has http and https URLs; all members are reached in one way";
        problem("queue.etcd_endpoints", message.to_owned());
    } else if secure != 0 && !files[0].1 {
        let message = "queue.etcd_tls_ca is missing: it says who signs the certificates of the https URLs";
        problem("queue.etcd_endpoints", message.to_owned());
    } else if secure == 0
        && let Some((key, _)) = files.iter().find(|(_, set)| *set)
    {
        problem(key, format!("{key} is set, but queue.etcd_endpoints has http URLs"));
    }
}

fn check_duplicates(config: &Config, origin: &impl Fn(&str) -> Origin, problems: &mut Vec<Problem>) {
    let mut seen: BTreeMap<SocketAddr, String> = BTreeMap::new();
    let listeners =
        config.listeners.iter().map(|(name, it)| (format!("listener.{name}.address"), it.address));
    let admin = config.admin.address.0.map(|address| ("admin.address".to_owned(), address));
    let peer = config.cluster.peer.0.map(|address| ("cluster.peer".to_owned(), address));
    for (key, address) in listeners.chain(admin).chain(peer).filter(|(_, address)| address.port() != 0) {
        if let Some(other) = seen.get(&address) {
            let message = format!("{key} is {address}, which {other} already takes");
            problems.push(Problem { origin: origin(&key), message });
        } else {
            seen.insert(address, key);
        }
    }
}

/// Sessions are told apart by their namespace; topics are not.
fn check_namespaces(config: &Config, origin: &impl Fn(&str) -> Origin, problems: &mut Vec<Problem>) {
    let mut listeners = config.listeners.iter();
    let Some((first, listener)) = listeners.next() else { return };
    for (name, other) in listeners.filter(|(_, other)| other.namespace != listener.namespace) {
        let key = format!("listener.{name}.namespace");
        let message = format!(
            "{key} is {:?} and listener.{first}.namespace is {:?}, but topics and retained messages are not separated by \
             namespace; give all listeners the same one, and run a broker of its own for whoever must not be met",
            other.namespace, listener.namespace
        );
        // Set by the one of the two that was written down.
        let written = [key, format!("listener.{first}.namespace")];
        let origin = written.iter().map(|key| origin(key)).find(|origin| *origin != Origin::Default);
        problems.push(Problem { origin: origin.unwrap_or(Origin::Default), message });
    }
}

fn is_reachable(address: &SocketAddr) -> bool {
    match address.ip() {
        IpAddr::V4(ip) => !ip.is_loopback(),
        IpAddr::V6(ip) => !ip.is_loopback() && !ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    }
}

/// Whether someone decided who may come in here.
fn is_guarded(config: &Config, listener: &Listener) -> bool {
    config.auth.anonymous == Some(true)
        || config.auth.is_configured()
        || listener.protocol.is_secure() && listener.tls_client_auth == ClientAuth::Required
}

fn certificates(config: &Config) -> bool {
    let names = |it: &Listener| it.tls_client_auth != ClientAuth::None || it.proxy_certificate_user;
    config.auth.certificate_user && config.listeners.values().any(names)
}
