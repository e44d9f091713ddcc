//! Many filters and many retained messages.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::setup::{Spec, connect_all};
use crate::engine::{Io, Load};
use crate::process::Broker;
use crate::report::Figures;
use crate::wire;

/// 1,000 clients with 100 wildcard filters each; one publisher whose messages match one filter each.
pub(crate) fn filters(broker: &Broker, seconds: f64) -> Result<Figures> {
    const CLIENTS: usize = 1_000;
    const EACH: usize = 100;
    let mut io = Io::new(&broker.addresses)?;
    let filter = |n: usize| match n % 3 {
        0 => format!("site/{}/+/{}/state", n % 100, n),
        1 => format!("site/{}/{}/#", n % 100, n),
        _ => format!("+/{}/{}/state", n % 100, n),
    };
    let before = broker.usage()?;
    let specs: Vec<Spec> = (0..CLIENTS)
        .map(|client| Spec {
            filters: (0..EACH).map(|n| filter(client * EACH + n)).collect(),
            ..Spec::plain(format!("f{client}"))
        })
        .collect();
    connect_all(&mut io, &specs, 64)?;
    let with_filters = broker.usage()?;
    let publisher = connect_all(&mut io, &[Spec::plain("fp".into())], 1)?[0];
    let before_load = broker.usage()?;
    let began = Instant::now();
    let mut load = Spread {
        publisher,
        sent: 0,
        received: 0,
        until: began + Duration::from_secs_f64(seconds),
        topics: CLIENTS * EACH,
    };
    io.run(&mut load, Duration::from_secs_f64(seconds + 30.0))?;
    let cpu = broker.usage()?.cpu - before_load.cpu;
    let grown = with_filters.resident_bytes.saturating_sub(before.resident_bytes);
    Ok(Figures {
        bytes: Some(grown as f64 / (CLIENTS * EACH) as f64),
        ..Figures::of_rate(load.received, began.elapsed(), cpu)
    })
}

struct Spread {
    publisher: usize,
    sent: u64,
    received: u64,
    until: Instant,
    topics: usize,
}

impl Load for Spread {
    fn packet(&mut self, _io: &mut Io, _conn: usize, first: u8, _body: &[u8]) {
        self.received += u64::from(first >> 4 == 3);
    }

    fn turn(&mut self, io: &mut Io, now: Instant) -> bool {
        while self.sent - self.received.min(self.sent) < 200 {
            let n = (self.sent.wrapping_mul(2_654_435_761) % self.topics as u64) as usize;
            let topic = match n % 3 {
                0 => format!("site/{}/x/{}/state", n % 100, n),
                1 => format!("site/{}/{}/x", n % 100, n),
                _ => format!("z/{}/{}/state", n % 100, n),
            };
            self.sent += 1;
            if let Some(out) = io.output(self.publisher) {
                wire::publish(&topic, 0, false, 0, &[b'x'; 64], out);
            }
        }
        now >= self.until
    }
}

/// Stores `count` retained messages of 64 bytes with QoS 1, then reads them with one `#` subscriber: (stored, sent).
pub(crate) fn retained(broker: &Broker, count: usize) -> Result<(Figures, Figures)> {
    let mut io = Io::new(&broker.addresses)?;
    let conns = connect_all(&mut io, &[Spec::plain("rp".into())], 1)?;
    let before = broker.usage()?;
    let began = Instant::now();
    let mut load = Store { publisher: conns[0], sent: 0, acked: 0, count };
    io.run(&mut load, Duration::from_secs(120))?;
    let after = broker.usage()?;
    let grown = after.resident_bytes.saturating_sub(before.resident_bytes);
    let stored = Figures {
        bytes: Some(grown as f64 / count as f64),
        ..Figures::of_rate(count as u64, began.elapsed(), after.cpu - before.cpu)
    };
    let before = broker.usage()?;
    let began = Instant::now();
    let mut load = Fetch { opened: false, received: 0, count };
    io.run(&mut load, Duration::from_secs(120))?;
    let sent = Figures::of_rate(count as u64, began.elapsed(), broker.usage()?.cpu - before.cpu);
    Ok((stored, sent))
}

struct Store {
    publisher: usize,
    sent: usize,
    acked: usize,
    count: usize,
}

impl Load for Store {
    fn packet(&mut self, _io: &mut Io, _conn: usize, first: u8, _body: &[u8]) {
        self.acked += usize::from(first >> 4 == 4);
    }

    fn turn(&mut self, io: &mut Io, _now: Instant) -> bool {
        while self.sent < self.count && self.sent - self.acked < 1_000 {
            let topic = format!("kept/{}/{}", self.sent % 100, self.sent);
            let id = (self.sent % 65_535) as u16 + 1;
            self.sent += 1;
            if let Some(out) = io.output(self.publisher) {
                wire::publish(&topic, 1, true, id, &[b'x'; 64], out);
            }
        }
        self.acked == self.count
    }
}

struct Fetch {
    opened: bool,
    received: usize,
    count: usize,
}

impl Load for Fetch {
    fn packet(&mut self, io: &mut Io, conn: usize, first: u8, _body: &[u8]) {
        match first >> 4 {
            2 => {
                if let Some(out) = io.output(conn) {
                    wire::subscribe(&["#".into()], 0, out);
                }
            }
            3 => self.received += 1,
            _ => {}
        }
    }

    fn turn(&mut self, io: &mut Io, _now: Instant) -> bool {
        if !self.opened {
            self.opened = true;
            if let Ok(conn) = io.open()
                && let Some(out) = io.output(conn)
            {
                wire::connect("rs", true, out);
            }
        }
        self.received >= self.count
    }
}
