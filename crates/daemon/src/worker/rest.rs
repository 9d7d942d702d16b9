//! Returns memory to the system after a burst of traffic.
//!
//! During traffic the node keeps buffers, and the allocator keeps freed memory, since both make the
//! next batch cheap. A quiet node needs neither. Daemons lock their memory, and then the allocator
//! can't return pages in the middle of its heap. Buffers as long as a file's chunk therefore never
//! come from the heap.

#![allow(unsafe_code)]

use std::time::Duration;

use shoal_wire::Time;

use crate::worker::first::FirstWorker;
use crate::worker::shell::DaemonNode;

/// Time between two checks for traffic.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Fewer bytes than this between two checks, in both directions, count as quiet: keepalives,
/// routes, a chat.
const QUIET_BYTES: u64 = 1 << 20;

/// Detects the end of a burst.
#[derive(Default)]
pub struct BurstDetector {
    look_at: Time,
    seen_bytes: u64,
    is_busy: bool,
}

impl BurstDetector {
    /// True once at the end of each burst. `bytes` is the total in both directions since the start.
    pub fn is_due(&mut self, now: Time, bytes: u64) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        let moved = bytes - std::mem::replace(&mut self.seen_bytes, bytes);
        let was_busy = std::mem::replace(&mut self.is_busy, moved >= QUIET_BYTES);
        was_busy && !self.is_busy
    }

    /// Time of the next check; none on a quiet node.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.is_busy.then_some(self.look_at)
    }
}

/// Buffers of this length or more are mapped separately, and return to the system when freed.
/// Without the limit, glibc raises it to the longest buffer that was ever freed.
const MAPPED_BYTES: i32 = 128 << 10;
/// Free memory that stays at the end of the heap: more than one batch takes.
const HEAP_END_BYTES: i32 = 1 << 20;

/// Makes the allocator map long buffers separately.
pub fn map_long_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer; called before this process has threads that allocate, or beside
    // them, since glibc takes its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_END_BYTES);
    }
}

/// Returns unused pages of the allocator to the system.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl FirstWorker {
    /// Returns memory to the system after a burst of traffic.
    pub(crate) fn rest(&mut self, now: Time) {
        let DaemonNode { relay, edge, .. } = &mut self.parts.node;
        let traffic = &relay.counters().traffic;
        if self.rest.is_due(now, traffic.bytes_in + traffic.bytes_out) {
            relay.rest();
            edge.transfers().rest();
            trim_heap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_burst_has_one_end() {
        let mut rest = BurstDetector::default();
        let mut bytes = 0;
        let ends = |rest: &mut BurstDetector,
                    bytes: &mut u64,
                    seconds: std::ops::Range<u64>,
                    rate: u64| {
            let due = seconds.filter(|&s| {
                *bytes += rate;
                rest.is_due(Time::ZERO + Duration::from_secs(s), *bytes)
            });
            due.collect::<Vec<_>>()
        };
        assert!(ends(&mut rest, &mut bytes, 0..20, 1_000).is_empty(), "the node was always quiet");
        assert!(ends(&mut rest, &mut bytes, 20..60, 100_000_000).is_empty());
        assert!(rest.poll_timeout().is_some());
        assert_eq!(ends(&mut rest, &mut bytes, 60..100, 1_000), [65]);
        assert_eq!(rest.poll_timeout(), None);
        assert!(ends(&mut rest, &mut bytes, 100..109, 100_000_000).is_empty());
        assert_eq!(ends(&mut rest, &mut bytes, 109..140, 1_000).len(), 1);
    }
}
