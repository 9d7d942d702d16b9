//! The hold before the egress: cells that wait because a strategy delays them, not because the link
//! is slower.
//!
//! Held cells are no backlog: they cause no marks and take no room from sources. The link's own
//! frames (reports, keepalives, routes) are not held and leave before them.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::{DropReason, SizeClass, Time};

use crate::pool::Pool;

/// Held cells leave at multiples of this time, so that one wake-up releases a run instead of one
/// cell: at 1 Gbit/s, 21 full cells.
const QUANTUM: Duration = Duration::from_micros(250);

/// What a hold does with the cells of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strategy {
    /// Nothing: cells go on at once, in the buffer in which they arrived.
    #[default]
    Pass,
    /// Each cell leaves this long after it came, rounded up to 250 us, in order of arrival. A fixed
    /// delay hides nothing; it is for tests of how a node works with held cells.
    Delay(Duration),
}

impl Strategy {
    /// Whether the strategy delays cells.
    pub const fn holds(self) -> bool {
        matches!(self, Strategy::Delay(_))
    }

    /// When a cell that comes now may leave.
    fn due(self, now: Time) -> Time {
        match self {
            Strategy::Pass => now,
            Strategy::Delay(delay) => {
                let quantum = QUANTUM.as_nanos() as u64;
                Time((now + delay).0.div_ceil(quantum).saturating_mul(quantum))
            }
        }
    }
}

/// Limits of one hold. Memory is taken only when cells are held.
#[derive(Clone, Copy, Debug)]
pub struct HoldConfig {
    /// The strategy of new links.
    pub strategy: Strategy,
    /// Cells that may be held; one more is dropped as `hold_full`.
    pub cells_max: usize,
    /// Their bytes. 6 MiB are 4,369 full cells; 1 Gbit/s brings 4,217 in 50 ms.
    pub bytes_max: usize,
}

impl Default for HoldConfig {
    fn default() -> HoldConfig {
        HoldConfig { strategy: Strategy::Pass, cells_max: 8_192, bytes_max: 6 << 20 }
    }
}

struct Held {
    due: Time,
    class: SizeClass,
    slot: u32,
}

/// Cells of one link that are held, unsealed.
#[derive(Default)]
pub struct Hold {
    /// In the order in which they leave: none is due before one that stands before it.
    cells: VecDeque<Held>,
    /// By size class.
    pools: [Pool; 3],
    bytes: usize,
}

impl Hold {
    /// Copies one unsealed cell (header and tag bytes are still meaningless) into the hold. Under
    /// [`Strategy::Pass`] it leaves with the last cell held.
    ///
    /// Errors: `hold_full`, and the cell is forgotten.
    pub fn admit(
        &mut self,
        now: Time,
        config: &HoldConfig,
        strategy: Strategy,
        class: SizeClass,
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let len = class.frame_len();
        if self.cells.len() >= config.cells_max || self.bytes + len > config.bytes_max {
            return Err(DropReason::HoldFull);
        }
        let due = strategy.due(now);
        let due = self.cells.back().map_or(due, |last| due.max(last.due));
        let slot = self.pools[class as usize].store(len, cell);
        self.cells.push_back(Held { due, class, slot });
        self.bytes += len;
        Ok(())
    }

    /// When the next cell is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.cells.front().map(|held| held.due)
    }

    /// Moves the next due cells of one class into `buf`, at most `max`, as many as fit. Returns
    /// their number and class; cell `i` starts at `i * class.frame_len()`. Call until None.
    pub fn release(&mut self, now: Time, buf: &mut [u8], max: usize) -> Option<(usize, SizeClass)> {
        let class = self.cells.front().filter(|held| held.due <= now)?.class;
        let len = class.frame_len();
        let mut count = 0;
        for place in buf.chunks_exact_mut(len).take(max) {
            let next = |held: &mut Held| held.due <= now && held.class == class;
            let Some(held) = self.cells.pop_front_if(next) else { break };
            self.pools[class as usize].take(len, held.slot, place);
            count += 1;
        }
        self.bytes -= count * len;
        Some((count, class))
    }

    /// Cells that are held.
    pub fn len(&self) -> usize {
        self.cells.len()
    }

    /// True when none is held.
    pub fn is_empty(&self) -> bool {
        self.cells.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Strategy = Strategy::Delay(Duration::from_millis(5));
    const FULL: usize = SizeClass::Full.frame_len();
    const SMALL: usize = SizeClass::Small.frame_len();

    fn admit(hold: &mut Hold, at_us: u64, strategy: Strategy, class: SizeClass, fill: u8) -> bool {
        let config = HoldConfig { cells_max: 6, bytes_max: 4 * FULL, ..HoldConfig::default() };
        let cell = vec![fill; class.frame_len()];
        let admitted = hold.admit(Time(at_us * 1_000), &config, strategy, class, &cell);
        assert!(matches!(admitted, Ok(()) | Err(DropReason::HoldFull)));
        admitted.is_ok()
    }

    /// The first bytes of the cells that leave at `at_us`, run by run.
    fn leave(hold: &mut Hold, at_us: u64) -> Vec<Vec<u8>> {
        let mut buf = vec![0; 44 * FULL];
        let mut runs = Vec::new();
        while let Some((count, class)) = hold.release(Time(at_us * 1_000), &mut buf, 44) {
            runs.push((0..count).map(|i| buf[i * class.frame_len()]).collect());
        }
        runs
    }

    #[test]
    fn each_cell_waits_its_time_and_a_quantum_leaves_as_a_run() {
        let mut hold = Hold::default();
        for (at, class) in [(10, SizeClass::Full), (40, SizeClass::Full), (40, SizeClass::Small)] {
            assert!(admit(&mut hold, at, DELAY, class, at as u8 + class as u8));
        }
        assert!(admit(&mut hold, 260, DELAY, SizeClass::Small, 9));
        assert_eq!(hold.poll_timeout(), Some(Time(5_250_000)));
        assert!(leave(&mut hold, 5_249).is_empty());
        assert_eq!(leave(&mut hold, 5_250), [vec![12, 42], vec![40]]);
        assert_eq!(hold.poll_timeout(), Some(Time(5_500_000)));
        assert_eq!(leave(&mut hold, 9_000), [vec![9]]);
        assert!(hold.is_empty() && hold.poll_timeout().is_none() && hold.bytes == 0);
    }

    #[test]
    fn a_cell_under_another_strategy_leaves_behind_those_that_are_held() {
        let mut hold = Hold::default();
        assert!(admit(&mut hold, 0, DELAY, SizeClass::Full, 1));
        assert!(admit(&mut hold, 1_000, Strategy::Pass, SizeClass::Full, 2));
        assert!(leave(&mut hold, 4_000).is_empty());
        assert_eq!(leave(&mut hold, 5_000), [vec![1, 2]]);
        assert!(admit(&mut hold, 5_000, Strategy::Pass, SizeClass::Full, 3));
        assert_eq!(leave(&mut hold, 5_000), [vec![3]]);
    }

    #[test]
    fn cells_and_bytes_have_bounds_and_room_comes_back() {
        let mut hold = Hold::default();
        let full = (0..6).filter(|n| admit(&mut hold, 0, DELAY, SizeClass::Full, *n)).count();
        assert_eq!((full, hold.bytes), (4, 4 * FULL), "so many bytes");
        assert!(!admit(&mut hold, 0, DELAY, SizeClass::Small, 0));
        assert_eq!(leave(&mut hold, 5_000), [vec![0, 1, 2, 3]]);
        let small = (0..9).filter(|n| admit(&mut hold, 0, DELAY, SizeClass::Small, *n)).count();
        assert_eq!((small, hold.bytes), (6, 6 * SMALL), "so many cells");
    }

    #[test]
    fn memory_is_what_was_needed_and_is_used_again() {
        let mut hold = Hold::default();
        assert!(hold.pools.iter().all(|pool| pool.capacity() == 0));
        for round in 0..100 {
            assert!(admit(&mut hold, round, DELAY, SizeClass::Small, 7));
            assert_eq!(leave(&mut hold, round + 9_000), [vec![7]]);
        }
        assert!(hold.pools.iter().map(Pool::capacity).sum::<usize>() < 2 * FULL);
    }
}
