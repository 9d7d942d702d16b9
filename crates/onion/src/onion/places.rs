//! Which circuits of others keep their places, and which are warm.

use shoal_crypto::Ciphers;
use shoal_wire::{Address, CircuitId, DropReason, Time};

use super::{Entry, Onion};
use crate::room::Carried;

/// Warm places that change hands in one sweep at most.
const TRADES_MAX: usize = 256;

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

    /// Notes that `count` cells of the data lane passed a hop, or ended there.
    pub(super) fn note_data(&mut self, id: CircuitId, count: usize) {
        let Some(Entry::Hop(hop)) = self.slots.get_mut(id).filter(|_| count > 0) else { return };
        hop.lately = hop.lately.saturating_add(count as u32);
        if !hop.warm && self.warm_left > 0 {
            hop.heat();
            self.warm_left -= 1;
        }
        // At a host anybody between may have made them: it says whose they are.
        if hop.carried == Carried::Nothing && self.config.address.is_router() {
            hop.carried = Carried::Data;
            self.room.note_used(hop.tenant(id));
        }
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
        if self.warm_left > 0 {
            return;
        }
        let (mut warm, mut cold) = (Vec::new(), Vec::new());
        for (id, entry) in self.slots.iter() {
            match entry {
                Entry::Hop(hop) if hop.warm => warm.push((hop.lately, id)),
                Entry::Hop(hop) if hop.lately > 0 => cold.push((hop.lately, id)),
                _ => {}
            }
        }
        warm.sort_unstable();
        cold.sort_unstable();
        let pairs = warm.into_iter().zip(cold.into_iter().rev()).take(TRADES_MAX);
        for ((_, from), (_, to)) in pairs.take_while(|(from, to)| from.0 < to.0 / 2) {
            if let Some(Entry::Hop(hop)) = self.slots.get_mut(from) {
                hop.cool();
            }
            if let Some(Entry::Hop(hop)) = self.slots.get_mut(to) {
                hop.heat();
            }
        }
    }
}
