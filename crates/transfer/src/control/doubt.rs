//! Is what is lost the path's own loss, or that of a full queue which everybody takes for the path?

use core::time::Duration;

use shoal_wire::Time;

use super::{Control, INCREASE_RTT_S, LOSING, LOSS_NS};

/// Queue that was met, and queue that is gone, in targets.
const MET: f64 = 0.5;
const GONE: f64 = 0.25;
/// Loss is doubted when no queue was seen to go for so long ...
const UNSEEN: Duration = Duration::from_millis(500);
/// ... and so many round trips, more as the increase slows down with a long one: then a lone sender
/// is as slow to meet its queue.
const UNSEEN_ROUNDS: f64 = 10.0;
/// Wait before loss that proved to be the path's is doubted again, doubled up to the second.
const WAIT: Duration = Duration::from_millis(500);
const WAIT_MAX: Duration = Duration::from_secs(8);
/// Doubt ends at this share of what arrived when it began.
const LEAST: f64 = 0.5;
/// The rate goes down to this share of what arrives, step by step.
const STEP: f64 = 0.8;
/// Fewer transmissions say nothing about loss.
const SAMPLE: f64 = 24.0;

/// A path whose queue comes and goes shows what it loses without one. Where it doesn't, loss is
/// doubted: the rate goes down to half of what arrives, and what is then still lost is the path's.
///
/// Senders that all began behind a full queue take it for the path and its losses for the path's
/// own, and would keep it full for good. They notice at about the same time, since a queue that
/// comes and goes does so for all of them, and so slow down together.
#[derive(Debug)]
pub(super) struct Doubt {
    met: bool,
    /// When a queue was last seen to go.
    seen: Time,
    /// When loss was last found to be the path's own, and how long that is believed.
    proven: Time,
    wait: Duration,
    /// Rate at which doubt ends, while there is doubt.
    least: Option<f64>,
}

impl Doubt {
    pub(super) fn new(now: Time) -> Doubt {
        Doubt { met: false, seen: now, proven: now, wait: WAIT, least: None }
    }

    /// Takes note of the queue, in targets.
    pub(super) fn note(&mut self, now: Time, queue: f64) {
        if queue > MET {
            self.met = true;
        } else if queue < GONE && self.met {
            *self = Doubt::new(now);
        }
    }
}

impl Control {
    /// No queue was seen to go for so long that what is lost may be what a full one loses.
    pub(super) fn is_unsure(&self, now: Time) -> bool {
        let rounds = UNSEEN_ROUNDS * (self.srtt_s / INCREASE_RTT_S).max(1.0);
        let wait = UNSEEN + Duration::from_secs_f64(self.srtt_s * rounds);
        now.since(self.doubt.seen) > wait && !self.knows_others(now)
    }

    /// Whether loss is in doubt; lowers the rate meanwhile.
    pub(super) fn doubts(&mut self, now: Time) -> bool {
        let known = self.loss.unwrap_or(0.0);
        let arrives = self.survival(LOSS_NS, SAMPLE).unwrap_or(1.0);
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
        let least = *self.doubt.least.get_or_insert(through * LEAST);
        if self.rate < least {
            // As much is lost of so much less: the path's own.
            self.loss = Some(1.0 - arrives);
            (self.doubt.least, self.doubt.proven) = (None, now);
            self.doubt.wait = (self.doubt.wait * 2).min(WAIT_MAX);
            return false;
        }
        self.rate = (through * STEP).clamp(self.rate * 0.5, self.rate * STEP);
        self.hold(now, Duration::from_nanos(LOSS_NS as u64 / 2));
        true
    }
}
