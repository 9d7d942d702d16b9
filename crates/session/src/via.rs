//! Path to a host: by its address, or over a circuit that hides who speaks with it.

use shoal_crypto::Ciphers;
use shoal_wire::{Address, CircuitId, DropReason, Time};

use crate::config::{CookieBinding, Endpoint, PeerId, SessionEvent, SessionRole, SourceKey};
use crate::sessions::Sessions;
use crate::slots::SessionIndex;

/// Path to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum HostPath {
    /// By the host's overlay address, which routers see.
    Routed(Address),
    /// Over this circuit.
    Circuit(CircuitId),
}

impl HostPath {
    fn bytes<const N: usize>(&self) -> ([u8; N], usize) {
        let mut out = [0; N];
        let mut put = |bytes: &[u8]| {
            out[..bytes.len()].copy_from_slice(bytes);
            bytes.len()
        };
        let len = match self {
            HostPath::Routed(address) => put(&address.to_bytes()),
            HostPath::Circuit(circuit) => put(&circuit.bits().to_be_bytes()),
        };
        (out, len)
    }
}

/// A circuit has fewer bytes than an address, so the two never compare as equal.
impl Endpoint for HostPath {
    fn source(&self) -> SourceKey {
        self.bytes()
    }

    fn place(&self) -> CookieBinding {
        self.bytes()
    }

    fn role(&self, machine: SessionRole) -> SessionRole {
        match self {
            HostPath::Routed(_) => machine,
            HostPath::Circuit(_) => SessionRole::Onion,
        }
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Sets if the peer is reached over circuits only. A change ends everything of the other kind:
    /// sessions, handshakes, and their waiting frames. A session over a circuit sets this by
    /// itself. `true` also ends a refusal of circuits.
    pub fn set_hidden(&mut self, peer: PeerId, hidden: bool) {
        let Some(found) = self.peer_mut(peer) else { return };
        if hidden {
            found.no_circuit_until = Time::ZERO;
        }
        if core::mem::replace(&mut found.hidden, hidden) != hidden {
            self.drop_dial(peer);
            self.drop_others(peer);
        }
    }

    /// True if the peer is reached over circuits only.
    pub fn is_hidden(&self, peer: PeerId) -> bool {
        self.peer(peer).is_some_and(|found| found.hidden)
    }

    /// Refuses the peer's handshakes over circuits until a time, since a session over a circuit
    /// would hide the peer again. Unconfirmed sessions over circuits end. Without effect on a
    /// hidden peer.
    pub fn refuse_circuits(&mut self, peer: PeerId, until: Time) {
        let Some(found) = self.peer_mut(peer).filter(|found| !found.hidden) else { return };
        found.no_circuit_until = until;
        self.drop_others(peer);
    }

    /// Checks the role of a session that the peer asks for.
    ///
    /// Errors: `circuit_required` outside circuits with a hidden peer; `not_allowed` over a
    /// circuit while those are refused.
    pub(crate) fn check_role(
        &self,
        now: Time,
        peer: PeerId,
        role: SessionRole,
    ) -> Result<(), DropReason> {
        let found = self.peer(peer).ok_or(DropReason::UnknownPeer)?;
        match role == SessionRole::Onion {
            false if found.hidden => Err(DropReason::CircuitRequired),
            true if now < found.no_circuit_until => Err(DropReason::NotAllowed),
            _ => Ok(()),
        }
    }

    /// Tells the owner that a handshake with a hidden peer can't begin. Repeated only after
    /// `retry_max`, not with every frame.
    pub(crate) fn need_circuit(&mut self, peer: PeerId) {
        let again = self.now + self.config.retry_max;
        if let Some(found) = self.peer_mut(peer).filter(|found| found.hidden) {
            found.dial_again = again;
            self.events.push_back(SessionEvent::NeedCircuit { peer });
        }
    }

    /// Role of sessions with the peer.
    pub(crate) fn role_with(&self, peer: PeerId) -> SessionRole {
        if self.is_hidden(peer) { SessionRole::Onion } else { self.config.role }
    }

    /// Ends sessions with the peer whose role differs from that of new ones.
    pub(crate) fn drop_others(&mut self, peer: PeerId) {
        let (role, machine) = (self.role_with(peer), self.config.role);
        let Some(found) = self.peers.get_mut(peer) else { return };
        let is_other = |index: SessionIndex| self.slots.get(index).is_some_and(|s| s.role != role);
        let mut gone: Vec<SessionIndex> = Vec::new();
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
        let routed = HostPath::Routed(Address::from_bytes([0; Address::LEN]));
        let circuit = HostPath::Circuit(CircuitId::from_bits(0));
        assert_ne!(routed.source(), circuit.source());
        assert_ne!(routed.place(), circuit.place());
        let other = HostPath::Circuit(CircuitId::from_bits(1));
        assert_ne!(other.source(), circuit.source());
    }
}
