//! Cells that the first worker's data path leaves to control, orders to other workers, and their
//! notes.

use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_session::{SessionShard, Via};
use shoal_wire::leg::Shape;
use shoal_wire::{CircuitId, DirectMessage, DropReason, EdgeKind, SizeClass, TAG_LEN, Time};

use crate::book::HostId;
use crate::cells::{CELL_AT, Cells, Form, is_congested, plain, source};
use crate::echo::Echo;
use crate::edge::{Edge, Event};
use crate::worker::{Arrival, EdgeWorker, Left, Note, Order, Others, Seen, To};

impl<C: Ciphers> Edge<C> {
    /// Takes in cells for this host; those that other workers open are handed to them.
    pub fn handle_cells(&mut self, now: Time, mut cells: Cells<'_>, others: &mut impl Others) {
        self.own.open(now, self.sessions.shard(), &mut cells);
        self.take_notes(now);
        let Some(form) = SizeClass::of_frame(cells.frame_len).map(Form::cell) else { return };
        for i in 0..self.own.left.len() {
            let Left { index, to } = self.own.left[i];
            let frame = cells.frame(index);
            let outcome = match to {
                To::Control(host) => self.take(now, host, frame, form),
                To::Handshake => self.handle_handshake(now, frame),
                To::Worker(worker) => {
                    let taken = others.cell(worker, None, frame);
                    taken.then_some(()).ok_or(DropReason::OtherWorker)
                }
            };
            if let Err(reason) = outcome {
                self.count(reason);
            }
        }
    }

    /// Takes in units that came over one circuit, of this shape, in full frames. Returns a host
    /// whose newest unit is among them, if there is one.
    ///
    /// Drops are counted: `circuit_required` for keys that were made in the clear, `bad_source`,
    /// and the errors of seals.
    pub fn handle_units(
        &mut self,
        now: Time,
        (circuit, shape): (CircuitId, Shape),
        mut cells: Cells<'_>,
    ) -> Option<HostId> {
        let form = Form::unit(shape);
        self.own.open_units(now, self.sessions.shard(), (circuit, form), &mut cells);
        self.take_notes(now);
        for i in 0..self.own.moved.len() {
            self.note_way(self.own.moved[i], (circuit, shape));
        }
        for i in 0..self.own.left.len() {
            let Left { index, to: To::Control(host) } = self.own.left[i] else { continue };
            if let Err(reason) = self.take(now, host, cells.frame(index), form) {
                self.count(reason);
            }
        }
        self.own.moved.last().copied()
    }

    /// Takes in a handshake cell that came over a circuit.
    ///
    /// Errors: the reason to count.
    pub fn handle_hidden_handshake(
        &mut self,
        now: Time,
        circuit: CircuitId,
        cell: &mut [u8],
    ) -> Result<(), DropReason> {
        self.sessions.handle_handshake(now, Via::Circuit(circuit), cell)
    }

    /// Takes a cell that no session knows. An answer to one from the address of a hidden host would
    /// show who speaks with whom, whoever wrote it.
    fn handle_handshake(&mut self, now: Time, frame: &mut [u8]) -> Result<(), DropReason> {
        let from = source(frame)?;
        if self.own.book.host(from).is_some_and(|host| self.own.book.is_hidden(host)) {
            return Err(DropReason::CircuitRequired);
        }
        let cell = CELL_AT..frame.len() - TAG_LEN;
        self.sessions.handle_handshake(now, Via::Routed(from), &mut frame[cell])
    }

    /// Takes a cell that another worker opened; `host` sealed it.
    ///
    /// Errors: the reason to count; also where `host` has been removed.
    pub fn handle_opened(
        &mut self,
        now: Time,
        host: HostId,
        frame: &mut [u8],
    ) -> Result<(), DropReason> {
        let class = SizeClass::of_frame(frame.len()).ok_or(DropReason::BadSize)?;
        self.own.check_source(host, frame)?;
        self.take(now, host, frame, Form::cell(class))
    }

    /// Takes an opened cell that is no packet for the interface.
    fn take(
        &mut self,
        now: Time,
        host: HostId,
        frame: &mut [u8],
        form: Form,
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
            self.event(Event::Echo { host, id: echo.id, seq: echo.seq });
            return Ok(());
        }
        if self.answered.as_ref().is_some_and(|answered| !answered.contains(&host)) {
            return Err(DropReason::PolicyDenied);
        }
        self.queue_echo(host, Echo { reply: true, ..echo })
    }

    /// The IP packets among the cells of the last [`Edge::handle_cells`], in their order.
    pub fn arrivals(&self) -> &[Arrival] {
        self.own.arrivals()
    }

    /// Has packets of hidden hosts delivered that waited for others, in their order; gives the
    /// buffer in which they lie, too. To be called after [`Edge::handle_units`], once the arrivals
    /// are taken, and after [`Edge::handle_timeout`].
    pub fn take_released(&mut self, deliver: impl FnOnce(&[Arrival], &mut [u8])) {
        self.own.sequences.take_released(deliver);
    }

    /// The lanes and the data path of a worker after the first.
    pub fn worker(&self, number: u8) -> (SessionShard<C>, EdgeWorker) {
        (SessionShard::new(&self.config.session, number), EdgeWorker::new(&self.config))
    }

    /// Whether another worker has the newest book of hosts.
    pub fn is_known_to(&self, worker: &EdgeWorker) -> bool {
        Arc::ptr_eq(&self.own.book, &worker.book)
    }

    /// The next order and the worker that it is for. Orders must arrive, and in order; take them
    /// after every call. With one worker there are none.
    pub fn poll_order(&mut self) -> Option<(u8, Order<C::Aead>)> {
        if self.orders.is_empty() {
            self.take_orders();
            self.tell_hosts();
        }
        self.orders.pop_front()
    }

    /// Queues orders about sessions, behind the book of hosts if that has changed: so a worker has
    /// keys only of hosts that it knows, however many of the orders it has taken in.
    pub(crate) fn take_orders(&mut self) {
        while let Some((worker, order)) = self.sessions.poll_order() {
            self.tell_hosts();
            self.orders.push_back((worker, Order::Keys(order)));
        }
    }

    fn tell_hosts(&mut self) {
        if core::mem::take(&mut self.book_stale) {
            let order = |worker| (worker, Order::Hosts(Arc::clone(&self.own.book)));
            self.orders.extend((1..self.config.session.workers).map(order));
        }
    }

    /// Takes in the notes of the first worker's data path.
    pub(crate) fn take_notes(&mut self, now: Time) {
        while let Some(note) = self.sessions.poll_note() {
            self.handle_note(now, &Note::Session(note));
        }
        while let Some(note) = self.own.poll_note() {
            self.handle_note(now, &note);
        }
    }

    /// Takes in a worker's note; call [`Edge::drive`] afterwards. A note about a host that was
    /// removed is ignored.
    pub fn handle_note(&mut self, now: Time, note: &Note) {
        match *note {
            Note::Session(note) => {
                let heard = self.sessions.heard(&note);
                if let Some(host) = heard.and_then(|peer| self.own.book.of_peer(peer)) {
                    self.note_heard(now, host);
                }
                self.sessions.handle_note(now, &note);
            }
            Note::Host { host, .. } if self.address_of(host).is_none() => {}
            Note::Host { host, what: Seen::Routed } => self.note_wanted(now, host),
            Note::Host { host, what: Seen::Unsealed } => self.connect(now, host),
            Note::Host { host, what: what @ (Seen::Direct | Seen::Heard) } => {
                if what == Seen::Heard {
                    self.note_heard(now, host);
                }
                if let Some(direct) = &mut self.direct {
                    direct.used(now, host);
                }
            }
        }
    }
}
