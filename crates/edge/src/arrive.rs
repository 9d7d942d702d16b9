//! Control's part of the inbound path: cells that the first worker's data path leaves to control,
//! orders to the other workers, and their notes.

use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{HostPath, SessionShard};
use shoal_wire::leg::CellShape;
use shoal_wire::{CircuitId, DirectMessage, DropReason, EdgeKind, SizeClass, TAG_LEN, Time};

use crate::book::HostId;
use crate::cells::{CELL_AT, CellLayout, InboundCells, is_congested, plain, source};
use crate::clear::ClearCells;
use crate::echo::Echo;
use crate::edge::{Edge, EdgeEvent};
use crate::worker::{
    CellFinisher, CellHandoff, EdgeNote, EdgeOrder, EdgeWorker, HostTraffic, PacketArrival,
    UnfinishedCell,
};

impl<C: Ciphers> Edge<C> {
    /// Handles cells for this host. Cells that another worker must open are handed to that worker.
    pub fn handle_cells(
        &mut self,
        now: Time,
        mut cells: InboundCells<'_>,
        others: &mut impl CellHandoff,
    ) {
        self.own.open(now, self.sessions.shard(), &mut cells);
        self.take_notes(now);
        let Some(form) = SizeClass::of_frame(cells.frame_len).map(CellLayout::cell) else { return };
        for i in 0..self.own.left.len() {
            let UnfinishedCell { index, to } = self.own.left[i];
            let frame = cells.frame(index);
            let outcome = match to {
                CellFinisher::Control(host) => self.take(now, host, frame, form),
                CellFinisher::Handshake => self.handle_handshake(now, frame),
                CellFinisher::Worker(worker) => {
                    let taken = others.cell(worker, None, frame);
                    taken.then_some(()).ok_or(DropReason::OtherWorker)
                }
            };
            if let Err(reason) = outcome {
                self.count(reason);
            }
        }
    }

    /// Handles units that came over one circuit of this shape, in full frames. Returns a host whose
    /// newest unit is among them, if there is one.
    ///
    /// Drops are counted: `circuit_required` for a session whose keys were agreed outside circuits,
    /// `bad_source`, and the errors of opening.
    pub fn handle_units(
        &mut self,
        now: Time,
        (circuit, shape): (CircuitId, CellShape),
        mut cells: InboundCells<'_>,
    ) -> Option<HostId> {
        let form = CellLayout::unit(shape);
        self.own.open_units(now, self.sessions.shard(), (circuit, form), &mut cells);
        self.take_notes(now);
        for i in 0..self.own.moved.len() {
            self.note_way(self.own.moved[i], (circuit, shape));
        }
        for i in 0..self.own.left.len() {
            let UnfinishedCell { index, to: CellFinisher::Control(host) } = self.own.left[i] else {
                continue;
            };
            if let Err(reason) = self.take(now, host, cells.frame(index), form) {
                self.count(reason);
            }
        }
        self.own.moved.last().copied()
    }

    /// Handles a handshake cell that came over a circuit.
    ///
    /// Errors: the reason to count.
    pub fn handle_hidden_handshake(
        &mut self,
        now: Time,
        circuit: CircuitId,
        cell: &mut [u8],
    ) -> Result<(), DropReason> {
        self.sessions.handle_handshake(now, HostPath::Circuit(circuit), cell)
    }

    /// Handles a cell whose index no session knows. A cell from the address of a hidden host is
    /// dropped, even if a stranger wrote it. An answer outside a circuit would show an observer
    /// that the two hosts talk.
    fn handle_handshake(&mut self, now: Time, frame: &mut [u8]) -> Result<(), DropReason> {
        let from = source(frame)?;
        if self.own.book.host(from).is_some_and(|host| self.own.book.is_hidden(host)) {
            return Err(DropReason::CircuitRequired);
        }
        let cell = CELL_AT..frame.len() - TAG_LEN;
        self.sessions.handle_handshake(now, HostPath::Routed(from), &mut frame[cell])
    }

    /// Handles a cell that another worker opened; `host` sealed it.
    ///
    /// Errors: the reason to count, also if `host` was removed meanwhile.
    pub fn handle_opened(
        &mut self,
        now: Time,
        host: HostId,
        frame: &mut [u8],
    ) -> Result<(), DropReason> {
        let class = SizeClass::of_frame(frame.len()).ok_or(DropReason::BadSize)?;
        self.own.check_source(host, frame)?;
        self.take(now, host, frame, CellLayout::cell(class))
    }

    /// Handles an opened cell that carries no packet for the interface.
    fn take(
        &mut self,
        now: Time,
        host: HostId,
        frame: &mut [u8],
        form: CellLayout,
    ) -> Result<(), DropReason> {
        let congested = is_congested(frame);
        let body = &*plain(frame, 0, form);
        let kind = EdgeKind::from_byte(body[0]).map_err(|_| DropReason::Malformed)?;
        match kind {
            EdgeKind::Keepalive => Ok(()),
            EdgeKind::Segment => self.transfers.handle_segment(now, host.into(), body, congested),
            EdgeKind::Transfer => self.transfers.handle_message(now, host.into(), body, congested),
            EdgeKind::Echo => self.handle_echo(host, body),
            EdgeKind::Ip | EdgeKind::Numbered if form.is_unit() != (kind == EdgeKind::Numbered) => {
                Err(DropReason::NotAllowed)
            }
            EdgeKind::Ip | EdgeKind::Numbered => Err(DropReason::NoInterface),
            EdgeKind::Direct => {
                let said = DirectMessage::parse(body).map_err(|_| DropReason::Malformed)?;
                self.note_heard(now, host);
                self.handle_direct(now, host, &said)
            }
        }
    }

    fn handle_echo(&mut self, host: HostId, body: &[u8]) -> Result<(), DropReason> {
        let echo = Echo::parse(body).map_err(|_| DropReason::Malformed)?;
        if echo.reply {
            self.event(EdgeEvent::Echo { host, id: echo.id, seq: echo.seq });
            return Ok(());
        }
        if self.answered.as_ref().is_some_and(|answered| !answered.contains(&host)) {
            return Err(DropReason::PolicyDenied);
        }
        self.queue_echo(host, Echo { reply: true, ..echo })
    }

    /// The IP packets among the cells of the last [`Edge::handle_cells`], in their order.
    pub fn arrivals(&self) -> &[PacketArrival] {
        self.own.arrivals()
    }

    /// Calls `deliver` with the packets of hidden hosts that had waited for earlier ones, in their
    /// order, and the buffer that holds them. Call this after [`Edge::handle_units`], once the
    /// arrivals are read, and after [`Edge::handle_timeout`].
    pub fn take_released(&mut self, deliver: impl FnOnce(&[PacketArrival], &mut [u8])) {
        self.own.sequences.take_released(deliver);
    }

    /// Session lanes and data path for a worker after the first.
    pub fn worker(&self, number: u8) -> (SessionShard<C>, EdgeWorker) {
        (SessionShard::new(&self.config.session, number), EdgeWorker::new(&self.config))
    }

    /// True if another worker has the newest book of hosts.
    pub fn is_known_to(&self, worker: &EdgeWorker) -> bool {
        Arc::ptr_eq(&self.own.book, &worker.book)
    }

    /// Takes the next order and the number of its worker. Every order must arrive, in this
    /// sequence. Call this after every other call. With one worker there are no orders.
    pub fn poll_order(&mut self) -> Option<(u8, EdgeOrder<C::Aead>)> {
        if self.orders.is_empty() {
            self.take_orders();
            self.tell_hosts();
        }
        self.orders.pop_front()
    }

    /// Queues orders about sessions, after the book of hosts if that has changed. A worker that has
    /// handled any prefix of its orders therefore has keys only of hosts that it knows.
    pub(crate) fn take_orders(&mut self) {
        while let Some((worker, order)) = self.sessions.poll_order() {
            self.tell_hosts();
            self.orders.push_back((worker, EdgeOrder::Keys(order)));
        }
    }

    pub(crate) fn tell_hosts(&mut self) {
        if core::mem::take(&mut self.book_stale) {
            let order = |worker| (worker, EdgeOrder::Hosts(Arc::clone(&self.own.book)));
            self.orders.extend((1..self.config.session.workers).map(order));
        }
    }

    /// Cells that left for a host outside circuits since it was added. Workers after the first
    /// report them in steps of 1,024.
    pub fn clear_cells(&self, host: HostId) -> ClearCells {
        self.clear.get(host).copied().unwrap_or_default()
    }

    /// Handles the notes of the first worker's data path.
    pub(crate) fn take_notes(&mut self, now: Time) {
        while let Some(note) = self.sessions.poll_note() {
            self.handle_note(now, &EdgeNote::Session(note));
        }
        while let Some(note) = self.own.poll_note() {
            self.handle_note(now, &note);
        }
    }

    /// Handles a worker's note; call [`Edge::drive`] afterwards. A note about a removed host is
    /// ignored.
    pub fn handle_note(&mut self, now: Time, note: &EdgeNote) {
        match *note {
            EdgeNote::Session(note) => {
                let heard = self.sessions.heard(&note);
                if let Some(host) = heard.and_then(|peer| self.own.book.of_peer(peer)) {
                    self.note_heard(now, host);
                }
                self.sessions.handle_note(now, &note);
            }
            EdgeNote::Host { host, .. } | EdgeNote::Clear { host, .. }
                if self.address_of(host).is_none() => {}
            EdgeNote::Clear { host, clear } => self.clear.get_or_default(host).add(clear),
            EdgeNote::Host { host, what: HostTraffic::Routed } => self.note_wanted(now, host),
            EdgeNote::Host { host, what: HostTraffic::Unsealed } => self.connect(now, host),
            EdgeNote::Host { host, what: HostTraffic::Source(at) } => self.follow_host(host, at),
            EdgeNote::Host { host, what: what @ (HostTraffic::Direct | HostTraffic::Heard) } => {
                if what == HostTraffic::Heard {
                    self.note_heard(now, host);
                }
                if let Some(direct) = &mut self.direct {
                    direct.used(now, host);
                }
            }
        }
    }
}
