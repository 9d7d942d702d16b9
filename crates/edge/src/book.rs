//! The book: addresses of the hosts.

use std::collections::BTreeMap;

use shoal_session::{IdTable, PeerId};
use shoal_transfer::PeerKey;
use shoal_wire::Address;

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
    address: Address,
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
        self.entries.get(host).map(|entry| entry.address)
    }

    /// Address to which cells for a host may be routed. None for an unknown host and for a hidden
    /// one.
    #[inline]
    pub(crate) fn routed(&self, host: HostId) -> Option<Address> {
        self.entries.get(host).filter(|entry| !entry.hidden).map(|entry| entry.address)
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
        self.by_address.values().copied()
    }

    /// Sets the address of a peer, in place of its former one.
    pub(crate) fn put(&mut self, peer: PeerId, address: Address) -> HostId {
        let host = HostId::from(peer);
        self.leave(host);
        let hidden = self.is_hidden(host);
        self.entries.put(host, HostAddress { address, hidden });
        self.by_address.insert(address, host);
        host
    }

    pub(crate) fn remove(&mut self, host: HostId) {
        self.leave(host);
        self.entries.remove(host);
    }

    /// Frees the address of a host, unless another host has it already: two hosts may have
    /// exchanged their addresses in one list.
    fn leave(&mut self, host: HostId) {
        if let Some(address) = self.address(host)
            && self.host(address) == Some(host)
        {
            self.by_address.remove(&address);
        }
    }
}
