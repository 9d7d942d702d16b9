//! An observer of links whose addresses shift: knowing a link's old addresses, it looks for the new
//! ones.
//!
//! In: for each of several equal links, the [`AddressStay`]s at pairs of addresses, in the order of
//! time. Out: how often the observer names the right link. It goes by addresses alone, by times and
//! volumes, or by the phase of shifts long before.

use crate::capture::RecordedDatagram;
use crate::random::Draws;

/// A pair of addresses in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressStay {
    /// Interface identifiers of both ends. The first one is under the first prefix.
    pub ends: [u64; 2],
    /// Time of the first datagram between them, in nanoseconds since 1970.
    pub first_ns: u64,
    /// Time of the last datagram between them, in nanoseconds since 1970.
    pub last_ns: u64,
    /// Payload of all these datagrams, in bytes.
    pub bytes: u64,
}

/// The stays of one link between two prefixes of 64 bits. Datagrams with other addresses are left
/// out.
pub fn stays(datagrams: &[RecordedDatagram<'_>], prefixes: [u64; 2]) -> Vec<AddressStay> {
    let split = |ip| match ip {
        std::net::IpAddr::V6(v6) => {
            let bits = v6.to_bits();
            Some(((bits >> 64) as u64, bits as u64))
        }
        std::net::IpAddr::V4(_) => None,
    };
    let mut all: Vec<AddressStay> = Vec::new();
    for datagram in datagrams {
        let (Some(from), Some(to)) = (split(datagram.from.0), split(datagram.to.0)) else {
            continue;
        };
        let ends = match [from.0, to.0] {
            found if found == prefixes => [from.1, to.1],
            [b, a] if [a, b] == prefixes => [to.1, from.1],
            _ => continue,
        };
        let bytes = datagram.len as u64;
        // The newest stays are last, and are looked up most.
        match all.iter_mut().rev().find(|stay| stay.ends == ends) {
            Some(stay) => {
                stay.last_ns = stay.last_ns.max(datagram.at_ns);
                stay.bytes += bytes;
            }
            None => {
                let at = datagram.at_ns;
                all.push(AddressStay { ends, first_ns: at, last_ns: at, bytes });
            }
        }
    }
    all
}

/// Features that an observer compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkingFeature {
    /// Addresses alone: the number of bits that differ. An end that keeps its address differs in
    /// none.
    Addresses,
    /// Times at which old addresses fall silent and new ones begin, and the volumes of both.
    TimesAndVolumes,
}

/// Results of an observer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LinkingScore {
    /// Shifts for which the observer named a link.
    pub trials: usize,
    /// Trials in which it named the right link.
    pub right: usize,
    /// Trials in which a randomly drawn link was the right one.
    pub shuffled: usize,
    /// Number of links to choose from.
    pub links: usize,
}

impl LinkingScore {
    /// Share of right answers; NaN without any shift.
    pub fn share(&self) -> f64 {
        self.right as f64 / self.trials as f64
    }

    /// Share of right answers of the random draw.
    pub fn shuffled_share(&self) -> f64 {
        self.shuffled as f64 / self.trials as f64
    }

    /// Share that guessing reaches, plus three standard deviations.
    pub fn bound(&self) -> f64 {
        let guess = 1.0 / self.links as f64;
        guess + 3.0 * (guess * (1.0 - guess) / self.trials as f64).sqrt()
    }
}

/// Shows the observer the old addresses at each shift of each link. It names the link that
/// continues them, by the addresses that all links use half an interval later.
pub fn link_again(
    links: &[Vec<AddressStay>],
    interval_ns: u64,
    by: LinkingFeature,
    seed: u64,
) -> LinkingScore {
    let mut draws = Draws::new(seed, "hops linked again", by as u64);
    let mut found = LinkingScore { links: links.len(), ..LinkingScore::default() };
    for (own, stays) in links.iter().enumerate() {
        for (old, new) in stays.iter().zip(stays.iter().skip(1)) {
            let then = new.first_ns + interval_ns / 2;
            let used = |stays: &Vec<AddressStay>| {
                let last = stays.iter().rev().find(|stay| stay.first_ns <= then);
                last.filter(|stay| stay.last_ns + interval_ns >= then).copied()
            };
            let candidates: Option<Vec<AddressStay>> = links.iter().map(used).collect();
            // At the ends of a capture some links are missing.
            let Some(candidates) = candidates.filter(|all| all[own] == *new) else { continue };
            found.trials += 1;
            found.right += usize::from(choose(old, &candidates, by, &mut draws) == own);
            found.shuffled += usize::from(draws.below(links.len()) == own);
        }
    }
    found
}

/// Shows the observer each shift of each link without addresses. It looks `lag` whole intervals
/// ahead, and names the link with a shift nearest to that time.
pub fn link_by_phase(
    links: &[Vec<AddressStay>],
    interval_ns: u64,
    lag: u64,
    seed: u64,
) -> LinkingScore {
    let mut draws = Draws::new(seed, "hops linked by phase", lag);
    let mut found = LinkingScore { links: links.len(), ..LinkingScore::default() };
    let ends = links.iter().filter_map(|stays| stays.last()).map(|stay| stay.first_ns);
    let end = ends.min().unwrap_or(0);
    for (own, stays) in links.iter().enumerate() {
        // The first stay of a capture began before the capture.
        for shift in stays.iter().skip(1) {
            let then = shift.first_ns + lag * interval_ns;
            if then + interval_ns > end {
                break;
            }
            let nearest = |stays: &Vec<AddressStay>| {
                stays.iter().map(|stay| stay.first_ns.abs_diff(then)).min().unwrap_or(u64::MAX)
            };
            let distances: Vec<u64> = links.iter().map(nearest).collect();
            let least = distances.iter().min().copied().unwrap_or(0);
            let best: Vec<usize> =
                (0..distances.len()).filter(|at| distances[*at] == least).collect();
            found.trials += 1;
            found.right += usize::from(best[draws.below(best.len())] == own);
            found.shuffled += usize::from(draws.below(links.len()) == own);
        }
    }
    found
}

/// The candidate that fits best; a random one of equally good ones.
fn choose(
    old: &AddressStay,
    candidates: &[AddressStay],
    by: LinkingFeature,
    draws: &mut Draws,
) -> usize {
    let distance = |new: &AddressStay| match by {
        LinkingFeature::Addresses => {
            let bits = [0, 1].map(|end| (old.ends[end] ^ new.ends[end]).count_ones());
            // Prefixes tell the ends apart; the end with fewer differing bits says most.
            f64::from(bits[0].min(bits[1])) + f64::from(bits[0] + bits[1]) / 1e3
        }
        LinkingFeature::TimesAndVolumes => {
            let gap_ms = new.first_ns.abs_diff(old.last_ns) as f64 / 1e6;
            let volume = (new.bytes.max(1) as f64 / old.bytes.max(1) as f64).ln().abs();
            gap_ms + volume
        }
    };
    let distances: Vec<f64> = candidates.iter().map(distance).collect();
    let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
    let best: Vec<usize> = (0..distances.len()).filter(|at| distances[*at] <= least).collect();
    best[draws.below(best.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Eight links that shift each second, each at its own phase.
    fn links(address: impl Fn(u64, u64, u64) -> u64) -> Vec<Vec<AddressStay>> {
        let stay = |link: u64, epoch: u64| AddressStay {
            ends: [address(link, epoch, 0), address(link, epoch, 1)],
            first_ns: 10 * SECOND + epoch * SECOND + link * SECOND / 8,
            last_ns: 10 * SECOND + (epoch + 1) * SECOND + link * SECOND / 8,
            bytes: 1_000,
        };
        (0..8).map(|link| (0..60).map(|epoch| stay(link, epoch)).collect()).collect()
    }

    fn random(link: u64, epoch: u64, end: u64) -> u64 {
        let number = link * 1_000 + epoch * 2 + end;
        let [a, b, c, d, e, f, g, h, ..] = Draws::new(1, "addresses", number).key();
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }

    fn share(links: &[Vec<AddressStay>], by: LinkingFeature) -> LinkingScore {
        link_again(links, SECOND, by, 7)
    }

    #[test]
    fn random_addresses_say_nothing_and_times_say_all() {
        let all = links(random);
        let by_addresses = share(&all, LinkingFeature::Addresses);
        assert!(by_addresses.trials > 400, "{by_addresses:?}");
        assert!(by_addresses.share() <= by_addresses.bound(), "{by_addresses:?}");
        assert!(by_addresses.shuffled_share() <= by_addresses.bound());
        assert!(share(&all, LinkingFeature::TimesAndVolumes).share() > 0.99);
    }

    #[test]
    fn stays_of_equal_length_keep_a_phase_and_stays_of_random_length_do_not() {
        let all = links(random);
        let regular = link_by_phase(&all, SECOND, 20, 7);
        assert!(regular.trials > 250 && regular.share() > 0.99, "{regular:?}");
        let mut draws = Draws::new(3, "lengths", 0);
        let drawn: Vec<Vec<AddressStay>> = all
            .into_iter()
            .map(|stays| {
                let mut at = stays[0].first_ns;
                let stay = |stay: AddressStay| {
                    let first_ns = at;
                    at += SECOND * 3 / 4 + draws.below(SECOND as usize / 2) as u64;
                    AddressStay { first_ns, last_ns: at, ..stay }
                };
                stays.into_iter().map(stay).collect()
            })
            .collect();
        let drawn = link_by_phase(&drawn, SECOND, 20, 7);
        assert!(drawn.trials > 200 && drawn.share() <= drawn.bound(), "{drawn:?}");
    }

    #[test]
    fn addresses_that_are_alike_or_kept_by_one_end_are_linked_again() {
        let counted = links(|link, epoch, end| random(link, 0, end) + epoch);
        assert!(share(&counted, LinkingFeature::Addresses).share() > 0.99);
        let kept = links(|link, epoch, end| random(link, epoch * (1 - end), end));
        assert!(share(&kept, LinkingFeature::Addresses).share() > 0.99);
        let told = links(|link, epoch, end| random(link, epoch, end) >> 3 | link << 61);
        let told = share(&told, LinkingFeature::Addresses);
        assert!(told.share() > told.bound(), "{told:?}");
    }

    #[test]
    fn stays_are_found_in_both_directions_and_between_the_prefixes_only() {
        let at = |prefix: u64, end: u64| {
            let bits = u128::from(prefix) << 64 | u128::from(end);
            (std::net::Ipv6Addr::from_bits(bits).into(), 7_400)
        };
        let datagram = |at_ns, from, to| RecordedDatagram {
            at_ns,
            from,
            to,
            len: 100,
            payload: &[],
            ecn: 0,
            whole: true,
            id: 0,
        };
        let seen = [
            datagram(1, at(8, 1), at(9, 2)),
            datagram(2, at(9, 2), at(8, 1)),
            datagram(3, at(8, 1), at(7, 2)),
            datagram(4, at(8, 3), at(9, 4)),
        ];
        let first = AddressStay { ends: [1, 2], first_ns: 1, last_ns: 2, bytes: 200 };
        let second = AddressStay { ends: [3, 4], first_ns: 4, last_ns: 4, bytes: 100 };
        assert_eq!(stays(&seen, [8, 9]), [first, second]);
        assert_eq!(stays(&seen, [8, 6]), []);
        let nothing = link_again(&[], SECOND, LinkingFeature::Addresses, 1);
        assert!(nothing.share().is_nan());
    }
}
