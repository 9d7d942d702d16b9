//! Covered links: each slot is used once, whatever there is to send, by a full frame.
//!
//! Slots are known by the rate alone: one in each gap, at any time in its first half. So a window
//! of k whole gaps has k - 1 to k + 2 of them, wherever it begins. Each has as many frames.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CoverTier, LinkId, SizeClass, Time, link};

pub(crate) const SIZES: &str = "frames of a covered link are full ones";
pub(crate) const SLOTS: &str = "a covered link uses each slot once";

/// How long after the last refusal the frames that are owed may take.
const OWED: Duration = Duration::from_millis(500);
/// Frames of so long a time are made good.
const MADE_GOOD: Duration = Duration::from_millis(900);

/// One direction of a covered link.
#[derive(Default)]
struct Watched {
    /// Since when frames are counted, by the sender's clock; none while there is no schedule.
    since: Option<Time>,
    /// Full frames, wherever they went: a neighbour that seems to move is sent some where it was.
    frames: u64,
    /// Those that went over the wire between the two nodes.
    there: u64,
    /// Medium frames, and small ones, since the sender's last step.
    medium: [u64; 2],
    small: u64,
    /// Whether full frames left in parts then.
    in_parts: bool,
    /// The wire had no room in the sender's last step.
    refused: bool,
    /// Until then frames that found none may still be owed.
    owed_until: Time,
    /// Some of them will not be made good.
    gave_up: bool,
    was_up: bool,
}

impl Watched {
    /// Counts parts of full frames; says how many frames were neither those nor full.
    fn take_short(&mut self, in_parts: bool) -> u64 {
        let before = core::mem::replace(&mut self.in_parts, in_parts);
        let medium: u64 = self.medium.iter().sum();
        if !in_parts && !before {
            self.medium = [0; 2];
            return medium + core::mem::take(&mut self.small);
        }
        let parts = link::PARTS as u64;
        self.frames += medium / parts;
        self.there += self.medium[1] / parts;
        self.medium = self.medium.map(|frames| frames % parts);
        core::mem::take(&mut self.small)
    }
}

/// What a sender says of its end of the link.
#[derive(Clone, Copy)]
pub(crate) struct Says {
    /// The node at the other end.
    pub(crate) to: usize,
    /// There is a session, so that frames are to leave by the schedule.
    pub(crate) runs: bool,
    /// Full frames leave in parts.
    pub(crate) in_parts: bool,
    /// The link is up. While it is not, short handshakes may find out why.
    pub(crate) is_up: bool,
    /// When the node stood still for the last time.
    pub(crate) resumed: Time,
}

/// All covered links of a network, by sender and its number of the link.
#[derive(Default)]
pub(crate) struct Covers {
    tier: Option<CoverTier>,
    links: BTreeMap<(usize, LinkId), Watched>,
}

impl Covers {
    /// Links with this schedule; none that are covered.
    pub(crate) fn new(tier: Option<CoverTier>) -> Covers {
        Covers { tier, links: BTreeMap::new() }
    }

    /// Whether the link of a node is covered.
    pub(crate) fn has(&self, of: (usize, LinkId)) -> bool {
        self.links.contains_key(&of)
    }

    /// Frames of this length left, over the wire between the two nodes or to another place.
    pub(crate) fn sent(&mut self, of: (usize, LinkId), frames: u64, len: usize, there: bool) {
        let Some(watched) = self.links.get_mut(&of) else { return };
        match SizeClass::of_frame(len) {
            Some(SizeClass::Full) => {
                watched.frames += frames;
                watched.there += frames * u64::from(there);
            }
            Some(SizeClass::Medium) => watched.medium[usize::from(there)] += frames,
            _ => watched.small += frames,
        }
    }

    /// The wire had no room for some.
    pub(crate) fn refused(&mut self, of: (usize, LinkId)) {
        if let Some(watched) = self.links.get_mut(&of) {
            watched.refused = true;
        }
    }

    /// Looks at a direction after its sender's step, which ended at `now` by the sender's clock.
    pub(crate) fn check(
        &mut self,
        of: (usize, LinkId),
        now: Time,
        says: Says,
    ) -> Result<(), (&'static str, String)> {
        let Some(tier) = self.tier else { return Ok(()) };
        let (gap, each) = (tier.gap(), tier.frames() as u64);
        let watched = self.links.entry(of).or_default();
        let short = watched.take_short(says.in_parts);
        let stays_up = core::mem::replace(&mut watched.was_up, says.is_up) && says.is_up;
        let since = watched.since.filter(|since| says.runs && *since > says.resumed);
        if core::mem::take(&mut watched.refused) {
            watched.owed_until = now + OWED;
        }
        let owes = now < watched.owed_until;
        let gaps_of = |span: Duration| (span.as_nanos() / gap.as_nanos()) as u64;
        // More than a second of frames is not made good. The count begins when none are owed.
        let most =
            |since: Time| gaps_of(now.since(since)).saturating_sub(gaps_of(MADE_GOOD)) * each;
        watched.gave_up |= since.is_none_or(|since| watched.frames < most(since));
        watched.gave_up &= owes;
        let Some(since) = since.filter(|_| !watched.gave_up) else {
            let counts = says.runs && !watched.gave_up;
            watched.since = counts.then_some(now);
            (watched.frames, watched.there) = (0, 0);
            return Ok(());
        };
        let node = of.0;
        if short > 0 && stays_up {
            return Err((SIZES, format!("node {node} to {}: {short} shorter frames", says.to)));
        }
        let (gaps, frames) = (gaps_of(now.since(since)), watched.frames);
        let too_few = frames + each < gaps * each && !owes;
        if too_few || watched.there > (gaps + 2) * each {
            let to = says.to;
            let seen = format!("node {node} to {to}: {frames} frames in {gaps} gaps of {each}");
            return Err((SLOTS, seen));
        }
        Ok(())
    }
}
