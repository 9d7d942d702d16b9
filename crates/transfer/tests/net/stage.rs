//! One link of an emulated path, and the random numbers that decide its losses.

pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A token bucket with a bounded queue, then delay, jitter and loss.
#[derive(Clone)]
pub struct LinkStage {
    pub rate: f64,
    pub bucket: f64,
    pub limit: f64,
    pub delay_ns: u64,
    pub jitter_ns: u64,
    pub loss: f64,
    /// Average length of a loss burst; 1 = independent.
    pub burst: f64,
    pub duplicate: f64,
    /// True if packets may overtake by up to `jitter_ns`; otherwise jitter keeps the order.
    pub reorder: bool,
    pub mark_above: f64,
    pub down: bool,
    pub police: bool,
    pub free_at: f64,
    pub last_out: u64,
    pub bad: bool,
    pub peak: f64,
    /// Numbers of packets by their wait, in steps of 0.1 ms.
    pub waits: Vec<u64>,
    pub busy: f64,
    /// True if a stop-and-go mix follows the stage: each packet waits for a random exponential time
    /// with a mean of 5 ms, drawn again above 25 ms.
    pub mixes: bool,
    /// Time until which the router behind this stage stalls.
    pub stall_until: u64,
}

impl Default for LinkStage {
    fn default() -> LinkStage {
        LinkStage {
            rate: 1e12,
            bucket: 256e3,
            limit: 2.5e6,
            delay_ns: 50_000,
            jitter_ns: 0,
            loss: 0.0,
            burst: 1.0,
            duplicate: 0.0,
            reorder: false,
            mark_above: f64::MAX,
            down: false,
            police: false,
            free_at: 0.0,
            last_out: 0,
            bad: false,
            peak: 0.0,
            waits: Vec::new(),
            busy: 0.0,
            mixes: false,
            stall_until: 0,
        }
    }
}

impl LinkStage {
    /// A link shaped to `mbit` megabits of wire bytes per second.
    pub fn shaped(mbit: f64) -> LinkStage {
        let rate = mbit * 1e6 / 8.0;
        LinkStage { rate, limit: rate * 0.020 + 256e3, ..LinkStage::default() }
    }
    /// A line of `mbit` megabits with 20 ms of queue, which lets no burst through.
    pub fn line(mbit: f64) -> LinkStage {
        let rate = mbit * 1e6 / 8.0;
        LinkStage { rate, bucket: 0.0, limit: rate * 0.020, ..LinkStage::default() }
    }
    pub fn delay_ms(mut self, ms: f64) -> LinkStage {
        self.delay_ns = (ms * 1e6) as u64;
        self
    }
    pub fn loss(mut self, loss: f64) -> LinkStage {
        self.loss = loss;
        self
    }

    pub fn mixes(mut self) -> LinkStage {
        self.mixes = true;
        self
    }

    /// Wait of a packet in the mix behind this stage, in nanoseconds.
    pub(super) fn mixed(&self, dice: &mut Dice) -> u64 {
        if !self.mixes {
            return 0;
        }
        loop {
            let wait_ms = -5.0 * (1.0 - dice.unit()).ln();
            if wait_ms <= 25.0 {
                return (wait_ms * 1e6) as u64;
            }
        }
    }

    /// Queueing delay in milliseconds.
    pub fn backlog_ms(&self, now: u64) -> f64 {
        self.backlog(now) / self.rate * 1e3
    }

    /// Mean and 99th percentile of the waits in milliseconds, since they were last cleared.
    pub fn wait_ms(&self) -> (f64, f64) {
        let total: u64 = self.waits.iter().sum();
        let ms = |step: usize| (step as f64 + 0.5) / 10.0;
        let sum: f64 = self.waits.iter().enumerate().map(|(i, n)| ms(i) * *n as f64).sum();
        let mut above = total / 100;
        let last = self.waits.iter().rposition(|&n| {
            let found = n > above;
            above = above.saturating_sub(n);
            found
        });
        (sum / total.max(1) as f64, ms(last.unwrap_or(0)))
    }

    pub(super) fn backlog(&self, now: u64) -> f64 {
        ((self.free_at - now as f64 / 1e9) * self.rate - self.bucket).max(0.0)
    }

    pub(super) fn lost(&mut self, dice: &mut Dice) -> bool {
        if self.burst <= 1.0 {
            return self.loss > 0.0 && dice.unit() < self.loss;
        }
        let leave = 1.0 / self.burst;
        let enter = leave * self.loss / (1.0 - self.loss);
        self.bad = if self.bad { dice.unit() >= leave } else { dice.unit() < enter };
        self.bad
    }

    /// Time at which a packet of `size` comes out, and true if it is marked.
    pub(super) fn pass(&mut self, now: u64, size: f64, dice: &mut Dice) -> Option<(u64, bool)> {
        if self.down {
            return None;
        }
        let backlog = self.backlog(now);
        if backlog + size > self.limit || (self.police && backlog > 0.0) {
            return None;
        }
        self.peak = self.peak.max(backlog / self.rate);
        let step = (backlog / self.rate * 1e4) as usize;
        if self.waits.len() <= step {
            self.waits.resize(step + 1, 0);
        }
        self.waits[step] += 1;
        let t = now as f64 / 1e9;
        self.free_at = self.free_at.max(t) + size / self.rate;
        self.busy += size / self.rate;
        let leave = (self.free_at - self.bucket / self.rate).max(t);
        // A packet lost on the wire has passed the shaper, so it has used the line.
        if self.lost(dice) {
            return None;
        }
        let jitter = (dice.unit() * self.jitter_ns as f64) as u64;
        let out = (leave * 1e9) as u64 + self.delay_ns + jitter;
        let mut out = out.max(self.stall_until);
        if !self.reorder {
            out = out.max(self.last_out);
            self.last_out = out;
        }
        Some((out.max(now + 1), backlog > self.mark_above))
    }
}

/// Jain's index of fairness: 1 if all rates are equal.
pub fn jain(rates: &[f64]) -> f64 {
    let sum: f64 = rates.iter().sum();
    sum * sum / (rates.len() as f64 * rates.iter().map(|r| r * r).sum::<f64>())
}
