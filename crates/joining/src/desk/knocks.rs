//! Knocks that came before.
//!
//! Whoever sees a knock on its way can send copies from any address. Each would cost public-key
//! work and a visit, and would draw a welcome, so that the registrar would serve as a reflector and
//! newcomers would find the table of visits full. So a knock is read few times, whoever sends it.

use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::hash;
use shoal_session::outer::Lead;
use shoal_wire::DropReason;

/// Names a knock: a hash of all that it says. Its leading bytes alone would not do: whoever has an
/// invite could seal another knock behind them and have the true one taken for a copy.
type Name = [u8; 32];

/// Knocks that are remembered: those of 80 s at least, at the pace at which they are read.
const KNOCKS_MAX: usize = 8_192;
/// Times that a knock is read. A newcomer sends the same one to each endpoint of the registrar, so
/// it may come from several addresses, and from another one after a change of network.
const READS_MAX: u8 = 4;

/// The last knocks, and how often each was read.
#[derive(Default)]
pub(super) struct Knocks {
    order: VecDeque<Name>,
    reads: BTreeMap<Name, u8>,
}

impl Knocks {
    /// The name of a knock that passed the door secret, if it may be read once more.
    ///
    /// Errors: `replayed_handshake`.
    pub(super) fn look(&self, lead: &Lead, body: &[u8]) -> Result<Name, DropReason> {
        let name = hash(&[&lead[..], body].concat());
        let reads = self.reads.get(&name).copied().unwrap_or(0);
        (reads < READS_MAX).then_some(name).ok_or(DropReason::ReplayedHandshake)
    }

    /// Notes that a knock is read. The oldest one is forgotten for it.
    pub(super) fn note(&mut self, name: Name) {
        let reads = self.reads.entry(name).or_insert(0);
        *reads = reads.saturating_add(1);
        if *reads > 1 {
            return;
        }
        self.order.push_back(name);
        if self.order.len() > KNOCKS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.reads.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_knock_is_read_few_times_and_the_memory_is_bounded() {
        let mut knocks = Knocks::default();
        for _ in 0..READS_MAX {
            let name = knocks.look(&[1; 16], b"body").unwrap();
            knocks.note(name);
        }
        assert_eq!(knocks.look(&[1; 16], b"body"), Err(DropReason::ReplayedHandshake));
        assert!(knocks.look(&[1; 16], b"another behind the same leading bytes").is_ok());
        for n in 0..KNOCKS_MAX as u32 {
            let name = knocks.look(&[2; 16], &n.to_be_bytes()).unwrap();
            knocks.note(name);
        }
        assert_eq!((knocks.order.len(), knocks.reads.len()), (KNOCKS_MAX, KNOCKS_MAX));
        assert!(knocks.look(&[1; 16], b"body").is_ok(), "the oldest gave way");
    }
}
