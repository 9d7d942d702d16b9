//! State of one peer: about 300 bytes when idle.

use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::{PublicKey, Secret};
use shoal_wire::{Time, shake};

use crate::config::SessionRole;
use crate::cookie::Cookie;
use crate::noise::Initiator;
use crate::outer::{Lead, OuterSeal};
use crate::process::Processes;
use crate::seen::HandshakeDigest;
use crate::slots::SessionIndex;
use crate::timers::NEXT_KEEP;

/// Open requests per handshake. A path slower than the retry interval needs more than one.
pub(crate) const ATTEMPTS_OPEN: usize = 4;
/// Answered but unconfirmed sessions; equals [`ATTEMPTS_OPEN`] of the other end.
pub(crate) const NEXT_MAX: usize = 4;
/// Replaced sessions that still open frames.
pub(crate) const OLD_MAX: usize = 3;
/// Responses accepted per request. Only the peer can seal a response, and each of its processes
/// answers a request once. Forged responses don't count.
pub(crate) const REPLIES_MAX: usize = 4;
/// An unconfirmed session younger than this is replaced only for a request with a newer timestamp.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);
/// Incarnations remembered. A node is locked out only if it restarts this often and then sets its
/// clock back. The lock-out ends when its clock has caught up.
const RECORDS_MAX: usize = 64;

/// One open request.
pub(crate) struct HandshakeAttempt {
    pub(crate) number: u64,
    /// Role of the session to be made.
    pub(crate) role: SessionRole,
    pub(crate) lead: Lead,
    pub(crate) token: Lead,
    pub(crate) outer: OuterSeal,
    pub(crate) index: SessionIndex,
    pub(crate) epoch: u32,
    /// The cookie in the request, or zeroes.
    pub(crate) cookie: Cookie,
    /// True if a cookie made this request leave early.
    pub(crate) hurried: bool,
    /// Number of further requests that cookie replies to this one made leave early.
    pub(crate) hurries: u8,
    pub(crate) initiator: Arc<Initiator>,
    /// Key of the response's seal, in addition to the outer seal's key.
    pub(crate) response_key: Secret<32>,
    /// Salts of the accepted responses.
    pub(crate) replies: Vec<[u8; shake::SALT_LEN]>,
}

/// A session whose request is answered, but under which no frame came yet. It only opens frames.
pub(crate) struct UnconfirmedSession {
    pub(crate) index: SessionIndex,
    /// Time of the answer.
    pub(crate) since: Time,
    /// Timestamp of the request, and the process that made it.
    pub(crate) timestamp: u64,
    pub(crate) incarnation: u64,
    pub(crate) name: HandshakeDigest,
}

impl UnconfirmedSession {
    /// Time at which it ends.
    pub(crate) fn until(&self) -> Time {
        self.since + NEXT_KEEP
    }
}

/// Incarnations of a peer, each with the greatest timestamp that was answered.
///
/// Timestamps are compared within one incarnation only. A clock that was set back before a restart
/// thus does no harm, and a captured request is recognized by its incarnation. A full table drops
/// the record with the smallest timestamp and keeps that timestamp as the floor. An unknown
/// incarnation must be above the floor, since its record may have been dropped.
#[derive(Default)]
pub(crate) struct IncarnationRecords {
    known: Vec<(u64, u64)>,
    floor: u64,
}

impl IncarnationRecords {
    /// True if a request of this incarnation and timestamp is new. Records it if so.
    pub(crate) fn is_fresh(&mut self, incarnation: u64, timestamp: u64) -> bool {
        if let Some(record) = self.known.iter_mut().find(|r| r.0 == incarnation) {
            let fresh = timestamp > record.1;
            record.1 = record.1.max(timestamp);
            return fresh;
        }
        if timestamp <= self.floor {
            return false;
        }
        if self.known.len() >= RECORDS_MAX {
            let oldest = (0..self.known.len()).min_by_key(|&at| self.known[at].1);
            let gone = oldest.map_or((0, 0), |at| self.known.swap_remove(at));
            self.floor = self.floor.max(gone.1);
        }
        self.known.push((incarnation, timestamp));
        true
    }
}

/// A handshake that this node began.
pub(crate) struct Dial {
    pub(crate) attempts: Vec<HandshakeAttempt>,
    pub(crate) sent: u8,
    /// Like `sent`, without requests that a cookie made leave early. Such a request repeats the one
    /// before: same target and same form.
    pub(crate) turn: u8,
    /// Number of requests that a cookie made leave early.
    pub(crate) hurries: u8,
    /// True if a cookie made the next request leave early.
    pub(crate) hurried: bool,
    pub(crate) wait: Duration,
    /// Time of the next request; `None` while a job makes it.
    pub(crate) retry_at: Option<Time>,
    /// Number of the request that a job is making.
    pub(crate) making: Option<u64>,
    /// True if the handshake only tests if full frames pass, and nobody waits for it. Its requests
    /// are all full and follow each other quickly, so that loss alone seldom makes all fail.
    pub(crate) look: bool,
    /// True if the first request goes to the peer's home, not to its endpoint.
    pub(crate) home_first: bool,
    /// True if the peer announced its stop and may return at any time. Requests then have constant
    /// intervals.
    pub(crate) eager: bool,
    /// True if the peer answered that this node's membership has ended.
    pub(crate) removed: bool,
}

impl Dial {
    /// True if an attempt of this number waits for its answer.
    pub(crate) fn has(&self, number: u64) -> bool {
        self.attempts.iter().any(|attempt| attempt.number == number)
    }
}

/// Keepalives still to be requested, so that one lost frame leaves neither end on the old keys.
#[derive(Clone, Copy)]
pub(crate) struct KeepaliveRetry {
    pub(crate) at: Time,
    pub(crate) wait: Duration,
    pub(crate) left: u8,
}

/// Time of the next test if a path carries full frames. A handshake in parts may mean that it does
/// not, or that full requests were lost for another reason. In the second case, data in parts would
/// be lost three times as often until the next handshake.
#[derive(Clone, Copy, Default)]
pub(crate) struct PathRecheck {
    pub(crate) at: Option<Time>,
    /// The wait before the last test; zero if full frames have passed since.
    wait: Duration,
}

impl PathRecheck {
    /// The next test: after `first`, then after twice the previous wait. None if the new keys that
    /// are due after `last` come at least as soon.
    pub(crate) fn next(self, now: Time, first: Duration, last: Duration) -> PathRecheck {
        let wait = if self.wait.is_zero() { first } else { self.wait * 2 }.min(last);
        PathRecheck { at: (wait < last).then(|| now + wait), wait }
    }
}

pub(crate) struct PeerState<E> {
    pub(crate) key: PublicKey,
    pub(crate) endpoint: Option<E>,
    /// True if the peer is reached over circuits only.
    pub(crate) hidden: bool,
    /// Handshakes of the peer over circuits are refused until this time.
    pub(crate) no_circuit_until: Time,
    /// Endpoint that the owner set for the peer. Requests alternate between it and `endpoint` if
    /// they differ.
    pub(crate) home: Option<E>,
    /// Endpoints for the requests of a handshake, in turn, instead of `endpoint` and `home`. Empty
    /// if unused.
    pub(crate) calls: Vec<E>,
    /// Endpoints of handshakes whose sessions are not in use yet.
    reached: Vec<(SessionIndex, E)>,
    /// The session that seals frames.
    pub(crate) current: Option<SessionIndex>,
    /// Sessions that only open frames, each until a time.
    pub(crate) old: Vec<(SessionIndex, Time)>,
    /// Answered but unconfirmed sessions, oldest first.
    pub(crate) next: Vec<UnconfirmedSession>,
    pub(crate) dial: Option<Dial>,
    /// Time at which this node begins a handshake of its own. It has just answered the peer's,
    /// which may fail, and the owner waits for a session or a failure.
    pub(crate) resume_at: Option<Time>,
    /// No handshake begins before this time, since the last one got no answer.
    pub(crate) dial_again: Time,
    pub(crate) nudge: Option<KeepaliveRetry>,
    /// Time at which the current session cools if it is idle.
    pub(crate) cool_at: Option<Time>,
    /// True if the path carries no full frame, by the last handshake.
    pub(crate) small: bool,
    /// Like `small`, but set by the owner.
    pub(crate) always_small: bool,
    /// True if the device refused a full frame, so that handshakes in parts are not due to loss.
    pub(crate) refused: bool,
    pub(crate) recheck: PathRecheck,
    pub(crate) cookie: Option<(Cookie, Time)>,
    pub(crate) records: IncarnationRecords,
    pub(crate) processes: Processes,
    /// The peer's entry in the machine's timers.
    pub(crate) deadline: Option<Time>,
}

impl<E: Copy> PeerState<E> {
    pub(crate) fn new(key: PublicKey) -> PeerState<E> {
        PeerState {
            key,
            endpoint: None,
            hidden: false,
            no_circuit_until: Time::ZERO,
            home: None,
            calls: Vec::new(),
            reached: Vec::new(),
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
            recheck: PathRecheck::default(),
            cookie: None,
            records: IncarnationRecords::default(),
            processes: Processes::default(),
            deadline: None,
        }
    }

    /// Removes and returns all sessions. The caller must release them.
    pub(crate) fn take_sessions(&mut self) -> Vec<SessionIndex> {
        let old = self.old.drain(..).map(|old| old.0);
        let next = self.next.drain(..).map(|next| next.index);
        old.chain(next).chain(self.current.take()).collect()
    }

    /// Makes room for a session that answers a request with this timestamp. Returns true if there
    /// is room, and the session that was dropped for it. The peer's own request has the newest
    /// timestamp. Replayed requests therefore can neither displace its session nor keep it out.
    pub(crate) fn make_room(&mut self, now: Time, timestamp: u64) -> (bool, Option<SessionIndex>) {
        if self.next.len() < NEXT_MAX {
            return (true, None);
        }
        let stale = self.next.iter().position(|n| now.since(n.since) >= CONFIRM_WITHIN);
        let lowest = (0..self.next.len()).min_by_key(|&at| self.next[at].timestamp);
        let lowest = lowest.filter(|&at| self.next[at].timestamp < timestamp);
        let gone = stale.or(lowest).map(|at| self.next.remove(at).index);
        // The endpoints of dropped sessions would otherwise displace that of an open handshake.
        self.reached.retain(|reached| Some(reached.0) != gone);
        (gone.is_some(), gone)
    }

    /// True if the `n`-th request of a handshake goes in parts. If full frames passed in the last
    /// handshake, every odd request from the third on does. Otherwise all do, except the first and
    /// every fourth after it. A handshake that tests for full frames uses no parts.
    pub(crate) fn is_small(&self, n: u8) -> bool {
        let look = self.dial.as_ref().is_some_and(|dial| dial.look);
        let try_other = if self.small { look || n % 4 == 1 } else { n >= 3 && n % 2 == 1 };
        self.always_small || self.small != try_other
    }

    /// Target of the `n`-th request of a handshake. The second and third of every four go to the
    /// alternative: `home` instead of `endpoint`, or the reverse. Each target thus gets requests of
    /// both forms ([`Self::is_small`]). If the owner has set targets, they are used instead.
    pub(crate) fn target(&self, n: u8) -> Option<E> {
        let at = usize::from(n).saturating_sub(1).checked_rem(self.calls.len());
        if let Some(call) = at.and_then(|at| self.calls.get(at)) {
            return Some(*call);
        }
        let dial = self.dial.as_ref();
        let home_first = dial.is_some_and(|dial| dial.home_first);
        let stays = dial.is_some_and(|dial| dial.look);
        let to_home = !stays && matches!(n % 4, 2 | 3) != home_first;
        if to_home { self.home.or(self.endpoint) } else { self.endpoint.or(self.home) }
    }

    /// Records the endpoint of the handshake for a session to be.
    pub(crate) fn note_reached(&mut self, index: SessionIndex, at: E) {
        if self.reached.len() == ATTEMPTS_OPEN + NEXT_MAX {
            self.reached.remove(0);
        }
        self.reached.push((index, at));
    }

    /// Removes and returns the endpoint of a session's handshake. The session is in use, so the
    /// peer has answered from there.
    pub(crate) fn take_reached(&mut self, index: SessionIndex) -> Option<E> {
        let at = self.reached.iter().position(|reached| reached.0 == index)?;
        Some(self.reached.swap_remove(at).1)
    }

    pub(crate) fn attempt_mut(&mut self, number: u64) -> Option<&mut HandshakeAttempt> {
        self.dial.as_mut()?.attempts.iter_mut().find(|a| a.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;

    fn link() -> crate::SessionConfig {
        crate::SessionConfig::new(crate::SessionRole::Link)
    }

    #[test]
    fn requests_are_taken_once_and_in_order_also_when_the_clock_goes_back() {
        let mut records = IncarnationRecords::default();
        assert!(records.is_fresh(1, 1_000));
        assert!(!records.is_fresh(1, 1_000));
        assert!(!records.is_fresh(1, 999));
        assert!(records.is_fresh(1, 1_001));
        // Restarted, with the clock set back.
        assert!(records.is_fresh(2, 10));
        assert!(!records.is_fresh(2, 10));
        assert!(!records.is_fresh(1, 1_001));
        assert_eq!(records.known.len(), 2);
    }

    #[test]
    fn no_request_is_taken_twice_whatever_the_number_of_incarnations() {
        let mut records = IncarnationRecords::default();
        let requests: Vec<(u64, u64)> = (0..1_000).map(|n| (n, 5_000 + n * 7)).collect();
        assert!(requests.iter().all(|r| records.is_fresh(r.0, r.1)));
        assert_eq!(records.known.len(), RECORDS_MAX);
        for _ in 0..3 {
            assert!(!requests.iter().any(|r| records.is_fresh(r.0, r.1)));
        }
        // In random order, with clocks that jump back and forth.
        let mut records = IncarnationRecords::default();
        let mut rng = shoal_crypto::Rng::new([1; 32]);
        let requests: Vec<(u64, u64)> = (0..1_000).map(|n| (n % 300, rng.below(9_000))).collect();
        let taken = requests.iter().filter(|r| records.is_fresh(r.0, r.1)).count();
        assert!(taken >= RECORDS_MAX, "{taken}");
        for _ in 0..3 {
            assert!(!requests.iter().any(|r| records.is_fresh(r.0, r.1)));
        }
    }

    #[test]
    fn sessions_that_are_about_to_be_confirmed_stay() {
        let mut peer: PeerState<()> = PeerState::new(Identity::from_seed([1; 32]).public());
        let mut slots =
            crate::slots::SessionSlots::<shoal_crypto::StandardCiphers>::new(16, &link());
        let at = Time::from_millis;
        for timestamp in [40, 10, 20, 30] {
            let index = slots.reserve().unwrap();
            peer.next.push(UnconfirmedSession {
                index,
                since: at(timestamp),
                timestamp,
                incarnation: 1,
                name: [0; 16],
            });
        }
        assert_eq!(peer.make_room(at(100), 9), (false, None));
        let lowest = peer.next[1].index;
        assert_eq!(peer.make_room(at(100), 41), (true, Some(lowest)));
        assert_eq!(peer.make_room(at(100), 1), (true, None));
        let index = slots.reserve().unwrap();
        peer.next.push(UnconfirmedSession {
            index,
            since: at(100),
            timestamp: 50,
            incarnation: 1,
            name: [0; 16],
        });
        let first = peer.next[0].index;
        assert_eq!(peer.make_room(at(5_050), 1), (true, Some(first)));
    }

    #[test]
    fn requests_go_where_the_owner_says_that_each_goes() {
        let mut peer: PeerState<u64> = PeerState::new(Identity::from_seed([1; 32]).public());
        (peer.endpoint, peer.home) = (Some(1), Some(2));
        let all =
            |peer: &PeerState<u64>| (1..=5).filter_map(|n| peer.target(n)).collect::<Vec<_>>();
        assert_eq!(all(&peer), [1, 2, 2, 1, 1]);
        peer.calls = vec![7, 8, 9];
        assert_eq!(all(&peer), [7, 8, 9, 7, 8]);
        assert_eq!(peer.target(0), Some(7));
        peer.calls.clear();
        assert_eq!(peer.target(2), Some(2));
    }

    #[test]
    fn a_session_that_gives_way_takes_nobodys_address() {
        let mut peer: PeerState<u64> = PeerState::new(Identity::from_seed([1; 32]).public());
        let mut slots =
            crate::slots::SessionSlots::<shoal_crypto::StandardCiphers>::new(64, &link());
        let own = slots.reserve().unwrap();
        peer.note_reached(own, 7);
        for timestamp in 0..20 {
            let since = Time::from_millis(timestamp);
            assert!(peer.make_room(since, timestamp).0);
            let index = slots.reserve().unwrap();
            peer.next.push(UnconfirmedSession {
                index,
                since,
                timestamp,
                incarnation: 1,
                name: [0; 16],
            });
            peer.note_reached(index, 9);
        }
        assert_eq!(peer.take_reached(own), Some(7));
    }
}
