//! Places of other nodes' circuits: which ones keep them, and which are warm.

use core::cmp::Reverse;

use shoal_crypto::{Aead, Ciphers};
use shoal_wire::{Address, CircuitId, DropReason, Time};

use super::{CircuitEntry, Onion};
use crate::hop::{CircuitHop, WARM_PLACES_MAX};
use crate::room::{CircuitRoom, TenantUse};

/// Maximum number of warm places that are reassigned in one sweep.
const TRADES_MAX: usize = 256;

/// State that a run of cells may change besides its own hop.
pub(super) struct CircuitPlaces<'a> {
    pub(super) room: &'a mut CircuitRoom,
    /// Number of further hops that may be warm.
    pub(super) warm_left: &'a mut usize,
    pub(super) is_router: bool,
}

impl CircuitPlaces<'_> {
    /// Counts `count` cells of the data lane that passed `hop` or ended there.
    pub(super) fn note_data<A: Aead>(
        &mut self,
        id: CircuitId,
        hop: &mut CircuitHop<A>,
        count: usize,
    ) {
        if count == 0 {
            return;
        }
        hop.lately = hop.lately.saturating_add(count as u32);
        if !hop.warm && *self.warm_left >= hop.warm_places() {
            hop.heat();
            *self.warm_left -= hop.warm_places();
        }
        // At a host, any node on the path may have made the cells. The host itself reports their
        // sender.
        if hop.carried == TenantUse::Nothing && self.is_router {
            hop.carried = TenantUse::Data;
            self.room.note_used(hop.tenant(id));
        }
    }
}

impl<C: Ciphers> Onion<C> {
    /// The circuit that must end so that `from` may have one more hop here; none if there is room.
    /// `others` create cells are waiting for answers too.
    ///
    /// # Errors
    ///
    /// `circuit_limit`: there is no room.
    pub(super) fn find_room(
        &self,
        now: Time,
        from: Address,
        others: usize,
    ) -> Result<Option<CircuitId>, DropReason> {
        if !self.room.may_open_half(from, others) {
            return Err(DropReason::CircuitLimit);
        }
        self.room.gives_way(now, from)
    }

    /// Notes that a circuit that ends at this host brought a unit that `sender` sealed. `sender` is
    /// any number that the machine's owner has for that host. Cheap: call it for each run of units.
    pub fn note_sender(&mut self, id: CircuitId, sender: u32) {
        let Some(CircuitEntry::Hop(hop)) = self.slots.get_mut(id) else { return };
        let is_known = hop.carried != TenantUse::Nothing;
        if is_known || self.config.address.is_router() {
            return;
        }
        hop.carried = TenantUse::Of(sender);
        let too_many = self.room.note_sender(hop.tenant(id), sender);
        if let Some(id) = too_many
            && let Some(CircuitEntry::Hop(hop)) = self.slots.get_mut(id)
        {
            hop.carried = TenantUse::Nothing;
            self.room.put_back(hop.tenant(id));
        }
    }

    /// If no further hop may be warm, takes warm places from the hops with the least recent
    /// traffic. Cold hops with more than twice as much get them.
    pub(super) fn trade_warmth(&mut self) {
        if self.warm_left >= WARM_PLACES_MAX {
            return;
        }
        let (mut warm, mut cold) = (Vec::new(), Vec::new());
        for (id, entry) in self.slots.iter() {
            match entry {
                CircuitEntry::Hop(hop) if hop.warm => warm.push((hop.lately, id)),
                CircuitEntry::Hop(hop) if hop.lately > 0 => cold.push((Reverse(hop.lately), id)),
                _ => {}
            }
        }
        let pairs = least(warm).into_iter().zip(least(cold));
        for ((_, from), (Reverse(_), to)) in pairs.take_while(|(from, to)| from.0 < to.0.0 / 2) {
            if let Some(CircuitEntry::Hop(hop)) = self.slots.get_mut(from) {
                hop.cool();
                self.warm_left += hop.warm_places();
            }
            if let Some(CircuitEntry::Hop(hop)) = self.slots.get_mut(to)
                && self.warm_left >= hop.warm_places()
            {
                hop.heat();
                self.warm_left -= hop.warm_places();
            }
        }
    }
}

/// The least elements in order, at most [`TRADES_MAX`].
fn least<T: Ord>(mut all: Vec<T>) -> Vec<T> {
    if all.len() > TRADES_MAX {
        all.select_nth_unstable(TRADES_MAX);
        all.truncate(TRADES_MAX);
    }
    all.sort_unstable();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_are_found_among_many() {
        let all: Vec<u32> = (0..5_000).map(|n| n * 7_919 % 5_000).collect();
        assert_eq!(least(all.clone()), (0..TRADES_MAX as u32).collect::<Vec<_>>());
        assert_eq!(least(all[..3].to_vec()), [0, 838, 2_919]);
    }
}
