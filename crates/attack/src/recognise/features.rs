//! Numbers about some datagrams in a row.

use core::f64::consts::TAU;
use core::fmt;

use serde::Serialize;

use super::Seen;

/// Bytes of a payload that are looked at.
pub const HEAD: usize = 64;
/// Bytes whose values are compared from datagram to datagram.
const FIELDS: usize = 16;
/// Gaps below this are those of one burst.
const BURST_NS: f64 = 1e6;
/// Periods that are tried pass so often in the time of an excerpt, in quarters.
const PERIODS: core::ops::RangeInclusive<u32> = 16..=416;

/// Kinds of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// How long datagrams are.
    Lengths,
    /// What is in them.
    Bytes,
    /// When they pass.
    Times,
    /// Which way they go.
    Directions,
    /// Fields of IP and UDP.
    Headers,
}

impl Group {
    /// All of them.
    pub const ALL: [Group; 5] =
        [Group::Lengths, Group::Bytes, Group::Times, Group::Directions, Group::Headers];
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Group::Lengths => "lengths",
            Group::Bytes => "bytes",
            Group::Times => "times",
            Group::Directions => "directions",
            Group::Headers => "headers",
        })
    }
}

/// What the features are, in their order.
pub const NAMES: [(Group, &str); 46] = [
    (Group::Lengths, "different lengths per datagram"),
    (Group::Lengths, "the most frequent length"),
    (Group::Lengths, "its share"),
    (Group::Lengths, "the second most frequent length"),
    (Group::Lengths, "share of the two"),
    (Group::Lengths, "the shortest"),
    (Group::Lengths, "the longest"),
    (Group::Lengths, "mean length"),
    (Group::Lengths, "deviation of lengths"),
    (Group::Lengths, "lengths that 16 divides"),
    (Group::Bytes, "constant bytes of the first 16"),
    (Group::Bytes, "constant bytes in a row at the start"),
    (Group::Bytes, "entropy of byte 0"),
    (Group::Bytes, "entropy of byte 1"),
    (Group::Bytes, "entropy of bytes 2 and 3"),
    (Group::Bytes, "entropy of bytes 4 to 7"),
    (Group::Bytes, "entropy of bytes 8 to 15"),
    (Group::Bytes, "a field that counts"),
    (Group::Bytes, "bits set"),
    (Group::Bytes, "how far the count of bits is from chance"),
    (Group::Bytes, "bit 7 of byte 0"),
    (Group::Bytes, "bit 6 of byte 0"),
    (Group::Bytes, "bit 5 of byte 0"),
    (Group::Bytes, "bit 4 of byte 0"),
    (Group::Bytes, "bit 3 of byte 0"),
    (Group::Bytes, "bit 2 of byte 0"),
    (Group::Bytes, "bit 1 of byte 0"),
    (Group::Bytes, "bit 0 of byte 0"),
    (Group::Times, "datagrams per second"),
    (Group::Times, "median gap"),
    (Group::Times, "longest gap"),
    (Group::Times, "deviation of gaps"),
    (Group::Times, "gaps of a burst"),
    (Group::Times, "gaps near the median, one way"),
    (Group::Times, "strength of the strongest period"),
    (Group::Times, "that period"),
    (Group::Directions, "datagrams up"),
    (Group::Directions, "bytes up"),
    (Group::Directions, "turns"),
    (Group::Directions, "longest row one way"),
    (Group::Directions, "the first two go one way"),
    (Group::Headers, "not to be cut in two"),
    (Group::Headers, "congestion bits"),
    (Group::Headers, "number of the packet is 0"),
    (Group::Headers, "numbers of packets count"),
    (Group::Headers, "pairs of ports per datagram"),
];

/// The features of datagrams in the order of their times.
pub fn of(seen: &[Seen]) -> Vec<f64> {
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

/// How often each value is there, the most frequent first.
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

fn lengths(seen: &[Seen]) -> [f64; 10] {
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

/// The datagrams of each direction.
fn ways(seen: &[Seen]) -> [Vec<&Seen>; 2] {
    [true, false].map(|up| seen.iter().filter(|s| s.up == up).collect())
}

/// The mean over directions, which weigh as much as they have datagrams.
fn over_ways(seen: &[Seen], of: impl Fn(&[&Seen]) -> f64) -> f64 {
    let each = ways(seen);
    let sum: f64 = each.iter().filter(|w| !w.is_empty()).map(|w| of(w) * w.len() as f64).sum();
    sum / seen.len().max(1) as f64
}

/// Shannon's entropy of the values at one place, as a share of what so many datagrams can have.
fn entropy(way: &[&Seen], place: usize) -> f64 {
    let values = frequencies(way.iter().filter_map(|s| s.head.get(place)));
    let n: usize = values.iter().map(|(_, count)| count).sum();
    let most = (n.min(256) as f64).log2();
    let part = |count: usize| -share(count, n) * share(count, n).log2();
    let sum: f64 = values.iter().map(|(_, count)| part(*count)).sum();
    if most > 0.0 { sum / most } else { 0.0 }
}

fn is_constant(way: &[&Seen], place: usize) -> bool {
    let first = way[0].head.get(place);
    first.is_some() && way.iter().all(|s| s.head.get(place) == first)
}

/// The largest share of datagrams whose field of two bytes is one more than in the one before it,
/// at any place and in any order of bytes.
fn counting(way: &[&Seen]) -> f64 {
    let field = |s: &Seen, place: usize, swapped: bool| -> Option<u16> {
        let bytes = *s.head.get(place..)?.first_chunk::<2>()?;
        Some(if swapped { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let steps = |place: usize, swapped: bool| {
        let by_one = |pair: &&[&Seen]| {
            let [a, b] = [pair[0], pair[1]].map(|s| field(s, place, swapped));
            a.zip(b).is_some_and(|(a, b)| b == a.wrapping_add(1))
        };
        share(way.windows(2).filter(by_one).count(), way.len() - 1)
    };
    let places = (0..FIELDS).flat_map(|place| [steps(place, false), steps(place, true)]);
    places.fold(0.0, f64::max)
}

fn bytes(seen: &[Seen]) -> [f64; 10] {
    let constant = |way: &[&Seen], place: usize| way.len() > 1 && is_constant(way, place);
    let count = |way: &[&Seen]| (0..FIELDS).filter(|at| constant(way, *at)).count() as f64;
    let row = |way: &[&Seen]| (0..FIELDS).take_while(|at| constant(way, *at)).count() as f64;
    let at = |from: usize, to: usize| {
        let mean = move |way: &[&Seen]| {
            (from..to).map(|place| entropy(way, place)).sum::<f64>() / (to - from) as f64
        };
        over_ways(seen, mean)
    };
    let set = |s: &Seen| s.head.iter().map(|b| b.count_ones()).sum::<u32>();
    let bits = |s: &Seen| (8 * s.head.len()).max(1) as f64;
    let off = |s: &Seen| (f64::from(set(s)) - bits(s) / 2.0).abs() / (bits(s) / 4.0).sqrt();
    let mean = |of: &dyn Fn(&Seen) -> f64| moments(&seen.iter().map(of).collect::<Vec<_>>()).0;
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

/// How often each bit of the first byte is set.
fn bits(seen: &[Seen]) -> [f64; 8] {
    core::array::from_fn(|i| {
        let is_set = |s: &&Seen| s.head.first().is_some_and(|byte| byte >> (7 - i) & 1 == 1);
        share(seen.iter().filter(is_set).count(), seen.len())
    })
}

fn gaps<'a>(seen: impl Iterator<Item = &'a Seen>) -> Vec<f64> {
    let at: Vec<u64> = seen.map(|s| s.at_ns).collect();
    at.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// How strongly times repeat with the period that shows most (Rayleigh's statistic), and its length
/// in nanoseconds.
fn period(seen: &[Seen]) -> (f64, f64) {
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

fn times(seen: &[Seen]) -> [f64; 8] {
    let all = gaps(seen.iter());
    let span = all.iter().sum::<f64>().max(1.0);
    let (mean, deviation) = moments(&all);
    let even = |way: &[&Seen]| {
        let own = gaps(way.iter().copied());
        let middle = median(&own);
        share(own.iter().filter(|gap| (*gap - middle).abs() < 0.1 * middle).count(), own.len())
    };
    let even = ways(seen).map(|way| if way.len() > 2 { even(&way) } else { 0.0 });
    let (strength, period) = period(seen);
    [
        (all.len() as f64 * 1e9 / span).log10(),
        median(&all).max(1.0).log10(),
        all.iter().copied().fold(1.0, f64::max).log10(),
        deviation / mean.max(1.0),
        share(all.iter().filter(|gap| **gap < BURST_NS).count(), all.len()),
        even[0].max(even[1]),
        strength,
        period.max(1.0).log10(),
    ]
}

fn directions(seen: &[Seen]) -> [f64; 5] {
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

fn headers(seen: &[Seen]) -> [f64; 5] {
    let n = seen.len();
    let count = |is: fn(&&Seen) -> bool| share(seen.iter().filter(is).count(), n);
    let counts = |way: &[&Seen]| {
        let by_one = |pair: &&[&Seen]| pair[1].id == pair[0].id.wrapping_add(1);
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

    fn seen(at_ms: f64, up: bool, len: usize, head: &[u8]) -> Seen {
        Seen {
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
        // Like RTP: one length, a number that counts, 20 ms apart both ways.
        let call: Vec<Seen> = (0..32_u8)
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
