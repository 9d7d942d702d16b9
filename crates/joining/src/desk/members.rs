//! Requests of members: renewal, another key, leaving.

use std::collections::BTreeMap;

use shoal_crypto::PublicKey;
use shoal_directory::{Mandate, Member, Register, Step, StepEntry};
use shoal_wire::Time;

use super::visits::VisitId;
use super::{Desk, Disk};
use crate::messages::{Answer, Refusal, rekey_said};
use crate::record::StepCause;
use crate::tokens::TokenHash;

/// Minimum time between two key changes of one member, in seconds. Each key counts towards the
/// mandate's maximum, so a member could otherwise exhaust the mandate.
const REKEY_EVERY_S: u64 = 7 * 86_400;

/// Replaced keys; at most one per step of the chain.
#[derive(Default)]
pub(super) struct KeyReplacements {
    /// Old and new key, by the first half of the old key.
    pairs: BTreeMap<[u8; 32], (PublicKey, PublicKey)>,
    /// Time of the signature in seconds since 1970, by the first half of the new key.
    since: BTreeMap<[u8; 32], u64>,
}

impl KeyReplacements {
    /// Records a step that replaced this key.
    pub(super) fn note(&mut self, before: PublicKey, step: &Step) {
        for entry in &step.entries {
            if let StepEntry::Member(member) = entry {
                self.pairs.insert(before.dh, (before, member.key));
                self.since.insert(member.key.dh, step.issued_unix_s);
            }
        }
    }

    /// True if the key with this first half was replaced.
    pub(super) fn has(&self, half: &[u8; 32]) -> bool {
        self.pairs.contains_key(half)
    }

    /// The key that `key` replaced.
    fn before(&self, key: &PublicKey) -> Option<PublicKey> {
        let pair = self.pairs.values().find(|(_, after)| after == key);
        pair.map(|(before, _)| *before)
    }

    /// True if the key with this first half replaced another one within the last [`REKEY_EVERY_S`].
    fn is_recent(&self, half: &[u8; 32], unix_s: u64) -> bool {
        self.since.get(half).is_some_and(|since| unix_s < since.saturating_add(REKEY_EVERY_S))
    }
}

impl<D: Disk> Desk<D> {
    /// Renews the visitor's membership, unless more than half of it is left.
    pub(super) fn renew(&mut self, at: (Time, u64), id: VisitId) -> Result<Answer, Refusal> {
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
        // The name and the addresses are free for others after the end.
        if member.expires_unix_s <= at.1 {
            return Err(Refusal::Ended);
        }
        let (key, expires_unix_s) = (member.key, self.expiry(&mandate, at.1));
        let life = expires_unix_s.saturating_sub(at.1);
        if member.expires_unix_s.saturating_sub(at.1) <= life / 2 {
            let is_host = !member.address.is_router();
            let cover = self.preset_tier(&mandate).filter(|_| is_host);
            let renewed = self.newer(Member { expires_unix_s, cover, ..member });
            let entries = vec![StepEntry::Member(Box::new(renewed))];
            self.step(StepCause::Renewed, key, entries, at).map_err(|e| self.refused(&e))?;
            self.stats.renewed += 1;
        }
        self.granted(id, &key, at).ok_or(Refusal::Key)
    }

    /// Ends the visitor's membership.
    pub(super) fn leave(&mut self, at: (Time, u64), id: VisitId) -> Result<Answer, Refusal> {
        let half = self.visits.get_mut(id).ok_or(Refusal::Registrar)?.half;
        if let Some(key) = self.member_by_half(&half).map(|member| member.key) {
            if self.is_adopted(&key) {
                return Err(Refusal::Adopted);
            }
            // Hosts of a registrar beside a router that left can't be reached.
            let entries = self.removal(&key);
            self.step(StepCause::Left, key, entries, at).map_err(|e| self.refused(&e))?;
            self.stats.left += 1;
        } else if self.replaced.has(&half) {
            return Err(Refusal::Replaced);
        }
        Ok(Answer::Left)
    }

    /// The invite by which this member joined, under its present key or an earlier one.
    pub(super) fn invite_of(&self, key: &PublicKey) -> Option<TokenHash> {
        let mut key = *key;
        for _ in 0..=self.replaced.pairs.len() {
            if let Some(token) = self.joined_by.get(&key) {
                return Some(*token);
            }
            key = self.replaced.before(&key)?;
        }
        None
    }

    /// End of a membership that is signed at `unix_s`, in seconds since 1970.
    pub(super) fn expiry(&self, mandate: &Mandate, unix_s: u64) -> u64 {
        let life = self.config.membership.as_secs().min(mandate.longest_s.into());
        unix_s.saturating_add(life).min(mandate.until_unix_s)
    }

    /// The member whose key has this first half.
    pub(super) fn member_by_half(&self, half: &[u8; 32]) -> Option<&Member> {
        self.register()?.members().find(|member| member.key.dh == *half)
    }

    /// True if another registrar made this key a member, expired or not, and this registrar has no
    /// current membership for it. Nodes accept one of two descriptors of a key.
    pub(super) fn is_anothers(&self, key: &PublicKey, unix_s: u64) -> bool {
        let lives = |member: &Member| member.key == *key && member.expires_unix_s > unix_s;
        let own = self.register().into_iter().flat_map(Register::members);
        let others = self.directory.registers().filter(|other| Some(other.id()) != self.mandate);
        let has = |member: &Member| member.key == *key;
        !own.into_iter().any(lives) && others.flat_map(Register::members).any(has)
    }

    /// The refusal for a key that is no member's.
    pub(super) fn gone(&self, half: &[u8; 32]) -> Refusal {
        if self.replaced.has(half) { Refusal::Replaced } else { Refusal::Key }
    }

    /// Replaces the visitor's key. One step removes the old key and adds the new one, so every node
    /// has exactly one of the two.
    pub(super) fn rekey(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        key: PublicKey,
        [by_old, by_new]: &[[u8; 64]; 2],
    ) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let (half, said) = (visit.half, rekey_said(visit.channel.binding(), &key));
        self.mandate_now(at.0, at.1)?;
        let member = self.member_by_half(&half).cloned();
        let replaced = self.replaced.pairs.get(&half).copied();
        let before = member.as_ref().map(|member| member.key).or(replaced.map(|(old, _)| old));
        let before = before.ok_or(Refusal::Key)?;
        let signed = before.verify(&said, by_old) && key.verify(&said, by_new);
        if key.is_weak() || !signed {
            return Err(Refusal::Key);
        }
        let Some(member) = member else {
            // Either the first answer was lost, or a third key asks to replace an already replaced
            // one.
            let answer = match replaced {
                Some((_, after)) if after == key => self.granted(id, &key, at),
                _ => None,
            };
            return answer.ok_or(Refusal::Replaced);
        };
        self.may_replace(&member, &key, at)?;
        let fresh = Member { key, ..member };
        let entries =
            vec![StepEntry::remove(&before), StepEntry::Member(Box::new(self.newer(fresh)))];
        self.step(StepCause::Rekeyed, before, entries, at).map_err(|e| self.refused(&e))?;
        let last = self.register().and_then(|r| r.step(r.len())).map(|last| last.step().clone());
        if let Some(last) = last {
            self.replaced.note(before, &last);
            self.moves.rekeyed(&before, &last);
        }
        self.stats.rekeyed += 1;
        self.granted(id, &key, at).ok_or(Refusal::Registrar)
    }

    /// Checks that this key may replace the member's key.
    fn may_replace(
        &self,
        member: &Member,
        key: &PublicKey,
        (now, unix_s): (Time, u64),
    ) -> Result<(), Refusal> {
        if self.is_removed(&member.key) || self.is_removed(key) {
            return Err(Refusal::Key);
        }
        if self.is_adopted(&member.key) {
            return Err(Refusal::Adopted);
        }
        if !self.directory.members(now, unix_s).any(|other| other.key == member.key) {
            return Err(Refusal::Ended);
        }
        if self.replaced.is_recent(&member.key.dh, unix_s) {
            return Err(Refusal::Soon);
        }
        // Sessions identify a peer by the first half of its key.
        let has = |other: &Member| other.key.dh == key.dh || other.key.sign == key.sign;
        let register = self.register().into_iter().flat_map(|register| register.members());
        let is_taken = self.directory.listed().chain(register).any(has);
        if is_taken { Err(Refusal::Key) } else { Ok(()) }
    }
}

#[cfg(test)]
#[path = "members_tests.rs"]
pub(super) mod tests;
