//! Rules for addresses that shift, as an observer of all wires sees them. Two neighbours of a node
//! never see the same address of it. Each address is used for one epoch. Frames to an expired
//! address reach no session.
//!
//! The first frame at a rendezvous address is a handshake, or data that fell back to it. The first
//! frame at any other address is a step of a shift. The checker is not told when an epoch begins:
//! it knows an address from the first frame that carries it. Both ends leave an address before
//! three quarters of the next epoch are over, and accept frames there for one more epoch.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use shoal_relay::shift::EPOCH;
use shoal_wire::Time;

use super::moves;

pub(crate) const SHARED: &str = "two neighbours of a node never see the same address of it";
pub(crate) const ONCE: &str = "an address that shifts is used for one epoch alone";
pub(crate) const STALE: &str = "frames to an expired address reach no session";
pub(crate) const MISSED: &str = "frames of a neighbour to an address that shifts are accepted";

/// Clocks that drift by 100 ppm differ by less than this after three epochs of an hour. Frames in
/// flight, and nodes that pause briefly, are late by less, too.
const SLACK: Duration = Duration::from_secs(8);

/// Time for which a rendezvous address is used. Each end uses it for one epoch of its own clock,
/// and the clocks differ by less than an epoch. Handshake requests also try the adjacent epochs.
const MEETING: Duration = EPOCH.saturating_mul(2);

/// An address of a node.
struct AddressUse {
    far: usize,
    interval: Duration,
    /// True for a rendezvous address.
    meets: bool,
    first: Time,
    /// Number of the address among all addresses of all nodes, in the order of first use.
    number: u64,
}

/// Shifting addresses of all nodes.
pub(crate) struct AddressChecker {
    /// [`MEETING`], or more if clocks differ by more than an epoch.
    meeting: Duration,
    known: BTreeMap<SocketAddr, AddressUse>,
    /// Addresses of each node, in the order of first use.
    of: Vec<Vec<SocketAddr>>,
}

impl AddressChecker {
    /// Addresses of `nodes` nodes whose clocks are wrong by at most `off`.
    pub(crate) fn new(nodes: usize, off: Duration) -> AddressChecker {
        let more = if 2 * off < EPOCH { Duration::ZERO } else { off };
        AddressChecker {
            meeting: MEETING + more,
            known: BTreeMap::new(),
            of: vec![Vec::new(); nodes],
        }
    }

    /// Notes a frame between address `at` of node `owner` and node `far`. `interval` is the epoch
    /// of their link; None for a rendezvous address.
    pub(crate) fn bears(
        &mut self,
        now: Time,
        (at, owner): (SocketAddr, usize),
        far: usize,
        interval: Option<Duration>,
    ) -> Result<(), (&'static str, String)> {
        let (meets, interval) = (interval.is_none(), interval.unwrap_or(self.meeting));
        let number = self.known.len() as u64;
        let known = self.known.entry(at).or_insert_with(|| {
            self.of[owner].push(at);
            AddressUse { far, interval, meets, first: now, number }
        });
        if known.far != far {
            return Err((SHARED, format!("node {owner}: {} and {far} see {at}", known.far)));
        }
        let used = now.since(known.first);
        if used > 2 * known.interval + SLACK {
            let seen = format!("node {owner}: {at}, of {:?}, after {used:?}", known.interval);
            return Err((ONCE, seen));
        }
        Ok(())
    }

    /// True if a frame carried this address.
    pub(crate) fn knows(&self, at: SocketAddr) -> bool {
        self.known.contains_key(&at)
    }

    /// True for a rendezvous address, to which data may go at once.
    pub(crate) fn meets(&self, at: SocketAddr) -> bool {
        self.known.get(&at).is_some_and(|known| known.meets)
    }

    /// Number of the address among all addresses, in the order of first use.
    pub(crate) fn number(&self, at: SocketAddr) -> u64 {
        self.known.get(&at).map_or(0, |known| known.number)
    }

    /// True if a frame to this address must be dropped: the address was never used, or it has
    /// certainly expired.
    pub(crate) fn is_over(&self, now: Time, at: SocketAddr) -> bool {
        let lives = |known: &AddressUse| now.since(known.first) <= 3 * known.interval + SLACK;
        !self.known.get(&at).is_some_and(lives)
    }

    /// An address of a node, chosen by any number. None before the first one is used.
    pub(crate) fn pick(&self, node: usize, number: u64) -> Option<SocketAddr> {
        let all = &self.of[node];
        all.get(number.checked_rem(all.len() as u64)? as usize).copied()
    }

    /// Number of addresses so far.
    pub(crate) fn count(&self) -> u64 {
        self.known.len() as u64
    }
}

/// Frames handed to a node, and how many of them it dropped because of their address.
pub(crate) struct AddressVerdict {
    /// Frames to expired addresses.
    pub(crate) over: u64,
    pub(crate) dropped: u64,
    /// Handshake frames that a wrong clock may have sent to an address where the node is not.
    pub(crate) astray: u64,
    /// True if the attacker sent the frames.
    pub(crate) forged: bool,
    /// True if no fault occurred recently at the node or its neighbours.
    pub(crate) calm: bool,
}

/// Checks that the node dropped the frames that it had to drop, and no others.
pub(crate) fn check(taken: &AddressVerdict) -> Result<(), (&'static str, String)> {
    let AddressVerdict { over, dropped, astray, forged, calm } = *taken;
    if dropped < over {
        return Err((STALE, format!("{over} frames came there, only {dropped} were dropped")));
    }
    if calm && !forged && dropped > astray {
        return Err((MISSED, format!("{dropped} frames of neighbours were dropped")));
    }
    Ok(())
}

/// The end of a frame by which [`moves`] knows it.
pub(crate) fn tag(frame: &[u8]) -> moves::FrameTag {
    frame.last_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shifts::address;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_address_has_one_neighbour_and_one_epoch() {
        let (mut all, now) = (AddressChecker::new(3, Duration::ZERO), Time::from_millis(10_000));
        let own = address((0, 0), 1);
        let rule = |result: Result<(), (&'static str, String)>| result.map_err(|seen| seen.0);
        let mut bears = |at, far| rule(all.bears(at, (own, 0), far, Some(SECOND)));
        assert_eq!([bears(now, 1), bears(now + 9 * SECOND, 1)], [Ok(()), Ok(())]);
        assert_eq!(bears(now + 11 * SECOND, 1), Err(ONCE));
        assert_eq!(bears(now, 2), Err(SHARED));
        assert!(!all.is_over(now + 11 * SECOND, own) && all.is_over(now + 12 * SECOND, own));
        assert!(all.is_over(now, address((0, 0), 2)), "an address that was never used");
        assert_eq!((all.pick(0, 5), all.pick(1, 5), all.count()), (Some(own), None, 1));
        let met = address((1, 0), 3);
        let mut bears = |at, interval| rule(all.bears(at, (met, 1), 2, interval));
        assert_eq!([bears(now, None), bears(now + 2 * MEETING, Some(SECOND))], [Ok(()), Ok(())]);
        assert_eq!(bears(now + 3 * MEETING, None), Err(ONCE));
        assert!(all.meets(met) && !all.meets(own));
    }

    #[test]
    fn what_is_over_is_dropped_and_what_neighbours_send_is_not() {
        let rule = |over, dropped, forged, calm| {
            check(&AddressVerdict { over, dropped, astray: 0, forged, calm }).map_err(|seen| seen.0)
        };
        assert_eq!(rule(3, 2, true, true), Err(STALE));
        assert_eq!(rule(0, 1, false, true), Err(MISSED));
        assert_eq!([rule(0, 1, false, false), rule(3, 3, true, true)], [Ok(()), Ok(())]);
        assert_eq!(rule(0, 1, true, true), Ok(()), "the attacker's frames may be dropped");
        let calls = AddressVerdict { over: 0, dropped: 2, astray: 2, forged: false, calm: true };
        assert!(check(&calls).is_ok() && check(&AddressVerdict { dropped: 3, ..calls }).is_err());
    }
}
