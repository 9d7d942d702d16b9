//! The hold stage of a worker: cells that wait because they are mixed. One pool serves all links
//! over which the worker sends. Every cell passes this stage before the egress:
//!
//! ```text
//! of mixed circuits -> mix_cells -+-> held until they are due -> release -+-> steer -> depart
//! others -----------> dispatch ---+-> (in the buffer they came in) -------+
//! ```
//!
//! Frames of the link itself are never held: reports, keepalives, routes and handshakes. They
//! measure the link, and would then measure the mix. Full cells that go in parts are held whole and
//! cut when they leave.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_mix::MixLimits;
use shoal_session::SessionShard;
use shoal_wire::{Address, DropReason, LinkId, LinkKind, RoutedHeader, SizeClass, Time, link};

use crate::batch::OutgoingRun;
use crate::kept::DeferringHandoff;
use crate::{CallContext, Forwarder, FrameSink, Handoff, RUN_MAX, Relay};

/// Settings of the hold stage.
#[derive(Clone, Copy, Debug, Default)]
pub struct HoldConfig {
    /// Delay of each cell that leaves over a new link, rounded up to 250 us. Cells leave in order
    /// of arrival. The delay hides nothing and serves tests of held cells.
    pub link_delay: Option<Duration>,
    /// Maximum numbers of cells that each worker holds.
    pub limits: MixLimits,
}

/// A leg cell that leaves later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixedCell {
    /// Start of its frame in the buffer: a full frame with the routed header for the next node.
    pub at: u32,
    /// Departure time.
    pub due: Time,
    /// The node that sent it.
    pub from: Address,
}

impl Forwarder {
    /// Sends cells over a link: at once, unless the link has a delay.
    pub(crate) fn dispatch<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        link: LinkId,
        run: OutgoingRun<'_>,
    ) {
        let delay = self.view.link(link).and_then(|facts| facts.link_delay);
        if delay.is_none() && !self.mix.is_queued(link) {
            return self.steer(shard, turn, link, run);
        }
        let due = turn.now + delay.unwrap_or_default();
        let queue = |at: &&u32| {
            let cell = run.frame(**at).bytes();
            self.mix.queue(turn.now, due, link, run.class, cell).is_ok()
        };
        let held = run.offsets.iter().take_while(queue).count() as u64;
        self.count_held(held, run.count() - held);
    }

    /// Adds leg cells to the pool. Each cell's link is chosen now.
    pub(crate) fn mix_cells(&mut self, now: Time, buf: &mut [u8], cells: &[MixedCell]) {
        let (mut known, mut held, mut lost) = (None, 0, 0);
        for cell in cells {
            let frame = &mut buf[cell.at as usize..][..SizeClass::Full.frame_len()];
            let header = RoutedHeader::parse(&frame[link::ROUTED_AT..]);
            let ends = header.map(|header| (header.src(), header.dst()));
            // Caches the link, since consecutive cells mostly have the same destination.
            let way = match known {
                Some((same, way)) if same == ends => way,
                _ => ends.and_then(|ends| self.way_out(LinkKind::Leg, ends)),
            };
            known = Some((ends, way));
            frame[link::KIND_AT] = LinkKind::Leg as u8;
            match way {
                Err(reason) => self.counters.drop(reason, 1),
                Ok(link) => {
                    let class = SizeClass::Full;
                    let taken = self.mix.admit(now, cell.due, cell.from, link, class, frame);
                    *(if taken.is_ok() { &mut held } else { &mut lost }) += 1;
                }
            }
        }
        self.counters.traffic.cells_origin += held + lost;
        self.count_held(held, lost);
    }

    fn count_held(&mut self, held: u64, lost: u64) {
        self.counters.traffic.cells_held += held;
        self.counters.traffic.dispatched += lost;
        self.counters.drop_out(DropReason::MixFull, lost);
    }

    /// Sends the next run of held cells that are due. Returns false if there is none. `buf` has
    /// room for [`RUN_MAX`] full frames.
    fn release<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        offsets: &mut Vec<u32>,
    ) -> bool {
        let Some((link, count, class)) = self.mix.release(turn.now, buf, RUN_MAX) else {
            return false;
        };
        let traffic = &mut self.counters.traffic;
        traffic.cells_released += count as u64;
        traffic.cells_late.iter_mut().zip(self.mix.take_late()).for_each(|(sum, n)| *sum += n);
        offsets.clear();
        offsets.extend((0..count).map(|i| (i * class.frame_len()) as u32));
        self.steer(shard, turn, link, OutgoingRun { buf, offsets, class });
        true
    }

    /// Sends the cells that are due. Workers after the first call this at the time of
    /// [`Self::poll_timeout`].
    pub fn handle_timeout<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
    ) {
        let mut buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.offsets);
        buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        while self.release(shard, turn, &mut buf, &mut offsets) {}
        (self.scratch.run, self.scratch.offsets) = (buf, offsets);
    }

    /// Time and reason of the next call of [`Self::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        self.mix.poll_timeout().map(|at| (at, "hold"))
    }

    /// Number of cells that this worker holds.
    pub fn held(&self) -> usize {
        self.mix.len()
    }

    /// Drops cells held for links that no longer exist.
    pub(crate) fn give_up_held(&mut self) {
        let lost = self.mix.forget(|link| self.view.link(link).is_some());
        self.counters.traffic.cells_released += lost;
        self.counters.traffic.dispatched += lost;
        self.counters.drop_out(DropReason::NoRoute, lost);
    }
}

impl<C: Ciphers> Relay<C> {
    /// Changes the delay of cells over a link. Cells that are already held keep their departure
    /// time and leave first.
    pub fn set_link_delay(&mut self, link: LinkId, delay: Option<Duration>) {
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.link_delay = delay;
        }
        self.refresh();
    }

    /// Adds leg cells of `buf` to the pool; they leave later in random order. Each cell's link is
    /// chosen now. Cells of a received batch go through
    /// [`LocalCells::mixed`](crate::LocalCells::mixed).
    ///
    /// Cells without a route are counted as `no_route`, cells without room as `mix_full`.
    pub fn mix_cells(&mut self, now: Time, buf: &mut [u8], cells: &[MixedCell]) {
        self.own.mix_cells(now, buf, cells);
    }

    /// Number of cells that the first worker holds for a link. They are not part of the backlog.
    pub fn held(&self, link: LinkId) -> usize {
        self.own.mix.held(link)
    }

    /// The largest number of mixed cells that the first worker holds from one node, and the
    /// maximum.
    pub fn largest_share(&self) -> (usize, usize) {
        self.own.mix.largest_share()
    }

    /// Sends the cells of the first worker's pool that are due.
    pub(crate) fn release<S: FrameSink>(&mut self, now: Time, sink: &mut S) {
        if self.own.poll_timeout().is_none_or(|(at, _)| at > now) {
            return;
        }
        let mut buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.stride);
        buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        loop {
            let hand = &mut DeferringHandoff { kept: &mut self.kept, others: &mut () };
            let here = &mut CallContext { now, sink: &mut *sink, hand };
            if !self.own.release(self.sessions.shard(), here, &mut buf, &mut offsets) {
                break;
            }
            self.finish(&mut CallContext { now, sink: &mut *sink, hand: &mut () }, &mut buf);
        }
        (self.scratch.run, self.scratch.stride) = (buf, offsets);
    }
}
