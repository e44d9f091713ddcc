//! A small HTTP service that a broker asks about clients; it answers as a test says.

use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::Value;

/// What the service does with a question.
#[derive(Debug, Clone)]
pub enum Reply {
    Json(Value),
    /// A status without a body.
    Status(u16),
    /// These bytes instead of an HTTP answer.
    Raw(Vec<u8>),
    /// No answer; the connection stays open.
    Hang,
}

type Decide = Box<dyn Fn(&Value) -> Reply + Send + Sync>;

struct Shared {
    decide: Mutex<Arc<Decide>>,
    asked: Mutex<Vec<Value>>,
    connections: Mutex<usize>,
    tls: Option<Arc<ServerConfig>>,
}

/// The running service. Its threads end with the process of the test.
pub struct Hook {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

impl Hook {
    /// # Panics
    /// When there is no port.
    #[must_use]
    pub fn start(decide: impl Fn(&Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at(TcpListener::bind("127.0.0.1:0").expect("a port"), None, decide)
    }

    /// # Panics
    /// When the listener has no address.
    #[must_use]
    pub fn start_at(
        listener: TcpListener,
        tls: Option<Arc<ServerConfig>>,
        decide: impl Fn(&Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().expect("an address");
        let decide: Decide = Box::new(decide);
        let shared = Arc::new(Shared {
            decide: Mutex::new(Arc::new(decide)),
            asked: Mutex::default(),
            connections: Mutex::default(),
            tls,
        });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                *of_thread.connections.lock().expect("not poisoned") += 1;
                let shared = Arc::clone(&of_thread);
                std::thread::spawn(move || shared.serve(stream));
            }
        });
        Self { address, shared }
    }

    /// Decides so from now on.
    ///
    /// # Panics
    /// When a decision panicked.
    pub fn decide(&self, decide: impl Fn(&Value) -> Reply + Send + Sync + 'static) {
        *self.shared.decide.lock().expect("not poisoned") = Arc::new(Box::new(decide));
    }

    /// Every question so far.
    ///
    /// # Panics
    /// When a decision panicked.
    #[must_use]
    pub fn asked(&self) -> Vec<Value> {
        self.shared.asked.lock().expect("not poisoned").clone()
    }

    /// Connections that were made to it so far.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn connections(&self) -> usize {
        *self.shared.connections.lock().expect("not poisoned")
    }

    /// `http://…/mqtt`
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}/mqtt", self.address)
    }
}

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hook").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Shared {
    fn serve(&self, stream: TcpStream) {
        match &self.tls {
            None => self.answer(&mut BufReader::new(stream)),
            Some(config) => {
                let Ok(connection) = ServerConnection::new(Arc::clone(config)) else { return };
                self.answer(&mut BufReader::new(StreamOwned::new(connection, stream)));
            }
        }
    }

    /// Questions of one connection, until it breaks.
    fn answer<S: Read + Write>(&self, stream: &mut BufReader<S>) {
        while let Some(question) = read_question(stream) {
            self.asked.lock().expect("not poisoned").push(question.clone());
            let decide = Arc::clone(&self.decide.lock().expect("not poisoned"));
            let bytes = match decide(&question) {
                Reply::Json(body) => {
                    let body = body.to_string();
                    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
                }
                Reply::Status(status) => {
                    format!("HTTP/1.1 {status} Status\r\nContent-Length: 0\r\n\r\n").into_bytes()
                }
                Reply::Raw(bytes) => bytes,
                Reply::Hang => {
                    // Until the other side gives up.
                    let _ = stream.read(&mut [0]);
                    return;
                }
            };
            let sent = stream.get_mut().write_all(&bytes).and_then(|()| stream.get_mut().flush());
            if sent.is_err() {
                return;
            }
        }
    }
}

fn read_question<S: Read>(stream: &mut BufReader<S>) -> Option<Value> {
    let mut length = 0;
    let mut first = String::new();
    stream.read_line(&mut first).ok().filter(|len| *len > 0)?;
    assert!(first.starts_with("POST /mqtt HTTP/1.1"), "{first}");
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|len| *len > 0)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    serde_json::from_slice(&body).ok()
}
