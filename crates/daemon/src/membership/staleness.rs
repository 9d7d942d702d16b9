//! Warnings about the age of the authority's list, and their times.

use std::time::Duration;

use shoal_directory::span;
use shoal_wire::Time;

/// Age of a list, relative to its greatest allowed age.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListAge {
    /// Less than half of the greatest age.
    Young,
    /// Half of the greatest age, or more.
    Old,
    /// The list does not count.
    Stale,
}

impl ListAge {
    /// The age of a list that was signed `age_s` seconds ago and counts for `max_s` seconds.
    pub fn of(age_s: u64, max_s: u64) -> ListAge {
        match age_s {
            age if age >= max_s => ListAge::Stale,
            age if age >= max_s.div_ceil(2) => ListAge::Old,
            _ => ListAge::Young,
        }
    }
}

/// Warning about a list's age; none while it is young.
pub fn words(age_s: u64, max_s: u64) -> Option<String> {
    let signed = format!("was signed {} ago", span(age_s));
    match ListAge::of(age_s, max_s) {
        ListAge::Young => None,
        ListAge::Old => Some(format!(
            "the authority's list {signed}: in {} it is too old, and then nobody is a member; sign \
             it again with `shoal authority renew --dir DIR` and copy it to one node",
            span(max_s - age_s)
        )),
        ListAge::Stale => Some(format!(
            "the authority's list is too old: it {signed} and counts for {}. Nobody is a member, \
             and only newer lists pass: sign it again with `shoal authority renew --dir DIR` and \
             copy it to any node",
            span(max_s)
        )),
    }
}

/// Warning about a wall clock that is `seconds` behind the time by which lists and memberships end.
/// None up to `may_s`, since clocks differ.
pub fn behind(seconds: u64, may_s: u64) -> Option<String> {
    (seconds > may_s).then(|| {
        format!(
            "this machine's clock is {} behind the time by which lists and memberships end here: \
             it was set back, or was ahead for an hour or longer. If it is right now, restart the \
             node",
            span(seconds)
        )
    })
}

/// Times at which a list's age is logged: at each change, then every `max_s` / 8 seconds.
#[derive(Debug)]
pub struct Reminder {
    said: ListAge,
    again: Time,
}

impl Default for Reminder {
    fn default() -> Reminder {
        Reminder { said: ListAge::Young, again: Time::ZERO }
    }
}

impl Reminder {
    /// True if the age must be logged now. The list counts for `max_s` seconds.
    pub fn is_due(&mut self, now: Time, age: ListAge, max_s: u64) -> bool {
        let changed = std::mem::replace(&mut self.said, age) != age;
        if age == ListAge::Young || (!changed && now < self.again) {
            return false;
        }
        let gap = Duration::from_secs(max_s / 8);
        self.again = now + gap.clamp(Duration::from_secs(60), Duration::from_secs(86_400));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEEK_S: u64 = 604_800;

    #[test]
    fn a_list_has_words_from_half_its_greatest_age_on() {
        assert_eq!(words(WEEK_S / 2 - 1, WEEK_S), None);
        let said = words(WEEK_S / 2, WEEK_S).unwrap();
        assert!(said.contains("signed 3 d 12 h ago: in 3 d 12 h it is too old"), "{said}");
        let said = words(WEEK_S + 61, WEEK_S).unwrap();
        assert!(said.contains("is too old: it was signed 7 d ago and counts for 7 d"), "{said}");
    }

    #[test]
    fn a_clock_that_was_set_back_is_named_with_the_difference() {
        assert_eq!(behind(600, 600), None);
        let said = behind(2 * 86_400 + 3_661, 600).unwrap();
        assert!(said.contains("clock is 2 d 1 h behind the time by which lists"), "{said}");
    }

    #[test]
    fn a_reminder_is_due_at_once_and_then_once_in_a_while() {
        let (mut reminder, at) = (Reminder::default(), |s: u64| Time::from_millis(s * 1_000));
        let mut said = Vec::new();
        for second in (0..2 * WEEK_S).step_by(2) {
            let age = ListAge::of(second, WEEK_S);
            if reminder.is_due(at(second), age, WEEK_S) {
                said.push((second, age));
            }
        }
        assert_eq!(said[0], (WEEK_S / 2, ListAge::Old));
        assert_eq!(said.iter().find(|s| s.1 == ListAge::Stale).unwrap().0, WEEK_S);
        assert!((8..16).contains(&said.len()), "{said:?}");
        assert!(!reminder.is_due(at(2 * WEEK_S), ListAge::Young, WEEK_S), "a newer one came");
    }
}
