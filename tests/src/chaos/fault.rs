//! The faults: each is done to a node for a while, and healed before the next comes.

use std::fs;
use std::time::{Duration, Instant};

use rand::RngExt as _;
use rand::rngs::StdRng;

use super::{LEASE_MS, World};
use crate::history::What;
use crate::load::Field;

/// What is done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// kill -9, and a restart after some time.
    Kill,
    /// All three are killed at once, and start one after the other.
    KillAll,
    /// SIGSTOP for less than the lease.
    ShortStop,
    /// SIGSTOP for longer than the lease.
    LongStop,
    /// Nobody of the others hears it, nor it them; clients reach it.
    Partition,
    /// It hears one other node, which does not hear it.
    OneWay,
    /// It hears nobody of the others, and is heard.
    Deaf,
    /// Clients do not reach it.
    NoClients,
    /// Its link is slow.
    SlowLink,
    /// A part of the packets from and to the others is lost.
    Loss,
    /// Its disk stalls again and again.
    SlowDisk,
    /// Its disk is full.
    FullDisk,
    /// Its wall clock steps by an hour, and back.
    ClockStep,
    /// SIGTERM and start, one node after the other.
    RollingRestart,
}

impl Fault {
    /// The menu.
    pub const ALL: [Self; 14] = [
        Self::Kill,
        Self::KillAll,
        Self::ShortStop,
        Self::LongStop,
        Self::Partition,
        Self::OneWay,
        Self::Deaf,
        Self::NoClients,
        Self::SlowLink,
        Self::Loss,
        Self::SlowDisk,
        Self::FullDisk,
        Self::ClockStep,
        Self::RollingRestart,
    ];

    /// A fault by its name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| format!("{fault:?}").eq_ignore_ascii_case(name))
    }
}

impl World {
    /// Does it to a random node, waits, and heals. Says what was done.
    pub(super) fn strike(
        &mut self,
        fault: Fault,
        field: &Field,
        random: &mut StdRng,
        violations: &mut Vec<String>,
    ) -> String {
        let at = random.random_range(0..3);
        let other = (at + random.random_range(1..3)) % 3;
        let hold = Duration::from_millis(random.random_range(1_000..6_000));
        let lease = Duration::from_millis(LEASE_MS.into());
        let began = Instant::now();
        match fault {
            Fault::Kill => self.kill(&[at], hold, field, violations),
            Fault::KillAll => self.kill(&[0, 1, 2], hold / 4, field, violations),
            Fault::ShortStop => self.pause(at, hold.min(lease / 2), field),
            Fault::LongStop => self.pause(at, lease + hold / 2, field),
            Fault::Partition | Fault::OneWay | Fault::Deaf | Fault::NoClients | Fault::Loss => {
                self.troubled(at, hold, field, |world| world.cut(fault, at, other));
            }
            Fault::SlowLink => self.troubled(at, hold, field, |world| _ = world.net.slow_down(at)),
            Fault::SlowDisk => self.slow_disk(at, hold, random, field),
            Fault::FullDisk => {
                field.recorder.note_node(What::Troubled { node: id(at) });
                self.disks[at].fill();
                std::thread::sleep(hold);
                self.disks[at].empty();
                // It stopped, or will at the next write that it could not make.
                self.revive(field, violations);
                field.recorder.note_node(What::Healed { node: id(at) });
            }
            Fault::ClockStep => {
                let step = if random.random_bool(0.5) { "+3600s" } else { "-3600s" };
                self.troubled(at, hold, field, |world| world.set_clock(at, step));
                self.set_clock(at, "+0");
            }
            Fault::RollingRestart => {
                for at in 0..3 {
                    self.restart_gracefully(at, field, violations);
                    std::thread::sleep(Duration::from_millis(500));
                }
            }
        }
        self.look_after(fault, field, violations);
        format!("{fault:?} {} {:.1?}", id(at), began.elapsed())
    }

    /// A node that ended by itself is started again; only a full disk may make it do so.
    fn look_after(&mut self, fault: Fault, field: &Field, violations: &mut Vec<String>) {
        for at in 0..3 {
            if !self.cluster.nodes[at].is_running() && fault != Fault::FullDisk {
                let log = self.cluster.nodes[at].log();
                let text = fs::read_to_string(log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let said = lines[lines.len().saturating_sub(12)..].join("\n");
                let text = format!("P10: node {} ended by itself under {fault:?}:\n{said}", id(at));
                println!("{text}");
                violations.push(text);
            }
        }
        self.revive(field, violations);
    }

    fn kill(&mut self, nodes: &[usize], hold: Duration, field: &Field, violations: &mut Vec<String>) {
        for at in nodes {
            self.cluster.nodes[*at].kill();
            field.recorder.note_node(What::Halted { node: id(*at) });
        }
        std::thread::sleep(hold);
        for at in nodes {
            field.recorder.note_node(What::Revived { node: id(*at) });
            if let Err(refusal) = self.cluster.nodes[*at].try_restart() {
                violations.push(format!("node {} does not start: {}", id(*at), refusal.said));
            }
        }
    }

    fn pause(&mut self, at: usize, hold: Duration, field: &Field) {
        self.cluster.nodes[at].signal("-STOP");
        field.recorder.note_node(What::Halted { node: id(at) });
        std::thread::sleep(hold);
        field.recorder.note_node(What::Revived { node: id(at) });
        self.cluster.nodes[at].signal("-CONT");
    }

    fn troubled(&mut self, at: usize, hold: Duration, field: &Field, begin: impl FnOnce(&mut Self)) {
        field.recorder.note_node(What::Troubled { node: id(at) });
        begin(self);
        std::thread::sleep(hold);
        for at in 0..3 {
            self.net.heal(at);
        }
        field.recorder.note_node(What::Healed { node: id(at) });
    }

    fn cut(&mut self, fault: Fault, at: usize, other: usize) {
        let others = (0..3).filter(|node| *node != at).map(|node| self.ip(node));
        match fault {
            Fault::Partition => others.for_each(|ip| {
                self.net.drop_packets(at, ip, true, None);
                self.net.drop_packets(at, ip, false, None);
            }),
            Fault::Deaf => others.for_each(|ip| self.net.drop_packets(at, ip, true, None)),
            Fault::Loss => others.for_each(|ip| {
                self.net.drop_packets(at, ip, true, Some(0.15));
                self.net.drop_packets(at, ip, false, Some(0.15));
            }),
            Fault::NoClients => self.net.drop_packets(at, self.net.clients(), true, None),
            _ => self.net.drop_packets(at, self.ip(other), false, None),
        }
    }

    fn slow_disk(&mut self, at: usize, hold: Duration, random: &mut StdRng, field: &Field) {
        field.recorder.note_node(What::Troubled { node: id(at) });
        let end = Instant::now() + hold;
        while Instant::now() < end {
            self.disks[at].stall(Duration::from_millis(random.random_range(50..900)));
            std::thread::sleep(Duration::from_millis(random.random_range(20..200)));
        }
        field.recorder.note_node(What::Healed { node: id(at) });
    }

    fn set_clock(&self, at: usize, offset: &str) {
        if let Some(clocks) = &self.clocks {
            // Renamed into place: it is read at any time.
            let fresh = clocks[at].with_extension("new");
            fs::write(&fresh, offset).expect("the file of the clock");
            fs::rename(&fresh, &clocks[at]).expect("the file of the clock");
        }
    }

    fn restart_gracefully(&mut self, at: usize, field: &Field, violations: &mut Vec<String>) {
        if !self.cluster.nodes[at].is_running() {
            return;
        }
        field.recorder.note_node(What::Troubled { node: id(at) });
        self.cluster.nodes[at].stop();
        if let Err(refusal) = self.cluster.nodes[at].try_restart() {
            violations.push(format!("node {} does not start: {}", id(at), refusal.said));
        }
        field.recorder.note_node(What::Healed { node: id(at) });
    }
}

fn id(at: usize) -> u8 {
    u8::try_from(at + 1).expect("three nodes")
}
