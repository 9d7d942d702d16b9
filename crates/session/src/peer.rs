//! What the machine keeps of one peer: some 300 bytes when idle.

use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::PublicKey;
use shoal_wire::Time;

use crate::cookie::Cookie;
use crate::gate::{Gate, Lead};
use crate::noise::Initiator;
use crate::slots::Index;

/// Requests whose reply may still come; a path slower than the retry interval needs more than one.
pub(crate) const ATTEMPTS_OPEN: usize = 4;
/// Sessions that are answered and not confirmed; mirrors [`ATTEMPTS_OPEN`] at the other end.
pub(crate) const NEXT_MAX: usize = 4;
/// Replaced sessions that still open.
pub(crate) const OLD_MAX: usize = 3;
/// Incarnations remembered; the same peer must restart more often than this, and its clock be set
/// back, before a captured request is answered again (and still changes nothing).
const RECORDS_MAX: usize = 16;

/// One request that is under way.
pub(crate) struct Attempt {
    pub(crate) number: u64,
    pub(crate) lead: Lead,
    pub(crate) token: Lead,
    pub(crate) gate: Gate,
    pub(crate) index: Index,
    pub(crate) epoch: u32,
    pub(crate) cookied: bool,
    pub(crate) initiator: Arc<Initiator>,
}

/// A handshake that we began.
pub(crate) struct Dial {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) sent: u8,
    pub(crate) wait: Duration,
    /// When to send again; `None` while the next request is being made.
    pub(crate) retry_at: Option<Time>,
    /// Number of the request that a job is making now.
    pub(crate) making: Option<u64>,
    /// Nobody asked for it: it only finds out whether full frames pass. Its requests are all full
    /// and follow each other quickly, so that loss alone seldom makes them all fail.
    pub(crate) look: bool,
}

/// Keepalives still to be asked for, so that one lost frame leaves nobody on the old keys.
#[derive(Clone, Copy)]
pub(crate) struct Nudge {
    pub(crate) at: Time,
    pub(crate) wait: Duration,
    pub(crate) left: u8,
}

/// When to ask again whether a path carries full frames. A handshake in parts may mean that it does
/// not, or that full requests were lost for another reason; data in parts would then be lost three
/// times as often, until the next handshake.
#[derive(Clone, Copy, Default)]
pub(crate) struct Recheck {
    pub(crate) at: Option<Time>,
    /// The wait before the last one; zero if there was none since full frames passed.
    wait: Duration,
}

impl Recheck {
    /// The next one: after `first`, then after twice the wait before, and not where new keys, after
    /// `last`, come as soon.
    pub(crate) fn next(self, now: Time, first: Duration, last: Duration) -> Recheck {
        let wait = if self.wait.is_zero() { first } else { self.wait * 2 }.min(last);
        Recheck { at: (wait < last).then(|| now + wait), wait }
    }
}

/// One peer.
pub(crate) struct Peer<E> {
    pub(crate) key: PublicKey,
    pub(crate) endpoint: Option<E>,
    /// Seals.
    pub(crate) current: Option<Index>,
    /// Open only, until a time.
    pub(crate) old: Vec<(Index, Time)>,
    /// Answered and not confirmed: open only.
    pub(crate) next: Vec<(Index, Time)>,
    pub(crate) dial: Option<Dial>,
    /// When to begin our own handshake after all: it gave way to one of the peer's, which may come
    /// to nothing, and the owner still waits for a session or a failure.
    pub(crate) resume_at: Option<Time>,
    /// Not before this time, after nobody answered.
    pub(crate) dial_again: Time,
    pub(crate) nudge: Option<Nudge>,
    /// When to look whether the current session is idle enough to cool.
    pub(crate) cool_at: Option<Time>,
    /// The path to it carries no full frame, as far as the last handshake showed.
    pub(crate) small: bool,
    /// The same, because the owner says so.
    pub(crate) always_small: bool,
    /// The device refused a full frame, so that no loss explains why handshakes go in parts.
    pub(crate) refused: bool,
    pub(crate) recheck: Recheck,
    pub(crate) cookie: Option<(Cookie, Time)>,
    records: Vec<(u64, u64)>,
    /// What stands in the machine's timers for this peer.
    pub(crate) deadline: Option<Time>,
}

impl<E> Peer<E> {
    pub(crate) fn new(key: PublicKey) -> Peer<E> {
        Peer {
            key,
            endpoint: None,
            current: None,
            old: Vec::new(),
            next: Vec::new(),
            dial: None,
            resume_at: None,
            dial_again: Time::ZERO,
            nudge: None,
            cool_at: None,
            small: false,
            always_small: false,
            refused: false,
            recheck: Recheck::default(),
            cookie: None,
            records: Vec::new(),
            deadline: None,
        }
    }

    /// Whether a request of this incarnation and timestamp is new; remembers it if so.
    ///
    /// Timestamps are compared within one incarnation only. A clock that was set back before a
    /// restart therefore does no harm, while a captured request is known by its incarnation.
    pub(crate) fn is_fresh(&mut self, incarnation: u64, timestamp: u64) -> bool {
        if let Some(record) = self.records.iter_mut().find(|r| r.0 == incarnation) {
            let fresh = timestamp > record.1;
            record.1 = record.1.max(timestamp);
            return fresh;
        }
        if self.records.len() == RECORDS_MAX {
            self.records.remove(0);
        }
        self.records.push((incarnation, timestamp));
        true
    }

    /// Whether the `n`-th request of a handshake goes in parts. Where full frames passed before,
    /// the third and every other one after that find out whether they still do; where they did
    /// not, the first and every fourth after that; where that is what is looked for, all.
    pub(crate) fn is_small(&self, n: u8) -> bool {
        let look = self.dial.as_ref().is_some_and(|dial| dial.look);
        let try_other = if self.small { look || n % 4 == 1 } else { n >= 3 && n % 2 == 1 };
        self.always_small || self.small != try_other
    }

    /// The attempt of this number.
    pub(crate) fn attempt(&self, number: u64) -> Option<&Attempt> {
        self.dial.as_ref()?.attempts.iter().find(|a| a.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;

    #[test]
    fn requests_are_taken_once_and_in_order_also_when_the_clock_goes_back() {
        let mut peer: Peer<()> = Peer::new(Identity::from_seed([1; 32]).public());
        assert!(peer.is_fresh(1, 1_000));
        assert!(!peer.is_fresh(1, 1_000));
        assert!(!peer.is_fresh(1, 999));
        assert!(peer.is_fresh(1, 1_001));
        // Restarted, with the clock an hour back.
        assert!(peer.is_fresh(2, 10));
        assert!(!peer.is_fresh(2, 10));
        assert!(!peer.is_fresh(1, 1_001));
        assert!(peer.records.len() == 2);
        for incarnation in 3..100 {
            peer.is_fresh(incarnation, 5);
        }
        assert_eq!(peer.records.len(), RECORDS_MAX);
    }
}
