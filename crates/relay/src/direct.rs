//! Direct links: they carry what their two hosts say to each other, and nothing else (docs/wire.md
//! section 11).

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{Address, DropReason, Level, LinkId, LinkKind, RoutedHeader, TrafficClass, link};

use crate::Relay;
use crate::view::{Goes, way};

impl<C: Ciphers> Relay<C> {
    /// Whether cells for the host `dst` may go without an end-to-end seal now: there is a direct
    /// link, whose own seal is between the same two hosts.
    pub fn may_go_direct(&self, dst: Address) -> bool {
        self.known().direct(dst).is_some()
    }

    /// Sets the weakest level that handshakes to come accept for the cells of a direct link; with a
    /// router it is always the strongest.
    pub fn set_weakest(&mut self, link: LinkId, weakest: Level) {
        let direct = |address: Address| !address.is_router();
        let both = direct(self.config.address)
            && self.neighbours.get(link).is_some_and(|n| direct(n.address));
        self.sessions.set_weakest(PeerId::from(link), if both { weakest } else { Level::Encrypt });
    }

    /// Stops sending cells over a direct link, or starts again; cells that still come are taken.
    pub fn set_closing(&mut self, link: LinkId, closing: bool) {
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.closing = closing && !neighbour.address.is_router();
        }
        self.refresh();
    }
}

/// Decides about a frame that opened on a lane of this level: only bulk of a direct link is taken
/// from a lane that is not encrypted. Who takes the frame later need not know the lane.
pub(crate) fn check_level(kind: LinkKind, frame: &[u8], level: Level) -> Result<(), DropReason> {
    let is_bulk = || frame[link::ROUTED_AT + RoutedHeader::CLASS_AT] == TrafficClass::Bulk as u8;
    let allowed = level == Level::Encrypt || kind == LinkKind::Direct && is_bulk();
    allowed.then_some(()).ok_or(DropReason::NotAllowed)
}

/// Decides about a cell that `sender` sent without an end-to-end seal: it is taken from host to
/// host.
pub(crate) fn check(
    header: &RoutedHeader,
    me: Address,
    sender: Address,
) -> Result<Goes, DropReason> {
    if sender.is_router() || me.is_router() {
        return Err(DropReason::NotAllowed);
    }
    match way(header, me, sender, false)? {
        Goes::Here => Ok(Goes::Here),
        Goes::On(_) => Err(DropReason::NotForUs),
    }
}
