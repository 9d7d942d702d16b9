//! The hold stage of a worker: cells that wait because they are mixed, in one pool for all links
//! over which the worker sends. Every cell meets it before it meets the egress:
//!
//! ```text
//! of mixed circuits -> mix_cells -+-> held until they are due -> release -+-> steer -> depart
//! others -----------> dispatch ---+-> (in the buffer they came in) -------+
//! ```
//!
//! Frames of the link itself are never held: reports, keepalives, routes and handshakes measure the
//! link, and would measure the mix instead. Full cells that go in parts are held whole, and cut
//! when they depart.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_mix::Limits;
use shoal_session::SessionShard;
use shoal_wire::{Address, DropReason, LinkId, LinkKind, RoutedHeader, SizeClass, Time, link};

use crate::batch::Run;
use crate::kept::Keeping;
use crate::{Forwarder, Handoff, RUN_MAX, Relay, Sink, Turn};

/// What the hold stage does.
#[derive(Clone, Copy, Debug, Default)]
pub struct HoldConfig {
    /// Each cell that leaves over a new link waits for this time, rounded up to 250 us, and leaves
    /// in order of arrival. That hides nothing; it is for tests of how a node works with held
    /// cells.
    pub link_delay: Option<Duration>,
    /// How many cells each worker may hold.
    pub limits: Limits,
}

/// A leg cell that goes on later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MixedCell {
    /// Where its frame starts: a full one, whose routed header is written for the next node.
    pub at: u32,
    /// When it leaves.
    pub due: Time,
    /// The node that it came from.
    pub from: Address,
}

impl Forwarder {
    /// Takes cells that are to leave over a link: they go on at once, unless the link has a delay.
    pub(crate) fn dispatch<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        link: LinkId,
        run: Run<'_>,
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

    /// Takes leg cells that are to leave later. The link of each is chosen now.
    pub(crate) fn mix_cells(&mut self, now: Time, buf: &mut [u8], cells: &[MixedCell]) {
        let (mut known, mut held, mut lost) = (None, 0, 0);
        for cell in cells {
            let frame = &mut buf[cell.at as usize..][..SizeClass::Full.frame_len()];
            let dst = RoutedHeader::parse(&frame[link::ROUTED_AT..]).map(|header| header.dst());
            // Cells in a row mostly go the same way.
            let way = match known {
                Some((same, way)) if same == dst => way,
                _ => dst.and_then(|dst| self.way_out(LinkKind::Leg, dst)),
            };
            known = Some((dst, way));
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

    /// Sends the next run of held cells that are due on; says whether there was one. `buf` holds
    /// [`RUN_MAX`] full frames.
    fn release<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
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
        self.steer(shard, turn, link, Run { buf, offsets, class });
        true
    }

    /// Sends on the cells whose time has come. To be called when [`Self::poll_timeout`] says so, by
    /// a worker after the first.
    pub fn handle_timeout<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
    ) {
        let mut buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.offsets);
        buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        while self.release(shard, turn, &mut buf, &mut offsets) {}
        (self.scratch.run, self.scratch.offsets) = (buf, offsets);
    }

    /// When [`Self::handle_timeout`] has something to do, and why.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        self.mix.poll_timeout().map(|at| (at, "hold"))
    }

    /// Cells that this worker holds.
    pub fn held(&self) -> usize {
        self.mix.len()
    }

    /// Gives up the cells that are held for links which are gone.
    pub(crate) fn give_up_held(&mut self) {
        let lost = self.mix.forget(|link| self.view.link(link).is_some());
        self.counters.traffic.cells_released += lost;
        self.counters.traffic.dispatched += lost;
        self.counters.drop_out(DropReason::NoRoute, lost);
    }
}

impl<C: Ciphers> Relay<C> {
    /// Changes how long each cell that leaves over a link from now on waits first. What is held
    /// leaves before it, when it would have left.
    pub fn set_link_delay(&mut self, link: LinkId, delay: Option<Duration>) {
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.link_delay = delay;
        }
        self.refresh();
    }

    /// Takes leg cells of `buf` that are to leave later, in an order that is drawn at random. The
    /// link of each is chosen now. Those that come in a batch go through
    /// [`LocalCells::mixed`](crate::LocalCells::mixed).
    ///
    /// Cells that no link leads to are counted as `no_route`, cells for which there is no room as
    /// `mix_full`.
    pub fn mix_cells(&mut self, now: Time, buf: &mut [u8], cells: &[MixedCell]) {
        self.own.mix_cells(now, buf, cells);
    }

    /// Cells that the first worker holds for a link. They are no backlog.
    pub fn held(&self, link: LinkId) -> usize {
        self.own.mix.held(link)
    }

    /// Mixed cells that the first worker holds of the node of which it holds most, and how many it
    /// may.
    pub fn largest_share(&self) -> (usize, usize) {
        self.own.mix.largest_share()
    }

    /// Sends on the cells that the first worker holds and whose time has come.
    pub(crate) fn release<S: Sink>(&mut self, now: Time, sink: &mut S) {
        if self.own.poll_timeout().is_none_or(|(at, _)| at > now) {
            return;
        }
        let mut buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.stride);
        buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        loop {
            let hand = &mut Keeping { kept: &mut self.kept, others: &mut () };
            let here = &mut Turn { now, sink: &mut *sink, hand };
            if !self.own.release(self.sessions.shard(), here, &mut buf, &mut offsets) {
                break;
            }
            self.finish(&mut Turn { now, sink: &mut *sink, hand: &mut () }, &mut buf);
        }
        (self.scratch.run, self.scratch.stride) = (buf, offsets);
    }
}
