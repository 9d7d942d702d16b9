//! Covered links use each slot once, with full frames, whatever there is to send.
//!
//! Slots follow from the rate. A constant schedule has one slot per gap, at any time in its first
//! half. A window of k whole gaps therefore holds k - 1 to k + 2 slots, wherever it begins. Slots
//! of a Poisson schedule come at random, k of them on average; their number and their intervals
//! must match that. Each slot carries the same number of frames.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CoverKind, CoverTier, LinkId, SizeClass, Time, link};

use super::statistics::{RARE, uniform};

pub(crate) const SIZES: &str = "frames of a covered link are full ones";
pub(crate) const SLOTS: &str = "a covered link uses each slot once";
pub(crate) const TIMES: &str = "slots of a Poisson schedule come at random times";

/// Time after the last refusal within which owed frames must be sent.
const OWED: Duration = Duration::from_millis(500);
/// Longest backlog of frames that a node makes up for.
const MADE_GOOD: Duration = Duration::from_millis(900);

/// A node may wake this much late for a slot, and uses the slots of that time together. Shorter
/// intervals are therefore not observed.
const TOGETHER: Duration = Duration::from_micros(500);
/// Largest number of intervals that is stored per link.
const GAPS_MAX: usize = 1 << 14;

/// One direction of a covered link.
#[derive(Default)]
struct CoveredDirection {
    /// Start of the count, by the sender's clock. None while there is no schedule.
    since: Option<Time>,
    /// Full frames to any address. A neighbour that seems to move also gets some at its former
    /// address.
    frames: u64,
    /// Full frames over the wire between the two nodes.
    there: u64,
    /// Medium and small frames since the sender's last step.
    medium: [u64; 2],
    small: u64,
    /// True if full frames were split into parts at the last look.
    in_parts: bool,
    /// True if the wire had no room in the sender's last step.
    refused: bool,
    /// Time until which refused frames may still be owed.
    owed_until: Time,
    /// True if some owed frames will not be sent.
    gave_up: bool,
    was_up: bool,
    /// Counts at the last look: all full frames, and those over the wire between the two nodes.
    looked: [u64; 2],
    /// Time of the last look with new frames. For each interval between such looks, the probability
    /// of a shorter one.
    used: Option<Time>,
    gaps: Vec<f64>,
}

impl CoveredDirection {
    /// Notes the time of a slot in a Poisson schedule. Only intervals longer than [`TOGETHER`]
    /// count. The part beyond it has the distribution of a whole interval, since exponential
    /// distributions have no memory.
    fn note_gap(&mut self, now: Time, gap: Duration) {
        let Some(before) = self.used.replace(now) else { return };
        if let Some(longer) = now.since(before).checked_sub(TOGETHER)
            && self.gaps.len() < GAPS_MAX
        {
            self.gaps.push(-(-longer.as_secs_f64() / gap.as_secs_f64()).exp_m1());
        }
    }

    /// Frames since the last look: all, and those over the wire between the two nodes.
    fn look(&mut self) -> [u64; 2] {
        let seen = [self.frames, self.there];
        let before = core::mem::replace(&mut self.looked, seen);
        [seen[0] - before[0], seen[1] - before[1]]
    }

    /// Counts complete sets of parts as full frames. Returns the number of frames that were neither
    /// full nor parts.
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

/// A sender's report about its end of the link.
#[derive(Clone, Copy)]
pub(crate) struct CoverReport {
    /// The node at the other end.
    pub(crate) to: usize,
    /// True if there is a session, so that frames must follow the schedule.
    pub(crate) runs: bool,
    /// True if full frames leave in parts.
    pub(crate) in_parts: bool,
    /// True if the link is up. While it is down, short handshakes may test why.
    pub(crate) is_up: bool,
    /// End of the node's last pause.
    pub(crate) resumed: Time,
}

/// All covered links of a network, by sender and link id.
#[derive(Default)]
pub(crate) struct CoverChecker {
    tier: Option<CoverTier>,
    links: BTreeMap<(usize, LinkId), CoveredDirection>,
}

impl CoverChecker {
    /// All links with this schedule. None: no link is covered.
    pub(crate) fn new(tier: Option<CoverTier>) -> CoverChecker {
        CoverChecker { tier, links: BTreeMap::new() }
    }

    /// Notes that a frame of this length left, over the wire between the two nodes (`there`) or to
    /// another address.
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

    /// Notes that the wire had no room for frames.
    pub(crate) fn refused(&mut self, of: (usize, LinkId)) {
        if let Some(watched) = self.links.get_mut(&of) {
            watched.refused = true;
        }
    }

    /// Checks one direction of a link after the sender's step, which ended at `now` by the sender's
    /// clock.
    pub(crate) fn check(
        &mut self,
        of: (usize, LinkId),
        now: Time,
        says: CoverReport,
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
        // A backlog of more than a second is not made up for. The count begins when no frames are
        // owed.
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
        // A frame to the address to which the neighbour seems to have moved leaves in addition to a
        // slot.
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

    /// Checks the distribution of all intervals between slots.
    pub(crate) fn check_end(&self) -> Result<(), (&'static str, String)> {
        let all = self.links.iter().filter(|(_, watched)| !watched.gaps.is_empty());
        all.map(|(of, watched)| uniform(&watched.gaps).map_err(|seen| (of.0, seen)))
            .try_for_each(|result| result)
            .map_err(|(node, seen)| {
                (TIMES, format!("node {node}: {}", seen.replace("cells", "times")))
            })
    }
}

/// Fewest and most slots in this many whole gaps. A Poisson count is outside with probability 10^-9
/// (Bernstein's bounds). The bounds are half as wide again, since they are checked again and again.
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

    /// Result for a link that uses a slot after each of these intervals, for 30 s.
    fn check(tier: CoverTier, mut next: impl FnMut() -> Duration) -> Result<(), &'static str> {
        let (mut covers, mut now) = (CoverChecker::new(Some(tier)), Time::from_millis(1_000));
        let resumed = Time::ZERO;
        let says = CoverReport { to: 1, runs: true, in_parts: false, is_up: true, resumed };
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
