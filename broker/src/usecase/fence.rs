//! The fence agent: a command of the operator that powers a node off. Its success is proof that nothing of that node runs (DESIGN §7).
//!
//! No shell is involved: the configured texts are the program and its arguments, and the node is named in the environment.

use std::io::Read;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use session::id::Boot;

use crate::config::CommandLine;

/// Bytes of its output that are kept; the rest is read and forgotten.
const OUTPUT_BYTES_MAX: usize = 512;
/// How often it is looked whether it ended.
const LOOK: Duration = Duration::from_millis(20);
/// How long its output is waited for when it has ended; something that it started may hold it open.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// A configured fence agent.
#[derive(Debug, Clone)]
pub struct FenceAgent {
    pub command: CommandLine,
    pub timeout_ms: u64,
}

/// What came of a run; both with what it said.
pub type Fenced = Result<String, String>;

impl FenceAgent {
    /// Has it power off the node of `boot`, which others dial at `address`; at most for its timeout.
    ///
    /// # Errors
    /// It cannot be started, fails, or takes too long: nothing is proved.
    pub async fn run(&self, boot: &Boot, address: &str) -> Fenced {
        let (agent, boot, address) = (self.clone(), boot.clone(), address.to_owned());
        let run = tokio::task::spawn_blocking(move || agent.run_here(&boot, &address));
        run.await.unwrap_or_else(|_| Err("the fence agent could not be run".to_owned()))
    }

    fn run_here(&self, boot: &Boot, address: &str) -> Fenced {
        let [program, arguments @ ..] = &*self.command.0 else {
            return Err("isolation.fence_agent is empty".to_owned());
        };
        let spawned = Command::new(program)
            .args(arguments)
            .env("EXACTMQ_FENCE_NODE_ID", boot.node_id.to_string())
            .env("EXACTMQ_FENCE_BOOT_ID", &*boot.boot_id)
            .env("EXACTMQ_FENCE_ADDRESS", address)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // What it starts is ended with it.
            .process_group(0)
            .spawn();
        let mut child = spawned.map_err(|error| format!("{program} cannot be started: {error}"))?;
        let said = Said::default();
        said.listen(child.stdout.take());
        said.listen(child.stderr.take());
        match wait(&mut child, Duration::from_millis(self.timeout_ms)) {
            Ok(Some(status)) if status.success() => Ok(said.words("exit 0")),
            Ok(Some(status)) => Err(said.words(&format!("the fence agent failed, {status}"))),
            Ok(None) => {
                let end = format!("the fence agent took longer than {} ms and was ended", self.timeout_ms);
                Err(said.words(&end))
            }
            Err(error) => Err(format!("the fence agent cannot be waited for: {error}")),
        }
    }
}

/// Waits for its end; `None`: its time ran out, and it was killed with all that it started.
fn wait(child: &mut Child, within: Duration) -> std::io::Result<Option<ExitStatus>> {
    let deadline = Instant::now() + within;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            if let Some(group) = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                // Fails only when all of it ended just now.
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(LOOK);
    }
}

/// The beginning of what it writes.
#[derive(Default)]
struct Said {
    bytes: Arc<Mutex<Vec<u8>>>,
    /// One reference for each stream that is read.
    open: Arc<()>,
}

impl Said {
    fn listen(&self, stream: Option<impl Read + Send + 'static>) {
        let Some(mut stream) = stream else { return };
        let (bytes, open) = (Arc::clone(&self.bytes), Arc::clone(&self.open));
        std::thread::spawn(move || {
            let mut block = [0; 512];
            while let Ok(len @ 1..) = stream.read(&mut block) {
                let mut bytes = bytes.lock();
                let room = OUTPUT_BYTES_MAX.saturating_sub(bytes.len());
                bytes.extend_from_slice(&block[..len.min(room)]);
            }
            drop(open);
        });
    }

    /// `how` it ended, and what it said, on one line and without control characters.
    fn words(&self, how: &str) -> String {
        let deadline = Instant::now() + LAST_WORDS;
        while Arc::strong_count(&self.open) > 1 && Instant::now() < deadline {
            std::thread::sleep(LOOK / 10);
        }
        let said = String::from_utf8_lossy(&self.bytes.lock()).replace(char::is_control, " ");
        match said.trim() {
            "" => how.to_owned(),
            said => format!("{how}: {said}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(script: &str, timeout_ms: u64) -> Fenced {
        let texts = ["/bin/sh", "-c", script].map(str::to_owned);
        let agent = FenceAgent { command: CommandLine(Arc::from(texts)), timeout_ms };
        agent.run_here(&Boot { node_id: 3, boot_id: "b".into() }, "10.0.0.3:7883")
    }

    /// DESIGN §7: exit 0 is the proof, and the agent is told whom it is about.
    #[test]
    fn only_success_is_proof() {
        let environment = "echo $EXACTMQ_FENCE_NODE_ID $EXACTMQ_FENCE_BOOT_ID $EXACTMQ_FENCE_ADDRESS";
        assert_eq!(agent(environment, 10_000), Ok("exit 0: 3 b 10.0.0.3:7883".to_owned()));
        let failed = agent("printf 'no\\tanswer' >&2; exit 7", 10_000).expect_err("it failed");
        assert!(failed.contains("7: no answer"), "{failed}");
        assert!(agent("kill -9 $$", 10_000).is_err());
        let texts: Arc<[String]> = Arc::new(["/nonexistent/agent".to_owned()]);
        let missing = FenceAgent { command: CommandLine(texts), timeout_ms: 10_000 };
        let error = missing.run_here(&Boot { node_id: 3, boot_id: "b".into() }, "").expect_err("none");
        assert!(error.contains("/nonexistent/agent cannot be started"), "{error}");
    }

    /// P9: an agent that hangs is ended with what it started, and endless words are cut.
    #[test]
    fn its_time_and_its_words_are_bounded() {
        let began = Instant::now();
        let late = agent("sleep 600 & echo waiting; sleep 600", 300).expect_err("too late");
        assert!(late.contains("took longer than 300 ms") && late.contains("waiting"), "{late}");
        assert!(began.elapsed() < Duration::from_secs(60), "it was not waited for");
        let long = agent("head -c 100000 /dev/zero | tr '\\0' x", 60_000).expect("it ends");
        assert!(long.len() < OUTPUT_BYTES_MAX + 20, "{}", long.len());
    }
}
