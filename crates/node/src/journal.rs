//! What the log says of a running node, so that its operator sees what begins and ends: one line
//! each, without names or addresses, and never more than a few in a minute.

use std::collections::BTreeMap;
use std::time::Duration;

use shoal_wire::{DropReason, Time};

use crate::hints::hint;

/// How often it is looked whether there is something to say.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Lines about links in one minute.
const LINES_MAX: u32 = 20;
const MINUTE: Duration = Duration::from_secs(60);
/// A thing that goes on is said again after this.
const AGAIN: Duration = Duration::from_secs(600);
/// So long a neighbour may take to answer before it is said.
const PATIENCE: Duration = Duration::from_secs(30);
/// Drops that are mistakes of somebody who sets up a node: each is said when it begins.
const MISTAKES: [DropReason; 5] = [
    DropReason::BadHandshake,
    DropReason::BadVersion,
    DropReason::UnknownPeer,
    DropReason::WrongClock,
    DropReason::BadRoute,
];

/// What was said, and when.
#[derive(Debug, Default)]
pub struct Journal {
    /// Keys of the configuration that changed and wait for a restart, as the last reload found.
    pub waiting: Vec<String>,
    look_at: Time,
    /// Lines about links since `minute` began, and those that were left out.
    minute: Time,
    lines: u32,
    left_out: u32,
    /// Drops that were spoken of, and when they may be again.
    drops: BTreeMap<DropReason, (u64, Time)>,
    /// Since when neighbours are called in vain.
    in_vain: Option<Time>,
    /// When things that go on may be said again, by what they are.
    again: BTreeMap<&'static str, Time>,
}

impl Journal {
    /// A line about a link that came up or went, if it may be written.
    /// `counts` are the links that are up, and all.
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
            n => format!("; {n} such lines were left out before"),
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

    /// Whether it is time for [`Journal::drops`] and [`Journal::links`].
    pub fn is_due(&mut self, now: Time) -> bool {
        let due = self.look_at <= now;
        if due {
            self.look_at = now + LOOK_EVERY;
        }
        due
    }

    /// Lines about drops that began, or that went on since they were spoken of.
    pub fn drops(
        &mut self,
        now: Time,
        counted: impl Iterator<Item = (DropReason, u64)>,
    ) -> Vec<String> {
        let mut lines = Vec::new();
        for (reason, n) in counted.filter(|(reason, _)| MISTAKES.contains(reason)) {
            let (said, again) = self.drops.entry(reason).or_default();
            if n <= *said || now < *again {
                continue;
            }
            let cause = hint(reason).map_or(String::new(), |hint| format!(" ({hint})"));
            lines.push(format!("dropped as {}: {}{cause}", reason.label(), n - *said));
            (*said, *again) = (n, now + AGAIN);
        }
        lines
    }

    /// A line about neighbours that are called and don't answer; `calling` of them.
    pub fn calls(&mut self, now: Time, calling: usize) -> Option<String> {
        if calling == 0 {
            self.in_vain = None;
            self.again.remove("calls");
            return None;
        }
        let since = *self.in_vain.get_or_insert(now);
        (now >= since + PATIENCE && self.may_say(now, "calls")).then(|| {
            format!(
                "{calling} of the neighbours that are called do not answer; is there another \
                 network secret, or is this node's key not in their list? See `shoal peers`"
            )
        })
    }

    /// Whether a thing that goes on is to be said now.
    pub fn may_say(&mut self, now: Time, what: &'static str) -> bool {
        let again = self.again.entry(what).or_default();
        let may = *again <= now;
        if may {
            *again = now + AGAIN;
        }
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Time {
        Time::from_millis(1_000 * second)
    }

    #[test]
    fn links_are_told_a_few_times_a_minute() {
        let mut journal = Journal::default();
        let line = journal.link(at(1), "came up", || (3, 4));
        assert_eq!(line.as_deref(), Some("a link came up (3 of 4 up)"));
        let lines = (0..1_000).filter_map(|_| journal.link(at(2), "came up", || (3, 4))).count();
        assert_eq!(lines, LINES_MAX as usize - 1);
        let line = journal.link(at(62), "went silent", || (2, 4)).unwrap();
        assert_eq!(line, "a link went silent (2 of 4 up; 981 such lines were left out before)");
    }

    #[test]
    fn a_mistake_is_said_when_it_begins_and_seldom_again() {
        let mut journal = Journal::default();
        let count = |n| [(DropReason::BadHandshake, n), (DropReason::QueueFull, 99)].into_iter();
        assert!(journal.drops(at(0), count(0)).is_empty());
        let said = journal.drops(at(5), count(2));
        assert_eq!(said.len(), 1);
        assert!(said[0].starts_with("dropped as bad_handshake: 2 (another network's"), "{said:?}");
        let lines = (10..605).filter(|s| !journal.drops(at(*s), count(*s)).is_empty()).count();
        assert_eq!(lines, 0);
        assert_eq!(journal.drops(at(605), count(700)).len(), 1);
        assert!(journal.drops(at(2_000), count(700)).is_empty(), "it did not go on");
    }

    #[test]
    fn calls_in_vain_are_said_after_a_while() {
        let mut journal = Journal::default();
        assert_eq!(journal.calls(at(0), 1), None);
        assert_eq!(journal.calls(at(29), 1), None);
        assert!(journal.calls(at(30), 1).unwrap().contains("do not answer"));
        assert_eq!(journal.calls(at(31), 1), None);
        assert_eq!(journal.calls(at(40), 0), None);
        assert_eq!(journal.calls(at(41), 2), None);
        assert!(journal.calls(at(71), 2).is_some());
    }
}
