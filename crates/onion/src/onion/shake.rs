//! Handshakes of the two hosts' sessions, which travel as control messages of a circuit.

use shoal_crypto::Ciphers;
use shoal_wire::leg::{Message, Part};
use shoal_wire::{DropReason, Time};

use super::{CircuitId, Entry, Onion, QUEUE_MAX};
use crate::hop::{Asked, Next};
use crate::setup::malformed;

impl<C: Ciphers> Onion<C> {
    /// Sends a handshake of the two hosts over a circuit: a frame of
    /// [`shoal_wire::shake::EDGE_LEN`] bytes at most. The origin may begin; the destination answers
    /// the newest that it was told of, once.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: it is gone, not built yet, or does not end here. `unexpected_reply`: the
    /// destination has nothing to answer. `malformed`: the frame is empty or too long.
    /// `circuit_expired`, `queue_full`. Nothing was sent then.
    pub fn send_handshake(&mut self, id: CircuitId, frame: &[u8]) -> Result<(), DropReason> {
        if self.transmits.len() + 2 > QUEUE_MAX {
            return Err(DropReason::QueueFull);
        }
        match self.slots.get_mut(id) {
            Some(Entry::Origin(circuit)) if circuit.is_built() => {
                let parts = Part::both(circuit.handshakes, frame).map_err(malformed)?;
                circuit.handshakes = circuit.handshakes.wrapping_add(1);
                let hops = circuit.hops();
                for part in parts {
                    self.say(id, hops, &Message::Handshake(part))?;
                }
            }
            Some(Entry::Hop(hop)) if matches!(hop.next, Next::End) => {
                let asked = hop.asked.as_ref().ok_or(DropReason::UnexpectedReply)?;
                let parts = Part::both(asked.number, frame).map_err(malformed)?;
                // A host keeps no cells back: that it was asked so lately is exact enough.
                let (cells, now) = (asked.cells, hop.used);
                // Before anything is sealed: no number is used again.
                hop.asked = None;
                for (cell, part) in cells.into_iter().zip(parts) {
                    self.reply(now, id, cell, &Message::Handshake(part))?;
                }
            }
            _ => return Err(DropReason::UnknownCircuit),
        }
        Ok(())
    }

    /// Takes in half of a handshake at the destination; `cell` is the number of its cell.
    pub(super) fn handle_asked_part(
        &mut self,
        now: Time,
        id: CircuitId,
        cell: u64,
        part: &Part<'_>,
    ) -> Result<(), DropReason> {
        let hop = self.hop(id)?;
        if !matches!(hop.next, Next::End) {
            return Err(DropReason::NotAllowed);
        }
        if let Some(whole) = hop.inbox.take(now, part, cell) {
            hop.asked = Some(Asked { number: whole.number, cells: whole.cells });
            return self.tell_handshake(id, whole.bytes);
        }
        Ok(())
    }

    /// Tells of a handshake. One of the same circuit that nobody took yet gives way to it: answers
    /// go to the newest alone.
    ///
    /// Errors: `queue_full`: the older one is lost, or this one, since those of too many circuits
    /// wait.
    fn tell_handshake(&mut self, id: CircuitId, bytes: Box<[u8]>) -> Result<(), DropReason> {
        if self.handshakes.len() >= QUEUE_MAX && !self.handshakes.contains_key(&id) {
            return Err(DropReason::QueueFull);
        }
        let older = self.handshakes.insert(id, bytes);
        older.map_or(Ok(()), |_| Err(DropReason::QueueFull))
    }

    /// Takes in half of the destination's answer at the origin.
    pub(super) fn handle_answer_part(
        &mut self,
        now: Time,
        id: CircuitId,
        (hop, cell): (u8, u64),
        part: &Part<'_>,
    ) -> Result<(), DropReason> {
        let circuit = self.origin(id)?;
        if !circuit.is_built() || usize::from(hop) != circuit.hops() {
            return Err(DropReason::NotAllowed);
        }
        if let Some(whole) = circuit.inbox.take(now, part, cell) {
            return self.tell_handshake(id, whole.bytes);
        }
        Ok(())
    }
}
