//! Numbers about some datagrams in a row.

use core::f64::consts::TAU;
use core::fmt;

use serde::Serialize;
use shoal_crypto::quantile::median;

use super::ObservedDatagram;

/// Bytes of a payload that are examined.
pub const HEAD: usize = 64;
/// Bytes whose values are compared from datagram to datagram.
const FIELDS: usize = 16;
/// Gaps shorter than this belong to one burst.
const BURST_NS: f64 = 1e6;
/// Numbers of periods per excerpt that are tried, in quarters.
const PERIODS: core::ops::RangeInclusive<u32> = 16..=416;

/// Kinds of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FeatureGroup {
    /// Lengths of datagrams.
    Lengths,
    /// Content of datagrams.
    Bytes,
    /// Times of datagrams.
    Times,
    /// Directions of datagrams.
    Directions,
    /// Fields of IP and UDP headers.
    Headers,
}

impl FeatureGroup {
    pub const ALL: [FeatureGroup; 5] = [
        FeatureGroup::Lengths,
        FeatureGroup::Bytes,
        FeatureGroup::Times,
        FeatureGroup::Directions,
        FeatureGroup::Headers,
    ];
}

impl fmt::Display for FeatureGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FeatureGroup::Lengths => "lengths",
            FeatureGroup::Bytes => "bytes",
            FeatureGroup::Times => "times",
            FeatureGroup::Directions => "directions",
            FeatureGroup::Headers => "headers",
        })
    }
}

/// Groups and names of the features, in their order.
pub const NAMES: [(FeatureGroup, &str); 46] = [
    (FeatureGroup::Lengths, "different lengths per datagram"),
    (FeatureGroup::Lengths, "the most frequent length"),
    (FeatureGroup::Lengths, "its share"),
    (FeatureGroup::Lengths, "the second most frequent length"),
    (FeatureGroup::Lengths, "share of the two"),
    (FeatureGroup::Lengths, "the shortest"),
    (FeatureGroup::Lengths, "the longest"),
    (FeatureGroup::Lengths, "mean length"),
    (FeatureGroup::Lengths, "deviation of lengths"),
    (FeatureGroup::Lengths, "lengths that 16 divides"),
    (FeatureGroup::Bytes, "constant bytes of the first 16"),
    (FeatureGroup::Bytes, "constant bytes in a row at the start"),
    (FeatureGroup::Bytes, "entropy of byte 0"),
    (FeatureGroup::Bytes, "entropy of byte 1"),
    (FeatureGroup::Bytes, "entropy of bytes 2 and 3"),
    (FeatureGroup::Bytes, "entropy of bytes 4 to 7"),
    (FeatureGroup::Bytes, "entropy of bytes 8 to 15"),
    (FeatureGroup::Bytes, "a field that counts"),
    (FeatureGroup::Bytes, "bits set"),
    (FeatureGroup::Bytes, "how far the count of bits is from chance"),
    (FeatureGroup::Bytes, "bit 7 of byte 0"),
    (FeatureGroup::Bytes, "bit 6 of byte 0"),
    (FeatureGroup::Bytes, "bit 5 of byte 0"),
    (FeatureGroup::Bytes, "bit 4 of byte 0"),
    (FeatureGroup::Bytes, "bit 3 of byte 0"),
    (FeatureGroup::Bytes, "bit 2 of byte 0"),
    (FeatureGroup::Bytes, "bit 1 of byte 0"),
    (FeatureGroup::Bytes, "bit 0 of byte 0"),
    (FeatureGroup::Times, "datagrams per second"),
    (FeatureGroup::Times, "median gap"),
    (FeatureGroup::Times, "longest gap"),
    (FeatureGroup::Times, "deviation of gaps"),
    (FeatureGroup::Times, "gaps of a burst"),
    (FeatureGroup::Times, "gaps near the median, one way"),
    (FeatureGroup::Times, "strength of the strongest period"),
    (FeatureGroup::Times, "that period"),
    (FeatureGroup::Directions, "datagrams up"),
    (FeatureGroup::Directions, "bytes up"),
    (FeatureGroup::Directions, "turns"),
    (FeatureGroup::Directions, "longest row one way"),
    (FeatureGroup::Directions, "the first two go one way"),
    (FeatureGroup::Headers, "not to be cut in two"),
    (FeatureGroup::Headers, "congestion bits"),
    (FeatureGroup::Headers, "number of the packet is 0"),
    (FeatureGroup::Headers, "numbers of packets count"),
    (FeatureGroup::Headers, "pairs of ports per datagram"),
];

/// Features of datagrams, which are sorted by time.
pub fn of(seen: &[ObservedDatagram]) -> Vec<f64> {
    let mut all = lengths(seen).to_vec();
    all.extend(bytes(seen));
    all.extend(bits(seen));
    all.extend(times(seen));
    all.extend(directions(seen));
    all.extend(headers(seen));
    all
}

fn share(many: usize, of: usize) -> f64 {
    many as f64 / of.max(1) as f64
}

/// Mean and standard deviation.
fn moments(values: &[f64]) -> (f64, f64) {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    (mean, (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt())
}

/// Number of occurrences of each value, the most frequent first.
fn frequencies<T: Ord>(values: impl Iterator<Item = T>) -> Vec<(T, usize)> {
    let mut values: Vec<T> = values.collect();
    values.sort_unstable();
    let mut all: Vec<(T, usize)> = Vec::new();
    for value in values {
        match all.last_mut() {
            Some((last, count)) if *last == value => *count += 1,
            _ => all.push((value, 1)),
        }
    }
    all.sort_by_key(|(_, count)| core::cmp::Reverse(*count));
    all
}

fn lengths(seen: &[ObservedDatagram]) -> [f64; 10] {
    let all: Vec<f64> = seen.iter().map(|s| s.len as f64).collect();
    let frequent = frequencies(seen.iter().map(|s| s.len));
    let at = |i: usize| frequent.get(i).map_or((0.0, 0), |(len, count)| (*len as f64, *count));
    let (mean, deviation) = moments(&all);
    let n = seen.len();
    [
        share(frequent.len(), n),
        at(0).0,
        share(at(0).1, n),
        at(1).0,
        share(at(0).1 + at(1).1, n),
        all.iter().copied().fold(f64::INFINITY, f64::min),
        all.iter().copied().fold(0.0, f64::max),
        mean,
        deviation,
        share(seen.iter().filter(|s| s.len % 16 == 0).count(), n),
    ]
}

/// Datagrams of each direction.
fn ways(seen: &[ObservedDatagram]) -> [Vec<&ObservedDatagram>; 2] {
    [true, false].map(|up| seen.iter().filter(|s| s.up == up).collect())
}

/// Mean over both directions, weighted by their datagrams.
fn over_ways(seen: &[ObservedDatagram], of: impl Fn(&[&ObservedDatagram]) -> f64) -> f64 {
    let each = ways(seen);
    let sum: f64 = each.iter().filter(|w| !w.is_empty()).map(|w| of(w) * w.len() as f64).sum();
    sum / seen.len().max(1) as f64
}

/// Shannon entropy of the bytes at `place`, relative to the highest that so many datagrams can
/// have.
fn entropy(way: &[&ObservedDatagram], place: usize) -> f64 {
    let values = frequencies(way.iter().filter_map(|s| s.head.get(place)));
    let n: usize = values.iter().map(|(_, count)| count).sum();
    let most = (n.min(256) as f64).log2();
    let part = |count: usize| -share(count, n) * share(count, n).log2();
    let sum: f64 = values.iter().map(|(_, count)| part(*count)).sum();
    if most > 0.0 { sum / most } else { 0.0 }
}

fn is_constant(way: &[&ObservedDatagram], place: usize) -> bool {
    let first = way[0].head.get(place);
    first.is_some() && way.iter().all(|s| s.head.get(place) == first)
}

/// Largest share of datagrams with a two-byte counter: a field that is one more than in the
/// datagram before. Tries all offsets and both byte orders.
fn counting(way: &[&ObservedDatagram]) -> f64 {
    let field = |s: &ObservedDatagram, place: usize, swapped: bool| -> Option<u16> {
        let bytes = *s.head.get(place..)?.first_chunk::<2>()?;
        Some(if swapped { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let steps = |place: usize, swapped: bool| {
        let by_one = |pair: &&[&ObservedDatagram]| {
            let [a, b] = [pair[0], pair[1]].map(|s| field(s, place, swapped));
            a.zip(b).is_some_and(|(a, b)| b == a.wrapping_add(1))
        };
        share(way.windows(2).filter(by_one).count(), way.len() - 1)
    };
    let places = (0..FIELDS).flat_map(|place| [steps(place, false), steps(place, true)]);
    places.fold(0.0, f64::max)
}

fn bytes(seen: &[ObservedDatagram]) -> [f64; 10] {
    let constant =
        |way: &[&ObservedDatagram], place: usize| way.len() > 1 && is_constant(way, place);
    let count =
        |way: &[&ObservedDatagram]| (0..FIELDS).filter(|at| constant(way, *at)).count() as f64;
    let row =
        |way: &[&ObservedDatagram]| (0..FIELDS).take_while(|at| constant(way, *at)).count() as f64;
    let at = |from: usize, to: usize| {
        let mean = move |way: &[&ObservedDatagram]| {
            (from..to).map(|place| entropy(way, place)).sum::<f64>() / (to - from) as f64
        };
        over_ways(seen, mean)
    };
    let set = |s: &ObservedDatagram| s.head.iter().map(|b| b.count_ones()).sum::<u32>();
    let bits = |s: &ObservedDatagram| (8 * s.head.len()).max(1) as f64;
    let off =
        |s: &ObservedDatagram| (f64::from(set(s)) - bits(s) / 2.0).abs() / (bits(s) / 4.0).sqrt();
    let mean =
        |of: &dyn Fn(&ObservedDatagram) -> f64| moments(&seen.iter().map(of).collect::<Vec<_>>()).0;
    [
        over_ways(seen, count),
        over_ways(seen, row),
        at(0, 1),
        at(1, 2),
        at(2, 4),
        at(4, 8),
        at(8, 16),
        over_ways(seen, counting),
        mean(&|s| f64::from(set(s)) / bits(s)),
        mean(&off),
    ]
}

/// Share of datagrams in which each bit of the first byte is set.
fn bits(seen: &[ObservedDatagram]) -> [f64; 8] {
    core::array::from_fn(|i| {
        let is_set =
            |s: &&ObservedDatagram| s.head.first().is_some_and(|byte| byte >> (7 - i) & 1 == 1);
        share(seen.iter().filter(is_set).count(), seen.len())
    })
}

fn gaps<'a>(seen: impl Iterator<Item = &'a ObservedDatagram>) -> Vec<f64> {
    let at: Vec<u64> = seen.map(|s| s.at_ns).collect();
    at.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect()
}

/// Strength of the strongest period in the times (Rayleigh's statistic), and its length in
/// nanoseconds.
fn period(seen: &[ObservedDatagram]) -> (f64, f64) {
    let first = seen[0].at_ns;
    let span = ((seen[seen.len() - 1].at_ns - first) as f64).max(1.0);
    let strength = |period: f64| {
        let turns = seen.iter().map(|s| TAU * (s.at_ns - first) as f64 / period);
        let (x, y) = turns.fold((0.0, 0.0), |(x, y), turn| (x + turn.cos(), y + turn.sin()));
        f64::hypot(x, y) / seen.len() as f64
    };
    let periods = PERIODS.map(|quarters| 4.0 * span / f64::from(quarters));
    let all = periods.map(|period| (strength(period), period));
    all.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((0.0, span))
}

fn times(seen: &[ObservedDatagram]) -> [f64; 8] {
    let all = gaps(seen.iter());
    let span = all.iter().sum::<f64>().max(1.0);
    let (mean, deviation) = moments(&all);
    let even = |way: &[&ObservedDatagram]| {
        let own = gaps(way.iter().copied());
        let middle = median(&own).unwrap_or(0.0);
        share(own.iter().filter(|gap| (*gap - middle).abs() < 0.1 * middle).count(), own.len())
    };
    let even = ways(seen).map(|way| if way.len() > 2 { even(&way) } else { 0.0 });
    let (strength, period) = period(seen);
    [
        (all.len() as f64 * 1e9 / span).log10(),
        median(&all).unwrap_or(0.0).max(1.0).log10(),
        all.iter().copied().fold(1.0, f64::max).log10(),
        deviation / mean.max(1.0),
        share(all.iter().filter(|gap| **gap < BURST_NS).count(), all.len()),
        even[0].max(even[1]),
        strength,
        period.max(1.0).log10(),
    ]
}

fn directions(seen: &[ObservedDatagram]) -> [f64; 5] {
    let up = || seen.iter().filter(|s| s.up);
    let bytes = seen.iter().map(|s| s.len).sum();
    let turns = seen.windows(2).filter(|pair| pair[0].up != pair[1].up).count();
    let row = seen.chunk_by(|a, b| a.up == b.up).map(<[_]>::len).max().unwrap_or(0);
    [
        share(up().count(), seen.len()),
        share(up().map(|s| s.len).sum(), bytes),
        share(turns, seen.len() - 1),
        share(row, seen.len()),
        f64::from(u8::from(seen[0].up == seen[1].up)),
    ]
}

fn headers(seen: &[ObservedDatagram]) -> [f64; 5] {
    let n = seen.len();
    let count = |is: fn(&&ObservedDatagram) -> bool| share(seen.iter().filter(is).count(), n);
    let counts = |way: &[&ObservedDatagram]| {
        let by_one = |pair: &&[&ObservedDatagram]| pair[1].id == pair[0].id.wrapping_add(1);
        share(way.windows(2).filter(by_one).count(), way.len() - 1)
    };
    [
        count(|s| s.whole),
        count(|s| s.ecn != 0),
        count(|s| s.id == 0),
        over_ways(seen, counts),
        share(frequencies(seen.iter().map(|s| s.ports)).len(), n),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(at_ms: f64, up: bool, len: usize, head: &[u8]) -> ObservedDatagram {
        ObservedDatagram {
            at_ns: (at_ms * 1e6) as u64,
            up,
            len,
            head: head.to_vec(),
            ecn: 0,
            whole: true,
            id: 0,
            ports: (5_000, 6_000),
        }
    }

    fn value(of: &[f64], name: &str) -> f64 {
        of[NAMES.iter().position(|(_, known)| *known == name).unwrap()]
    }

    #[test]
    fn a_call_has_a_period_a_counter_and_constant_bytes() {
        // Resembles RTP: equal lengths, a counter, 20 ms apart in both directions.
        let call: Vec<ObservedDatagram> = (0..32_u8)
            .map(|i| {
                let number = i / 2;
                let head =
                    [0x80, 0, 1, number, 9, 9, 9, 9, 7, 7, 7, 7, i.wrapping_mul(37), 1, 2, 3];
                seen(f64::from(i / 2) * 20.0 + f64::from(i % 2), i % 2 == 0, 172, &head)
            })
            .collect();
        let found = of(&call);
        assert_eq!(found.len(), NAMES.len());
        assert_eq!(value(&found, "the most frequent length"), 172.0);
        assert_eq!(value(&found, "a field that counts"), 1.0);
        assert_eq!(value(&found, "constant bytes of the first 16"), 14.0);
        assert_eq!(value(&found, "bit 7 of byte 0"), 1.0);
        assert_eq!(value(&found, "datagrams up"), 0.5);
        assert!(value(&found, "gaps near the median, one way") > 0.99);
        assert!(value(&found, "strength of the strongest period") > 0.9, "{found:?}");
        let period = 10_f64.powf(value(&found, "that period")) / 1e6;
        let divisor = 20.0 / period;
        assert!((divisor - divisor.round()).abs() < 0.1 && divisor > 0.9, "{period}");
    }

    #[test]
    fn random_bytes_have_entropy_and_no_field() {
        let mut draws = crate::random::Draws::new(1, "features", 0);
        let mut random = |i: usize| {
            let head: Vec<u8> = (0..HEAD).map(|_| draws.below(256) as u8).collect();
            seen(draws.between(0.0, 1.0) + i as f64 * 7.0, !i.is_multiple_of(3), 1_440, &head)
        };
        let found = of(&(0..64).map(&mut random).collect::<Vec<_>>());
        assert!(value(&found, "entropy of bytes 8 to 15") > 0.9, "{found:?}");
        assert!(value(&found, "a field that counts") < 0.1);
        assert!((value(&found, "bits set") - 0.5).abs() < 0.02);
        assert!(value(&found, "how far the count of bits is from chance") < 1.2);
        assert!(value(&found, "strength of the strongest period") < 0.98);
        assert_eq!(value(&found, "lengths that 16 divides"), 1.0);
    }

    #[test]
    fn any_datagrams_give_finite_numbers() {
        let all = [
            vec![seen(0.0, true, 0, &[]); 3],
            vec![seen(5.0, false, 65_507, &[255; HEAD]); 2],
            vec![seen(0.0, true, 1, &[1]), seen(0.0, false, 0, &[]), seen(9e6, true, 3, &[0; 3])],
        ];
        for some in all {
            assert!(of(&some).iter().all(|x| x.is_finite()), "{some:?}");
        }
    }
}
