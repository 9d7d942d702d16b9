//! The clocks for state machines.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};
use shoal_wire::Time;

/// Monotonic time since this clock was created. It also counts while the machine sleeps, so a
/// session's age is right after a suspend.
#[derive(Clone, Copy, Debug)]
pub struct BootClock {
    origin_ns: u64,
}

impl Default for BootClock {
    fn default() -> Self {
        BootClock::new()
    }
}

impl BootClock {
    /// Starts at zero.
    pub fn new() -> BootClock {
        BootClock { origin_ns: boot_ns() }
    }

    pub fn now(&self) -> Time {
        Time(boot_ns().saturating_sub(self.origin_ns))
    }
}

fn boot_ns() -> u64 {
    // Linux has had this clock since 2.6.39. The vDSO serves it without a system call.
    let now = clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970; 0 if the machine's clock is set to an earlier time.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Least change between wall clock and time since boot that counts as a jump, in milliseconds.
/// Daemons that correct clocks make smaller steps, except for the first one after a boot.
const JUMP_MS: u64 = 10_000;
/// Time between two comparisons.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Compares the wall clock with the time since boot.
///
/// A virtual machine that is resumed from a snapshot, or cloned, continues with the snapshot's time
/// since boot. The host or the network sets its wall clock anew. A jump therefore means that this
/// process may have old state, or may exist twice.
#[derive(Debug)]
pub struct WallWatch {
    offset_ms: i128,
    next: Time,
}

impl WallWatch {
    /// Starts with the current readings.
    pub fn new(now: Time, unix_ms: u64) -> WallWatch {
        WallWatch { offset_ms: offset_ms(now, unix_ms), next: now + LOOK_EVERY }
    }

    /// True if the next comparison is due.
    pub fn is_due(&self, now: Time) -> bool {
        now >= self.next
    }

    /// Compares the clocks. Returns the jump of the wall clock since the last comparison, if there
    /// is one.
    pub fn look(&mut self, now: Time, unix_ms: u64) -> Option<Duration> {
        self.next = now + LOOK_EVERY;
        let offset_ms = offset_ms(now, unix_ms);
        let before = core::mem::replace(&mut self.offset_ms, offset_ms);
        let moved_ms = u64::try_from(offset_ms.abs_diff(before)).unwrap_or(u64::MAX);
        (moved_ms >= JUMP_MS).then(|| Duration::from_millis(moved_ms))
    }
}

fn offset_ms(now: Time, unix_ms: u64) -> i128 {
    i128::from(unix_ms) - i128::from(now.as_micros() / 1_000)
}

/// CPU time that this thread has used.
pub fn thread_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

/// CPU time that this process has used.
pub fn process_cpu() -> Duration {
    clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumps_is_told_from_one_that_is_corrected() {
        let at = |s: u64| Time::from_millis(s * 1_000);
        let unix = |s: u64| 1_800_000_000_000 + s * 1_000;
        let mut watch = WallWatch::new(at(5), unix(5));
        assert!(!watch.is_due(at(5)) && watch.is_due(at(6)));
        assert_eq!(watch.look(at(6), unix(6)), None);
        // A long sleep of the process, or of the machine: both clocks continue.
        assert_eq!(watch.look(at(90_000), unix(90_000)), None);
        // Corrected by nine seconds.
        assert_eq!(watch.look(at(90_001), unix(90_010)), None);
        assert_eq!(watch.look(at(90_002), unix(90_011)), None);
        // Resumed an hour later; or set back.
        let hour = Duration::from_secs(3_600);
        assert_eq!(watch.look(at(90_003), unix(93_612)), Some(hour));
        assert_eq!(watch.look(at(90_004), unix(93_613)), None);
        assert_eq!(watch.look(at(90_005), unix(90_014)), Some(hour));
    }
}
