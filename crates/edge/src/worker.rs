//! The data path of a host, one per worker. It seals and opens cells on the lanes that the worker
//! holds.
//!
//! ```text
//! packets, control's messages -> over a direct link, or sealed -> out, or on a circuit
//! cells for this host -> opened, source checked -> packets, delivered in place
//!                          |-> no packet, or perhaps a handshake: left to control
//!                          |-> sealed on another worker's lane: left to that worker
//! ```
//!
//! [`crate::Edge`] is the control, which makes and ends sessions. It holds the first worker's data
//! path and finishes the cells that this one leaves, in the same buffer. Cells that another
//! worker's data path leaves go through [`CellHandoff`]. Control sends orders to workers; workers
//! send notes to control.

mod notes;

use core::ops::Range;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{IdTable, OpenResult, OpenedSessionFrame, SessionShard};
use shoal_wire::{
    Address, DropReason, EdgeKind, LinkId, RoutedHeader, SizeClass, Time, TrafficClass, ip, link,
};

use crate::book::{HostDirectory, HostId};
use crate::building::{BatchBuilder, CellBatch, PacketFlow};
use crate::cells::{
    CELL_AT, CellLayout, InboundCells, PLAIN_AT, address_cell, is_congested, is_direct, source,
    unseal,
};
use crate::clear::ClearCounts;
use crate::edge::{EdgeConfig, EdgeOutput};
use crate::numbers::PacketNumbers;
use crate::sequence::PacketReordering;
use crate::shared::cell_packets;
use crate::units::HiddenRoute;
pub use notes::{EdgeNote, HostTraffic};

/// Number of packets behind the first ones of their cells that one batch delivers; further ones are
/// dropped. Four messages of 64 kB with packets of programs have fewer. A member could otherwise
/// fill 64 of them with 175,000 packets of 20 bytes. To write those takes longer than a link may be
/// silent.
const SHARED_MAX: usize = 8_192;

/// An order of control to a worker.
pub enum EdgeOrder<A> {
    Keys(shoal_session::ShardOrder<A>),
    Hosts(Arc<HostDirectory>),
    /// Send to this address of the host from here on.
    Follow {
        host: HostId,
        address: Address,
    },
}

/// Hands cells to the worker that can finish them. Each method returns false if the cell was not
/// taken; it is then dropped.
pub trait CellHandoff {
    /// Hands an unopened cell to `worker`, which opens it. The cell came over the link `from`.
    fn cell(&mut self, worker: u8, from: Option<LinkId>, frame: &[u8]) -> bool;
    /// Hands an opened cell of `host` to control.
    fn plain(&mut self, host: HostId, frame: &[u8]) -> bool;
}

/// A single worker hands nothing off.
impl CellHandoff for () {
    fn cell(&mut self, _: u8, _: Option<LinkId>, _: &[u8]) -> bool {
        false
    }

    fn plain(&mut self, _: HostId, _: &[u8]) -> bool {
        false
    }
}

/// An IP packet that arrived, in the buffer of its [`InboundCells`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketArrival {
    /// The host that sealed the packet.
    pub host: HostId,
    /// Offset of the packet's plaintext: one byte before the flags. That byte may have any value.
    pub at: u32,
    /// Length of the plaintext in bytes, up to the next packet in the cell. For the last packet, up
    /// to the end of the cell, padding included.
    pub len: u32,
    /// True if a router marked the cell because of congestion.
    pub congested: bool,
}

/// A worker's means to send.
pub struct EdgeTurn<'a, C: Ciphers, O> {
    pub now: Time,
    /// Lanes that the worker holds.
    pub shard: &'a mut SessionShard<C>,
    pub out: &'a mut O,
}

/// A cell that the data path could not finish: its index in the batch, and who can finish it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnfinishedCell {
    pub(crate) index: usize,
    pub(crate) to: CellFinisher,
}

/// The part of the node that finishes a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CellFinisher {
    /// Control: an opened cell of this host that holds no packet.
    Control(HostId),
    /// Control: a cell whose index no session knows, perhaps a handshake. The cell is unchanged.
    Handshake,
    /// The worker with this number. The cell is unchanged.
    Worker(u8),
}

/// The data path of one worker; see the module's documentation.
pub struct EdgeWorker {
    pub(crate) me: Address,
    /// True if there is an interface that takes packets.
    pub(crate) takes_packets: bool,
    /// True if direct links are configured. Only then is traffic through routers noted.
    is_asked: bool,
    pub(crate) book: Arc<HostDirectory>,
    /// Hosts that use their second address.
    at_second: IdTable<HostId, bool>,
    /// Circuits to hidden hosts. Only the first worker has any.
    pub(crate) ways: IdTable<HostId, HiddenRoute>,
    /// Numbers of packets to hidden hosts.
    pub(crate) numbers: PacketNumbers,
    /// Order of packets from hidden hosts.
    pub(crate) sequences: PacketReordering,
    pub(crate) building: BatchBuilder,
    pub(crate) arrived: Vec<PacketArrival>,
    /// Time of the last batch, and number of its packets behind the first ones of their cells. A
    /// batch comes in several calls, one for each run of equal lengths.
    shared: (Time, usize),
    /// Unfinished cells of the last batch.
    pub(crate) left: Vec<UnfinishedCell>,
    /// Hosts whose newest unit so far was in the last batch.
    pub(crate) moved: Vec<HostId>,
    /// Observations that are not taken yet, each once.
    seen: Vec<(HostId, HostTraffic)>,
    /// Cells that left outside circuits, and that control does not know yet.
    clear: ClearCounts,
    pub(crate) offsets: Vec<u32>,
    pub(crate) payloads: Vec<u32>,
    pub(crate) opened: Vec<OpenResult>,
    drops: Vec<(DropReason, u64)>,
}

impl EdgeWorker {
    /// The data path of one worker, for an edge with this configuration.
    pub fn new(config: &EdgeConfig) -> EdgeWorker {
        EdgeWorker {
            me: config.address,
            takes_packets: config.ip,
            is_asked: config.direct.is_some(),
            book: Arc::default(),
            at_second: IdTable::default(),
            ways: IdTable::default(),
            numbers: PacketNumbers::new([0; 32]),
            sequences: PacketReordering::default(),
            building: BatchBuilder::default(),
            arrived: Vec::new(),
            shared: (Time::ZERO, 0),
            left: Vec::new(),
            moved: Vec::new(),
            seen: Vec::new(),
            clear: ClearCounts::default(),
            offsets: Vec::new(),
            payloads: Vec::new(),
            opened: Vec::new(),
            drops: Vec::new(),
        }
    }

    /// Handles an order. Orders must come in the sequence in which control gave them.
    pub fn handle_order<C: Ciphers>(
        &mut self,
        shard: &mut SessionShard<C>,
        order: EdgeOrder<C::Aead>,
    ) {
        match order {
            EdgeOrder::Keys(order) => shard.handle_order(order),
            EdgeOrder::Hosts(book) => self.book = book,
            EdgeOrder::Follow { host, address } => self.follow(host, address),
        }
    }

    /// Address of a host.
    pub fn address_of(&self, host: HostId) -> Option<Address> {
        self.book.address(host)
    }

    /// Address to which cells for a host go now. None for a hidden host.
    #[inline]
    pub(crate) fn target(&self, host: HostId) -> Option<Address> {
        let known = self.book.routed_addresses(host)?;
        let second = known.second.filter(|_| self.is_at_second(host));
        Some(second.unwrap_or(known.first))
    }

    /// True if cells for a host go to its second address, if it has one.
    #[inline]
    pub(crate) fn is_at_second(&self, host: HostId) -> bool {
        self.at_second.get(host).is_some_and(|at| *at)
    }

    /// Sends to this address of the host from here on.
    pub(crate) fn follow(&mut self, host: HostId, address: Address) {
        self.at_second.put(host, self.book.second(host) == Some(address));
    }

    /// True if the backlog towards the host is so long that programs' packets should wait.
    pub fn is_congested(&self, host: HostId, out: &impl EdgeOutput) -> bool {
        match (self.book.routed(host), self.ways.get(host)) {
            (Some(to), _) => out.is_congested(to),
            (None, Some(way)) => out.circuit_is_congested(way.circuit),
            (None, None) => false,
        }
    }

    /// Number of full frames for the host that would leave without waiting.
    pub(crate) fn room(&self, host: HostId, out: &impl EdgeOutput) -> usize {
        match (self.book.routed(host), self.ways.get(host)) {
            (Some(to), _) => out.room(to),
            (None, Some(way)) => out.circuit_room(way.circuit),
            (None, None) => 0,
        }
    }

    /// True if this worker can send to the host. That takes a direct link, or a session with a lane
    /// of this worker; a hidden host also needs a circuit. Cells for other hosts are left to
    /// control.
    pub fn reaches<C: Ciphers>(
        &self,
        turn: &EdgeTurn<'_, C, impl EdgeOutput>,
        host: HostId,
    ) -> bool {
        let has_lane = || !self.lanes(turn, host).is_empty();
        match self.book.routed(host) {
            Some(to) => has_lane() || turn.out.may_go_direct(to),
            None => self.ways.get(host).is_some() && has_lane(),
        }
    }

    /// The layout of a cell for the host that holds `len` bytes of plaintext.
    ///
    /// Errors: `ip_too_big`; `no_session` for a hidden host without a circuit.
    pub(crate) fn form(&self, host: HostId, len: usize) -> Result<CellLayout, DropReason> {
        let form = match self.book.is_hidden(host) {
            false => SizeClass::for_edge(len).map(CellLayout::cell),
            true => Some(self.ways.get(host).ok_or(DropReason::NoSession)?.form),
        };
        form.filter(|form| form.plain_len() >= len).ok_or(DropReason::IpTooBig)
    }

    /// Lanes on which this worker seals for a host.
    fn lanes<C: Ciphers, O>(&self, turn: &EdgeTurn<'_, C, O>, host: HostId) -> Range<u8> {
        let peer = self.book.peer(host);
        peer.map_or(0..0, |peer| turn.shard.seal_lanes(turn.now, peer))
    }

    /// Sends one IP packet to a host for which [`EdgeWorker::reaches`] is true. `write` fills the
    /// whole plaintext of a cell that has at least `len` bytes, kind byte first. Call
    /// [`EdgeWorker::flush`] after the last packet.
    ///
    /// Drops are counted: `ip_too_big`, `no_session`.
    pub fn send_packet<C: Ciphers>(
        &mut self,
        turn: &mut EdgeTurn<'_, C, impl EdgeOutput>,
        flow: PacketFlow,
        len: usize,
        write: impl FnOnce(&mut [u8]),
    ) {
        let class = SizeClass::for_edge(len);
        if class.is_some_and(|class| self.building.goes_on(flow, class, len)) {
            return self.building.push(flow, len, write);
        }
        let more = if self.book.is_hidden(flow.host) { ip::NUMBER_LEN } else { 0 };
        let form = match self.form(flow.host, len + more) {
            Ok(form) => form,
            Err(reason) => return self.count(reason, 1),
        };
        let lane = flow.lane(self.lanes(turn, flow.host));
        let run = CellBatch { host: flow.host, form, traffic: TrafficClass::Bulk, lane };
        if !self.building.fits(&run) {
            self.flush(turn);
        }
        self.building.add(run, class.filter(|_| !form.is_unit()), (flow, len), write);
    }

    pub fn flush<C: Ciphers>(&mut self, turn: &mut EdgeTurn<'_, C, impl EdgeOutput>) {
        let Some((mut buf, run, count)) = self.building.take() else { return };
        let flows = self.building.flows;
        self.send_run(turn, run, &flows, &mut buf[..count * run.form.frame_len()]);
        self.building.give_back(buf);
    }

    /// Sends the frames in `buf`, whose plaintexts are in place. Units leave on the host's circuit.
    /// Other cells leave over a direct link if there is one, else sealed through routers. `flows`
    /// are the packets' flows; empty for other cells.
    ///
    /// Drops are counted: `no_endpoint`, `no_session`, `circuit_required`.
    pub(crate) fn send_run<C: Ciphers>(
        &mut self,
        turn: &mut EdgeTurn<'_, C, impl EdgeOutput>,
        run: CellBatch,
        flows: &[u8],
        buf: &mut [u8],
    ) {
        let to = self.book.routed(run.host).filter(|_| !run.form.is_unit());
        if let Some(to) = to.filter(|to| turn.out.may_go_direct(*to)) {
            self.address(run, (to, self.me), buf);
            unseal(buf, &self.payloads, run.form.sealed_len(), flows);
            turn.out.direct(turn.now, buf, &self.offsets, run.form.frame_len());
            self.note(run.host, HostTraffic::Direct);
            self.note_clear(run.host, self.offsets.len());
        } else if self.send_sealed(turn, run, buf) && !run.form.is_unit() {
            self.note(run.host, HostTraffic::Routed);
        }
    }

    /// Sends frames as `send_run` does, but always sealed, even if there is a direct link. Returns
    /// true if they were sent.
    pub(crate) fn send_sealed<C: Ciphers>(
        &mut self,
        turn: &mut EdgeTurn<'_, C, impl EdgeOutput>,
        run: CellBatch,
        buf: &mut [u8],
    ) -> bool {
        let sent = match run.form.is_unit() {
            false => self.send_cells(turn, run, buf),
            true => self.send_units(turn, run, buf),
        };
        if let Err(reason) = sent {
            self.count(reason, (buf.len() / run.form.frame_len()) as u64);
            self.note(run.host, HostTraffic::Unsealed);
        }
        sent.is_ok()
    }

    fn send_cells<C: Ciphers>(
        &mut self,
        turn: &mut EdgeTurn<'_, C, impl EdgeOutput>,
        run: CellBatch,
        buf: &mut [u8],
    ) -> Result<(), DropReason> {
        let refusal = || self.refusal(run.host).unwrap_or(DropReason::NoEndpoint);
        let to = self.target(run.host).ok_or_else(refusal)?;
        self.send_cells_to(turn, run, to, buf)
    }

    /// Sends cells for a host to this address of it.
    pub(crate) fn send_cells_to<C: Ciphers>(
        &mut self,
        turn: &mut EdgeTurn<'_, C, impl EdgeOutput>,
        run: CellBatch,
        to: Address,
        buf: &mut [u8],
    ) -> Result<(), DropReason> {
        let peer = self.book.peer(run.host).ok_or(DropReason::NoEndpoint)?;
        let from = turn.out.source(to).unwrap_or(self.me);
        self.address(run, (to, from), buf);
        let lanes = turn.shard.seal_lanes(turn.now, peer);
        // Keys may have changed since the lane was chosen.
        let lane = if lanes.contains(&run.lane) { run.lane } else { lanes.start };
        let len = run.form.sealed_len();
        turn.shard.seal_batch(turn.now, peer, lane, buf, &self.payloads, len)?;
        turn.out.cells(turn.now, buf, &self.offsets, run.form.frame_len());
        self.note_clear(run.host, self.offsets.len());
        Ok(())
    }

    /// Reason to refuse cells to and from a host outside circuits, if it is hidden.
    pub(crate) fn refusal(&self, host: HostId) -> Option<DropReason> {
        self.book.is_hidden(host).then_some(DropReason::CircuitRequired)
    }

    /// Writes the routed headers of frames, and fills the offsets of frames and their cells.
    pub(crate) fn address(
        &mut self,
        run: CellBatch,
        (to, from): (Address, Address),
        buf: &mut [u8],
    ) {
        self.offsets.clear();
        self.payloads.clear();
        for at in (0..buf.len()).step_by(run.form.frame_len()) {
            address_cell(buf, at, to, from, run.traffic);
            self.offsets.push(at as u32);
            self.payloads.push((at + CELL_AT) as u32);
        }
    }

    /// The IP packets among the cells that were opened last, in their order.
    pub fn arrivals(&self) -> &[PacketArrival] {
        &self.arrived
    }

    /// Handles cells and hands off those it can't finish; for workers after the first. Returns the
    /// number of cells that were not handed to the first worker.
    ///
    /// Drops are counted: `bad_source`, `other_worker`, `circuit_required`, and the errors of
    /// opening and of headers.
    pub fn handle_cells<C: Ciphers>(
        &mut self,
        now: Time,
        shard: &mut SessionShard<C>,
        mut cells: InboundCells<'_>,
        others: &mut impl CellHandoff,
    ) -> u64 {
        self.open(now, shard, &mut cells);
        let mut to_first = 0;
        for i in 0..self.left.len() {
            let UnfinishedCell { index, to } = self.left[i];
            let worker = match to {
                CellFinisher::Control(host) => {
                    if !others.plain(host, cells.frame(index)) {
                        self.count(DropReason::OtherWorker, 1);
                    }
                    continue;
                }
                // The first worker handed the cell off after its control had seen it.
                CellFinisher::Handshake if cells.by == Some(0) => {
                    self.count(DropReason::UnknownIndex, 1);
                    continue;
                }
                CellFinisher::Handshake => 0,
                CellFinisher::Worker(worker) => worker,
            };
            let from = cells.from.get(index).copied();
            let taken = others.cell(worker, from, cells.frame(index));
            to_first += u64::from(taken && worker == 0);
            if !taken {
                self.count(DropReason::OtherWorker, 1);
            }
        }
        cells.offsets.len() as u64 - to_first
    }

    /// Opens cells, delivers their packets, and leaves the other cells in `left`.
    pub(crate) fn open<C: Ciphers>(
        &mut self,
        now: Time,
        shard: &mut SessionShard<C>,
        cells: &mut InboundCells<'_>,
    ) {
        self.arrived.clear();
        self.left.clear();
        let Some(class) = SizeClass::of_frame(cells.frame_len) else { return };
        if self.shared.0 != now {
            self.shared = (now, 0);
        }
        self.payloads.clear();
        let sealed = cells.offsets.iter().filter(|&&at| !is_direct(cells.buf, at));
        self.payloads.extend(sealed.map(|&at| at + CELL_AT as u32));
        let mut opened = core::mem::take(&mut self.opened);
        opened.clear();
        shard.open_batch(now, cells.buf, &self.payloads, class.cell_len(), &mut opened);
        let mut openings = opened.drain(..);
        for (index, &at) in cells.offsets.iter().enumerate() {
            let frame = &cells.buf[at as usize..at as usize + cells.frame_len];
            let sender = match is_direct(frame, 0) {
                true => self.sender_direct(frame),
                false => match openings.next() {
                    Some(OpenResult::Data(opened)) => self.sender(opened, frame),
                    Some(OpenResult::Drop(reason)) => Err(reason),
                    Some(OpenResult::Handshake) => {
                        self.left.push(UnfinishedCell { index, to: CellFinisher::Handshake });
                        continue;
                    }
                    Some(OpenResult::Worker(worker)) => {
                        self.left.push(UnfinishedCell { index, to: CellFinisher::Worker(worker) });
                        continue;
                    }
                    None => continue,
                },
            };
            match sender {
                Ok(host) => self.deliver(index, host, at, CellLayout::cell(class), cells.buf),
                Err(reason) => self.count(reason, 1),
            }
        }
        drop(openings);
        self.opened = opened;
    }

    /// Delivers the packets in an opened cell. A cell without packets is left to control.
    ///
    /// Drops are counted: `receive_overflow` for packets above [`SHARED_MAX`].
    fn deliver(&mut self, index: usize, host: HostId, at: u32, form: CellLayout, buf: &[u8]) {
        let plain_at = at as usize + form.plain_at();
        let plain = &buf[plain_at..plain_at + form.plain_len()];
        if !self.takes_packets || plain[0] != EdgeKind::Ip as u8 {
            return self.left.push(UnfinishedCell { index, to: CellFinisher::Control(host) });
        }
        let congested = is_congested(&buf[at as usize..]);
        let mut refused = 0;
        for packet in cell_packets(plain) {
            if packet.start > 0 {
                if self.shared.1 >= SHARED_MAX {
                    refused += 1;
                    continue;
                }
                self.shared.1 += 1;
            }
            let (at, len) = ((plain_at + packet.start) as u32, packet.len() as u32);
            self.arrived.push(PacketArrival { host, at, len, congested });
        }
        if refused > 0 {
            self.count(DropReason::ReceiveOverflow, refused);
        }
    }

    /// The host that sealed an opened cell. The seal covers the source address, so only the peer
    /// can have written it; it must be the peer's own address. If the newest cell has the other one
    /// of two addresses, answers go there.
    fn sender(&mut self, opened: OpenedSessionFrame, frame: &[u8]) -> Result<HostId, DropReason> {
        let host = self.book.of_peer(opened.peer).ok_or(DropReason::BadSource)?;
        let from = self.check_source(host, frame)?;
        if opened.newest && self.target(host) != Some(from) {
            self.follow(host, from);
            // Only the newest source counts.
            let is_older = |what: HostTraffic| matches!(what, HostTraffic::Source(_));
            self.seen.retain(|(of, what)| *of != host || !is_older(*what));
            self.note(host, HostTraffic::Source(from));
        }
        Ok(host)
    }

    /// Checks that the source address of a frame is its host's, and that the host is not hidden.
    /// Returns the address.
    pub(crate) fn check_source(&self, host: HostId, frame: &[u8]) -> Result<Address, DropReason> {
        let from = source(frame)?;
        let is_there = self.book.routed_addresses(host).is_some_and(|known| known.has(from));
        is_there.then_some(from).ok_or_else(|| self.refusal(host).unwrap_or(DropReason::BadSource))
    }

    /// The host that sent a cell over a direct link, as the link's seal proves. The bulk class may
    /// be unencrypted on the link, so only IP packets and segments are accepted in that class.
    fn sender_direct(&mut self, frame: &[u8]) -> Result<HostId, DropReason> {
        let header = RoutedHeader::parse(&frame[link::ROUTED_AT..])?;
        let host = self.book.host(header.src()).ok_or(DropReason::BadSource)?;
        if let Some(refusal) = self.refusal(host) {
            return Err(refusal);
        }
        let kind = EdgeKind::from_byte(frame[PLAIN_AT]).map_err(|_| DropReason::Malformed)?;
        let is_bulk = matches!(kind, EdgeKind::Segment | EdgeKind::Ip);
        if is_bulk != (header.class() == TrafficClass::Bulk) {
            return Err(DropReason::NotAllowed);
        }
        // Messages about direct links don't count as traffic, which would keep the link up.
        if kind != EdgeKind::Direct {
            self.note(host, HostTraffic::Heard);
        }
        Ok(host)
    }

    /// Takes the drop counts since the last call.
    pub fn take_drops(&mut self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        self.drops.drain(..)
    }

    pub(crate) fn count(&mut self, reason: DropReason, more: u64) {
        match self.drops.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, n)) => *n += more,
            None => self.drops.push((reason, more)),
        }
    }
}
