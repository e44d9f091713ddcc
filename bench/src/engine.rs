//! One epoll loop that drives many clients: read all there is, hand packets to the load, flush once per socket.

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::wire;

/// What a load does with what its clients receive.
pub(crate) trait Load {
    /// A packet arrived on a connection.
    fn packet(&mut self, io: &mut Io, conn: usize, first: u8, body: &[u8]);
    /// A connection was closed by the broker.
    fn closed(&mut self, _io: &mut Io, _conn: usize) {}
    /// Called once per turn, before flushing; true ends the run.
    fn turn(&mut self, io: &mut Io, now: Instant) -> bool;
}

struct Conn {
    stream: TcpStream,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The kernel's buffer was full: wait for writability.
    blocked: bool,
}

/// All connections of one load.
pub(crate) struct Io {
    poll: Poll,
    addresses: Vec<SocketAddr>,
    conns: Vec<Option<Conn>>,
    dirty: Vec<usize>,
    scratch: Vec<u8>,
}

impl Io {
    pub(crate) fn new(addresses: &[SocketAddr]) -> Result<Self> {
        Ok(Self {
            poll: Poll::new().context("epoll")?,
            addresses: addresses.to_vec(),
            conns: Vec::new(),
            dirty: Vec::new(),
            scratch: vec![0; 1 << 18],
        })
    }

    /// Opens a connection and returns its number. The nodes of a cluster take turns.
    pub(crate) fn open(&mut self) -> Result<usize> {
        let token = self.conns.len();
        let address = self.addresses[token % self.addresses.len()];
        let mut stream = TcpStream::connect(address).context("connect")?;
        stream.set_nodelay(true).context("nodelay")?;
        self.poll.registry().register(&mut stream, Token(token), Interest::READABLE | Interest::WRITABLE)?;
        self.conns.push(Some(Conn { stream, input: Vec::new(), output: Vec::new(), blocked: true }));
        Ok(token)
    }

    /// The output of a connection; it is flushed at the end of the turn.
    pub(crate) fn output(&mut self, conn: usize) -> Option<&mut Vec<u8>> {
        let open = self.conns.get_mut(conn)?.as_mut()?;
        if open.output.is_empty() {
            self.dirty.push(conn);
        }
        Some(&mut open.output)
    }

    /// Closes a connection at once.
    pub(crate) fn close(&mut self, conn: usize) {
        self.conns[conn] = None;
    }

    /// Closes every connection.
    pub(crate) fn close_all(&mut self) {
        self.conns.clear();
    }

    /// Runs `load` until it says that it is done.
    pub(crate) fn run(&mut self, load: &mut impl Load, limit: Duration) -> Result<()> {
        let end = Instant::now() + limit;
        let mut events = Events::with_capacity(4_096);
        loop {
            let now = Instant::now();
            let done = load.turn(self, now);
            self.flush();
            if done {
                return Ok(());
            }
            if now > end {
                bail!("the load did not end within {limit:?}");
            }
            match self.poll.poll(&mut events, Some(Duration::from_millis(1))) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                other => other.context("epoll_wait")?,
            }
            for event in &events {
                let conn = event.token().0;
                if event.is_writable() {
                    self.unblock(conn);
                }
                if event.is_readable() || event.is_read_closed() {
                    self.read(conn, load);
                }
            }
        }
    }

    fn unblock(&mut self, conn: usize) {
        if let Some(Some(open)) = self.conns.get_mut(conn)
            && open.blocked
        {
            open.blocked = false;
            self.dirty.push(conn);
        }
    }

    fn read(&mut self, conn: usize, load: &mut impl Load) {
        let mut scratch = std::mem::take(&mut self.scratch);
        while let Some(Some(open)) = self.conns.get_mut(conn) {
            match open.stream.read(&mut scratch) {
                Ok(0) => {
                    self.conns[conn] = None;
                    load.closed(self, conn);
                    break;
                }
                Ok(len) => self.take(conn, &scratch[..len], load),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => {
                    self.conns[conn] = None;
                    load.closed(self, conn);
                    break;
                }
            }
        }
        self.scratch = scratch;
    }

    fn take(&mut self, conn: usize, fresh: &[u8], load: &mut impl Load) {
        let Some(Some(open)) = self.conns.get_mut(conn) else { return };
        let mut kept = std::mem::take(&mut open.input);
        let joined = !kept.is_empty();
        if joined {
            kept.extend_from_slice(fresh);
        }
        let bytes = if joined { &kept[..] } else { fresh };
        let mut at = 0;
        while let Some((first, start, end)) = wire::frame(&bytes[at..]) {
            load.packet(self, conn, first, &bytes[at + start..at + end]);
            at += end;
        }
        let rest = bytes[at..].to_vec();
        if let Some(Some(open)) = self.conns.get_mut(conn) {
            open.input = rest;
        }
    }

    fn flush(&mut self) {
        for conn in std::mem::take(&mut self.dirty) {
            let Some(Some(open)) = self.conns.get_mut(conn) else { continue };
            if open.blocked || open.output.is_empty() {
                continue;
            }
            match open.stream.write(&open.output) {
                Ok(len) if len == open.output.len() => open.output.clear(),
                Ok(len) => {
                    open.output.drain(..len);
                    open.blocked = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => open.blocked = true,
                // The read side reports it.
                Err(_) => open.output.clear(),
            }
        }
    }
}
