//! Detection of floods at the door.

use shoal_wire::{DropReason, Time};

/// Failed knocks and visits per minute from which on the owner is warned. A machine that joins
/// causes a few; an attacker causes thousands.
const FLOOD: u64 = 600;
const MINUTE_US: u64 = 60_000_000;

/// Failed knocks and visits of the present minute and of the last one.
#[derive(Default)]
pub(super) struct FloodDetector {
    minute: u64,
    count: u64,
    before: u64,
}

fn minute(now: Time) -> u64 {
    now.as_micros() / MINUTE_US
}

impl FloodDetector {
    /// Counts a drop, if only somebody with a door secret can cause it.
    pub(super) fn note(&mut self, now: Time, reason: DropReason) {
        let counts = matches!(
            reason,
            DropReason::HandshakeBudget
                | DropReason::UnknownPeer
                | DropReason::NotAllowed
                | DropReason::TableFull
                | DropReason::ReplayedHandshake
                | DropReason::CookieRequired
        );
        if !counts {
            return;
        }
        self.before = self.last(now);
        if self.minute != minute(now) {
            (self.minute, self.count) = (minute(now), 0);
        }
        self.count += 1;
    }

    /// The count of the last minute.
    fn last(&self, now: Time) -> u64 {
        match minute(now).saturating_sub(self.minute) {
            0 => self.before,
            1 => self.count,
            _ => 0,
        }
    }

    /// The larger count of this minute and the last, if it is a flood.
    pub(super) fn flood(&self, now: Time) -> Option<u64> {
        let present = if self.minute == minute(now) { self.count } else { 0 };
        Some(present.max(self.last(now))).filter(|count| *count >= FLOOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_told_while_it_lasts_and_for_a_minute() {
        let mut pressure = FloodDetector::default();
        let at = Time::from_millis;
        (0..FLOOD - 1).for_each(|_| pressure.note(at(130_000), DropReason::UnknownPeer));
        pressure.note(at(130_000), DropReason::BadHandshake);
        assert_eq!(pressure.flood(at(130_000)), None, "strangers are no flood of knocks");
        pressure.note(at(140_000), DropReason::HandshakeBudget);
        assert_eq!(pressure.flood(at(140_000)), Some(FLOOD));
        pressure.note(at(181_000), DropReason::TableFull);
        assert_eq!(pressure.flood(at(190_000)), Some(FLOOD));
        assert_eq!(pressure.flood(at(241_000)), None);
        assert_eq!(pressure.flood(at(999_000)), None);
    }
}
