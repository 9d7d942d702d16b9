//! Writes that are tried again until they succeed, as on a disk that is full for a while.

use std::time::Duration;

use shoal_wire::Time;

/// From a write that failed to the next one, doubling.
const FIRST: Duration = Duration::from_secs(1);
/// The longest that it takes to the next one.
pub const MOST: Duration = Duration::from_secs(60);

/// How it stands with the writing of one file.
#[derive(Default)]
pub struct Again {
    /// The last write failed.
    failed: Option<Failed>,
}

/// A write that failed.
struct Failed {
    /// Why, and what to do about it.
    why: String,
    /// When it is tried again.
    next: Time,
    /// How long after the last try that is.
    gap: Duration,
}

impl Again {
    /// When the file is to be written again, if that is so.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.failed.as_ref().map(|failed| failed.next)
    }

    /// Whether it is time.
    pub fn is_due(&self, now: Time) -> bool {
        self.poll_timeout().is_some_and(|next| next <= now)
    }

    /// Why what is known is not on the disk, in words for the owner.
    pub fn fault(&self) -> Option<&str> {
        self.failed.as_ref().map(|failed| failed.why.as_str())
    }

    /// The file was written, or not; `what` is in it.
    pub fn note(&mut self, now: Time, what: &str, written: Result<(), String>) {
        let before = self.failed.take();
        let Err(why) = written else {
            if before.is_some() {
                tracing::info!("{what} is on the disk now");
            }
            return;
        };
        let gap = before.as_ref().map_or(FIRST, |failed| (failed.gap * 2).min(MOST));
        // A disk that stays full is one line, not one a minute.
        if before.is_none_or(|failed| failed.why != why) {
            tracing::warn!("{why}");
        }
        self.failed = Some(Failed { why, next: now + gap, gap });
    }
}
