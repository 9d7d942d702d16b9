//! The firewall's flows, in the order in which they may be displaced.
//!
//! Each member has one queue of flows per [`FlowState`], the longest silent flow first. So making
//! room looks at the front of five queues, regardless of the number of flows.
//!
//! Invariant: each flow is in exactly one queue, that of its member and standing.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::Time;

use super::{Key, TrackedFlow};

/// State of a flow; flows of earlier variants are displaced first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlowState {
    /// TCP with FINs of both ends, or a reset.
    Over,
    /// Packets of one end only.
    Unanswered,
    /// Packets of both ends, on a short flow: an echo, or TCP with one FIN.
    Brief,
    /// UDP with packets of both ends.
    Udp,
    /// TCP with packets of both ends.
    Tcp,
}

const STANDINGS: [FlowState; 5] =
    [FlowState::Over, FlowState::Unanswered, FlowState::Brief, FlowState::Udp, FlowState::Tcp];

impl FlowState {
    /// Minimum silence before another flow of the same member may displace the flow.
    fn spared(self) -> Duration {
        match self {
            FlowState::Over => Duration::ZERO,
            // Longer than a program needs for its answer.
            FlowState::Unanswered => Duration::from_secs(2),
            FlowState::Brief | FlowState::Udp => Duration::from_secs(10),
            FlowState::Tcp => Duration::from_secs(60),
        }
    }
}

/// Marks the end of a queue.
const NONE: u32 = u32::MAX;
/// Expired flows to remove whenever a flow begins, per member checked.
const TIDIED: usize = 2;

#[derive(Clone, Copy, Debug)]
struct FlowEntry {
    key: Key,
    flow: TrackedFlow,
    standing: FlowState,
    before: u32,
    behind: u32,
}

#[derive(Clone, Copy, Debug)]
struct FlowQueue {
    front: u32,
    back: u32,
}

/// A member's flows.
#[derive(Clone, Copy, Debug)]
struct MemberFlows {
    flows: usize,
    queues: [FlowQueue; STANDINGS.len()],
}

impl Default for MemberFlows {
    fn default() -> MemberFlows {
        MemberFlows { flows: 0, queues: [FlowQueue { front: NONE, back: NONE }; STANDINGS.len()] }
    }
}

#[derive(Debug, Default)]
pub(crate) struct FlowTable {
    places: Vec<FlowEntry>,
    free: Vec<u32>,
    index: BTreeMap<Key, u32>,
    shares: BTreeMap<u32, MemberFlows>,
    /// Number of flows and member, sorted.
    by_size: BTreeSet<(usize, u32)>,
    /// The other member that was tidied last, in turn.
    tidied: u32,
}

impl FlowTable {
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Flows of one member.
    pub(crate) fn share(&self, member: u32) -> usize {
        self.shares.get(&member).map_or(0, |share| share.flows)
    }

    /// The largest number of flows, and its member.
    pub(crate) fn largest(&self) -> Option<(usize, u32)> {
        self.by_size.last().copied()
    }

    /// A flow, even if expired.
    pub(crate) fn get(&self, key: &Key) -> Option<TrackedFlow> {
        self.index.get(key).map(|at| self.places[*at as usize].flow)
    }

    /// Adds a flow or replaces its state, and moves it to the back of its queue.
    pub(crate) fn put(&mut self, key: Key, flow: TrackedFlow) {
        let standing = flow.standing(key.protocol);
        match self.index.get(&key) {
            Some(&at) => {
                self.unlink(at);
                let place = &mut self.places[at as usize];
                (place.flow, place.standing) = (flow, standing);
                self.link(at);
            }
            None => {
                let place = FlowEntry { key, flow, standing, before: NONE, behind: NONE };
                let at = match self.free.pop() {
                    Some(at) => {
                        self.places[at as usize] = place;
                        at
                    }
                    None => {
                        self.places.push(place);
                        (self.places.len() - 1) as u32
                    }
                };
                self.index.insert(key, at);
                self.resize(key.member, |flows| flows + 1);
                self.link(at);
            }
        }
    }

    /// Forgets all flows of a member.
    pub(crate) fn forget(&mut self, member: u32) {
        let Some(share) = self.shares.get(&member).copied() else { return };
        for queue in share.queues {
            let mut at = queue.front;
            while at != NONE {
                let next = self.places[at as usize].behind;
                self.remove(at);
                at = next;
            }
        }
    }

    /// Visits every flow: `change` returns its new state, or `None` to remove it.
    pub(crate) fn review(
        &mut self,
        mut change: impl FnMut(&Key, TrackedFlow) -> Option<TrackedFlow>,
    ) {
        let all: Vec<(Key, u32)> = self.index.iter().map(|(key, at)| (*key, *at)).collect();
        for (key, at) in all {
            let flow = self.places[at as usize].flow;
            match change(&key, flow) {
                Some(same) if same == flow => {}
                Some(other) => self.put(key, other),
                None => self.remove(at),
            }
        }
    }

    /// Removes some expired flows of this member and of another one, in turn.
    pub(crate) fn tidy(&mut self, now: Time, member: u32) {
        let next = self.tidied.wrapping_add(1);
        let next = self.shares.range(next..).next().or(self.shares.iter().next());
        self.tidied = next.map_or(0, |(member, _)| *member);
        for member in [member, self.tidied] {
            for _ in 0..TIDIED {
                let Some(share) = self.shares.get(&member) else { break };
                let fronts = share.queues.iter().map(|queue| queue.front);
                let over = |at: &u32| *at != NONE && self.places[*at as usize].flow.until <= now;
                let Some(at) = fronts.into_iter().find(over) else { break };
                self.remove(at);
            }
        }
    }

    /// Removes one flow of a member: by standing the first that was silent for long enough, or the
    /// first of all if `must`. Returns `None` if there was none, else true if the flow was alive.
    pub(crate) fn make_room(&mut self, now: Time, member: u32, must: bool) -> Option<bool> {
        let share = self.shares.get(&member)?;
        let (at, alive) = STANDINGS.iter().zip(&share.queues).find_map(|(standing, queue)| {
            let place = self.places.get(queue.front as usize)?;
            let alive = place.flow.until > now && *standing != FlowState::Over;
            let silent = now.since(place.flow.heard);
            let may = must || silent >= standing.spared();
            (may || place.flow.until <= now).then_some((queue.front, alive))
        })?;
        self.remove(at);
        Some(alive)
    }

    fn remove(&mut self, at: u32) {
        self.unlink(at);
        let key = self.places[at as usize].key;
        self.index.remove(&key);
        self.free.push(at);
        self.resize(key.member, |flows| flows - 1);
    }

    fn resize(&mut self, member: u32, change: impl FnOnce(usize) -> usize) {
        let share = self.shares.entry(member).or_default();
        self.by_size.remove(&(share.flows, member));
        share.flows = change(share.flows);
        if share.flows == 0 {
            self.shares.remove(&member);
        } else {
            self.by_size.insert((share.flows, member));
        }
    }

    fn queue(&mut self, member: u32, standing: FlowState) -> &mut FlowQueue {
        &mut self.shares.entry(member).or_default().queues[standing as usize]
    }

    /// Appends an entry to its queue.
    fn link(&mut self, at: u32) {
        let FlowEntry { key, standing, .. } = self.places[at as usize];
        let queue = self.queue(key.member, standing);
        let last = core::mem::replace(&mut queue.back, at);
        if last == NONE {
            queue.front = at;
        } else {
            self.places[last as usize].behind = at;
        }
        (self.places[at as usize].before, self.places[at as usize].behind) = (last, NONE);
    }

    /// Removes an entry from its queue.
    fn unlink(&mut self, at: u32) {
        let FlowEntry { key, standing, before, behind, .. } = self.places[at as usize];
        match before {
            NONE => self.queue(key.member, standing).front = behind,
            before => self.places[before as usize].behind = behind,
        }
        match behind {
            NONE => self.queue(key.member, standing).back = before,
            behind => self.places[behind as usize].before = before,
        }
    }
}

#[cfg(test)]
impl FlowTable {
    /// Maximum bytes per flow in a full table.
    pub(crate) const FLOW_BYTES: usize = {
        // An index node is at least half full; a free-list entry has four bytes.
        size_of::<FlowEntry>() + 2 * (size_of::<Key>() + 4) + 4
    };

    /// Checks the invariants.
    pub(crate) fn check(&self) {
        let mut seen = 0;
        for (member, share) in &self.shares {
            let mut own = 0;
            for (standing, queue) in STANDINGS.iter().zip(&share.queues) {
                let (mut at, mut before, mut heard) = (queue.front, NONE, Time::ZERO);
                while at != NONE {
                    let place = &self.places[at as usize];
                    assert_eq!((place.key.member, place.standing), (*member, *standing));
                    assert_eq!((place.before, self.index.get(&place.key)), (before, Some(&at)));
                    assert_eq!(place.flow.standing(place.key.protocol), *standing);
                    assert!(place.flow.heard >= heard, "the longest silent flow is first");
                    (before, at, heard) = (at, place.behind, place.flow.heard);
                    own += 1;
                }
                assert_eq!(queue.back, before);
            }
            assert!(own == share.flows && own > 0 && self.by_size.contains(&(own, *member)));
            seen += own;
        }
        assert_eq!((seen, self.by_size.len()), (self.index.len(), self.shares.len()));
        assert_eq!(seen + self.free.len(), self.places.len());
    }
}
