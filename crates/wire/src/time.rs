//! Clock of the machines (crates without I/O).

use core::fmt;
use core::ops::{Add, Sub};
use core::time::Duration;

/// Monotonic time in nanoseconds, counted from an origin that the shell chose.
///
/// `std::time::Instant` can't be built, printed or stored, so traces that use it can't be compared.
/// Machines take this type instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The origin.
    pub const ZERO: Time = Time(0);
    /// Later than every time that a machine is given.
    pub const FAR: Time = Time(u64::MAX);

    /// Time `ms` milliseconds after the origin.
    pub const fn from_millis(ms: u64) -> Time {
        Time(ms * 1_000_000)
    }

    /// Whole microseconds since the origin.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Duration from `earlier` to this time; zero if this time is earlier.
    pub const fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Time {
    type Output = Time;

    fn add(self, rhs: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Time {
    type Output = Time;

    fn sub(self, rhs: Duration) -> Time {
        Time(self.0.saturating_sub(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:09}", self.0 / 1_000_000_000, self.0 % 1_000_000_000)
    }
}
