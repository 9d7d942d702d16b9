//! How fast a sender sends (docs/transfer.md, "The control law").
//!
//! The receiver's reports say how long segments queue on the way, how fast they come out of it, and
//! how many were marked. Loss alone changes nothing, unless far more is lost than the path loses by
//! itself, nothing shows whether it does, or others keep a queue.

mod doubt;
mod phases;
mod standing;

use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::Time;

use crate::filter::{Base, Recent, Trend};
use doubt::Doubt;
use standing::OVERFLOW_DECREASE;

/// Rate before anything is known, segments per second: 200 Mbit/s, for [`WINDOW_FIRST`] only.
const RATE_FIRST: f64 = 18_000.0;
/// Segments that may be on the way before the first report.
const WINDOW_FIRST: u64 = 160;
/// The rate never falls below this (0.5 Mbit/s): a stalled probe learns nothing.
const RATE_MIN: f64 = 50.0;
/// 1 Gbit/s of segments, the reference of the increase.
const RATE_REFERENCE: f64 = 90_000.0;
/// Increase at the reference rate: this share of it per second.
const INCREASE: f64 = 0.8;
/// A slower sender's share is larger, which is what makes shares equal: by the root of how much
/// slower it is, up to so many times ...
const SLOWER: f64 = 6.0;
/// ... and by this power of what is beyond. With the root all the way down ten senders at 10 Mbit/s
/// grow faster than they hear of the queue.
const SLOWER_POWER: f64 = 0.2;
/// From this much slower on (10 Mbit/s) a sender catches up with those that left it behind, by this
/// power up to so many times: who was crowded out at the start is small and costs the queue little.
const BEHIND: f64 = 100.0;
const BEHIND_POWER: f64 = 0.6;
const BEHIND_MAX: f64 = 4.0;
/// Round trip beyond which the increase slows down with its square: one round trip late, the
/// queue has grown by increase * rtt^2 / 2.
const INCREASE_RTT_S: f64 = 0.020;
/// Smallest decrease at once.
const DECREASE_MIN: f64 = 0.02;
/// Largest decrease at once.
const DECREASE_MAX: f64 = 0.4;
/// The target falls by this much for every doubling of the rate, up to the reference rate: of two
/// senders that see the same queue the faster one gives way. Beyond it machines, not lines, are the
/// narrow place, and the turns they take are what is seen as a queue.
const TARGET_SLOPE_S: f64 = 0.000_5;
/// A drain runs at this share of the rate.
const DRAIN: f64 = 0.7;
/// The same after startup.
const DRAIN_START: f64 = 0.5;
/// A probe for the empty path runs at this share of what arrives ...
const PROBE: f64 = 0.5;
/// (this share when it must wait for a long round trip)
const PROBE_LONG: f64 = 0.75;
/// First wait between probes, doubled up to the second.
const PROBE_EVERY: Duration = Duration::from_millis(100);
/// A queue beyond this many targets is drained before the sender goes on ...
const DRAIN_ABOVE: f64 = 1.6;
/// ... for at most so long: enough for 30 ms of queue.
const DRAIN_MAX_S: f64 = 0.100;
/// From this share of the target on, a queue that grows is judged by what it will be once a
/// decrease shows.
const AHEAD_FROM: f64 = 0.3;
/// Fastest growth of a queue that is believed, seconds per second.
const AHEAD_MAX: f64 = 0.5;
/// The queue is the minimum of the delay over this long and over the longest gap between reports
/// seen of late (this much more): a busy machine stops hosts and routers for milliseconds, and then
/// everything is late, but what comes last is not.
const QUEUE_SPAN_NS: u64 = 4_000_000;
const QUEUE_GAPS: f64 = 1.25;
/// What is left of the longest gap with every report.
const GAP_DECAY: f64 = 0.98;
/// Longest gap believed: beyond it a path is silent, not busy.
const GAP_MAX_S: f64 = 0.030;
/// What comes out is measured over at least this long: stalls of receiver and routers average out.
const OUTFLOW_NS: i64 = 30_000_000;
/// Less than this share of what left arrives: there may be a full queue that was always there.
const LOSING: f64 = 0.97;
/// Loss is measured over this long.
const LOSS_NS: i64 = 100_000_000;
/// How fast the known loss follows what is seen, downwards and upwards.
const LOSS_DOWN_S: f64 = 0.1;
const LOSS_UP_S: f64 = 3.0;
/// No path loses more than this by itself ...
const LOSS_MAX: f64 = 0.9;
/// ... and no more than this is taken for its own at the start: what a full queue loses then is far
/// more, and who counts on it sends for seconds what nobody receives.
const LOSS_START_MAX: f64 = 0.35;
/// Less than this share of what should arrive does: a policer. The rate gives way.
const POLICED: f64 = 0.7;
/// Less than this share is no calm.
const POLICED_CALM: f64 = 0.9;
/// Without any queue the rate comes back this fast, per 10 ms or two round trips ...
const RECOVER: f64 = 0.15;
/// ... up to this share of what the path carried ...
const RECOVER_TO: f64 = 0.9;
/// ... in this time, or twice it.
const CARRIED: Duration = Duration::from_secs(1);
/// Without any queue for this long the increase becomes exponential.
const CALM_NS: u64 = 60_000_000;
/// ... once the rate is this far beyond what the path last carried.
const CALM_ABOVE: f64 = 1.08;
/// A delay so far below the base says that the base was somebody's queue.
const FELL_NS: i64 = 400_000;
/// Growth per 10 ms, or per two round trips when that is longer, when calm.
const CALM_GROWTH: f64 = 0.04;
/// The same before any queue was met since the startup, and in one round trip.
const CALM_GROWTH_FIRST: f64 = 0.15;

/// What one NACK says about the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// Transmissions that left up to the echoed clock, in all.
    pub(crate) acked: u64,
    /// Transmissions in all.
    pub(crate) sent: u64,
    /// The receiver's clock when the echoed segment arrived, nanoseconds, unwrapped.
    pub(crate) arrived_ns: i64,
    /// Smallest delay of late in nanoseconds, from an arbitrary origin.
    pub(crate) delay_ns: i64,
    /// Round trip of this report without the receiver's hold, when it is a fresh one.
    pub(crate) rtt_ns: Option<i64>,
    /// The receiver's hold.
    pub(crate) hold_ns: i64,
    /// Segments that arrived since the last report, and how many were marked.
    pub(crate) received: u32,
    pub(crate) marked: u32,
}

/// What had left and what had arrived at a moment of the receiver's clock.
#[derive(Clone, Copy, Debug)]
struct Sample {
    at_ns: i64,
    acked: u64,
    received: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Doubles until a queue shows.
    Startup,
    /// Empties the queue until then; the rate to go on with is `rate`.
    Drain { until: Time, started: Time, from_startup: bool },
    /// Slows down until the delay falls no further: how long is the path when nothing queues? A
    /// sender that started behind somebody else's queue finds out here.
    /// `arrives` is the share of what left that came through: who alone overfills the path must go
    /// below what the path carries, not below what it sends.
    Probe { arrives: f64, lowest_ns: i64, patience: Time, until: Time },
    /// Additive increase, multiplicative decrease.
    Cruise,
}

/// The rate of one sender.
#[derive(Debug)]
pub(crate) struct Control {
    phase: Phase,
    rate: f64,
    rate_max: f64,
    target_s: f64,
    window: u64,
    acked: u64,
    srtt_s: f64,
    rtt_base: Base,
    delay_base: Base,
    /// Smallest delay of the last 10 s, whatever was taken for the base since.
    floor: Base,
    doubt: Doubt,
    /// The path turned out to be shorter than the base.
    fell: bool,
    /// When a standing queue was last taken for the base.
    accepted: Option<Time>,
    recent: Recent,
    standing: Recent,
    standing_since: Time,
    queue_s: f64,
    trend: Trend,
    /// When the newest delay was last far above the base, by the receiver's clock.
    crowded_ns: i64,
    samples: VecDeque<Sample>,
    received: u64,
    /// Share of transmissions that don't arrive when nothing queues.
    loss: Option<f64>,
    /// No decrease before this: the last one has not shown yet.
    hold_until: Time,
    calm_since: Time,
    updated: Time,
    marks: f64,
    /// Longest gap between reports of late, beyond what was asked for.
    gap_s: f64,
    /// A queue was met since the startup ended.
    settled: bool,
    next_probe: Time,
    probe_wait: Duration,
    /// What came out when the queue was last above the target.
    knee: f64,
    /// Most that came out of the path: of the present second and the one before.
    carried: [f64; 2],
    carried_turn: Time,
}

impl Control {
    pub(crate) fn new(now: Time, target: Duration, rate_max: f64) -> Control {
        Control {
            phase: Phase::Startup,
            rate: RATE_FIRST.min(rate_max),
            rate_max,
            target_s: target.as_secs_f64(),
            window: WINDOW_FIRST,
            acked: 0,
            srtt_s: 0.0,
            rtt_base: Base::new(),
            delay_base: Base::new(),
            floor: Base::new(),
            doubt: Doubt::new(now),
            fell: false,
            accepted: None,
            recent: Recent::default(),
            standing: Recent::default(),
            standing_since: now,
            queue_s: 0.0,
            trend: Trend::default(),
            crowded_ns: i64::MIN,
            samples: VecDeque::new(),
            received: 0,
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

    /// Segments per second that may leave now.
    pub(crate) fn rate(&self, now: Time) -> f64 {
        match self.phase {
            Phase::Drain { until, from_startup, .. } if now < until => {
                self.rate * if from_startup { DRAIN_START } else { DRAIN }
            }
            Phase::Probe { until, arrives, .. } if now < until => {
                let share = if self.srtt_s < INCREASE_RTT_S { PROBE } else { PROBE_LONG };
                self.rate * arrives * share
            }
            _ => self.rate,
        }
    }

    /// Segments that may be on the way: beyond it the path is silent, not slow.
    pub(crate) fn window(&self) -> u64 {
        match self.phase {
            Phase::Startup => self.window,
            _ => (self.rate * (self.srtt_s * 1.5 + 0.060)) as u64 + WINDOW_FIRST,
        }
    }

    /// Smoothed round trip; zero before the first report.
    pub(crate) fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.srtt_s)
    }

    /// Queueing delay last seen.
    pub(crate) fn queue(&self) -> Duration {
        Duration::from_secs_f64(self.queue_s)
    }

    /// How often the receiver should report.
    pub(crate) fn cadence(&self) -> Duration {
        let floor = if self.phase == Phase::Startup { 0.002 } else { 0.004 };
        Duration::from_secs_f64((self.srtt_s / 4.0).clamp(floor, 0.020))
    }

    /// The path was silent: it may be another one from now on.
    pub(crate) fn path_changed(&mut self, now: Time) {
        if let (Some(delay), Some(rtt)) = (self.recent.min(), self.rtt_base.get()) {
            self.delay_base.reset(delay);
            self.rtt_base.reset(rtt);
        }
        self.delay_base = Base::new();
        self.floor = Base::new();
        (self.accepted, self.fell) = (None, false);
        self.doubt = Doubt::new(now);
        self.rtt_base = Base::new();
        self.recent.clear();
        self.standing.clear();
        self.standing_since = now;
        self.trend.clear();
        self.samples.clear();
        self.hold_until = now + Duration::from_millis(20);
    }

    /// Takes a report. `limited`: since the last one the sender had nothing to send, or no room.
    pub(crate) fn on_report(&mut self, now: Time, report: &Report, limited: bool) {
        let dt = now.since(self.updated).as_secs_f64().min(0.050);
        self.updated = now;
        let gap = (dt - self.cadence().as_secs_f64()).clamp(0.0, GAP_MAX_S);
        self.gap_s = gap.max(self.gap_s * GAP_DECAY);
        self.measure(now, report, dt);
        let fresh = report.acked.saturating_sub(self.acked);
        self.acked = self.acked.max(report.acked);
        match self.phase {
            Phase::Startup => self.start_up(now, report, fresh),
            Phase::Drain { until, started, from_startup } => {
                self.drain(now, report, until, started, from_startup);
            }
            Phase::Probe { .. } => self.probe(now, report),
            Phase::Cruise => self.cruise(now, report, dt, limited),
        }
        self.rate = self.rate.clamp(RATE_MIN, self.rate_max);
    }

    fn measure(&mut self, now: Time, report: &Report, dt: f64) {
        if let Some(rtt_ns) = report.rtt_ns {
            let rtt_s = rtt_ns.max(0) as f64 / 1e9;
            let first = self.srtt_s == 0.0;
            self.srtt_s = if first { rtt_s } else { self.srtt_s + (rtt_s - self.srtt_s) / 8.0 };
            self.rtt_base.insert(now, rtt_ns);
        }
        let fell_ns = self.delay_base.get().map_or(0, |base| base - report.delay_ns);
        self.fell |= self.phase == Phase::Cruise && fell_ns > FELL_NS;
        self.delay_base.insert(now, report.delay_ns);
        self.floor.insert(now, report.delay_ns);
        let span = self.queue_span_ns();
        self.recent.insert(now, report.delay_ns, span);
        self.standing.insert(now, report.delay_ns, self.standing_ns(now));
        let base = self.delay_base.get().unwrap_or(report.delay_ns);
        let late = self.recent.min().unwrap_or(base);
        self.queue_s = (late - base).max(0) as f64 / 1e9;
        self.trend.insert(now, self.queue_s);
        self.doubt.note(now, self.queue_s / self.target());
        if (report.delay_ns - base) as f64 / 1e9 > self.target_s * 0.5 {
            self.crowded_ns = report.arrived_ns;
        }
        self.received += u64::from(report.received);
        if self.samples.back().is_none_or(|last| report.arrived_ns > last.at_ns) {
            let (at_ns, acked, received) = (report.arrived_ns, report.acked, self.received);
            self.samples.push_back(Sample { at_ns, acked, received });
            let keep_ns = (self.srtt_s * 1e9) as i64 / 2 + 120_000_000;
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
            // After a stall more comes out at once than ever went in.
            self.carried[0] = out.min(self.rate).max(self.carried[0]);
        }
    }

    /// Most that came out of the path of late.
    fn most_carried(&self) -> f64 {
        self.carried[0].max(self.carried[1])
    }

    /// The samples between which at least `least_ns` or a quarter of the round trip passed.
    fn span(&self, least_ns: i64) -> Option<(Sample, Sample)> {
        let span_ns = ((self.srtt_s * 0.25 * 1e9) as i64).max(least_ns);
        let end = *self.samples.back()?;
        let start = self.samples.iter().rev().find(|s| end.at_ns - s.at_ns >= span_ns);
        let start = *start.or_else(|| self.samples.front())?;
        (end.at_ns - start.at_ns >= 2_000_000).then_some((start, end))
    }

    /// Rate at which transmissions come out of the path's narrowest place, those counted in that
    /// are lost whatever the rate is: what may go in without the queue growing.
    fn outflow(&self, least_ns: i64) -> Option<f64> {
        let (start, end) = self.span(least_ns)?;
        let seconds = (end.at_ns - start.at_ns) as f64 / 1e9;
        let left = (end.acked - start.acked) as f64;
        let arrived = (end.received - start.received) as f64 / (1.0 - self.loss.unwrap_or(0.0));
        Some(left.min(arrived) / seconds)
    }

    /// Share of transmissions that arrived; None when less than `least` left.
    fn survival(&self, least_ns: i64, least: f64) -> Option<f64> {
        let (start, end) = self.span(least_ns)?;
        let left = (end.acked - start.acked) as f64;
        (left > least).then(|| (end.received - start.received) as f64 / left)
    }

    /// Far more is lost than this path loses by itself.
    fn is_policed(&self, least_ns: i64, share: f64) -> bool {
        let least = (1.0 - self.loss.unwrap_or(0.0)) * share;
        self.survival(least_ns, 200.0).is_some_and(|arrives| arrives < least)
    }

    /// More is lost than a clean path loses.
    fn is_losing(&self) -> bool {
        self.survival(LOSS_NS, 64.0).is_some_and(|arrives| arrives < LOSING)
    }

    /// Follows the loss of a path that doesn't queue: slowly up, since a policer's loss looks the
    /// same, fast down.
    fn learn_loss(&mut self, now: Time, dt: f64) {
        let Some((start, end)) = self.span(LOSS_NS) else { return };
        let left = (end.acked - start.acked) as f64;
        if left < 64.0 || self.queue_s > self.target_s * 0.5 {
            return;
        }
        // What a full queue loses at the start is not the path's own.
        let starting = self.loss.is_none() || self.phase == Phase::Startup;
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
            false if self.phase == Phase::Startup => LOSS_DOWN_S,
            false => LOSS_UP_S,
        };
        self.loss = Some(known + (seen - known) * (dt / follow_s).min(1.0));
    }

    fn queue_span_ns(&self) -> u64 {
        let least = if self.phase == Phase::Startup { 0 } else { QUEUE_SPAN_NS };
        let gap_s = self.cadence().as_secs_f64() + self.gap_s;
        least + (gap_s * QUEUE_GAPS * 1e9) as u64
    }

    /// The queue at which this sender gives way.
    fn target(&self) -> f64 {
        let doublings = (self.rate / RATE_REFERENCE).log2().min(0.0);
        let alone = (self.target_s - TARGET_SLOPE_S * doublings).max(self.target_s / 2.0);
        alone + self.more_beside_others()
    }

    fn cruise(&mut self, now: Time, report: &Report, dt: f64, limited: bool) {
        if report.received > 0 {
            let share = f64::from(report.marked) / f64::from(report.received);
            self.marks += (share - self.marks) / 8.0;
        }
        self.accept_standing_queue(now);
        if core::mem::take(&mut self.fell) && !self.knows_others(now) {
            // Everybody sees it now: if all slow down together, the queue goes.
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
                self.rate = through.clamp(self.rate * 0.5, self.rate) * 0.95;
                self.carried = [self.rate, 0.0];
                self.knee = self.rate;
                self.settled = true;
                return self.hold(now, Duration::from_nanos(LOSS_NS as u64));
            }
            if report.marked > 0 && self.marks > 0.01 {
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

    /// Growth that makes up for decreases that a stall of some machine caused, and for a startup
    /// that ended too early; and that finds capacity that came free.
    fn grow_when_calm(&mut self, now: Time, dt: f64) {
        let calm_ns = now.0.saturating_sub(self.calm_since.0);
        let carried = self.most_carried();
        if self.rate < carried * RECOVER_TO {
            // The queue is a minimum: that it is nothing means that there was none a moment ago.
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
        let wait_ns = wait_ns.max((self.srtt_s * 2e9 * rounds) as u64);
        if calm_ns <= wait_ns || (self.settled && self.rate < self.knee * CALM_ABOVE) {
            return;
        }
        let per = (rounds * self.srtt_s).max(0.010);
        let ramp = ((calm_ns - wait_ns) as f64 / wait_ns as f64).min(1.0);
        self.rate *= 1.0 + growth * ramp * dt / per;
    }

    /// How much larger a share this sender grows by than one at the reference rate.
    fn slower(&self) -> f64 {
        let times = RATE_REFERENCE / self.rate;
        times.min(SLOWER).sqrt()
            * (times / SLOWER).max(1.0).powf(SLOWER_POWER)
            * (times / BEHIND).clamp(1.0, BEHIND_MAX).powf(BEHIND_POWER)
    }

    /// Share of the rate per second by which it grows at the reference rate.
    fn increase(&self) -> f64 {
        INCREASE * (INCREASE_RTT_S / self.srtt_s.max(1e-6)).powi(2).min(1.0)
    }

    /// What the queue will be when a decrease shows, if it goes on growing as it did of late. It
    /// must have grown in the earlier half of that time too: a stall of some machine does not.
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

    /// The queue is above the target, but less comes in than goes out.
    fn is_falling(&self, target: f64) -> bool {
        let out = self.outflow(OUTFLOW_NS).unwrap_or(0.0);
        self.rate < out * 0.97 && self.queue_s < target * 2.5
    }

    fn decrease(&mut self, now: Time, report: &Report, target: f64, queue_s: f64) {
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
        // What stays in the queue lasts until the increase has made up for the decrease.
        let left = if excess > DRAIN_ABOVE { target * 0.5 } else { queue_s };
        let share = (2.0 * self.increase() * left).sqrt();
        self.rate = out * (1.0 - share.clamp(DECREASE_MIN, DECREASE_MAX));
        let mut drain = Duration::ZERO;
        if excess > DRAIN_ABOVE {
            let drain_s = (queue_s - target * 0.5) / (1.0 - DRAIN);
            drain = Duration::from_secs_f64(drain_s.min(DRAIN_MAX_S));
            self.phase = Phase::Drain { until: now + drain, started: now, from_startup: false };
        }
        self.hold(now, drain);
    }
}
