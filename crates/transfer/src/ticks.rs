//! Clocks in ticks of 4 us, and stamps: the low 24 bits of a tick count, which travel.

use shoal_wire::Time;
use shoal_wire::transfer::SenderClock;

/// Nanoseconds in one tick.
pub(crate) const TICK_NS: u64 = 4_000;

/// `now` in ticks.
pub(crate) fn ticks(now: Time) -> u64 {
    now.0 / TICK_NS
}

/// The bits of a tick count that travel.
pub(crate) fn stamp(ticks: u64) -> SenderClock {
    SenderClock::new((ticks & u64::from(SenderClock::MASK)) as u32)
}

/// Latest tick count at or before `now` with these bits: right for stamps younger than 67 s.
pub(crate) fn unwrap_past(now: u64, stamp: SenderClock) -> u64 {
    let back = self::stamp(now).get().wrapping_sub(stamp.get()) & SenderClock::MASK;
    now.saturating_sub(u64::from(back))
}

/// Unwraps stamps that may go back as well as forward, to nanoseconds from an arbitrary origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StampUnwrapper {
    last: SenderClock,
    ticks: i64,
}

impl StampUnwrapper {
    pub(crate) fn read(&mut self, stamp: SenderClock) -> i64 {
        self.ticks += i64::from(stamp.after(self.last));
        self.last = stamp;
        self.ticks * TICK_NS as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unwraps_across_the_wrap() {
        let now = 5 * (1 << 24) + 10;
        assert_eq!(unwrap_past(now, SenderClock::new(7)), now - 3);
        assert_eq!(unwrap_past(now, SenderClock::new(SenderClock::MASK)), now - 11);
        let mut unwrap = StampUnwrapper::default();
        let start = unwrap.read(SenderClock::new(0xff_fff0));
        assert_eq!(unwrap.read(SenderClock::new(0x10)) - start, 0x20 * TICK_NS as i64);
        assert_eq!(unwrap.read(SenderClock::new(0xff_fff0)), start);
    }
}
