//! What mixes on the way to peers add.

use shoal_wire::Time;

use super::Transfers;
use crate::outgoing::{Outgoing, Plan};
use crate::types::{Added, PeerKey};

impl Transfers {
    /// Says what mixes on the way to a peer add, each way; zero, as without a call, says that there
    /// are none. It counts until the next call.
    pub fn set_added(&mut self, peer: PeerKey, added: Added) {
        let before = match added == Added::default() {
            true => self.added.remove(&peer),
            false => self.added.insert(peer, added),
        };
        if before.unwrap_or_default() != added {
            let of_it = self.outgoing.iter_mut().flatten().filter(|out| out.peer == peer);
            of_it.for_each(|out| out.set_added(added));
        }
    }

    /// A transfer that begins at `now`.
    pub(super) fn begin(&self, now: Time, plan: Plan) -> Outgoing {
        let added = self.added.get(&plan.peer).copied().unwrap_or_default();
        let mut outgoing = Outgoing::new(plan, &self.config, now);
        outgoing.set_added(added);
        outgoing
    }
}
