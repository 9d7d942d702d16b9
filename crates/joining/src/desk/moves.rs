//! Moves of hosts: a host may leave a router that does not answer.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::PublicKey;
use shoal_directory::{Mandate, Member, Step, StepEntry};
use shoal_wire::Time;

use super::homes::HostRouter;
use super::places;
use super::visits::VisitId;
use super::{Desk, Disk};
use crate::messages::{Answer, Refusal};
use crate::record::StepCause;

/// Maximum number of moves of one key within [`MOVES_WITHIN_S`]. Each move is a step of the chain,
/// and a chain has a limit.
const MOVES_MAX: usize = 3;
const MOVES_WITHIN_S: u64 = 7 * 86_400;

/// Last moves of each member, by the first half of its key: time in seconds since 1970, and number
/// of the router that it left.
#[derive(Default)]
pub(super) struct MoveLog {
    moves: BTreeMap<[u8; 32], VecDeque<(u64, u32)>>,
}

impl MoveLog {
    /// Records a move.
    pub(super) fn note(&mut self, key: &PublicKey, router: u32, unix_s: u64) {
        let moves = self.moves.entry(key.dh).or_default();
        moves.push_back((unix_s, router));
        if moves.len() > MOVES_MAX {
            moves.pop_front();
        }
    }

    /// Counts the moves of a replaced key for its new key, so that another key gives no more moves.
    pub(super) fn rekeyed(&mut self, before: &PublicKey, step: &Step) {
        let Some(moves) = self.moves.remove(&before.dh) else { return };
        let new = step.entries.iter().find_map(|entry| match entry {
            StepEntry::Member(member) => Some(member.key.dh),
            _ => None,
        });
        self.moves.extend(new.map(|half| (half, moves)));
    }

    /// True if the key with this first half may not move again yet.
    fn is_full(&self, half: &[u8; 32], unix_s: u64) -> bool {
        let moves = self.moves.get(half).filter(|moves| moves.len() >= MOVES_MAX);
        let first = moves.and_then(VecDeque::front);
        first.is_some_and(|(first, _)| unix_s < first.saturating_add(MOVES_WITHIN_S))
    }

    /// Routers that hosts left within the last [`MOVES_WITHIN_S`], one for each move.
    pub(super) fn left(&self, unix_s: u64) -> impl Iterator<Item = u32> {
        let all = self.moves.values().flatten();
        let recent = all.filter(move |(at, _)| unix_s < at.saturating_add(MOVES_WITHIN_S));
        recent.map(|(_, router)| *router)
    }

    /// Routers that the key with this first half left in its last moves.
    fn left_by(&self, half: &[u8; 32]) -> Vec<u32> {
        let moves = self.moves.get(half).into_iter().flatten();
        moves.map(|(_, router)| *router).collect()
    }
}

impl<D: Disk> Desk<D> {
    /// Moves the visitor, a host, behind another router than `router`. If it is behind another one
    /// already, nothing changes, so a repeated request gets the same answer.
    pub(super) fn move_host(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        router: u32,
    ) -> Result<Answer, Refusal> {
        let half = self.visits.get_mut(id).ok_or(Refusal::Registrar)?.half;
        let mandate = self.mandate_now(at.0, at.1)?;
        let gone = self.gone(&half);
        let member = self.member_by_half(&half).ok_or(gone)?.clone();
        if self.is_removed(&member.key) {
            return Err(Refusal::Key);
        }
        if self.is_adopted(&member.key) {
            return Err(Refusal::Adopted);
        }
        if member.expires_unix_s <= at.1 {
            return Err(Refusal::Ended);
        }
        if member.address.is_router() {
            return Err(Refusal::NoRouter);
        }
        let key = member.key;
        if member.address.router == router {
            if self.moves.is_full(&half, at.1) {
                return Err(Refusal::Moved);
            }
            let moved = self.at_another(&mandate, member, at).ok_or(Refusal::NoRouter)?;
            let moved = self.newer(moved);
            let entries = vec![StepEntry::Member(Box::new(moved))];
            self.step(StepCause::Moved, key, entries, at).map_err(|e| self.refused(&e))?;
            let last = self.register().and_then(|register| register.step(register.len()));
            let issued_unix_s = last.map_or(at.1, |last| last.step().issued_unix_s);
            self.moves.note(&key, router, issued_unix_s);
            self.stats.moved += 1;
        }
        self.granted(id, &key, at).ok_or(Refusal::Key)
    }

    /// The host behind another router than its first one. The second address stays, so routers of
    /// another family than the second router come first. If no further router has room, the two
    /// addresses change places. A router that the host left before comes last.
    fn at_another(&mut self, mandate: &Mandate, host: Member, at: (Time, u64)) -> Option<Member> {
        let routers = self.host_routers(mandate, at);
        let second = host.second;
        let beside = second.and_then(|second| routers.iter().find(|r| r.number == second.router));
        let beside = beside.filter(|router| router.is_open).cloned();
        let rank = |router: &HostRouter| {
            let is_related = beside.as_ref().is_some_and(|beside| beside.is_related(router));
            (is_related, router.rank())
        };
        let mut further = self.in_order(&routers, rank);
        further.retain(|number| host.addresses().at(*number).is_none());
        let left = self.moves.left_by(&host.key.dh);
        let (before, fresh): (Vec<u32>, Vec<u32>) =
            further.into_iter().partition(|number| left.contains(number));
        let register = self.register()?;
        if let Some(address) = places::choose_router(register, self.holders(at.1), &fresh) {
            return Some(Member { address, ..host });
        }
        if let Some(address) = second.filter(|_| beside.is_some()) {
            return Some(Member { address, second: Some(host.address), ..host });
        }
        let address = places::choose_router(register, self.holders(at.1), &before)?;
        Some(Member { address, ..host })
    }
}

#[cfg(test)]
#[path = "moves_tests.rs"]
pub(super) mod tests;
