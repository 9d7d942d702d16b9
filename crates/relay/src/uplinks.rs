//! A host at two routers (docs/design/decisions/two-routers.md).
//!
//! The host has a link to each router, and an address behind each. Cells leave over the router of
//! their source address, since a router accepts no other source. New cells get the source of the
//! uplink: the link in use while it is up, else another one.

use shoal_crypto::Ciphers;
use shoal_wire::{Address, LinkId, NodeAddresses};

use crate::Relay;

impl<C: Ciphers> Relay<C> {
    /// Sets the address of this host at another router. The links to both routers must be added as
    /// any link. A router has no second address.
    pub fn set_second(&mut self, second: Option<Address>) {
        let second = second.filter(|_| !self.config.address.is_router());
        if self.second == second {
            return;
        }
        self.second = second;
        for link in self.neighbours.routers() {
            if let Some(neighbour) = self.neighbours.get_mut(link) {
                neighbour.liveness.set_replaceable(second.is_some());
            }
        }
        self.refresh();
    }

    /// This node's addresses.
    pub fn addresses(&self) -> NodeAddresses {
        NodeAddresses { first: self.config.address, second: self.second }
    }

    /// Source address of this node's own cells to `dst`. Cells leave over the link of the router
    /// that knows this address.
    pub fn source(&self, dst: Address) -> Address {
        self.own.source(dst).unwrap_or(self.config.address)
    }

    /// The address at the router through which this host sends.
    pub fn home(&self) -> Address {
        self.own.view.home().unwrap_or(self.config.address)
    }

    /// True if the link to the router of this address of the host is up.
    pub fn is_up_at(&self, address: Address) -> bool {
        let router = Address::new(address.router, 0);
        let links = self.neighbours.iter().map(|(_, neighbour)| neighbour);
        links.filter(|neighbour| neighbour.address == router).any(|to| to.liveness.is_up())
    }

    /// Number of full data frames from this address to `dst` that may be sent now. See
    /// [`Relay::room`].
    pub fn room_from(&self, src: Address, dst: Address) -> usize {
        self.room_on(self.hop_from(src, dst))
    }

    /// True if the backlog on the link for cells from this address to `dst` is so long that cells
    /// are marked.
    pub fn is_marking_from(&self, src: Address, dst: Address) -> bool {
        let neighbour = self.hop_from(src, dst).and_then(|link| self.neighbours.get(link));
        neighbour.is_some_and(|neighbour| neighbour.egress.is_marking())
    }

    fn hop_from(&self, src: Address, dst: Address) -> Option<LinkId> {
        self.known().origin_hop_from(src, dst)
    }
}
