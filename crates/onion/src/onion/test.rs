//! What tests see and do inside of a machine.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::{Ciphers, PublicKey, Secret};
use shoal_wire::leg::{FIRST_LEN, Message};
use shoal_wire::{Address, CircuitId, DropReason, Time};

use super::{Entry, Event, Onion};

impl<C: Ciphers> Onion<C> {
    pub(crate) fn nodes_of_test(&self) -> BTreeMap<Address, PublicKey> {
        self.nodes.clone()
    }

    pub(crate) fn warm_left_of_test(&mut self) -> &mut usize {
        &mut self.warm_left
    }

    pub(crate) fn transmits_of_test(&mut self) -> &mut VecDeque<super::Own> {
        &mut self.transmits
    }

    pub(crate) fn tell_of_test(&mut self, event: Event) {
        self.tell(event);
    }

    pub(crate) fn ids_of_test(&self) -> Vec<CircuitId> {
        self.slots.iter().map(|(id, _)| id).collect()
    }

    pub(crate) fn is_warm_of_test(&self, id: CircuitId) -> bool {
        matches!(self.slots.get(id), Some(Entry::Hop(hop)) if hop.warm)
    }

    /// Circuits that a node was told of.
    pub(crate) fn told_of_test(&self, node: Address) -> usize {
        self.slots.of(node)
    }

    /// Sends an answer of this number, asked for or not.
    pub(crate) fn reply_of_test(&mut self, id: CircuitId, number: u64) -> Result<(), DropReason> {
        self.reply(Time::ZERO, id, number, &Message::Echoed(1))
    }

    /// Has a hop of a circuit, counted from 1, asked to go on.
    pub(crate) fn extend_of_test(
        &mut self,
        id: CircuitId,
        hop: usize,
        to: Address,
        noise: &[u8; FIRST_LEN],
    ) {
        self.say(id, hop, &Message::Extend { to, noise }).expect("there is a hop");
    }

    /// What the leg behind the newest hop of a circuit of this node is protected with.
    pub(crate) fn next_leg_of_test(&mut self, id: CircuitId) -> Secret<32> {
        self.origin(id).expect("it is there").next_leg.clone()
    }
}
