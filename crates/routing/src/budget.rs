//! Token buckets that limit the work and traffic that one neighbour may cause.

use shoal_wire::Time;

use crate::Config;

/// Signature checks allowed at once per neighbour: several times a large network's full dump.
const VERIFY_BURST: u64 = 4_096;
/// Signature checks per second after that: at about 60 us each, a few percent of a core.
const VERIFY_RATE: u64 = 1_000;
/// Queries answered per second, and at once: the larger of this and four times our own query rate.
const QUERIES_MIN: u64 = 100;
const QUERIES_TIMES: u64 = 4;
/// Hellos answered at once, and per second after that. An honest far end sends four per second
/// until both ends are heard.
const HELLO_BURST: u64 = 32;
const HELLO_RATE: u64 = 8;
/// Updates and sequence number requests accepted at once, and per second after that. Each may cause
/// one message.
const MESSAGE_BURST: u64 = 4_096;
const MESSAGE_RATE: u64 = 1_000;

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Budget {
    burst: u64,
    rate: u64,
    left: u64,
    at: Time,
}

impl Budget {
    /// Allows `burst` at once and `rate` per second after that.
    pub(crate) fn new(burst: u64, rate: u64, now: Time) -> Budget {
        Budget { burst, rate, left: burst, at: now }
    }

    /// Takes `count` tokens. Takes none and returns false if fewer are left.
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

/// The allowances of one neighbour. Survive its link: otherwise a neighbour could refill them by
/// taking the link down and up.
#[derive(Debug)]
pub(crate) struct Budgets {
    /// Signature checks.
    pub(crate) checks: Budget,
    /// Answers to queries and hellos, and accepted updates and requests.
    pub(crate) queries: Budget,
    pub(crate) hellos: Budget,
    pub(crate) messages: Budget,
}

impl Budgets {
    pub(crate) fn new(config: &Config, now: Time) -> Budgets {
        let cycle_us = config.cycle.as_micros().max(1) as u64;
        let own = u64::from(config.queries) * 1_000_000 / cycle_us;
        let queries = (own * QUERIES_TIMES).max(QUERIES_MIN);
        Budgets {
            checks: Budget::new(VERIFY_BURST, VERIFY_RATE, now),
            queries: Budget::new(queries, queries, now),
            hellos: Budget::new(HELLO_BURST, HELLO_RATE, now),
            messages: Budget::new(MESSAGE_BURST, MESSAGE_RATE, now),
        }
    }
}
