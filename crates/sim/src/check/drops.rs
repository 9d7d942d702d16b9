//! Every drop has a reason. Frames that came in were handled or dropped with a reason. Frames to be
//! sent were sent, are waiting, or were dropped with a reason. All wires together are checked
//! likewise.

/// A node's accounts of one run, in frames.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FrameAccount {
    /// Frames that the wires delivered to the node.
    pub(crate) delivered: u64,
    /// Frames that the wires took from the node.
    pub(crate) taken: u64,
    /// The node's own counters.
    pub(crate) frames_in: u64,
    pub(crate) frames_out: u64,
    /// Frames handled: control, keepalives, handshakes, parts, cells for this node, cells to
    /// forward.
    pub(crate) handled: u64,
    /// Frames in transit from the worker that received them to the worker that handles them.
    pub(crate) coming: u64,
    /// Frames dropped with a reason before they were handled.
    pub(crate) dropped_in: u64,
    /// Parts that came in, frames assembled from them, and incomplete frames given up.
    pub(crate) parts: u64,
    pub(crate) wholes: u64,
    pub(crate) given_up: u64,
    /// Largest number of incomplete frames.
    pub(crate) half_max: u64,
    /// Cells that entered holds, that left them or were given up, and that are still there.
    pub(crate) held: u64,
    pub(crate) released: u64,
    pub(crate) holding: u64,
    /// Frames handed to an egress, and those of them that were cut into parts.
    pub(crate) dispatched: u64,
    pub(crate) cut: u64,
    pub(crate) handshakes_out: u64,
    /// Frames in an egress, or in transit back to one.
    pub(crate) waiting: u64,
    /// Frames dropped with a reason after they were dispatched.
    pub(crate) dropped_out: u64,
}

/// Parts per frame.
const PARTS: u64 = shoal_link::parts::PARTS as u64;

/// Returns the first account that doesn't balance.
pub(crate) fn check(a: &FrameAccount) -> Result<(), String> {
    let left = a.frames_out.saturating_sub(a.handshakes_out);
    let out = a.dispatched + (PARTS - 1) * a.cut;
    let half = a.parts.checked_sub(PARTS * a.wholes);
    let half_most = (PARTS - 1) * (a.given_up + a.half_max);
    let faults = [
        (a.delivered == a.frames_in, "the counts of delivered and received frames differ"),
        (a.taken == a.frames_out, "the counts of sent frames and of frames on the wires differ"),
        (
            a.frames_in + a.wholes == a.handled + a.coming + a.dropped_in,
            "frames that came in vanished without a reason",
        ),
        (half.is_some_and(|half| half <= half_most), "parts of frames vanished without a reason"),
        (a.held == a.released + a.holding, "cells vanished in a hold without a reason"),
        (out == left + a.waiting + a.dropped_out, "frames to be sent vanished without a reason"),
    ];
    match faults.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, what)) => Err(format!("{what}: {a:?}")),
    }
}

/// The account of all wires: counts of frames since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WireAccount {
    /// Frames put on a wire, copies and replays included.
    pub(crate) put: u64,
    /// Frames lost on a wire.
    pub(crate) lost: u64,
    /// Frames handed to a node.
    pub(crate) delivered: u64,
    /// Frames that arrived at a node that was down or paused.
    pub(crate) missed: u64,
    /// Frames in flight.
    pub(crate) flying: u64,
}

/// Checks that no frames vanished between nodes.
pub(crate) fn check_wires(w: &WireAccount) -> Result<(), String> {
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
        let good = FrameAccount {
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
            FrameAccount { delivered: 15, ..good },
            FrameAccount { taken: 8, ..good },
            FrameAccount { handled: 11, ..good },
            FrameAccount { handled: 13, ..good },
            FrameAccount { coming: 1, ..good },
            FrameAccount { dropped_in: 2, ..good },
            FrameAccount { parts: 2, ..good },
            FrameAccount { parts: 40, ..good },
            FrameAccount { held: 7, ..good },
            FrameAccount { released: 5, ..good },
            FrameAccount { dispatched: 9, ..good },
            FrameAccount { waiting: 3, ..good },
            FrameAccount { dropped_out: 0, ..good },
        ];
        for account in bad {
            assert!(check(&account).is_err(), "{account:?}");
        }
    }

    #[test]
    fn frames_that_vanish_on_the_wires_are_missed() {
        let good = WireAccount { put: 10, lost: 1, delivered: 6, missed: 1, flying: 2 };
        assert_eq!(check_wires(&good), Ok(()));
        assert!(check_wires(&WireAccount { delivered: 5, ..good }).is_err());
        assert!(check_wires(&WireAccount { flying: 3, ..good }).is_err());
    }
}
