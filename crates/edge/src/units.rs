//! Units: cells that the first worker seals for hidden hosts, and opens from them.

use shoal_crypto::{Aead, Ciphers, PlantedFault};
use shoal_session::SessionShard;
use shoal_wire::{CircuitId, DropReason, EdgeKind, Time, ip};

use crate::book::HostId;
use crate::building::CellBatch;
use crate::cells::{CellLayout, InboundCells, is_congested, plain};
use crate::edge::EdgeOutput;
use crate::sequence::{OrderVerdict, PacketLabel};
use crate::worker::{CellFinisher, EdgeTurn, EdgeWorker, PacketArrival, UnfinishedCell};

/// The circuit over which a hidden host is reached, and the layout of its units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HiddenRoute {
    pub(crate) circuit: CircuitId,
    pub(crate) form: CellLayout,
}

/// Stream number of a packet that came on a circuit, and the part of the plaintext to deliver. That
/// part has the layout of a plaintext without a number, but its first byte is not the kind byte.
fn numbered(plain: &[u8]) -> Option<(ip::StreamNumber, &[u8])> {
    let (head, packet) = plain.split_at(ip::NUMBER_LEN);
    let number = ip::StreamNumber::from_bytes([head[1], head[2], head[3], packet[0]]);
    (head[0] == EdgeKind::Numbered as u8).then_some((number, packet))
}

/// Length of a packet and its flags, up to the end that its IP header names (RFC 791, RFC 8200).
/// The bytes behind are padding. If the header names no end within `packet`, the length of
/// `packet`.
pub(crate) fn used(packet: &[u8]) -> usize {
    let word = |at: usize| {
        let at = ip::PACKET_AT + at;
        packet
            .get(at..at + 2)
            .map_or(usize::MAX / 2, |len| usize::from(len[0]) << 8 | usize::from(len[1]))
    };
    let len = match packet.get(ip::PACKET_AT).map(|first| first >> 4) {
        Some(4) => word(2),
        Some(6) => 40 + word(4),
        _ => usize::MAX / 2,
    };
    packet.len().min(ip::PACKET_AT + len)
}

impl EdgeWorker {
    /// Forgets all state of a hidden host.
    pub(crate) fn forget(&mut self, host: HostId) {
        self.ways.remove(host);
        self.numbers.forget(host);
        self.sequences.forget(host);
    }

    pub(crate) fn send_units<C: Ciphers>(
        &mut self,
        turn: &mut EdgeTurn<'_, C, impl EdgeOutput>,
        run: CellBatch,
        buf: &mut [u8],
    ) -> Result<(), DropReason> {
        let peer = self.book.peer(run.host).ok_or(DropReason::NoEndpoint)?;
        // The host may have got a circuit of another shape since the units were written.
        let way = self.ways.get(run.host).filter(|way| way.form == run.form);
        let circuit = way.ok_or(DropReason::NoSession)?.circuit;
        self.offsets.clear();
        self.offsets.extend((0..buf.len() as u32).step_by(run.form.frame_len()));
        self.payloads.clear();
        self.payloads.extend(self.offsets.iter().map(|at| at + run.form.sealed_at() as u32));
        self.number(turn.now, run, circuit, buf);
        turn.shard.seal_units(turn.now, peer, buf, &self.payloads, run.form.sealed_len())?;
        if C::Aead::flaw() == Some(PlantedFault::PastCircuit)
            && let Some(to) = self.book.address(run.host)
        {
            self.address(run, (to, turn.out.source(to).unwrap_or(self.me)), buf);
            turn.out.cells(turn.now, buf, &self.offsets, run.form.frame_len());
            return Ok(());
        }
        turn.out.unit(turn.now, circuit, buf, &self.offsets);
        Ok(())
    }

    /// Writes the packet numbers into units, where their stream numbers already are.
    fn number(&mut self, now: Time, run: CellBatch, circuit: CircuitId, buf: &mut [u8]) {
        let EdgeWorker { numbers, offsets, .. } = self;
        let sent = self.sequences.steps(circuit).at(now).to_flags();
        for &at in &*offsets {
            let plain = plain(buf, at as usize, run.form);
            let Some((number, _)) = numbered(plain) else { continue };
            let (next, is_first) = numbers.take(now, run.host, number.stream);
            let number = ip::StreamNumber { number: next, ..number };
            plain[ip::NUMBER_AT..][..ip::NUMBER_LEN].copy_from_slice(&number.to_bytes());
            let first = if is_first { ip::FIRST } else { 0 };
            plain[ip::NUMBER_LEN + ip::FLAGS_AT] |= first | sent;
        }
    }

    /// Delivers the packet of a unit, unless it must wait for earlier ones.
    fn deliver_unit(
        &mut self,
        now: Time,
        index: usize,
        (host, circuit): (HostId, CircuitId),
        at: u32,
        form: CellLayout,
        buf: &[u8],
    ) {
        let plain = &buf[at as usize + form.plain_at()..][..form.plain_len()];
        let Some((number, packet)) = numbered(plain).filter(|_| self.takes_packets) else {
            return self.left.push(UnfinishedCell { index, to: CellFinisher::Control(host) });
        };
        let congested = is_congested(&buf[at as usize..]);
        let label = PacketLabel::new(number, packet[ip::FLAGS_AT]);
        // Only the packet itself is copied, not its padding, so a short acknowledgement is cheap.
        let packet = &packet[..used(packet)];
        match self.sequences.take(now, (host, circuit), label, packet, congested) {
            OrderVerdict::Deliver => {
                let at = at + (form.plain_at() + ip::NUMBER_LEN) as u32;
                self.arrived.push(PacketArrival { host, at, len: packet.len() as u32, congested });
            }
            OrderVerdict::Held => {}
            OrderVerdict::Duplicate => self.count(DropReason::Replayed, 1),
        }
    }

    /// Opens units that came over a circuit, delivers their packets, and leaves the rest to
    /// control. The first worker has all circuits, and the only lane of their sessions.
    pub(crate) fn open_units<C: Ciphers>(
        &mut self,
        now: Time,
        shard: &mut SessionShard<C>,
        (circuit, form): (CircuitId, CellLayout),
        cells: &mut InboundCells<'_>,
    ) {
        self.arrived.clear();
        self.left.clear();
        self.moved.clear();
        if cells.frame_len != form.frame_len() {
            return self.count(DropReason::BadSize, cells.offsets.len() as u64);
        }
        self.payloads.clear();
        self.payloads.extend(cells.offsets.iter().map(|&at| at + form.sealed_at() as u32));
        let mut opened = core::mem::take(&mut self.opened);
        opened.clear();
        shard.open_units(now, cells.buf, &self.payloads, form.sealed_len(), &mut opened);
        for ((index, &at), opening) in cells.offsets.iter().enumerate().zip(opened.drain(..)) {
            let sender = opening.opened().and_then(|opened| {
                let host = self.book.of_peer(opened.peer).ok_or(DropReason::BadSource)?;
                if opened.newest && self.moved.last() != Some(&host) {
                    self.moved.push(host);
                }
                Ok(host)
            });
            match sender {
                Ok(host) => self.deliver_unit(now, index, (host, circuit), at, form, cells.buf),
                Err(reason) => self.count(reason, 1),
            }
        }
        self.opened = opened;
    }
}

#[cfg(test)]
mod tests {
    use super::used;

    #[test]
    fn padding_behind_a_packet_is_left_out_and_a_wrong_length_leaves_nothing_out() {
        let mut cell = [0; 1_314];
        cell[2] = 0x45;
        for (len, found) in [(40_u16, 42), (1_312, 1_314), (1_313, 1_314), (u16::MAX, 1_314)] {
            cell[4..6].copy_from_slice(&len.to_be_bytes());
            assert_eq!(used(&cell), found);
        }
        cell[2] = 0x60;
        for (len, found) in [(20_u16, 62), (1_272, 1_314), (u16::MAX, 1_314)] {
            cell[6..8].copy_from_slice(&len.to_be_bytes());
            assert_eq!(used(&cell), found);
        }
        cell[2] = 0x75;
        assert_eq!(used(&cell), 1_314, "no IP packet");
        assert_eq!((used(&cell[..2]), used(&cell[..5])), (2, 5));
        cell[2] = 0x45;
        assert_eq!(used(&cell[..5]), 5, "the length is cut off");
    }
}
