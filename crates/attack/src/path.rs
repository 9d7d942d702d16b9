//! Lines and relays between two access links.

use core::time::Duration;

use shoal_mix::Delays;
use shoal_wire::{Strategy, Time};

use crate::random::Draws;

/// Most relays that mix on a way.
pub const MIXES_MAX: u32 = 8;

/// What every line between two nodes does to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Always.
    pub delay: Duration,
    /// The mean of an exponential time on top of it. Frames may change places in it.
    pub jitter: Duration,
}

impl Default for Line {
    /// A quick line with the jitter of an idle machine.
    fn default() -> Line {
        Line { delay: Duration::from_millis(5), jitter: Duration::from_micros(100) }
    }
}

impl Line {
    /// When a frame arrives.
    pub(crate) fn pass(&self, at: u64, draws: &mut Draws) -> u64 {
        at + self.delay.as_nanos() as u64 + self.wait(draws)
    }

    /// A draw of the jitter.
    pub(crate) fn wait(&self, draws: &mut Draws) -> u64 {
        draws.exponential(self.jitter.as_nanos() as f64) as u64
    }
}

/// The relays of one circuit, as one direction of it meets them.
pub(crate) struct Way {
    line: Line,
    relays: Vec<Relay>,
    draws: Draws,
}

struct Relay {
    delays: Delays,
    /// What this node's clock shows when the observer's shows zero. Timed mixes flush by it.
    clock: u64,
}

impl Way {
    /// A way over relays with these clocks.
    pub(crate) fn new(strategy: Strategy, clocks: &[u64], line: Line, mut draws: Draws) -> Way {
        let relay = |&clock: &u64| Relay { delays: Delays::new(strategy, &draws.key()), clock };
        let relays = clocks.iter().map(relay).collect();
        Way { line, relays, draws }
    }

    /// When the cell with this number, which left at `at`, is at the last router.
    pub(crate) fn pass(&mut self, at: u64, number: u64) -> u64 {
        let mut at = self.line.pass(at, &mut self.draws);
        for relay in &mut self.relays {
            let due = relay.delays.due(Time(at + relay.clock), 0, 0, number);
            at = self.line.pass(due.0 - relay.clock, &mut self.draws);
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_wire::MixTime;

    fn delays_ms(strategy: Strategy, mixes: usize) -> Vec<f64> {
        let line = Line { delay: Duration::from_millis(1), jitter: Duration::ZERO };
        let clocks = vec![12_345_678; mixes];
        let mut way = Way::new(strategy, &clocks, line, Draws::new(1, "way", 0));
        let mut delay = |n: u64| way.pass(n * 777_777, n) as f64 - n as f64 * 777_777.0;
        (0..20_000).map(|n| delay(n) / 1e6).collect()
    }

    fn ms(ms: u64) -> MixTime {
        MixTime::from_duration(Duration::from_millis(ms)).unwrap()
    }

    #[test]
    fn relays_add_what_their_law_says() {
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        assert!(delays_ms(Strategy::Pass, 3).iter().all(|d| (d - 4.0).abs() < 1e-6));
        let timed = delays_ms(Strategy::Timed { every: ms(5) }, 1);
        assert!((mean(&timed) - 4.5).abs() < 0.1, "{}", mean(&timed));
        assert!(timed.iter().all(|d| (1.8..7.2).contains(d)));
        // The capped law: 0.966 of the mean is left at five means.
        let stop = delays_ms(Strategy::StopAndGo { mean: ms(5), most: ms(25) }, 3);
        assert!((mean(&stop) - 4.0 - 3.0 * 0.966 * 5.0).abs() < 0.3, "{}", mean(&stop));
        assert!(stop.iter().all(|d| (3.9..79.5).contains(d)));
    }
}
