//! Every drop has a reason: what came in went on or was dropped by name, and what was to go out
//! went, waits, or was dropped by name. The same for all wires together.

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
    /// Taken in: control, keepalives, handshakes, parts, cells for this node, cells to pass on.
    pub(crate) handled: u64,
    /// On their way from the worker that took them off its socket to the one that handles them.
    pub(crate) coming: u64,
    /// Dropped by name before they were handled.
    pub(crate) dropped_in: u64,
    /// Parts of frames that came in, frames that they made whole, and those that were given up.
    pub(crate) parts: u64,
    pub(crate) wholes: u64,
    pub(crate) given_up: u64,
    /// Frames that may wait for their other parts.
    pub(crate) half_max: u64,
    /// Cells that holds took in, that they let go or gave up, and that they have.
    pub(crate) held: u64,
    pub(crate) released: u64,
    pub(crate) holding: u64,
    /// Handed to an egress, and those of them that were cut into parts.
    pub(crate) dispatched: u64,
    pub(crate) cut: u64,
    pub(crate) handshakes_out: u64,
    /// In an egress, or on their way back to one.
    pub(crate) waiting: u64,
    /// Dropped by name after they were dispatched.
    pub(crate) dropped_out: u64,
}

/// Parts of a frame.
const PARTS: u64 = shoal_link::parts::PARTS as u64;

/// Says which account doesn't balance, if one doesn't.
pub(crate) fn check(a: &Account) -> Result<(), String> {
    let left = a.frames_out.saturating_sub(a.handshakes_out);
    let out = a.dispatched + (PARTS - 1) * a.cut;
    let half = a.parts.checked_sub(PARTS * a.wholes);
    let half_most = (PARTS - 1) * (a.given_up + a.half_max);
    let faults = [
        (a.delivered == a.frames_in, "frames that were delivered are not those that came in"),
        (a.taken == a.frames_out, "frames that went out are not those that the wires took"),
        (
            a.frames_in + a.wholes == a.handled + a.coming + a.dropped_in,
            "frames that came in vanished without a reason",
        ),
        (half.is_some_and(|half| half <= half_most), "parts of frames vanished without a reason"),
        (a.held == a.released + a.holding, "cells vanished in a hold without a reason"),
        (
            out == left + a.waiting + a.dropped_out,
            "frames that were to go out vanished without a reason",
        ),
    ];
    match faults.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, what)) => Err(format!("{what}: {a:?}")),
    }
}

/// The account of all wires: counts of frames since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wired {
    /// Put on a wire, copies and replays included.
    pub(crate) put: u64,
    /// Lost there.
    pub(crate) lost: u64,
    /// Handed to a node.
    pub(crate) delivered: u64,
    /// Arrived at a node that was down or stood still.
    pub(crate) missed: u64,
    /// Under way.
    pub(crate) flying: u64,
}

/// Says that frames vanished between nodes, if they did.
pub(crate) fn check_wires(w: &Wired) -> Result<(), String> {
    if w.put == w.lost + w.delivered + w.missed + w.flying {
        return Ok(());
    }
    Err(format!("frames vanished on the wires: {w:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_account_must_balance() {
        let good = Account {
            delivered: 14,
            taken: 9,
            frames_in: 14,
            frames_out: 9,
            handled: 12,
            coming: 2,
            dropped_in: 1,
            parts: 4,
            wholes: 1,
            given_up: 0,
            half_max: 16,
            held: 6,
            released: 4,
            holding: 2,
            dispatched: 8,
            cut: 1,
            handshakes_out: 1,
            waiting: 1,
            dropped_out: 1,
        };
        assert_eq!(check(&good), Ok(()));
        let bad = [
            Account { delivered: 15, ..good },
            Account { taken: 8, ..good },
            Account { handled: 11, ..good },
            Account { handled: 13, ..good },
            Account { coming: 1, ..good },
            Account { dropped_in: 2, ..good },
            Account { parts: 2, ..good },
            Account { parts: 40, ..good },
            Account { held: 7, ..good },
            Account { released: 5, ..good },
            Account { dispatched: 9, ..good },
            Account { waiting: 3, ..good },
            Account { dropped_out: 0, ..good },
        ];
        for account in bad {
            assert!(check(&account).is_err(), "{account:?}");
        }
    }

    #[test]
    fn frames_that_vanish_on_the_wires_are_missed() {
        let good = Wired { put: 10, lost: 1, delivered: 6, missed: 1, flying: 2 };
        assert_eq!(check_wires(&good), Ok(()));
        assert!(check_wires(&Wired { delivered: 5, ..good }).is_err());
        assert!(check_wires(&Wired { flying: 3, ..good }).is_err());
    }
}
