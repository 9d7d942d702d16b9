//! Links that carry nothing but the authority's lists: those of a node whose own list is too old.
//!
//! Sessions, reports and lists go on, so that a newer list can come. Cells and routing messages are
//! dropped as `stale_list`, whichever way they go, and every route is left.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time};

use crate::Relay;

impl<C: Ciphers> Relay<C> {
    /// Has links carry the authority's lists only, or everything again.
    pub fn set_lists_only(&mut self, now: Time, on: bool) {
        if core::mem::replace(&mut self.lists_only, on) == on {
            return;
        }
        if let Some(routing) = &mut self.routing {
            routing.set_quiet(now, on);
        }
        for neighbour in self.neighbours.iter_mut() {
            let lost = if on { neighbour.egress.clear() } else { 0 };
            self.own.counters.drop_out(DropReason::StaleList, lost as u64);
        }
        self.refresh();
    }
}
