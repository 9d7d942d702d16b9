//! Every drop has a reason: what came in is accounted for, and what was to go out went, waits, or
//! was dropped by name.

/// A node's account of one run. All are counts of frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Account {
    /// That the wires delivered to it.
    pub(crate) delivered: u64,
    /// That its wires took from it.
    pub(crate) taken: u64,
    /// Its own counters.
    pub(crate) frames_in: u64,
    pub(crate) frames_out: u64,
    /// Taken in: control, keepalives, handshakes, cells for this node, cells to pass on.
    pub(crate) handled: u64,
    /// Handed to an egress.
    pub(crate) dispatched: u64,
    pub(crate) handshakes_out: u64,
    /// In an egress.
    pub(crate) waiting: u64,
    /// Dropped by name, of all reasons: some are of cells and messages inside of frames.
    pub(crate) dropped: u64,
}

/// Says which account doesn't balance, if one doesn't.
pub(crate) fn check(a: &Account) -> Result<(), String> {
    let within = |all: u64, known: u64| known <= all && all - known <= a.dropped;
    let left = (a.frames_out.saturating_sub(a.handshakes_out)).saturating_add(a.waiting);
    let faults = [
        (a.delivered == a.frames_in, "frames that were delivered are not those that came in"),
        (a.taken == a.frames_out, "frames that went out are not those that the wires took"),
        (within(a.frames_in, a.handled), "frames that came in vanished without a reason"),
        (within(a.dispatched, left), "frames that were to go out vanished without a reason"),
    ];
    match faults.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, what)) => Err(format!("{what}: {a:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_account_must_balance() {
        let good = Account {
            delivered: 10,
            taken: 7,
            frames_in: 10,
            frames_out: 7,
            handled: 9,
            dispatched: 8,
            handshakes_out: 1,
            waiting: 1,
            dropped: 1,
        };
        assert_eq!(check(&good), Ok(()));
        let bad = [
            Account { delivered: 11, ..good },
            Account { taken: 8, ..good },
            Account { handled: 8, ..good },
            Account { handled: 11, ..good },
            Account { dispatched: 9, ..good },
            Account { waiting: 3, ..good },
        ];
        for account in bad {
            assert!(check(&account).is_err(), "{account:?}");
        }
    }
}
