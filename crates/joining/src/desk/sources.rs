//! Rate limits at the door, by source address.
//!
//! Each address has a token bucket, its share. So a sender that knocks without end uses up its own
//! share only. An IPv6 host can use any address of its /64, and a site of its /48, so both are
//! counted. A knock with an invalid token costs five times as much. Addresses from which members
//! came have a budget of their own.

use core::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use shoal_crypto::{Secret, kdf};
use shoal_session::Endpoint;
use shoal_wire::Time;

/// Knocks a second that cost public-key work. Knocks above the rate are dropped as
/// `handshake_budget`.
const ALL: KnockRate = KnockRate { each_s: 100, burst: 200 };
/// Additional knocks for addresses from which members came.
const MEMBERS: KnockRate = KnockRate { each_s: 25, burst: 50 };
/// Additional knocks for members who know a former door secret only.
const BEFORE: KnockRate = KnockRate { each_s: 20, burst: 40 };
/// The share of one IPv4 address or IPv6 /64.
const HOST: KnockRate = KnockRate { each_s: 20, burst: 60 };
/// Answered hellos per address.
const HELLOS: KnockRate = KnockRate { each_s: 20, burst: 60 };
/// Number of hello budgets. A keyed hash assigns addresses to budgets. So forged addresses take no
/// memory, and an attacker can't tell which addresses share a budget.
const HELLO_BUDGETS: usize = 4_096;
const SITE: KnockRate = KnockRate { each_s: 40, burst: 80 };
/// Extra cost of a knock with an invalid token, in knocks.
const VAIN: u64 = 4;
/// Maximum number of remembered shares. A forgotten share does little harm: an empty one is full
/// again after 3 s.
const SHARES_MAX: usize = 8_192;
/// Maximum number of remembered member addresses.
const MEMBERS_MAX: usize = 1_024;

/// Knocks a second, and the maximum burst after a pause.
#[derive(Clone, Copy)]
struct KnockRate {
    each_s: u64,
    burst: u64,
}

/// The owner of a share: prefix length and address of an IPv4 address, or of an IPv6 prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourcePrefix(u8, IpAddr);

impl SourcePrefix {
    /// An IPv4 address, or the /64 of an IPv6 address.
    pub(super) fn of(at: SocketAddr) -> SourcePrefix {
        match at.ip().to_canonical() {
            IpAddr::V6(ip) => SourcePrefix::first(ip, 64),
            ip => SourcePrefix(32, ip),
        }
    }

    fn site(at: SocketAddr) -> Option<SourcePrefix> {
        match at.ip().to_canonical() {
            IpAddr::V6(ip) => Some(SourcePrefix::first(ip, 48)),
            IpAddr::V4(_) => None,
        }
    }

    fn first(ip: Ipv6Addr, bits: u8) -> SourcePrefix {
        let mask = u128::MAX << (128 - u32::from(bits));
        SourcePrefix(bits, Ipv6Addr::from_bits(ip.to_bits() & mask).into())
    }
}

/// A token bucket: thousandths of a knock that were left at a time.
#[derive(Clone, Copy)]
struct TokenBucket {
    left: u64,
    at: Time,
}

impl TokenBucket {
    fn new(rate: KnockRate, at: Time) -> TokenBucket {
        TokenBucket { left: rate.burst * 1_000, at }
    }

    /// Refills the bucket. Returns true if a knock is left.
    fn earn(&mut self, rate: KnockRate, now: Time) -> bool {
        let earned = now.since(self.at).min(Duration::from_secs(60)).as_millis() as u64;
        self.left = (self.left + earned * rate.each_s).min(rate.burst * 1_000);
        self.at = now;
        self.left >= 1_000
    }

    fn spend(&mut self, knocks: u64) {
        self.left = self.left.saturating_sub(knocks * 1_000);
    }
}

pub(super) struct DoorLimits {
    all: TokenBucket,
    members: TokenBucket,
    before: TokenBucket,
    hellos: Box<[TokenBucket]>,
    /// Key of the hash that assigns addresses to hello budgets.
    secret: Secret<32>,
    by_source: BTreeMap<SourcePrefix, TokenBucket>,
    /// Addresses from which members came, the newest last.
    known: VecDeque<SourcePrefix>,
}

impl DoorLimits {
    pub(super) fn new(now: Time, secret: Secret<32>) -> DoorLimits {
        DoorLimits {
            hellos: vec![TokenBucket::new(HELLOS, now); HELLO_BUDGETS].into(),
            secret,
            all: TokenBucket::new(ALL, now),
            members: TokenBucket::new(MEMBERS, now),
            before: TokenBucket::new(BEFORE, now),
            by_source: BTreeMap::new(),
            known: VecDeque::new(),
        }
    }

    /// True if a hello from `from` may be answered; then counts it.
    pub(super) fn may_answer(&mut self, now: Time, from: SocketAddr) -> bool {
        let (source, len) = from.source();
        let hash = kdf(self.secret.expose(), "shoal join hello", &[&source[..len]]);
        let at = usize::from(u16::from_be_bytes([hash[0], hash[1]])) % HELLO_BUDGETS;
        let may = self.hellos[at].earn(HELLOS, now);
        if may {
            self.hellos[at].spend(1);
        }
        may
    }

    fn rates(from: SocketAddr) -> impl Iterator<Item = (SourcePrefix, KnockRate)> {
        let site = SourcePrefix::site(from).map(|site| (site, SITE));
        site.into_iter().chain([(SourcePrefix::of(from), HOST)])
    }

    /// True if public-key work may be spent on a knock from `from`; then counts it. Knocks under a
    /// former door secret have a budget of their own.
    pub(super) fn may_knock(&mut self, now: Time, from: SocketAddr, is_before: bool) -> bool {
        for (source, rate) in DoorLimits::rates(from) {
            self.make_room(&source);
            let share = self.by_source.entry(source).or_insert_with(|| TokenBucket::new(rate, now));
            if !share.earn(rate, now) {
                return false;
            }
        }
        let is_known = self.known.contains(&SourcePrefix::of(from));
        let budget = match (is_before, self.all.earn(ALL, now), is_known) {
            (true, ..) => self.before.earn(BEFORE, now).then_some(&mut self.before),
            (false, true, _) => Some(&mut self.all),
            (false, false, true) => self.members.earn(MEMBERS, now).then_some(&mut self.members),
            (false, false, false) => None,
        };
        let Some(budget) = budget else { return false };
        budget.spend(1);
        self.spend(from, 1);
        true
    }

    /// Charges a knock from `from` that had an invalid token.
    pub(super) fn was_vain(&mut self, from: SocketAddr) {
        self.spend(from, VAIN);
    }

    /// Records that a member came from `from`.
    pub(super) fn was_member(&mut self, from: SocketAddr) {
        let source = SourcePrefix::of(from);
        self.known.retain(|other| *other != source);
        self.known.push_back(source);
        if self.known.len() > MEMBERS_MAX {
            self.known.pop_front();
        }
    }

    fn spend(&mut self, from: SocketAddr, knocks: u64) {
        for (source, _) in DoorLimits::rates(from) {
            if let Some(share) = self.by_source.get_mut(&source) {
                share.spend(knocks);
            }
        }
    }

    /// Forgets the least recently used share, if there is no room for another one.
    fn make_room(&mut self, source: &SourcePrefix) {
        if self.by_source.len() >= SHARES_MAX && !self.by_source.contains_key(source) {
            let oldest = self.by_source.iter().min_by_key(|(_, share)| share.at);
            if let Some(oldest) = oldest.map(|(source, _)| *source) {
                self.by_source.remove(&oldest);
            }
        }
    }
}

/// The most frequent key.
pub(super) fn most_frequent<K: Ord>(keys: impl Iterator<Item = K>) -> Option<K> {
    let mut counts = BTreeMap::new();
    keys.for_each(|key| *counts.entry(key).or_insert(0_usize) += 1);
    counts.into_iter().max_by_key(|(_, count)| *count).map(|(key, _)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares() -> DoorLimits {
        DoorLimits::new(Time::ZERO, Secret::new([4; 32]))
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn knocks(shares: &mut DoorLimits, from: &str, count: usize) -> usize {
        (0..count).filter(|_| shares.may_knock(Time::ZERO, at(from), false)).count()
    }

    #[test]
    fn an_address_has_a_share_whatever_its_ports_and_sites_have_one() {
        let mut shares = shares();
        assert_eq!(knocks(&mut shares, "192.0.2.1:1", 40), 40);
        assert_eq!(knocks(&mut shares, "192.0.2.1:2", 40), 20);
        assert_eq!(knocks(&mut shares, "[::ffff:192.0.2.1]:2", 40), 0);
        assert_eq!(knocks(&mut shares, "[2001:db8::1]:1", 70), 60);
        assert_eq!(knocks(&mut shares, "[2001:db8::2]:1", 70), 0);
        assert_eq!(knocks(&mut shares, "[2001:db8:0:1::2]:1", 70), 20, "the rest of the /48");
        let later = Time::from_millis(1_000);
        let again = (0..70).filter(|_| shares.may_knock(later, at("192.0.2.1:3"), false));
        assert_eq!(again.count(), 20);
    }

    #[test]
    fn members_and_doors_of_before_have_budgets_of_their_own() {
        let mut shares = shares();
        shares.was_member(at("192.0.2.1:1"));
        for n in 0..4 {
            knocks(&mut shares, &format!("198.51.100.{n}:1"), 60);
        }
        assert_eq!(knocks(&mut shares, "203.0.113.1:1", 9), 0, "the budget is used up");
        assert_eq!(knocks(&mut shares, "192.0.2.1:9", 90), 50);
        let before =
            |n: usize| shares.may_knock(Time::ZERO, ([203, 0, 114, n as u8], 1).into(), true);
        assert_eq!((0..90).map(before).filter(|may| *may).count(), 40);
    }

    #[test]
    fn hellos_of_one_address_are_answered_some_times_a_second() {
        let mut shares = shares();
        let mut hellos = |ms, from: &str| {
            let now = Time::from_millis(ms);
            (0..100).filter(|_| shares.may_answer(now, at(from))).count()
        };
        assert_eq!(hellos(0, "192.0.2.1:1"), 60);
        assert_eq!((hellos(0, "192.0.2.1:2"), hellos(1_000, "192.0.2.1:3")), (0, 20));
        assert_eq!(hellos(0, "[2001:db8::1]:1"), 60);
    }

    #[test]
    fn knocks_in_vain_cost_more_and_the_memory_is_bounded() {
        let mut shares = shares();
        let from = at("192.0.2.1:1");
        for _ in 0..12 {
            assert!(shares.may_knock(Time::ZERO, from, false));
            shares.was_vain(from);
        }
        assert!(!shares.may_knock(Time::ZERO, from, false));
        for n in 0..SHARES_MAX as u32 + 9 {
            let from = SocketAddr::from((n.to_be_bytes(), 1));
            shares.may_knock(Time::from_millis(n.into()), from, false);
            shares.was_member(from);
        }
        assert_eq!((shares.by_source.len(), shares.known.len()), (SHARES_MAX, MEMBERS_MAX));
    }
}
