//! What the relay gives the workers after the first, and what it takes from them.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_crypto::{Aead, Ciphers, kdf};
use shoal_link::Egress;
use shoal_mix::Mix;
use shoal_session::{PeerId, SessionShard};
use shoal_wire::{DropReason, LinkId, RoutedHeader, Time, link};

use crate::batch::{Run, priority};
use crate::kept::Keeping;
use crate::notes::{LinkNote, Note};
use crate::{Counters, Forwarder, Handed, Handoff, LocalCells, Order, Relay, Sink, Turn};

/// What the others were told.
pub(crate) struct Workers<C: Ciphers> {
    orders: VecDeque<(u8, Order<C::Aead>)>,
    /// Whether the view is another than the workers were told.
    pub(crate) stale: bool,
    /// Links that have a backlog, over which the other workers may not send. With each: whether
    /// they were told that its cells are marked; none before they are told anything.
    closed: BTreeMap<LinkId, Option<bool>>,
}

impl<C: Ciphers> Default for Workers<C> {
    fn default() -> Self {
        Workers { orders: VecDeque::new(), stale: true, closed: BTreeMap::new() }
    }
}

impl<C: Ciphers> Relay<C> {
    /// The data path of worker `number`, from 1 on, and its shard of the sessions.
    pub fn forwarder(&self, number: u8) -> (SessionShard<C>, Forwarder) {
        let shard = SessionShard::new(&self.config.session, number);
        let seed = kdf(self.mix_seed.expose(), "shoal v1 mix of a worker", &[&[number]]);
        let mix = Mix::flawed(self.config.hold.limits, seed, C::Aead::flaw());
        (shard, Forwarder::new(Arc::default(), mix))
    }

    /// Whether another worker knows the neighbours and routes that this node has now.
    pub fn is_known_to(&self, worker: &Forwarder) -> bool {
        Arc::ptr_eq(&self.own.view, &worker.view)
    }

    /// Adds what another worker counted.
    pub fn add_counters(&mut self, counters: &Counters) {
        self.own.counters.add(counters);
    }

    fn has_others(&self) -> bool {
        self.config.session.workers > 1
    }

    /// The next order, and the worker that it is for. None may get lost or overtake another; to be
    /// taken after every call. With one worker there is none.
    pub fn poll_order(&mut self) -> Option<(u8, Order<C::Aead>)> {
        if !self.has_others() {
            return None;
        }
        if let Some((worker, order)) = self.sessions.poll_order() {
            return Some((worker, Order::Keys(order)));
        }
        if self.workers.orders.is_empty() {
            if core::mem::take(&mut self.workers.stale) {
                let view = Arc::clone(&self.own.view);
                self.tell(|| Order::View(Arc::clone(&view)));
            }
            self.tell_gates();
        }
        self.workers.orders.pop_front()
    }

    pub(crate) fn order_due(&self) -> Option<(Time, &'static str)> {
        let due = self.workers.stale || !self.workers.orders.is_empty();
        (due && self.has_others()).then_some((Time::ZERO, "order for a worker"))
    }

    fn tell(&mut self, order: impl Fn() -> Order<C::Aead>) {
        let others = 1..self.config.session.workers;
        self.workers.orders.extend(others.map(|worker| (worker, order())));
    }

    fn tell_gates(&mut self) {
        for at in 0..self.blocked.len() {
            self.workers.closed.entry(self.blocked[at]).or_default();
        }
        for link in self.slots.links() {
            let egress = self.neighbours.get(link).map(|neighbour| &neighbour.egress);
            if egress.is_some_and(Egress::is_marking) {
                self.workers.closed.entry(link).or_default();
            }
        }
        for (link, told) in core::mem::take(&mut self.workers.closed) {
            let egress = self.neighbours.get(link).map(|neighbour| &neighbour.egress);
            let waits = egress.is_some_and(|egress| egress.backlog() > 0);
            let open = !waits && !self.blocked.contains(&link);
            let marking = !open && egress.is_some_and(Egress::is_marking);
            if !open {
                self.workers.closed.insert(link, Some(marking));
            }
            if open || told != Some(marking) {
                self.tell(|| Order::Gate { link, open, marking });
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
                if note.refused && self.neighbours.get(note.link).is_some() {
                    // Even if the refused frames got lost: the worker waits to be told of the gate.
                    self.workers.closed.entry(note.link).or_default();
                }
                if self.paths.is_empty() {
                    self.refresh();
                } else {
                    self.drive(now, sink);
                }
            }
        }
    }

    /// Accounts for what came and went over a link.
    pub(crate) fn note_link(&mut self, now: Time, note: &LinkNote) {
        let link = note.link;
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if note.frames > 0 {
            neighbour.liveness.received(now, note.frames, (0, 0), note.traffic);
            neighbour.liveness.received_full(note.full);
            for (lane, &highest) in (0..).zip(&note.highest).filter(|(_, highest)| **highest > 0) {
                neighbour.liveness.received(now, 0, (lane, highest), false);
            }
        }
        for (sent, traffic) in [(note.sent, true), (note.sent_quietly, false)] {
            if sent > 0 {
                neighbour.liveness.sent(now, sent, traffic);
            }
        }
        neighbour.width.sent(now, note.sent_full, note.sent > 0);
        let refused = note.too_long && !neighbour.width.is_narrow();
        if refused {
            neighbour.width.refused(now);
        }
        self.neighbours.reschedule(link);
        if refused {
            self.note_width(link);
        }
        if let Some(source) = note.source {
            self.note_source(now, PeerId::from(link), source);
        }
        if note.refused {
            self.block(now, link);
        }
    }

    /// Takes in frames that another worker opened: control, and cells for this node. That worker's
    /// notes account for them.
    pub fn handle_opened<S: Sink, H: Handoff>(
        &mut self,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        frames: &[Handed],
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        self.sort_opened(turn, buf, frames, local);
        self.handle_whole(turn, local);
        self.drive(turn.now, turn.sink);
    }

    /// Takes in cells of this node's own that are the first worker's to send, as
    /// [`Forwarder::handle_leaving`] does.
    pub fn handle_leaving<S: Sink, H: Handoff>(
        &mut self,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        frames: &[Handed],
    ) {
        let hand = &mut Keeping { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut Turn { now: turn.now, sink: &mut *turn.sink, hand };
        self.own.handle_leaving(self.sessions.shard(), here, buf, frames);
        self.finish(turn, buf);
        self.drive(turn.now, turn.sink);
    }

    /// Takes in cells that are past another worker's hold and that it may not send itself.
    pub fn handle_released(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[Handed],
        sink: &mut impl Sink,
    ) {
        self.send_released(now, buf, frames, sink);
        self.drive(now, sink);
    }

    pub(crate) fn send_released(
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
                    self.own.counters.drop(DropReason::StaleList, run.len() as u64);
                }
                (Ok((link, _, priority)), Some(class)) => {
                    let run = Run { buf: &mut *buf, offsets: &offsets, class };
                    self.dispatch(now, (link, priority), run, sink);
                }
                _ => self.own.counters.drop(DropReason::Malformed, run.len() as u64),
            }
        }
        self.scratch.offsets = offsets;
    }

    /// Takes in frames of other workers that are sealed and that the kernel had no room for.
    pub fn handle_sealed(&mut self, now: Time, buf: &[u8], frames: &[Handed]) {
        for handed in frames {
            match self.neighbours.get(handed.link) {
                Some(neighbour) if neighbour.egress.space() == 0 => {
                    self.own.counters.drop_out(DropReason::QueueFull, 1);
                }
                _ => self.take_back(now, buf, core::slice::from_ref(handed)),
            }
        }
        self.refresh();
    }

    /// Keeps frames that are sealed and that the kernel had no room for.
    pub(crate) fn take_back(&mut self, now: Time, buf: &[u8], frames: &[Handed]) {
        for run in frames.chunk_by(|a, b| (a.link, a.len) == (b.link, b.len)) {
            let (link, class) = (run[0].link, run[0].class());
            let (Some(class), Some(neighbour)) = (class, self.neighbours.get_mut(link)) else {
                self.own.counters.drop_out(DropReason::NoRoute, run.len() as u64);
                continue;
            };
            let offsets = run.iter().map(|handed| handed.at);
            self.scratch.back.clear();
            self.scratch.back.extend(offsets);
            neighbour.egress.push_back_sealed(class, buf, &self.scratch.back);
            self.block(now, link);
        }
    }
}
