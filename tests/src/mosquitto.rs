//! A real mosquitto process, to stand on the other side.

use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cluster::free_port;
use crate::wait::eventually;

const PATIENCE: Duration = Duration::from_secs(20);

/// A running `mosquitto`, with its database on disk.
#[derive(Debug)]
pub struct Mosquitto {
    child: Option<Child>,
    dir: tempfile::TempDir,
    pub address: SocketAddr,
}

impl Mosquitto {
    /// Starts one on a free port with `settings` behind the line that opens its listener.
    ///
    /// # Panics
    /// When it does not serve.
    #[must_use]
    pub fn start(settings: &str) -> Self {
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let mut mosquitto = Self { child: None, dir: tempfile::tempdir().expect("a directory"), address };
        mosquitto.configure(settings);
        mosquitto.restart();
        mosquitto
    }

    /// Where its files are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn conf(&self) -> PathBuf {
        self.dir.path().join("mosquitto.conf")
    }

    /// Other settings, from the next start on.
    ///
    /// # Panics
    /// When the file cannot be written.
    pub fn configure(&self, settings: &str) {
        let text = format!(
            "persistence true\npersistence_location {}/\nautosave_interval 1\nautosave_on_changes true\nmax_queued_messages 100000\n\
             user root\nlog_dest file {}\nlog_type all\nlistener {} 127.0.0.1\n{settings}\n",
            self.dir.path().display(),
            self.dir.path().join("log").display(),
            self.address.port(),
        );
        std::fs::write(self.conf(), text).expect("a file");
    }

    /// Starts it again on the same port and database.
    ///
    /// # Panics
    /// When it does not serve.
    pub fn restart(&mut self) {
        let mut command = Command::new("/usr/sbin/mosquitto");
        command.arg("-c").arg(self.conf()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("mosquitto is installed"));
        let address = self.address;
        eventually("mosquitto serves", PATIENCE, || TcpStream::connect(address).ok());
    }

    /// SIGKILL.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("killed");
        child.wait().expect("it ended");
    }

    /// SIGTERM: it saves its database.
    ///
    /// # Panics
    /// When it does not run.
    pub fn stop(&mut self) {
        let mut child = self.child.take().expect("it runs");
        let id = child.id().to_string();
        let signalled = Command::new("kill").args(["-TERM", &id]).status();
        assert!(signalled.expect("kill is installed").success());
        child.wait().expect("it ended");
    }
}

impl Drop for Mosquitto {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
