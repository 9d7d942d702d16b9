//! A host at two routers: the relay chooses the router, and the edge tells other hosts.

use shoal_onion::pool::HostHomes;
use shoal_wire::{Address, Time};

use crate::control::Control;
use crate::shell::Shell;

impl<S: Shell> Control<S> {
    /// Sets the address of this host at another router: see `Relay::set_second`.
    pub fn set_second(&mut self, second: Option<Address>) {
        self.relay.set_second(second);
    }

    /// Addresses at which this host's circuits may begin.
    pub(crate) fn homes(&self) -> HostHomes {
        let (addresses, in_use) = (self.relay.addresses(), self.relay.home());
        let other = addresses.other(in_use);
        let other_is_up = other.is_some_and(|other| self.relay.is_up_at(other));
        HostHomes { addresses, in_use, other_is_up }
    }

    /// Tells the edge if its cells leave from another address of this host than before.
    pub(crate) fn follow_uplink(&mut self, now: Time) {
        let home = self.relay.home();
        let former = core::mem::replace(&mut self.home, home);
        if former != home {
            self.edge.handle_move(now, former);
        }
    }
}

#[cfg(test)]
mod tests;
