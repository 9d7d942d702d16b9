//! Covered links: each slot is used once, whatever there is to send, by a full frame.
//!
//! Slots are known by the rate alone. A constant schedule has one in each gap, at any time in its
//! first half: so a window of k whole gaps has k - 1 to k + 2 of them, wherever it begins. Those of
//! a Poisson schedule come at random, k of them in the mean: how many there are, and the times
//! between them, must look like that. Each slot has as many frames.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CoverKind, CoverTier, LinkId, SizeClass, Time, link};

use super::statistics::{RARE, uniform};

pub(crate) const SIZES: &str = "frames of a covered link are full ones";
pub(crate) const SLOTS: &str = "a covered link uses each slot once";
pub(crate) const TIMES: &str = "slots of a Poisson schedule come at random times";

/// How long after the last refusal the frames that are owed may take.
const OWED: Duration = Duration::from_millis(500);
/// Frames of so long a time are made good.
const MADE_GOOD: Duration = Duration::from_millis(900);

/// A node wakes for a slot up to so much later, and uses those of that time together: shorter times
/// between slots are not seen.
const TOGETHER: Duration = Duration::from_micros(500);
/// Times between slots of a link that are kept at most.
const GAPS_MAX: usize = 1 << 14;

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
    /// Frames at the last look, everywhere and there.
    looked: [u64; 2],
    /// When more were seen than before, and how probable shorter times between such looks were.
    used: Option<Time>,
    gaps: Vec<f64>,
}

impl Watched {
    /// Notes when slots of a Poisson schedule were used. What is longer than [`TOGETHER`] is as
    /// probable as if that were the beginning: times have no memory.
    fn note_gap(&mut self, now: Time, gap: Duration) {
        let Some(before) = self.used.replace(now) else { return };
        if let Some(longer) = now.since(before).checked_sub(TOGETHER)
            && self.gaps.len() < GAPS_MAX
        {
            self.gaps.push(-(-longer.as_secs_f64() / gap.as_secs_f64()).exp_m1());
        }
    }

    /// Frames since the last look, everywhere and there.
    fn look(&mut self) -> [u64; 2] {
        let seen = [self.frames, self.there];
        let before = core::mem::replace(&mut self.looked, seen);
        [seen[0] - before[0], seen[1] - before[1]]
    }

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

    /// A frame of this length left, over the wire between the two nodes or to another place.
    pub(crate) fn sent(&mut self, of: (usize, LinkId), len: usize, there: bool) {
        let Some(watched) = self.links.get_mut(&of) else { return };
        match SizeClass::of_frame(len) {
            Some(SizeClass::Full) => {
                watched.frames += 1;
                watched.there += u64::from(there);
            }
            Some(SizeClass::Medium) => watched.medium[usize::from(there)] += 1,
            _ => watched.small += 1,
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
            (watched.looked, watched.used) = ([0; 2], None);
            return Ok(());
        };
        let node = of.0;
        if short > 0 && stays_up {
            return Err((SIZES, format!("node {node} to {}: {short} shorter frames", says.to)));
        }
        let (gaps, frames) = (gaps_of(now.since(since)), watched.frames);
        let (fewest, most) = range(tier, gaps);
        let new = watched.look();
        if tier.kind() == CoverKind::Poisson && new[0] > 0 {
            watched.used = watched.used.filter(|_| !owes);
            watched.note_gap(now, gap);
        }
        // A frame to where the neighbour seems to have moved leaves beside a slot.
        let are_whole = new.iter().any(|new| new.is_multiple_of(each));
        if !are_whole && !owes && !says.in_parts {
            let seen = format!("node {node} to {}: slots of {each}: {} frames", says.to, new[0]);
            return Err((SLOTS, seen));
        }
        if frames < fewest * each && !owes || watched.there > most * each {
            let to = says.to;
            let seen = format!("node {node} to {to}: {frames} frames in {gaps} gaps of {each}");
            return Err((SLOTS, seen));
        }
        Ok(())
    }

    /// Looks at all times between slots.
    pub(crate) fn check_end(&self) -> Result<(), (&'static str, String)> {
        let all = self.links.iter().filter(|(_, watched)| !watched.gaps.is_empty());
        all.map(|(of, watched)| uniform(&watched.gaps).map_err(|seen| (of.0, seen)))
            .try_for_each(|result| result)
            .map_err(|(node, seen)| {
                (TIMES, format!("node {node}: {}", seen.replace("cells", "times")))
            })
    }
}

/// How many slots so many whole gaps have, at least and at most. What comes at random is beyond
/// that once in 10^9 times (Bernstein's bounds); since it is looked at again and again, the bounds
/// are half as far again.
fn range(tier: CoverTier, gaps: u64) -> (u64, u64) {
    match tier.kind() {
        CoverKind::Constant => (gaps.saturating_sub(1), gaps + 2),
        CoverKind::Poisson => {
            let far = 1.5 * ((2.0 * gaps as f64 * RARE).sqrt() + RARE / 3.0);
            (gaps.saturating_sub(far as u64), gaps + 2 + far as u64)
        }
    }
}

#[cfg(test)]
mod tests {
    use shoal_wire::Jitter;

    use super::*;

    const OF: (usize, LinkId) = (0, LinkId::from_bits(0));

    /// What is said of a link that for 30 s has a slot after each of these times.
    fn check(tier: CoverTier, mut next: impl FnMut() -> Duration) -> Result<(), &'static str> {
        let (mut covers, mut now) = (Covers::new(Some(tier)), Time::from_millis(1_000));
        let resumed = Time::ZERO;
        let says = Says { to: 1, runs: true, in_parts: false, is_up: true, resumed };
        let checked = |result: Result<(), (&'static str, String)>| result.map_err(|seen| seen.0);
        checked(covers.check(OF, now, says))?;
        while now < Time::from_millis(31_000) {
            now = now + next();
            for _ in 0..tier.frames() {
                covers.sent(OF, SizeClass::Full.frame_len(), true);
            }
            checked(covers.check(OF, now, says))?;
        }
        checked(covers.check_end())
    }

    #[test]
    fn slots_at_random_times_pass_and_others_do_not() {
        let tier = CoverTier::new(10, CoverKind::Poisson).unwrap();
        let gap = tier.gap();
        let random = |seed| {
            let mut jitter = Jitter::new(seed);
            move || jitter.exponential(gap)
        };
        for seed in 0..5 {
            assert_eq!(check(tier, random(seed)), Ok(()));
        }
        let mut seldom = random(9);
        assert_eq!(check(tier, || seldom() * 10 / 9), Err(SLOTS));
        let mut often = random(9);
        assert_eq!(check(tier, || often() * 9 / 10), Err(SLOTS));
        assert_eq!(check(tier, || gap), Err(TIMES), "a constant rate");
        let mut uneven = Jitter::new(3);
        assert_eq!(check(tier, || gap / 2 + uneven.below(gap)), Err(TIMES));
    }
}
