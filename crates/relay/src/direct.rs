//! Links of two hosts past the routers: they carry what the two say to each other, and nothing
//! else (docs/wire.md section 11).

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{Address, DropReason, Level, LinkId, RoutedHeader, TrafficClass};

use crate::Relay;
use crate::view::{Goes, way};

impl<C: Ciphers> Relay<C> {
    /// Whether cells for the host `dst` may go without an end-to-end seal now: the link's own is
    /// between the same two.
    pub fn may_go_direct(&self, dst: Address) -> bool {
        self.known().direct(dst).is_some()
    }

    /// The weakest level that is taken for the cells of a direct link, for handshakes to come; with
    /// a router it is always the strongest.
    pub fn set_weakest(&mut self, link: LinkId, weakest: Level) {
        let direct = |address: Address| !address.is_router();
        let both = direct(self.config.address)
            && self.neighbours.get(link).is_some_and(|n| direct(n.address));
        self.sessions.set_weakest(PeerId::from(link), if both { weakest } else { Level::Encrypt });
    }

    /// Sends nothing more over a direct link, or does again; what still comes is taken.
    pub fn set_closing(&mut self, link: LinkId, closing: bool) {
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.closing = closing && !neighbour.address.is_router();
        }
        self.refresh();
    }
}

/// Decides about a cell that `sender` sent without an end-to-end seal, on a lane of this level: it
/// is taken from host to host, and where it is not authentic only if it is bulk.
pub(crate) fn check(
    header: &RoutedHeader,
    me: Address,
    sender: Address,
    level: Level,
) -> Result<Goes, DropReason> {
    let unsealed = level != Level::Encrypt && header.class() != TrafficClass::Bulk;
    if unsealed || sender.is_router() || me.is_router() {
        return Err(DropReason::NotAllowed);
    }
    match way(header, me, sender, false)? {
        Goes::Here => Ok(Goes::Here),
        Goes::On(_) => Err(DropReason::NotForUs),
    }
}
