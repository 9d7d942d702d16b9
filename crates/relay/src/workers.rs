//! The first worker's side of several: what it gives the others, and what it takes from them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_crypto::Ciphers;
use shoal_link::Egress;
use shoal_session::{Opening, PeerId};
use shoal_wire::{DropReason, Level, LinkId, LinkKind, Mark, RoutedHeader, SizeClass, Time, link};

use crate::batch::{Scratch, is_goodbye, priority};
use crate::forward::{Forwarder, LinkNote, Note, Order};
use crate::relay::MARK_AT;
use crate::view::View;
use crate::{Counters, Incoming, Relay, Sink};

/// A frame of a batch that another worker opens, untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// Which worker.
    pub worker: u8,
    /// Where it starts in the batch's buffer, and its length.
    pub at: u32,
    /// Bytes.
    pub len: u32,
    /// Which of the batch's runs it belongs to.
    pub source: u32,
}

/// A frame that another worker handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handed {
    /// The neighbour that it came from or goes to.
    pub link: LinkId,
    /// Where it starts in the buffer.
    pub at: u32,
    /// Bytes.
    pub len: u32,
    /// As in [`Incoming`].
    pub congested: bool,
}

impl Handed {
    pub(crate) fn class(&self) -> Option<SizeClass> {
        SizeClass::of_frame(self.len as usize)
    }
}

/// What the others were told.
pub(crate) struct Workers<C: Ciphers> {
    orders: VecDeque<(u8, Order<C::Aead>)>,
    view: Arc<View>,
    /// Links over which the others may not send, since something waits; and whether they were told
    /// that it is so much that nothing more should be read for it, if they were told.
    closed: BTreeMap<LinkId, Option<bool>>,
}

impl<C: Ciphers> Default for Workers<C> {
    fn default() -> Self {
        Workers { orders: VecDeque::new(), view: Arc::default(), closed: BTreeMap::new() }
    }
}

impl<C: Ciphers> Relay<C> {
    /// Frames of the last batch that other workers open.
    pub fn elsewhere(&self) -> &[Elsewhere] {
        &self.scratch.elsewhere
    }

    /// Which runs of the last batch held the newest frame of a neighbour so far, or a handshake
    /// whose seal shows it to be a member's: neither strangers nor replays of frames are among
    /// them.
    pub fn heard(&self) -> &[u32] {
        &self.scratch.heard
    }

    /// What worker `number`, from 1 on, runs.
    pub fn forwarder(&self, number: u8) -> Forwarder<C> {
        Forwarder::new(&self.config, number)
    }

    /// Counts frames of [`Relay::elsewhere`] that could not be handed on.
    pub fn count_lost(&mut self, n: u64) {
        self.counters.drop_in(DropReason::OtherWorker, n);
    }

    /// Adds what another worker counted.
    pub fn add_counters(&mut self, counters: &Counters) {
        self.counters.add(counters);
    }

    /// The next thing that another worker must know, and which worker. None may get lost or
    /// overtake another; to be taken after every call. With one worker there is none.
    pub fn poll_order(&mut self) -> Option<(u8, Order<C::Aead>)> {
        if self.config.session.workers <= 1 {
            return None;
        }
        if let Some((worker, order)) = self.sessions.poll_order() {
            return Some((worker, Order::Keys(order)));
        }
        if self.workers.orders.is_empty() {
            self.refresh_view();
            self.refresh_gates();
        }
        self.workers.orders.pop_front()
    }

    pub(crate) fn order_due(&self) -> Option<(Time, &'static str)> {
        (!self.workers.orders.is_empty()).then_some((Time::ZERO, "order for a worker"))
    }

    fn tell(&mut self, order: impl Fn() -> Order<C::Aead>) {
        let others = 1..self.config.session.workers;
        self.workers.orders.extend(others.map(|worker| (worker, order())));
    }

    fn refresh_view(&mut self) {
        if !core::mem::replace(&mut self.stale, false) {
            return;
        }
        let view = self.look();
        if view != *self.workers.view {
            let view = Arc::new(view);
            self.workers.view = Arc::clone(&view);
            self.tell(|| Order::View(Arc::clone(&view)));
        }
    }

    fn refresh_gates(&mut self) {
        for at in 0..self.blocked.len() {
            self.workers.closed.entry(self.blocked[at]).or_default();
        }
        for (link, told) in core::mem::take(&mut self.workers.closed) {
            let egress = self.neighbours.get(link).map(|neighbour| &neighbour.egress);
            let waits = egress.is_some_and(|egress| !egress.is_empty());
            let open = !waits && !self.blocked.contains(&link);
            let full = !open && egress.is_some_and(Egress::is_congested);
            if !open {
                self.workers.closed.insert(link, Some(full));
            }
            if open || told != Some(full) {
                self.tell(|| Order::Gate { link, open, full });
            }
        }
    }

    /// Takes in what another worker tells.
    pub fn handle_note(&mut self, now: Time, note: &Note, sink: &mut impl Sink) {
        match note {
            Note::Session(note) => {
                self.sessions.handle_note(now, note);
                self.drive(now, sink);
            }
            Note::Link(note) => {
                self.note_link(now, note);
                if !self.paths.is_empty() {
                    self.drive(now, sink);
                }
            }
        }
    }

    fn note_link(&mut self, now: Time, note: &LinkNote) {
        let link = note.link;
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if note.frames > 0 {
            neighbour.liveness.received(now, note.frames, (0, 0), note.traffic);
            for (lane, &highest) in (0..).zip(&note.highest) {
                neighbour.liveness.received(now, 0, (lane, highest), false);
            }
        }
        if note.sent > 0 {
            neighbour.liveness.sent(now, note.sent, true);
        }
        self.stale |= note.too_long && !core::mem::replace(&mut neighbour.small, note.too_long);
        self.neighbours.reschedule(link);
        if let Some(source) = note.source {
            self.note_source(now, PeerId(link.0), source);
        }
        if note.refused {
            // Whether or not the refused frames got here: the worker waits to be told.
            self.workers.closed.entry(link).or_default();
            self.block(now, link);
        }
    }

    /// Takes in frames that another worker opened: control, and cells for this node. Accounting is
    /// in its notes.
    pub fn handle_opened(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[Handed],
        sink: &mut impl Sink,
        local: &mut impl FnMut(&mut [u8], &[u32], usize),
    ) {
        for equal in frames.chunk_by(|a, b| a.len == b.len) {
            let Some(class) = equal[0].class() else { continue };
            let mut scratch = core::mem::take(&mut self.scratch);
            for handed in equal {
                if let Err(reason) = self.sort_handed(now, buf, handed, &mut scratch) {
                    self.counters.drop_in(reason, 1);
                }
            }
            self.pass_on(now, buf, class, &mut scratch, sink, local);
            // A part was noted with the only source that there is.
            let from = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
            let congested = equal.iter().any(|handed| handed.congested);
            let source = Incoming { from, offset: 0, len: 0, stride: 1, congested };
            self.pass_on_whole(now, &[source], &mut scratch, sink, local);
            self.scratch = scratch;
        }
        self.drive(now, sink);
    }

    fn sort_handed(
        &mut self,
        now: Time,
        buf: &mut [u8],
        handed: &Handed,
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let (link, at) = (handed.link, handed.at);
        let frame = &mut buf[at as usize..(at + handed.len) as usize];
        match LinkKind::from_byte(frame[link::KIND_AT]) {
            Ok(kind @ (LinkKind::Cell | LinkKind::Direct)) => {
                if handed.congested {
                    frame[MARK_AT] = Mark::Congested as u8;
                }
                if kind == LinkKind::Direct {
                    // Lanes that several workers share are all encrypted.
                    return self.take_direct(link, at, Level::Encrypt, frame, scratch);
                }
                let may_transit = self.may_transit(link);
                self.steer(link, at, frame, scratch, (may_transit, &mut None))?;
            }
            // An old goodbye was dropped by the worker that opened it.
            Ok(kind) => self.take_link_frame(now, (kind, true), (link, at), 0, frame, scratch),
            Err(_) => return Err(DropReason::Malformed),
        }
        Ok(())
    }

    /// Takes a frame that did not open here.
    pub(crate) fn not_data(
        &mut self,
        now: Time,
        opening: Opening,
        (at, source): (u32, u32),
        from: &Incoming,
        frame: &mut [u8],
        scratch: &mut Scratch,
    ) {
        let taken = match opening {
            Opening::Data(_) => Ok(()),
            Opening::Worker(worker) => {
                let len = frame.len() as u32;
                scratch.elsewhere.push(Elsewhere { worker, at, len, source });
                Ok(())
            }
            Opening::Handshake => self.sessions.handle_handshake(now, from.from, frame).map(|()| {
                self.counters.traffic.handshakes_in += 1;
                scratch.heard.push(source);
            }),
            Opening::Drop(reason) => Err(reason),
        };
        if let Err(reason) = taken {
            self.counters.drop_in(reason, 1);
        }
    }

    /// Takes an opened frame that is no whole cell, which its caller has steered.
    pub(crate) fn take_link_frame(
        &mut self,
        now: Time,
        (kind, newest): (LinkKind, bool),
        (link, at): (LinkId, u32),
        source: u32,
        frame: &[u8],
        scratch: &mut Scratch,
    ) {
        match kind {
            LinkKind::Cell | LinkKind::Direct => {}
            LinkKind::Control if !newest && is_goodbye(frame) => {
                self.counters.drop_in(DropReason::TooOld, 1);
            }
            LinkKind::Control => {
                self.counters.traffic.control_in += 1;
                scratch.control.push((link, at));
            }
            LinkKind::Keepalive => {
                self.counters.traffic.keepalives_in += 1;
                if let Some(neighbour) = self.neighbours.get_mut(link) {
                    neighbour.liveness.keepalive_received(now);
                }
            }
            LinkKind::Part => {
                self.counters.traffic.parts_in += 1;
                self.take_part(PeerId(link.0), source, frame, scratch);
            }
        }
    }

    /// Takes in cells of other workers that are to leave over the links that they name.
    pub fn handle_leaving(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[Handed],
        sink: &mut impl Sink,
    ) {
        let mut offsets = core::mem::take(&mut self.scratch.offsets);
        let kind = |buf: &[u8], handed: &Handed| {
            let header = RoutedHeader::parse(&buf[handed.at as usize + link::ROUTED_AT..]);
            header.map(|header| (handed.link, handed.len, priority(header.class())))
        };
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let first = kind(buf, first);
            let same = rest.iter().take_while(|handed| kind(buf, handed) == first).count();
            let (run, later) = rest.split_at(same);
            rest = later;
            offsets.clear();
            offsets.extend(run.iter().map(|handed| handed.at));
            match (first, run[0].class()) {
                _ if self.lists_only => {
                    self.counters.drop(DropReason::StaleList, run.len() as u64);
                }
                (Ok((link, _, priority)), Some(class)) => {
                    self.dispatch(now, link, priority, buf, &offsets, class, sink);
                }
                _ => self.counters.drop(DropReason::Malformed, run.len() as u64),
            }
        }
        self.scratch.offsets = offsets;
        self.drive(now, sink);
    }

    /// Takes in frames of other workers that are sealed and that the kernel had no room for.
    pub fn handle_sealed(&mut self, now: Time, buf: &[u8], frames: &[Handed]) {
        for handed in frames {
            let (Some(class), Some(neighbour)) =
                (handed.class(), self.neighbours.get_mut(handed.link))
            else {
                self.counters.drop_out(DropReason::NoRoute, 1);
                continue;
            };
            if neighbour.egress.room() == 0 {
                self.counters.drop_out(DropReason::QueueFull, 1);
                continue;
            }
            neighbour.egress.push_back_sealed(class, buf, &[handed.at]);
            self.block(now, handed.link);
        }
    }
}
