//! What the clients of a broker notice while others attack it: the same quiet flow without and beside each attack.
//!
//! The attack is a process of its own with the lowest priority beside the load: what is measured is the broker, not how the load shares its
//! core with the attacker.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::flow::{self, Shape};
use crate::process::Broker;
use crate::report::Figures;
use crate::wire;

/// Sockets that never finish their CONNECT.
const LORIS_SOCKETS: usize = 10_000;
/// Where attacks come from.
const ATTACKER: [u8; 4] = [127, 0, 0, 9];
/// How long an attack has before it is measured beside.
const LEAD: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attack {
    /// Sockets that send half a CONNECT; closed ones are opened again.
    Loris,
    /// Connects as fast as it can and resets each.
    Connects,
    /// Publishes QoS 0 as fast as it can.
    Publishes,
    /// The same, at eight subscribers that never read.
    Deaf,
}

/// 20 pairs, 2,000 messages a second of QoS 1: without an attack, and beside each.
pub(crate) fn run(broker: &Broker, seconds: f64) -> Result<Vec<(&'static str, Figures)>> {
    let shape = Shape { rate: Some(2_000), ..Shape::new(20, 1, true, 1, 64, 10) };
    let mut parts = vec![("quiet", flow::run(broker, shape, seconds)?)];
    for (name, attack) in [
        ("loris", Attack::Loris),
        ("connects", Attack::Connects),
        ("publishes", Attack::Publishes),
        ("deaf", Attack::Deaf),
    ] {
        let attacker = Attacker::start(attack, broker.addresses[0])?;
        std::thread::sleep(LEAD);
        let figures = flow::run(broker, shape, seconds)?;
        drop(attacker);
        // What is left of it at the broker is not the next one's.
        std::thread::sleep(LEAD);
        parts.push((name, figures));
    }
    Ok(parts)
}

/// A running attack; dropping it ends it.
struct Attacker(Child);

impl Attacker {
    fn start(attack: Attack, to: SocketAddr) -> Result<Self> {
        let own = std::env::current_exe().context("the path of this program")?;
        let word = attack.to_possible_value().context("a name")?.get_name().to_owned();
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(own).args(["attack", &word, &to.to_string()]).stdin(Stdio::null());
        Ok(Self(command.spawn().context("nice (coreutils)")?))
    }
}

impl Drop for Attacker {
    fn drop(&mut self) {
        // It ends with this process at the latest.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Attacks until it is killed.
pub(crate) fn attack(attack: Attack, to: SocketAddr) -> Result<()> {
    match attack {
        Attack::Loris => loris(to),
        Attack::Connects => connects(to),
        Attack::Publishes => publishes(to, 0),
        Attack::Deaf => publishes(to, 8),
    }
}

/// Attackers have an address of their own, as they would have: everything in 127/8 is this machine.
fn open_from_elsewhere(to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((ATTACKER, 0)).into())?;
    socket.connect(&to.into())?;
    Ok(socket.into())
}

fn half_a_connect() -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::connect("loris", true, &mut bytes);
    bytes.truncate(bytes.len() / 2);
    bytes
}

fn loris(to: SocketAddr) -> Result<()> {
    let half = half_a_connect();
    let mut sockets = std::collections::VecDeque::with_capacity(LORIS_SOCKETS);
    loop {
        let began = Instant::now();
        while sockets.len() < LORIS_SOCKETS {
            let mut socket = open_from_elsewhere(to).context("connect")?;
            // Closed at once where the broker does not want it.
            let _ = socket.write_all(&half);
            sockets.push_back(socket);
        }
        // Those that the broker closed after its connect timeout make room for new ones.
        std::thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
        sockets.drain(..LORIS_SOCKETS / 5);
    }
}

fn connects(to: SocketAddr) -> Result<()> {
    let mut number = 0_u64;
    let mut bytes = Vec::new();
    loop {
        number += 1;
        bytes.clear();
        wire::connect(&format!("attack{}", number % 1_000), true, &mut bytes);
        let Ok(mut socket) = open_from_elsewhere(to) else { continue };
        let _ = socket.write_all(&bytes);
        // A reset leaves no port behind that waits to be forgotten.
        let _ = socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO));
    }
}

fn publishes(to: SocketAddr, deaf: usize) -> Result<()> {
    let open = |name: String| -> Result<TcpStream> {
        let mut bytes = Vec::new();
        wire::connect(&name, true, &mut bytes);
        let mut socket = open_from_elsewhere(to).context("connect")?;
        socket.write_all(&bytes).context("CONNECT")?;
        Ok(socket)
    };
    let mut held = Vec::new();
    for number in 0..deaf {
        let mut socket = open(format!("deaf{number}"))?;
        let mut bytes = Vec::new();
        wire::subscribe(&["attack".to_owned()], 0, &mut bytes);
        socket.write_all(&bytes).context("SUBSCRIBE")?;
        held.push(socket);
    }
    let mut publisher = open("attacker".to_owned())?;
    let mut batch = Vec::new();
    for _ in 0..100 {
        wire::publish("attack", 0, false, 0, &[b'x'; 256], &mut batch);
    }
    loop {
        publisher.write_all(&batch).context("PUBLISH")?;
    }
}
