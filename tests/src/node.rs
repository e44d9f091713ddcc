//! A real broker process with a data directory of its own.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use crate::wait::eventually;

/// A start that ended at once.
#[derive(Debug)]
pub struct Refusal {
    pub status: ExitStatus,
    /// Standard output and error of this start.
    pub said: String,
}

/// Where and how the process of a node runs.
#[derive(Debug, Clone, Default)]
pub struct Place {
    /// Command and arguments that start `exactmq` as their last argument, such as `nsenter`, and keep its process id.
    pub prefix: Vec<String>,
    pub environment: Vec<(String, String)>,
    /// The data directory; a temporary one when there is none.
    pub dir: Option<PathBuf>,
    /// IP address of all its listeners; 127.0.0.1 when there is none.
    pub ip: Option<IpAddr>,
}

/// A running `exactmq serve`.
#[derive(Debug)]
pub struct Node {
    child: Option<Child>,
    dir: PathBuf,
    _temporary: Option<tempfile::TempDir>,
    settings: Vec<String>,
    place: Place,
    /// Where MQTT over TCP is served.
    pub mqtt: SocketAddr,
    /// Where the admin API is served.
    pub admin: SocketAddr,
}

impl Node {
    /// Starts a node on free ports with an empty data directory.
    ///
    /// # Panics
    /// When it does not serve within 30 s.
    #[must_use]
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with `--set` settings, each `section.key=value`, or `--config=FILE`.
    ///
    /// # Panics
    /// When it does not serve within 30 s.
    #[must_use]
    pub fn start_with(settings: &[&str]) -> Self {
        Self::start_at(Place::default(), settings)
    }

    /// The same at a place of its own.
    ///
    /// # Panics
    /// When it does not serve within 30 s.
    #[must_use]
    pub fn start_at(place: Place, settings: &[&str]) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let dir = place.dir.clone().unwrap_or_else(|| temporary.path().join("data"));
        let ip = place.ip.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let settings = settings.iter().map(ToString::to_string).collect();
        let mut node = Self {
            child: None,
            dir,
            _temporary: Some(temporary),
            settings,
            place,
            mqtt: (ip, 0).into(),
            admin: (ip, 0).into(),
        };
        node.restart();
        node
    }

    /// Starts the process again on the same data directory and the same ports.
    ///
    /// # Panics
    /// When it does not serve within 60 s.
    pub fn restart(&mut self) {
        if let Err(Refusal { status, said }) = self.try_restart() {
            panic!("exactmq ended at start: {status}\n{said}");
        }
    }

    /// The same for a start that may be refused.
    ///
    /// # Errors
    /// The process ended instead; with what it said.
    ///
    /// # Panics
    /// When it neither serves nor ends within 60 s.
    pub fn try_restart(&mut self) -> Result<(), Refusal> {
        assert!(self.child.is_none(), "stop or kill it first");
        let listeners = self.dir.join("listeners.json");
        let admin_file = self.dir.join("admin.address");
        let _ = std::fs::remove_file(&listeners);
        let _ = std::fs::remove_file(&admin_file);
        std::fs::create_dir_all(&self.dir).expect("the data directory");
        let path = self.dir.with_extension("log");
        let log = File::options().create(true).append(true).open(&path).expect("the log file");
        let said_before = log.metadata().map_or(0, |log| log.len());
        self.child = Some(self.spawn(log));
        let child = self.child.as_mut().expect("just started");
        let outcome = eventually("listeners.json with MQTT and admin", Duration::from_secs(60), || {
            if let Ok(Some(status)) = child.try_wait() {
                return Some(Err(status));
            }
            let admin = std::fs::read_to_string(&admin_file).ok()?;
            let text = std::fs::read_to_string(&listeners).ok()?;
            serde_json::from_str::<serde_json::Value>(&text).ok().map(|found| Ok((found, admin)))
        });
        let (found, admin) = match outcome {
            Ok(found) => found,
            Err(status) => {
                self.child = None;
                let said = std::fs::read(&path).unwrap_or_default();
                let said = &said[usize::try_from(said_before).unwrap_or(0).min(said.len())..];
                return Err(Refusal { status, said: String::from_utf8_lossy(said).into_owned() });
            }
        };
        self.mqtt = address(&found, "mqtt");
        let admin = admin.trim().split_once("://").map_or("", |(_, address)| address);
        self.admin = admin.parse().expect("the address of the admin API");
        Ok(())
    }

    fn spawn(&self, log: File) -> Child {
        let mut command = self.command();
        command
            .args(["serve", "--data-dir"])
            .arg(&self.dir)
            .args(["--mqtt", &self.mqtt.to_string(), "--admin", &self.admin.to_string()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log);
        for setting in &self.settings {
            match setting.strip_prefix("--config=") {
                Some(file) => command.args(["--config", file]),
                None => command.args(["--set", setting]),
            };
        }
        command.spawn().expect("exactmq starts")
    }

    /// SIGHUP: reads the configuration and its files again. Wait for what it changes.
    ///
    /// # Panics
    /// When there is no `kill`.
    pub fn reload(&self) {
        Command::new("kill").args(["-HUP", &self.pid().to_string()]).status().expect("kill runs");
    }

    /// Body of an answer 200 of the admin API, asked with its token.
    ///
    /// # Panics
    /// When it does not answer, or with something else.
    #[must_use]
    pub fn admin_get(&self, path: &str) -> String {
        let (head, body) = self.admin_ask("GET", path, "").expect("the admin API answers");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}");
        body
    }

    /// Head and body of whatever the admin API answers within 10 s.
    ///
    /// # Errors
    /// What the system says.
    pub fn admin_ask(&self, method: &str, path: &str, body: &str) -> std::io::Result<(String, String)> {
        let token = std::fs::read_to_string(self.dir.join("admin.token"))?;
        ask(self.admin, token.trim(), method, path, body)
    }

    /// Value of one series of the metrics page.
    ///
    /// # Panics
    /// When there is none of this name.
    #[must_use]
    pub fn metric(&self, series: &str) -> f64 {
        self.metrics(&[series])[0]
    }

    /// Several series as they are at one moment.
    ///
    /// # Panics
    /// As [`Self::metric`].
    #[must_use]
    pub fn metrics(&self, series: &[&str]) -> Vec<f64> {
        let page = self.admin_get("/metrics");
        series.iter().map(|series| Self::value(&page, series)).collect()
    }

    fn value(page: &str, series: &str) -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("no series {series}"))
    }

    /// kill -9.
    ///
    /// # Panics
    /// When the process cannot be waited for.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            child.wait().expect("the process ends");
        }
    }

    /// SIGTERM, and wait for a clean exit.
    ///
    /// # Panics
    /// When it does not exit with success within 30 s.
    pub fn stop(&mut self) {
        Command::new("kill").args(["-TERM", &self.pid().to_string()]).status().expect("kill runs");
        self.await_exit();
    }

    /// Waits for a clean exit.
    ///
    /// # Panics
    /// When it does not exit with success within 30 s.
    pub fn await_exit(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let log = self.dir.with_extension("log");
        let status = eventually("a clean exit", Duration::from_secs(30), || child.try_wait().expect("waits"));
        assert!(status.success(), "exit {status}\n{}", tail(&log));
    }

    /// Runs the command line client against this node.
    ///
    /// # Panics
    /// When it cannot be started.
    #[must_use]
    pub fn cli(&self, arguments: &[&str]) -> Output {
        let mut command = self.command();
        command.args(arguments).arg("--data-dir").arg(&self.dir).output().expect("exactmq runs")
    }

    /// `exactmq` at the place of this node.
    fn command(&self) -> Command {
        let mut words = self.place.prefix.iter().map(OsString::from).chain([binary().into_os_string()]);
        let mut command = Command::new(words.next().expect("at least the binary"));
        command.args(words).envs(self.place.environment.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Whether the process runs. One that ended by itself is taken note of, so that it can be started again.
    ///
    /// # Panics
    /// When the process cannot be waited for.
    pub fn is_running(&mut self) -> bool {
        let Some(child) = &mut self.child else { return false };
        if child.try_wait().expect("waits").is_some() {
            self.child = None;
        }
        self.child.is_some()
    }

    /// Sends a signal (`-STOP`); it is sent when this returns, and a stop has stopped every thread.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.pid().to_string()]).status();
        assert!(sent.expect("kill runs").success());
        if signal == "-STOP" {
            eventually("every thread stands", Duration::from_secs(10), || self.is_stopped().then_some(()));
        }
    }

    fn is_stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("it runs");
        tasks.flatten().all(|task| {
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            // The name in front may hold anything, also blanks and brackets.
            stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        })
    }

    /// What the process said since it was first started.
    #[must_use]
    pub fn log(&self) -> PathBuf {
        self.dir.with_extension("log")
    }

    /// Process id.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Resident memory in bytes.
    ///
    /// # Panics
    /// When the process is gone.
    #[must_use]
    pub fn resident_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") * 1_024
    }

    /// The data directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("--- end of the broker's log ---\n{}", tail(&self.dir.with_extension("log")));
        }
    }
}

/// One request to an admin API: head and body of the answer within 10 s.
///
/// # Errors
/// What the system says.
pub fn ask(
    admin: SocketAddr,
    token: &str,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(String, String)> {
    let limit = Duration::from_secs(10);
    let mut stream = TcpStream::connect_timeout(&admin, limit)?;
    stream.set_read_timeout(Some(limit))?;
    let len = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {len}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    Ok((head.to_owned(), body.to_owned()))
}

/// The `exactmq` binary of this build: beside the test's own executable, or `EXACTMQ_BIN`.
///
/// # Panics
/// When it was not built.
#[must_use]
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("EXACTMQ_BIN") {
        return path.into();
    }
    let own = std::env::current_exe().expect("the path of this test");
    let found = own.ancestors().skip(1).map(|dir| dir.join("exactmq")).find(|path| path.is_file());
    found.expect("target/…/exactmq is built: run `cargo build -p broker` first")
}

/// Address of the listener `name` in `listeners.json`: `[{"name": "mqtt", "protocol": "tcp", "address": "127.0.0.1:1883"}]`.
fn address(found: &serde_json::Value, name: &str) -> SocketAddr {
    let listener = found.as_array().into_iter().flatten().find(|listener| listener["name"] == name);
    let text = listener.and_then(|listener| listener["address"].as_str());
    text.and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no address of {name} in {found}"))
}

fn tail(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
