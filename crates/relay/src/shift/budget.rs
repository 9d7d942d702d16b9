//! A budget for frames that a neighbour can cause or send at will.

use core::time::Duration;

use shoal_wire::Time;

/// Period over which frames are counted, from the first one on.
const COUNTED: Duration = Duration::from_secs(10);

/// Frames of the current period.
#[derive(Debug, Default)]
pub(crate) struct FrameBudget {
    since: Time,
    spent: u32,
    /// Frames refused since they were last taken.
    held_back: u32,
}

impl FrameBudget {
    /// Spends `frames` of the `most` per period. Returns false, and counts them as held back, if
    /// too few are left.
    pub(crate) fn spend(&mut self, now: Time, frames: u32, most: u32) -> bool {
        if self.since + COUNTED <= now {
            (self.since, self.spent) = (now, 0);
        }
        let may = self.spent + frames <= most;
        let counter = if may { &mut self.spent } else { &mut self.held_back };
        *counter = counter.saturating_add(frames);
        may
    }

    /// Takes the number of frames held back.
    pub(crate) fn take_held_back(&mut self) -> u32 {
        core::mem::take(&mut self.held_back)
    }

    /// True if frames were spent in the current period.
    pub(crate) fn is_spent(&self, now: Time) -> bool {
        self.spent > 0 && now < self.since + COUNTED
    }
}
