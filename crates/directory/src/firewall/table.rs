//! The flows that a firewall remembers, in the order in which they may be forgotten.
//!
//! Each member's flows stand in queues, one per [`Standing`], the flow that was silent for longest
//! in front: making room looks at the front of five queues, however many flows there are.
//!
//! Invariant: every flow stands in the queue of its member and standing, and in no other.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use shoal_wire::Time;

use super::{Flow, Key};

/// How much is known of a flow; the first to go stands first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Standing {
    /// TCP that both ends have left, or that one has reset.
    Over,
    /// One end alone spoke.
    Unanswered,
    /// Both spoke, on what is soon over: an echo, TCP that one end has left.
    Brief,
    /// UDP that both spoke on.
    Udp,
    /// TCP that both spoke on.
    Tcp,
}

const STANDINGS: [Standing; 5] =
    [Standing::Over, Standing::Unanswered, Standing::Brief, Standing::Udp, Standing::Tcp];

impl Standing {
    /// So long a flow must have been silent before another flow of the same member takes its place.
    fn spared(self) -> Duration {
        match self {
            Standing::Over => Duration::ZERO,
            // Longer than a program takes to answer.
            Standing::Unanswered => Duration::from_secs(2),
            Standing::Brief | Standing::Udp => Duration::from_secs(10),
            Standing::Tcp => Duration::from_secs(60),
        }
    }
}

/// No place.
const NONE: u32 = u32::MAX;
/// Flows that ran out and are forgotten for each one that begins, per member that is looked at.
const TIDIED: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Place {
    key: Key,
    flow: Flow,
    standing: Standing,
    before: u32,
    behind: u32,
}

#[derive(Clone, Copy, Debug)]
struct Queue {
    front: u32,
    back: u32,
}

/// What one member has of the table.
#[derive(Clone, Copy, Debug)]
struct Share {
    flows: usize,
    queues: [Queue; STANDINGS.len()],
}

impl Default for Share {
    fn default() -> Share {
        Share { flows: 0, queues: [Queue { front: NONE, back: NONE }; STANDINGS.len()] }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Table {
    places: Vec<Place>,
    free: Vec<u32>,
    index: BTreeMap<Key, u32>,
    shares: BTreeMap<u32, Share>,
    /// Members by how many flows they have.
    by_size: BTreeSet<(usize, u32)>,
    /// The member whose flows were tidied last, in turn.
    tidied: u32,
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.index.len()
    }

    /// Flows of one member.
    pub(crate) fn share(&self, member: u32) -> usize {
        self.shares.get(&member).map_or(0, |share| share.flows)
    }

    /// The member with the most flows, and how many they are.
    pub(crate) fn largest(&self) -> Option<(usize, u32)> {
        self.by_size.last().copied()
    }

    /// A flow, whether it ran out or not.
    pub(crate) fn get(&self, key: &Key) -> Option<Flow> {
        self.index.get(key).map(|at| self.places[*at as usize].flow)
    }

    /// Adds a flow, or replaces its state; something was just heard of it.
    pub(crate) fn put(&mut self, key: Key, flow: Flow) {
        let standing = flow.standing(key.protocol);
        match self.index.get(&key) {
            Some(&at) => {
                self.unlink(at);
                let place = &mut self.places[at as usize];
                (place.flow, place.standing) = (flow, standing);
                self.link(at);
            }
            None => {
                let place = Place { key, flow, standing, before: NONE, behind: NONE };
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

    /// Looks at every flow: `change` says what becomes of it, none to forget it.
    pub(crate) fn review(&mut self, mut change: impl FnMut(&Key, Flow) -> Option<Flow>) {
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

    /// Forgets some flows that ran out, of this member and of another one, each in its turn.
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

    /// Forgets one flow of a member: the first in the order of standings that was silent for long
    /// enough, or any where it `must` be. Says whether it could, and whether the flow was alive.
    pub(crate) fn make_room(&mut self, now: Time, member: u32, must: bool) -> Option<bool> {
        let share = self.shares.get(&member)?;
        let (at, alive) = STANDINGS.iter().zip(&share.queues).find_map(|(standing, queue)| {
            let place = self.places.get(queue.front as usize)?;
            let alive = place.flow.until > now && *standing != Standing::Over;
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

    fn queue(&mut self, member: u32, standing: Standing) -> &mut Queue {
        &mut self.shares.entry(member).or_default().queues[standing as usize]
    }

    /// Appends a place to its queue.
    fn link(&mut self, at: u32) {
        let Place { key, standing, .. } = self.places[at as usize];
        let queue = self.queue(key.member, standing);
        let last = core::mem::replace(&mut queue.back, at);
        if last == NONE {
            queue.front = at;
        } else {
            self.places[last as usize].behind = at;
        }
        (self.places[at as usize].before, self.places[at as usize].behind) = (last, NONE);
    }

    /// Takes a place out of its queue.
    fn unlink(&mut self, at: u32) {
        let Place { key, standing, before, behind, .. } = self.places[at as usize];
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
impl Table {
    /// Most bytes that a flow takes, as a full table has them.
    pub(crate) const FLOW_BYTES: usize = {
        // A node of the index is at least half full; the free list has four bytes.
        size_of::<Place>() + 2 * (size_of::<Key>() + 4) + 4
    };

    /// Everything is where it belongs.
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
                    assert!(place.flow.heard >= heard, "the longest silent stands first");
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
