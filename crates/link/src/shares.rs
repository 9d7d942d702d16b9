//! Turns of a covered link: each peer has some of its own, and nobody else uses them.
//!
//! ```text
//! frames   0 1 2 3 4 5 6 7 8 9 ...          a round has 32 of them
//! turns of a . . . . . . . . . .            a peer that is new: 2, as far apart as can be
//! turns of b . b . b . b . b . .            a peer with a backlog: up to 16
//! ```
//!
//! A cell waits for a turn of its own peer. A turn whose peer has no cell leaves empty, so how long
//! a cell waits does not depend on what other peers send. The price is speed: a peer has half of
//! the frames at most, however idle the others are. Peers beyond eight share the turns of the one
//! that came last, so that a crowd that arrives neither slows nor meets who was there before.

use std::collections::VecDeque;

use crate::egress::{Priority, Waiting};

/// Turns of a round.
const TURNS: usize = 32;
/// Turns of a peer that is new.
const FIRST: usize = 2;
/// Turns that a peer may have.
const MOST: usize = TURNS / 2;
/// Peers that have turns of their own: half of the turns are left for those with a backlog.
const PEERS: usize = TURNS / 2 / FIRST;
/// A peer that used less than half of its turns in so many rounds gives half of them back.
const SLACK_ROUNDS: u32 = 8;

/// Cells of one peer, and how it uses its turns.
#[derive(Default)]
struct Peer {
    key: u64,
    /// Cells of class control, which leave before its others.
    urgent: VecDeque<Waiting>,
    waiting: VecDeque<Waiting>,
    turns: usize,
    /// Cells that left in this round.
    used: usize,
    /// Rounds in a row in which it used less than half of its turns, and none.
    slack: u32,
    idle: u32,
}

/// The cells that wait on one covered link, by peer.
pub(crate) struct Shares {
    peers: Vec<Option<Peer>>,
    /// The one that came last.
    newest: usize,
    /// Holder of each turn, by the number of the turn. Numbers that follow each other lie far
    /// apart in a round: see [`place`].
    holders: [Option<u8>; TURNS],
    /// Frames so far.
    frames: usize,
    waiting: usize,
    /// A peer without a cell for so many rounds loses its turns.
    idle_max: u32,
}

/// Turn of a frame within its round: five bits in reverse, so that a block of 2^n turns is evenly
/// spread over the round.
fn place(frame: usize) -> usize {
    ((frame % TURNS) as u8).reverse_bits() as usize >> (8 - TURNS.trailing_zeros())
}

impl Peer {
    fn len(&self) -> usize {
        self.urgent.len() + self.waiting.len()
    }

    fn pop(&mut self) -> Option<Waiting> {
        self.urgent.pop_front().or_else(|| self.waiting.pop_front())
    }
}

impl Shares {
    pub(crate) fn new(idle_max: u32) -> Shares {
        let peers = (0..PEERS).map(|_| None).collect();
        Shares { peers, newest: 0, holders: [None; TURNS], frames: 0, waiting: 0, idle_max }
    }

    /// Shares of the same size without cells and turns.
    pub(crate) fn emptied(&self) -> Shares {
        Shares::new(self.idle_max)
    }

    /// Cells that wait.
    pub(crate) fn len(&self) -> usize {
        self.waiting
    }

    /// Cells that wait of the peer that has most.
    pub(crate) fn longest(&self) -> usize {
        self.peers.iter().flatten().map(Peer::len).max().unwrap_or(0)
    }

    /// Cells that wait where those of a peer do.
    pub(crate) fn len_of(&self, key: u64) -> usize {
        let peer = self.place_of(key).and_then(|at| self.peers[at].as_ref());
        peer.map_or(0, Peer::len)
    }

    /// Place in which cells of a peer wait: its own one, or the newest one's where none is free.
    fn place_of(&self, key: u64) -> Option<usize> {
        let same = |peer: &Option<Peer>| peer.as_ref().is_some_and(|peer| peer.key == key);
        let is_full = self.peers.iter().all(Option::is_some);
        self.peers.iter().position(same).or(is_full.then_some(self.newest))
    }

    /// Adds a cell of a peer, which gets turns if it is new, and more of them if it has a backlog.
    pub(crate) fn push(&mut self, key: u64, priority: Priority, cell: Waiting) {
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

    /// The cell that leaves in the next frame, if its turn has one.
    pub(crate) fn turn(&mut self) -> Option<Waiting> {
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

    /// The next cell of whichever peer has one, where turns don't count any more.
    pub(crate) fn any(&mut self) -> Option<Waiting> {
        let cell = self.peers.iter_mut().flatten().find_map(Peer::pop);
        self.waiting -= usize::from(cell.is_some());
        cell
    }

    /// The place of a peer. One that is new gets a free one, or else shares the newest one's.
    fn find(&mut self, key: u64) -> usize {
        if let Some(at) = self.place_of(key) {
            return at;
        }
        let Some(at) = self.peers.iter().position(Option::is_none) else { return self.newest };
        self.peers[at] = Some(Peer { key, ..Peer::default() });
        self.newest = at;
        for _ in self.grant(at, FIRST)..FIRST {
            if self.take_from_largest(FIRST) {
                self.grant(at, 1);
            }
        }
        at
    }

    /// Has the peer with most turns lose one to a peer that has so many; says whether it did.
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

    /// Gives a peer so many free turns, as far as there are any: a block of equal distances, else
    /// those that are free. Half of the turns stay for peers that are new. Says how many it gave.
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

    /// Turns that a peer may be given: all of its first ones, and of others those that are not kept
    /// for peers that may still come.
    fn spare(&self, at: usize) -> usize {
        let has = |peer: &Peer| peer.turns;
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

    fn cell(slot: u32) -> Waiting {
        Waiting { slot, class: SizeClass::Full }
    }

    /// The frames in which the cells of peer 7 leave, which come one in each 21 frames, while
    /// another peer has so many cells in each frame, at frames that `busy` names.
    fn frames_of_seven(busy: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut shares = Shares::new(32);
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
    fn a_cell_leaves_when_it_would_if_no_other_peer_sent_anything() {
        let alone = frames_of_seven(|_| 0);
        assert!(alone.len() > 180);
        for busy in [1, 3] {
            assert_eq!(frames_of_seven(|frame| usize::from(frame > 50) * busy), alone);
        }
        assert_eq!(frames_of_seven(|frame| usize::from(frame > 50 && frame / 300 % 2 == 0)), alone);
    }

    #[test]
    fn a_peer_with_a_backlog_gets_half_of_the_frames() {
        let mut shares = Shares::new(32);
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
        let mut shares = Shares::new(32);
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
        let mut shares = Shares::new(32);
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
    fn who_is_silent_gives_its_turns_back() {
        let mut shares = Shares::new(4);
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
        let mut shares = Shares::new(32);
        let mine = |shares: &Shares| -> Vec<usize> {
            (0..TURNS).filter(|&frame| shares.holders[place(frame)].is_some()).collect()
        };
        shares.push(1, Priority::Data, cell(0));
        assert_eq!(mine(&shares), [0, 16]);
        (0..16).for_each(|_| shares.push(1, Priority::Data, cell(0)));
        assert_eq!(mine(&shares).len(), 16);
        assert!(mine(&shares).iter().all(|frame| frame % 2 == 0));
    }
}
