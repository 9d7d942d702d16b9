//! Lines of the log about a running node. Each event is one line, without names or addresses, and
//! there are only a few in a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_relay::CoverView;
use shoal_wire::{DropReason, LinkId, Time};

use crate::control::cover::CoverMonitor;
use crate::control::hints::hint;

/// Interval at which the journal looks for something to log.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Most lines about links in one minute.
const LINES_MAX: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);
/// Time after which a lasting fault is logged again.
const AGAIN: Duration = Duration::from_secs(600);
/// Interval of warnings about small anonymity sets, which are no fault of this node.
const HOUR: Duration = Duration::from_secs(3_600);
/// Drops that last longer than this show a mistake. Frames that were under way at a restart or a
/// change have arrived by then.
const GOES_ON: Duration = Duration::from_secs(10);
/// Time after its last drop for which a reason counts as recent.
const RECENT: Duration = Duration::from_secs(300);
/// Longest pause between two drops of a reason that count as one lasting fault.
const PAUSE_MAX: Duration = Duration::from_secs(120);
/// Time for which calls to neighbours may stay unanswered before a line is logged.
const PATIENCE: Duration = Duration::from_secs(30);
/// Reasons of drops that show a mistake in a node's setup if they last.
const MISTAKES: [DropReason; 5] = [
    DropReason::BadHandshake,
    DropReason::BadVersion,
    DropReason::UnknownPeer,
    DropReason::WrongClock,
    DropReason::BadRoute,
];

/// History of logged lines.
#[derive(Debug, Default)]
pub struct Journal {
    /// Keys of the configuration that changed and wait for a restart, by the last reload.
    pub waiting: Vec<String>,
    /// Last known state of covered links.
    pub cover: CoverMonitor,
    /// Number of circuits that loops showed to be faulty, as logged so far.
    pub found: u64,
    look_at: Time,
    /// Lines about links since `minute` began, and lines that were left out.
    minute: Time,
    lines: u32,
    left_out: u32,
    drops: BTreeMap<DropReason, DropHistory>,
    /// Time since which neighbours are called in vain.
    in_vain: Option<Time>,
    /// Time at which a lasting fault may be logged again, by its name.
    again: BTreeMap<&'static str, Time>,
}

/// State of the drops of one reason.
#[derive(Debug, Default)]
struct DropHistory {
    /// Counts at the last look and at the last logged line.
    seen: u64,
    said: u64,
    /// First and last look that found new drops, without a pause of `PAUSE_MAX` in between.
    first: Option<Time>,
    last: Time,
    /// Time at which a line about them may be logged again.
    again: Time,
}

impl DropHistory {
    /// Takes the count `n`. Returns the number of drops for a line, if one is due.
    fn look(&mut self, now: Time, n: u64) -> Option<u64> {
        if n <= self.seen {
            return None;
        }
        self.seen = n;
        if now >= self.last + PAUSE_MAX {
            self.first = None;
        }
        self.last = now;
        let first = *self.first.get_or_insert(now);
        if now < first + GOES_ON || now < self.again {
            return None;
        }
        self.again = now + AGAIN;
        Some(n - std::mem::replace(&mut self.said, n))
    }
}

impl Journal {
    /// Line about a link that came up or went down, if one may be written. `counts` returns the
    /// number of links that are up, and of all links.
    pub fn link(
        &mut self,
        now: Time,
        what: &str,
        counts: impl FnOnce() -> (usize, usize),
    ) -> Option<String> {
        let left_out = self.new_minute(now);
        if self.lines >= LINES_MAX {
            self.left_out += 1;
            return None;
        }
        self.lines += 1;
        let more = match left_out {
            0 => String::new(),
            n => format!("; {n} such lines were left out"),
        };
        let (up, all) = counts();
        Some(format!("a link {what} ({up} of {all} up{more})"))
    }

    fn new_minute(&mut self, now: Time) -> u32 {
        if self.minute != Time::ZERO && now < self.minute + MINUTE {
            return 0;
        }
        (self.minute, self.lines) = (now, 0);
        std::mem::take(&mut self.left_out)
    }

    /// True if [`Journal::drops`] and [`Journal::calls`] are due.
    pub fn is_due(&mut self, now: Time) -> bool {
        let due = self.look_at <= now;
        if due {
            self.look_at = now + LOOK_EVERY;
        }
        due
    }

    /// Lines about lasting drops: the first when they are noticed, later ones `AGAIN` apart.
    pub fn drops(
        &mut self,
        now: Time,
        counted: impl Iterator<Item = (DropReason, u64)>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for (reason, n) in counted {
            let more = self.drops.entry(reason).or_default().look(now, n);
            let Some(more) = more.filter(|_| MISTAKES.contains(&reason)) else { continue };
            let cause = hint(reason).map_or(String::new(), |hint| format!(" ({hint})"));
            lines.push(format!("dropped as {}: {more}{cause}", reason.label()));
        }
        lines
    }

    /// True if the last drop for `reason` was within `RECENT`; `n` is its count at `now`.
    pub fn is_recent(&self, now: Time, reason: DropReason, n: u64) -> bool {
        let Some(dropped) = self.drops.get(&reason) else { return n > 0 };
        n > dropped.seen || (n > 0 && now < dropped.last + RECENT)
    }

    /// Line about the `calling` neighbours that don't answer, if one is due.
    pub fn calls(&mut self, now: Time, calling: usize) -> Option<String> {
        if calling == 0 {
            self.in_vain = None;
            self.again.remove("calls");
            return None;
        }
        let since = *self.in_vain.get_or_insert(now);
        (now >= since + PATIENCE && self.may_say(now, "calls")).then(|| {
            format!(
                "{calling} of the called neighbours do not answer. Check that they run, and that \
                 no firewall blocks UDP to their ports; `shoal peers` shows the ports. Else the \
                 network secret differs, or their list lacks this node's key. After a long \
                 absence, `shoal network fetch` gets the newest secret and list"
            )
        })
    }

    /// True if neighbours have been called in vain for `PATIENCE`.
    pub fn is_in_vain(&self, now: Time) -> bool {
        self.in_vain.is_some_and(|since| now >= since + PATIENCE)
    }

    /// True if a line about the lasting fault `what` may be logged at `now`.
    pub fn may_say(&mut self, now: Time, what: &'static str) -> bool {
        self.may_say_every(AGAIN, now, what)
    }

    /// Lines about covered links: changes, and once in an hour the `small` anonymity sets.
    pub fn covered(
        &mut self,
        now: Time,
        links: impl Iterator<Item = (LinkId, CoverView)>,
        small: Vec<String>,
    ) -> Vec<String> {
        let mut lines = self.cover.look(links);
        if !small.is_empty() && self.may_say_every(HOUR, now, "cover") {
            lines.extend(small);
        }
        lines
    }

    fn may_say_every(&mut self, wait: Duration, now: Time, what: &'static str) -> bool {
        let again = self.again.entry(what).or_default();
        let may = *again <= now;
        if may {
            *again = now + wait;
        }
        may
    }
}

/// Command that shows the faults that a line of the log leaves out.
pub const STATUS: &str = "`shoal status`";
/// Command that shows faults of the node's files.
pub const CHECK: &str = "`shoal check`";
/// Place of faults that no command shows.
pub const DEBUG: &str = "the log at level debug";

/// Line for the log about faults whose words may hold names, addresses or keys. The words are
/// logged at level debug only; the line names the place `says` that has them.
pub fn unnamed(what: &str, says: &str, faults: &[String]) -> String {
    for fault in faults {
        tracing::debug!("{fault}");
    }
    format!("{what}: {says} says why")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time::from_millis(1_000 * second)
    }

    #[test]
    fn lines_about_links_are_limited_per_minute() {
        let mut journal = Journal::default();
        let line = journal.link(at(1), "came up", || (3, 4));
        assert_eq!(line.as_deref(), Some("a link came up (3 of 4 up)"));
        let lines = (0..1_000).filter_map(|_| journal.link(at(2), "came up", || (3, 4))).count();
        assert_eq!(lines, LINES_MAX as usize - 1);
        let line = journal.link(at(62), "went silent", || (2, 4)).unwrap();
        assert_eq!(line, "a link went silent (2 of 4 up; 981 such lines were left out)");
    }

    #[test]
    fn drops_that_last_are_logged_and_seldom_again() {
        let mut journal = Journal::default();
        let count = |n| [(DropReason::BadHandshake, n), (DropReason::QueueFull, 99)].into_iter();
        assert!(journal.drops(at(0), count(0)).is_empty());
        assert!(journal.drops(at(5), count(2)).is_empty(), "may end at once");
        assert!(journal.drops(at(10), count(2)).is_empty());
        let said = journal.drops(at(15), count(3));
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("dropped as bad_handshake: 3 (another network's"), "{said:?}");
        let lines = (20..615).filter(|s| !journal.drops(at(*s), count(*s)).is_empty()).count();
        assert_eq!(lines, 0);
        assert_eq!(journal.drops(at(615), count(700)).len(), 1);
        assert!(journal.drops(at(2_000), count(700)).is_empty(), "did not last");
    }

    #[test]
    fn drops_after_a_restart_are_not_logged_and_hide_no_later_ones() {
        let mut journal = Journal::default();
        let count = |n| [(DropReason::BadHandshake, n)].into_iter();
        // Frames under keys from before the restart come for a second. A look falls between them.
        assert!(journal.drops(at(5), count(900)).is_empty());
        assert!(journal.drops(at(10), count(1_396)).is_empty());
        let quiet = (15..300).step_by(5).map(|s| journal.drops(at(s), count(1_396)).len());
        assert_eq!(quiet.sum::<usize>(), 0);
        // A neighbour with the wrong secret calls again and again.
        assert!(journal.drops(at(300), count(1_397)).is_empty());
        assert!(journal.drops(at(305), count(1_399)).is_empty());
        assert_eq!(journal.drops(at(315), count(1_400)).len(), 1);
    }

    #[test]
    fn drops_are_recent_for_some_minutes() {
        let mut journal = Journal::default();
        let reason = DropReason::StaleList;
        assert!(!journal.is_recent(at(1), reason, 0) && journal.is_recent(at(1), reason, 1));
        let look = |journal: &mut Journal, second, n| {
            assert!(journal.drops(at(second), [(reason, n)].into_iter()).is_empty());
        };
        look(&mut journal, 5, 0);
        assert!(!journal.is_recent(at(6), reason, 0), "there was none");
        assert!(journal.is_recent(at(6), reason, 3), "since the last look");
        look(&mut journal, 10, 3);
        assert!(journal.is_recent(at(309), reason, 3));
        assert!(!journal.is_recent(at(310), reason, 3), "cause has ended");
        assert!(journal.is_recent(at(1_000), reason, 4));
    }

    #[test]
    fn small_sets_of_hosts_are_logged_at_the_start_and_once_in_an_hour() {
        let mut journal = Journal::default();
        let small = |n: usize| vec!["few hosts".to_owned(); n];
        let mut said = |second, n| journal.covered(at(second), std::iter::empty(), small(n)).len();
        assert_eq!((said(0, 0), said(5, 2), said(10, 2)), (0, 2, 0));
        assert_eq!((said(3_604, 2), said(3_605, 1)), (0, 1));
        assert_eq!(said(9_000, 0), 0, "there are enough");
    }

    #[test]
    fn unanswered_calls_are_logged_after_a_while() {
        let mut journal = Journal::default();
        assert_eq!(journal.calls(at(0), 1), None);
        assert_eq!(journal.calls(at(29), 1), None);
        assert!(!journal.is_in_vain(at(29)) && journal.is_in_vain(at(30)));
        let said = journal.calls(at(30), 1).unwrap();
        let [first, second] = ["firewall", "secret"].map(|word| said.find(word).unwrap());
        assert!(said.contains("do not answer") && first < second, "{said}");
        assert_eq!(journal.calls(at(31), 1), None);
        assert_eq!(journal.calls(at(40), 0), None);
        assert!(!journal.is_in_vain(at(40)));
        assert_eq!(journal.calls(at(41), 2), None);
        assert!(journal.calls(at(71), 2).is_some());
    }
}
