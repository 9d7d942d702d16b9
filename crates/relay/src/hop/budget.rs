//! How many frames one neighbour has sent to places that only it says to be its own.

use core::time::Duration;

use shoal_wire::Time;

/// In how long a time frames are counted, from the first of them on.
const COUNTED: Duration = Duration::from_secs(10);

/// The frames of the present count.
#[derive(Debug, Default)]
pub(super) struct Budget {
    since: Time,
    spent: u32,
}

impl Budget {
    /// Takes so many frames from what is left of the `most` in a time; says whether they were.
    pub(super) fn spend(&mut self, now: Time, frames: u32, most: u32) -> bool {
        if self.since + COUNTED <= now {
            *self = Budget { since: now, spent: 0 };
        }
        let may = self.spent + frames <= most;
        self.spent += if may { frames } else { 0 };
        may
    }

    /// Whether some count still.
    pub(super) fn is_spent(&self, now: Time) -> bool {
        self.spent > 0 && now < self.since + COUNTED
    }
}
