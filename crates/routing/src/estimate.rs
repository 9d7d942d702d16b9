//! The cost of a link, measured by query cycles (the paper, III.G).

use crate::Config;

/// Queries and replies of the current cycle, and the result of earlier cycles.
#[derive(Debug)]
pub(crate) struct Estimate {
    default_cost: u32,
    /// Nonces of this cycle's unanswered queries.
    waiting: Vec<u64>,
    sent: u32,
    /// Smoothed share of missing replies, in parts per million.
    missing_ppm: u32,
    /// Link cost used for route computation.
    cost: u32,
}

impl Estimate {
    /// Starts at the default cost: the handshake of the new link just came through.
    pub(crate) fn new(default_cost: u32) -> Estimate {
        Estimate { default_cost, waiting: Vec::new(), sent: 0, missing_ppm: 0, cost: default_cost }
    }

    /// Replaces the default cost by the neighbour's value in `config`. Measurements stay.
    pub(crate) fn set_default_cost(&mut self, config: &Config, neighbour: u32) {
        let default_cost = config.default_cost_of(neighbour);
        if default_cost != self.default_cost {
            self.default_cost = default_cost;
            self.cost = self.measured(config);
        }
    }

    fn measured(&self, config: &Config) -> u32 {
        let add_on = u64::from(self.missing_ppm) * u64::from(config.add_on_cost) / 1_000_000;
        self.default_cost.saturating_add(add_on as u32)
    }

    pub(crate) fn cost(&self) -> u32 {
        self.cost
    }

    pub(crate) fn missing_ppm(&self) -> u32 {
        self.missing_ppm
    }

    /// Number of queries sent in this cycle.
    pub(crate) fn sent(&self) -> u32 {
        self.sent
    }

    /// Counts a query that is about to be sent.
    pub(crate) fn query(&mut self, nonce: u64) {
        self.waiting.push(nonce);
        self.sent += 1;
    }

    /// Accepts a reply; false if no query of this cycle has that nonce.
    pub(crate) fn reply(&mut self, nonce: u64) -> bool {
        let found = self.waiting.iter().position(|waiting| *waiting == nonce);
        found.map(|at| self.waiting.swap_remove(at)).is_some()
    }

    /// Ends the cycle: `cost = default + missing / sent * add_on`, with the smoothed share. True if
    /// the cost in use changed.
    pub(crate) fn close_cycle(&mut self, config: &Config) -> bool {
        if self.sent == 0 {
            return false;
        }
        let sample = self.waiting.len() as u64 * 1_000_000 / u64::from(self.sent);
        self.waiting.clear();
        self.sent = 0;
        let weight = u64::from(config.smoothing_percent);
        let old = u64::from(self.missing_ppm);
        // Fits: both shares are at most a million, and the weights add up to 100.
        self.missing_ppm = ((old * (100 - weight) + sample * weight) / 100) as u32;
        // Smoothing never reaches zero, so a share below one percent counts as zero.
        if sample == 0 && self.missing_ppm < 10_000 {
            self.missing_ppm = 0;
        }
        let measured = self.measured(config);
        let step = u64::from(self.cost) * u64::from(config.hysteresis_percent) / 100;
        let moved = u64::from(measured.abs_diff(self.cost)) > step;
        let settled = measured == self.default_cost && measured != self.cost;
        if moved || settled {
            self.cost = measured;
        }
        moved || settled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(estimate: &mut Estimate, config: &Config, answered: u64) -> bool {
        for nonce in 0..u64::from(config.queries) {
            estimate.query(nonce);
        }
        for nonce in 0..answered {
            assert!(estimate.reply(nonce));
        }
        estimate.close_cycle(config)
    }

    #[test]
    fn the_papers_formula_without_smoothing() {
        let config = Config { smoothing_percent: 100, ..Config::default() };
        for (answered, cost) in [(5, 100), (4, 180), (3, 260), (2, 340), (1, 420), (0, 500)] {
            let mut estimate = Estimate::new(config.default_cost);
            cycle(&mut estimate, &config, answered);
            assert_eq!(estimate.cost(), cost);
        }
    }

    #[test]
    fn one_missing_reply_fades_and_leaves_no_trace() {
        let config = Config { smoothing_percent: 50, ..Config::default() };
        let mut estimate = Estimate::new(config.default_cost);
        assert!(cycle(&mut estimate, &config, 4));
        assert_eq!(estimate.cost(), 140);
        for _ in 0..10 {
            cycle(&mut estimate, &config, 5);
        }
        assert_eq!((estimate.cost(), estimate.missing_ppm()), (100, 0));
    }

    #[test]
    fn replies_count_once_and_only_in_their_cycle() {
        let config = Config::default();
        let mut estimate = Estimate::new(100);
        estimate.query(7);
        assert!(estimate.reply(7));
        assert!(!estimate.reply(7));
        estimate.query(8);
        estimate.close_cycle(&config);
        assert!(!estimate.reply(8));
    }
}
