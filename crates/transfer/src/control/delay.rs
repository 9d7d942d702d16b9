//! The law that follows queueing delay and marks (docs/design/transfer.md, "The control law").
//!
//! The receiver's reports show how long segments queue on the path, how fast they leave the queue,
//! and how many were marked. Loss lowers the rate in three cases only. Far more is lost than the
//! path loses by itself; or the path's own loss is unknown (`doubt`); or other senders keep a
//! queue.

mod doubt;
mod phases;
mod standing;

use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::Time;

use super::constants::*;
use super::filter::{BaseFilter, RecentMinimum, SlopeFilter};
use super::mixes::MixDelays;
use super::{ControlLaw, PathReport, cadence, smooth, window};
use crate::types::MixDelay;
use doubt::LossDoubt;

/// Counts of segments that had left the mixes and that had arrived, at a time of the receiver's
/// clock.
#[derive(Clone, Copy, Debug)]
struct ArrivalSample {
    at_ns: i64,
    passed: u64,
    received: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum DelayPhase {
    /// Doubles the rate until a queue shows.
    Startup,
    /// Empties the queue until `until`, then continues with `rate`.
    Drain { until: Time, started: Time, from_startup: bool },
    /// Slows down until the delay falls no further: that is the path's delay without a queue. A
    /// sender that started behind another sender's queue learns it in this way. `arrives` is the
    /// share of transmissions that arrived. A sender that alone overfills the path must go below
    /// the path's capacity, not just below its own rate.
    Probe { arrives: f64, lowest_ns: i64, patience: Time, until: Time },
    /// Additive increase, multiplicative decrease.
    Cruise,
}

/// Keeps a short queue on the path, and an equal share beside other senders.
#[derive(Debug)]
pub(crate) struct DelayLaw {
    phase: DelayPhase,
    rate: f64,
    rate_max: f64,
    target_s: f64,
    window: u64,
    acked: u64,
    srtt_s: f64,
    rtt_base: BaseFilter,
    delay_base: BaseFilter,
    /// Smallest delay of the last 10 s; `delay_base` may have been raised above it.
    floor: BaseFilter,
    doubt: LossDoubt,
    /// True if a delay well below the base was seen: the base included somebody's queue.
    fell: bool,
    /// Time at which a standing queue was last taken into the base.
    accepted: Option<Time>,
    recent: RecentMinimum,
    standing: RecentMinimum,
    standing_since: Time,
    queue_s: f64,
    trend: SlopeFilter,
    /// Last time of a delay far above the base, in nanoseconds of the receiver's clock.
    crowded_ns: i64,
    samples: VecDeque<ArrivalSample>,
    received: u64,
    mixes: MixDelays,
    /// Value of `received` when the law began to learn the path's length.
    learnt_from: u64,
    /// Random variation in seconds that mixes add to the last measured queue.
    wobble_s: f64,
    /// Share of transmissions that don't arrive while nothing queues.
    loss: Option<f64>,
    /// No decrease before this time: the effect of the last one has not shown yet.
    hold_until: Time,
    calm_since: Time,
    updated: Time,
    marks: f64,
    /// Longest recent gap between reports beyond the cadence; decays.
    gap_s: f64,
    /// True if a queue was met after startup.
    settled: bool,
    next_probe: Time,
    probe_wait: Duration,
    /// Outflow when the queue was last above the target.
    knee: f64,
    /// Highest outflow of the present second, and of the one before.
    carried: [f64; 2],
    carried_turn: Time,
}

impl DelayLaw {
    pub(crate) fn new(now: Time, target: Duration, rate_max: f64) -> DelayLaw {
        DelayLaw {
            phase: DelayPhase::Startup,
            rate: RATE_FIRST.min(rate_max),
            rate_max,
            target_s: target.as_secs_f64(),
            window: WINDOW_FIRST,
            acked: 0,
            srtt_s: 0.0,
            rtt_base: BaseFilter::new(),
            delay_base: BaseFilter::new(),
            floor: BaseFilter::new(),
            doubt: LossDoubt::new(now),
            fell: false,
            accepted: None,
            recent: RecentMinimum::default(),
            standing: RecentMinimum::default(),
            standing_since: now,
            queue_s: 0.0,
            trend: SlopeFilter::default(),
            crowded_ns: i64::MIN,
            samples: VecDeque::new(),
            received: 0,
            mixes: MixDelays::new(MixDelay::default()),
            learnt_from: 0,
            wobble_s: 0.0,
            loss: None,
            hold_until: now,
            calm_since: now,
            updated: now,
            marks: 0.0,
            gap_s: 0.0,
            knee: 0.0,
            carried: [0.0; 2],
            carried_turn: now,
            settled: false,
            next_probe: now,
            probe_wait: PROBE_EVERY,
        }
    }
}

impl ControlLaw for DelayLaw {
    fn on_report(&mut self, now: Time, report: &PathReport, limited: bool) {
        let dt = now.since(self.updated).as_secs_f64().min(0.050);
        self.updated = now;
        let gap = (dt - self.cadence().as_secs_f64()).clamp(0.0, GAP_MAX_S);
        self.gap_s = gap.max(self.gap_s * GAP_DECAY);
        self.measure(now, report, dt);
        let fresh = report.acked.saturating_sub(self.acked);
        self.acked = self.acked.max(report.acked);
        match self.phase {
            DelayPhase::Startup => self.start_up(now, report, fresh),
            DelayPhase::Drain { until, started, from_startup } => {
                self.drain(now, report, until, started, from_startup);
            }
            DelayPhase::Probe { .. } => self.probe(now, report),
            DelayPhase::Cruise => self.cruise(now, report, dt, limited),
        }
        self.rate = self.rate.clamp(RATE_MIN, self.rate_max);
    }

    fn on_path_change(&mut self, now: Time) {
        self.delay_base = BaseFilter::new();
        self.floor = BaseFilter::new();
        (self.accepted, self.fell) = (None, false);
        self.doubt = LossDoubt::new(now);
        self.rtt_base = BaseFilter::new();
        self.recent.clear();
        self.standing.clear();
        self.standing_since = now;
        self.trend.clear();
        self.samples.clear();
        self.learnt_from = self.received;
        self.hold_until = now + Duration::from_millis(20);
    }

    fn on_mixes(&mut self, added: MixDelay) {
        self.mixes = MixDelays::new(added);
        self.wobble_s = 0.0;
    }

    fn rate(&self, now: Time) -> f64 {
        match self.phase {
            DelayPhase::Drain { until, from_startup, .. } if now < until => {
                self.rate * if from_startup { DRAIN_START } else { DRAIN }
            }
            DelayPhase::Probe { until, arrives, .. } if now < until => {
                let share = if self.srtt_s < INCREASE_RTT_S { PROBE } else { PROBE_LONG };
                self.rate * arrives * share
            }
            _ => self.rate,
        }
    }

    fn window(&self) -> u64 {
        match self.phase {
            DelayPhase::Startup => self.window,
            _ => window(self.rate, self.srtt_s, self.mixes.hold_s),
        }
    }

    fn cadence(&self) -> Duration {
        let starting = self.phase == DelayPhase::Startup;
        cadence(self.srtt_s, if starting { CADENCE_START_MIN } else { CADENCE_MIN })
    }

    fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.srtt_s)
    }

    fn queue(&self) -> Duration {
        Duration::from_secs_f64(self.queue_s)
    }
}

impl DelayLaw {
    fn measure(&mut self, now: Time, report: &PathReport, dt: f64) {
        if let Some(rtt_ns) = report.rtt_ns {
            self.srtt_s = smooth(self.srtt_s, rtt_ns);
            self.rtt_base.insert(now, rtt_ns);
        }
        let fell_ns = self.delay_base.get().map_or(0, |base| base - report.delay_ns);
        self.received += u64::from(report.received);
        let known = self.arrivals_known();
        // By chance a segment passes all mixes at once.
        let chance_ns = (self.mixes.least_s(known) * MIX_SPREAD * 1e9) as i64;
        self.fell |= self.phase == DelayPhase::Cruise && fell_ns > FELL_NS + chance_ns;
        self.delay_base.insert(now, report.delay_ns);
        self.floor.insert(now, report.delay_ns);
        let span = self.queue_span_ns();
        self.recent.insert(now, report.delay_ns, span);
        self.standing.insert(now, report.delay_ns, self.standing_ns(now));
        let base = self.delay_base.get().unwrap_or(report.delay_ns);
        let late = self.recent.min().unwrap_or(base);
        let arrivals = self.arriving().unwrap_or(0.0) * span as f64 / 1e9;
        self.wobble_s = MIX_SPREAD * self.mixes.wobble_s(arrivals);
        self.queue_s = self.above(base, late, arrivals, known).max(0.0);
        self.trend.insert(now, self.queue_s);
        self.doubt.note(now, self.queue_s / self.target());
        let arrived = f64::from(report.received);
        let wobble_s = MIX_SPREAD * self.mixes.wobble_s(arrived);
        let above_s = self.above(base, report.delay_ns, arrived, known);
        if above_s > self.target_s * CROWDED + wobble_s {
            self.crowded_ns = report.arrived_ns;
        }
        if self.samples.back().is_none_or(|last| report.arrived_ns > last.at_ns) {
            let (at_ns, passed, received) = (report.arrived_ns, report.passed, self.received);
            self.samples.push_back(ArrivalSample { at_ns, passed, received });
            let mixed_ns = (self.mixes.mean_s * MIX_OUTFLOW * 1e9) as i64;
            let keep_ns = (self.srtt_s * 1e9) as i64 / 2 + 120_000_000 + mixed_ns;
            while self.samples.len() > 64
                || self.samples.front().is_some_and(|s| at_ns - s.at_ns > keep_ns)
            {
                self.samples.pop_front();
            }
            self.learn_loss(now, dt);
            self.learn_carried(now);
        }
    }

    fn learn_carried(&mut self, now: Time) {
        if now.since(self.carried_turn) >= CARRIED {
            self.carried = [0.0, self.carried[0]];
            self.carried_turn = now;
        }
        if let Some(out) = self.outflow(OUTFLOW_NS).filter(|_| self.samples.len() > 8) {
            // After a stall segments come out faster than they went in.
            self.carried[0] = out.min(self.rate).max(self.carried[0]);
        }
    }

    /// Highest outflow of the last one to two seconds.
    fn most_carried(&self) -> f64 {
        self.carried[0].max(self.carried[1])
    }

    /// An old and the newest sample, at least `least_ns` and a quarter of the round trip apart.
    fn span(&self, least_ns: i64) -> Option<(ArrivalSample, ArrivalSample)> {
        let mixed_ns = (self.mixes.mean_s * MIX_OUTFLOW * 1e9) as i64;
        let span_ns = ((self.srtt_s * 0.25 * 1e9) as i64).max(least_ns + mixed_ns);
        let end = *self.samples.back()?;
        let start = self.samples.iter().rev().find(|s| end.at_ns - s.at_ns >= span_ns);
        let start = *start.or_else(|| self.samples.front())?;
        (end.at_ns - start.at_ns >= 2_000_000).then_some((start, end))
    }

    /// Rate at which transmissions leave the path's bottleneck: that rate does not grow the queue.
    /// The path's own loss, which no rate avoids, is counted in.
    fn outflow(&self, least_ns: i64) -> Option<f64> {
        let (start, end) = self.span(least_ns)?;
        let seconds = (end.at_ns - start.at_ns) as f64 / 1e9;
        let left = (end.passed - start.passed) as f64;
        let arrived = (end.received - start.received) as f64 / (1.0 - self.loss.unwrap_or(0.0));
        Some(left.min(arrived) / seconds)
    }

    /// Share of transmissions that arrived; None if fewer than `least` left.
    fn survival(&self, least_ns: i64, least: f64) -> Option<f64> {
        let (start, end) = self.span(least_ns)?;
        let left = (end.passed - start.passed) as f64;
        // The number of segments in mixes varies.
        let arrived = (end.received - start.received) as f64 + MIX_SPREAD * self.held().sqrt();
        (left > least).then(|| arrived / left)
    }

    /// True if far more is lost than this path loses by itself.
    fn is_policed(&self, least_ns: i64, share: f64) -> bool {
        let least = (1.0 - self.loss.unwrap_or(0.0)) * share;
        self.survival(least_ns, 200.0).is_some_and(|arrives| arrives < least)
    }

    /// True if more is lost than on a clean path.
    fn is_losing(&self) -> bool {
        self.survival(LOSS_NS, 64.0).is_some_and(|arrives| arrives < LOSING)
    }

    /// Learns the path's own loss while nothing queues: slowly upwards, since a policer's loss
    /// looks the same, and fast downwards.
    fn learn_loss(&mut self, now: Time, dt: f64) {
        let Some((start, end)) = self.span(LOSS_NS) else { return };
        let left = (end.passed - start.passed) as f64;
        if left < 64.0 || self.queue_s > self.target_s * 0.5 + self.wobble_s {
            return;
        }
        // At the start a full queue loses much; that is not the path's own loss.
        let starting = self.loss.is_none() || self.phase == DelayPhase::Startup;
        if starting && start.at_ns <= self.crowded_ns {
            return;
        }
        let arrived = (end.received - start.received) as f64;
        let most = if starting { LOSS_START_MAX } else { LOSS_MAX };
        let seen = (1.0 - arrived / left).clamp(0.0, most);
        let known = *self.loss.get_or_insert(seen);
        if seen > known && self.is_unsure(now) {
            return;
        }
        let follow_s = match seen < known {
            true => LOSS_DOWN_S,
            false if self.phase == DelayPhase::Startup => LOSS_DOWN_S,
            false => LOSS_UP_S,
        };
        self.loss = Some(known + (seen - known) * (dt / follow_s).min(1.0));
    }

    fn queue_span_ns(&self) -> u64 {
        let least = if self.phase == DelayPhase::Startup { 0 } else { QUEUE_SPAN_NS };
        let gap_s = self.cadence().as_secs_f64() + self.gap_s;
        least + ((gap_s * QUEUE_GAPS + self.mixes.mean_s * MIX_SPAN) * 1e9) as u64
    }

    /// Seconds until a change of the rate shows: a round trip, and the mean delay of mixes.
    pub(super) fn round_s(&self) -> f64 {
        self.srtt_s + self.mixes.mean_s * MIX_ROUND
    }

    /// Segments that arrive per second; None while unknown.
    fn arriving(&self) -> Option<f64> {
        let (start, end) = self.span(LOSS_NS)?;
        let seconds = (end.at_ns - start.at_ns) as f64 / 1e9;
        Some((end.received - start.received) as f64 / seconds)
    }

    /// Number of segments in mixes.
    fn held(&self) -> f64 {
        self.rate * self.mixes.mean_s
    }

    /// Number of arrivals whose smallest delay is the base.
    fn arrivals_known(&self) -> f64 {
        let all = (self.received - self.learnt_from) as f64;
        let lately = self.rate * (4 * BASE_BUCKET_NS) as f64 / 1e9;
        all.min(lately)
    }

    /// Queueing delay in seconds. `late_ns` is the smallest delay of `arrivals`, and the base that
    /// of `known` arrivals. Mixes look slower in fewer arrivals.
    fn above(&self, base_ns: i64, late_ns: i64, arrivals: f64, known: f64) -> f64 {
        let mixed_s = self.mixes.least_s(arrivals) - self.mixes.least_s(known.max(arrivals));
        (late_ns - base_ns) as f64 / 1e9 - mixed_s
    }

    /// Queueing delay in seconds above which this sender lowers its rate.
    fn target(&self) -> f64 {
        let doublings = (self.rate / RATE_REFERENCE).log2().min(0.0);
        let alone = (self.target_s - TARGET_SLOPE_S * doublings).max(self.target_s / 2.0);
        alone + self.more_beside_others() + self.wobble_s
    }

    fn cruise(&mut self, now: Time, report: &PathReport, dt: f64, limited: bool) {
        if report.received > 0 {
            let share = f64::from(report.marked) / f64::from(report.received);
            self.marks += (share - self.marks) / 8.0;
        }
        self.accept_standing_queue(now);
        if core::mem::take(&mut self.fell) && !self.knows_others(now) {
            // All senders see this at once. If all slow down together, the queue empties.
            return self.start_probe(now, report);
        }
        let target = self.target();
        if now >= self.hold_until {
            let queue_s = self.queue_ahead(target);
            if queue_s > target && !self.is_falling(target) {
                return self.decrease(now, report, target, queue_s);
            }
            if self.overflows() {
                self.rate *= 1.0 - OVERFLOW_DECREASE;
                self.settled = true;
                return self.hold(now, Duration::ZERO);
            }
            if self.is_policed(LOSS_NS, POLICED) {
                let through = self.outflow(LOSS_NS).unwrap_or(self.rate);
                self.rate = through.clamp(self.rate * 0.5, self.rate) * POLICED_TO;
                self.carried = [self.rate, 0.0];
                self.knee = self.rate;
                self.settled = true;
                return self.hold(now, Duration::from_nanos(LOSS_NS as u64));
            }
            if report.marked > 0 && self.marks > MARKS_MIN {
                self.rate *= 1.0 - (self.marks / 2.0).min(DECREASE_MAX);
                return self.hold(now, Duration::ZERO);
            }
        }
        if now >= self.hold_until.max(self.next_probe) && self.is_losing() {
            return self.start_probe(now, report);
        }
        if self.doubts(now) {
            return;
        }
        let lossy = self.is_policed(OUTFLOW_NS, POLICED_CALM);
        if limited || lossy || self.queue_s > target * 0.25 {
            self.calm_since = now.max(self.calm_since);
        }
        if limited || self.queue_s > target {
            return;
        }
        self.rate *= 1.0 + self.increase() * self.slower() * dt;
        self.grow_when_calm(now, dt);
    }

    /// Grows exponentially while nothing queues. This makes up for decreases that a stall of a
    /// machine caused, and for a startup that ended early. It also finds capacity that came free.
    fn grow_when_calm(&mut self, now: Time, dt: f64) {
        let calm_ns = now.0.saturating_sub(self.calm_since.0);
        let carried = self.most_carried();
        if self.rate < carried * RECOVER_TO {
            // The queue is a minimum over a short time, so it is zero if nothing queued at one
            // moment.
            if self.queue_s < self.target_s * 0.1 {
                let base_s = self.rtt_base.get().unwrap_or(0).max(0) as f64 / 1e9;
                let per = (base_s * 2.0).max(0.010);
                self.rate = (self.rate * (1.0 + RECOVER * dt / per)).min(carried * RECOVER_TO);
            }
            return;
        }
        let (wait_ns, rounds, growth) = match self.settled {
            true => (CALM_NS, 2.0, CALM_GROWTH),
            false => (CALM_NS / 2, 1.0, CALM_GROWTH_FIRST),
        };
        let wait_ns = wait_ns.max((self.round_s() * 2e9 * rounds) as u64);
        if calm_ns <= wait_ns || (self.settled && self.rate < self.knee * CALM_ABOVE) {
            return;
        }
        let per = (rounds * self.round_s()).max(0.010);
        let ramp = ((calm_ns - wait_ns) as f64 / wait_ns as f64).min(1.0);
        self.rate *= 1.0 + growth * ramp * dt / per;
    }

    /// Factor on the increase of a sender below the reference rate.
    fn slower(&self) -> f64 {
        let times = RATE_REFERENCE / self.rate;
        times.min(SLOWER).sqrt()
            * (times / SLOWER).max(1.0).powf(SLOWER_POWER)
            * (times / BEHIND).clamp(1.0, BEHIND_MAX).powf(BEHIND_POWER)
    }

    /// Share of the rate by which it grows per second at the reference rate.
    fn increase(&self) -> f64 {
        INCREASE * (INCREASE_RTT_S / self.round_s().max(1e-6)).powi(2).min(1.0)
    }

    /// Queue at the time when a decrease shows, if the queue keeps growing. Growth counts only if
    /// the earlier half of the measured time shows some, too: a stall of a machine shows none
    /// there.
    fn queue_ahead(&self, target: f64) -> f64 {
        let span_s = self.queue_span_ns() as f64 / 1e9;
        let over_s = span_s.max(self.srtt_s * 0.5);
        let growth = [over_s, over_s * 2.0].map(|over_s| self.trend.slope(over_s));
        match growth {
            [Some(a), Some(b)] if self.queue_s > target * AHEAD_FROM => {
                self.queue_s + a.min(b).clamp(0.0, AHEAD_MAX) * (self.srtt_s + span_s)
            }
            _ => self.queue_s,
        }
    }

    /// True if the queue is above the target, but less enters than leaves.
    fn is_falling(&self, target: f64) -> bool {
        let out = self.outflow(OUTFLOW_NS).unwrap_or(0.0);
        self.rate < out * 0.97 && self.queue_s < target * 2.5
    }

    fn decrease(&mut self, now: Time, report: &PathReport, target: f64, queue_s: f64) {
        let excess = queue_s / target;
        let least = if excess > DRAIN_ABOVE { 0.6 } else { 0.9 };
        let out = self.outflow(OUTFLOW_NS).unwrap_or(self.rate);
        let out = out.min(self.rate).max(self.rate * least);
        self.settled = true;
        self.knee = out.max(self.knee * 0.9);
        if now >= self.next_probe {
            self.rate = out * (1.0 - DECREASE_MIN);
            return self.start_probe(now, report);
        }
        // The rest of the queue keeps the line busy until the rate has grown back.
        let left = if excess > DRAIN_ABOVE { target * DRAIN_TO } else { queue_s };
        let share = (2.0 * self.increase() * left).sqrt();
        self.rate = out * (1.0 - share.clamp(DECREASE_MIN, DECREASE_MAX));
        let mut drain = Duration::ZERO;
        if excess > DRAIN_ABOVE {
            let drain_s = (queue_s - target * DRAIN_TO) / (1.0 - DRAIN);
            drain = Duration::from_secs_f64(drain_s.min(DRAIN_MAX_S));
            self.phase =
                DelayPhase::Drain { until: now + drain, started: now, from_startup: false };
        }
        self.hold(now, drain);
    }
}
