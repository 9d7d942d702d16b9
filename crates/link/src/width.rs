//! Whether the path to a neighbour carries full frames, as RFC 8899 finds out what a path carries.
//! There are two sizes here: full, or medium (docs/wire.md section 3).
//!
//! ```text
//!           no full frame arrives, a report of ours does      8 times, 700 ms
//! wide  <-----------------------------------------> doubt -----------------------> narrow
//!   ^            a full frame arrives                                                |
//!   +------------------------- a probe arrives --------------------------------------+
//! ```
//!
//! Each report of a neighbour counts the full frames that arrived, and echoes the time of our
//! newest report. A report that echoes one which left after a full frame, and counts no new one, is
//! a sign of a narrow path: a short frame passed, a full one did not. In doubt a probe, which is a
//! full frame, leaves ahead of each report of ours, so that each such sign stands for another lost
//! frame. Loss that does not ask for the length takes reports, too, and gives no sign.
//!
//! A narrow path gets a probe from time to time while there is traffic. An idle path gets none.

use core::time::Duration;

use shoal_wire::{Jitter, Report, Time};

/// Signs in a row that make a path narrow. With a loss of one in five, probes alone give eight in
/// a row in one of 390,000 doubts.
const SIGNS: u32 = 8;
/// A doubt lasts at least so long: a queue that is full for a moment may take short frames only.
const DOUBT: Duration = Duration::from_millis(700);
/// When a path that has become narrow gets its first probe. The next one waits twice as long, ...
const PROBE_FIRST: Duration = Duration::from_millis(500);
/// ... and so on up to this: a few of them fall into a minute.
const PROBE_LAST: Duration = Duration::from_secs(12);
/// A path that gets narrow again so soon waits for probes as long as it did before.
const AGAIN: Duration = Duration::from_secs(60);

/// Signs that a path is narrow.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    since: Time,
    signs: u32,
}

/// Whether full frames may leave for a neighbour.
#[derive(Debug)]
pub struct Width {
    /// The owner says that the path is narrow.
    fixed: bool,
    narrow: bool,
    /// Time and count of full frames of the newest report; none before the session's first.
    newest: Option<(u64, u64)>,
    /// When a full frame left of which, and of those since, no report knows.
    unseen: Option<Time>,
    /// The newest time that a report echoed, if that counted.
    echoed_us: u64,
    doubt: Option<Doubt>,
    jitter: Jitter,
    /// When a narrow path gets its next probe, and how long the next one waits.
    probe_at: Time,
    probe_gap: Duration,
    /// There was traffic since the last probe.
    flows: bool,
    widened: Option<Time>,
}

impl Width {
    /// A wide path. `seed` seeds the spread of times between probes.
    pub fn new(seed: u64) -> Width {
        Width {
            fixed: false,
            narrow: false,
            newest: None,
            unseen: None,
            echoed_us: 0,
            doubt: None,
            jitter: Jitter::new(seed),
            probe_at: Time::ZERO,
            probe_gap: PROBE_FIRST,
            flows: false,
            widened: None,
        }
    }

    /// True if full frames must go in parts.
    pub fn is_narrow(&self) -> bool {
        self.narrow || self.fixed
    }

    /// True if a probe is to leave ahead of each report.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Fixes the path as narrow, as its owner says, or has reports find out.
    pub fn fix(&mut self, narrow: bool) {
        self.fixed = narrow;
        self.doubt = None;
    }

    /// A session was agreed, whose handshake went in parts if `narrow`, and else in full frames.
    pub fn session_established(&mut self, now: Time, narrow: bool) {
        (self.newest, self.unseen, self.doubt, self.echoed_us) = (None, None, None, 0);
        match narrow {
            true => self.become_narrow(now),
            false => self.narrow = false,
        }
    }

    /// Ends a doubt: the link is down, or a probe could not leave.
    pub fn end_doubt(&mut self) {
        (self.unseen, self.doubt) = (None, None);
    }

    /// The device takes no full frames.
    pub fn refused(&mut self, now: Time) {
        self.become_narrow(now);
    }

    /// Frames left, so many of them full ones; `traffic` unless all were reports or keepalives.
    pub fn sent(&mut self, now: Time, full: u64, traffic: bool) {
        if full > 0 && !self.is_narrow() {
            self.unseen.get_or_insert(now);
        }
        self.flows |= traffic;
    }

    /// The neighbour reported. Says whether the path is another than before.
    pub fn handle_report(&mut self, now: Time, report: &Report) -> bool {
        // One that was overtaken by a newer one says nothing.
        let before = self.newest.filter(|(sent_us, _)| report.sent_us > *sent_us);
        if self.newest.is_some() && before.is_none() {
            return false;
        }
        self.newest = Some((report.sent_us, report.full));
        if before.is_some_and(|(_, full)| report.full > full) {
            (self.unseen, self.doubt) = (None, None);
            let widens = core::mem::replace(&mut self.narrow, false);
            self.widened = if widens { Some(now) } else { self.widened };
            return widens && !self.fixed;
        }
        let Some(unseen) = self.unseen.filter(|_| !self.is_narrow()) else { return false };
        if report.echoed_us <= self.echoed_us || report.echoed_us < unseen.as_micros() {
            return false;
        }
        self.echoed_us = report.echoed_us;
        let doubt = self.doubt.get_or_insert(Doubt { since: now, signs: 0 });
        doubt.signs += u32::from(report.echoed_us >= doubt.since.as_micros());
        if doubt.signs < SIGNS || now.since(doubt.since) < DOUBT {
            return false;
        }
        self.become_narrow(now);
        true
    }

    fn become_narrow(&mut self, now: Time) {
        (self.unseen, self.doubt) = (None, None);
        if core::mem::replace(&mut self.narrow, true) {
            return;
        }
        if self.widened.is_none_or(|at| now.since(at) >= AGAIN) {
            self.probe_gap = PROBE_FIRST;
        }
        self.probe_at = now + self.jitter.around(self.probe_gap);
        self.flows = true;
    }

    /// True if a narrow path is to get a probe now.
    pub fn wants_probe(&self, now: Time) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// A probe left for a narrow path, or could not.
    pub fn probed(&mut self, now: Time) {
        self.probe_gap = (self.probe_gap * 2).min(PROBE_LAST);
        self.probe_at = now + self.jitter.around(self.probe_gap);
        self.flows = false;
    }

    /// When [`Self::wants_probe`] becomes true.
    pub fn poll_timeout(&self) -> Option<Time> {
        (self.narrow && !self.fixed && self.flows).then_some(self.probe_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_millis(10_000);

    /// Both ends' reports, one each 100 ms, over a path that takes 20 ms each way.
    struct Pair {
        width: Width,
        now: Time,
        /// Our report that the neighbour has, and full frames that arrived there.
        echoed: Time,
        full: u64,
    }

    impl Pair {
        fn new() -> Pair {
            let mut width = Width::new(1);
            width.session_established(START, false);
            Pair { width, now: START, echoed: START, full: 0 }
        }

        /// One period: a probe if one is due, our report, and the neighbour's. Says whether the
        /// path has changed.
        fn round(&mut self, full_passes: bool, report_passes: bool) -> bool {
            let narrow = self.width.wants_probe(self.now);
            if narrow || self.width.is_in_doubt() {
                self.width.sent(self.now, 1, true);
                self.full += u64::from(full_passes);
            }
            if narrow {
                self.width.probed(self.now);
            }
            self.echoed = if report_passes { self.now } else { self.echoed };
            self.now = self.now + Duration::from_millis(100);
            let (sent_us, echoed_us) = (self.now.as_micros() + 7, self.echoed.as_micros());
            let report = Report { sent_us, echoed_us, full: self.full, ..Report::default() };
            self.width.handle_report(self.now, &report)
        }

        fn data(&mut self, frames: u64, pass: u64) {
            self.width.sent(self.now, frames, true);
            self.full += pass;
        }
    }

    #[test]
    fn eight_signs_make_a_path_narrow_and_one_probe_wide_again() {
        let mut pair = Pair::new();
        pair.round(true, true);
        pair.data(1, 0);
        let rounds = (0..100).find(|_| pair.round(false, true));
        assert_eq!(rounds, Some(8), "the doubt begins with the first round");
        assert!(pair.width.is_narrow() && !pair.width.is_in_doubt());
        for _ in 0..600 {
            pair.data(0, 0);
            assert!(!pair.round(false, true));
        }
        let rounds = (0..600).find(|_| {
            pair.data(0, 0);
            pair.round(true, true)
        });
        assert!(rounds.is_some_and(|rounds| rounds <= 150), "{rounds:?}");
        assert!(!pair.width.is_narrow());
    }

    #[test]
    fn whatever_takes_reports_too_gives_no_sign() {
        let mut pair = Pair::new();
        pair.round(true, true);
        pair.data(1, 0);
        for _ in 0..100 {
            assert!(!pair.round(false, false));
        }
        assert!(!pair.width.is_in_doubt());
        // Seven signs, and then a full frame.
        for _ in 0..8 {
            assert!(!pair.round(false, true));
        }
        assert!(pair.width.is_in_doubt());
        assert!(!pair.round(true, true) && !pair.width.is_in_doubt());
    }

    #[test]
    fn a_report_that_was_overtaken_is_no_sign_and_proves_nothing() {
        let mut pair = Pair::new();
        pair.data(3, 3);
        pair.round(true, true);
        pair.round(true, true);
        pair.data(1, 0);
        pair.round(false, true);
        let doubt = pair.width.is_in_doubt();
        let old = Report { sent_us: 5, full: 1, ..Report::default() };
        assert!(!pair.width.handle_report(pair.now, &old));
        assert!(doubt && !pair.round(false, true) && pair.width.is_in_doubt());
    }

    #[test]
    fn a_path_that_its_owner_fixes_stays_narrow_and_gets_no_probe() {
        let mut pair = Pair::new();
        pair.width.fix(true);
        pair.data(9, 9);
        for _ in 0..200 {
            pair.data(0, 1);
            assert!(!pair.round(true, true) && pair.width.is_narrow());
            assert_eq!(pair.width.poll_timeout(), None);
        }
        pair.width.fix(false);
        assert!(!pair.width.is_narrow());
    }

    #[test]
    fn a_path_that_becomes_narrow_again_and_again_gets_few_probes() {
        let mut pair = Pair::new();
        let mut probes = 0;
        // A path that passes a full frame now and then: after each, data is lost again.
        for round in 0..6_000 {
            pair.data(u64::from(!pair.width.is_narrow()), 0);
            probes += u64::from(pair.width.wants_probe(pair.now));
            pair.round(round % 7 == 0, true);
        }
        assert!(probes < 120, "{probes} probes in ten minutes");
    }

    #[test]
    fn an_idle_path_gets_no_probe() {
        let mut pair = Pair::new();
        pair.width.session_established(pair.now, true);
        let mut probes = 0;
        for _ in 0..6_000 {
            probes += u32::from(pair.width.wants_probe(pair.now));
            // A probe is traffic, and leaves before it is noted.
            pair.round(false, true);
        }
        assert!(probes <= 1, "{probes} probes");
    }
}
