//! A node's own clock, which starts at any time and runs a little too fast or too slow.

use shoal_crypto::Rng;
use shoal_wire::Time;

use crate::options::{SimulationOptions, seed_bytes};
use crate::plan::START;

/// Wall clock at the start of every run, in milliseconds since 1970.
const UNIX_MS: u64 = 1_800_000_000_000;
/// Largest error of a router's clock: 20 minutes. Routers whose clocks differ by a day or more
/// refuse each other's routes.
const ROUTER_OFF_MS: u64 = 1_200_000;

/// Correct wall-clock time in milliseconds since 1970.
pub(crate) fn unix_ms(now: Time) -> u64 {
    UNIX_MS + now.since(START).as_millis() as u64
}

/// Converts between the network's time and the time of a node's clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeClock {
    /// Time of the clock at the start.
    base: u64,
    ppm: i64,
}

impl NodeClock {
    pub(crate) fn new(options: &SimulationOptions, node: usize) -> NodeClock {
        let drift = u64::from(options.drift_ppm);
        if drift == 0 {
            return NodeClock { base: START.0, ppm: 0 };
        }
        let mut rng = Rng::new(seed_bytes(options.seed, &format!("clock {node}")));
        let ppm = rng.below(2 * drift + 1) as i64 - drift as i64;
        NodeClock { base: START.0 + rng.below(1_000_000_000_000), ppm }
    }

    /// Time of the clock at network time `time`.
    pub(crate) fn read(&self, time: Time) -> Time {
        let passed = time.0.saturating_sub(START.0);
        let off = (i128::from(passed) * i128::from(self.ppm)).div_euclid(1_000_000) as i64;
        Time(self.base + passed.saturating_add_signed(off))
    }

    /// First network time at which the clock shows `shown` or more.
    pub(crate) fn when(&self, shown: Time) -> Time {
        if shown == Time::FAR {
            return Time::FAR;
        }
        let passed = i128::from(shown.0.saturating_sub(self.base));
        let guess = passed * 1_000_000 / i128::from(1_000_000 + self.ppm);
        let mut time = Time(START.0.saturating_add(u64::try_from(guess).unwrap_or(u64::MAX)));
        while self.read(time) < shown {
            time.0 += 1;
        }
        time
    }

    /// Unix time in milliseconds that the node's wall clock shows at its start number `run`.
    pub(crate) fn wall_ms(
        &self,
        options: &SimulationOptions,
        node: usize,
        run: u32,
        now: Time,
    ) -> u64 {
        let passed = unix_ms(now);
        let is_router = node < options.routers as usize;
        let most = u64::from(options.wall_off_s) * 1_000;
        let most = if is_router { most.min(ROUTER_OFF_MS) } else { most };
        if most == 0 {
            return passed;
        }
        let mut rng = Rng::new(seed_bytes(options.seed, &format!("wall {node} run {run}")));
        passed - most + rng.below(2 * most + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_shows_what_it_is_asked_to_wait_for() {
        for ppm in [-500, -1, 0, 3, 500] {
            let clock = NodeClock { base: 77_000_000_001, ppm };
            for shown in [77_000_000_001, 77_000_000_002, 77_500_000_123, 9_000_000_000_000_007] {
                let time = clock.when(Time(shown));
                assert!(clock.read(time) >= Time(shown));
                assert!(time == START || clock.read(Time(time.0 - 1)) < Time(shown));
            }
        }
    }
}
