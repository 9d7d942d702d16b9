//! Addresses that hop, as somebody sees them who watches all wires: two neighbours of a node never
//! see the same address of it, each is used for one epoch, and what comes to one that is over
//! reaches no session.
//!
//! An address at which two neighbours meet begins with a handshake, or with data that fell back
//! there; others begin with a step of a hop. When an epoch begins nobody is told here: an address
//! is known from the first frame that bears it. Both ends leave an address before three quarters of
//! the next epoch are over, and take frames in there for an epoch more.

use core::time::Duration;
use std::collections::BTreeMap;
use std::net::SocketAddr;

use shoal_relay::hop::EPOCH;
use shoal_wire::Time;

use super::moves;

pub(crate) const SHARED: &str = "two neighbours of a node never see the same address of it";
pub(crate) const ONCE: &str = "an address that hops is used for one epoch alone";
pub(crate) const STALE: &str = "what comes to an address that is over reaches no session";
pub(crate) const MISSED: &str = "what a neighbour sends to an address that hops is taken in";

/// Clocks that drift by 100 ppm differ by less after three epochs of an hour; frames that are under
/// way, and nodes that stand still for a moment, are late by less.
const SLACK: Duration = Duration::from_secs(8);

/// For how long an address at which two neighbours meet is used: an epoch by either clock, which
/// differ by less than one, and what the requests of a handshake try beside it.
const MEETING: Duration = EPOCH.saturating_mul(2);

/// An address of a node.
struct Use {
    /// The neighbour that sees it.
    far: usize,
    interval: Duration,
    /// Both ends meet there.
    meets: bool,
    first: Time,
    /// Which one it is, over all nodes, in the order in which they were seen.
    number: u64,
}

/// All addresses that hop, of all nodes.
pub(crate) struct Addresses {
    /// As [`MEETING`], and more where clocks differ by more than an epoch.
    meeting: Duration,
    known: BTreeMap<SocketAddr, Use>,
    /// Those of each node, in the order in which they were seen.
    of: Vec<Vec<SocketAddr>>,
}

impl Addresses {
    /// Of so many nodes, whose clocks are off by so much at most.
    pub(crate) fn new(nodes: usize, off: Duration) -> Addresses {
        let more = if 2 * off < EPOCH { Duration::ZERO } else { off };
        Addresses { meeting: MEETING + more, known: BTreeMap::new(), of: vec![Vec::new(); nodes] }
    }

    /// A frame goes between this address of a node and one of another: a link's, between whose two
    /// ends an address is used for `interval`, or with none one at which both meet.
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
            Use { far, interval, meets, first: now, number }
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

    /// Whether a frame bore it.
    pub(crate) fn knows(&self, at: SocketAddr) -> bool {
        self.known.contains_key(&at)
    }

    /// Whether two neighbours meet there, so that data may go there at once.
    pub(crate) fn meets(&self, at: SocketAddr) -> bool {
        self.known.get(&at).is_some_and(|known| known.meets)
    }

    /// Which of all addresses it is, in the order in which they were seen.
    pub(crate) fn number(&self, at: SocketAddr) -> u64 {
        self.known.get(&at).map_or(0, |known| known.number)
    }

    /// Whether a frame that comes to this address is to be dropped: nobody was told of it, or its
    /// time is over for certain.
    pub(crate) fn is_over(&self, now: Time, at: SocketAddr) -> bool {
        let lives = |known: &Use| now.since(known.first) <= 3 * known.interval + SLACK;
        !self.known.get(&at).is_some_and(lives)
    }

    /// An address of a node, by a number that may be any; none before the first was seen.
    pub(crate) fn pick(&self, node: usize, number: u64) -> Option<SocketAddr> {
        let all = &self.of[node];
        all.get(number.checked_rem(all.len() as u64)? as usize).copied()
    }

    /// How many were seen.
    pub(crate) fn count(&self) -> u64 {
        self.known.len() as u64
    }
}

/// Frames that a node was given, and how many of them it dropped for their address.
pub(crate) struct Taken {
    /// Those to addresses that are over.
    pub(crate) over: u64,
    pub(crate) dropped: u64,
    /// Those of handshakes that may have gone where the node is not, by a clock that is wrong.
    pub(crate) astray: u64,
    /// The attacker sent them.
    pub(crate) forged: bool,
    /// Nothing went wrong of late at the node and its neighbours.
    pub(crate) calm: bool,
}

/// Whether the node dropped what it had to, and no more.
pub(crate) fn check(taken: &Taken) -> Result<(), (&'static str, String)> {
    let Taken { over, dropped, astray, forged, calm } = *taken;
    if dropped < over {
        return Err((STALE, format!("{over} frames came there, {dropped} were dropped")));
    }
    if calm && !forged && dropped > astray {
        return Err((MISSED, format!("{dropped} frames were dropped")));
    }
    Ok(())
}

/// The end of a frame by which [`moves`] knows it.
pub(crate) fn tag(frame: &[u8]) -> moves::Tag {
    frame.last_chunk().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hops::address;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_address_has_one_neighbour_and_one_epoch() {
        let (mut all, now) = (Addresses::new(3, Duration::ZERO), Time::from_millis(10_000));
        let own = address((0, 0), 1);
        let rule = |result: Result<(), (&'static str, String)>| result.map_err(|seen| seen.0);
        let mut bears = |at, far| rule(all.bears(at, (own, 0), far, Some(SECOND)));
        assert_eq!([bears(now, 1), bears(now + 9 * SECOND, 1)], [Ok(()), Ok(())]);
        assert_eq!(bears(now + 11 * SECOND, 1), Err(ONCE));
        assert_eq!(bears(now, 2), Err(SHARED));
        assert!(!all.is_over(now + 11 * SECOND, own) && all.is_over(now + 12 * SECOND, own));
        assert!(all.is_over(now, address((0, 0), 2)), "it was never told");
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
            check(&Taken { over, dropped, astray: 0, forged, calm }).map_err(|seen| seen.0)
        };
        assert_eq!(rule(3, 2, true, true), Err(STALE));
        assert_eq!(rule(0, 1, false, true), Err(MISSED));
        assert_eq!([rule(0, 1, false, false), rule(3, 3, true, true)], [Ok(()), Ok(())]);
        assert_eq!(rule(0, 1, true, true), Ok(()), "whatever the attacker's age");
        let calls = Taken { over: 0, dropped: 2, astray: 2, forged: false, calm: true };
        assert!(check(&calls).is_ok() && check(&Taken { dropped: 3, ..calls }).is_err());
    }
}
