//! Counts of cells that left outside circuits, as workers report them to control.

use shoal_session::IdTable;

use crate::book::HostId;

/// Cells outside circuits of which a later worker keeps control uninformed.
const CLEAR_MAX: u64 = 1_024;

/// Cells that left for a host outside circuits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClearCells {
    /// Cells while the host was reached only over circuits: a fault.
    pub since_hidden: u64,
    /// Cells before.
    pub before: u64,
}

impl ClearCells {
    pub(crate) fn add(&mut self, more: ClearCells) {
        self.since_hidden += more.since_hidden;
        self.before += more.before;
    }

    /// True if control should know of them now.
    fn is_due(&self) -> bool {
        self.since_hidden > 0 || self.before >= CLEAR_MAX
    }
}

/// Counts of one worker that control does not know yet.
///
/// A batch of cells costs the same for any number of hosts.
#[derive(Default)]
pub(crate) struct ClearCounts {
    counts: IdTable<HostId, ClearCells>,
    /// Hosts with a count, each once.
    hosts: Vec<HostId>,
    /// True if control should know of some count now.
    is_due: bool,
}

impl ClearCounts {
    pub(crate) fn add(&mut self, host: HostId, more: ClearCells) {
        if self.counts.get(host).is_none() {
            self.hosts.push(host);
        }
        let count = self.counts.get_or_default(host);
        count.add(more);
        self.is_due |= count.is_due();
    }

    /// Gives the counts that are due. Returns true if `tell` took them all.
    pub(crate) fn tell(&mut self, mut tell: impl FnMut(HostId, ClearCells) -> bool) -> bool {
        let ClearCounts { counts, hosts, is_due } = self;
        if !*is_due {
            return true;
        }
        *is_due = false;
        hosts.retain(|&host| {
            // The number of a removed host may belong to another host by now.
            let Some(&count) = counts.get(host) else { return false };
            let is_told = count.is_due() && tell(host, count);
            if is_told {
                counts.remove(host);
            }
            *is_due |= count.is_due() && !is_told;
            !is_told
        });
        !*is_due
    }

    /// Takes a count, due or not.
    pub(crate) fn pop(&mut self) -> Option<(HostId, ClearCells)> {
        while let Some(host) = self.hosts.pop() {
            if let Some(count) = self.counts.remove(host) {
                return Some((host, count));
            }
        }
        self.is_due = false;
        None
    }
}

#[cfg(test)]
mod tests {
    use shoal_wire::Id;

    use super::*;

    fn host(number: u32) -> HostId {
        HostId::from_bits(number)
    }

    #[test]
    fn control_learns_of_each_count_once_and_of_small_ones_late() {
        let mut counts = ClearCounts::default();
        let before = |before| ClearCells { since_hidden: 0, before };
        counts.add(host(1), before(CLEAR_MAX - 1));
        counts.add(host(2), before(7));
        assert!(counts.tell(|_, _| panic!("nothing is due")));
        counts.add(host(1), before(1));
        assert!(!counts.tell(|_, _| false), "control is busy");
        let mut told = Vec::new();
        assert!(counts.tell(|host, count| {
            told.push((host, count));
            true
        }));
        assert_eq!(told, [(host(1), before(CLEAR_MAX))]);
        let fault = ClearCells { since_hidden: 1, before: 0 };
        counts.add(host(3), fault);
        told.clear();
        assert!(counts.tell(|host, count| {
            told.push((host, count));
            true
        }));
        assert_eq!(told, [(host(3), fault)], "a fault is due at once");
        assert_eq!((counts.pop(), counts.pop()), (Some((host(2), before(7))), None));
    }

    #[test]
    fn a_host_does_not_inherit_the_count_of_an_earlier_owner() {
        let mut counts = ClearCounts::default();
        counts.add(host(1), ClearCells { since_hidden: 0, before: 5 });
        let next = host(1).successor();
        counts.add(next, ClearCells { since_hidden: 0, before: 1 });
        let all: Vec<_> = core::iter::from_fn(|| counts.pop()).collect();
        assert_eq!(all, [(next, ClearCells { since_hidden: 0, before: 1 })]);
    }
}
