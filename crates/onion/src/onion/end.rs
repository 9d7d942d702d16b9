//! End of circuits: closed by this node, or expired.

use shoal_crypto::{Aead, Ciphers, PlantedFault};
use shoal_wire::leg::LegMessage;
use shoal_wire::{CircuitId, HopDelay, Time};

use super::{COOL, CircuitEntry, HALF_OPEN, IDLE, Onion, OnionEvent, SWEEP, SetupFailure};
use crate::hop::CircuitNext;

impl<C: Ciphers> Onion<C> {
    /// Closes a circuit of this node. Its hops are told, the farthest first.
    pub fn close(&mut self, id: CircuitId) {
        let hops = self.origin(id).map_or(0, |circuit| circuit.hops());
        for hop in (1..=hops).rev() {
            // A hop that is not told forgets the circuit after it was idle for long.
            let _ = self.say(id, hop, &LegMessage::Close);
        }
        self.remove(id);
    }

    /// Closes this node to circuits of other nodes, or opens it. While it is closed, set-ups get no
    /// answer, as at a full node. Circuits of other nodes end, and nothing of them leaves.
    pub fn set_closed(&mut self, closed: bool) {
        self.room.set_closed(closed);
        if !closed {
            return;
        }
        let others = self.slots.iter().filter(|(_, entry)| matches!(entry, CircuitEntry::Hop(_)));
        for id in others.map(|(id, _)| id).collect::<Vec<_>>() {
            self.remove(id);
        }
        let Self { slots, transmits, .. } = self;
        transmits.retain(|cell| cell.circuit.is_some_and(|id| slots.get(id).is_some()));
    }

    /// Forgets an open request to be the next hop of a circuit.
    pub(super) fn drop_waiting(&mut self, id: CircuitId) {
        let Self { waiting, room, slots, .. } = self;
        for (_, waiting) in waiting.extract_if(.., |_, waiting| waiting.id == id) {
            waiting.asker.into_iter().for_each(|asker| room.close_half(asker));
            slots.forget(waiting.to);
        }
    }

    /// Forgets a circuit and all that waits for it.
    pub(super) fn remove(&mut self, id: CircuitId) {
        let Some(entry) = self.slots.remove(id) else { return };
        self.drop_waiting(id);
        self.handshakes.remove(&id);
        match entry {
            CircuitEntry::Origin(circuit) => {
                if let Some(leg) = circuit.first() {
                    self.slots.forget(leg.node);
                    self.keys.give_back(leg.key);
                }
            }
            CircuitEntry::Hop(hop) => {
                if !hop.confirmed {
                    self.room.close_half(hop.prev.node);
                }
                self.room.remove(hop.tenant(id), hop.carried);
                self.warm_left += if hop.warm { hop.warm_places() } else { 0 };
                self.slots.forget(hop.prev.node);
                self.keys.give_back(hop.prev.key);
                if let CircuitNext::Leg(leg) = &hop.next {
                    self.slots.forget(leg.node);
                    self.keys.give_back(leg.key);
                }
                if matches!(hop.mixing, HopDelay::Path { .. }) {
                    self.tell(OnionEvent::Ended(id));
                }
            }
        }
    }

    /// Gives up set-ups without an answer, and forgets circuits whose time is over.
    pub fn handle_timeout(&mut self, now: Time) {
        if now < self.sweep_at {
            return;
        }
        self.sweep_at = now + SWEEP;
        self.keys.forget();
        let silent = self.waiting.values().filter(|w| w.until <= now).map(|w| w.id);
        for id in silent.collect::<Vec<_>>() {
            self.give_up(now, id);
        }
        self.trade_warmth();
        for entry in self.slots.iter_mut() {
            match entry {
                CircuitEntry::Origin(circuit) => circuit.inbox.forget_old(now),
                CircuitEntry::Hop(hop) => {
                    hop.inbox.forget_old(now);
                    hop.lately /= 2;
                    if hop.warm && hop.used + COOL <= now {
                        hop.cool();
                        self.warm_left += hop.warm_places();
                    }
                }
            }
        }
        let over = |entry: &CircuitEntry<C::Aead>| match entry {
            _ if C::Aead::flaw() == Some(PlantedFault::CircuitKept) => false,
            CircuitEntry::Origin(circuit) => {
                circuit.until <= now
                    || circuit.used + if circuit.is_built() { IDLE } else { HALF_OPEN } <= now
            }
            CircuitEntry::Hop(hop) => {
                let wait = if hop.confirmed { IDLE } else { HALF_OPEN };
                hop.until <= now || hop.used + wait <= now
            }
        };
        let over = self.slots.iter().filter(|(_, entry)| over(entry));
        for id in over.map(|(id, _)| id).collect::<Vec<_>>() {
            match self.origin(id).map(|circuit| (circuit.is_built(), circuit.hops())) {
                Ok((true, _)) => {
                    self.close(id);
                    self.tell(OnionEvent::Ended(id));
                }
                Ok((false, hops)) => self.fail(id, hops as u8 + 1, SetupFailure::Silent),
                Err(_) => self.remove(id),
            }
        }
    }
}
