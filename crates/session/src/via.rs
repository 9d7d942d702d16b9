//! How a host is reached: by its address, or over a circuit that hides who speaks with it.

use shoal_crypto::Ciphers;
use shoal_wire::{Address, CircuitId};

use crate::config::{Endpoint, Event, PeerId, Place, Role, Source};
use crate::sessions::Sessions;
use crate::slots::Index;

/// The way to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Via {
    /// Routed by its overlay address, which routers see.
    Routed(Address),
    /// Over this circuit.
    Circuit(CircuitId),
}

impl Via {
    fn bytes<const N: usize>(&self) -> ([u8; N], usize) {
        let mut out = [0; N];
        let mut put = |bytes: &[u8]| {
            out[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        let len = match self {
            Via::Routed(address) => put(&address.to_bytes()),
            Via::Circuit(circuit) => put(&circuit.bits().to_be_bytes()),
        };
        (out, len)
    }
}

/// A circuit's bytes are fewer than an address has, so that neither counts as the other.
impl Endpoint for Via {
    fn source(&self) -> Source {
        self.bytes()
    }

    fn place(&self) -> Place {
        self.bytes()
    }

    fn role(&self, machine: Role) -> Role {
        match self {
            Via::Routed(_) => machine,
            Via::Circuit(_) => Role::Onion,
        }
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Says whether the peer is spoken with over circuits alone. What was made the other way ends:
    /// sessions, handshakes, and frames of those that wait to be sent. A session over a circuit
    /// says so by itself.
    pub fn set_hidden(&mut self, peer: PeerId, hidden: bool) {
        let Some(found) = self.peer_mut(peer) else { return };
        if core::mem::replace(&mut found.hidden, hidden) != hidden {
            self.drop_dial(peer);
            self.drop_others(peer);
        }
    }

    /// Whether the peer is spoken with over circuits alone.
    pub fn is_hidden(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some_and(|found| found.hidden)
    }

    /// Tells the owner that a handshake with a hidden peer can't begin, but not with every frame.
    pub(crate) fn need_circuit(&mut self, peer: PeerId) {
        let again = self.now + self.config.retry_max;
        if let Some(found) = self.peer_mut(peer).filter(|found| found.hidden) {
            found.dial_again = again;
            self.events.push_back(Event::NeedCircuit { peer });
        }
    }

    /// The use of sessions with the peer.
    pub(crate) fn role_with(&self, peer: PeerId) -> Role {
        if self.is_hidden(peer) { Role::Onion } else { self.config.role }
    }

    /// Ends the sessions with the peer that have another use than those to be made with it.
    pub(crate) fn drop_others(&mut self, peer: PeerId) {
        let (role, machine) = (self.role_with(peer), self.config.role);
        let Some(found) = self.peers.get_mut(peer) else { return };
        let is_other = |index: Index| self.slots.get(index).is_some_and(|s| s.role != role);
        let mut gone: Vec<Index> = Vec::new();
        gone.extend(found.old.extract_if(.., |old| is_other(old.0)).map(|old| old.0));
        gone.extend(found.next.extract_if(.., |next| is_other(next.index)).map(|next| next.index));
        if let Some(index) = found.current.take_if(|index| is_other(*index)) {
            (found.nudge, found.cool_at, found.resume_at) = (None, None, None);
            gone.push(index);
        }
        for index in gone {
            self.slots.release(index);
        }
        self.out.retain(|out| out.peer != Some(peer) || out.to.role(machine) == role);
        self.refresh_timer(peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circuit_is_no_address() {
        let routed = Via::Routed(Address::from_bytes([0; Address::LEN]));
        let circuit = Via::Circuit(CircuitId::from_bits(0));
        assert_ne!(routed.source(), circuit.source());
        assert_ne!(routed.place(), circuit.place());
        let other = Via::Circuit(CircuitId::from_bits(1));
        assert_ne!(other.source(), circuit.source());
    }
}
