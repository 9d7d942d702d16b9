//! Whether a neighbour hears us: reports, silence, round-trip time, loss, clock offset.
//!
//! One rule decides: while we send, the neighbour's reports must say that it received more. That
//! covers a dead line, a dead neighbour, and a line that carries only one way.

use core::time::Duration;

use shoal_wire::{Report, Time};

/// How fast silence is noticed.
#[derive(Clone, Copy, Debug)]
pub struct LivenessConfig {
    /// How often each side reports while the link carries traffic.
    pub report_interval: Duration,
    /// How long after the last traffic a link still counts as carrying some.
    pub active_for: Duration,
    /// How long a neighbour may let us send without reporting progress; twice the round-trip time
    /// is added.
    pub dead_after: Duration,
    /// How often an idle link sends a keepalive; `None` lets idle links be silent (and their
    /// sessions end), which is right unless a NAT stands between.
    pub keepalive: Option<Duration>,
    /// How often a link that is down is tried.
    pub retry: Duration,
}

impl Default for LivenessConfig {
    fn default() -> Self {
        LivenessConfig {
            report_interval: Duration::from_millis(100),
            active_for: Duration::from_secs(1),
            dead_after: Duration::from_millis(500),
            keepalive: None,
            retry: Duration::from_millis(500),
        }
    }
}

/// A change that routing must hear of at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The neighbour hears us.
    Up,
    /// It doesn't, or nobody knows.
    Down,
}

/// What is known of a link, for people and for routing.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkStats {
    /// Frames sent.
    pub sent: u64,
    /// Frames received and opened.
    pub received: u64,
    /// Smoothed round-trip time; zero until measured.
    pub rtt: Duration,
    /// Share of our frames that got lost, over the last reports (0 to 1).
    pub loss: f32,
    /// Neighbour's clock minus ours, in microseconds.
    pub clock_offset_us: i64,
}

/// Watches one neighbour.
#[derive(Debug)]
pub struct Liveness {
    config: LivenessConfig,
    up: bool,
    /// Whether a session stands; without one nothing can be sent, so nothing is due.
    session: bool,
    stats: LinkStats,
    /// Highest counter opened, per lane.
    highest: [u32; LANES],
    last_sent: Time,
    last_traffic: Option<Time>,
    last_heard: Option<Time>,
    last_progress: Option<Time>,
    /// Since when we have been sending without hearing that anything arrived.
    waiting_since: Option<Time>,
    next_report: Option<Time>,
    last_report: Option<Time>,
    /// Frames sent when the last report left.
    sent_at_report: u64,
    peer_received: u64,
    /// Frames received and highest counter in the report that the loss was last measured by, and
    /// when it came.
    loss_base: (u64, u32, Time),
    /// The neighbour's clock in its last report, and when that came.
    echo: Option<(u64, Time)>,
    rtt_min_us: u64,
    /// When the last keepalive left that no report has answered yet.
    probe_at: Option<Time>,
    /// When the session counts as one that only we remember.
    reconnect_at: Option<Time>,
}

/// How soon, besides the round trip, an unanswered keepalive is repeated: three more times before
/// the default `dead_after`, so that a single loss doesn't take an idle link down.
const PROBE_AGAIN: Duration = Duration::from_millis(120);
/// Frames sent since the last report that make the next one due sooner ...
const BUSY_FRAMES: u64 = 64;
/// ... but no more than so many per interval.
const BUSY_REPORTS: u32 = 5;
/// How long a session may stand without a report before another handshake is asked for.
const RECONNECT_AFTER: Duration = Duration::from_secs(2);

/// Lanes of a link at most.
const LANES: usize = 16;

impl Liveness {
    /// A neighbour nobody has heard of yet: down until it reports progress.
    pub fn new(config: LivenessConfig, now: Time) -> Liveness {
        Liveness {
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
            next_report: None,
            last_report: None,
            sent_at_report: 0,
            peer_received: 0,
            loss_base: (0, 0, now),
            echo: None,
            rtt_min_us: u64::MAX,
            probe_at: None,
            reconnect_at: None,
        }
    }

    /// Whether the neighbour hears us, as far as is known.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// What is known of the link.
    pub fn stats(&self) -> LinkStats {
        self.stats
    }

    /// When a frame of the neighbour last opened.
    pub fn last_heard(&self) -> Option<Time> {
        self.last_heard
    }

    /// When the neighbour last reported that something of ours arrived.
    pub fn last_progress(&self) -> Option<Time> {
        self.last_progress
    }

    /// A session was agreed: the neighbour is there, and its counters start anew. Reports are due
    /// at once, so that both sides learn that the link carries.
    pub fn session_established(&mut self, now: Time) {
        self.session = true;
        self.highest = [0; LANES];
        self.loss_base.1 = 0;
        self.note_traffic(now);
        self.next_report = Some(now);
        self.reconnect_at = (!self.up).then(|| now + RECONNECT_AFTER);
    }

    /// `frames` frames left; `traffic` unless they were reports or keepalives, which ask for no
    /// answer.
    pub fn sent(&mut self, now: Time, frames: u64, traffic: bool) {
        self.stats.sent += frames;
        self.last_sent = now;
        if traffic {
            self.note_traffic(now);
            self.waiting_since.get_or_insert(now);
            self.report_sooner(now);
        }
    }

    /// `frames` frames were opened, the newest on this lane with this counter; `traffic` unless
    /// all of them were reports or keepalives.
    pub fn received(&mut self, now: Time, frames: u64, (lane, highest): (u8, u32), traffic: bool) {
        self.stats.received += frames;
        self.last_heard = Some(now);
        let known = &mut self.highest[usize::from(lane) % LANES];
        *known = highest.max(*known);
        if traffic {
            self.note_traffic(now);
        }
    }

    /// The neighbour reported.
    pub fn handle_report(&mut self, now: Time, report: &Report) -> Option<Transition> {
        self.echo = Some((report.sent_us, now));
        self.measure(now, report);
        // A smaller count means that the neighbour has started anew.
        let progress = report.received != self.peer_received;
        self.peer_received = report.received;
        if !progress {
            return None;
        }
        self.waiting_since = None;
        self.probe_at = None;
        self.reconnect_at = None;
        self.last_progress = Some(now);
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
            Some(self.config.report_interval)
        } else if !self.up && self.last_traffic.is_some() {
            Some(self.config.retry)
        } else {
            None
        };
        self.next_report = interval.map(|wait| now + wait);
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
        })
    }

    /// Takes the keepalive that is due, if one is. It counts as sent, whether it can be or not. It
    /// asks for one report: an idle neighbour that lost its keys is noticed within one interval.
    pub fn poll_keepalive(&mut self, now: Time) -> bool {
        let due = self.keepalive_at().is_some_and(|at| at <= now);
        if due {
            self.last_sent = now;
            if self.up {
                self.probe_at = Some(now);
                self.waiting_since.get_or_insert(now);
            }
        }
        due
    }

    /// A keepalive came: it is answered with a report.
    pub fn keepalive_received(&mut self, now: Time) {
        self.next_report = Some(now);
    }

    /// Says once in a while, as long as a session stands over which nothing is reported, that the
    /// neighbour may have lost it.
    pub fn poll_reconnect(&mut self, now: Time) -> bool {
        let due = self.reconnect_at.is_some_and(|at| at <= now);
        if due {
            self.reconnect_at = Some(now + RECONNECT_AFTER);
        }
        due
    }

    fn keepalive_at(&self) -> Option<Time> {
        let idle = self.last_sent + self.config.keepalive.filter(|_| self.session)?;
        let again = self.probe_at.map(|at| at + PROBE_AGAIN + self.stats.rtt);
        Some(again.map_or(idle, |again| again.min(idle)))
    }

    /// Looks at the clock: says once when the neighbour has been silent for too long.
    pub fn handle_timeout(&mut self, now: Time) -> Option<Transition> {
        if self.up && self.dead_at().is_some_and(|at| at <= now) {
            self.waiting_since = None;
            return self.declare_down(now);
        }
        None
    }

    /// The session is gone. A neighbour that we call is to be called again in a while; one that
    /// calls us costs nothing until it does, so that hosts may come and go.
    pub fn session_lost(&mut self, now: Time, we_call: bool) -> Option<Transition> {
        let change = self.declare_down(now);
        self.session = false;
        self.next_report = None;
        self.waiting_since = None;
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

    fn dead_at(&self) -> Option<Time> {
        Some(self.waiting_since? + self.config.dead_after + 2 * self.stats.rtt)
    }

    fn declare_down(&mut self, now: Time) -> Option<Transition> {
        let was_up = core::mem::replace(&mut self.up, false);
        self.probe_at = None;
        self.reconnect_at = Some(now + RECONNECT_AFTER);
        // Goes on reporting at the retry interval: the neighbour may come back.
        self.next_report = Some(now + self.config.retry);
        was_up.then_some(Transition::Down)
    }

    fn note_traffic(&mut self, now: Time) {
        self.last_traffic = Some(now);
        if self.next_report.is_none() {
            self.next_report = Some(now + self.config.report_interval);
        }
    }

    /// A report travels in the queue that our own frames fill: while we send much, it is sent more
    /// often, so that a line that overflows below us doesn't look dead when it drops a few.
    fn report_sooner(&mut self, now: Time) {
        if self.stats.sent - self.sent_at_report >= BUSY_FRAMES
            && let (Some(next), Some(last)) = (self.next_report, self.last_report)
        {
            let sooner = now.max(last + self.config.report_interval / BUSY_REPORTS);
            self.next_report = Some(next.min(sooner));
        }
    }

    fn measure(&mut self, now: Time, report: &Report) {
        let (base_received, base_highest, since) = self.loss_base;
        // A new key starts a new count, and a neighbour may start anew; such a sample says nothing.
        let anew = report.highest < base_highest || report.received < base_received;
        if anew || now.since(since) >= self.config.report_interval {
            let sent = report.highest.wrapping_sub(base_highest);
            let arrived = report.received.saturating_sub(base_received);
            if !anew && sent >= 32 {
                let lost = 1.0 - (arrived as f32 / sent as f32).min(1.0);
                self.stats.loss += (lost - self.stats.loss) / 4.0;
            }
            self.loss_base = (report.received, report.highest, now);
        }
        let now_us = now.as_micros();
        let spent = report.echoed_us.saturating_add(u64::from(report.hold_us));
        if report.echoed_us == 0 || spent > now_us {
            return;
        }
        let rtt_us = now_us - spent;
        let sample = Duration::from_micros(rtt_us);
        self.stats.rtt =
            if self.stats.rtt.is_zero() { sample } else { (self.stats.rtt * 7 + sample) / 8 };
        // The sample with the least queueing tells the clocks apart best (RFC 5905 section 10).
        if rtt_us <= self.rtt_min_us {
            self.rtt_min_us = rtt_us;
            // A neighbour's clock may say anything.
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
mod tests {
    use super::*;

    fn ms(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn report(received: u64, highest: u32) -> Report {
        Report { received, highest, sent_us: 1, ..Report::default() }
    }

    fn up_at(now: Time) -> Liveness {
        let mut link = Liveness::new(LivenessConfig::default(), Time::ZERO);
        link.session_established(now);
        assert_eq!(link.handle_report(now, &report(1, 0)), Some(Transition::Up));
        link
    }

    #[test]
    fn a_neighbour_that_reports_no_progress_is_left_within_a_second() {
        let mut link = up_at(ms(10));
        let mut dead = None;
        for at in 10..1_000 {
            link.sent(ms(at), 80, true);
            if let Some(change) = link.handle_timeout(ms(at)) {
                dead = Some((at, change));
                break;
            }
        }
        assert_eq!(dead, Some((510, Transition::Down)));
    }

    #[test]
    fn a_clock_that_says_anything_is_measured_without_overflow() {
        let mut link = up_at(ms(10));
        for sent_us in [u64::MAX, i64::MAX as u64, i64::MAX as u64 + 1, 0] {
            let report = Report { sent_us, echoed_us: 10_000, ..report(2, 1) };
            link.handle_report(ms(10), &report);
            let offset = sent_us.saturating_sub(10_000).min(i64::MAX as u64) as i64;
            let expected = if sent_us == 0 { -10_000 } else { offset };
            assert_eq!(link.stats().clock_offset_us, expected, "{sent_us}");
        }
    }

    #[test]
    fn a_link_that_carries_much_reports_more_often() {
        let mut reports = [0, 0];
        for (count, (every, frames)) in reports.iter_mut().zip([(2, 1), (1, 20)]) {
            let mut link = up_at(ms(0));
            for at in 0..1_000 {
                if at % every == 0 {
                    link.sent(ms(at), frames, true);
                }
                *count += u32::from(link.poll_report(ms(at)).is_some());
            }
        }
        assert_eq!(reports, [10, 50]);
    }

    #[test]
    fn reports_without_progress_do_not_keep_a_one_way_link_up() {
        let mut link = up_at(ms(0));
        for at in 1..600 {
            link.sent(ms(at), 1, true);
            assert_eq!(link.handle_report(ms(at), &report(1, 0)), None);
            if link.handle_timeout(ms(at)).is_some() {
                assert!(at >= 500);
                return;
            }
        }
        panic!("a link that carries nothing our way is still up");
    }

    #[test]
    fn an_idle_link_is_not_declared_dead_and_sends_only_keepalives() {
        let mut link = up_at(ms(0));
        link.config.keepalive = Some(Duration::from_secs(20));
        let mut reports = 0;
        for at in 1..19_000 {
            assert_eq!(link.handle_timeout(ms(at)), None);
            if link.poll_report(ms(at)).is_some() {
                link.sent(ms(at), 1, false);
                reports += 1;
            }
        }
        assert!((5..=12).contains(&reports), "{reports} reports from an idle link");
        assert!(link.poll_keepalive(ms(25_000)));
        assert!(!link.poll_keepalive(ms(25_000)));
    }

    #[test]
    fn a_link_that_was_down_comes_back_with_the_first_progress() {
        let mut link = up_at(ms(0));
        link.sent(ms(1), 1, true);
        assert_eq!(link.handle_timeout(ms(700)), Some(Transition::Down));
        assert!(link.poll_report(ms(1_300)).is_some());
        assert_eq!(link.handle_report(ms(1_400), &report(2, 0)), Some(Transition::Up));
    }

    #[test]
    fn without_a_session_only_a_neighbour_that_we_call_keeps_us_busy() {
        for we_call in [false, true] {
            let mut link = up_at(ms(0));
            link.config.keepalive = Some(Duration::from_secs(10));
            link.sent(ms(50), 1, true);
            assert_eq!(link.session_lost(ms(100), we_call), Some(Transition::Down));
            let due = link.poll_timeout().map(|(at, _)| at);
            assert_eq!(due, we_call.then(|| ms(100) + RECONNECT_AFTER));
            link.session_established(ms(9_000));
            assert_eq!(link.poll_timeout().map(|(at, _)| at), Some(ms(9_000)));
        }
    }

    #[test]
    fn loss_round_trip_and_clocks_come_from_the_reports() {
        let mut link = up_at(ms(0));
        for round in 1..40u64 {
            let now = ms(1_000 + round * 100);
            let there_us = now.as_micros() + 5_000_000 - 2_000;
            link.handle_report(
                now,
                &Report {
                    received: 1 + round * 90,
                    highest: round as u32 * 100,
                    sent_us: there_us,
                    echoed_us: now.as_micros() - 10_000,
                    hold_us: 6_000,
                    ..Report::default()
                },
            );
        }
        let stats = link.stats();
        assert!((stats.loss - 0.1).abs() < 0.01, "loss {}", stats.loss);
        assert_eq!(stats.rtt, Duration::from_millis(4));
        assert!((stats.clock_offset_us - 5_000_000).abs() < 10, "{}", stats.clock_offset_us);
    }
}
