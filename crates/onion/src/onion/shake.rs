//! Handshakes of the two hosts' sessions, sent as control messages of a circuit.

use shoal_crypto::Ciphers;
use shoal_wire::leg::{HandshakeHalf, LegMessage};
use shoal_wire::{DropReason, Time};

use super::{CircuitEntry, CircuitId, Onion, QUEUE_MAX};
use crate::hop::{CircuitNext, PendingHandshake};
use crate::setup::malformed;

impl<C: Ciphers> Onion<C> {
    /// Sends a handshake between the two hosts over a circuit: a frame of at most
    /// [`shoal_wire::shake::EDGE_LEN`] bytes. The origin may begin one. The destination answers the
    /// newest one that it got, once.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: the circuit is gone, not built yet, or does not end here.
    /// `unexpected_reply`: the destination has no handshake to answer. `malformed`: the frame is
    /// empty or too long. `circuit_expired`: no numbers are left. `queue_full`: too many cells
    /// wait. Nothing was sent then.
    pub fn send_handshake(&mut self, id: CircuitId, frame: &[u8]) -> Result<(), DropReason> {
        if self.transmits.len() + 2 > QUEUE_MAX {
            return Err(DropReason::QueueFull);
        }
        match self.slots.get_mut(id) {
            Some(CircuitEntry::Origin(circuit)) if circuit.is_built() => {
                let parts = HandshakeHalf::both(circuit.handshakes, frame).map_err(malformed)?;
                circuit.handshakes = circuit.handshakes.wrapping_add(1);
                let hops = circuit.hops();
                for part in parts {
                    self.say(id, hops, &LegMessage::Handshake(part))?;
                }
            }
            Some(CircuitEntry::Hop(hop)) if matches!(hop.next, CircuitNext::End) => {
                let asked = hop.asked.as_ref().ok_or(DropReason::UnexpectedReply)?;
                let parts = HandshakeHalf::both(asked.number, frame).map_err(malformed)?;
                // A host does not delay cells, so the time of the last cell is exact enough.
                let (cells, now) = (asked.cells, hop.used);
                // The request is cleared before anything is sealed, so that no number is used
                // again.
                hop.asked = None;
                for (cell, part) in cells.into_iter().zip(parts) {
                    self.reply(now, id, cell, &LegMessage::Handshake(part))?;
                }
            }
            _ => return Err(DropReason::UnknownCircuit),
        }
        Ok(())
    }

    /// Processes half of a handshake at the destination. `cell` is the number of its cell.
    pub(super) fn handle_asked_part(
        &mut self,
        now: Time,
        id: CircuitId,
        cell: u64,
        part: &HandshakeHalf<'_>,
    ) -> Result<(), DropReason> {
        let hop = self.hop(id)?;
        if !matches!(hop.next, CircuitNext::End) {
            return Err(DropReason::NotAllowed);
        }
        if let Some(whole) = hop.inbox.take(now, part, cell) {
            hop.asked = Some(PendingHandshake { number: whole.number, cells: whole.cells });
            return self.tell_handshake(id, whole.bytes);
        }
        Ok(())
    }

    /// Reports a handshake. It replaces an untaken one of its circuit, since only the newest is
    /// answered.
    ///
    /// Errors: `queue_full`: the older handshake is lost, or this one, if those of too many
    /// circuits wait.
    fn tell_handshake(&mut self, id: CircuitId, bytes: Box<[u8]>) -> Result<(), DropReason> {
        if self.handshakes.len() >= QUEUE_MAX && !self.handshakes.contains_key(&id) {
            return Err(DropReason::QueueFull);
        }
        let older = self.handshakes.insert(id, bytes);
        older.map_or(Ok(()), |_| Err(DropReason::QueueFull))
    }

    /// Processes half of the destination's answer at the origin.
    pub(super) fn handle_answer_part(
        &mut self,
        now: Time,
        id: CircuitId,
        (hop, cell): (u8, u64),
        part: &HandshakeHalf<'_>,
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
