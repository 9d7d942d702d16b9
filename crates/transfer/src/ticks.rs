//! Clocks in ticks of 4 us, and stamps: their low 24 bits, which travel.

use shoal_wire::Time;
use shoal_wire::transfer::Stamp;

/// Nanoseconds in one unit.
pub(crate) const TICK_NS: u64 = 4_000;

/// `now` in units of 4 us.
pub(crate) fn ticks(now: Time) -> u64 {
    now.0 / TICK_NS
}

/// The bits that travel.
pub(crate) fn stamp(ticks: u64) -> Stamp {
    Stamp::new((ticks & u64::from(Stamp::MASK)) as u32)
}

/// The latest tick count at or before `now` with these bits: right for stamps younger than 67 s.
pub(crate) fn unwrap_past(now: u64, stamp: Stamp) -> u64 {
    let back = self::stamp(now).get().wrapping_sub(stamp.get()) & Stamp::MASK;
    now.saturating_sub(u64::from(back))
}

/// Unwraps stamps that may go back as well as forth, to nanoseconds from an arbitrary origin.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unwrap {
    last: Stamp,
    ticks: i64,
}

impl Unwrap {
    pub(crate) fn read(&mut self, stamp: Stamp) -> i64 {
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
        assert_eq!(unwrap_past(now, Stamp::new(7)), now - 3);
        assert_eq!(unwrap_past(now, Stamp::new(Stamp::MASK)), now - 11);
        let mut unwrap = Unwrap::default();
        let start = unwrap.read(Stamp::new(0xff_fff0));
        assert_eq!(unwrap.read(Stamp::new(0x10)) - start, 0x20 * TICK_NS as i64);
        assert_eq!(unwrap.read(Stamp::new(0xff_fff0)), start);
    }
}
