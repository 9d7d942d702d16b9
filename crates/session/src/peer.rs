//! What the machine keeps of one peer: some 300 bytes when idle.

use core::time::Duration;
use std::sync::Arc;

use shoal_crypto::{PublicKey, Secret};
use shoal_wire::{Time, shake};

use crate::config::Role;
use crate::cookie::Cookie;
use crate::noise::Initiator;
use crate::outer::{Lead, OuterSeal};
use crate::process::Processes;
use crate::seen::Name;
use crate::slots::Index;
use crate::timers::NEXT_KEEP;

/// Requests whose reply may still come; a path slower than the retry interval needs more than one.
pub(crate) const ATTEMPTS_OPEN: usize = 4;
/// Sessions that are answered and not confirmed; mirrors [`ATTEMPTS_OPEN`] at the other end.
pub(crate) const NEXT_MAX: usize = 4;
/// Replaced sessions that still open.
pub(crate) const OLD_MAX: usize = 3;
/// Responses looked at per request. Only the peer can seal one, and each run of it answers a
/// request once. Forged responses don't count.
pub(crate) const REPLIES_MAX: usize = 4;
/// An unconfirmed session younger than this only gives way to a request with a newer timestamp.
const CONFIRM_WITHIN: Duration = Duration::from_secs(5);
/// Incarnations remembered. A node must restart so often, and then have its clock set back, before
/// it is locked out until its clock has caught up.
const RECORDS_MAX: usize = 64;

/// One request that is under way.
pub(crate) struct Attempt {
    pub(crate) number: u64,
    /// What the session is to be for.
    pub(crate) role: Role,
    pub(crate) lead: Lead,
    pub(crate) token: Lead,
    pub(crate) outer: OuterSeal,
    pub(crate) index: Index,
    pub(crate) epoch: u32,
    /// The cookie that it carries, or zeroes.
    pub(crate) cookie: Cookie,
    /// A cookie brought it forward.
    pub(crate) hurried: bool,
    /// How many other requests were brought forward by cookies that answer it.
    pub(crate) hurries: u8,
    pub(crate) initiator: Arc<Initiator>,
    /// What the peer seals the response under, with the outer seal's key.
    pub(crate) response_key: Secret<32>,
    /// The salts of the responses that were looked at.
    pub(crate) replies: Vec<[u8; shake::SALT_LEN]>,
}

/// A session whose request is answered and under which nothing came yet: it opens only.
pub(crate) struct Unconfirmed {
    pub(crate) index: Index,
    /// When the request was answered.
    pub(crate) since: Time,
    /// The request's timestamp, and the process that made it.
    pub(crate) timestamp: u64,
    pub(crate) incarnation: u64,
    pub(crate) name: Name,
}

impl Unconfirmed {
    /// When it ends.
    pub(crate) fn until(&self) -> Time {
        self.since + NEXT_KEEP
    }
}

/// The incarnations of a peer, each with the greatest timestamp that it was answered for.
///
/// Timestamps are compared within one incarnation. A clock that was set back before a restart
/// therefore does no harm, while a captured request is known by its incarnation. The record with
/// the smallest timestamp makes room for a new one and leaves that timestamp as the floor: an
/// incarnation that is not remembered must be above it, since it may have been pushed out.
#[derive(Default)]
pub(crate) struct Records {
    known: Vec<(u64, u64)>,
    floor: u64,
}

impl Records {
    /// Whether a request of this incarnation and timestamp is new; remembers it if so.
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

/// A handshake that we began.
pub(crate) struct Dial {
    pub(crate) attempts: Vec<Attempt>,
    pub(crate) sent: u8,
    /// As `sent`, without requests that a cookie brought forward: those repeat the one before, to
    /// its place and in its form.
    pub(crate) turn: u8,
    /// How many a cookie brought forward.
    pub(crate) hurries: u8,
    /// A cookie brought forward the one that is made next.
    pub(crate) hurried: bool,
    pub(crate) wait: Duration,
    /// When to send again; `None` while the next request is being made.
    pub(crate) retry_at: Option<Time>,
    /// Number of the request that a job is making now.
    pub(crate) making: Option<u64>,
    /// It only finds out whether full frames pass: nobody waits for it. Its requests are all full
    /// and follow each other quickly, so that loss alone seldom makes them all fail.
    pub(crate) look: bool,
    /// The first request goes to the home of the peer, not to its endpoint.
    pub(crate) home_first: bool,
    /// The peer said that it stops, and may be back at any time: requests follow each other at
    /// even distances.
    pub(crate) eager: bool,
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
    /// The next recheck: after `first`, then after twice the wait before. None where new keys,
    /// after `last`, come as soon.
    pub(crate) fn next(self, now: Time, first: Duration, last: Duration) -> Recheck {
        let wait = if self.wait.is_zero() { first } else { self.wait * 2 }.min(last);
        Recheck { at: (wait < last).then(|| now + wait), wait }
    }
}

/// One peer.
pub(crate) struct Peer<E> {
    pub(crate) key: PublicKey,
    pub(crate) endpoint: Option<E>,
    /// It is spoken with over circuits alone.
    pub(crate) hidden: bool,
    /// Where its owner says that it is: requests go there in turn, if the endpoint is another.
    pub(crate) home: Option<E>,
    /// Where the requests of a handshake go, one after the other, whatever endpoint and home are;
    /// none where these decide.
    pub(crate) calls: Vec<E>,
    /// Through which addresses handshakes went whose sessions are not in use yet.
    reached: Vec<(Index, E)>,
    /// The session that seals.
    pub(crate) current: Option<Index>,
    /// Sessions that only open, each until a time.
    pub(crate) old: Vec<(Index, Time)>,
    /// Answered and not confirmed, oldest first.
    pub(crate) next: Vec<Unconfirmed>,
    pub(crate) dial: Option<Dial>,
    /// When to begin our own handshake after all: the peer's, answered just before, may come to
    /// nothing, and the owner waits for a session or a failure.
    pub(crate) resume_at: Option<Time>,
    /// Time before which no handshake begins, since nobody answered the last one.
    pub(crate) dial_again: Time,
    pub(crate) nudge: Option<Nudge>,
    /// When to look whether the current session is idle enough to cool.
    pub(crate) cool_at: Option<Time>,
    /// The path to it carries no full frame, as far as the last handshake showed.
    pub(crate) small: bool,
    /// As `small`, because the owner says so.
    pub(crate) always_small: bool,
    /// The device refused a full frame, so that no loss explains why handshakes go in parts.
    pub(crate) refused: bool,
    pub(crate) recheck: Recheck,
    pub(crate) cookie: Option<(Cookie, Time)>,
    pub(crate) records: Records,
    pub(crate) processes: Processes,
    /// What stands in the machine's timers for this peer.
    pub(crate) deadline: Option<Time>,
}

impl<E: Copy> Peer<E> {
    pub(crate) fn new(key: PublicKey) -> Peer<E> {
        Peer {
            key,
            endpoint: None,
            hidden: false,
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
            recheck: Recheck::default(),
            cookie: None,
            records: Records::default(),
            processes: Processes::default(),
            deadline: None,
        }
    }

    /// Takes all sessions from it; they are to be released.
    pub(crate) fn take_sessions(&mut self) -> Vec<Index> {
        let old = self.old.drain(..).map(|old| old.0);
        let next = self.next.drain(..).map(|next| next.index);
        old.chain(next).chain(self.current.take()).collect()
    }

    /// Makes room for a session that answers a request with this timestamp. Returns whether there
    /// is room, and which session was given up for it. The peer's own request has the newest
    /// timestamp, so that replayed requests neither push out its session nor keep it out.
    pub(crate) fn make_room(&mut self, now: Time, timestamp: u64) -> (bool, Option<Index>) {
        if self.next.len() < NEXT_MAX {
            return (true, None);
        }
        let stale = self.next.iter().position(|n| now.since(n.since) >= CONFIRM_WITHIN);
        let lowest = (0..self.next.len()).min_by_key(|&at| self.next[at].timestamp);
        let lowest = lowest.filter(|&at| self.next[at].timestamp < timestamp);
        let gone = stale.or(lowest).map(|at| self.next.remove(at).index);
        // Addresses of sessions that went would push out that of a handshake under way otherwise.
        self.reached.retain(|reached| Some(reached.0) != gone);
        (gone.is_some(), gone)
    }

    /// Whether the `n`-th request of a handshake goes in parts. Where the last handshake found full
    /// frames to pass, the third and every second one after it do. Where they did not pass, all do
    /// but the first and every fourth after it. A handshake that looks for full frames has no
    /// parts.
    pub(crate) fn is_small(&self, n: u8) -> bool {
        let look = self.dial.as_ref().is_some_and(|dial| dial.look);
        let try_other = if self.small { look || n % 4 == 1 } else { n >= 3 && n % 2 == 1 };
        self.always_small || self.small != try_other
    }

    /// Where the `n`-th request of a handshake goes. Of every four the second and the third go to
    /// the other of endpoint and home, so that each gets requests of both forms
    /// ([`Self::is_small`]). Where its owner says where each goes, they go there.
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

    /// Remembers where the handshake of a session to be went.
    pub(crate) fn note_reached(&mut self, index: Index, at: E) {
        if self.reached.len() == ATTEMPTS_OPEN + NEXT_MAX {
            self.reached.remove(0);
        }
        self.reached.push((index, at));
    }

    /// The session is in use, so that the peer has answered through this address.
    pub(crate) fn take_reached(&mut self, index: Index) -> Option<E> {
        let at = self.reached.iter().position(|reached| reached.0 == index)?;
        Some(self.reached.swap_remove(at).1)
    }

    /// The attempt of this number.
    pub(crate) fn attempt_mut(&mut self, number: u64) -> Option<&mut Attempt> {
        self.dial.as_mut()?.attempts.iter_mut().find(|a| a.number == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;

    fn link() -> crate::Config {
        crate::Config::new(crate::Role::Link)
    }

    #[test]
    fn requests_are_taken_once_and_in_order_also_when_the_clock_goes_back() {
        let mut records = Records::default();
        assert!(records.is_fresh(1, 1_000));
        assert!(!records.is_fresh(1, 1_000));
        assert!(!records.is_fresh(1, 999));
        assert!(records.is_fresh(1, 1_001));
        // Restarted, with the clock an hour back.
        assert!(records.is_fresh(2, 10));
        assert!(!records.is_fresh(2, 10));
        assert!(!records.is_fresh(1, 1_001));
        assert_eq!(records.known.len(), 2);
    }

    #[test]
    fn no_request_is_taken_twice_whatever_the_number_of_incarnations() {
        let mut records = Records::default();
        let requests: Vec<(u64, u64)> = (0..1_000).map(|n| (n, 5_000 + n * 7)).collect();
        assert!(requests.iter().all(|r| records.is_fresh(r.0, r.1)));
        assert_eq!(records.known.len(), RECORDS_MAX);
        for _ in 0..3 {
            assert!(!requests.iter().any(|r| records.is_fresh(r.0, r.1)));
        }
        // In another order, with clocks that went back and forth.
        let mut records = Records::default();
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
        let mut peer: Peer<()> = Peer::new(Identity::from_seed([1; 32]).public());
        let mut slots = crate::slots::Slots::<shoal_crypto::Standard>::new(16, &link());
        let at = Time::from_millis;
        for timestamp in [40, 10, 20, 30] {
            let index = slots.reserve().unwrap();
            peer.next.push(Unconfirmed {
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
        peer.next.push(Unconfirmed {
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
        let mut peer: Peer<u64> = Peer::new(Identity::from_seed([1; 32]).public());
        (peer.endpoint, peer.home) = (Some(1), Some(2));
        let all = |peer: &Peer<u64>| (1..=5).filter_map(|n| peer.target(n)).collect::<Vec<_>>();
        assert_eq!(all(&peer), [1, 2, 2, 1, 1]);
        peer.calls = vec![7, 8, 9];
        assert_eq!(all(&peer), [7, 8, 9, 7, 8]);
        assert_eq!(peer.target(0), Some(7));
        peer.calls.clear();
        assert_eq!(peer.target(2), Some(2));
    }

    #[test]
    fn a_session_that_gives_way_takes_nobodys_address() {
        let mut peer: Peer<u64> = Peer::new(Identity::from_seed([1; 32]).public());
        let mut slots = crate::slots::Slots::<shoal_crypto::Standard>::new(64, &link());
        let own = slots.reserve().unwrap();
        peer.note_reached(own, 7);
        for timestamp in 0..20 {
            let since = Time::from_millis(timestamp);
            assert!(peer.make_room(since, timestamp).0);
            let index = slots.reserve().unwrap();
            peer.next.push(Unconfirmed { index, since, timestamp, incarnation: 1, name: [0; 16] });
            peer.note_reached(index, 9);
        }
        assert_eq!(peer.take_reached(own), Some(7));
    }
}
