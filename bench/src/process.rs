//! Brokers under test: started on a free port, pinned to core 0, measured from outside, stopped at the end.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Which broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    ExactMq,
    Mosquitto,
}

/// A running broker.
pub(crate) struct Broker {
    child: Child,
    pub(crate) kind: Kind,
    pub(crate) address: SocketAddr,
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
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let settings: Vec<String> = settings.iter().map(ToString::to_string).collect();
        let child = spawn(kind, dir, port, &settings)?;
        let mut broker = Self { child, kind, address: port, dir: dir.to_owned(), settings };
        broker.wait()?;
        Ok(broker)
    }

    /// kill -9, then a start on the same data; returns how long it took until a connection was accepted.
    pub(crate) fn crash_and_restart(&mut self) -> Result<Duration> {
        self.child.kill()?;
        self.child.wait()?;
        let started = Instant::now();
        self.child = spawn(self.kind, &self.dir, self.address, &self.settings)?;
        self.wait()?;
        Ok(started.elapsed())
    }

    pub(crate) fn usage(&self) -> Result<Usage> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        let fields: Vec<&str> =
            stat.rsplit_once(')').context("a command name")?.1.split_whitespace().collect();
        // utime and stime, fields 14 and 15 of proc(5), in ticks of 10 ms.
        let ticks: u64 = fields[11].parse::<u64>()? + fields[12].parse::<u64>()?;
        // rss, field 24, in pages.
        let pages: u64 = fields[21].parse()?;
        Ok(Usage { cpu: Duration::from_millis(ticks * 10), resident_bytes: pages * 4_096 })
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

    fn wait(&mut self) -> Result<()> {
        let end = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{} ended at start: {status}; see {}", self.kind.name(), self.dir.display());
            }
            if Instant::now() > end {
                bail!("{} does not listen on {}", self.kind.name(), self.address);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(kind: Kind, dir: &Path, address: SocketAddr, settings: &[String]) -> Result<Child> {
    let program = match kind {
        Kind::ExactMq => exactmq()?,
        Kind::Mosquitto => PathBuf::from("/usr/sbin/mosquitto"),
    };
    let log = std::fs::File::options().create(true).append(true).open(dir.join("log"))?;
    // `ulimit` first: the soft limit of descriptors is often 1,024.
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n \"$(ulimit -Hn)\"; exec taskset -c 0 \"$@\"", "sh"]).arg(program);
    match kind {
        Kind::ExactMq => {
            command.arg("serve").arg("--data-dir").arg(dir.join("data"));
            command.args(["--mqtt", &address.to_string(), "--admin", "127.0.0.1:0"]);
            command.args(["--set", "node.workers=1"]);
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
