//! Which circuits of others keep their places, and which are warm.

use core::cmp::Reverse;

use shoal_crypto::{Aead, Ciphers};
use shoal_wire::{Address, CircuitId, DropReason, Time};

use super::{Entry, Onion};
use crate::hop::{Hop, WARM_PLACES_MAX};
use crate::room::{Carried, Room};

/// Warm places that change hands in one sweep at most.
const TRADES_MAX: usize = 256;

/// Where hops of others stand: what a run of cells may change beside its own hop.
pub(super) struct Places<'a> {
    pub(super) room: &'a mut Room,
    /// So many more hops may be warm.
    pub(super) warm_left: &'a mut usize,
    pub(super) is_router: bool,
}

impl Places<'_> {
    /// Notes that `count` cells of the data lane passed `hop`, or ended there.
    pub(super) fn note_data<A: Aead>(&mut self, id: CircuitId, hop: &mut Hop<A>, count: usize) {
        if count == 0 {
            return;
        }
        hop.lately = hop.lately.saturating_add(count as u32);
        if !hop.warm && *self.warm_left >= hop.warm_places() {
            hop.heat();
            *self.warm_left -= hop.warm_places();
        }
        // At a host anybody between may have made them: it says whose they are.
        if hop.carried == Carried::Nothing && self.is_router {
            hop.carried = Carried::Data;
            self.room.note_used(hop.tenant(id));
        }
    }
}

impl<C: Ciphers> Onion<C> {
    /// Which circuit must end so that `from` may have one more hop here, if one must; beside
    /// `others` that wait for their answers.
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

    /// Notes that a circuit that ends at this host brought a unit that `sender` sealed, by whatever
    /// number the owner of this machine knows that host. Cheap: to be called for each run of units.
    pub fn note_sender(&mut self, id: CircuitId, sender: u32) {
        let Some(Entry::Hop(hop)) = self.slots.get_mut(id) else { return };
        let is_known = hop.carried != Carried::Nothing;
        if is_known || self.config.address.is_router() {
            return;
        }
        hop.carried = Carried::Of(sender);
        let too_many = self.room.note_sender(hop.tenant(id), sender);
        if let Some(id) = too_many
            && let Some(Entry::Hop(hop)) = self.slots.get_mut(id)
        {
            hop.carried = Carried::Nothing;
            self.room.put_back(hop.tenant(id));
        }
    }

    /// Where no further hop may be warm, gives the places of those over which least went of late
    /// to those over which more than twice as much did.
    pub(super) fn trade_warmth(&mut self) {
        if self.warm_left >= WARM_PLACES_MAX {
            return;
        }
        let (mut warm, mut cold) = (Vec::new(), Vec::new());
        for (id, entry) in self.slots.iter() {
            match entry {
                Entry::Hop(hop) if hop.warm => warm.push((hop.lately, id)),
                Entry::Hop(hop) if hop.lately > 0 => cold.push((Reverse(hop.lately), id)),
                _ => {}
            }
        }
        let pairs = least(warm).into_iter().zip(least(cold));
        for ((_, from), (Reverse(_), to)) in pairs.take_while(|(from, to)| from.0 < to.0.0 / 2) {
            if let Some(Entry::Hop(hop)) = self.slots.get_mut(from) {
                hop.cool();
                self.warm_left += hop.warm_places();
            }
            if let Some(Entry::Hop(hop)) = self.slots.get_mut(to)
                && self.warm_left >= hop.warm_places()
            {
                hop.heat();
                self.warm_left -= hop.warm_places();
            }
        }
    }
}

/// The least of all in their order, as many as may change hands.
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
