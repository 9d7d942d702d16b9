//! Control messages between the origin of a circuit and its hops.

use shoal_crypto::Ciphers;
use shoal_wire::leg::{CELL_LEN, Message, Refusal};
use shoal_wire::{CircuitId, DropReason, Time};

use super::{Entry, Event, Failure, OWN_ECHO, Onion, Wait};
use crate::hop::Tools;
use crate::setup::{Cell, malformed};

impl<C: Ciphers> Onion<C> {
    /// Asks a hop of a circuit of this node, counted from 1, to answer with `number`, which is
    /// not 0.
    ///
    /// # Errors
    ///
    /// `unknown_circuit`: there is no such hop. `circuit_expired`, `queue_full`.
    pub fn echo(&mut self, id: CircuitId, hop: u8, number: u64) -> Result<(), DropReason> {
        self.say(id, hop.into(), &Message::Echo(number)).map(|_| ())
    }

    /// Sends a control message to a hop; returns its number.
    pub(super) fn say(
        &mut self,
        id: CircuitId,
        hop: usize,
        message: &Message<'_>,
    ) -> Result<u64, DropReason> {
        let mut cell: Cell = Box::new([0; CELL_LEN]);
        let Self { slots, filler, keys, scratch, .. } = self;
        let tools = &mut Tools { filler, keys, scratch };
        let Some(Entry::Origin(circuit)) = slots.get_mut(id) else {
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
        message: &Message<'_>,
    ) -> Result<(), DropReason> {
        let Self { slots, filler, keys, scratch, .. } = self;
        let tools = &mut Tools { filler, keys, scratch };
        let Some(Entry::Hop(hop)) = slots.get_mut(id) else {
            return Err(DropReason::UnknownCircuit);
        };
        let to = hop.prev.node;
        let (cell, due) = hop.reply(now, number, message, tools)?;
        self.transmit(to, cell, due.map(|due| Wait { due, from: to }), Some(id))
    }

    /// Takes in what the origin of a circuit says to this hop.
    pub(super) fn handle_request(
        &mut self,
        now: Time,
        id: CircuitId,
        number: u64,
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let range = self.hop(id)?.layer.message_range();
        match Message::parse(&cell[range]).map_err(malformed)? {
            Message::Extend { to, noise } => match self.extend(now, id, number, to, noise) {
                Ok(()) => Ok(()),
                Err(refusal) => {
                    self.reply(now, id, number, &Message::Refused(refusal))?;
                    Err(match refusal {
                        Refusal::Full => DropReason::CircuitLimit,
                        Refusal::NotAllowed | Refusal::Silent => DropReason::NotAllowed,
                    })
                }
            },
            Message::Echo(n) => self.reply(now, id, number, &Message::Echoed(n)),
            Message::Close => {
                self.remove(id);
                Ok(())
            }
            Message::Handshake(part) => self.handle_asked_part(now, id, number, &part),
            Message::Extended(_) | Message::Refused(_) | Message::Echoed(_) => {
                Err(DropReason::Malformed)
            }
        }
    }

    /// Takes in what a hop answers to this origin.
    pub(super) fn handle_answer(
        &mut self,
        now: Time,
        id: CircuitId,
        (hop, number): (u8, u64),
        cell: &[u8],
    ) -> Result<(), DropReason> {
        let circuit = self.origin(id)?;
        let message = Message::parse(&cell[circuit.message_range(hop)]).map_err(malformed)?;
        let asked = circuit.building.as_ref().and_then(|building| building.number);
        let is_due = usize::from(hop) == circuit.hops() && asked == Some(number);
        match message {
            Message::Extended(noise) if is_due => self.finish_hop(id, Box::new(*noise)),
            Message::Refused(why) if is_due => {
                self.fail(id, hop + 1, Failure::Refused(why));
                Ok(())
            }
            Message::Echoed(OWN_ECHO) => Ok(()),
            Message::Echoed(n) => {
                let waits = self.origin(id)?.delay(hop.into(), number);
                self.tell(Event::Echoed(id, hop, n, waits));
                Ok(())
            }
            Message::Handshake(part) => self.handle_answer_part(now, id, (hop, number), &part),
            Message::Extended(_) | Message::Refused(_) => Err(DropReason::UnknownCircuit),
            Message::Extend { .. } | Message::Close | Message::Echo(_) => {
                Err(DropReason::Malformed)
            }
        }
    }
}
