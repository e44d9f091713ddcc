//! Brokers under test: started on a free port, pinned to core 0, measured from outside, stopped at the end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::wire;

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    ExactMq,
    Mosquitto,
}

/// A running broker: one process, or the nodes of a cluster.
pub(crate) struct Broker {
    nodes: Vec<Child>,
    pub(crate) kind: Kind,
    /// Where the nodes listen, in their order.
    pub(crate) addresses: Vec<SocketAddr>,
    pub(crate) dir: PathBuf,
    settings: Vec<String>,
}

/// CPU time and memory of a process at one moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Usage {
    pub(crate) cpu: Duration,
    pub(crate) resident_bytes: u64,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ExactMq => "exactmq",
            Self::Mosquitto => "mosquitto",
        }
    }
}

impl Broker {
    /// Starts it in `dir`; `settings` are ExactMQ's `--set` arguments.
    pub(crate) fn start(kind: Kind, dir: &Path, settings: &[&str]) -> Result<Self> {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let mut broker =
            Self { nodes: Vec::new(), kind, addresses: Vec::new(), dir: dir.to_owned(), settings };
        broker.add(dir, Vec::new())?;
        Ok(broker)
    }

    /// Starts `count` nodes of ExactMQ as one cluster. They share both cores with the load.
    pub(crate) fn start_cluster(count: usize, dir: &Path, settings: &[&str]) -> Result<Self> {
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let kind = Kind::ExactMq;
        let mut broker =
            Self { nodes: Vec::new(), kind, addresses: Vec::new(), dir: dir.to_owned(), settings };
        let secret = dir.join("secret");
        std::fs::write(&secret, "the secret of a measurement on loopback only")?;
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600))?;
        let mut first: Option<String> = None;
        for id in 1..=count {
            let (own, peer) = (dir.join(format!("node{id}")), free_port()?);
            std::fs::create_dir(&own)?;
            let mut more =
                vec!["--node-id".to_owned(), id.to_string(), "--peer".to_owned(), peer.to_string()];
            let secret = format!("cluster.secret_file={}", secret.display());
            more.extend([
                "--set".to_owned(),
                secret,
                "--set".to_owned(),
                "cluster.trusted_network=true".to_owned(),
            ]);
            broker.add(&own, more)?;
            let data = own.join("data");
            // Written once the admin API listens, shortly behind the MQTT port.
            until("the admin API listens", || data.join("admin.address").is_file())?;
            let mut command = Command::new(exactmq()?);
            match &first {
                None => command.args(["cluster", "init", "--data-dir"]).arg(&data),
                Some(first) => command.args(["cluster", "join", first, "--data-dir"]).arg(&data),
            };
            let output = command.output()?;
            if !output.status.success() {
                bail!("node {id} is not in the cluster: {}", String::from_utf8_lossy(&output.stderr));
            }
            first.get_or_insert_with(|| peer.to_string());
        }
        for address in &broker.addresses {
            until("a node serves clients", || accepts(*address).unwrap_or(false))?;
        }
        Ok(broker)
    }

    fn add(&mut self, dir: &Path, more: Vec<String>) -> Result<()> {
        let address = free_port()?;
        self.nodes.push(spawn(self.kind, dir, address, &self.settings, &more)?);
        self.addresses.push(address);
        self.wait(self.nodes.len() - 1)
    }

    /// kill -9 of a single broker, then a start on the same data; returns how long it took until a connection was accepted.
    pub(crate) fn crash_and_restart(&mut self) -> Result<Duration> {
        self.nodes[0].kill()?;
        self.nodes[0].wait()?;
        let started = Instant::now();
        self.nodes[0] = spawn(self.kind, &self.dir, self.addresses[0], &self.settings, &[])?;
        self.wait(0)?;
        Ok(started.elapsed())
    }

    /// CPU time and memory of all nodes.
    pub(crate) fn usage(&self) -> Result<Usage> {
        let mut sum = Usage { cpu: Duration::ZERO, resident_bytes: 0 };
        for node in &self.nodes {
            let one = usage_of(node.id())?;
            sum.cpu += one.cpu;
            sum.resident_bytes += one.resident_bytes;
        }
        Ok(sum)
    }

    /// Bytes of the files below the broker's directory, as they take space.
    pub(crate) fn disk_bytes(&self) -> Result<u64> {
        let out = Command::new("du").arg("-sB1").arg(&self.dir).output()?;
        let text = String::from_utf8(out.stdout)?;
        Ok(text.split_whitespace().next().context("a size from du")?.parse()?)
    }

    /// Entries of all groups' logs so far, from ExactMQ's metrics page.
    pub(crate) fn log_entries(&self) -> Result<u64> {
        let data = self.dir.join("data");
        let address = std::fs::read_to_string(data.join("admin.address"))?;
        let token = std::fs::read_to_string(data.join("admin.token"))?;
        let (host, token) = (address.trim().trim_start_matches("http://"), token.trim());
        let mut admin = TcpStream::connect(host)?;
        write!(
            admin,
            "GET /metrics HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        )?;
        let mut page = String::new();
        admin.read_to_string(&mut page)?;
        let lines = page.lines().filter_map(|line| line.strip_prefix("exactmq_raft_log_index{"));
        let entries = lines.map(|line| Ok(line.rsplit(' ').next().context("a value")?.parse::<u64>()?));
        entries.sum::<Result<u64>>().context("the metrics page")
    }

    fn wait(&mut self, node: usize) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        let address = self.addresses[node];
        while TcpStream::connect(address).is_err() {
            if let Some(status) = self.nodes[node].try_wait()? {
                bail!("{} ended at start: {status}; see {}", self.kind.name(), self.dir.display());
            }
            if Instant::now() > end {
                bail!("{} does not listen on {address}", self.kind.name());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(30);
    while !holds() {
        if Instant::now() > end {
            bail!("not within 30 s: {what}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// Whether a client is let in.
fn accepts(address: SocketAddr) -> Result<bool> {
    let mut packet = Vec::new();
    wire::connect("probe", true, &mut packet);
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    socket.write_all(&packet)?;
    let mut connack = [0; 4];
    socket.read_exact(&mut connack)?;
    Ok(connack[3] == 0)
}

fn free_port() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn usage_of(pid: u32) -> Result<Usage> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit_once(')').context("a command name")?.1.split_whitespace().collect();
    // utime and stime, fields 14 and 15 of proc(5), in ticks of 10 ms.
    let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
    // rss, field 24, in pages.
    let pages: u64 = fields[21].parse()?;
    Ok(Usage { cpu: Duration::from_millis(ticks * 10), resident_bytes: pages * 4_096 })
}

/// `more`: arguments of a node of a cluster, which is not alone on its core.
fn spawn(kind: Kind, dir: &Path, address: SocketAddr, settings: &[String], more: &[String]) -> Result<Child> {
    let program = match kind {
        Kind::ExactMq => exactmq()?,
        Kind::Mosquitto => PathBuf::from("/usr/sbin/mosquitto"),
    };
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log"))?;
    // `ulimit` first: the soft limit of descriptors is often 1,024.
    let mut command = Command::new("sh");
    let cores = if more.is_empty() { "0" } else { "0,1" };
    let script = format!("ulimit -n \"$(ulimit -Hn)\"; exec taskset -c {cores} \"$@\"");
    command.args(["-c", &script, "sh"]).arg(program);
    match kind {
        Kind::ExactMq => {
            command.arg("serve").arg("--data-dir").arg(dir.join("data"));
            command.args(["--mqtt", &address.to_string(), "--admin", "127.0.0.1:0"]);
            command.args(["--set", "node.workers=1"]).args(more);
            for setting in settings {
                command.args(["--set", setting]);
            }
        }
        Kind::Mosquitto => {
            let config = dir.join("mosquitto.conf");
            let text = format!(
                "listener {} 127.0.0.1\nallow_anonymous true\npersistence false\nset_tcp_nodelay true\n\
                 max_queued_messages 0\nmax_inflight_messages 0\nlog_type error\n",
                address.port()
            );
            std::fs::write(&config, text)?;
            command.arg("-c").arg(config);
        }
    }
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    command.spawn().with_context(|| format!("{} starts", kind.name()))
}

/// `target/release/exactmq` beside this program.
fn exactmq() -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let path = own.with_file_name("exactmq");
    if !path.is_file() {
        bail!("{} is missing: run `make bench`, which builds it", path.display());
    }
    Ok(path)
}
