//! Covered links: each slot is used once, whatever there is to send, by a full frame.
//!
//! Slots are known by the rate alone: one in each gap, at any time in its first half. So a window
//! of k whole gaps has k - 1 to k + 2 of them, wherever it begins. Each has as many frames.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CoverTier, SizeClass, Time};

pub(crate) const SIZES: &str = "frames of a covered link are full ones";
pub(crate) const SLOTS: &str = "a covered link uses each slot once";

/// One direction of a covered link.
#[derive(Default)]
struct Watched {
    /// Since when frames are counted, by the sender's clock; none while there is no schedule.
    since: Option<Time>,
    frames: u64,
    /// Frames that were no full ones, since the sender's last step.
    short: u64,
    /// The wire had no room: frames come later.
    refused: bool,
    was_up: bool,
}

/// What a sender says of its end of the link.
#[derive(Clone, Copy)]
pub(crate) struct Says {
    /// Frames leave by the schedule.
    pub(crate) runs: bool,
    /// The link is up. While it is not, short handshakes may find out why.
    pub(crate) is_up: bool,
    /// When the node stood still for the last time.
    pub(crate) resumed: Time,
}

/// All covered links of a network, by sender and receiver.
#[derive(Default)]
pub(crate) struct Covers {
    gap: Duration,
    /// Frames of a slot.
    each: u64,
    links: BTreeMap<(usize, usize), Watched>,
}

impl Covers {
    /// Links between each of these pairs, with this schedule.
    pub(crate) fn new(pairs: impl Iterator<Item = (usize, usize)>, tier: CoverTier) -> Covers {
        let both = pairs.flat_map(|(a, b)| [(a, b), (b, a)]);
        let (gap, each) = (tier.gap(), tier.frames() as u64);
        Covers { gap, each, links: both.map(|way| (way, Watched::default())).collect() }
    }

    /// Whether the link between two nodes is covered.
    pub(crate) fn has(&self, way: (usize, usize)) -> bool {
        self.links.contains_key(&way)
    }

    /// Frames of this length left.
    pub(crate) fn sent(&mut self, way: (usize, usize), frames: u64, len: usize) {
        if let Some(watched) = self.links.get_mut(&way) {
            let full = len == SizeClass::Full.frame_len();
            *(if full { &mut watched.frames } else { &mut watched.short }) += frames;
        }
    }

    /// The wire had no room for some.
    pub(crate) fn refused(&mut self, way: (usize, usize)) {
        if let Some(watched) = self.links.get_mut(&way) {
            watched.refused = true;
        }
    }

    /// Looks at a direction after its sender's step, which ended at `now` by the sender's clock.
    pub(crate) fn check(
        &mut self,
        way: (usize, usize),
        now: Time,
        says: Says,
    ) -> Result<(), (&'static str, String)> {
        let (gap, each) = (self.gap, self.each);
        let Some(watched) = self.links.get_mut(&way) else { return Ok(()) };
        let short = core::mem::take(&mut watched.short);
        let stays_up = core::mem::replace(&mut watched.was_up, says.is_up) && says.is_up;
        let since = watched.since.filter(|since| says.runs && *since > says.resumed);
        let Some(since) = since.filter(|_| !watched.refused) else {
            (watched.since, watched.frames, watched.refused) = (says.runs.then_some(now), 0, false);
            return Ok(());
        };
        let (from, to) = way;
        if short > 0 && stays_up {
            return Err((SIZES, format!("node {from} to {to}: {short} shorter frames")));
        }
        let gaps = (now.since(since).as_nanos() / gap.as_nanos()) as u64;
        let frames = watched.frames;
        if frames + each < gaps * each || frames > (gaps + 2) * each {
            let seen = format!("node {from} to {to}: {frames} frames in {gaps} gaps of {each}");
            return Err((SLOTS, seen));
        }
        Ok(())
    }
}
