//! Detects whether a neighbour receives our frames. Measures round-trip time, loss and clock
//! offset.
//!
//! One rule decides: while we send, the neighbour's reports must show that it received more. This
//! detects a dead line, a dead neighbour, and a line that works in one direction only.
//!
//! ```text
//! traffic on a calm link -----------------------------> dead after `dead_after` + 2 round trips
//! sparse traffic, loss, recent silences, covered link --> dead after three times `dead_after`
//!                                                         + 2 round trips
//! ```

mod quiet;

use core::time::Duration;

use shoal_wire::{Jitter, LaneReport, Time};

use crate::rhythm::KeepalivePeriod;

/// Mean periods of reports, and timeouts. Each period is drawn from 3/4 to 5/4 of its value.
#[derive(Clone, Copy, Debug)]
pub struct LivenessConfig {
    /// Period of each side's reports while the link carries traffic.
    pub report_interval: Duration,
    /// Time after its last traffic for which a link still counts as active.
    pub active_for: Duration,
    /// Maximum time of sending on a calm link without a report of progress. Twice the round-trip
    /// time is added. On other links it is three times as long.
    pub dead_after: Duration,
    /// Period of keepalives on an idle link. With `None`, idle links are silent and their sessions
    /// end. That is fine unless there is a NAT on the path.
    pub keepalive: Option<Duration>,
    /// True if the keepalive period adapts. It grows up to 55 s while keepalives are answered, and
    /// shrinks down to 5 s if silences prove too long.
    pub adapt: bool,
    /// Period of reports on a link that is down.
    pub retry: Duration,
}

impl Default for LivenessConfig {
    fn default() -> Self {
        LivenessConfig {
            report_interval: Duration::from_millis(30),
            active_for: Duration::from_millis(400),
            dead_after: Duration::from_millis(145),
            keepalive: None,
            adapt: false,
            retry: Duration::from_millis(500),
        }
    }
}

/// A change that routing must learn at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkTransition {
    /// The neighbour receives our frames.
    Up,
    /// The neighbour does not receive our frames, or this is unknown.
    Down,
}

/// Measurements of a link, for status and routing.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkStats {
    /// Frames sent.
    pub sent: u64,
    /// Frames received and opened.
    pub received: u64,
    /// Full frames among the received ones.
    pub full: u64,
    /// Frames that the neighbour has received, by its newest report.
    pub reported: u64,
    /// Smoothed round-trip time; zero until measured.
    pub rtt: Duration,
    /// Smoothed share of our frames that were lost (0 to 1), from the reports.
    pub loss: f32,
    /// Neighbour's clock minus ours, in microseconds.
    pub clock_offset_us: i64,
}

/// Liveness of one neighbour.
#[derive(Debug)]
pub struct Liveness {
    config: LivenessConfig,
    up: bool,
    /// True if there is a session. Without one nothing can be sent, so no report or keepalive is
    /// due.
    session: bool,
    stats: LinkStats,
    /// The highest opened counter of each lane.
    highest: [u32; LANES],
    last_sent: Time,
    last_traffic: Option<Time>,
    last_heard: Option<Time>,
    last_progress: Option<Time>,
    /// Start of the time in which we send without a report of progress.
    waiting_since: Option<Time>,
    /// Start of the time in which we send traffic without a report of progress.
    unreported_since: Option<Time>,
    /// The link is not calm until this time, because its neighbour was silent and yet alive.
    doubted_until: Option<Time>,
    /// Extended deadline of the current silence. It was extended once because this node itself
    /// checked too late.
    excused_until: Option<Time>,
    /// Time at which the link last went down.
    down_since: Option<Time>,
    /// True if reports are rarer and silences may be longer.
    unhurried: bool,
    next_report: Option<Time>,
    last_report: Option<Time>,
    /// Number of frames sent when the last report left.
    sent_at_report: u64,
    /// Start of the current loss sample: frames received, highest counter, arrival time of the
    /// report. None since the last session was agreed, because a report may still count frames of
    /// the previous session.
    loss_base: Option<(u64, u32, Time)>,
    /// Start of the time in which reports show that almost nothing arrives.
    smothered_since: Option<Time>,
    /// True if the link is down because almost nothing arrives.
    smothered: bool,
    /// The neighbour's clock in its last report, and the arrival time of that report.
    echo: Option<(u64, Time)>,
    rtt_min_us: u64,
    /// Departure time of the last keepalive that no report has answered yet.
    probe_at: Option<Time>,
    /// Time at which we assume that the neighbour has lost the session.
    reconnect_at: Option<Time>,
    /// Time at which a neighbour that sent traffic and then fell silent gets a keepalive.
    quiet_at: Option<Time>,
    quiet_after: Duration,
    jitter: Jitter,
    /// Period of keepalives.
    rhythm: KeepalivePeriod,
    /// Duration of the silence before the keepalive that no report has answered yet.
    silence: Option<Duration>,
    /// The currently drawn periods.
    report_gap: Duration,
    keepalive_gap: Duration,
    probe_gap: Duration,
}

/// Factor on `dead_after` for links that are not calm.
const PATIENCE: u32 = 3;
/// Factor on the report period of an unhurried link.
const RARER: u32 = 3;
/// Loss above which a link is not calm: several reports in a row are lost now and then.
const CALM_LOSS: f32 = 0.03;
/// Time for which a link is not calm after a silence nearly too long, or too long but ended.
const DOUBTED_FOR: Duration = Duration::from_secs(600);
/// A link that is up again within this time without a new session was silent, not dead.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// A deadline noticed later than this was missed because this machine was suspended. Reports may
/// then still wait behind other frames.
const LATE: Duration = Duration::from_millis(3);
/// Extension of the deadline in that case.
const GRACE: Duration = Duration::from_millis(40);
/// Delay, besides the round trip, before an unanswered keepalive is repeated. Two repeats fit into
/// the default `dead_after`, so a single loss does not take a link down.
const PROBE_AGAIN: Duration = Duration::from_millis(30);
/// Delay before it is repeated on an idle link, whose neighbour has more time.
const PROBE_IDLE_AGAIN: Duration = Duration::from_millis(110);
/// Extra wait, beyond the longest time until a report, before the first keepalive that requests a
/// report. Without that keepalive, one lost frame on an idle link would leave the neighbour nothing
/// to report. The link would then count as dead.
const UNHEARD_SPARE: Duration = Duration::from_millis(20);
/// A keepalive is answered after a random delay up to this, so an observer can't pair the two.
const ANSWER_SPREAD: Duration = Duration::from_millis(20);
/// Upper bound of a measured round trip. The measurement trusts the neighbour's hold time, which
/// must not extend the neighbour's timeout.
const RTT_MAX: Duration = Duration::from_secs(2);
/// Number of frames sent since the last report that makes the next report due sooner.
const BUSY_FRAMES: u64 = 64;
/// Maximum number of reports per interval for that reason.
const BUSY_REPORTS: u32 = 2;
/// Time without a report on a session after which another handshake is requested.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);

/// Minimum duration of a loss sample.
const SAMPLE_FOR: Duration = Duration::from_millis(100);
/// Minimum number of frames sent in a loss sample.
const SAMPLE: u32 = 32;
/// Frames per sample on a link that is down because of losses, since such a link carries few.
const SAMPLE_DOWN: u32 = 4;
/// Almost nothing arrives if fewer than one in this many frames does. Such a line is useless, or an
/// attacker copies single frames.
const SMOTHERED: u64 = 32;
/// Maximum time in which almost nothing arrives: longer than a burst of loss.
const SMOTHERED_FOR: Duration = Duration::from_secs(2);

/// Maximum number of lanes of a link.
const LANES: usize = 16;

impl Liveness {
    /// A neighbour that is down until it reports progress. `seed` seeds the random periods.
    pub fn new(config: LivenessConfig, seed: u64, now: Time) -> Liveness {
        let mut jitter = Jitter::new(seed);
        Liveness {
            report_gap: jitter.around(config.report_interval),
            keepalive_gap: jitter.around(config.keepalive.unwrap_or_default()),
            rhythm: KeepalivePeriod::new(config.keepalive.unwrap_or_default()),
            silence: None,
            probe_gap: jitter.around(PROBE_AGAIN),
            jitter,
            quiet_at: None,
            quiet_after: quiet::QUIET_AFTER,
            config,
            up: false,
            session: false,
            stats: LinkStats::default(),
            highest: [0; LANES],
            last_sent: now,
            last_traffic: None,
            last_heard: None,
            last_progress: None,
            waiting_since: None,
            unreported_since: None,
            doubted_until: None,
            excused_until: None,
            down_since: None,
            unhurried: false,
            next_report: None,
            last_report: None,
            sent_at_report: 0,
            loss_base: None,
            smothered_since: None,
            smothered: false,
            echo: None,
            rtt_min_us: u64::MAX,
            probe_at: None,
            reconnect_at: None,
        }
    }

    /// Sets whether reports are rarer and silences may be longer. On links that send few frames,
    /// reports would displace other frames.
    pub fn set_unhurried(&mut self, unhurried: bool) {
        self.unhurried = unhurried;
    }

    /// True if the neighbour receives our frames, as far as known.
    pub fn is_up(&self) -> bool {
        self.up
    }

    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// Time at which a frame of the neighbour was last opened.
    pub fn last_heard(&self) -> Option<Time> {
        self.last_heard
    }

    /// Time at which the neighbour last reported progress, that is, the arrival of further frames
    /// of ours.
    pub fn last_progress(&self) -> Option<Time> {
        self.last_progress
    }

    /// Notes that a session was agreed: the neighbour is alive, and its counters start at 0. A
    /// report is due at once, so both sides learn that the link works.
    pub fn session_established(&mut self, now: Time) {
        self.session = true;
        self.down_since = None;
        self.highest = [0; LANES];
        (self.smothered_since, self.smothered) = (None, false);
        self.loss_base = None;
        self.note_traffic(now);
        self.next_report = Some(now);
        self.reconnect_at = (!self.up).then(|| now + RECONNECT_AFTER);
    }

    /// Notes that `frames` frames left. `traffic` is false if all were reports or keepalives, which
    /// need no answer.
    pub fn sent(&mut self, now: Time, frames: u64, traffic: bool) {
        self.stats.sent += frames;
        self.last_sent = now;
        if traffic {
            self.note_traffic(now);
            self.waiting_since.get_or_insert(now);
            self.unreported_since.get_or_insert(now);
            self.report_sooner(now);
        }
    }

    /// Notes that `frames` frames left for an endpoint that the neighbour may have moved to. They
    /// prove nothing about the link and do not delay keepalives.
    pub fn sent_beside(&mut self, frames: u64) {
        self.stats.sent += frames;
    }

    /// Notes that `frames` frames were opened, with the newest counter of this lane. `traffic` is
    /// false if all were reports or keepalives.
    pub fn received(&mut self, now: Time, frames: u64, (lane, highest): (u8, u32), traffic: bool) {
        self.stats.received += frames;
        self.last_heard = Some(now);
        if frames > 0 && (traffic || self.quiet_at.is_some()) {
            self.quiet_at = Some(now + self.quiet_after + 2 * self.report_gap);
        }
        let known = &mut self.highest[usize::from(lane) % LANES];
        *known = highest.max(*known);
        if traffic {
            self.note_traffic(now);
        }
    }

    /// Counts full frames among the opened ones.
    pub fn received_full(&mut self, frames: u64) {
        self.stats.full += frames;
    }

    /// Handles a report of the neighbour.
    pub fn handle_report(&mut self, now: Time, report: &LaneReport) -> Option<LinkTransition> {
        self.echo = Some((report.sent_us, now));
        self.measure(now, report);
        // A smaller count means that the neighbour was restarted.
        let progress = report.received != self.stats.reported;
        self.stats.reported = report.received;
        if !progress || self.smothered {
            return None;
        }
        if self.up && self.smothered_since.is_some_and(|at| now.since(at) >= SMOTHERED_FOR) {
            self.smothered = true;
            return self.declare_down(now);
        }
        self.doubt(now);
        self.wait_no_more();
        self.probe_at = None;
        self.reconnect_at = None;
        self.last_progress = Some(now);
        if let Some(silence) = self.silence.take() {
            self.rhythm.answered(now, silence);
        }
        if !self.up {
            self.up = true;
            return Some(LinkTransition::Up);
        }
        None
    }

    /// Takes a report if one is due.
    pub fn poll_report(&mut self, now: Time) -> Option<LaneReport> {
        if self.next_report? > now {
            return None;
        }
        let active = self.last_traffic.is_some_and(|at| now.since(at) < self.config.active_for);
        let interval = if active {
            Some(self.report_interval())
        } else if !self.up && self.last_traffic.is_some() {
            Some(self.config.retry)
        } else {
            None
        };
        self.report_gap = self.jitter.around(self.report_interval());
        self.next_report = interval.map(|wait| now + self.jitter.around(wait));
        let (echoed_us, hold_us) = match self.echo {
            Some((sent_us, at)) => (sent_us, micros(now.since(at))),
            None => (0, 0),
        };
        let since_last = self.last_report.map_or(0, |at| micros(now.since(at)));
        self.last_report = Some(now);
        self.sent_at_report = self.stats.sent;
        Some(LaneReport {
            lane: 0,
            received: self.stats.received,
            // The sum grows by one with each frame sent, on any lane.
            highest: self.highest.iter().fold(0, |sum, n| sum.wrapping_add(*n)),
            interval_us: since_last,
            sent_us: now.as_micros(),
            echoed_us,
            hold_us,
            full: self.stats.full,
        })
    }

    /// Takes a keepalive if one is due. It counts as sent even if it could not leave. It requests a
    /// report, so an idle neighbour that lost its keys is noticed within one interval.
    pub fn poll_keepalive(&mut self, now: Time) -> bool {
        let due = self.keepalive_at().is_some_and(|at| at <= now);
        if due {
            let idle = self.probe_at.is_none() && self.waiting_since.is_none();
            if self.up && idle && self.config.adapt {
                let last = self.last_heard.map_or(self.last_sent, |at| at.max(self.last_sent));
                self.silence = Some(now.since(last));
            }
            self.last_sent = now;
            self.quiet_at = None;
            self.keepalive_gap = self.jitter.around(self.rhythm.period());
            let quick = self.unreported_since.is_some_and(|at| self.is_calm(at));
            self.probe_gap = self.jitter.around(if quick { PROBE_AGAIN } else { PROBE_IDLE_AGAIN });
            if self.up {
                self.probe_at = Some(now);
                self.waiting_since.get_or_insert(now);
            }
        }
        due
    }

    /// Makes a report due soon, because a keepalive came or the path is in doubt.
    pub fn hurry_report(&mut self, now: Time) {
        let answer = now + self.jitter.below(ANSWER_SPREAD);
        self.next_report = Some(self.next_report.map_or(answer, |at| at.min(answer)));
    }

    /// True from time to time while a session exists but no report comes. The neighbour may have
    /// lost the session, so another handshake is due.
    pub fn poll_reconnect(&mut self, now: Time) -> bool {
        let due = self.reconnect_at.is_some_and(|at| at <= now);
        if due {
            self.reconnect_at = Some(now + self.jitter.around(RECONNECT_AFTER));
        }
        due
    }

    fn keepalive_at(&self) -> Option<Time> {
        if !self.session {
            return None;
        }
        let keeps = self.config.keepalive.is_some();
        let idle = keeps.then_some(self.last_sent + self.keepalive_gap);
        let again = self.probe_at.map(|at| at + self.probe_gap + self.stats.rtt);
        let quiet = self.quiet_at.filter(|_| self.up && keeps);
        let unheard = self.waiting_since.filter(|_| self.up && self.probe_at.is_none());
        let unheard = unheard.map(|at| at + self.unheard_after());
        [idle, again, quiet, unheard].into_iter().flatten().min()
    }

    /// Time within which a report on our traffic must arrive. Later, the report was lost, or the
    /// traffic was and an idle neighbour knows nothing of it.
    fn unheard_after(&self) -> Duration {
        self.report_interval() * 5 / 4 + UNHEARD_SPARE + self.stats.rtt
    }

    fn report_interval(&self) -> Duration {
        self.config.report_interval * if self.unhurried { RARER } else { 1 }
    }

    /// Takes the link down if the neighbour has been silent for too long. Returns the transition
    /// once.
    pub fn handle_timeout(&mut self, now: Time) -> Option<LinkTransition> {
        let late = now.since(self.dead_at().filter(|at| self.up && *at <= now)?);
        if late > LATE && self.excused_until.is_none() {
            self.excused_until = Some(now + GRACE);
            return None;
        }
        self.declare_down(now)
    }

    /// Notes that the session is gone. If `we_call`, a handshake is due again after a while. A
    /// neighbour that calls us causes no work until it calls, so hosts may come and go.
    pub fn session_lost(&mut self, now: Time, we_call: bool) -> Option<LinkTransition> {
        let change = self.declare_down(now);
        self.session = false;
        self.next_report = None;
        self.reconnect_at = self.reconnect_at.filter(|_| we_call);
        change
    }

    /// Time and reason of the next call of a `poll_` function or [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let dead = if self.up { self.dead_at() } else { None };
        [
            self.keepalive_at().map(|at| (at, "keepalive due")),
            self.reconnect_at.map(|at| (at, "session in doubt")),
            self.next_report.map(|at| (at, "report due")),
            dead.map(|at| (at, "neighbour silent")),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Deadline after which the neighbour has been silent for too long.
    fn dead_at(&self) -> Option<Time> {
        let round_trips = 2 * self.stats.rtt;
        let at = self.waiting_since? + self.config.dead_after * PATIENCE + round_trips;
        let unreported = self.unreported_since.filter(|&since| self.is_calm(since));
        let soon = unreported.map_or(at, |since| since + self.config.dead_after + round_trips);
        Some(self.excused_until.map_or(at.min(soon), |until| at.min(soon).max(until)))
    }

    /// True if the link is calm at `since`, the start of a silence: reports were steady, loss is
    /// low, and no long silence ended recently.
    fn is_calm(&self, since: Time) -> bool {
        let steady = self.last_progress.is_some_and(|at| since.since(at) <= self.config.active_for);
        let doubted = self.doubted_until.is_some_and(|until| since < until);
        steady && !doubted && !self.unhurried && self.stats.loss <= CALM_LOSS
    }

    /// Notes whether the neighbour, which just reported progress, was silent for nearly too long or
    /// for longer.
    fn doubt(&mut self, now: Time) {
        let nearly = self.config.dead_after * 15 / 16 + 2 * self.stats.rtt;
        let long = self.unreported_since.is_some_and(|at| now.since(at) >= nearly);
        let back = self.down_since.take().is_some_and(|at| now.since(at) < SILENCE_MAX);
        if long || back {
            self.doubted_until = Some(now + DOUBTED_FOR);
        }
    }

    fn wait_no_more(&mut self) {
        (self.waiting_since, self.unreported_since, self.excused_until) = (None, None, None);
    }

    fn declare_down(&mut self, now: Time) -> Option<LinkTransition> {
        let was_up = core::mem::replace(&mut self.up, false);
        self.down_since = was_up.then_some(now).or(self.down_since);
        self.wait_no_more();
        self.probe_at = None;
        if let Some(silence) = self.silence.take() {
            self.rhythm.unanswered(now, silence);
            self.keepalive_gap = self.jitter.around(self.rhythm.period());
        }
        self.quiet_at = None;
        self.reconnect_at = Some(now + self.jitter.around(RECONNECT_AFTER));
        // Reports continue at the retry interval, since the neighbour may come back.
        self.next_report = Some(now + self.jitter.around(self.config.retry));
        was_up.then_some(LinkTransition::Down)
    }

    fn note_traffic(&mut self, now: Time) {
        self.last_traffic = Some(now);
        if self.next_report.is_none() {
            self.next_report = Some(now + self.report_gap);
        }
    }

    /// Makes the next report due sooner while we send much. Our own frames may fill a queue on the
    /// path that then drops reports. More reports keep the link from looking dead.
    fn report_sooner(&mut self, now: Time) {
        if self.stats.sent - self.sent_at_report >= BUSY_FRAMES
            && let (Some(next), Some(last)) = (self.next_report, self.last_report)
        {
            let sooner = now.max(last + self.report_gap / BUSY_REPORTS);
            self.next_report = Some(next.min(sooner));
        }
    }

    /// Evaluates a loss sample that began at `since`.
    fn judge(&mut self, since: Time, arrived: u64, sent: u32) {
        if arrived * SMOTHERED > u64::from(sent) {
            (self.smothered_since, self.smothered) = (None, false);
        } else {
            self.smothered_since.get_or_insert(since);
        }
    }

    fn measure(&mut self, now: Time, report: &LaneReport) {
        let (base_received, base_highest, since) =
            self.loss_base.unwrap_or((report.received, report.highest, now));
        // A new key or a restarted neighbour resets the counts, so the sample is invalid.
        let anew = self.loss_base.is_none()
            || report.highest < base_highest
            || report.received < base_received;
        let sent = report.highest.wrapping_sub(base_highest);
        let waits = self.smothered && !anew && sent < SAMPLE_DOWN;
        if anew || (now.since(since) >= SAMPLE_FOR && !waits) {
            let arrived = report.received.saturating_sub(base_received);
            if !anew && (sent >= SAMPLE || self.smothered) {
                let lost = 1.0 - (arrived as f32 / sent as f32).min(1.0);
                self.stats.loss += (lost - self.stats.loss) / 4.0;
                self.judge(since, arrived, sent);
            } else {
                self.smothered_since = None;
            }
            self.loss_base = Some((report.received, report.highest, now));
        }
        let now_us = now.as_micros();
        let spent = report.echoed_us.saturating_add(u64::from(report.hold_us));
        if report.echoed_us == 0 || spent > now_us {
            return;
        }
        let rtt_us = now_us - spent;
        let sample = Duration::from_micros(rtt_us).min(RTT_MAX);
        self.stats.rtt =
            if self.stats.rtt.is_zero() { sample } else { (self.stats.rtt * 7 + sample) / 8 };
        // The sample with the least queueing gives the best clock offset (RFC 5905 section 10).
        if rtt_us <= self.rtt_min_us {
            self.rtt_min_us = rtt_us;
            // A neighbour's clock may have any value, so the difference is computed in 128 bits.
            let there = i128::from(report.sent_us) * 2;
            let here = i128::from(spent) + i128::from(now_us);
            let offset = ((there - here) / 2).clamp(i64::MIN.into(), i64::MAX.into());
            self.stats.clock_offset_us = offset as i64;
        }
        self.rtt_min_us = self.rtt_min_us.saturating_add(self.rtt_min_us / 1024);
    }
}

fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
