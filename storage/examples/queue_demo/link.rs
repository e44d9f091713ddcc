//! Channels of another process over a Unix socket: the requests of the queue layer as frames.
//!
//! Frame: `u32 length | postcard`. The server begins with [`Hello`]; then calls and answers, in any order, matched by their number.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use session::time::Millis;
use storage::lease::LeaseFuture;
use storage::queue::{ChannelStore, Request, Response, Unavailable};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, mpsc, oneshot};

/// One frame at most: a page of records and a little.
const FRAME_BYTES_MAX: usize = 300 << 20;
/// Frames that wait to be written.
const FRAMES_WAITING_MAX: usize = 1_024;
/// Version of this protocol.
const VERSION: u16 = 1;

#[derive(Debug, Serialize, Deserialize)]
struct Hello {
    version: u16,
    groups: u16,
    incarnation: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Call {
    number: u64,
    group: u16,
    request: Request,
}

#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    number: u64,
    response: Result<Response, String>,
}

fn encode<T: Serialize>(value: &T) -> std::io::Result<Vec<u8>> {
    let body = postcard::to_allocvec(value).map_err(std::io::Error::other)?;
    let len = u32::try_from(body.len()).map_err(std::io::Error::other)?;
    let mut frame = len.to_le_bytes().to_vec();
    frame.extend_from_slice(&body);
    Ok(frame)
}

async fn read<T: DeserializeOwned>(from: &mut OwnedReadHalf) -> std::io::Result<T> {
    let len = from.read_u32_le().await? as usize;
    if len > FRAME_BYTES_MAX {
        return Err(std::io::Error::other(format!("a frame of {len} bytes is too large")));
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body).await?;
    postcard::from_bytes(&body).map_err(std::io::Error::other)
}

async fn write_all(mut to: OwnedWriteHalf, mut frames: mpsc::Receiver<Vec<u8>>) {
    while let Some(frame) = frames.recv().await {
        if to.write_all(&frame).await.is_err() {
            return;
        }
    }
}

/// A socket that only the user of this process may open.
pub(crate) fn listen(socket: &Path) -> std::io::Result<UnixListener> {
    // Only the holder of the store's lock comes here: what is there was left by one that died.
    let _ = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket)?;
    std::fs::set_permissions(socket, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    Ok(listener)
}

/// Serves `channels` to whoever comes.
pub(crate) async fn serve(listener: UnixListener, channels: Arc<dyn ChannelStore>) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(serve_one(stream, Arc::clone(&channels)));
    }
}

async fn serve_one(stream: UnixStream, channels: Arc<dyn ChannelStore>) -> std::io::Result<()> {
    let (mut from, to) = stream.into_split();
    let (frames, waiting) = mpsc::channel(FRAMES_WAITING_MAX);
    tokio::spawn(write_all(to, waiting));
    let hello = Hello { version: VERSION, groups: channels.groups(), incarnation: channels.incarnation() };
    frames.send(encode(&hello)?).await.map_err(std::io::Error::other)?;
    // Answers that still wait go with the connection.
    let mut calls = tokio::task::JoinSet::new();
    loop {
        let Call { number, group, request } = read(&mut from).await?;
        while calls.try_join_next().is_some() {}
        let (channels, frames) = (Arc::clone(&channels), frames.clone());
        calls.spawn(async move {
            let response = channels.call(group, request).await.map_err(|error| error.0);
            if let Ok(frame) = encode(&Answer { number, response }) {
                let _ = frames.send(frame).await;
            }
        });
    }
}

/// Channels that another process has.
#[derive(Debug)]
pub(crate) struct RemoteStore {
    shared: Arc<Shared>,
    groups: u16,
    incarnation: u64,
}

#[derive(Debug)]
struct Shared {
    frames: mpsc::Sender<Vec<u8>>,
    next: AtomicU64,
    pending: parking_lot::Mutex<Pending>,
    slots: parking_lot::Mutex<HashMap<(u16, u64), Arc<Slot>>>,
}

#[derive(Debug, Default)]
struct Pending {
    calls: HashMap<u64, oneshot::Sender<Result<Response, String>>>,
    closed: bool,
}

/// A wait that goes on when who waited went: its wake-up is kept.
#[derive(Debug, Default)]
struct Slot {
    asked: AtomicBool,
    woken: Notify,
}

impl RemoteStore {
    pub(crate) async fn connect(socket: &Path) -> std::io::Result<Self> {
        let explain = |error: std::io::Error| {
            let text = format!("{}: {error}; start `queue_demo --role store` there first", socket.display());
            std::io::Error::new(error.kind(), text)
        };
        let stream = UnixStream::connect(socket).await.map_err(explain)?;
        let (mut from, to) = stream.into_split();
        let hello: Hello = read(&mut from).await?;
        if hello.version != VERSION {
            return Err(std::io::Error::other(format!("the store speaks version {}", hello.version)));
        }
        let (frames, waiting) = mpsc::channel(FRAMES_WAITING_MAX);
        tokio::spawn(write_all(to, waiting));
        let shared = Arc::new(Shared {
            frames,
            next: AtomicU64::new(1),
            pending: parking_lot::Mutex::default(),
            slots: parking_lot::Mutex::default(),
        });
        tokio::spawn({
            let shared = Arc::clone(&shared);
            async move {
                while let Ok(Answer { number, response }) = read(&mut from).await {
                    if let Some(call) = shared.pending.lock().calls.remove(&number) {
                        let _ = call.send(response);
                    }
                }
                let mut pending = shared.pending.lock();
                pending.closed = true;
                pending.calls.clear();
            }
        });
        Ok(Self { shared, groups: hello.groups, incarnation: hello.incarnation })
    }
}

impl Shared {
    async fn call(&self, group: u16, request: Request) -> Result<Response, Unavailable> {
        let gone = || Unavailable("the process that has the store is gone".to_owned());
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let frame =
            encode(&Call { number, group, request }).map_err(|error| Unavailable(error.to_string()))?;
        let (sender, receiver) = oneshot::channel();
        {
            let mut pending = self.pending.lock();
            if pending.closed {
                return Err(gone());
            }
            pending.calls.insert(number, sender);
        }
        self.frames.send(frame).await.map_err(|_closed| gone())?;
        receiver.await.map_err(|_closed| gone())?.map_err(Unavailable)
    }

    async fn wait(self: &Arc<Self>, group: u16, member: u64) -> Result<Response, Unavailable> {
        let slot = Arc::clone(self.slots.lock().entry((group, member)).or_default());
        if !slot.asked.swap(true, Ordering::AcqRel) {
            let (shared, slot) = (Arc::clone(self), Arc::clone(&slot));
            tokio::spawn(async move {
                let _ = shared.call(group, Request::Wait { member }).await;
                slot.asked.store(false, Ordering::Release);
                slot.woken.notify_one();
            });
        }
        slot.woken.notified().await;
        if self.pending.lock().closed {
            Err(Unavailable("the store is gone".to_owned()))
        } else {
            Ok(Response::Woken)
        }
    }
}

impl ChannelStore for RemoteStore {
    fn name(&self) -> &str {
        "remote"
    }

    fn groups(&self) -> u16 {
        self.groups
    }

    fn incarnation(&self) -> u64 {
        self.incarnation
    }

    fn now(&self) -> Millis {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        Millis(u64::try_from(wall).unwrap_or(u64::MAX))
    }

    fn call(&self, group: u16, request: Request) -> LeaseFuture<'_, Result<Response, Unavailable>> {
        Box::pin(async move {
            match request {
                Request::Wait { member } => self.shared.wait(group, member).await,
                other => self.shared.call(group, other).await,
            }
        })
    }
}
