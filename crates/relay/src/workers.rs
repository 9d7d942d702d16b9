//! Orders of the relay for the other workers, and their notes to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_crypto::{Aead, Ciphers, kdf};
use shoal_link::Egress;
use shoal_mix::MixPool;
use shoal_session::{PeerId, SessionShard};
use shoal_wire::{DropReason, LinkId, RoutedHeader, Time, link};

use crate::batch::{OutgoingRun, priority};
use crate::kept::DeferringHandoff;
use crate::notes::{LinkNote, WorkerNote};
use crate::{
    CallContext, DropCounters, Forwarder, FrameSink, Handoff, HandoffFrame, LocalCells, Relay,
    WorkerOrder,
};

/// Orders for the other workers, and the state that they were told.
pub(crate) struct WorkerOrders<C: Ciphers> {
    orders: VecDeque<(u8, WorkerOrder<C::Aead>)>,
    /// True if the workers have not been told the current view.
    pub(crate) stale: bool,
    /// Links with a backlog, over which the other workers may not send. The value says whether they
    /// were told that cells are marked. None before they are told of the gate.
    closed: BTreeMap<LinkId, Option<bool>>,
}

impl<C: Ciphers> Default for WorkerOrders<C> {
    fn default() -> Self {
        WorkerOrders { orders: VecDeque::new(), stale: true, closed: BTreeMap::new() }
    }
}

impl<C: Ciphers> Relay<C> {
    /// The data path and session shard of worker `number`, counted from 1.
    pub fn forwarder(&self, number: u8) -> (SessionShard<C>, Forwarder) {
        let shard = SessionShard::new(&self.config.session, number);
        let seed = kdf(self.mix_seed.expose(), "shoal v1 mix of a worker", &[&[number]]);
        let mix = MixPool::flawed(self.config.hold.limits, seed, C::Aead::flaw());
        (shard, Forwarder::new(Arc::default(), mix))
    }

    /// True if another worker has the current view.
    pub fn is_known_to(&self, worker: &Forwarder) -> bool {
        Arc::ptr_eq(&self.own.view, &worker.view)
    }

    /// Adds the counters of another worker.
    pub fn add_counters(&mut self, counters: &DropCounters) {
        self.own.counters.add(counters);
    }

    fn has_others(&self) -> bool {
        self.config.session.workers > 1
    }

    /// Takes the next order, and the number of its worker. Call this after every call. Orders must
    /// not be lost or reordered. With one worker there are none.
    pub fn poll_order(&mut self) -> Option<(u8, WorkerOrder<C::Aead>)> {
        if !self.has_others() {
            return None;
        }
        if let Some((worker, order)) = self.sessions.poll_order() {
            return Some((worker, WorkerOrder::Keys(order)));
        }
        if self.workers.orders.is_empty() {
            if core::mem::take(&mut self.workers.stale) {
                let view = Arc::clone(&self.own.view);
                self.tell(|| WorkerOrder::View(Arc::clone(&view)));
            }
            self.tell_gates();
        }
        self.workers.orders.pop_front()
    }

    pub(crate) fn order_due(&self) -> Option<(Time, &'static str)> {
        let due = self.workers.stale || !self.workers.orders.is_empty();
        (due && self.has_others()).then_some((Time::ZERO, "order for a worker"))
    }

    fn tell(&mut self, order: impl Fn() -> WorkerOrder<C::Aead>) {
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
                self.tell(|| WorkerOrder::Gate { link, open, marking });
            }
        }
    }

    /// Handles a note of another worker.
    pub fn handle_note(&mut self, now: Time, note: &WorkerNote, sink: &mut impl FrameSink) {
        match note {
            WorkerNote::Session(note) => {
                self.sessions.handle_note(now, note);
                self.drive(now, sink);
            }
            WorkerNote::Link(note) => {
                self.note_link(now, note);
                if note.refused && self.neighbours.get(note.link).is_some() {
                    // Needed even if the refused frames got lost: the worker waits for an order
                    // about the gate.
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

    /// Accounts for frames received and sent over a link.
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

    /// Handles frames that another worker opened: control frames, and cells for this node. The
    /// worker's notes account for them.
    pub fn handle_opened<S: FrameSink, H: Handoff>(
        &mut self,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        frames: &[HandoffFrame],
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        self.sort_opened(turn, buf, frames, local);
        self.handle_whole(turn, local);
        self.drive(turn.now, turn.sink);
    }

    /// Handles this node's own cells that the first worker must send, as
    /// [`Forwarder::handle_leaving`] does.
    pub fn handle_leaving<S: FrameSink, H: Handoff>(
        &mut self,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        frames: &[HandoffFrame],
    ) {
        let hand = &mut DeferringHandoff { kept: &mut self.kept, others: &mut *turn.hand };
        let here = &mut CallContext { now: turn.now, sink: &mut *turn.sink, hand };
        self.own.handle_leaving(self.sessions.shard(), here, buf, frames);
        self.finish(turn, buf);
        self.drive(turn.now, turn.sink);
    }

    /// Sends cells that left another worker's hold but that this worker may not send itself.
    pub fn handle_released(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[HandoffFrame],
        sink: &mut impl FrameSink,
    ) {
        self.send_released(now, buf, frames, sink);
        self.drive(now, sink);
    }

    pub(crate) fn send_released(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[HandoffFrame],
        sink: &mut impl FrameSink,
    ) {
        let mut offsets = core::mem::take(&mut self.scratch.offsets);
        let kind = |buf: &[u8], handed: &HandoffFrame| {
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
                    let run = OutgoingRun { buf: &mut *buf, offsets: &offsets, class };
                    self.dispatch(now, (link, priority), run, sink);
                }
                _ => self.own.counters.drop(DropReason::Malformed, run.len() as u64),
            }
        }
        self.scratch.offsets = offsets;
    }

    /// Takes sealed frames of other workers for which the kernel had no room.
    pub fn handle_sealed(&mut self, now: Time, buf: &[u8], frames: &[HandoffFrame]) {
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

    /// Queues sealed frames for which the kernel had no room.
    pub(crate) fn take_back(&mut self, now: Time, buf: &[u8], frames: &[HandoffFrame]) {
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
