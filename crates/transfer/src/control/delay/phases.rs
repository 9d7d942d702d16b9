//! The phases besides cruising: startup, drain and probe.

use core::time::Duration;

use shoal_wire::Time;

use super::{ControlLaw, DelayLaw, DelayPhase, PathReport};
use crate::control::constants::{
    DRAIN_START, OUTFLOW_NS, OUTFLOW_START_NS, OVERFILLED, POLICED_START, PROBE_EVERY_MAX,
    PROBE_ROUNDS, PROBE_ROUNDS_LOSING, PROBE_STEP_NS, RATE_FIRST, START_QUEUE_S, START_SPAN_S,
};

impl DelayLaw {
    pub(super) fn start_up(&mut self, now: Time, report: &PathReport, fresh: u64) {
        let congested = self.queue_s > START_QUEUE_S + self.wobble_s
            || self.is_policed(OUTFLOW_NS, POLICED_START)
            || (report.marked > 0 && report.marked * 4 >= report.received);
        let outflow = self.outflow(OUTFLOW_START_NS);
        self.carried[0] = self.carried[0].max(outflow.unwrap_or(0.0));
        if congested {
            // After a stall the next report shows no queue, and the rate recovers soon.
            self.rate = self.rate.min(self.most_carried().max(self.rate * 0.5));
            return self.drain(now, report, now, now, true);
        }
        self.window += fresh + fresh / 2;
        let span = (report.hold_ns as f64 / 1e9 + self.srtt_s).max(START_SPAN_S);
        let most = outflow.map_or(RATE_FIRST, |out| 2.0 * out);
        self.rate = self.rate.max((1.25 * self.window as f64 / span).min(most));
    }

    /// Continues a drain, or ends it when the queue is empty or its time is over.
    pub(super) fn drain(
        &mut self,
        now: Time,
        report: &PathReport,
        until: Time,
        started: Time,
        from_startup: bool,
    ) {
        let mut until = until;
        if from_startup {
            let base = self.rtt_base.get().unwrap_or(0).max(0) + report.hold_ns;
            let on_the_way = report.sent.saturating_sub(report.acked) as f64;
            let excess_s = on_the_way / self.rate - base as f64 / 1e9 - self.mixes.mean_s;
            let limit = started + Duration::from_secs_f64(self.srtt_s * 3.0 + 0.050);
            let more = excess_s.clamp(0.0, 1.0) / (1.0 - DRAIN_START);
            until = (now + Duration::from_secs_f64(more)).min(limit);
            if now > started && excess_s.min(self.queue_s - self.wobble_s) > START_QUEUE_S {
                // While there is a queue, the outflow is what the path can carry.
                let out = self.outflow(OUTFLOW_START_NS).unwrap_or(self.rate);
                self.rate = out.min(self.rate * 1.5);
            }
            if excess_s < START_QUEUE_S {
                until = now;
            }
        }
        self.phase = DelayPhase::Drain { until, started, from_startup };
        if now >= until {
            self.phase = DelayPhase::Cruise;
            if from_startup {
                // Startup may have met the burst that an idle shaper lets through.
                self.carried = [self.rate, 0.0];
                self.hold(now, Duration::ZERO);
            }
        }
    }

    pub(super) fn start_probe(&mut self, now: Time, report: &PathReport) {
        let arrives = self.survival(OUTFLOW_NS, 32.0).unwrap_or(1.0).clamp(0.1, 1.0);
        let rounds = if arrives < OVERFILLED { PROBE_ROUNDS_LOSING } else { PROBE_ROUNDS };
        self.probe_wait = (self.probe_wait * 2).min(PROBE_EVERY_MAX);
        self.next_probe = now + self.probe_wait + Duration::from_secs_f64(self.srtt_s * rounds);
        self.phase = DelayPhase::Probe {
            arrives,
            lowest_ns: report.delay_ns,
            patience: now + self.patience(),
            until: now + Duration::from_secs_f64(self.srtt_s * 2.0 + 0.080),
        };
    }

    /// Time until a change of the rate shows.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_secs_f64(self.srtt_s + 0.002 + self.mixes.mean_s) + self.cadence()
    }

    pub(super) fn probe(&mut self, now: Time, report: &PathReport) {
        let next = now + self.patience();
        let DelayPhase::Probe { lowest_ns, patience, until, .. } = &mut self.phase else { return };
        if report.delay_ns < *lowest_ns - PROBE_STEP_NS {
            (*lowest_ns, *patience) = (report.delay_ns, next);
        }
        if now >= *patience || now >= *until {
            self.phase = DelayPhase::Cruise;
            self.hold(now, Duration::ZERO);
        }
    }

    /// Forbids decreases until the effect of the last change can be seen.
    pub(super) fn hold(&mut self, now: Time, more: Duration) {
        let seen = Duration::from_secs_f64(2.0 * self.round_s()) + self.cadence();
        self.hold_until = now + more + seen + Duration::from_nanos(self.queue_span_ns());
        self.calm_since = self.hold_until;
    }
}
