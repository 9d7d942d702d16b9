//! The data path of a host, one per worker: it seals and opens cells on the lanes that the worker
//! holds.
//!
//! ```text
//! packets, control's messages -> a direct link, or sealed -> out, or on a circuit
//! cells for this host -> opened, source checked -> packets, delivered where they lie
//!                          |-> no packet, or perhaps a handshake: left to control
//!                          |-> sealed on another worker's lane: left to that one
//! ```
//!
//! Control is [`crate::Edge`]: it makes and ends sessions. It holds the first worker's data path
//! and finishes the cells that this one leaves, in the same buffer. Cells that other data paths
//! leave go through [`Others`]. Orders go from control to workers, notes from workers to control.

use core::ops::Range;
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{Opened, Opening, SessionShard, Table};
use shoal_wire::{
    Address, DropReason, EdgeKind, LinkId, RoutedHeader, SizeClass, Time, TrafficClass, ip, link,
};

use crate::book::{Book, HostId};
use crate::building::{Building, Flow, Run};
use crate::cells::{
    CELL_AT, Cells, Form, PLAIN_AT, address_cell, is_congested, is_direct, source, unseal,
};
use crate::edge::{Config, Out};
use crate::numbers::Numbers;
use crate::sequence::Sequences;
use crate::units::{Way, used};

/// Bytes of the shortest packet in a cell: kind, flags and the header of IPv4.
const PACKET_MIN: usize = ip::PACKET_AT + 20;

/// What control tells a worker.
pub enum Order<A> {
    /// Keys of sessions.
    Keys(shoal_session::Order<A>),
    /// The new book of hosts.
    Hosts(Arc<Book>),
}

/// What a worker tells control, once per batch.
#[derive(Clone, Copy, Debug)]
pub enum Note {
    /// About a session.
    Session(shoal_session::Note),
    /// About a host.
    Host {
        /// Which.
        host: HostId,
        /// What the worker saw.
        what: Seen,
    },
}

/// Traffic of a host that a worker saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Cells went to it through routers.
    Routed,
    /// Cells went to it over a direct link.
    Direct,
    /// Cells of it came over a direct link.
    Heard,
    /// Cells for it could not be sealed: it needs a session.
    Unsealed,
}

/// Hands cells off to the worker that can finish them. Each method says whether the cell was
/// taken; otherwise it is dropped.
pub trait Others {
    /// Hands a cell, not yet opened, to `worker`, which opens it. It came over the link `from`.
    fn cell(&mut self, worker: u8, from: Option<LinkId>, frame: &[u8]) -> bool;
    /// Hands an opened cell of `host` to control.
    fn plain(&mut self, host: HostId, frame: &[u8]) -> bool;
}

/// With one worker, nothing is handed off.
impl Others for () {
    fn cell(&mut self, _: u8, _: Option<LinkId>, _: &[u8]) -> bool {
        false
    }

    fn plain(&mut self, _: HostId, _: &[u8]) -> bool {
        false
    }
}

/// An IP packet that arrived, in the buffer of its [`Cells`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Who sealed it.
    pub host: HostId,
    /// Where the plaintext of its cell starts: a byte before the flags, whatever it says.
    pub at: u32,
    /// Bytes of the plaintext up to the next packet in the cell, or all, padding included.
    pub len: u32,
    /// A router marked its cell because of congestion.
    pub congested: bool,
}

/// What a worker sends with.
pub struct Turn<'a, C: Ciphers, O> {
    /// The time.
    pub now: Time,
    /// The lanes that it holds.
    pub shard: &'a mut SessionShard<C>,
    /// The way out.
    pub out: &'a mut O,
}

/// A cell that the data path could not finish: its index in the batch, and who can.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub(crate) index: usize,
    pub(crate) to: To,
}

/// Who finishes a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) enum To {
    /// Control: an opened cell that this host sent, and that holds no packet.
    Control(HostId),
    /// Control: perhaps a handshake, since no session has its index. The cell is unchanged.
    Handshake,
    /// This worker. The cell is unchanged.
    Worker(u8),
}

/// See the module's documentation.
pub struct EdgeWorker {
    me: Address,
    /// Whether there is an interface that takes packets.
    pub(crate) takes_packets: bool,
    /// Whether direct links are configured; only then traffic through routers is noted.
    is_asked: bool,
    pub(crate) book: Arc<Book>,
    /// Of hidden hosts; the first worker has all circuits.
    pub(crate) ways: Table<HostId, Way>,
    /// Of packets to hidden hosts.
    pub(crate) numbers: Numbers,
    /// The order of packets of hidden hosts.
    pub(crate) sequences: Sequences,
    pub(crate) building: Building,
    pub(crate) arrived: Vec<Arrival>,
    /// Of the last batch.
    pub(crate) left: Vec<Left>,
    /// Hosts of which the last batch of units brought something new.
    pub(crate) moved: Vec<HostId>,
    /// Observations not yet taken as notes, each once.
    seen: Vec<(HostId, Seen)>,
    pub(crate) offsets: Vec<u32>,
    pub(crate) payloads: Vec<u32>,
    pub(crate) opened: Vec<Opening>,
    drops: Vec<(DropReason, u64)>,
}

impl EdgeWorker {
    /// The data path of one worker of the edge that is made of `config`.
    pub fn new(config: &Config) -> EdgeWorker {
        EdgeWorker {
            me: config.address,
            takes_packets: config.ip,
            is_asked: config.direct.is_some(),
            book: Arc::default(),
            ways: Table::default(),
            numbers: Numbers::new([0; 32]),
            sequences: Sequences::default(),
            building: Building::default(),
            arrived: Vec::new(),
            left: Vec::new(),
            moved: Vec::new(),
            seen: Vec::new(),
            offsets: Vec::new(),
            payloads: Vec::new(),
            opened: Vec::new(),
            drops: Vec::new(),
        }
    }

    /// Takes in an order; they must come in the order in which they were given.
    pub fn handle_order<C: Ciphers>(&mut self, shard: &mut SessionShard<C>, order: Order<C::Aead>) {
        match order {
            Order::Keys(order) => shard.handle_order(order),
            Order::Hosts(book) => self.book = book,
        }
    }

    /// Address of a host.
    pub fn address_of(&self, host: HostId) -> Option<Address> {
        self.book.address(host)
    }

    /// Whether the backlog towards the host is so long that programs' packets should wait.
    pub fn is_congested(&self, host: HostId, out: &impl Out) -> bool {
        match (self.book.routed(host), self.ways.get(host)) {
            (Some(to), _) => out.is_congested(to),
            (None, Some(way)) => out.circuit_is_congested(way.circuit),
            (None, None) => false,
        }
    }

    /// Full frames for the host that would leave without waiting.
    pub(crate) fn room(&self, host: HostId, out: &impl Out) -> usize {
        match (self.book.routed(host), self.ways.get(host)) {
            (Some(to), _) => out.room(to),
            (None, Some(way)) => out.circuit_room(way.circuit),
            (None, None) => 0,
        }
    }

    /// Whether this worker can send to the host: there is a session with a lane for it, and for a
    /// hidden host a circuit, or there is a direct link. What it can't send is for control.
    pub fn reaches<C: Ciphers>(&self, turn: &Turn<'_, C, impl Out>, host: HostId) -> bool {
        let has_lane = || !self.lanes(turn, host).is_empty();
        match self.book.routed(host) {
            Some(to) => has_lane() || turn.out.may_go_direct(to),
            None => self.ways.get(host).is_some() && has_lane(),
        }
    }

    /// The form of a cell for the host that holds `len` bytes of plaintext.
    ///
    /// Errors: `ip_too_big`; `no_session` for a hidden host without a circuit.
    pub(crate) fn form(&self, host: HostId, len: usize) -> Result<Form, DropReason> {
        let form = match self.book.is_hidden(host) {
            false => SizeClass::for_edge(len).map(Form::cell),
            true => Some(self.ways.get(host).ok_or(DropReason::NoSession)?.form),
        };
        form.filter(|form| form.plain_len() >= len).ok_or(DropReason::IpTooBig)
    }

    /// The lanes on which this worker seals for a host.
    fn lanes<C: Ciphers, O>(&self, turn: &Turn<'_, C, O>, host: HostId) -> Range<u8> {
        let peer = self.book.peer(host);
        peer.map_or(0..0, |peer| turn.shard.seal_lanes(turn.now, peer))
    }

    /// Sends one IP packet to a host that it reaches: `write` fills the whole plaintext of a cell
    /// that has at least `len` bytes, kind byte first. Call [`EdgeWorker::flush`] after the last
    /// one.
    ///
    /// Drops are counted: `ip_too_big`, `no_session`.
    pub fn send_packet<C: Ciphers>(
        &mut self,
        turn: &mut Turn<'_, C, impl Out>,
        flow: Flow,
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
        let run = Run { host: flow.host, form, traffic: TrafficClass::Bulk, lane };
        if !self.building.fits(&run) {
            self.flush(turn);
        }
        self.building.add(run, class.filter(|_| !form.is_unit()), (flow, len), write);
    }

    /// Sends the packets under construction.
    pub fn flush<C: Ciphers>(&mut self, turn: &mut Turn<'_, C, impl Out>) {
        let Some((mut buf, run, count)) = self.building.take() else { return };
        let flows = self.building.flows;
        self.send_run(turn, run, &flows, &mut buf[..count * run.form.frame_len()]);
        self.building.give_back(buf);
    }

    /// Sends the frames that fill `buf`, whose plaintexts are in place: units on the host's
    /// circuit, others over a direct link if there is one, else sealed. `flows` are the packets'
    /// flows; empty for other cells.
    ///
    /// Drops are counted: `no_endpoint`, `no_session`, `circuit_required`.
    pub(crate) fn send_run<C: Ciphers>(
        &mut self,
        turn: &mut Turn<'_, C, impl Out>,
        run: Run,
        flows: &[u8],
        buf: &mut [u8],
    ) {
        let to = self.book.routed(run.host).filter(|_| !run.form.is_unit());
        if let Some(to) = to.filter(|to| turn.out.may_go_direct(*to)) {
            self.address(run, to, buf);
            unseal(buf, &self.payloads, run.form.sealed_len(), flows);
            turn.out.direct(turn.now, buf, &self.offsets, run.form.frame_len());
            self.note(run.host, Seen::Direct);
        } else if self.send_sealed(turn, run, buf) && !run.form.is_unit() {
            self.note(run.host, Seen::Routed);
        }
    }

    /// As `send_run`, but sealed even if there is a direct link. Returns whether they were sealed.
    pub(crate) fn send_sealed<C: Ciphers>(
        &mut self,
        turn: &mut Turn<'_, C, impl Out>,
        run: Run,
        buf: &mut [u8],
    ) -> bool {
        let sent = match run.form.is_unit() {
            false => self.send_cells(turn, run, buf),
            true => self.send_units(turn, run, buf),
        };
        if let Err(reason) = sent {
            self.count(reason, (buf.len() / run.form.frame_len()) as u64);
            self.note(run.host, Seen::Unsealed);
        }
        sent.is_ok()
    }

    fn send_cells<C: Ciphers>(
        &mut self,
        turn: &mut Turn<'_, C, impl Out>,
        run: Run,
        buf: &mut [u8],
    ) -> Result<(), DropReason> {
        let refusal = || self.refusal(run.host).unwrap_or(DropReason::NoEndpoint);
        let (peer, to) =
            self.book.peer(run.host).zip(self.book.routed(run.host)).ok_or_else(refusal)?;
        self.address(run, to, buf);
        let lanes = turn.shard.seal_lanes(turn.now, peer);
        // Keys may have changed since the lane was chosen.
        let lane = if lanes.contains(&run.lane) { run.lane } else { lanes.start };
        let len = run.form.sealed_len();
        turn.shard.seal_batch(turn.now, peer, lane, buf, &self.payloads, len)?;
        turn.out.cells(turn.now, buf, &self.offsets, run.form.frame_len());
        Ok(())
    }

    /// Why nothing that is routed by its address goes to a host, or is taken of it.
    pub(crate) fn refusal(&self, host: HostId) -> Option<DropReason> {
        self.book.is_hidden(host).then_some(DropReason::CircuitRequired)
    }

    /// Writes the routed headers of frames, and notes where they and their cells start.
    pub(crate) fn address(&mut self, run: Run, to: Address, buf: &mut [u8]) {
        self.offsets.clear();
        self.payloads.clear();
        for at in (0..buf.len()).step_by(run.form.frame_len()) {
            address_cell(buf, at, to, self.me, run.traffic);
            self.offsets.push(at as u32);
            self.payloads.push((at + CELL_AT) as u32);
        }
    }

    fn note(&mut self, host: HostId, what: Seen) {
        let wanted = self.is_asked || matches!(what, Seen::Heard | Seen::Unsealed);
        if wanted && !self.seen.contains(&(host, what)) {
            self.seen.push((host, what));
        }
    }

    /// The IP packets among the cells that were opened last, in their order.
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrived
    }

    /// Takes in cells and hands off those it can't finish; for workers after the first. Returns how
    /// many of them the first worker need not finish.
    ///
    /// Drops are counted: `bad_source`, `other_worker`, `circuit_required`, and the errors of seals
    /// and headers.
    pub fn handle_cells<C: Ciphers>(
        &mut self,
        now: Time,
        shard: &mut SessionShard<C>,
        mut cells: Cells<'_>,
        others: &mut impl Others,
    ) -> u64 {
        self.open(now, shard, &mut cells);
        let mut to_first = 0;
        for i in 0..self.left.len() {
            let Left { index, to } = self.left[i];
            let worker = match to {
                To::Control(host) => {
                    if !others.plain(host, cells.frame(index)) {
                        self.count(DropReason::OtherWorker, 1);
                    }
                    continue;
                }
                // The first worker handed the cell off after control had seen it.
                To::Handshake if cells.by == Some(0) => {
                    self.count(DropReason::UnknownIndex, 1);
                    continue;
                }
                To::Handshake => 0,
                To::Worker(worker) => worker,
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

    /// Opens cells, delivers the packets among them, and leaves the rest.
    pub(crate) fn open<C: Ciphers>(
        &mut self,
        now: Time,
        shard: &mut SessionShard<C>,
        cells: &mut Cells<'_>,
    ) {
        self.arrived.clear();
        self.left.clear();
        let Some(class) = SizeClass::of_frame(cells.frame_len) else { return };
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
                    Some(Opening::Data(opened)) => self.sender(opened, frame),
                    Some(Opening::Drop(reason)) => Err(reason),
                    Some(Opening::Handshake) => {
                        self.left.push(Left { index, to: To::Handshake });
                        continue;
                    }
                    Some(Opening::Worker(worker)) => {
                        self.left.push(Left { index, to: To::Worker(worker) });
                        continue;
                    }
                    None => continue,
                },
            };
            match sender {
                Ok(host) => self.deliver(index, host, at, Form::cell(class), cells.buf),
                Err(reason) => self.count(reason, 1),
            }
        }
        drop(openings);
        self.opened = opened;
    }

    /// Delivers the packets in an opened cell; one without any is for control.
    fn deliver(&mut self, index: usize, host: HostId, at: u32, form: Form, buf: &[u8]) {
        let plain_at = at as usize + form.plain_at();
        let mut rest = &buf[plain_at..plain_at + form.plain_len()];
        if !self.takes_packets || rest[0] != EdgeKind::Ip as u8 {
            return self.left.push(Left { index, to: To::Control(host) });
        }
        let congested = is_congested(&buf[at as usize..]);
        let end = plain_at + rest.len();
        loop {
            let (at, len) = ((end - rest.len()) as u32, used(rest));
            // Whatever is shorter than the shortest packet is padding, and so is all behind it.
            let is_packet =
                |next: &&[u8]| len.min(next.len()) >= PACKET_MIN && next[0] == EdgeKind::Ip as u8;
            let next = rest.get(len..).filter(is_packet);
            let Some(next) = next else {
                let len = rest.len() as u32;
                return self.arrived.push(Arrival { host, at, len, congested });
            };
            self.arrived.push(Arrival { host, at, len: len as u32, congested });
            rest = next;
        }
    }

    /// The host that sealed an opened cell. The seal covers the source address, so only the peer
    /// can have written that; it must be the peer's own.
    fn sender(&self, opened: Opened, frame: &[u8]) -> Result<HostId, DropReason> {
        let host = self.book.of_peer(opened.peer).ok_or(DropReason::BadSource)?;
        self.check_source(host, frame).map(|()| host)
    }

    /// Checks that the source address of a frame is its host's address, and the host not hidden.
    pub(crate) fn check_source(&self, host: HostId, frame: &[u8]) -> Result<(), DropReason> {
        let is_there = Some(source(frame)?) == self.book.routed(host);
        is_there.then_some(()).ok_or_else(|| self.refusal(host).unwrap_or(DropReason::BadSource))
    }

    /// The host that sent a cell over a direct link: the link's seal proves who it is. The bulk
    /// class may be unencrypted there, so only IP packets and segments are accepted in it.
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
        // Messages about direct links don't count as traffic that keeps a link.
        if kind != EdgeKind::Direct {
            self.note(host, Seen::Heard);
        }
        Ok(host)
    }

    /// Gives control the notes since the last time. Notes that `tell` refuses are kept for the next
    /// call. Returns whether all were taken.
    pub fn tell<C: Ciphers>(
        &mut self,
        shard: &mut SessionShard<C>,
        mut tell: impl FnMut(Note) -> bool,
    ) -> bool {
        let all = shard.tell(|note| tell(Note::Session(note)));
        self.seen.retain(|&(host, what)| !tell(Note::Host { host, what }));
        all && self.seen.is_empty()
    }

    /// Takes the next note about a host.
    pub(crate) fn poll_note(&mut self) -> Option<Note> {
        self.seen.pop().map(|(host, what)| Note::Host { host, what })
    }

    /// Drops counted since the last call.
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
