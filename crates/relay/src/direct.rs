//! Direct links. They carry only cells between their two hosts (docs/design/wire/direct.md).

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{
    Address, DropReason, Level, LinkId, LinkKind, NodeAddresses, RoutedHeader, TrafficClass, link,
};

use crate::Relay;
use crate::view::{ForwardingDecision, way};

impl<C: Ciphers> Relay<C> {
    /// True if cells for the host `dst` may go without an end-to-end seal. That needs a direct
    /// link, whose own seal is between the same two hosts.
    pub fn may_go_direct(&self, dst: Address) -> bool {
        self.known().direct(dst).is_some()
    }

    /// Sets the weakest level that future handshakes accept for the cells of a direct link. With a
    /// router it is always the strongest.
    pub fn set_weakest(&mut self, link: LinkId, weakest: Level) {
        let direct = |address: Address| !address.is_router();
        let both = direct(self.config.address)
            && self.neighbours.get(link).is_some_and(|n| direct(n.address));
        self.sessions.set_weakest(PeerId::from(link), if both { weakest } else { Level::Encrypt });
    }

    /// Stops or resumes sending cells over a direct link. Cells that still arrive are accepted.
    pub fn set_closing(&mut self, link: LinkId, closing: bool) {
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.closing = closing && !neighbour.address.is_router();
        }
        self.refresh();
    }
}

/// Checks the kind of a frame against the level of its lane. A lane without encryption may carry
/// only bulk of a direct link. Later steps need not know the lane.
pub(crate) fn check_level(kind: LinkKind, frame: &[u8], level: Level) -> Result<(), DropReason> {
    let is_bulk = || frame[link::ROUTED_AT + RoutedHeader::CLASS_AT] == TrafficClass::Bulk as u8;
    let allowed = level == Level::Encrypt || kind == LinkKind::Direct && is_bulk();
    allowed.then_some(()).ok_or(DropReason::NotAllowed)
}

/// Checks a cell that `sender` sent without an end-to-end seal. It is accepted only between two
/// hosts.
pub(crate) fn check(
    header: &RoutedHeader,
    own: NodeAddresses,
    sender: Address,
) -> Result<ForwardingDecision, DropReason> {
    if sender.is_router() || own.first.is_router() {
        return Err(DropReason::NotAllowed);
    }
    match way(header, own, sender, false)? {
        ForwardingDecision::Here => Ok(ForwardingDecision::Here),
        ForwardingDecision::On(_) => Err(DropReason::NotForUs),
    }
}
