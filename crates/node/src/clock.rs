//! The clocks that machines are given.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use shoal_wire::Time;

/// Monotonic time since this clock was made. It runs on while the machine sleeps, so that a
/// session's age is true after a suspend.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin_ns: u64,
}

impl Default for Clock {
    fn default() -> Self {
        Clock::new()
    }
}

impl Clock {
    /// Starts at zero.
    pub fn new() -> Clock {
        Clock { origin_ns: boot_ns() }
    }

    /// Now.
    pub fn now(&self) -> Time {
        Time(boot_ns().saturating_sub(self.origin_ns))
    }
}

fn boot_ns() -> u64 {
    // Linux has had this clock since 2.6.39; the vDSO serves it without a system call.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970; 0 on a machine whose clock stands before that.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// CPU time this thread has used.
pub fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// CPU time this process has used.
pub fn process_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
