//! Tiers of cover for hosts, by the network's preset.
//!
//! The authority signs the preset, and its mandate names the tiers that the registrar may give. So
//! neither the registrar nor a host chooses a tier.

use std::collections::BTreeSet;

use shoal_crypto::PublicKey;
use shoal_directory::{ENTRIES_MAX, Mandate, Member, Register, StepEntry};
use shoal_wire::Time;

use super::owner::OwnerError;
use super::{Desk, Disk};
use crate::record::StepCause;

/// Maximum number of supplements signed in one call, so that newcomers are not kept waiting.
const STEPS_AT_ONCE: usize = 8;

impl<D: Disk> Desk<D> {
    /// The tier of the network's preset for hosts, if the mandate may give it.
    pub(super) fn preset_tier(&self, mandate: &Mandate) -> Option<String> {
        let preset = self.directory.list()?.content().preset.as_ref()?;
        preset.tier.clone().filter(|tier| mandate.rights.may_cover(tier))
    }

    /// Gives hosts of the mandate the tier of the network's preset, or takes a tier away that the
    /// preset does not have. Returns the number of changed hosts; call again until it is 0.
    ///
    /// # Errors
    ///
    /// A supplement can't be signed.
    pub fn follow_preset(&mut self, at: (Time, u64)) -> Result<usize, OwnerError> {
        let Ok(mandate) = self.mandate_now(at.0, at.1) else { return Ok(0) };
        if self.hold.is_early || self.doubt().is_some() {
            return Ok(0);
        }
        let tier = self.preset_tier(&mandate);
        let list = self.directory.list().into_iter().flat_map(|list| &list.content().members);
        let adopted: BTreeSet<PublicKey> = list.map(|signed| signed.member.key).collect();
        let is_due = |member: &&Member| {
            let is_own = !member.address.is_router() && member.expires_unix_s > at.1;
            // A member that the list revoked costs no more steps.
            let may = || !adopted.contains(&member.key) && !self.is_removed(&member.key);
            is_own && member.cover != tier && may()
        };
        let own = self.register().into_iter().flat_map(Register::members);
        let due = own.filter(is_due).take(STEPS_AT_ONCE * ENTRIES_MAX);
        let due: Vec<Member> =
            due.map(|member| Member { cover: tier.clone(), ..member.clone() }).collect();
        let (cause, mut done) = (StepCause::Covered, 0);
        for some in due.chunks(ENTRIES_MAX) {
            match self.sign_again(cause, some, at) {
                // Descriptors with many groups don't fit one supplement together.
                Err(OwnerError::Descriptor) => {
                    for one in some.chunks(1) {
                        match self.sign_again(cause, one, at) {
                            // One descriptor without room for a tier must not keep others waiting.
                            Err(OwnerError::Descriptor) => {}
                            signed => {
                                signed?;
                                done += 1;
                            }
                        }
                    }
                }
                signed => {
                    signed?;
                    done += some.len();
                }
            }
        }
        let is_stuck = done == 0 && !due.is_empty();
        if is_stuck { Err(OwnerError::Descriptor) } else { Ok(done) }
    }

    /// Signs descriptors of members again, in one supplement.
    pub(super) fn sign_again(
        &mut self,
        cause: StepCause,
        members: &[Member],
        at: (Time, u64),
    ) -> Result<(), OwnerError> {
        let Some(first) = members.first() else { return Ok(()) };
        let entry = |member: &Member| StepEntry::Member(Box::new(self.newer(member.clone())));
        let entries = members.iter().map(entry).collect();
        self.step(cause, first.key, entries, at)
    }
}

#[cfg(test)]
#[path = "tiers_tests.rs"]
mod tests;
