//! Queues that stay whatever this sender does: longer routes, and senders that ignore delay.

use shoal_wire::Time;

use super::DelayLaw;
use crate::control::constants::{
    OTHERS, OTHERS_MAX_S, OTHERS_SHARE, OUTFLOW_NS, OVERFLOW, REMEMBERED_NS, STANDING,
    STANDING_AGAIN_NS, STANDING_NS,
};

impl DelayLaw {
    /// Time for which a queue must stay to be taken for the base.
    pub(super) fn standing_ns(&self, now: Time) -> u64 {
        if self.knows_others(now) { STANDING_AGAIN_NS } else { STANDING_NS }
    }

    /// True if a standing queue was met in the last 15 s: other senders fill it again whoever slows
    /// down.
    pub(super) fn knows_others(&self, now: Time) -> bool {
        self.accepted.is_some_and(|at| now.0.saturating_sub(at.0) < REMEMBERED_NS)
    }

    /// Delay in seconds of the queue that others keep: the base less the smallest delay of 10 s.
    fn kept_by_others(&self) -> f64 {
        match (self.delay_base.get(), self.floor.get()) {
            (Some(base), Some(floor)) => (base - floor).max(0) as f64 / 1e9,
            _ => 0.0,
        }
    }

    /// Seconds by which the target rises beside others that keep a queue.
    pub(super) fn more_beside_others(&self) -> f64 {
        let beyond = self.kept_by_others() - self.target_s * OTHERS;
        (beyond.max(0.0) * OTHERS_SHARE).min(OTHERS_MAX_S)
    }

    /// True if the queue that others keep is full.
    pub(super) fn overflows(&self) -> bool {
        self.more_beside_others() > 0.0 && self.is_policed(OUTFLOW_NS, OVERFLOW)
    }

    /// Takes a delay that no drain lowers as the base: the path grew longer, or senders that ignore
    /// delay keep the queue.
    pub(super) fn accept_standing_queue(&mut self, now: Time) {
        let (Some(least), Some(base)) = (self.standing.min(), self.delay_base.get()) else {
            return;
        };
        let standing_s = (least - base) as f64 / 1e9;
        if standing_s < self.target_s * STANDING {
            self.standing_since = now;
        } else if now.since(self.standing_since).as_nanos() as u64 > self.standing_ns(now) {
            self.delay_base.reset(least);
            self.accepted = Some(now);
            self.standing_since = now;
            self.queue_s = (self.queue_s - standing_s).max(0.0);
        }
    }
}
