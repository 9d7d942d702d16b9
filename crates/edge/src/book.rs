//! The book: addresses of the hosts.

use std::collections::BTreeMap;

use shoal_session::{IdTable, PeerId};
use shoal_transfer::PeerKey;
use shoal_wire::{Address, NodeAddresses};

shoal_wire::id! {
    /// A host in this edge's table.
    HostId
}

/// A host has the id of its session's peer.
impl From<PeerId> for HostId {
    fn from(peer: PeerId) -> HostId {
        HostId(peer.bits())
    }
}

impl From<HostId> for PeerId {
    fn from(host: HostId) -> PeerId {
        PeerId::from_bits(host.0)
    }
}

impl From<PeerKey> for HostId {
    fn from(key: PeerKey) -> HostId {
        HostId(key.0)
    }
}

impl From<HostId> for PeerKey {
    fn from(host: HostId) -> PeerKey {
        PeerKey(host.0)
    }
}

/// Addresses of the hosts. Control changes its own copy; a worker's copy never changes.
#[derive(Clone, Debug, Default)]
pub struct HostDirectory {
    by_address: BTreeMap<Address, HostId>,
    entries: IdTable<HostId, HostAddress>,
}

#[derive(Clone, Copy, Debug)]
struct HostAddress {
    addresses: NodeAddresses,
    /// True if the host is reached only over circuits.
    hidden: bool,
}

impl HostDirectory {
    /// The host at an address.
    pub fn host(&self, address: Address) -> Option<HostId> {
        self.by_address.get(&address).copied()
    }

    /// Address of a host; None if it was removed.
    pub fn address(&self, host: HostId) -> Option<Address> {
        self.entries.get(host).map(|entry| entry.addresses.first)
    }

    /// Both addresses of a host to which cells may be routed. None for an unknown host and for a
    /// hidden one.
    #[inline]
    pub(crate) fn routed_addresses(&self, host: HostId) -> Option<NodeAddresses> {
        self.entries.get(host).filter(|entry| !entry.hidden).map(|entry| entry.addresses)
    }

    /// First address to which cells for a host may be routed. None for an unknown host and for a
    /// hidden one.
    #[inline]
    pub(crate) fn routed(&self, host: HostId) -> Option<Address> {
        self.routed_addresses(host).map(|addresses| addresses.first)
    }

    /// True if the host is reached only over circuits.
    #[inline]
    pub(crate) fn is_hidden(&self, host: HostId) -> bool {
        self.entries.get(host).is_some_and(|entry| entry.hidden)
    }

    /// Sets whether the host is reached only over circuits.
    pub(crate) fn set_hidden(&mut self, host: HostId, hidden: bool) {
        if let Some(entry) = self.entries.get_mut(host) {
            entry.hidden = hidden;
        }
    }

    /// The host of this session peer, if it is in the book.
    pub(crate) fn of_peer(&self, peer: PeerId) -> Option<HostId> {
        let host = HostId::from(peer);
        self.address(host).map(|_| host)
    }

    /// The session peer of this host, if the host was not removed.
    pub(crate) fn peer(&self, host: HostId) -> Option<PeerId> {
        self.address(host).map(|_| host.into())
    }

    /// All hosts in the book.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        let all = self.by_address.iter();
        all.filter(|(at, host)| self.address(**host) == Some(**at)).map(|(_, host)| *host)
    }

    /// Sets the first address of a peer, in place of its former one. A second address stays, unless
    /// it belongs to another host by now.
    pub(crate) fn put(&mut self, peer: PeerId, address: Address) -> HostId {
        let host = HostId::from(peer);
        let is_own = |second: &Address| *second != address && self.host(*second) == Some(host);
        let second = self.second(host).filter(is_own);
        self.set(host, NodeAddresses { first: address, second });
        host
    }

    /// Address of a host at another router.
    pub(crate) fn second(&self, host: HostId) -> Option<Address> {
        self.entries.get(host)?.addresses.second
    }

    /// Sets the address of a host at another router.
    pub(crate) fn set_second(&mut self, host: HostId, second: Option<Address>) {
        if let Some(first) = self.address(host) {
            self.set(host, NodeAddresses { first, second });
        }
    }

    fn set(&mut self, host: HostId, addresses: NodeAddresses) {
        self.leave(host);
        let hidden = self.is_hidden(host);
        self.entries.put(host, HostAddress { addresses, hidden });
        self.by_address.extend(addresses.iter().map(|address| (address, host)));
    }

    pub(crate) fn remove(&mut self, host: HostId) {
        self.leave(host);
        self.entries.remove(host);
    }

    /// Frees the addresses of a host, unless another host has them already: two hosts may have
    /// exchanged their addresses in one list.
    fn leave(&mut self, host: HostId) {
        let addresses = self.entries.get(host).map(|entry| entry.addresses);
        for address in addresses.into_iter().flat_map(NodeAddresses::iter) {
            if self.host(address) == Some(host) {
                self.by_address.remove(&address);
            }
        }
    }
}
