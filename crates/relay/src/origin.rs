//! This node's own cells, sent by any worker.
//!
//! On a link with a router, all cells of a pair of hosts stay on one lane, whichever worker sealed
//! them. So routers can't tell flows apart. The worker that seals on that lane sends them, and the
//! others hand them to it. On a direct link every worker sends on its own lanes. Only the first
//! worker has leg cells, and it sends them on its own lanes.

use shoal_crypto::Ciphers;
use shoal_session::{PeerId, SessionShard};
use shoal_wire::{Address, DropReason, LinkId, LinkKind, RoutedHeader, SizeClass, Time, link};

use crate::batch::{OutgoingRun, lane_of};
use crate::handoff::hand_over;
use crate::{CallContext, Forwarder, FrameSink, Handoff, HandoffFrame, HandoffKind};

impl Forwarder {
    /// True if cells for the host `dst` may go without an end-to-end seal. See
    /// [`crate::Relay::may_go_direct`].
    pub fn may_go_direct(&self, dst: Address) -> bool {
        self.view.direct(dst).is_some()
    }

    /// True if the backlog on the link to `dst` is so long that cells are marked. Sources should
    /// then wait.
    pub fn is_marking(&self, dst: Address) -> bool {
        self.view.origin_hop(dst).is_some_and(|link| self.links.is_marking(link))
    }

    /// Sends cells of this node's own edge, as [`crate::Relay::send_cells`] does, or hands them to
    /// the worker that seals on their lane.
    pub fn send_cells<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        kind: LinkKind,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) {
        let (Some(&first), Some(class)) = (offsets.first(), SizeClass::of_frame(len)) else {
            return;
        };
        let n = offsets.len() as u64;
        let header = RoutedHeader::parse(&buf[first as usize + link::ROUTED_AT..]);
        let ends = header.map(|header| (header.src(), header.dst()));
        let link = match ends.and_then(|ends| self.way_out(kind, ends)) {
            Ok(link) => link,
            Err(reason) => return self.counters.drop(reason, n),
        };
        for &at in offsets {
            buf[at as usize + link::KIND_AT] = kind as u8;
        }
        self.counters.traffic.cells_origin += n;
        let me = shard.worker();
        let owner = match kind {
            LinkKind::Cell => self.owner(shard, turn.now, link, buf, first),
            _ => me,
        };
        let mut run = OutgoingRun { buf, offsets, class };
        if owner == me {
            return self.dispatch(shard, turn, link, run);
        }
        let to = HandoffKind::Leaving { worker: owner, link };
        let taken = hand_over(to, &run, turn.hand);
        match me {
            // The first worker also sends control and files. It sends cells itself if the other
            // worker has no room.
            0 => self.dispatch(shard, turn, link, run.of(&offsets[taken..])),
            _ => self.lose(&offsets[taken..]),
        }
    }

    /// Source address of this node's own cells to `dst`. See [`crate::Relay::source`].
    pub fn source(&self, dst: Address) -> Option<Address> {
        self.view.source(dst)
    }

    /// The link for this node's own cells with this source and destination.
    pub(crate) fn way_out(
        &self,
        kind: LinkKind,
        (src, dst): (Address, Address),
    ) -> Result<LinkId, DropReason> {
        if self.view.lists_only {
            return Err(DropReason::StaleList);
        }
        let hop = match kind {
            LinkKind::Direct => self.view.direct(dst),
            _ => self.view.origin_hop_from(src, dst),
        };
        hop.ok_or(DropReason::NoRoute)
    }

    /// The worker that sends the cells of this pair of hosts (from the cell at `at`). It is this
    /// worker if no worker may send over the link by itself.
    fn owner<C: Ciphers>(
        &self,
        shard: &SessionShard<C>,
        now: Time,
        link: LinkId,
        buf: &[u8],
        at: u32,
    ) -> u8 {
        if self.endpoint(shard, now, link).is_none() {
            return shard.worker();
        }
        let peer = PeerId::from(link);
        let lane = lane_of(buf, at, &(0..shard.lanes(now, peer)));
        shard.sealer(now, peer, lane)
    }

    /// Handles this node's own cells that another worker handed over because this one seals on
    /// their lanes. If keys have changed and another worker owns the lane, the cells go to the
    /// first worker.
    pub fn handle_leaving<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        frames: &[HandoffFrame],
    ) {
        let me = shard.worker();
        let mut offsets = core::mem::take(&mut self.scratch.offsets);
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let peer = PeerId::from(first.link);
            let lanes = 0..shard.lanes(turn.now, peer);
            let of =
                |handed: &HandoffFrame| (handed.link, handed.len, lane_of(buf, handed.at, &lanes));
            let key = of(first);
            let same = rest.iter().take_while(|handed| of(handed) == key).count();
            let (run, later) = rest.split_at(same);
            rest = later;
            let Some(class) = first.class() else { continue };
            offsets.clear();
            offsets.extend(run.iter().map(|handed| handed.at));
            let run = OutgoingRun { buf: &mut *buf, offsets: &offsets, class };
            // The first worker sends cells for which no other worker is the owner.
            if me == 0 || shard.sealer(turn.now, peer, key.2) == me {
                self.dispatch(shard, turn, first.link, run);
            } else {
                let to = HandoffKind::Leaving { worker: 0, link: first.link };
                let taken = hand_over(to, &run, turn.hand);
                self.lose(&offsets[taken..]);
            }
        }
        self.scratch.offsets = offsets;
    }
}
