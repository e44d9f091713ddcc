//! Who may append when not everybody can: weights that act under contention and cost nothing without (H-11, R-15).
//!
//! While some other producer waits for room, each may hold at most its share of a log: capacity × weight / weights of all who are
//! active. In a log that is read in order, throughput is proportional to what one holds of it, so shares of space are shares of rate.

use super::command::Kind;
use super::space::Space;

impl Space {
    /// Whether `log` of channel `top` takes `need` records and bytes of `member` now.
    pub(super) fn admits(&self, top: u64, log: u64, member: u64, need: (u64, u64)) -> bool {
        let (Some(top), Some(found)) = (self.channels.get(&top), self.channels.get(&log)) else {
            return false;
        };
        let spec = found.row.spec;
        let fits = found.log.messages() + need.0 <= spec.messages_max
            && found.log.bytes().saturating_add(need.1) <= spec.bytes_max;
        if !fits {
            return false;
        }
        let contended = top.hungry.iter().any(|other| *other != member);
        let held = u32::try_from(member).map_or(0, |producer| found.log.held(producer));
        !contended || held == 0 || held + need.0 <= self.share(top, found, member)
    }

    fn share(&self, top: &super::channel::Channel, found: &super::channel::Channel, member: u64) -> u64 {
        let weight_of = |id: u64| self.members.get(&id).map_or(0, |row| u64::from(row.weight));
        // Those who wait and those who hold, each once; who left counts for nothing.
        let waiting: u64 = top.hungry.iter().map(|id| weight_of(*id)).sum();
        let holding = found.log.holders().map(u64::from).filter(|id| !top.hungry.contains(id));
        let mut active = waiting;
        let mut counted = top.hungry.contains(&member);
        for id in holding {
            active += weight_of(id);
            counted |= id == member;
        }
        if !counted {
            active += weight_of(member);
        }
        let share = u128::from(found.row.spec.messages_max) * u128::from(weight_of(member))
            / u128::from(active.max(1));
        u64::try_from(share).unwrap_or(u64::MAX).max(1)
    }

    /// Wakes as many waiting producers as there is room for, those first who hold least of what they are due.
    pub(super) fn wake_producers(&mut self, top: u64) {
        let Some(found) = self.channels.get(&top).filter(|found| !found.hungry.is_empty()) else { return };
        let logs: Vec<u64> = match found.row.kind {
            Kind::Mpmc => self.open_subs(top).into_iter().map(|(sub, _)| sub).collect(),
            Kind::Mpsc | Kind::Group => vec![top],
        };
        let mut room = 0_u64;
        let mut waiting: Vec<(u64, u64)> = Vec::new();
        for log in &logs {
            let Some(found) = self.channels.get(log) else { continue };
            if found.log.bytes() < found.row.spec.bytes_max {
                room = room.saturating_add(found.row.spec.messages_max.saturating_sub(found.log.messages()));
            }
        }
        for member in &found.hungry {
            if !logs.iter().any(|log| self.admits(top, *log, *member, (1, 0))) {
                continue;
            }
            let producer = u32::try_from(*member).unwrap_or(u32::MAX);
            let held: u64 =
                logs.iter().filter_map(|log| self.channels.get(log)).map(|log| log.log.held(producer)).sum();
            let weight = self.members.get(member).map_or(1, |row| u64::from(row.weight));
            waiting.push((held.saturating_mul(1_000_000) / weight.max(1), *member));
        }
        waiting.sort_unstable();
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        self.wakes.extend(waiting.into_iter().take(room).map(|(_, member)| member));
    }
}
