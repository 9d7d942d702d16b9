//! The mode in which links carry only the authority's lists, for a node whose own list is too old.
//!
//! Sessions, reports and lists continue, so a newer list can arrive. Cells and routing messages of
//! both directions are dropped as `stale_list`, and all routes are withdrawn.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time};

use crate::Relay;

impl<C: Ciphers> Relay<C> {
    /// Turns the mode in which links carry only lists on or off.
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
