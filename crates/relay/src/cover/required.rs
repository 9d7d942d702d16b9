//! Hosts that send nothing without cover: their schedules never end because of losses.
//!
//! Such a host tells its router, each minute and when its schedule begins. The router keeps its own
//! schedule as long as it is told. Otherwise an attacker who drops frames on the line could make
//! both ends send without a schedule.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, LinkId, Time};

use crate::Relay;
use crate::neighbours::Neighbour;

impl Neighbour {
    /// True if only the link's own frames may leave, because cover is required but off.
    pub(crate) fn is_shut(&self) -> bool {
        self.cover_required && !self.is_covered()
    }
}

impl<C: Ciphers> Relay<C> {
    /// Sets whether cells may leave over covered links only. Their schedules then never end because
    /// of losses, and neighbours are asked to keep theirs. Cells that wait for a link without cover
    /// are dropped: `cover_required`.
    pub fn set_cover_required(&mut self, required: bool) {
        self.cover_required = required;
        let links: Vec<LinkId> = self.neighbours.iter().map(|(link, _)| link).collect();
        let mut lost = 0;
        for link in links {
            let Some(neighbour) = self.neighbours.get_mut(link) else { continue };
            let was = core::mem::replace(&mut neighbour.cover_required, required);
            if was || !required {
                continue;
            }
            if let Some(cover) = &mut neighbour.cover {
                cover.ends = None;
            }
            if neighbour.is_shut() {
                lost += neighbour.egress.clear() as u64;
            }
        }
        self.own.counters.drop_out(DropReason::CoverRequired, lost);
        self.refresh();
    }

    /// Handles a neighbour that keeps its schedule regardless of losses: this node does so too.
    pub(super) fn keep_cover(&mut self, now: Time, from: LinkId) -> Result<(), DropReason> {
        let neighbour = self.neighbours.get(from).ok_or(DropReason::UnknownPeer)?;
        let off = neighbour.cover.as_ref().filter(|cover| cover.off.is_some());
        if let Some(tier) = off.map(|cover| cover.schedule.tier()) {
            self.set_cover(now, from, Some(tier));
        }
        let cover = self.neighbours.get_mut(from).and_then(|neighbour| neighbour.cover.as_mut());
        if let Some(cover) = cover {
            (cover.kept, cover.ends) = (true, None);
        }
        Ok(())
    }
}
