//! Whether a neighbour hears us: reports, silence, round-trip time, loss, clock offset.
//!
//! One rule decides: while we send, the neighbour's reports must show that it received more. That
//! detects a dead line, a dead neighbour, and a line that works in one direction only.
//!
//! ```text
//! traffic on a calm link -----------------------------> dead after `dead_after` + 2 round trips
//! one frame now and then, loss, past silences, cover --> dead after three times as long
//! ```

use core::time::Duration;

use shoal_wire::{Jitter, Report, Time};

use crate::rhythm::Rhythm;

/// Periods of reports and timeouts. Periods are averages, drawn from 3/4 to 5/4 of the value.
#[derive(Clone, Copy, Debug)]
pub struct LivenessConfig {
    /// How often each side reports while the link carries traffic.
    pub report_interval: Duration,
    /// How long after its last traffic a link still counts as active.
    pub active_for: Duration,
    /// How long the neighbour of a calm link may let us send traffic without reporting progress;
    /// twice the round-trip time is added. Other links have three times as long.
    pub dead_after: Duration,
    /// How often an idle link sends a keepalive. With `None` idle links are silent and their
    /// sessions end, which is fine unless there is a NAT on the path.
    pub keepalive: Option<Duration>,
    /// Whether that is only how it begins: links whose keepalives are answered send fewer of them,
    /// one each 55 s at least; those that were silent for too long more, one each 5 s at most.
    pub adapt: bool,
    /// How often a report is sent on a link that is down.
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

/// A change that routing must hear of at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The neighbour hears us.
    Up,
    /// It doesn't, or it is not known.
    Down,
}

/// Measurements of a link, for the status and for routing.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkStats {
    /// Frames sent.
    pub sent: u64,
    /// Frames received and opened.
    pub received: u64,
    /// Full frames among them.
    pub full: u64,
    /// Frames that the neighbour has received, by its newest report.
    pub reported: u64,
    /// Smoothed round-trip time; zero until measured.
    pub rtt: Duration,
    /// Share of our frames that got lost, from the last reports (0 to 1).
    pub loss: f32,
    /// Neighbour's clock minus ours, in microseconds.
    pub clock_offset_us: i64,
}

/// Watches one neighbour.
#[derive(Debug)]
pub struct Liveness {
    config: LivenessConfig,
    up: bool,
    /// Whether there is a session; without one nothing can be sent, so nothing is due.
    session: bool,
    stats: LinkStats,
    /// Highest counter opened, per lane.
    highest: [u32; LANES],
    last_sent: Time,
    last_traffic: Option<Time>,
    last_heard: Option<Time>,
    last_progress: Option<Time>,
    /// Since when we send without a report of progress.
    waiting_since: Option<Time>,
    /// Since when we send traffic without one.
    unreported_since: Option<Time>,
    /// Until when the link is not calm: its neighbour was silent, and yet alive.
    doubted_until: Option<Time>,
    /// The deadline of this silence, which was put off since we ourselves looked too late.
    excused_until: Option<Time>,
    /// When the link last went down.
    down_since: Option<Time>,
    /// Reports are rarer, and silences may last longer.
    unhurried: bool,
    next_report: Option<Time>,
    last_report: Option<Time>,
    /// Frames sent when the last report left.
    sent_at_report: u64,
    /// The report that began the present sample of loss: frames received, highest counter, arrival.
    /// None since the last session was agreed: what the neighbour still counts may be the frames
    /// of the one before.
    loss_base: Option<(u64, u32, Time)>,
    /// Since when reports show that almost nothing arrives.
    smothered_since: Option<Time>,
    /// The link is down because almost nothing arrives.
    smothered: bool,
    /// The neighbour's clock in its last report, and when that came.
    echo: Option<(u64, Time)>,
    rtt_min_us: u64,
    /// When the last keepalive left that no report has answered yet.
    probe_at: Option<Time>,
    /// When we assume that the neighbour has lost the session.
    reconnect_at: Option<Time>,
    /// When a neighbour that sent traffic and fell silent gets a keepalive.
    quiet_at: Option<Time>,
    jitter: Jitter,
    /// How often keepalives leave.
    rhythm: Rhythm,
    /// How long the link was silent before the keepalive that no report has answered yet.
    silence: Option<Duration>,
    /// The periods that run now.
    report_gap: Duration,
    keepalive_gap: Duration,
    probe_gap: Duration,
}

/// How many times `dead_after` a neighbour may be silent on a link that is not calm.
const PATIENCE: u32 = 3;
/// How many times rarer reports are on an unhurried link.
const RARER: u32 = 3;
/// Loss beyond which a link is not calm: several reports in a row get lost now and then.
const CALM_LOSS: f32 = 0.03;
/// How long a link is not calm after a silence that was nearly too long, or was too long but ended.
const DOUBTED_FOR: Duration = Duration::from_secs(600);
/// A link that is back so soon without another session was silent, and not dead.
const SILENCE_MAX: Duration = Duration::from_secs(2);
/// A deadline that is noticed so much later was missed by ourselves: our machine stood still, and
/// reports may wait behind other frames.
const LATE: Duration = Duration::from_millis(3);
/// How long such a neighbour has from then on.
const GRACE: Duration = Duration::from_millis(40);
/// How soon, besides the round trip, an unanswered keepalive is repeated: twice more before the
/// default `dead_after`, so that a single loss doesn't take a link down.
const PROBE_AGAIN: Duration = Duration::from_millis(30);
/// How soon it is repeated on an idle link, which has longer.
const PROBE_IDLE_AGAIN: Duration = Duration::from_millis(110);
/// How soon a neighbour that sent traffic and then nothing at all gets a keepalive: later than the
/// reports that follow the last traffic. So a neighbour's death is noticed while we only receive.
const QUIET_AFTER: Duration = Duration::from_millis(400);
/// How much longer than a report takes at most the first keepalive waits that asks for one, while
/// we send. It is repeated as others are: on an idle link one lost frame would be the only one for
/// the neighbour to report on, and the link would count as dead.
const UNHEARD_SPARE: Duration = Duration::from_millis(20);
/// A keepalive is answered after a random delay up to this, so that an observer can't pair the two.
const ANSWER_SPREAD: Duration = Duration::from_millis(20);
/// Bound of a round trip. It depends on the neighbour's word for how long it held our clock, which
/// must not extend its timeout.
const RTT_MAX: Duration = Duration::from_secs(2);
/// Frames sent since the last report that make the next one due sooner ...
const BUSY_FRAMES: u64 = 64;
/// ... but no more than so many per interval.
const BUSY_REPORTS: u32 = 2;
/// How long a session may stand without a report before another handshake is asked for.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);

/// Time that a sample of the loss takes at least.
const SAMPLE_FOR: Duration = Duration::from_millis(100);
/// Frames sent that make a sample of the loss.
const SAMPLE: u32 = 32;
/// Frames of a sample on a link that is down because of losses: it carries little.
const SAMPLE_DOWN: u32 = 4;
/// Almost nothing arrives if it is less than one of so many frames: such a line is of no use, or
/// an attacker copies single frames.
const SMOTHERED: u64 = 32;
/// How long that may last: longer than a burst of loss.
const SMOTHERED_FOR: Duration = Duration::from_secs(2);

/// Lanes of a link at most.
const LANES: usize = 16;

impl Liveness {
    /// A neighbour that is down until it reports progress. `seed` seeds the spread of its periods.
    pub fn new(config: LivenessConfig, seed: u64, now: Time) -> Liveness {
        let mut jitter = Jitter::new(seed);
        Liveness {
            report_gap: jitter.around(config.report_interval),
            keepalive_gap: jitter.around(config.keepalive.unwrap_or_default()),
            rhythm: Rhythm::new(config.keepalive.unwrap_or_default()),
            silence: None,
            probe_gap: jitter.around(PROBE_AGAIN),
            jitter,
            quiet_at: None,
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

    /// Has reports be rarer and silences last longer, or no more: on links that send few frames,
    /// reports would take the place of others.
    pub fn set_unhurried(&mut self, unhurried: bool) {
        self.unhurried = unhurried;
    }

    /// Whether the neighbour hears us, as far as is known.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Measurements of the link.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// When a frame of the neighbour last opened.
    pub fn last_heard(&self) -> Option<Time> {
        self.last_heard
    }

    /// When the neighbour last reported progress: that something of ours arrived.
    pub fn last_progress(&self) -> Option<Time> {
        self.last_progress
    }

    /// A session was agreed: the neighbour is there, and its counters start at 0. Reports are due
    /// at once, so that both sides learn that the link works.
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

    /// `frames` frames left; `traffic` unless all were reports or keepalives: those need no answer.
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

    /// `frames` frames left for another place than the link's, if that is where the neighbour is:
    /// they show nothing of the link, and put off no keepalive.
    pub fn sent_beside(&mut self, frames: u64) {
        self.stats.sent += frames;
    }

    /// `frames` frames were opened, the newest on this lane with this counter; `traffic` unless
    /// all of them were reports or keepalives.
    pub fn received(&mut self, now: Time, frames: u64, (lane, highest): (u8, u32), traffic: bool) {
        self.stats.received += frames;
        self.last_heard = Some(now);
        if frames > 0 && (traffic || self.quiet_at.is_some()) {
            self.quiet_at = Some(now + QUIET_AFTER + 2 * self.report_gap);
        }
        let known = &mut self.highest[usize::from(lane) % LANES];
        *known = highest.max(*known);
        if traffic {
            self.note_traffic(now);
        }
    }

    /// Counts full frames among those that were opened.
    pub fn received_full(&mut self, frames: u64) {
        self.stats.full += frames;
    }

    /// The neighbour reported.
    pub fn handle_report(&mut self, now: Time, report: &Report) -> Option<Transition> {
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
            return Some(Transition::Up);
        }
        None
    }

    /// Takes the report that is due, if one is.
    pub fn poll_report(&mut self, now: Time) -> Option<Report> {
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
        Some(Report {
            lane: 0,
            received: self.stats.received,
            // The sum grows by one with every frame that is sent, whatever its lane.
            highest: self.highest.iter().fold(0, |sum, n| sum.wrapping_add(*n)),
            interval_us: since_last,
            sent_us: now.as_micros(),
            echoed_us,
            hold_us,
            full: self.stats.full,
        })
    }

    /// Takes the keepalive that is due, if one is. It counts as sent even if it can't be. It asks
    /// for one report: an idle neighbour that lost its keys is noticed within one interval.
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

    /// Makes a report due: a keepalive came, or the path is in doubt.
    pub fn hurry_report(&mut self, now: Time) {
        let answer = now + self.jitter.below(ANSWER_SPREAD);
        self.next_report = Some(self.next_report.map_or(answer, |at| at.min(answer)));
    }

    /// True from time to time while a session exists over which no report comes: the neighbour may
    /// have lost it, and another handshake is due.
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

    /// How long a report may take that traffic of ours makes due: by then it was lost, or the
    /// traffic was, of which an idle neighbour knows nothing.
    fn unheard_after(&self) -> Duration {
        self.report_interval() * 5 / 4 + UNHEARD_SPARE + self.stats.rtt
    }

    fn report_interval(&self) -> Duration {
        self.config.report_interval * if self.unhurried { RARER } else { 1 }
    }

    /// Takes the link down if the neighbour has been silent for too long; tells it once.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Transition> {
        let late = now.since(self.dead_at().filter(|at| self.up && *at <= now)?);
        if late > LATE && self.excused_until.is_none() {
            self.excused_until = Some(now + GRACE);
            return None;
        }
        self.declare_down(now)
    }

    /// The session is gone. A neighbour that we call is called again after a while; one that calls
    /// us causes no work until it does, so that hosts may come and go.
    pub fn session_lost(&mut self, now: Time, we_call: bool) -> Option<Transition> {
        let change = self.declare_down(now);
        self.session = false;
        self.next_report = None;
        self.reconnect_at = self.reconnect_at.filter(|_| we_call);
        change
    }

    /// When [`Self::handle_timeout`] or [`Self::poll_report`] has something to do.
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

    /// When the neighbour will have been silent for too long.
    fn dead_at(&self) -> Option<Time> {
        let round_trips = 2 * self.stats.rtt;
        let at = self.waiting_since? + self.config.dead_after * PATIENCE + round_trips;
        let unreported = self.unreported_since.filter(|&since| self.is_calm(since));
        let soon = unreported.map_or(at, |since| since + self.config.dead_after + round_trips);
        Some(self.excused_until.map_or(at.min(soon), |until| at.min(soon).max(until)))
    }

    /// Whether a silence that began then is not one of the link's usual ones, and ended a steady
    /// flow of reports.
    fn is_calm(&self, since: Time) -> bool {
        let steady = self.last_progress.is_some_and(|at| since.since(at) <= self.config.active_for);
        let doubted = self.doubted_until.is_some_and(|until| since < until);
        steady && !doubted && !self.unhurried && self.stats.loss <= CALM_LOSS
    }

    /// Remembers that the neighbour, which reports progress, was silent for nearly too long, or for
    /// longer.
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

    fn declare_down(&mut self, now: Time) -> Option<Transition> {
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
        // Reports go on at the retry interval: the neighbour may come back.
        self.next_report = Some(now + self.jitter.around(self.config.retry));
        was_up.then_some(Transition::Down)
    }

    fn note_traffic(&mut self, now: Time) {
        self.last_traffic = Some(now);
        if self.next_report.is_none() {
            self.next_report = Some(now + self.report_gap);
        }
    }

    /// Makes the next report due sooner while we send much. Our own frames fill the queue below,
    /// which may drop reports; more of them keep the link from looking dead.
    fn report_sooner(&mut self, now: Time) {
        if self.stats.sent - self.sent_at_report >= BUSY_FRAMES
            && let (Some(next), Some(last)) = (self.next_report, self.last_report)
        {
            let sooner = now.max(last + self.report_gap / BUSY_REPORTS);
            self.next_report = Some(next.min(sooner));
        }
    }

    /// Judges a sample of the loss that began at `since`.
    fn judge(&mut self, since: Time, arrived: u64, sent: u32) {
        if arrived * SMOTHERED > u64::from(sent) {
            (self.smothered_since, self.smothered) = (None, false);
        } else {
            self.smothered_since.get_or_insert(since);
        }
    }

    fn measure(&mut self, now: Time, report: &Report) {
        let (base_received, base_highest, since) =
            self.loss_base.unwrap_or((report.received, report.highest, now));
        // A new key or a restarted neighbour resets the counts; such a sample is useless.
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
        // The sample with the least queueing tells the clocks apart best (RFC 5905 section 10).
        if rtt_us <= self.rtt_min_us {
            self.rtt_min_us = rtt_us;
            // A neighbour's clock may have any value.
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
