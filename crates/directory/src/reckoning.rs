//! What time it is at least, whatever the wall clock shows.
//!
//! ```text
//! list taken in --signed at-->\
//!                              floor, goes on with the time since boot --\
//! wall clock, an hour even --->/                                          later of both
//! wall clock ------------------------------------------------------------/
//! ```
//!
//! A clock that was set back must make nothing valid again, and one that was far ahead by mistake
//! must not close the network for good once it is set right. At the moment of the step the two
//! look alike. So a wall clock is believed to have been right when it ran evenly with the time
//! since boot for [`BELIEVED_AFTER`]; and the authority's own word on the time, the moment when it
//! signed, is always believed.
//!
//! Invariant: the floor never runs back except in [`Reckoning::take_in`].

use core::time::Duration;

use shoal_wire::Time;

/// A wall clock that ran evenly for so long is believed. Machines without a clock of their own ask
/// the network within minutes of their start.
const BELIEVED_AFTER: Duration = Duration::from_secs(3_600);
/// How far it may stray from the time since boot meanwhile: clocks are corrected by less.
const STRAY_S: u64 = 10;

/// Seconds since 1970 that a clock showed at a moment.
type Shown = (Time, u64);

/// What that clock would show now.
fn goes_on((then, unix_s): Shown, now: Time) -> u64 {
    unix_s.saturating_add(now.since(then).as_secs())
}

/// See the module's documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reckoning {
    floor: Shown,
    /// Where the wall clock began to run evenly.
    even: Option<Shown>,
}

impl Reckoning {
    /// Nothing is known yet.
    pub(crate) const NEW: Reckoning = Reckoning { floor: (Time::ZERO, 0), even: None };

    /// The time that counts, where the wall clock shows `wall_s`.
    pub(crate) fn unix_s(&self, now: Time, wall_s: u64) -> u64 {
        wall_s.max(goes_on(self.floor, now))
    }

    /// Notes what the wall clock shows. To be called every few seconds.
    pub(crate) fn look(&mut self, now: Time, wall_s: u64) {
        let strays = |even: &Shown| goes_on(*even, now).abs_diff(wall_s) > STRAY_S;
        match self.even.filter(|even| !strays(even)) {
            None => self.even = Some((now, wall_s)),
            Some((began, _)) if now.since(began) >= BELIEVED_AFTER => self.raise(now, wall_s),
            Some(_) => {}
        }
    }

    /// Notes the time of a list that is newer than all before it, and counts for `counts_s`.
    pub(crate) fn take_in(&mut self, now: Time, wall_s: u64, issued_s: u64, counts_s: u64) {
        if goes_on(self.floor, now) < issued_s.saturating_add(counts_s) {
            self.raise(now, issued_s);
        } else {
            // By the floor the authority's newest list was too old when it came, and every later
            // one would be. So the wall clock was wrong for longer than it takes to be believed.
            *self = Reckoning { floor: (now, issued_s), even: Some((now, wall_s)) };
        }
    }

    fn raise(&mut self, now: Time, unix_s: u64) {
        if unix_s > goes_on(self.floor, now) {
            self.floor = (now, unix_s);
        }
    }
}
