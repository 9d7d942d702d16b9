//! A lower bound of the time, robust against a wrong wall clock.
//!
//! ```text
//! list taken in --signed at-->\
//!                              floor, goes on with the time since boot --\
//! wall clock, an hour even --->/                                          later of both
//! wall clock ------------------------------------------------------------/
//! ```
//!
//! Setting the clock back must make nothing valid again. A clock that was far ahead by mistake must
//! not close the network for good once it is corrected. At the moment of the step the two cases
//! look alike. So a wall clock is trusted only after it ran evenly with the time since boot for
//! [`BELIEVED_AFTER`]. The time at which the authority signed its list is always trusted.
//!
//! Invariant: the floor never goes back, except in [`TrustedClock::take_in`].

use core::time::Duration;

use shoal_wire::Time;

/// Time for which a wall clock must run evenly to be trusted. Machines without a battery clock get
/// the time from the network within minutes of their start.
const BELIEVED_AFTER: Duration = Duration::from_secs(3_600);
/// Maximum drift against the time since boot during that time, in seconds: clock corrections are
/// smaller.
const STRAY_S: u64 = 10;

/// A moment, and the time of a clock then, in seconds since 1970.
type ClockReading = (Time, u64);

/// The time of that clock at `now`.
fn goes_on((then, unix_s): ClockReading, now: Time) -> u64 {
    unix_s.saturating_add(now.since(then).as_secs())
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct TrustedClock {
    floor: ClockReading,
    /// The moment since which the wall clock runs evenly.
    even: Option<ClockReading>,
}

impl TrustedClock {
    /// No time is known yet.
    pub(crate) const NEW: TrustedClock = TrustedClock { floor: (Time::ZERO, 0), even: None };

    /// The time to use if the wall clock shows `wall_s`.
    pub(crate) fn unix_s(&self, now: Time, wall_s: u64) -> u64 {
        wall_s.max(goes_on(self.floor, now))
    }

    /// Records the wall clock. Call this every few seconds.
    pub(crate) fn look(&mut self, now: Time, wall_s: u64) {
        let strays = |even: &ClockReading| goes_on(*even, now).abs_diff(wall_s) > STRAY_S;
        match self.even.filter(|even| !strays(even)) {
            None => self.even = Some((now, wall_s)),
            Some((began, _)) if now.since(began) >= BELIEVED_AFTER => self.raise(now, wall_s),
            Some(_) => {}
        }
    }

    /// Records the time of a list newer than all before, which counts for `counts_s` seconds.
    pub(crate) fn take_in(&mut self, now: Time, wall_s: u64, issued_s: u64, counts_s: u64) {
        if goes_on(self.floor, now) < issued_s.saturating_add(counts_s) {
            self.raise(now, issued_s);
        } else {
            // By the floor, this newest list was too old on arrival, and every later one would be.
            // The wall clock was therefore wrong for longer than [`BELIEVED_AFTER`].
            *self = TrustedClock { floor: (now, issued_s), even: Some((now, wall_s)) };
        }
    }

    fn raise(&mut self, now: Time, unix_s: u64) {
        if unix_s > goes_on(self.floor, now) {
            self.floor = (now, unix_s);
        }
    }
}
