//! Detects whether the path to a neighbour carries full frames, in the manner of RFC 8899. Two
//! sizes are distinguished: full and medium (docs/design/wire/session.md).
//!
//! ```text
//!           no full frame arrives, a report of ours does      8 times, 700 ms
//! wide  <-----------------------------------------> doubt -----------------------> narrow
//!   ^            a full frame arrives                                                |
//!   +------------------------- a probe arrives --------------------------------------+
//! ```
//!
//! Each report of a neighbour counts the full frames that arrived, and echoes the time of our
//! newest report. Suppose that a report echoes a report of ours sent after a full frame, but counts
//! no new full frame. Then a short frame passed and a full one did not: a sign of a narrow path.
//!
//! In doubt, a probe leaves ahead of each report of ours. The probe is a full frame, so each sign
//! stands for a different lost frame. Loss that is independent of length also takes reports and so
//! gives no sign.
//!
//! A narrow path gets a probe from time to time while it carries traffic. An idle path gets none.

use core::time::Duration;

use shoal_wire::{Jitter, LaneReport, Time};

/// Number of signs in a row that make a path narrow. At 20% loss, probes alone give eight in a row
/// in one of 390,000 doubts.
const SIGNS: u32 = 8;
/// Minimum duration of a doubt. A queue that is full for a moment may drop full frames only.
const DOUBT: Duration = Duration::from_millis(700);
/// Delay of the first probe of a path that became narrow. It doubles with each probe.
const PROBE_FIRST: Duration = Duration::from_millis(500);
/// Upper bound of that delay. It allows a few probes per minute.
const PROBE_LAST: Duration = Duration::from_secs(12);
/// A path that becomes narrow again within this time keeps its last probe delay.
const AGAIN: Duration = Duration::from_secs(60);

/// Signs that a path is narrow.
#[derive(Clone, Copy, Debug)]
struct NarrowSuspicion {
    since: Time,
    signs: u32,
}

/// Detects whether full frames may be sent to a neighbour.
#[derive(Debug)]
pub struct WidthDetector {
    /// True if the configuration says that the path is narrow.
    fixed: bool,
    narrow: bool,
    /// Time and count of full frames in the newest report. None before the session's first report.
    newest: Option<(u64, u64)>,
    /// Time of the first full frame that left since reports last counted a new one.
    unseen: Option<Time>,
    /// The newest echoed time that counted as a sign.
    echoed_us: u64,
    doubt: Option<NarrowSuspicion>,
    jitter: Jitter,
    /// When a narrow path gets its next probe, and the delay before that probe.
    probe_at: Time,
    probe_gap: Duration,
    /// True if there was traffic since the last probe.
    flows: bool,
    widened: Option<Time>,
}

impl WidthDetector {
    /// A wide path. `seed` seeds the random times of probes.
    pub fn new(seed: u64) -> WidthDetector {
        WidthDetector {
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

    /// True if full frames must be split into parts.
    pub fn is_narrow(&self) -> bool {
        self.narrow || self.fixed
    }

    /// True if a probe must leave ahead of each report.
    pub fn is_in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// Fixes the path as narrow if `narrow`, or lets reports decide.
    pub fn fix(&mut self, narrow: bool) {
        self.fixed = narrow;
        self.doubt = None;
    }

    /// Resets for an agreed session. `narrow` is true if its handshake went in parts.
    pub fn session_established(&mut self, now: Time, narrow: bool) {
        (self.newest, self.unseen, self.doubt, self.echoed_us) = (None, None, None, 0);
        match narrow {
            true => self.become_narrow(now),
            false => self.narrow = false,
        }
    }

    /// Ends a doubt, because the link is down or a probe could not leave.
    pub fn end_doubt(&mut self) {
        (self.unseen, self.doubt) = (None, None);
    }

    /// Notes that the network device takes no full frames.
    pub fn refused(&mut self, now: Time) {
        self.become_narrow(now);
    }

    /// Notes that frames left, `full` of them full ones. `traffic` is false if all were reports or
    /// keepalives.
    pub fn sent(&mut self, now: Time, full: u64, traffic: bool) {
        if full > 0 && !self.is_narrow() {
            self.unseen.get_or_insert(now);
        }
        self.flows |= traffic;
    }

    /// Handles a report of the neighbour. Returns true if the path became wide or narrow.
    pub fn handle_report(&mut self, now: Time, report: &LaneReport) -> bool {
        // A report older than the newest one is ignored.
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
        let doubt = self.doubt.get_or_insert(NarrowSuspicion { since: now, signs: 0 });
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

    /// True if a narrow path must get a probe now.
    pub fn wants_probe(&self, now: Time) -> bool {
        self.poll_timeout().is_some_and(|at| at <= now)
    }

    /// Notes that a probe left for a narrow path, or could not leave.
    pub fn probed(&mut self, now: Time) {
        self.probe_gap = (self.probe_gap * 2).min(PROBE_LAST);
        self.probe_at = now + self.jitter.around(self.probe_gap);
        self.flows = false;
    }

    /// Time at which [`Self::wants_probe`] becomes true.
    pub fn poll_timeout(&self) -> Option<Time> {
        (self.narrow && !self.fixed && self.flows).then_some(self.probe_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_millis(10_000);

    /// One end's width on a simulated path: both ends report every 100 ms.
    struct WidthRig {
        width: WidthDetector,
        now: Time,
        /// Time of our newest report that arrived, and number of full frames that arrived.
        echoed: Time,
        full: u64,
    }

    impl WidthRig {
        fn new() -> WidthRig {
            let mut width = WidthDetector::new(1);
            width.session_established(START, false);
            WidthRig { width, now: START, echoed: START, full: 0 }
        }

        /// Simulates one period: a probe if due, our report, then the neighbour's. Returns true if
        /// the path changed.
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
            let report =
                LaneReport { sent_us, echoed_us, full: self.full, ..LaneReport::default() };
            self.width.handle_report(self.now, &report)
        }

        fn data(&mut self, frames: u64, pass: u64) {
            self.width.sent(self.now, frames, true);
            self.full += pass;
        }
    }

    #[test]
    fn eight_signs_make_a_path_narrow_and_one_probe_wide_again() {
        let mut pair = WidthRig::new();
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
    fn loss_of_reports_too_is_no_sign_of_a_narrow_path() {
        let mut pair = WidthRig::new();
        pair.round(true, true);
        pair.data(1, 0);
        for _ in 0..100 {
            assert!(!pair.round(false, false));
        }
        assert!(!pair.width.is_in_doubt());
        // Seven signs, followed by a full frame that arrives.
        for _ in 0..8 {
            assert!(!pair.round(false, true));
        }
        assert!(pair.width.is_in_doubt());
        assert!(!pair.round(true, true) && !pair.width.is_in_doubt());
    }

    #[test]
    fn a_report_that_was_overtaken_is_no_sign_and_proves_nothing() {
        let mut pair = WidthRig::new();
        pair.data(3, 3);
        pair.round(true, true);
        pair.round(true, true);
        pair.data(1, 0);
        pair.round(false, true);
        let doubt = pair.width.is_in_doubt();
        let old = LaneReport { sent_us: 5, full: 1, ..LaneReport::default() };
        assert!(!pair.width.handle_report(pair.now, &old));
        assert!(doubt && !pair.round(false, true) && pair.width.is_in_doubt());
    }

    #[test]
    fn a_path_that_its_owner_fixes_stays_narrow_and_gets_no_probe() {
        let mut pair = WidthRig::new();
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
        let mut pair = WidthRig::new();
        let mut probes = 0;
        // A path that passes a full frame now and then, and loses the data after each.
        for round in 0..6_000 {
            pair.data(u64::from(!pair.width.is_narrow()), 0);
            probes += u64::from(pair.width.wants_probe(pair.now));
            pair.round(round % 7 == 0, true);
        }
        assert!(probes < 120, "{probes} probes in ten minutes");
    }

    #[test]
    fn an_idle_path_gets_no_probe() {
        let mut pair = WidthRig::new();
        pair.width.session_established(pair.now, true);
        let mut probes = 0;
        for _ in 0..6_000 {
            probes += u32::from(pair.width.wants_probe(pair.now));
            // The probe leaves and counts as traffic before `probed` is called.
            pair.round(false, true);
        }
        assert!(probes <= 1, "{probes} probes");
    }
}
