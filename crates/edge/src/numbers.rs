//! The numbers that packets for hidden hosts get.

use shoal_crypto::Rng;
use shoal_session::Table;
use shoal_wire::ip;

use crate::book::HostId;

/// The next number of each stream to each host, 16 KiB for a host that packets went to. They
/// survive circuits and sessions, and are drawn anew for a host that comes again: what it remembers
/// of the time before is most likely far from them.
pub(crate) struct Numbers {
    rng: Rng,
    next: Table<HostId, Box<[u32; ip::STREAMS]>>,
}

impl Numbers {
    pub(crate) fn new(seed: [u8; 32]) -> Numbers {
        Numbers { rng: Rng::new(seed), next: Table::default() }
    }

    /// The next numbers of a host's streams.
    pub(crate) fn of(&mut self, host: HostId) -> &mut [u32; ip::STREAMS] {
        if self.next.get(host).is_none() {
            let first = core::array::from_fn(|_| self.rng.u32() % ip::NUMBERS);
            self.next.put(host, Box::new(first));
        }
        self.next.get_mut(host).expect("it is there, or was put there")
    }

    pub(crate) fn forget(&mut self, host: HostId) {
        self.next.remove(host);
    }
}
