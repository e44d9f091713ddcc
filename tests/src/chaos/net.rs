//! The network of a run: a bridge, and a namespace with an address for each node. Clients speak from the bridge.

use std::net::{IpAddr, Ipv4Addr};

use super::{NAME, must, output, succeeds};

const LINK: &str = "eth0";

/// Three namespaces on a bridge.
#[derive(Debug)]
pub(super) struct Net {
    bridge: String,
    names: [String; 3],
    subnet: [u8; 3],
}

/// Name of the bridge of a run, within the 15 characters of an interface.
pub(super) fn bridge(id: &str) -> String {
    format!("xqb{id}")
}

impl Net {
    pub(super) fn new() -> Self {
        let id = std::process::id();
        let bridge = bridge(&id.to_string());
        let [_, _, high, low] = id.to_be_bytes();
        // Private addresses that hardly anybody uses; the process id keeps two runs apart.
        let subnet = [10, 128 | high, low];
        let net = Self { bridge, names: [1, 2, 3].map(|node| format!("{NAME}-{id}-{node}")), subnet };
        let mask = |last: u8| format!("{}/24", net.ip(last));
        must("ip", &["link", "add", &net.bridge, "type", "bridge"]);
        must("ip", &["addr", "add", &mask(254), "dev", &net.bridge]);
        must("ip", &["link", "set", &net.bridge, "up"]);
        for (at, name) in net.names.iter().enumerate() {
            let (outer, inner) = (format!("xqv{id}.{at}"), format!("xqw{id}.{at}"));
            must("ip", &["netns", "add", name]);
            must("ip", &["link", "add", &outer, "type", "veth", "peer", "name", &inner]);
            must("ip", &["link", "set", &inner, "netns", name, "name", LINK]);
            must("ip", &["link", "set", &outer, "master", &net.bridge, "up"]);
            let last = u8::try_from(at + 1).expect("three nodes");
            must("ip", &["-n", name, "addr", "add", &mask(last), "dev", LINK]);
            must("ip", &["-n", name, "link", "set", LINK, "up"]);
            must("ip", &["-n", name, "link", "set", "lo", "up"]);
        }
        net
    }

    fn ip(&self, last: u8) -> IpAddr {
        let [a, b, c] = self.subnet;
        IpAddr::V4(Ipv4Addr::new(a, b, c, last))
    }

    /// Address of a node, counted from 0.
    pub(super) fn address(&self, at: usize) -> IpAddr {
        self.ip(u8::try_from(at + 1).expect("three nodes"))
    }

    /// Address of all clients.
    pub(super) fn clients(&self) -> IpAddr {
        self.ip(254)
    }

    /// What runs a command in the namespace of a node.
    pub(super) fn prefix(&self, at: usize) -> Vec<String> {
        vec!["nsenter".into(), format!("--net=/run/netns/{}", self.names[at])]
    }

    /// Drops what node `at` is sent by `from` (`deaf`) or sends to it (`mute`).
    pub(super) fn drop_packets(&self, at: usize, from: IpAddr, deaf: bool, probability: Option<f64>) {
        let address = from.to_string();
        let probability = probability.map(|p| p.to_string());
        let (chain, side) = if deaf { ("INPUT", "-s") } else { ("OUTPUT", "-d") };
        let mut rule = vec!["-A", chain, side, &address];
        if let Some(probability) = &probability {
            rule.extend(["-m", "statistic", "--mode", "random", "--probability", probability]);
        }
        rule.extend(["-j", "DROP"]);
        self.inside(at, "iptables", &rule);
    }

    /// Slows the link of a node down: some delay and loss where the kernel has netem, else a rate that its traffic has to queue for.
    pub(super) fn slow_down(&self, at: usize) -> &'static str {
        let netem = ["-n", &self.names[at], "qdisc", "add", "dev", LINK, "root", "netem"];
        if succeeds("tc", &[&netem[..], &["delay", "40ms", "20ms", "loss", "2%"]].concat()) {
            return "netem";
        }
        let tbf = ["-n", &self.names[at], "qdisc", "add", "dev", LINK, "root", "tbf"];
        must("tc", &[&tbf[..], &["rate", "1mbit", "burst", "4kb", "latency", "300ms"]].concat());
        "tbf"
    }

    /// Takes all of it back.
    pub(super) fn heal(&self, at: usize) {
        self.inside(at, "iptables", &["-F"]);
        succeeds("tc", &["-n", &self.names[at], "qdisc", "del", "dev", LINK, "root"]);
    }

    fn inside(&self, at: usize, program: &str, arguments: &[&str]) {
        let prefix = self.prefix(at);
        let words: Vec<&str> = prefix[1..].iter().map(String::as_str).chain([program]).collect();
        must(&prefix[0], &[&words, arguments].concat());
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            for pid in output("ip", &["netns", "pids", name]).split_whitespace() {
                succeeds("kill", &["-9", pid]);
            }
            succeeds("ip", &["netns", "del", name]);
        }
        succeeds("ip", &["link", "del", &self.bridge]);
    }
}
