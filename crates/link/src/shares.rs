//! Turns of a covered link. A turn is one of the 32 frames of a round. Each turn belongs to one
//! peer or to none, and no other peer may use it.
//!
//! ```text
//! a round has 32 frames:              0 1 2 3 4 5 6 7 8 9 ... 16 ... 31
//! a new peer holds 2 of them:         x . . . . . . . . . ...  x ...  .
//! a peer with a backlog, up to 16:    x . x . x . x . x . ...  x ...  .
//! ```
//!
//! A cell waits for a turn of its own peer. If that peer has no cell, the turn stays empty. The
//! waiting time of a cell therefore does not depend on other peers' traffic. The cost is speed: a
//! peer gets at most half of the frames, even if all others are idle.
//!
//! Peers beyond eight share the turns of the peer that came last. A crowd of new peers therefore
//! neither slows nor affects the earlier ones.

use std::collections::VecDeque;

use crate::egress::{Priority, QueuedFrame};

/// Turns in a round.
const TURNS: usize = 32;
/// Turns of a new peer.
const FIRST: usize = 2;
/// Maximum number of turns of a peer.
const MOST: usize = TURNS / 2;
/// Maximum number of peers with their own turns. Half of all turns is left for peers with a
/// backlog.
const PEERS: usize = TURNS / 2 / FIRST;
/// A peer that uses less than half of its turns for this many rounds loses half of them.
const SLACK_ROUNDS: u32 = 8;

/// One peer: its waiting cells and its use of turns.
#[derive(Default)]
struct PeerQueue {
    key: u64,
    /// Control cells of the peer, which leave before its data cells.
    urgent: VecDeque<QueuedFrame>,
    waiting: VecDeque<QueuedFrame>,
    turns: usize,
    /// Cells that left in this round.
    used: usize,
    /// Consecutive rounds in which the peer used less than half of its turns.
    slack: u32,
    /// Consecutive rounds in which the peer had no cell.
    idle: u32,
}

/// Waiting cells of one covered link, by peer.
pub(crate) struct TurnScheduler {
    peers: Vec<Option<PeerQueue>>,
    /// Slot of the peer that came last.
    newest: usize,
    /// The peer slot that holds each turn. Turns with consecutive numbers lie far apart in a round:
    /// see [`place`].
    holders: [Option<u8>; TURNS],
    /// Frames so far.
    frames: usize,
    waiting: usize,
    /// Number of rounds without a cell after which a peer loses its turns.
    idle_max: u32,
}

/// Number of the turn in which a frame falls. Reversing the five bits spreads each block of 2^n
/// turns evenly over the round.
fn place(frame: usize) -> usize {
    ((frame % TURNS) as u8).reverse_bits() as usize >> (8 - TURNS.trailing_zeros())
}

impl PeerQueue {
    fn len(&self) -> usize {
        self.urgent.len() + self.waiting.len()
    }

    fn pop(&mut self) -> Option<QueuedFrame> {
        self.urgent.pop_front().or_else(|| self.waiting.pop_front())
    }
}

impl TurnScheduler {
    pub(crate) fn new(idle_max: u32) -> TurnScheduler {
        let peers = (0..PEERS).map(|_| None).collect();
        TurnScheduler { peers, newest: 0, holders: [None; TURNS], frames: 0, waiting: 0, idle_max }
    }

    /// An empty scheduler with the same `idle_max`.
    pub(crate) fn emptied(&self) -> TurnScheduler {
        TurnScheduler::new(self.idle_max)
    }

    /// Number of waiting cells.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Number of waiting cells of the peer with the longest queue.
    pub(crate) fn longest(&self) -> usize {
        self.peers.iter().flatten().map(PeerQueue::len).max().unwrap_or(0)
    }

    /// Number of cells waiting in the slot that a peer uses.
    pub(crate) fn len_of(&self, key: u64) -> usize {
        let peer = self.place_of(key).and_then(|at| self.peers[at].as_ref());
        peer.map_or(0, PeerQueue::len)
    }

    /// The slot of a peer: its own, or the newest peer's if no slot is free.
    fn place_of(&self, key: u64) -> Option<usize> {
        let same = |peer: &Option<PeerQueue>| peer.as_ref().is_some_and(|peer| peer.key == key);
        let is_full = self.peers.iter().all(Option::is_some);
        self.peers.iter().position(same).or(is_full.then_some(self.newest))
    }

    /// Adds a cell of a peer. A new peer gets turns, and a peer with a backlog gets more.
    pub(crate) fn push(&mut self, key: u64, priority: Priority, cell: QueuedFrame) {
        let at = self.find(key);
        let Some(peer) = &mut self.peers[at] else { return };
        match priority {
            Priority::Control => peer.urgent.push_back(cell),
            Priority::Data => peer.waiting.push_back(cell),
        }
        self.waiting += 1;
        let (backlog, turns) = (peer.len(), peer.turns);
        if backlog > 2 * turns && turns < MOST {
            let wanted = turns.min(MOST - turns);
            if self.grant(at, wanted) == 0 && self.take_from_largest(turns) {
                self.grant(at, 1);
            }
        }
    }

    /// Takes the cell for the next frame. Returns None if the holder of the turn has no cell.
    pub(crate) fn turn(&mut self) -> Option<QueuedFrame> {
        let holder = self.holders[place(self.frames)];
        self.frames += 1;
        let peer = holder.and_then(|at| self.peers[at as usize].as_mut());
        let cell = peer.and_then(|peer| {
            let cell = peer.pop()?;
            peer.used += 1;
            Some(cell)
        });
        self.waiting -= usize::from(cell.is_some());
        if self.frames.is_multiple_of(TURNS) {
            self.end_round();
        }
        cell
    }

    /// Takes the next cell of any peer, regardless of turns.
    pub(crate) fn any(&mut self) -> Option<QueuedFrame> {
        let cell = self.peers.iter_mut().flatten().find_map(PeerQueue::pop);
        self.waiting -= usize::from(cell.is_some());
        cell
    }

    /// The slot of a peer. A new peer gets a free slot, or shares the newest peer's.
    fn find(&mut self, key: u64) -> usize {
        if let Some(at) = self.place_of(key) {
            return at;
        }
        let Some(at) = self.peers.iter().position(Option::is_none) else { return self.newest };
        self.peers[at] = Some(PeerQueue { key, ..PeerQueue::default() });
        self.newest = at;
        for _ in self.grant(at, FIRST)..FIRST {
            if self.take_from_largest(FIRST) {
                self.grant(at, 1);
            }
        }
        at
    }

    /// Takes one turn from the peer with most turns, if it has at least two more than `turns`.
    /// Returns true if it did.
    fn take_from_largest(&mut self, turns: usize) -> bool {
        let turns_of = |at: &usize| self.peers[*at].as_ref().map_or(0, |peer| peer.turns);
        let Some(largest) = (0..PEERS).max_by_key(turns_of) else { return false };
        let Some(peer) = self.peers[largest].as_mut().filter(|peer| peer.turns > turns + 1) else {
            return false;
        };
        peer.turns -= 1;
        let last = self.holders.iter().rposition(|holder| *holder == Some(largest as u8));
        last.is_some_and(|turn| self.holders[turn].take().is_some())
    }

    /// Gives up to `wanted` free turns to a peer: evenly spaced turns if enough are free, else any.
    /// Half of all turns is reserved for new peers. Returns the number of turns given.
    fn grant(&mut self, at: usize, wanted: usize) -> usize {
        let is_free = |turn: usize| self.holders[turn].is_none();
        let whole = (0..TURNS / wanted.max(1))
            .map(|block| block * wanted)
            .find(|&first| (first..first + wanted).all(is_free));
        let from = whole.unwrap_or(0);
        let turns: Vec<usize> =
            (from..TURNS).filter(|&turn| is_free(turn)).take(wanted.min(self.spare(at))).collect();
        let Some(peer) = &mut self.peers[at] else { return 0 };
        for &turn in &turns {
            self.holders[turn] = Some(at as u8);
            peer.turns += 1;
        }
        turns.len()
    }

    /// Maximum number of turns that a peer may be given: its missing first turns, plus those not
    /// reserved for future peers.
    fn spare(&self, at: usize) -> usize {
        let has = |peer: &PeerQueue| peer.turns;
        let first = FIRST.saturating_sub(self.peers[at].as_ref().map_or(0, has));
        let beyond: usize =
            self.peers.iter().flatten().map(|peer| has(peer).saturating_sub(FIRST)).sum();
        first + (TURNS - PEERS * FIRST - beyond)
    }

    fn end_round(&mut self) {
        for at in 0..PEERS {
            let Some(peer) = &mut self.peers[at] else { continue };
            let used = core::mem::take(&mut peer.used);
            let busy = used > 0 || peer.len() > 0;
            peer.idle = if busy { 0 } else { peer.idle + 1 };
            let spare = used * 2 < peer.turns && peer.turns > FIRST;
            peer.slack = if spare { peer.slack + 1 } else { 0 };
            let keeps = match (peer.idle >= self.idle_max, peer.slack >= SLACK_ROUNDS) {
                (true, _) => 0,
                (_, true) => (peer.turns / 2).max(FIRST),
                _ => peer.turns,
            };
            let lost = core::mem::replace(&mut peer.turns, keeps) - keeps;
            if lost > 0 {
                peer.slack = 0;
                let held = (0..TURNS).rev().filter(|&turn| self.holders[turn] == Some(at as u8));
                held.take(lost).collect::<Vec<_>>().iter().for_each(|&t| self.holders[t] = None);
            }
            if keeps == 0 {
                self.peers[at] = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_wire::SizeClass;

    fn cell(slot: u32) -> QueuedFrame {
        QueuedFrame { slot, class: SizeClass::Full }
    }

    /// Frames in which the cells of peer 7 leave, at one cell per 21 frames. Another peer adds
    /// `busy(frame)` cells at each frame.
    fn frames_of_seven(busy: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut shares = TurnScheduler::new(32);
        let mut left = Vec::new();
        for frame in 0..4_000 {
            for _ in 0..busy(frame) {
                if shares.len_of(1) < 44 {
                    shares.push(1, Priority::Data, cell(0));
                }
            }
            if frame % 21 == 0 {
                shares.push(7, Priority::Data, cell(7));
            }
            if shares.turn().is_some_and(|cell| cell.slot == 7) {
                left.push(frame);
            }
        }
        left
    }

    #[test]
    fn other_peers_traffic_does_not_delay_a_cell() {
        let alone = frames_of_seven(|_| 0);
        assert!(alone.len() > 180);
        for busy in [1, 3] {
            assert_eq!(frames_of_seven(|frame| usize::from(frame > 50) * busy), alone);
        }
        assert_eq!(frames_of_seven(|frame| usize::from(frame > 50 && frame / 300 % 2 == 0)), alone);
    }

    #[test]
    fn a_peer_with_a_backlog_gets_half_of_the_frames() {
        let mut shares = TurnScheduler::new(32);
        let mut left = 0;
        for _ in 0..3_200 {
            if shares.len_of(1) < 44 {
                shares.push(1, Priority::Data, cell(0));
            }
            left += usize::from(shares.turn().is_some());
        }
        assert!((1_500..=1_600).contains(&left), "{left}");
    }

    #[test]
    fn many_peers_leave_a_busy_one_its_share() {
        let mut shares = TurnScheduler::new(32);
        let mut left = 0;
        for frame in 0..6_400 {
            if shares.len_of(1) < 44 {
                shares.push(1, Priority::Data, cell(1));
            }
            let pinger = 100 + frame % 64;
            if shares.len_of(pinger) < 44 {
                shares.push(pinger, Priority::Data, cell(0));
            }
            left += usize::from(shares.turn().is_some_and(|cell| cell.slot == 1));
        }
        assert!(left >= 1_900, "{left}");
    }

    #[test]
    fn two_busy_peers_share_evenly() {
        let mut shares = TurnScheduler::new(32);
        let mut left = [0; 3];
        for frame in 0..3_200 {
            for key in [0, 1, 2].into_iter().filter(|key| frame >= key * 64) {
                if shares.len_of(key as u64) < 44 {
                    shares.push(key as u64, Priority::Data, cell(key as u32));
                }
            }
            if let Some(cell) = shares.turn() {
                left[cell.slot as usize] += 1;
            }
        }
        assert!(left.iter().all(|&n| n > 500), "{left:?}");
    }

    #[test]
    fn a_silent_peer_loses_its_turns() {
        let mut shares = TurnScheduler::new(4);
        for key in 0..8 {
            shares.push(key, Priority::Data, cell(0));
        }
        assert_eq!(shares.holders.iter().flatten().count(), 16);
        let left = (0..32 * 6).filter(|_| shares.turn().is_some()).count();
        assert_eq!((left, shares.len()), (8, 0));
        assert!(shares.holders.iter().all(Option::is_none));
        assert!(shares.peers.iter().all(Option::is_none));
    }

    #[test]
    fn turns_of_a_peer_lie_far_apart() {
        let mut shares = TurnScheduler::new(32);
        let mine = |shares: &TurnScheduler| -> Vec<usize> {
            (0..TURNS).filter(|&frame| shares.holders[place(frame)].is_some()).collect()
        };
        shares.push(1, Priority::Data, cell(0));
        assert_eq!(mine(&shares), [0, 16]);
        (0..16).for_each(|_| shares.push(1, Priority::Data, cell(0)));
        assert_eq!(mine(&shares).len(), 16);
        assert!(mine(&shares).iter().all(|frame| frame % 2 == 0));
    }
}
