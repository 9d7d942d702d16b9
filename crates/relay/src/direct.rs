//! Links of two hosts past the routers: they carry what the two say to each other, and nothing
//! else (docs/wire.md section 11).

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{
    Address, DropReason, Level, LinkId, LinkKind, RoutedHeader, SizeClass, Time, TrafficClass, link,
};

use crate::batch::{Scratch, priority};
use crate::view::{Way, way};
use crate::{Relay, Sink};

impl<C: Ciphers> Relay<C> {
    /// The link by which this host speaks with `dst` itself: of the router that it is, or of the
    /// host, if it hears us.
    pub fn direct(&self, dst: Address) -> Option<LinkId> {
        let link = self.neighbours.by_address(dst)?;
        let neighbour = self.neighbours.get(link)?;
        (dst.is_router() || neighbour.is_direct()).then_some(link)
    }

    /// Whether cells for the host `dst` may go without an end-to-end seal now: the link's own is
    /// between the same two.
    pub fn may_go_direct(&self, dst: Address) -> bool {
        !self.config.address.is_router() && !dst.is_router() && self.direct(dst).is_some()
    }

    /// The weakest level that is taken for the cells of a direct link, for handshakes to come; with
    /// a router it is always the strongest.
    pub fn set_weakest(&mut self, link: LinkId, weakest: Level) {
        let direct = |address: Address| !address.is_router();
        let both = direct(self.config.address)
            && self.neighbours.get(link).is_some_and(|n| direct(n.address));
        self.sessions.set_weakest(PeerId(link.0), if both { weakest } else { Level::Encrypt });
    }

    /// Sends nothing more over a direct link, or does again; what still comes is taken.
    pub fn set_closing(&mut self, link: LinkId, closing: bool) {
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.closing = closing && !neighbour.address.is_router();
            self.stale = true;
        }
    }

    /// Sends cells of this node's own edge as [`Relay::send_cells`] does, but over the direct link
    /// and without an end-to-end seal: the plaintext stands where it would stand sealed.
    ///
    /// Cells for whom there is no direct link are counted as `no_route`.
    pub fn send_direct(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        sink: &mut impl Sink,
    ) {
        let (Some(&first), Some(class)) = (offsets.first(), SizeClass::of_frame(len)) else {
            return;
        };
        let n = offsets.len() as u64;
        let Ok(header) = RoutedHeader::parse(&buf[first as usize + link::ROUTED_AT..]) else {
            return self.counters.drop(DropReason::Malformed, n);
        };
        let way = self.direct(header.dst()).filter(|_| self.may_go_direct(header.dst()));
        let Some(link) = way else { return self.counters.drop(DropReason::NoRoute, n) };
        self.send_as(now, (LinkKind::Direct, link, &header), buf, offsets, class, sink);
    }

    /// Sends cells whose link was found as frames of this kind.
    pub(crate) fn send_as(
        &mut self,
        now: Time,
        (kind, link, header): (LinkKind, LinkId, &RoutedHeader),
        buf: &mut [u8],
        offsets: &[u32],
        class: SizeClass,
        sink: &mut impl Sink,
    ) {
        if self.lists_only {
            return self.counters.drop(DropReason::StaleList, offsets.len() as u64);
        }
        for &at in offsets {
            buf[at as usize + link::KIND_AT] = kind as u8;
        }
        self.counters.traffic.cells_origin += offsets.len() as u64;
        self.dispatch(now, link, priority(header.class()), buf, offsets, class, sink);
    }

    /// Takes a cell that came without an end-to-end seal, on a lane of this level.
    pub(crate) fn take_direct(
        &mut self,
        from: LinkId,
        at: u32,
        level: Level,
        frame: &[u8],
        scratch: &mut Scratch,
    ) -> Result<(), DropReason> {
        let header = RoutedHeader::parse(&frame[link::ROUTED_AT..])?;
        let sender = self.neighbours.get(from).ok_or(DropReason::UnknownPeer)?.address;
        let unsealed = level != Level::Encrypt && header.class() != TrafficClass::Bulk;
        if unsealed {
            return Err(DropReason::NotAllowed);
        }
        check(&header, self.config.address, sender)?;
        scratch.local.push(at);
        Ok(())
    }
}

/// Whether a cell without an end-to-end seal that `sender` sent may be taken: from host to host.
pub(crate) fn check(header: &RoutedHeader, me: Address, sender: Address) -> Result<(), DropReason> {
    if sender.is_router() || me.is_router() {
        return Err(DropReason::NotAllowed);
    }
    match way(header, me, sender, false)? {
        Way::Local => Ok(()),
        Way::Transit(_) => Err(DropReason::NotForUs),
    }
}
