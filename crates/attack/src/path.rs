//! Lines and relays between two access links.

use core::time::Duration;

use shoal_mix::DepartureTimes;
use shoal_wire::{MixStrategy, Time};

use crate::random::Draws;

/// Maximum number of relays that mix on a path.
pub const MIXES_MAX: u32 = 8;

/// Delay of every line between two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineDelay {
    /// Constant part.
    pub delay: Duration,
    /// Mean of an additional exponential time, in which frames may overtake each other.
    pub jitter: Duration,
}

impl Default for LineDelay {
    /// A fast line with the jitter of an idle machine.
    fn default() -> LineDelay {
        LineDelay { delay: Duration::from_millis(5), jitter: Duration::from_micros(100) }
    }
}

impl LineDelay {
    /// Time at which a frame arrives.
    pub(crate) fn pass(&self, at: u64, draws: &mut Draws) -> u64 {
        at + self.delay.as_nanos() as u64 + self.wait(draws)
    }

    /// Draws the jitter.
    pub(crate) fn wait(&self, draws: &mut Draws) -> u64 {
        draws.exponential(self.jitter.as_nanos() as f64) as u64
    }
}

/// The relays of one circuit, in the order of one direction.
pub(crate) struct CircuitPath {
    line: LineDelay,
    relays: Vec<RelayDelay>,
    draws: Draws,
}

struct RelayDelay {
    delays: DepartureTimes,
    /// Reading of this node's clock at time zero of the observer. Timed mixes flush by this clock.
    clock: u64,
}

impl CircuitPath {
    /// A path over relays with these clocks.
    pub(crate) fn new(
        strategy: MixStrategy,
        clocks: &[u64],
        line: LineDelay,
        mut draws: Draws,
    ) -> CircuitPath {
        let relay = |&clock: &u64| RelayDelay {
            delays: DepartureTimes::new(strategy, &draws.key()),
            clock,
        };
        let relays = clocks.iter().map(relay).collect();
        CircuitPath { line, relays, draws }
    }

    /// Time at which the cell `number`, which left at `at`, reaches the last router.
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

    fn delays_ms(strategy: MixStrategy, mixes: usize) -> Vec<f64> {
        let line = LineDelay { delay: Duration::from_millis(1), jitter: Duration::ZERO };
        let clocks = vec![12_345_678; mixes];
        let mut way = CircuitPath::new(strategy, &clocks, line, Draws::new(1, "way", 0));
        let mut delay = |n: u64| way.pass(n * 777_777, n) as f64 - n as f64 * 777_777.0;
        (0..20_000).map(|n| delay(n) / 1e6).collect()
    }

    fn ms(ms: u64) -> MixTime {
        MixTime::from_duration(Duration::from_millis(ms)).unwrap()
    }

    #[test]
    fn relays_add_what_their_law_says() {
        let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
        assert!(delays_ms(MixStrategy::Pass, 3).iter().all(|d| (d - 4.0).abs() < 1e-6));
        let timed = delays_ms(MixStrategy::Timed { every: ms(5) }, 1);
        assert!((mean(&timed) - 4.5).abs() < 0.1, "{}", mean(&timed));
        assert!(timed.iter().all(|d| (1.8..7.2).contains(d)));
        // The capped distribution: cut at five means, its mean is 0.966 of the uncapped one.
        let stop = delays_ms(MixStrategy::StopAndGo { mean: ms(5), most: ms(25) }, 3);
        assert!((mean(&stop) - 4.0 - 3.0 * 0.966 * 5.0).abs() < 0.3, "{}", mean(&stop));
        assert!(stop.iter().all(|d| (3.9..79.5).contains(d)));
    }
}
