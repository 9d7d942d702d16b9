//! Cells of this node's own, sent by several workers.
//!
//! All cells of two hosts stay on one lane of each link through routers, whoever read and sealed
//! them end to end, so that a router can't tell their flows apart. The worker that seals on that
//! lane sends them; the others hand them to it. On a link of the two hosts themselves every worker
//! sends on lanes of its own.

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{Address, DropReason, LinkId, LinkKind, RoutedHeader, SizeClass, Time, link};

use crate::batch::lane_of;
use crate::{Forwarder, Hand, Handed, Relay, Sink};

impl<C: Ciphers> Forwarder<C> {
    /// Whether cells for the host `dst` may go without an end-to-end seal now, as
    /// [`Relay::may_go_direct`] says.
    pub fn may_go_direct(&self, dst: Address) -> bool {
        self.view.direct(dst).is_some()
    }

    /// Whether so much waits on the way to `dst` that more had better stay where it is.
    pub fn is_congested(&self, dst: Address) -> bool {
        self.view.origin_hop(dst).is_some_and(|link| self.is_full(link))
    }

    /// Sends cells of this node's own edge as [`Relay::send_cells`] does, or hands them to the
    /// worker that seals on the lane of their two hosts.
    pub fn send_cells(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        sink: &mut impl Sink,
        hand: &mut impl Hand,
    ) {
        let hop = |view: &crate::View, dst| view.origin_hop(dst);
        let Some((link, class)) = self.begin(buf, offsets, len, LinkKind::Cell, hop) else {
            return;
        };
        self.send_on_pair_lane(now, link, buf, offsets, class, sink, hand);
    }

    /// Sends cells of this node's own edge as [`Relay::send_direct`] does: past the routers, on
    /// lanes of this worker.
    pub fn send_direct(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        sink: &mut impl Sink,
        hand: &mut impl Hand,
    ) {
        let hop = |view: &crate::View, dst| view.direct(dst);
        let Some((link, class)) = self.begin(buf, offsets, len, LinkKind::Direct, hop) else {
            return;
        };
        self.dispatch(now, link, None, buf, offsets, class, sink, hand);
    }

    /// Makes frames of this kind of them and finds their link; none is counted as a drop.
    fn begin(
        &mut self,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        kind: LinkKind,
        hop: impl Fn(&crate::View, Address) -> Option<LinkId>,
    ) -> Option<(LinkId, SizeClass)> {
        let (&first, class) = (offsets.first()?, SizeClass::of_frame(len)?);
        let found = RoutedHeader::parse(&buf[first as usize + link::ROUTED_AT..])
            .map_err(|_| DropReason::Malformed)
            .and_then(|header| hop(&self.view, header.dst()).ok_or(DropReason::NoRoute));
        let n = offsets.len() as u64;
        match found {
            Ok(link) => {
                for &at in offsets {
                    buf[at as usize + link::KIND_AT] = kind as u8;
                }
                self.counters.traffic.cells_origin += n;
                Some((link, class))
            }
            Err(reason) => {
                self.counters.drop(reason, n);
                None
            }
        }
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of one run")]
    fn send_on_pair_lane(
        &mut self,
        now: Time,
        link: LinkId,
        buf: &mut [u8],
        offsets: &[u32],
        class: SizeClass,
        sink: &mut impl Sink,
        hand: &mut impl Hand,
    ) {
        let Some(&first) = offsets.first() else { return };
        let peer = PeerId(link.0);
        let lanes = self.shard.lanes(now, peer);
        let lane = lane_of(buf, first, &(0..lanes));
        let owner = self.shard.sealer(now, peer, lane);
        if owner == self.shard.worker() || self.endpoint(now, link).is_none() {
            return self.dispatch(now, link, Some(lane), buf, offsets, class, sink, hand);
        }
        self.hand_over(owner, link, buf, offsets, class.frame_len(), hand);
    }

    /// Takes in cells of this node's own that another worker handed over, since their lanes are
    /// this one's. What is not after all, as when keys have changed, goes to the first worker.
    pub fn handle_leaving(
        &mut self,
        now: Time,
        buf: &mut [u8],
        frames: &[Handed],
        sink: &mut impl Sink,
        hand: &mut impl Hand,
    ) {
        let me = self.shard.worker();
        let mut offsets = core::mem::take(&mut self.scratch.offsets);
        let mut rest = frames;
        while let Some(first) = rest.first() {
            let peer = PeerId(first.link.0);
            let lanes = 0..self.shard.lanes(now, peer);
            let of = |handed: &Handed| (handed.link, handed.len, lane_of(buf, handed.at, &lanes));
            let key = of(first);
            let same = rest.iter().take_while(|handed| of(handed) == key).count();
            let (run, later) = rest.split_at(same);
            rest = later;
            let Some(class) = first.class() else { continue };
            let mine = self.shard.sealer(now, peer, key.2) == me;
            offsets.clear();
            offsets.extend(run.iter().map(|handed| handed.at));
            if mine {
                let lane = Some(key.2);
                self.dispatch(now, first.link, lane, buf, &offsets, class, sink, hand);
            } else {
                self.hand_over(0, first.link, buf, &offsets, class.frame_len(), hand);
            }
        }
        self.scratch.offsets = offsets;
    }
}

impl<C: Ciphers> Relay<C> {
    /// The worker, other than this first one, that seals on the lane of these cells' two hosts, and
    /// the link that they leave by; none where this one has to send them. The cells are as for
    /// [`Relay::send_cells`], which sends them all the same, and are made into frames.
    pub fn sender_of(&self, now: Time, buf: &mut [u8], offsets: &[u32]) -> Option<(u8, LinkId)> {
        if self.config.session.workers <= 1 {
            return None;
        }
        let first = *offsets.first()?;
        let header = RoutedHeader::parse(&buf[first as usize + link::ROUTED_AT..]).ok()?;
        let link = self.next_hop(header.dst())?;
        let neighbour = self.neighbours.get(link)?;
        let peer = PeerId(link.0);
        let lanes = self.sessions.lanes(now, peer);
        let waits = !neighbour.egress.is_empty() || neighbour.shared_endpoint().is_none();
        if waits || lanes <= 1 {
            return None;
        }
        for &at in offsets {
            buf[at as usize + link::KIND_AT] = LinkKind::Cell as u8;
        }
        let worker = self.sessions.sealer(now, peer, lane_of(buf, first, &(0..lanes)));
        (worker != 0).then_some((worker, link))
    }

    /// Counts cells of this node's own that another worker sends.
    pub fn count_origin(&mut self, n: u64) {
        self.counters.traffic.cells_origin += n;
    }
}
