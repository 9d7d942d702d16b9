//! Where the hosts are.

use std::collections::BTreeMap;

use shoal_wire::Address;

use crate::edge::HostId;

/// Addresses of the hosts. Control changes it; what a worker is given stays as it was.
#[derive(Clone, Debug, Default)]
pub struct Book {
    by_address: BTreeMap<Address, HostId>,
    /// By number.
    addresses: Vec<Option<Address>>,
}

impl Book {
    /// The host at an address.
    pub fn host(&self, address: Address) -> Option<HostId> {
        self.by_address.get(&address).copied()
    }

    /// Where a host is.
    pub fn address(&self, host: HostId) -> Option<Address> {
        self.addresses.get(host.0 as usize).copied().flatten()
    }

    /// All hosts that have an address of their own.
    pub(crate) fn hosts(&self) -> impl Iterator<Item = HostId> + '_ {
        self.by_address.values().copied()
    }

    /// Puts a host at an address, wherever it was.
    pub(crate) fn put(&mut self, host: HostId, address: Address) {
        self.remove(host);
        let at = host.0 as usize;
        self.addresses.resize(self.addresses.len().max(at + 1), None);
        self.addresses[at] = Some(address);
        self.by_address.insert(address, host);
    }

    /// Takes a host away from its address, unless another has moved there already: hosts of one
    /// list may have exchanged their places.
    pub(crate) fn remove(&mut self, host: HostId) {
        let known = self.addresses.get_mut(host.0 as usize).and_then(Option::take);
        if let Some(address) = known
            && self.host(address) == Some(host)
        {
            self.by_address.remove(&address);
        }
    }
}
