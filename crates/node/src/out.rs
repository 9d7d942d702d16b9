//! The edge's output in control: directly into the relay, or through a circuit.

use shoal_edge::EdgeOutput;
use shoal_relay::{CallContext, Relay};
use shoal_wire::{Address, CircuitId, LinkKind, SizeClass, Time};

use crate::circuits::NodeCircuits;
use crate::rings::Outbox;
use crate::shell::Shell;

/// Sends cells and units of this host.
pub(crate) struct ControlOutput<'a, S: Shell> {
    pub(crate) relay: &'a mut Relay<S::Ciphers>,
    pub(crate) circuits: &'a mut NodeCircuits<S::Ciphers>,
    pub(crate) sink: &'a mut S::Sink,
    pub(crate) outbox: &'a mut Option<Outbox<S>>,
    /// Number of cells and units sent.
    pub(crate) cells: u64,
}

impl<S: Shell> ControlOutput<'_, S> {
    fn send(&mut self, now: Time, kind: LinkKind, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.cells += offsets.len() as u64;
        let mut turn = CallContext { now, sink: self.sink, hand: self.outbox };
        self.relay.send_cells(&mut turn, kind, buf, offsets, len);
    }
}

impl<S: Shell> EdgeOutput for ControlOutput<'_, S> {
    fn cells(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.send(now, LinkKind::Cell, buf, offsets, len);
    }

    fn source(&self, dst: Address) -> Option<Address> {
        Some(self.relay.source(dst))
    }

    fn room(&self, dst: Address) -> usize {
        self.relay.room(dst)
    }

    fn is_congested(&self, dst: Address) -> bool {
        self.relay.is_marking(dst)
    }

    fn may_go_direct(&self, dst: Address) -> bool {
        self.relay.may_go_direct(dst)
    }

    fn direct(&mut self, now: Time, buf: &mut [u8], offsets: &[u32], len: usize) {
        self.send(now, LinkKind::Direct, buf, offsets, len);
    }

    fn unit(&mut self, now: Time, circuit: CircuitId, buf: &mut [u8], offsets: &[u32]) {
        match self.circuits.seal_units(now, circuit, buf, offsets) {
            Ok(()) => self.send(now, LinkKind::Leg, buf, offsets, SizeClass::Full.frame_len()),
            Err(reason) => self.relay.count_drop(reason, offsets.len() as u64),
        }
    }

    fn hidden_handshake(&mut self, _: Time, circuit: CircuitId, cell: &[u8]) {
        if let Err(reason) = self.circuits.onion.send_handshake(circuit, cell) {
            self.relay.count_drop(reason, 1);
        }
    }

    fn circuit_room(&self, circuit: CircuitId) -> usize {
        let from = self.circuits.onion.source(circuit);
        let to = self.circuits.onion.next_node(circuit);
        to.map_or(0, |to| self.relay.room_from(from, to))
    }

    fn circuit_is_congested(&self, circuit: CircuitId) -> bool {
        let from = self.circuits.onion.source(circuit);
        let to = self.circuits.onion.next_node(circuit);
        to.is_some_and(|to| self.relay.is_marking_from(from, to))
    }
}
