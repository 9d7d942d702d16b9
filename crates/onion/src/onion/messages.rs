//! Control messages between the origin of a circuit and its hops.

use shoal_crypto::Ciphers;
use shoal_wire::leg::{CELL_LEN, ExtendRefusal, LegMessage};
use shoal_wire::{CircuitId, DropReason, Time};

use super::{CircuitEntry, MixWait, OWN_ECHO, Onion, OnionEvent, SetupFailure};
use crate::hop::SealTools;
use crate::setup::{BoxedCell, malformed};

impl<C: Ciphers> Onion<C> {
    /// Asks a hop of a circuit of this node, counted from 1, to answer with `number`, which must
    /// not be 0.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: the hop does not exist. `circuit_expired`: no number is left.
    /// `queue_full`: too many cells wait to be sent.
    pub fn echo(&mut self, id: CircuitId, hop: u8, number: u64) -> Result<(), DropReason> {
        self.say(id, hop.into(), &LegMessage::Echo(number)).map(|_| ())
    }

    /// Sends a control message to a hop. Returns the message's number.
    pub(super) fn say(
        &mut self,
        id: CircuitId,
        hop: usize,
        message: &LegMessage<'_>,
    ) -> Result<u64, DropReason> {
        let mut cell: BoxedCell = Box::new([0; CELL_LEN]);
        let Self { slots, filler, keys, scratch, .. } = self;
        let tools = &mut SealTools { filler, keys, scratch };
        let Some(CircuitEntry::Origin(circuit)) = slots.get_mut(id) else {
            return Err(DropReason::UnknownCircuit);
        };
        let (to, number) = circuit.seal_message(hop, message, &mut cell[..], tools)?;
        self.transmit(to, cell, None, Some(id))?;
        Ok(number)
    }

    pub(super) fn reply(
        &mut self,
        now: Time,
        id: CircuitId,
        number: u64,
        message: &LegMessage<'_>,
    ) -> Result<(), DropReason> {
        let Self { slots, filler, keys, scratch, .. } = self;
        let tools = &mut SealTools { filler, keys, scratch };
        let Some(CircuitEntry::Hop(hop)) = slots.get_mut(id) else {
            return Err(DropReason::UnknownCircuit);
        };
        let to = hop.prev.node;
        let (cell, due) = hop.reply(now, number, message, tools)?;
        self.transmit(to, cell, due.map(|due| MixWait { due, from: to }), Some(id))
    }

    /// Processes a control message from a circuit's origin to this hop.
    pub(super) fn handle_request(
        &mut self,
        now: Time,
        id: CircuitId,
        number: u64,
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let range = self.hop(id)?.layer.message_range();
        match LegMessage::parse(&cell[range]).map_err(malformed)? {
            LegMessage::Extend { to, noise } => match self.extend(now, id, number, to, noise) {
                Ok(()) => Ok(()),
                Err(refusal) => {
                    self.reply(now, id, number, &LegMessage::Refused(refusal))?;
                    Err(match refusal {
                        ExtendRefusal::Full => DropReason::CircuitLimit,
                        ExtendRefusal::NotAllowed | ExtendRefusal::Silent => DropReason::NotAllowed,
                    })
                }
            },
            LegMessage::Echo(n) => self.reply(now, id, number, &LegMessage::Echoed(n)),
            LegMessage::Close => {
                self.remove(id);
                Ok(())
            }
            LegMessage::Handshake(part) => self.handle_asked_part(now, id, number, &part),
            LegMessage::Extended(_) | LegMessage::Refused(_) | LegMessage::Echoed(_) => {
                Err(DropReason::Malformed)
            }
        }
    }

    /// Processes a hop's answer at the origin.
    pub(super) fn handle_answer(
        &mut self,
        now: Time,
        id: CircuitId,
        (hop, number): (u8, u64),
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let circuit = self.origin(id)?;
        let message = LegMessage::parse(&cell[circuit.message_range(hop)]).map_err(malformed)?;
        let asked = circuit.building.as_ref().and_then(|building| building.number);
        let is_due = usize::from(hop) == circuit.hops() && asked == Some(number);
        match message {
            LegMessage::Extended(noise) if is_due => self.finish_hop(id, Box::new(*noise)),
            LegMessage::Refused(why) if is_due => {
                self.fail(id, hop + 1, SetupFailure::Refused(why));
                Ok(())
            }
            LegMessage::Echoed(OWN_ECHO) => Ok(()),
            LegMessage::Echoed(n) => {
                let delays = self.origin(id)?.delays(hop.into(), number);
                self.tell(OnionEvent::Echoed(id, hop, n, delays));
                Ok(())
            }
            LegMessage::Handshake(part) => self.handle_answer_part(now, id, (hop, number), &part),
            LegMessage::Extended(_) | LegMessage::Refused(_) => Err(DropReason::UnknownCircuit),
            LegMessage::Extend { .. } | LegMessage::Close | LegMessage::Echo(_) => {
                Err(DropReason::Malformed)
            }
        }
    }
}
