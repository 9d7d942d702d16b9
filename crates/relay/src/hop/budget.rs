//! How many frames went somewhere lately, or came, that a neighbour can have sent at will.

use core::time::Duration;

use shoal_wire::Time;

/// In how long a time frames are counted, from the first of them on.
const COUNTED: Duration = Duration::from_secs(10);

/// The frames of the present count.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    since: Time,
    spent: u32,
    /// Those that there was nothing left for, since they were taken last.
    held_back: u32,
}

impl Budget {
    /// Takes so many frames from what is left of the `most` in a time; says whether they were.
    pub(crate) fn spend(&mut self, now: Time, frames: u32, most: u32) -> bool {
        if self.since + COUNTED <= now {
            (self.since, self.spent) = (now, 0);
        }
        let may = self.spent + frames <= most;
        let counter = if may { &mut self.spent } else { &mut self.held_back };
        *counter = counter.saturating_add(frames);
        may
    }

    /// Takes how many frames were held back.
    pub(crate) fn take_held_back(&mut self) -> u32 {
        core::mem::take(&mut self.held_back)
    }

    /// Whether some count still.
    pub(crate) fn is_spent(&self, now: Time) -> bool {
        self.spent > 0 && now < self.since + COUNTED
    }
}
