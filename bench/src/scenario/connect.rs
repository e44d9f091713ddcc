//! Connects, idle connections, churn, takeovers.

use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use super::setup::{Spec, connect_all};
use crate::engine::{Io, Load};
use crate::process::Broker;
use crate::report::Figures;
use crate::wire;

/// Connects `count` clients, 64 at a time, with or without a subscription; then counts bytes per idle connection.
pub(crate) fn connect(broker: &Broker, count: usize, subscribe: bool) -> Result<Figures> {
    let mut io = Io::new(&broker.addresses)?;
    let specs: Vec<Spec> = (0..count)
        .map(|n| {
            if subscribe {
                Spec::subscriber(format!("c{n}"), format!("device/{n}/command"), 0)
            } else {
                Spec::plain(format!("c{n}"))
            }
        })
        .collect();
    let before = broker.usage()?;
    let began = Instant::now();
    connect_all(&mut io, &specs, 64)?;
    let elapsed = began.elapsed();
    let after = broker.usage()?;
    std::thread::sleep(Duration::from_secs(1));
    let settled = broker.usage()?;
    let grown = settled.resident_bytes.saturating_sub(before.resident_bytes);
    Ok(Figures {
        bytes: Some(grown as f64 / count as f64),
        ..Figures::of_rate(count as u64, elapsed, after.cpu - before.cpu)
    })
}

/// CPU of `count` idle connections over ten seconds, as a fraction of a core in the `cpu_us` of one second.
pub(crate) fn idle(broker: &Broker, count: usize) -> Result<Figures> {
    let mut io = Io::new(&broker.addresses)?;
    let specs: Vec<Spec> = (0..count).map(|n| Spec::plain(format!("c{n}"))).collect();
    connect_all(&mut io, &specs, 64)?;
    std::thread::sleep(Duration::from_secs(1));
    let before = broker.usage()?;
    std::thread::sleep(Duration::from_secs(10));
    let after = broker.usage()?;
    Ok(Figures { cpu_us: Some((after.cpu - before.cpu).as_secs_f64() * 1e6 / 10.0), ..Figures::default() })
}

/// `count` durable sessions of which `connected` stay connected: CPU at rest as in [`idle`], log entries per second as the rate.
pub(crate) fn idle_durable(broker: &Broker, count: usize, connected: usize) -> Result<Figures> {
    let mut io = Io::new(&broker.addresses)?;
    let spec =
        |n| Spec { clean: false, ..Spec::subscriber(format!("d{n}"), format!("device/{n}/command"), 1) };
    let specs: Vec<Spec> = (0..count).map(spec).collect();
    let (staying, leaving) = specs.split_at(connected);
    connect_all(&mut io, staying, 64)?;
    for wave in leaving.chunks(1_000) {
        for conn in connect_all(&mut io, wave, 64)? {
            io.close(conn);
        }
    }
    // The ends of the last wave are recorded, and the telemetry has sampled them.
    std::thread::sleep(Duration::from_secs(5));
    let (before, entries_before) = (broker.usage()?, broker.log_entries()?);
    std::thread::sleep(Duration::from_secs(20));
    let (after, entries) = (broker.usage()?, broker.log_entries()? - entries_before);
    Ok(Figures {
        cpu_us: Some((after.cpu - before.cpu).as_secs_f64() * 1e6 / 20.0),
        ..Figures::of_rate(entries, Duration::from_secs(20), Duration::ZERO)
    })
}

/// Connects and disconnects clean sessions, 16 at a time; with `same_ids` the 16 slots keep their ClientIDs and never disconnect, so that
/// every connect is a takeover.
pub(crate) fn churn(broker: &Broker, same_ids: bool, seconds: f64) -> Result<Figures> {
    let mut io = Io::new(&broker.addresses)?;
    let before = broker.usage()?;
    let mut load = Churn {
        same_ids,
        slots: (0..16).map(|_| Slot { conn: usize::MAX, old: usize::MAX, began: Instant::now() }).collect(),
        by_conn: Vec::new(),
        count: 0,
        until: Instant::now() + Duration::from_secs_f64(seconds),
        latency: Histogram::new(3).expect("three digits are allowed"),
        failed: false,
        serial: 0,
    };
    let began = Instant::now();
    io.run(&mut load, Duration::from_secs_f64(seconds + 30.0))?;
    anyhow::ensure!(!load.failed, "a client was refused");
    let cpu = broker.usage()?.cpu - before.cpu;
    Ok(Figures::of_rate(load.count, began.elapsed(), cpu).with_latency(&load.latency))
}

struct Slot {
    conn: usize,
    /// The connection that was taken over, until its socket is closed here too.
    old: usize,
    began: Instant,
}

struct Churn {
    same_ids: bool,
    slots: Vec<Slot>,
    by_conn: Vec<usize>,
    count: u64,
    until: Instant,
    latency: Histogram<u64>,
    failed: bool,
    serial: u64,
}

impl Churn {
    fn begin(&mut self, io: &mut Io, slot: usize) -> Result<()> {
        self.serial += 1;
        let id = if self.same_ids { format!("s{slot}") } else { format!("c{}", self.serial) };
        let conn = io.open()?;
        self.by_conn.resize(conn + 1, usize::MAX);
        self.by_conn[conn] = slot;
        self.slots[slot].old = self.slots[slot].conn;
        self.slots[slot].conn = conn;
        self.slots[slot].began = Instant::now();
        if let Some(out) = io.output(conn) {
            wire::connect(&id, true, out);
        }
        Ok(())
    }
}

impl Load for Churn {
    fn packet(&mut self, io: &mut Io, conn: usize, first: u8, body: &[u8]) {
        let Some(slot) = self.by_conn.get(conn).copied().filter(|slot| *slot != usize::MAX) else { return };
        if first >> 4 != 2 || self.slots[slot].conn != conn {
            return;
        }
        self.failed |= body[1] != 0;
        self.count += 1;
        let took = self.slots[slot].began.elapsed().as_nanos();
        let _ = self.latency.record(u64::try_from(took).unwrap_or(u64::MAX).max(1));
        if self.same_ids {
            let old = std::mem::replace(&mut self.slots[slot].old, usize::MAX);
            if old != usize::MAX {
                io.close(old);
            }
        } else {
            if let Some(out) = io.output(conn) {
                out.extend_from_slice(&[0xE0, 0]);
            }
            return;
        }
        self.failed |= self.begin(io, slot).is_err();
    }

    fn closed(&mut self, io: &mut Io, conn: usize) {
        let Some(slot) = self.by_conn.get(conn).copied().filter(|slot| *slot != usize::MAX) else { return };
        if !self.same_ids && self.slots[slot].conn == conn {
            self.failed |= self.begin(io, slot).is_err();
        }
    }

    fn turn(&mut self, io: &mut Io, now: Instant) -> bool {
        if self.serial == 0 {
            for slot in 0..self.slots.len() {
                self.failed |= self.begin(io, slot).is_err();
            }
        }
        self.failed || now >= self.until
    }
}
