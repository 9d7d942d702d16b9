//! Routers of hosts: new hosts are spread over the network's routers, and a host may leave a router
//! that does not answer.
//!
//! Nobody should be behind one router with everybody else, since a router sees all traffic of its
//! hosts. So a host gets the router with the fewest hosts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use shoal_crypto::PublicKey;
use shoal_directory::{Mandate, Member, Register, Step, StepEntry};
use shoal_wire::{Address, Time};

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
            StepEntry::Removed(_) => None,
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
    fn left(&self, unix_s: u64) -> impl Iterator<Item = u32> {
        let all = self.moves.values().flatten();
        let recent = all.filter(move |(at, _)| unix_s < at.saturating_add(MOVES_WITHIN_S));
        recent.map(|(_, router)| *router)
    }
}

impl<D: Disk> Desk<D> {
    /// Numbers of the routers for a new host: the one with the fewest hosts first, equal ones in
    /// random order. Only routers in force count that others can call: routers of the mandate's
    /// host ranges, and routers that joined by invites.
    pub(super) fn routers_for_host(
        &mut self,
        mandate: &Mandate,
        (now, unix_s): (Time, u64),
    ) -> Vec<u32> {
        // A host that the authority took over is in the list and in the register.
        let hosts = self.holders(unix_s).filter(|member| !member.address.is_router());
        let hosts: BTreeSet<Address> = hosts.flat_map(|host| host.addresses().iter()).collect();
        let mut behind = BTreeMap::<u32, usize>::new();
        // A router that hosts left counts as if they were there. A dead router would otherwise be
        // the emptiest one, and get all newcomers, and those who left another dead one.
        for router in hosts.iter().map(|host| host.router).chain(self.moves.left(unix_s)) {
            *behind.entry(router).or_default() += 1;
        }
        let own = self.register().into_iter().flat_map(Register::members);
        let own = own.filter(|member| member.address.is_router());
        let own: BTreeSet<u32> = own.map(|member| member.address.router).collect();
        let may_hold = |router: &u32| {
            let is_invited = mandate.rights.numbers.is_some() && own.contains(router);
            is_invited || mandate.hosts.iter().any(|range| range.router == *router)
        };
        let members = self.directory.members(now, unix_s);
        let callable = members.filter(|member| member.address.is_router());
        let callable = callable.filter(|member| member.endpoint.is_some());
        let numbers = callable.map(|member| member.address.router).filter(may_hold);
        let numbers: Vec<u32> = numbers.collect();
        // A single router needs no lot.
        let has_choice = numbers.len() > 1;
        let lot = |router| if has_choice { (self.rng.u64(), router) } else { (0, router) };
        let mut lots: Vec<(u64, u32)> = numbers.into_iter().map(lot).collect();
        lots.sort_unstable_by_key(|(lot, router)| (behind.get(router).copied(), *lot));
        lots.into_iter().map(|(_, router)| router).collect()
    }

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
            let mut routers = self.routers_for_host(&mandate, at);
            routers.retain(|other| member.addresses().at(*other).is_none());
            let address = places::choose_router(&mandate, self.holders(at.1), &routers);
            let address = address.ok_or(Refusal::NoRouter)?;
            let moved = self.newer(Member { address, ..member });
            let entries = vec![StepEntry::Member(Box::new(moved))];
            self.step(StepCause::Moved, key, entries, at).map_err(|e| self.refused(&e))?;
            let last = self.register().and_then(|register| register.step(register.len()));
            let issued_unix_s = last.map_or(at.1, |last| last.step().issued_unix_s);
            self.moves.note(&key, router, issued_unix_s);
            self.stats.moved += 1;
        }
        self.granted(id, &key, at).ok_or(Refusal::Key)
    }
}

#[cfg(test)]
#[path = "moves_tests.rs"]
mod tests;
