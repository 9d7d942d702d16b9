//! Measures the longest silence on the receiver's access link, outside the nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use shoal_wire::SizeClass;

use crate::network::LinkCounter;

/// Time between two samples: the error of a gap.
const LOOK: Duration = Duration::from_millis(2);

/// Samples a link until stopped.
#[derive(Debug)]
pub struct GapMeter {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Gap>>,
}

/// The longest silence so far.
#[derive(Clone, Copy, Debug, Default)]
struct Gap {
    /// Bytes carried at the last sample.
    bytes: Option<u64>,
    last_data: Option<Instant>,
    longest: Duration,
}

impl GapMeter {
    /// Starts to sample `tap`.
    pub fn start(mut tap: LinkCounter) -> Result<GapMeter> {
        let ended = Arc::new(AtomicBool::new(false));
        let flag = ended.clone();
        let thread = std::thread::Builder::new().name("meter".into()).spawn(move || {
            let mut gap = Gap::default();
            while !flag.load(Ordering::Relaxed) {
                gap.see(Instant::now(), tap.bytes());
                std::thread::sleep(LOOK);
            }
            gap
        });
        Ok(GapMeter { ended, thread: Some(thread.context("starting the meter")?) })
    }

    /// The longest time between two samples with file data, from the first such sample to the last.
    pub fn finish(mut self) -> Duration {
        self.ended.store(true, Ordering::Relaxed);
        let gap = self.thread.take().and_then(|t| t.join().ok());
        gap.unwrap_or_default().longest
    }
}

impl Drop for GapMeter {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Gap {
    /// Records that `bytes` have been carried in all at time `now`.
    fn see(&mut self, now: Instant, bytes: u64) {
        let before = self.bytes.replace(bytes).unwrap_or(bytes);
        // Reports and keepalives continue while the file pauses. A sample therefore counts as file
        // data only if it has the bytes of a full frame. The count falls if the link is gone.
        if bytes.saturating_sub(before) < SizeClass::Full.frame_len() as u64 {
            return;
        }
        if let Some(last) = self.last_data.replace(now) {
            self.longest = self.longest.max(now - last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_full_frames_end_a_gap() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut gap = Gap::default();
        gap.see(at(0), 100);
        // Silence before the first data is no gap.
        gap.see(at(500), 100_000);
        gap.see(at(510), 200_000);
        // Fifteen small frames, one per sample: as many bytes as two full frames, but no file data.
        for i in 1..=15 {
            gap.see(at(510 + i * 20), 200_000 + i * 192);
        }
        assert_eq!(gap.longest, Duration::from_millis(10));
        gap.see(at(900), 200_000 + 15 * 192 + 1_440);
        assert_eq!(gap.longest, Duration::from_millis(390));
    }

    #[test]
    fn a_link_that_is_gone_carries_no_data() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut gap = Gap::default();
        gap.see(at(0), 100);
        gap.see(at(10), 100_000);
        gap.see(at(20), 0);
        gap.see(at(30), 0);
        assert_eq!(gap.longest, Duration::ZERO);
        // A new link counts from zero.
        gap.see(at(40), 1_440);
        assert_eq!(gap.longest, Duration::from_millis(30));
    }
}
