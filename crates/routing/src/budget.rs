//! How much one neighbour may cause, in a row and per second.

use shoal_wire::Time;

/// What is left of one allowance.
#[derive(Debug)]
pub(crate) struct Budget {
    burst: u64,
    rate: u64,
    left: u64,
    at: Time,
}

impl Budget {
    /// `burst` at once, and `rate` per second after that.
    pub(crate) fn new(burst: u64, rate: u64, now: Time) -> Budget {
        Budget { burst, rate, left: burst, at: now }
    }

    /// Takes `count`; false, and nothing is taken, if there is not so much left.
    pub(crate) fn take(&mut self, count: u64, now: Time) -> bool {
        let elapsed_us = now.since(self.at).as_micros() as u64;
        let earned = elapsed_us.saturating_mul(self.rate) / 1_000_000;
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(self.burst);
            self.at = now;
        }
        let enough = self.left >= count;
        if enough {
            self.left -= count;
        }
        enough
    }
}
