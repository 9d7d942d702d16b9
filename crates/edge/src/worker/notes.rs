//! Notes of a worker for control: traffic with hosts, and cells outside circuits.

use shoal_crypto::Ciphers;
use shoal_session::SessionShard;
use shoal_wire::Address;

use super::EdgeWorker;
use crate::book::HostId;
use crate::clear::ClearCells;

/// An observation of a worker for control, at most once per batch.
#[derive(Clone, Copy, Debug)]
pub enum EdgeNote {
    Session(shoal_session::SessionUse),
    Host { host: HostId, what: HostTraffic },
    Clear { host: HostId, clear: ClearCells },
}

/// Traffic with a host that a worker observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostTraffic {
    /// Cells to the host went through routers.
    Routed,
    /// Cells to the host went over a direct link.
    Direct,
    /// Cells of the host came over a direct link.
    Heard,
    /// Cells to the host could not be sealed: it needs a session.
    Unsealed,
    /// The host's newest cell came from this one of its two addresses, and answers go there.
    Source(Address),
}

impl EdgeWorker {
    /// Notes traffic with a host, each kind once.
    pub(super) fn note(&mut self, host: HostId, what: HostTraffic) {
        use HostTraffic::{Heard, Source, Unsealed};
        let wanted = self.is_asked || matches!(what, Heard | Unsealed | Source(_));
        if wanted && !self.seen.contains(&(host, what)) {
            self.seen.push((host, what));
        }
    }

    /// Counts cells that left outside circuits.
    pub(crate) fn note_clear(&mut self, host: HostId, cells: usize) {
        let cells = cells as u64;
        let more = match self.book.is_hidden(host) {
            true => ClearCells { since_hidden: cells, before: 0 },
            false => ClearCells { since_hidden: 0, before: cells },
        };
        self.clear.add(host, more);
    }

    /// Gives control the notes since the last call. Notes that `tell` refuses are kept for the next
    /// call. Returns true if all were taken.
    pub fn tell<C: Ciphers>(
        &mut self,
        shard: &mut SessionShard<C>,
        mut tell: impl FnMut(EdgeNote) -> bool,
    ) -> bool {
        let all = shard.tell(|note| tell(EdgeNote::Session(note)));
        self.seen.retain(|&(host, what)| !tell(EdgeNote::Host { host, what }));
        let is_told = self.clear.tell(|host, clear| tell(EdgeNote::Clear { host, clear }));
        all && self.seen.is_empty() && is_told
    }

    /// Takes the next note about a host.
    pub(crate) fn poll_note(&mut self) -> Option<EdgeNote> {
        let seen = self.seen.pop().map(|(host, what)| EdgeNote::Host { host, what });
        seen.or_else(|| self.clear.pop().map(|(host, clear)| EdgeNote::Clear { host, clear }))
    }
}
