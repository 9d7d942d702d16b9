//! Cells of this node's own, sent by any worker.
//!
//! On a link with a router all cells of a pair of hosts stay on one lane, whichever worker sealed
//! them end to end, so that routers can't tell flows apart. The worker that seals on that lane
//! sends them; the others hand them to it. On a direct link every worker sends on lanes of its own,
//! and so does the first worker with leg cells, of which no other has any.

use shoal_crypto::Ciphers;
use shoal_session::{PeerId, SessionShard};
use shoal_wire::{Address, DropReason, LinkId, LinkKind, RoutedHeader, SizeClass, Time, link};

use crate::batch::{Run, lane_of};
use crate::forward::hand_over;
use crate::{Forwarder, Handed, Handoff, Sink, Turn, Unfinished};

impl Forwarder {
    /// Whether cells for the host `dst` may go without an end-to-end seal now, as
    /// [`crate::Relay::may_go_direct`] says.
    pub fn may_go_direct(&self, dst: Address) -> bool {
        self.view.direct(dst).is_some()
    }

    /// Whether the backlog on the way to `dst` is so long that cells are marked, and that more
    /// cells had better wait at their source.
    pub fn is_marking(&self, dst: Address) -> bool {
        self.view.origin_hop(dst).is_some_and(|link| self.links.is_marking(link))
    }

    /// Sends cells of this node's own edge, as [`crate::Relay::send_cells`] does, or hands them to
    /// the worker that seals on the lane of their two hosts.
    pub fn send_cells<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
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
        let link = match header.and_then(|header| self.way_out(kind, header.dst())) {
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
        let mut run = Run { buf, offsets, class };
        if owner == me {
            return self.dispatch(shard, turn, link, run);
        }
        let to = Unfinished::Leaving { worker: owner, link };
        let taken = hand_over(to, &run, turn.hand);
        match me {
            // The first worker, which sends control and files, sends what finds no room by itself.
            0 => self.dispatch(shard, turn, link, run.of(&offsets[taken..])),
            _ => self.lose(&offsets[taken..]),
        }
    }

    /// The link by which a cell of this node's own leaves for `dst`.
    pub(crate) fn way_out(&self, kind: LinkKind, dst: Address) -> Result<LinkId, DropReason> {
        if self.view.lists_only {
            return Err(DropReason::StaleList);
        }
        let hop = match kind {
            LinkKind::Direct => self.view.direct(dst),
            _ => self.view.origin_hop(dst),
        };
        hop.ok_or(DropReason::NoRoute)
    }

    /// The worker that sends the cells of the pair of hosts whose cell is at `at`; this one, where
    /// no worker may send over the link by itself.
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

    /// Takes in cells of this node's own that another worker handed over, since this one seals on
    /// their lanes. Where it does not after all, since keys have changed, they go to the first one.
    pub fn handle_leaving<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        frames: &[Handed],
    ) {
        let me = shard.worker();
        let mut offsets = core::mem::take(&mut self.scratch.offsets);
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let peer = PeerId::from(first.link);
            let lanes = 0..shard.lanes(turn.now, peer);
            let of = |handed: &Handed| (handed.link, handed.len, lane_of(buf, handed.at, &lanes));
            let key = of(first);
            let same = rest.iter().take_while(|handed| of(handed) == key).count();
            let (run, later) = rest.split_at(same);
            rest = later;
            let Some(class) = first.class() else { continue };
            offsets.clear();
            offsets.extend(run.iter().map(|handed| handed.at));
            let run = Run { buf: &mut *buf, offsets: &offsets, class };
            // The first worker sends what nobody else does.
            if me == 0 || shard.sealer(turn.now, peer, key.2) == me {
                self.dispatch(shard, turn, first.link, run);
            } else {
                let to = Unfinished::Leaving { worker: 0, link: first.link };
                let taken = hand_over(to, &run, turn.hand);
                self.lose(&offsets[taken..]);
            }
        }
        self.scratch.offsets = offsets;
    }
}
