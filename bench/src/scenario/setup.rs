//! Connecting and subscribing many clients, a bounded number at a time.

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::engine::{Io, Load};
use crate::wire;

/// A client to be.
pub(crate) struct Spec {
    pub(crate) client_id: String,
    pub(crate) clean: bool,
    pub(crate) filters: Vec<String>,
    pub(crate) qos: u8,
}

impl Spec {
    /// A clean session without subscriptions.
    pub(crate) fn plain(client_id: String) -> Self {
        Self { client_id, clean: true, filters: Vec::new(), qos: 0 }
    }

    /// The same with one subscription.
    pub(crate) fn subscriber(client_id: String, filter: String, qos: u8) -> Self {
        Self { filters: vec![filter], qos, ..Self::plain(client_id) }
    }
}

/// Connects all, `window` at a time, and returns their connection numbers in order.
pub(crate) fn connect_all(io: &mut Io, specs: &[Spec], window: usize) -> Result<Vec<usize>> {
    let mut load =
        Connecting { specs, conns: Vec::new(), by_conn: Vec::new(), ready: 0, window, failed: false };
    io.run(&mut load, Duration::from_secs(120))?;
    anyhow::ensure!(!load.failed, "a client was refused or closed during set-up");
    Ok(load.conns)
}

struct Connecting<'a> {
    specs: &'a [Spec],
    conns: Vec<usize>,
    /// Connection number → index of its spec.
    by_conn: Vec<usize>,
    ready: usize,
    window: usize,
    failed: bool,
}

impl Connecting<'_> {
    fn begin(&mut self, io: &mut Io) -> Result<()> {
        let index = self.conns.len();
        let spec = &self.specs[index];
        let conn = io.open()?;
        if let Some(out) = io.output(conn) {
            wire::connect(&spec.client_id, spec.clean, out);
        }
        self.by_conn.resize(conn + 1, usize::MAX);
        self.by_conn[conn] = index;
        self.conns.push(conn);
        Ok(())
    }
}

impl Load for Connecting<'_> {
    fn packet(&mut self, io: &mut Io, conn: usize, first: u8, body: &[u8]) {
        let Some(spec) = self.by_conn.get(conn).and_then(|index| self.specs.get(*index)) else { return };
        match first >> 4 {
            2 if body[1] != 0 => self.failed = true,
            2 if spec.filters.is_empty() => self.ready += 1,
            2 => {
                if let Some(out) = io.output(conn) {
                    wire::subscribe(&spec.filters, spec.qos, out);
                }
            }
            9 => self.ready += 1,
            _ => {}
        }
    }

    fn closed(&mut self, _io: &mut Io, conn: usize) {
        self.failed |= self.by_conn.get(conn).is_some_and(|index| *index != usize::MAX);
    }

    fn turn(&mut self, io: &mut Io, _now: Instant) -> bool {
        while self.conns.len() < self.specs.len() && self.conns.len() - self.ready < self.window {
            if self.begin(io).is_err() {
                self.failed = true;
            }
            if self.failed {
                return true;
            }
        }
        self.failed || self.ready == self.specs.len()
    }
}
