//! Messages from publishers to subscribers: fan-in, fan-out, pairs; closed loop with a window, or open loop at a fixed rate.
//!
//! The payload carries the time at which the message was *due*, so that a stalled broker is charged for every message that
//! waited (no coordinated omission).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::Result;
use hdrhistogram::Histogram;

use super::setup::{Spec, connect_all};
use crate::engine::{Io, Load};
use crate::process::Broker;
use crate::report::Figures;
use crate::wire;

/// Shape of a flow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) publishers: usize,
    /// Subscribers of each topic.
    pub(crate) fan_out: usize,
    /// Every publisher has a topic of its own (pairs), or all share one (fan-in).
    pub(crate) own_topic: bool,
    pub(crate) qos: u8,
    pub(crate) size: usize,
    /// Messages of one publisher on their way.
    pub(crate) window: u64,
    /// Messages a second of all publishers together; `None`: closed loop.
    pub(crate) rate: Option<u64>,
    /// Subscribers have durable sessions.
    pub(crate) durable: bool,
    /// Nobody is connected to receive: only the publishers' acknowledgements count.
    pub(crate) absent: bool,
}

impl Shape {
    pub(crate) const fn new(
        publishers: usize,
        fan_out: usize,
        own_topic: bool,
        qos: u8,
        size: usize,
        window: u64,
    ) -> Self {
        Self { publishers, fan_out, own_topic, qos, size, window, rate: None, durable: false, absent: false }
    }
}

/// Runs the flow for `seconds` after a warm-up of a quarter of that.
pub(crate) fn run(broker: &Broker, shape: Shape, seconds: f64) -> Result<Figures> {
    let mut io = Io::new(&broker.addresses)?;
    let topics = if shape.own_topic { shape.publishers } else { 1 };
    let subscribers: Vec<Spec> = (0..topics * shape.fan_out)
        .map(|n| {
            let spec = Spec::subscriber(format!("sub{n}"), format!("flow/{}", n % topics), shape.qos);
            Spec { clean: !shape.durable, ..spec }
        })
        .collect();
    let subs = connect_all(&mut io, &subscribers, 64)?;
    if shape.absent {
        io.close_all();
        io = Io::new(&broker.addresses)?;
    }
    let publishers: Vec<Spec> = (0..shape.publishers).map(|n| Spec::plain(format!("pub{n}"))).collect();
    let pubs = connect_all(&mut io, &publishers, 64)?;
    let mut load = Flow::new(shape, pubs, if shape.absent { 0 } else { subs.len() }, seconds);
    let mut done = false;
    while !done {
        io.run(&mut load, Duration::from_secs_f64(seconds * 4.0 + 30.0))?;
        done = load.next_phase(broker)?;
    }
    load.figures()
}

struct Publisher {
    conn: usize,
    topic: String,
    sent: u64,
    acked: u64,
    delivered: u64,
    next_id: u16,
    /// When what is not acknowledged was sent; only where acknowledgements are what is measured.
    unacked: VecDeque<u64>,
}

enum Phase {
    WarmUp,
    Measure,
    Over,
}

struct Flow {
    shape: Shape,
    publishers: Vec<Publisher>,
    /// Connection number → publisher.
    by_conn: Vec<usize>,
    phase: Phase,
    origin: Instant,
    until: Instant,
    measure: Duration,
    /// Deliveries (or acknowledgements, when nobody is there to receive) in the measured phase.
    counted: u64,
    latency: Histogram<u64>,
    cpu_before: Duration,
    cpu: Duration,
    began: Instant,
    elapsed: Duration,
    payload: Vec<u8>,
    paced: u64,
    per_message: u64,
}

impl Flow {
    fn new(shape: Shape, conns: Vec<usize>, subscribers: usize, seconds: f64) -> Self {
        let now = Instant::now();
        let mut by_conn = Vec::new();
        let mut publishers = Vec::new();
        for (index, conn) in conns.into_iter().enumerate() {
            by_conn.resize(by_conn.len().max(conn + 1), usize::MAX);
            by_conn[conn] = index;
            let topic = format!("flow/{}", if shape.own_topic { index } else { 0 });
            let unacked = VecDeque::new();
            publishers.push(Publisher { conn, topic, sent: 0, acked: 0, delivered: 0, next_id: 0, unacked });
        }
        Self {
            shape,
            publishers,
            by_conn,
            phase: Phase::WarmUp,
            origin: now,
            until: now + Duration::from_secs_f64(seconds / 4.0),
            measure: Duration::from_secs_f64(seconds),
            counted: 0,
            latency: Histogram::new(3).expect("three digits are allowed"),
            cpu_before: Duration::ZERO,
            cpu: Duration::ZERO,
            began: now,
            elapsed: Duration::ZERO,
            payload: vec![b'x'; shape.size.max(12)],
            paced: 0,
            per_message: if subscribers == 0 { 0 } else { shape.fan_out as u64 },
        }
    }

    /// Called when `turn` said that the phase is over; true when the last one is.
    fn next_phase(&mut self, broker: &Broker) -> Result<bool> {
        let usage = broker.usage()?;
        let now = Instant::now();
        match self.phase {
            Phase::WarmUp => {
                self.phase = Phase::Measure;
                self.cpu_before = usage.cpu;
                self.began = now;
                self.until = now + self.measure;
                self.counted = 0;
                self.latency.reset();
                Ok(false)
            }
            Phase::Measure | Phase::Over => {
                self.phase = Phase::Over;
                self.cpu = usage.cpu - self.cpu_before;
                self.elapsed = now - self.began;
                Ok(true)
            }
        }
    }

    fn figures(&self) -> Result<Figures> {
        anyhow::ensure!(self.counted > 0, "nothing was delivered");
        Ok(Figures::of_rate(self.counted, self.elapsed, self.cpu).with_latency(&self.latency))
    }

    fn nanos(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.origin).as_nanos()).unwrap_or(u64::MAX)
    }

    fn send(&mut self, io: &mut Io, index: usize, due: u64) {
        self.payload[..8].copy_from_slice(&due.to_be_bytes());
        self.payload[8..12].copy_from_slice(&(index as u32).to_be_bytes());
        let publisher = &mut self.publishers[index];
        publisher.next_id = if publisher.next_id == u16::MAX { 1 } else { publisher.next_id + 1 };
        publisher.sent += 1;
        if self.shape.absent {
            publisher.unacked.push_back(due);
        }
        if let Some(out) = io.output(publisher.conn) {
            wire::publish(&publisher.topic, self.shape.qos, false, publisher.next_id, &self.payload, out);
        }
    }

    fn room(&self, index: usize) -> u64 {
        let publisher = &self.publishers[index];
        let mut finished = publisher.delivered.checked_div(self.per_message).unwrap_or(u64::MAX);
        if self.shape.qos > 0 {
            finished = finished.min(publisher.acked);
        }
        self.shape.window.saturating_sub(publisher.sent - finished.min(publisher.sent))
    }

    fn record(&mut self, due: u64) {
        self.counted += 1;
        let _ = self.latency.record(self.nanos(Instant::now()).saturating_sub(due).max(1));
    }
}

impl Load for Flow {
    fn packet(&mut self, io: &mut Io, conn: usize, first: u8, body: &[u8]) {
        let id = || u16::from_be_bytes([body[0], body[1]]);
        let answer = match first >> 4 {
            3 => {
                let (qos, packet_id, payload) = wire::read_publish(first, body);
                let due = u64::from_be_bytes(payload[..8].try_into().expect("8 bytes"));
                let index = u32::from_be_bytes(payload[8..12].try_into().expect("4 bytes")) as usize;
                if let Some(publisher) = self.publishers.get_mut(index) {
                    publisher.delivered += 1;
                }
                self.record(due);
                match qos {
                    0 => return,
                    1 => (0x40, packet_id),
                    _ => (0x50, packet_id),
                }
            }
            5 => (0x62, id()),
            6 => (0x70, id()),
            4 | 7 => {
                if let Some(publisher) =
                    self.by_conn.get(conn).and_then(|index| self.publishers.get_mut(*index))
                {
                    publisher.acked += 1;
                    if let Some(due) = publisher.unacked.pop_front() {
                        self.record(due);
                    }
                }
                return;
            }
            _ => return,
        };
        if let Some(out) = io.output(conn) {
            wire::ack(answer.0, answer.1, out);
        }
    }

    fn turn(&mut self, io: &mut Io, now: Instant) -> bool {
        let time = self.nanos(now);
        if let Some(rate) = self.shape.rate {
            let due_by_now = (u128::from(time) * u128::from(rate) / 1_000_000_000) as u64;
            while self.paced < due_by_now {
                let due = (u128::from(self.paced) * 1_000_000_000 / u128::from(rate)) as u64;
                let index = self.paced as usize % self.publishers.len();
                self.paced += 1;
                self.send(io, index, due);
            }
        } else {
            for index in 0..self.publishers.len() {
                for _ in 0..self.room(index) {
                    self.send(io, index, time);
                }
            }
        }
        now >= self.until
    }
}
