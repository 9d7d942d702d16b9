//! One direction of an emulated link, as a pure value: packets and times in, verdicts out.
//!
//! A packet waits until the line is free, and occupies the line for its length at the line's rate.
//! Then the packet may be lost: as on a wire, a lost packet has occupied the line. Otherwise the
//! packet arrives after the delay. Packets stay in order: jitter never moves a packet before its
//! predecessor.

use shoal_crypto::Rng;

/// Nanoseconds per second: all times of the emulator are in nanoseconds.
const SECOND: u128 = 1_000_000_000;

/// Settings of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Rate in bits per second; 0 for no limit.
    pub rate: u64,
    /// One-way delay in nanoseconds.
    pub delay: u64,
    /// Spread of the delay to both sides, evenly distributed, in nanoseconds.
    pub jitter: u64,
    /// Longest wait for the line, in nanoseconds.
    pub queue: u64,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Mean number of consecutive losses; 1 makes losses independent.
    pub burst: f64,
    /// True if nothing passes.
    pub cut: bool,
    /// True if due packets wait until this is false again.
    pub kept: bool,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PacketFate {
    /// The packet arrives.
    Arrives {
        /// Time of arrival in nanoseconds.
        due: u64,
        /// Wait in the queue, in nanoseconds.
        waited: u64,
    },
    /// Lost by the configured loss.
    Lost,
    /// The queue was full.
    Full,
    Cut,
}

/// One direction of a link.
#[derive(Debug)]
pub struct LineModel {
    free_at: u64,
    last_due: u64,
    losing: bool,
    rng: Rng,
}

impl LineModel {
    /// A line that has carried nothing.
    pub fn new(seed: [u8; 32]) -> LineModel {
        LineModel { free_at: 0, last_due: 0, losing: false, rng: Rng::new(seed) }
    }

    /// Decides the fate of a packet of `len` bytes that comes at `now`. An `exempt` packet is never
    /// lost by the configured loss: it resolves addresses, and its loss would block all traffic for
    /// a second.
    pub fn pass(&mut self, now: u64, len: usize, exempt: bool, s: &Settings) -> PacketFate {
        if s.cut {
            return PacketFate::Cut;
        }
        let start = self.free_at.max(now);
        let waited = start - now;
        if s.rate > 0 {
            if waited > s.queue {
                return PacketFate::Full;
            }
            let time = len as u128 * 8 * SECOND / u128::from(s.rate);
            self.free_at = start + time as u64;
        } else {
            self.free_at = now;
        }
        if self.loses(s) && !exempt {
            return PacketFate::Lost;
        }
        let spread = match s.jitter {
            0 => 0,
            jitter => self.rng.below(2 * jitter + 1),
        };
        let delay = (s.delay + spread).saturating_sub(s.jitter);
        let due = (self.free_at + delay).max(self.last_due);
        self.last_due = due;
        PacketFate::Arrives { due, waited }
    }

    /// Gilbert's model: one state loses all packets, the other loses none. The mean stay in the
    /// first state is `burst` packets; the stay in the other follows from the loss.
    fn loses(&mut self, s: &Settings) -> bool {
        if s.loss <= 0.0 {
            self.losing = false;
            return false;
        }
        if s.loss >= 1.0 {
            return true;
        }
        let chance = f64::from(self.rng.u32()) / (f64::from(u32::MAX) + 1.0);
        if s.burst <= 1.0 {
            return chance < s.loss;
        }
        let leave = 1.0 / s.burst;
        self.losing =
            if self.losing { chance >= leave } else { chance < leave * s.loss / (1.0 - s.loss) };
        self.losing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FREE: Settings = Settings {
        rate: 0,
        delay: 0,
        jitter: 0,
        queue: 0,
        loss: 0.0,
        burst: 1.0,
        cut: false,
        kept: false,
    };

    fn arrival(verdict: PacketFate) -> (u64, u64) {
        match verdict {
            PacketFate::Arrives { due, waited } => (due, waited),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_packet_takes_its_time_and_waits_for_those_before_it() {
        let s = Settings { rate: 8_000_000, delay: 500, queue: 10_000_000, ..FREE };
        let mut line = LineModel::new([1; 32]);
        // 1,000 bytes at 1 byte per microsecond.
        assert_eq!(arrival(line.pass(0, 1_000, false, &s)), (1_000_500, 0));
        assert_eq!(arrival(line.pass(0, 1_000, false, &s)), (2_000_500, 1_000_000));
        assert_eq!(arrival(line.pass(5_000_000, 1_000, false, &s)), (6_000_500, 0));
    }

    #[test]
    fn the_queue_is_bounded_and_a_cut_takes_everything() {
        let s = Settings { rate: 8_000_000, queue: 3_000_000, ..FREE };
        let mut line = LineModel::new([1; 32]);
        let full = (0..10).filter(|_| line.pass(0, 1_000, false, &s) == PacketFate::Full).count();
        assert_eq!(full, 6, "four fit: one on the line and three milliseconds behind it");
        assert_eq!(line.pass(0, 1, true, &Settings { cut: true, ..s }), PacketFate::Cut);
    }

    #[test]
    fn jitter_spreads_and_keeps_order() {
        let s = Settings { delay: 10_000, jitter: 4_000, ..FREE };
        let mut line = LineModel::new([2; 32]);
        let mut before = 0;
        let (mut low, mut high) = (u64::MAX, 0);
        for i in 0..1_000u64 {
            let (due, _) = arrival(line.pass(i * 20_000, 100, false, &s));
            assert!(due >= before);
            before = due;
            low = low.min(due - i * 20_000);
            high = high.max(due - i * 20_000);
        }
        assert!((6_000..6_200).contains(&low) && (13_800..=14_000).contains(&high));
    }

    #[test]
    fn losses_come_in_bursts_of_the_mean_asked_for() {
        for (loss, burst) in [(0.05, 1.0), (0.05, 8.0), (0.3, 3.0)] {
            let s = Settings { loss, burst, ..FREE };
            let mut line = LineModel::new([3; 32]);
            let lost: Vec<bool> =
                (0..400_000).map(|_| line.pass(0, 1, false, &s) == PacketFate::Lost).collect();
            let total = lost.iter().filter(|l| **l).count() as f64;
            let runs = lost.windows(2).filter(|w| !w[0] && w[1]).count() as f64;
            let share = total / lost.len() as f64;
            assert!((share / loss - 1.0).abs() < 0.08, "{loss} {burst}: {share}");
            let mean = if burst > 1.0 { burst } else { 1.0 / (1.0 - loss) };
            assert!((total / runs / mean - 1.0).abs() < 0.08, "{loss} {burst}: {}", total / runs);
        }
        let all = Settings { loss: 1.0, ..FREE };
        assert_eq!(LineModel::new([3; 32]).pass(0, 1, false, &all), PacketFate::Lost);
        assert_ne!(LineModel::new([3; 32]).pass(0, 1, true, &all), PacketFate::Lost);
    }
}
