//! Links that carry nothing but the authority's lists: those of a node whose own list is too old.
//!
//! Sessions, reports and lists go on, so that a newer list can come. Cells and routing messages are
//! dropped as `stale_list`, whichever way they go, and every route is left.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time};

use crate::Relay;
use crate::batch::Scratch;

impl<C: Ciphers> Relay<C> {
    /// Has links carry the authority's lists only, or everything again.
    pub fn set_lists_only(&mut self, now: Time, on: bool) {
        if core::mem::replace(&mut self.lists_only, on) == on {
            return;
        }
        self.stale = true;
        if let Some(routing) = &mut self.routing {
            routing.set_quiet(now, on);
        }
        for neighbour in self.neighbours.iter_mut().filter(|_| on) {
            let lost = neighbour.egress.clear();
            self.counters.drop_out(DropReason::StaleList, lost as u64);
        }
    }

    /// Drops what was sorted, if links carry nothing but lists.
    pub(crate) fn bar(&mut self, scratch: &mut Scratch) {
        if !self.lists_only {
            return;
        }
        let transit: usize = scratch.groups.iter().map(|group| group.offsets.len()).sum();
        let barred = scratch.local.len() + transit;
        scratch.local.clear();
        scratch.groups.iter_mut().for_each(|group| group.offsets.clear());
        self.counters.drop_in(DropReason::StaleList, barred as u64);
    }
}
