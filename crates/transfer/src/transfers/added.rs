//! Delays that mixes on the paths to peers add, and counts of transfers.

use core::time::Duration;

use shoal_wire::Time;

use super::Transfers;
use crate::outgoing::{FileSender, TransferPlan};
use crate::types::{MixDelay, PeerKey};

impl Transfers {
    /// Interval at which progress is worth asking for.
    pub const PROGRESS_EVERY: Duration = Duration::from_millis(100);

    /// Running transfers of this node: sending, receiving.
    pub fn counts(&self) -> (usize, usize) {
        (self.out_ports.len(), self.in_ports.len())
    }

    /// Sets the delay that mixes on the path to a peer add, in each direction, until the next call.
    /// Zero, the default, means no mixes.
    pub fn set_added(&mut self, peer: PeerKey, added: MixDelay) {
        let before = match added == MixDelay::default() {
            true => self.added.remove(&peer),
            false => self.added.insert(peer, added),
        };
        if before.unwrap_or_default() != added {
            let of_it = self.outgoing.iter_mut().flatten().filter(|out| out.peer == peer);
            of_it.for_each(|out| out.set_added(added));
        }
    }

    /// A transfer that begins at `now`.
    pub(super) fn begin(&self, now: Time, plan: TransferPlan) -> FileSender {
        let added = self.added.get(&plan.peer).copied().unwrap_or_default();
        let mut outgoing = FileSender::new(plan, &self.config, now);
        outgoing.set_added(added);
        outgoing
    }
}
