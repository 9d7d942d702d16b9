//! The hold stage of a worker: one hold per link over which it sends cells. Every cell meets the
//! hold of the worker that sends it, before it meets the egress:
//!
//! ```text
//! cells -> dispatch -+-> held until the strategy lets them go -> release -+-> steer -> depart
//!                    +-> (no strategy: in the buffer they came in) -------+
//! ```
//!
//! Frames of the link itself are never held: reports, keepalives, routes and handshakes measure the
//! link, and would measure the strategy instead. Full cells that go in parts are held whole, and
//! cut when they depart.

use std::collections::{BTreeMap, BTreeSet};

use shoal_crypto::Ciphers;
use shoal_link::{Hold, HoldConfig, Strategy};
use shoal_session::SessionShard;
use shoal_wire::{DropReason, LinkId, SizeClass, Time};

use crate::batch::Run;
use crate::kept::Keeping;
use crate::{Forwarder, Handoff, RUN_MAX, Relay, Sink, Turn};

/// The holds of one worker.
pub(crate) struct Holds {
    config: HoldConfig,
    of: BTreeMap<LinkId, Hold>,
    /// When the next cell of each link is due.
    due: BTreeSet<(Time, LinkId)>,
}

impl Holds {
    pub(crate) fn new(config: HoldConfig) -> Holds {
        Holds { config, of: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// Cells that are held for a link.
    pub(crate) fn held(&self, link: LinkId) -> usize {
        self.of.get(&link).map_or(0, Hold::len)
    }

    /// Whether cells are held for a link.
    fn holds(&self, link: LinkId) -> bool {
        // Where no strategy holds anything this is one look at an empty set.
        !self.due.is_empty() && self.held(link) > 0
    }

    fn poll_timeout(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    /// Holds cells of a link; says how many of them there was room for.
    fn admit(&mut self, now: Time, link: LinkId, strategy: Strategy, run: &Run<'_>) -> u64 {
        let hold = self.of.entry(link).or_default();
        let was_empty = hold.is_empty();
        let admit = |at: &&u32| {
            let cell = run.frame(**at).bytes();
            hold.admit(now, &self.config, strategy, run.class, cell).is_ok()
        };
        let held = run.offsets.iter().take_while(admit).count() as u64;
        if let Some(at) = hold.poll_timeout().filter(|_| was_empty) {
            self.due.insert((at, link));
        }
        held
    }

    /// Moves the next run that is due into `buf`.
    fn release(&mut self, now: Time, buf: &mut [u8]) -> Option<(LinkId, usize, SizeClass)> {
        let (at, link) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        let hold = self.of.get_mut(&link)?;
        let released = hold.release(now, buf, RUN_MAX);
        self.due.remove(&(at, link));
        self.due.extend(hold.poll_timeout().map(|at| (at, link)));
        released.map(|(count, class)| (link, count, class))
    }

    /// Forgets the holds of links that are gone; returns how many cells were in them.
    fn forget(&mut self, is_there: impl Fn(LinkId) -> bool) -> u64 {
        let mut lost = 0;
        self.of.retain(|&link, hold| {
            let stays = is_there(link);
            lost += if stays { 0 } else { hold.len() as u64 };
            stays
        });
        self.due.retain(|(_, link)| self.of.contains_key(link));
        lost
    }

    /// Gives back the memory of holds that are empty.
    pub(crate) fn rest(&mut self) {
        self.of.retain(|_, hold| !hold.is_empty());
    }
}

impl Forwarder {
    /// Takes cells that are to leave over a link: what its strategy holds waits, the rest goes on.
    pub(crate) fn dispatch<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        link: LinkId,
        run: Run<'_>,
    ) {
        let strategy = self.view.link(link).map_or(Strategy::Pass, |facts| facts.strategy);
        if !strategy.holds() && !self.holds.holds(link) {
            return self.steer(shard, turn, link, run);
        }
        let held = self.holds.admit(turn.now, link, strategy, &run);
        let lost = run.count() - held;
        self.counters.traffic.cells_held += held;
        self.counters.traffic.dispatched += lost;
        self.counters.drop_out(DropReason::HoldFull, lost);
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
        let Some((link, count, class)) = self.holds.release(turn.now, buf) else { return false };
        self.counters.traffic.cells_released += count as u64;
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
        self.holds.poll_timeout().map(|at| (at, "hold"))
    }

    /// Cells that this worker holds.
    pub fn held(&self) -> usize {
        self.holds.of.values().map(Hold::len).sum()
    }

    /// Gives up the cells that are held for links which are gone.
    pub(crate) fn give_up_held(&mut self) {
        let lost = self.holds.forget(|link| self.view.link(link).is_some());
        self.counters.traffic.cells_released += lost;
        self.counters.traffic.dispatched += lost;
        self.counters.drop_out(DropReason::NoRoute, lost);
    }
}

impl<C: Ciphers> Relay<C> {
    /// Changes what the hold of a link does with cells that come from now on. What is held leaves
    /// first, when it would have left.
    pub fn set_strategy(&mut self, link: LinkId, strategy: Strategy) {
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.strategy = strategy;
        }
        self.refresh();
    }

    /// Cells that the first worker holds for a link. They are no backlog.
    pub fn held(&self, link: LinkId) -> usize {
        self.own.holds.held(link)
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
