//! Access for tests to the inside of a machine.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::{Ciphers, PublicKey, Secret};
use shoal_wire::leg::{FIRST_LEN, LegMessage};
use shoal_wire::{Address, CircuitId, DropReason, Time};

use super::{CircuitEntry, Onion, OnionEvent};

impl<C: Ciphers> Onion<C> {
    pub(crate) fn nodes_of_test(&self) -> BTreeMap<Address, PublicKey> {
        self.nodes.clone()
    }

    pub(crate) fn warm_left_of_test(&mut self) -> &mut usize {
        &mut self.warm_left
    }

    pub(crate) fn transmits_of_test(&mut self) -> &mut VecDeque<super::OriginatedCell> {
        &mut self.transmits
    }

    pub(crate) fn tell_of_test(&mut self, event: OnionEvent) {
        self.tell(event);
    }

    pub(crate) fn ids_of_test(&self) -> Vec<CircuitId> {
        self.slots.iter().map(|(id, _)| id).collect()
    }

    pub(crate) fn is_warm_of_test(&self, id: CircuitId) -> bool {
        matches!(self.slots.get(id), Some(CircuitEntry::Hop(hop)) if hop.warm)
    }

    /// Number of circuits that a node was told of.
    pub(crate) fn told_of_test(&self, node: Address) -> usize {
        self.slots.of(node)
    }

    /// Sends an answer with this number, asked for or not.
    pub(crate) fn reply_of_test(&mut self, id: CircuitId, number: u64) -> Result<(), DropReason> {
        self.reply(Time::ZERO, id, number, &LegMessage::Echoed(1))
    }

    /// Asks a hop of a circuit, counted from 1, to extend the circuit.
    pub(crate) fn extend_of_test(
        &mut self,
        id: CircuitId,
        hop: usize,
        to: Address,
        noise: &[u8; FIRST_LEN],
    ) {
        self.say(id, hop, &LegMessage::Extend { to, noise }).expect("there is a hop");
    }

    /// Secret from which the keys of the leg behind the newest hop of a circuit of this node
    /// follow.
    pub(crate) fn next_leg_of_test(&mut self, id: CircuitId) -> Secret<32> {
        self.origin(id).expect("the circuit exists").next_leg.clone()
    }
}
