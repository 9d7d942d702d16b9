//! Where the hosts are, and whose their numbers are.

use std::collections::BTreeMap;

use shoal_session::PeerId;
use shoal_transfer::PeerKey;
use shoal_wire::Address;

const NUMBER_BITS: u32 = 20;
/// Hosts at most.
pub(crate) const HOSTS_MAX: usize = 1 << NUMBER_BITS;
const GENERATION_BITS: u32 = 12;

/// A host in this edge's table.
///
/// ```text
/// generation 12 | number 20
/// ```
///
/// Numbers are those of the sessions' peers, and are used again. The generation tells their owners
/// apart: what waits in a ring, a note or a table after its host was removed names nobody, until
/// one number has had 4,096 more owners.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HostId(u32);

impl HostId {
    /// From [`HostId::bits`].
    pub const fn from_bits(bits: u32) -> HostId {
        HostId(bits)
    }

    /// For tables that know nothing of hosts.
    pub const fn bits(self) -> u32 {
        self.0
    }

    fn new(number: usize, generation: u32) -> HostId {
        let generation = generation & ((1 << GENERATION_BITS) - 1);
        HostId((generation << NUMBER_BITS) | number as u32)
    }

    /// Its place in tables of hosts.
    pub(crate) fn number(self) -> usize {
        (self.0 & ((1 << NUMBER_BITS) - 1)) as usize
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

/// One number: how many owners it had before, and where the present one is, if it has one.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    generation: u32,
    address: Option<Address>,
}

/// Addresses of the hosts. Control changes it; what a worker is given stays as it was.
#[derive(Clone, Debug, Default)]
pub struct Book {
    by_address: BTreeMap<Address, HostId>,
    /// By number.
    entries: Vec<Entry>,
}

impl Book {
    /// The host at an address.
    pub fn host(&self, address: Address) -> Option<HostId> {
        self.by_address.get(&address).copied()
    }

    /// Where a host is; nowhere if it was removed.
    pub fn address(&self, host: HostId) -> Option<Address> {
        let entry = self.entries.get(host.number())?;
        entry.address.filter(|_| HostId::new(host.number(), entry.generation) == host)
    }

    /// The host that a session's peer is.
    pub(crate) fn of_peer(&self, peer: PeerId) -> Option<HostId> {
        let number = peer.0 as usize;
        let entry = self.entries.get(number).filter(|entry| entry.address.is_some())?;
        Some(HostId::new(number, entry.generation))
    }

    /// The peer that a host is to the sessions, if it was not removed.
    pub(crate) fn peer(&self, host: HostId) -> Option<PeerId> {
        self.address(host).map(|_| PeerId(host.number() as u32))
    }

    /// All hosts that have an address of their own.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        self.by_address.values().copied()
    }

    /// Puts a peer at an address, wherever it was.
    pub(crate) fn put(&mut self, peer: PeerId, address: Address) -> HostId {
        let number = peer.0 as usize;
        if let Some(host) = self.of_peer(peer) {
            self.leave(host);
        }
        self.entries.resize(self.entries.len().max(number + 1), Entry::default());
        let entry = &mut self.entries[number];
        entry.address = Some(address);
        let host = HostId::new(number, entry.generation);
        self.by_address.insert(address, host);
        host
    }

    /// Forgets a host: its number is another's from now on.
    pub(crate) fn remove(&mut self, host: HostId) {
        self.leave(host);
        if self.address(host).is_some() {
            let entry = &mut self.entries[host.number()];
            *entry = Entry { generation: entry.generation + 1, address: None };
        }
    }

    /// Takes a host away from its address, unless another has moved there already: hosts of one
    /// list may have exchanged their places.
    fn leave(&mut self, host: HostId) {
        if let Some(address) = self.address(host)
            && self.host(address) == Some(host)
        {
            self.by_address.remove(&address);
        }
    }
}
