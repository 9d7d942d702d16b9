//! Writes that are repeated until they succeed, for instance while a disk is full.

use std::time::Duration;

use shoal_wire::Time;

/// Time from a failed write to the next one; doubles with each failure.
const FIRST: Duration = Duration::from_secs(1);
/// Longest time from a failed write to the next one.
pub const MOST: Duration = Duration::from_secs(60);

/// State of the writes of one file.
#[derive(Default)]
pub struct WriteRetry {
    /// Some if the last write failed.
    failed: Option<FailedWrite>,
}

/// A write that failed.
struct FailedWrite {
    /// Reason, and what to do about it.
    why: String,
    /// Time of the next try.
    next: Time,
    /// Time between the last try and the next one.
    gap: Duration,
}

impl WriteRetry {
    /// Time at which the file must be written again, if the last write failed.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.failed.as_ref().map(|failed| failed.next)
    }

    /// True if the next write is due.
    pub fn is_due(&self, now: Time) -> bool {
        self.poll_timeout().is_some_and(|next| next <= now)
    }

    /// Reason why the data is not on the disk, in words for the owner.
    pub fn fault(&self) -> Option<&str> {
        self.failed.as_ref().map(|failed| failed.why.as_str())
    }

    /// Records the result of a write; `what` names the data.
    pub fn note(&mut self, now: Time, what: &str, written: Result<(), String>) {
        let before = self.failed.take();
        let Err(why) = written else {
            if before.is_some() {
                tracing::info!("{what} is on the disk now");
            }
            return;
        };
        let gap = before.as_ref().map_or(FIRST, |failed| (failed.gap * 2).min(MOST));
        // A disk that stays full is logged once, not once a minute.
        if before.is_none_or(|failed| failed.why != why) {
            tracing::warn!("{why}");
        }
        self.failed = Some(FailedWrite { why, next: now + gap, gap });
    }
}
