//! Memory that a burst of traffic took goes back to the system once the burst is over.
//!
//! Buffers are kept while there is traffic, and the allocator keeps what was freed: both are what
//! makes the next batch cheap. A node that has become quiet needs neither. The allocator can't give
//! back pages in the middle of its heap where memory is locked, as a daemon's is: so buffers as
//! long as a file's chunk never come from the heap.

#![allow(unsafe_code)]

use std::time::Duration;

use shoal_wire::Time;

use crate::worker::first::Worker;
use crate::worker::shell::Node;

/// How often to look whether there is traffic.
const LOOK_EVERY: Duration = Duration::from_secs(5);
/// Fewer bytes between two looks, in both directions, are quiet: keepalives, routes, a chat.
const QUIET_BYTES: u64 = 1 << 20;

/// Notices the end of a burst.
#[derive(Default)]
pub struct Rest {
    look_at: Time,
    seen_bytes: u64,
    is_busy: bool,
}

impl Rest {
    /// Whether a burst has just ended; `bytes` went in and out since the start. True once for each.
    pub fn is_due(&mut self, now: Time, bytes: u64) -> bool {
        if now < self.look_at {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        let moved = bytes - std::mem::replace(&mut self.seen_bytes, bytes);
        let was_busy = std::mem::replace(&mut self.is_busy, moved >= QUIET_BYTES);
        was_busy && !self.is_busy
    }

    /// When to look again; a quiet node has nothing to wait for.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.is_busy.then_some(self.look_at)
    }
}

/// From this length on, memory is mapped for itself, and goes back when it is freed. Left alone,
/// glibc raises the limit to the longest buffer that was ever freed.
const MAPPED_BYTES: i32 = 128 << 10;
/// Free memory at the end of the heap that stays there: beyond what one batch takes.
const HEAP_END_BYTES: i32 = 1 << 20;

/// Has the allocator map long buffers for themselves.
pub fn map_long_buffers() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer; called before this process has threads that allocate, or beside
    // them, since glibc takes its own lock.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES);
        libc::mallopt(libc::M_TRIM_THRESHOLD, HEAP_END_BYTES);
    }
}

/// Has the allocator give unused pages back to the system.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes no pointer and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}

impl Worker {
    /// Gives memory back to the system after a burst of traffic.
    pub(crate) fn rest(&mut self, now: Time) {
        let Node { relay, edge, .. } = &mut self.parts.node;
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
        let mut rest = Rest::default();
        let mut bytes = 0;
        let ends = |rest: &mut Rest, bytes: &mut u64, seconds: std::ops::Range<u64>, rate: u64| {
            let due = seconds.filter(|&s| {
                *bytes += rate;
                rest.is_due(Time::ZERO + Duration::from_secs(s), *bytes)
            });
            due.collect::<Vec<_>>()
        };
        assert!(ends(&mut rest, &mut bytes, 0..20, 1_000).is_empty(), "it was always quiet");
        assert!(ends(&mut rest, &mut bytes, 20..60, 100_000_000).is_empty());
        assert!(rest.poll_timeout().is_some());
        assert_eq!(ends(&mut rest, &mut bytes, 60..100, 1_000), [65]);
        assert_eq!(rest.poll_timeout(), None);
        assert!(ends(&mut rest, &mut bytes, 100..109, 100_000_000).is_empty());
        assert_eq!(ends(&mut rest, &mut bytes, 109..140, 1_000).len(), 1);
    }
}
