//! Own addresses at the ends of legs. A host at two routers has two, and a leg keeps the one with
//! which it began, since the node at its other end knows it by that address.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_wire::leg::CellShape;
use shoal_wire::{Address, CircuitId, DropReason, MixStrategy, Time};

use super::{CellResult, CircuitEntry, Onion};

impl<C: Ciphers> Onion<C> {
    /// Like [`Onion::build_mixed`], for a circuit whose cells leave from this address of the node.
    ///
    /// # Errors
    ///
    /// The errors of [`Onion::build`].
    pub fn build_from(
        &mut self,
        now: Time,
        home: Address,
        (path, mixes): (&[Address], &[MixStrategy]),
        shape: CellShape,
        life: Duration,
    ) -> Result<CircuitId, DropReason> {
        let id = self.build_mixed(now, path, mixes, shape, life)?;
        let is_second = home != self.config.address;
        self.origin(id)?.home = is_second.then_some(home);
        Ok(id)
    }

    /// Like [`Onion::handle_batch`], for cells that came to this address of the node.
    pub fn handle_batch_at(
        &mut self,
        now: Time,
        (from, at): (Address, Address),
        buf: &mut [u8],
        offsets: &[u32],
        out: &mut Vec<Result<CellResult, DropReason>>,
    ) {
        self.arrival = (at != self.config.address).then_some(at);
        self.handle_batch(now, from, buf, offsets, out);
        self.arrival = None;
    }

    /// Own address from which cells of this circuit leave; none for the node's first one.
    pub(super) fn home(&self, id: CircuitId) -> Option<Address> {
        match self.slots.get(id)? {
            CircuitEntry::Origin(circuit) => circuit.home,
            CircuitEntry::Hop(hop) => hop.home,
        }
    }

    /// Own address from which units on this circuit leave.
    pub fn source(&self, id: CircuitId) -> Address {
        self.home(id).unwrap_or(self.config.address)
    }
}
