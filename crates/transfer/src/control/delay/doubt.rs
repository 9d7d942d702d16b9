//! Tells the path's own loss from that of a full queue that all senders take for the path.

use core::time::Duration;

use shoal_wire::Time;

use super::DelayLaw;
use crate::control::constants::{
    DOUBT_GONE, DOUBT_LEAST, DOUBT_MET, DOUBT_SAMPLE, DOUBT_STEP, DOUBT_UNSEEN,
    DOUBT_UNSEEN_ROUNDS, DOUBT_WAIT, DOUBT_WAIT_MAX, INCREASE_RTT_S, LOSING, LOSS_NS,
};

/// A path whose queue comes and goes shows its loss without a queue. If no queue comes and goes,
/// loss is in doubt. Then the rate falls to half of what arrives, and the loss that remains is the
/// path's own.
///
/// Senders that all began behind a full queue take its delay and loss for the path's own, and would
/// keep it full for good. All of them see a queue empty at the same time. So all doubt at about the
/// same time, and slow down together.
#[derive(Debug)]
pub(super) struct LossDoubt {
    met: bool,
    /// Time at which a queue was last seen to empty.
    seen: Time,
    /// Time at which loss last proved to be the path's own.
    proven: Time,
    /// Time for which that is believed.
    wait: Duration,
    /// Rate below which doubt ends; None without doubt.
    least: Option<f64>,
}

impl LossDoubt {
    pub(super) fn new(now: Time) -> LossDoubt {
        LossDoubt { met: false, seen: now, proven: now, wait: DOUBT_WAIT, least: None }
    }

    /// Notes the queue, in targets.
    pub(super) fn note(&mut self, now: Time, queue: f64) {
        if queue > DOUBT_MET {
            self.met = true;
        } else if queue < DOUBT_GONE && self.met {
            *self = LossDoubt::new(now);
        }
    }
}

impl DelayLaw {
    /// True if no queue emptied for so long that a full one may cause the loss.
    pub(super) fn is_unsure(&self, now: Time) -> bool {
        let rounds = DOUBT_UNSEEN_ROUNDS * (self.srtt_s / INCREASE_RTT_S).max(1.0);
        let wait = DOUBT_UNSEEN + Duration::from_secs_f64(self.srtt_s * rounds);
        now.since(self.doubt.seen) > wait && !self.knows_others(now)
    }

    /// True while loss is in doubt; lowers the rate meanwhile.
    pub(super) fn doubts(&mut self, now: Time) -> bool {
        let known = self.loss.unwrap_or(0.0);
        let arrives = self.survival(LOSS_NS, DOUBT_SAMPLE).unwrap_or(1.0);
        let more = arrives < (1.0 - known) * LOSING;
        let again = self.doubt.least.is_some() || now.since(self.doubt.proven) > self.doubt.wait;
        if !self.is_unsure(now) || !(more || (again && arrives < LOSING)) {
            self.doubt.least = None;
            return false;
        }
        if now < self.hold_until {
            return true;
        }
        let through = self.outflow(LOSS_NS).unwrap_or(self.rate) * (1.0 - known);
        let least = *self.doubt.least.get_or_insert(through * DOUBT_LEAST);
        if self.rate < least {
            // The rate halved and the share lost stayed the same: it is the path's own.
            self.loss = Some(1.0 - arrives);
            (self.doubt.least, self.doubt.proven) = (None, now);
            self.doubt.wait = (self.doubt.wait * 2).min(DOUBT_WAIT_MAX);
            return false;
        }
        self.rate = (through * DOUBT_STEP).clamp(self.rate * 0.5, self.rate * DOUBT_STEP);
        self.hold(now, Duration::from_nanos(LOSS_NS as u64 / 2));
        true
    }
}
