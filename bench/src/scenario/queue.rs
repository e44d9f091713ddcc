//! Offline queues: enqueue for absent durable sessions, bytes per queued message, drain after reconnect, start after a crash.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::setup::{Spec, connect_all};
use crate::engine::{Io, Load};
use crate::process::Broker;
use crate::report::Figures;
use crate::wire;

/// What the three phases measured.
pub(crate) struct Phases {
    pub(crate) enqueue: Figures,
    pub(crate) drain: Figures,
    /// Only when asked for: seconds from kill -9 until a connection is accepted.
    pub(crate) restart: Option<Figures>,
}

/// Bytes of a queued message, unless said otherwise.
const SIZE: usize = 64;
/// How long one phase may take.
const PATIENCE: Duration = Duration::from_secs(1_200);

/// `sessions` durable subscribers go away, `each` QoS 1 messages of 64 bytes are queued for every one, then they come back.
pub(crate) fn offline(broker: &mut Broker, sessions: usize, each: usize, crash: bool) -> Result<Phases> {
    let specs = absent(broker, sessions)?;
    let enqueue = enqueue(broker, sessions, each, SIZE)?;
    let restart = if crash {
        let took = broker.crash_and_restart()?;
        Some(Figures { seconds: Some(took.as_secs_f64()), ..Figures::default() })
    } else {
        None
    };
    let drain = drain(broker, &specs, sessions * each)?;
    Ok(Phases { enqueue, drain, restart })
}

/// What a deep backlog costs: memory of the whole node and bytes on disk while it is there, and after it was drained.
pub(crate) struct Backlog {
    pub(crate) enqueue: Figures,
    pub(crate) resident: Figures,
    pub(crate) disk: Figures,
    pub(crate) drain: Figures,
    pub(crate) resident_after: Figures,
    pub(crate) disk_after: Figures,
}

/// The same with `total` messages of `size` bytes for 100 sessions.
pub(crate) fn backlog(broker: &mut Broker, total: usize, size: usize) -> Result<Backlog> {
    const SESSIONS: usize = 100;
    let specs = absent(broker, SESSIONS)?;
    let enqueue = enqueue(broker, SESSIONS, total / SESSIONS, size)?;
    let bytes = |count: u64| Figures { bytes: Some(count as f64), ..Figures::default() };
    let resident = bytes(broker.usage()?.resident_bytes);
    let disk = bytes(broker.disk_bytes()?);
    let drain = drain(broker, &specs, total)?;
    // Checkpoints follow the log.
    std::thread::sleep(Duration::from_secs(30));
    let resident_after = bytes(broker.usage()?.resident_bytes);
    Ok(Backlog { enqueue, resident, disk, drain, resident_after, disk_after: bytes(broker.disk_bytes()?) })
}

/// Durable subscribers that connected once.
fn absent(broker: &Broker, sessions: usize) -> Result<Vec<Spec>> {
    let specs: Vec<Spec> = (0..sessions)
        .map(|n| Spec { clean: false, ..Spec::subscriber(format!("off{n}"), format!("off/{n}"), 1) })
        .collect();
    let mut io = Io::new(&broker.addresses)?;
    connect_all(&mut io, &specs, 64)?;
    io.close_all();
    std::thread::sleep(Duration::from_millis(300));
    Ok(specs)
}

fn enqueue(broker: &Broker, sessions: usize, each: usize, size: usize) -> Result<Figures> {
    let mut io = Io::new(&broker.addresses)?;
    let publishers: Vec<Spec> = (0..10).map(|n| Spec::plain(format!("pub{n}"))).collect();
    let conns = connect_all(&mut io, &publishers, 10)?;
    let before = broker.usage()?;
    let began = Instant::now();
    let total = sessions * each;
    let share = |n: usize| total / conns.len() + usize::from(n < total % conns.len());
    let mut load = Enqueue {
        lanes: conns
            .iter()
            .enumerate()
            .map(|(n, conn)| Lane { conn: *conn, left: share(n), open: 0, next: n, id: 0 })
            .collect(),
        sessions,
        payload: vec![b'x'; size],
        acked: 0,
        total,
    };
    io.run(&mut load, PATIENCE)?;
    let elapsed = began.elapsed();
    let after = broker.usage()?;
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    Ok(Figures {
        bytes: Some(grown as f64 / total as f64),
        ..Figures::of_rate(total as u64, elapsed, after.cpu - before.cpu)
    })
}

struct Lane {
    conn: usize,
    left: usize,
    open: usize,
    next: usize,
    id: u16,
}

struct Enqueue {
    lanes: Vec<Lane>,
    sessions: usize,
    payload: Vec<u8>,
    acked: usize,
    total: usize,
}

impl Load for Enqueue {
    fn packet(&mut self, _io: &mut Io, conn: usize, first: u8, _body: &[u8]) {
        if first >> 4 == 4 {
            self.acked += 1;
            if let Some(lane) = self.lanes.iter_mut().find(|lane| lane.conn == conn) {
                lane.open -= 1;
            }
        }
    }

    fn turn(&mut self, io: &mut Io, _now: Instant) -> bool {
        for lane in &mut self.lanes {
            while lane.left > 0 && lane.open < 100 {
                lane.id = if lane.id == u16::MAX { 1 } else { lane.id + 1 };
                let topic = format!("off/{}", lane.next % self.sessions);
                lane.next += 1;
                lane.left -= 1;
                lane.open += 1;
                if let Some(out) = io.output(lane.conn) {
                    wire::publish(&topic, 1, false, lane.id, &self.payload, out);
                }
            }
        }
        self.acked == self.total
    }
}

fn drain(broker: &Broker, specs: &[Spec], total: usize) -> Result<Figures> {
    let mut io = Io::new(&broker.addresses)?;
    let before = broker.usage()?;
    let began = Instant::now();
    let mut load = Drain { specs, opened: false, received: 0, total, failed: false };
    io.run(&mut load, PATIENCE)?;
    anyhow::ensure!(!load.failed, "a subscriber was refused");
    Ok(Figures::of_rate(total as u64, began.elapsed(), broker.usage()?.cpu - before.cpu))
}

struct Drain<'a> {
    specs: &'a [Spec],
    opened: bool,
    received: usize,
    total: usize,
    failed: bool,
}

impl Load for Drain<'_> {
    fn packet(&mut self, io: &mut Io, conn: usize, first: u8, body: &[u8]) {
        match first >> 4 {
            2 => self.failed |= body[1] != 0,
            3 => {
                let (_, id, _) = wire::read_publish(first, body);
                self.received += 1;
                if let Some(out) = io.output(conn) {
                    wire::ack(0x40, id, out);
                }
            }
            _ => {}
        }
    }

    fn turn(&mut self, io: &mut Io, _now: Instant) -> bool {
        if !self.opened {
            self.opened = true;
            for spec in self.specs {
                match io.open() {
                    Ok(conn) => {
                        if let Some(out) = io.output(conn) {
                            wire::connect(&spec.client_id, false, out);
                        }
                    }
                    Err(_) => self.failed = true,
                }
            }
        }
        self.failed || self.received >= self.total
    }
}
