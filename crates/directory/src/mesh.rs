//! Links among routers: a graph that follows from their numbers alone.
//!
//! ```text
//! up to 16 routers   each has links to all others
//! more               on a circle by number: to the next two on both sides
//!                    on two more circles, each by another hash of the number: to the next ones
//! ```
//!
//! A router then has 4 to 8 links, however many routers there are. The circle by number alone stays
//! connected when any three routers fail (a Harary graph), and the other two shorten the ways.
//! Nodes with the same list and chains compute the same graph, so both ends of a link want it.
//!
//! Numbers decide, not keys: a registrar draws a router's number after its key is known. So nobody
//! can try keys until one lies beside a certain router.

use std::collections::BTreeSet;

use shoal_crypto::kdf;

/// Number of routers up to which each has links to all others.
const FULL_MAX: usize = 16;
/// Circles by hashes of the numbers.
const RINGS: [u8; 2] = [0, 1];

/// Numbers of the routers with which router `me` has a link. Empty if `me` is not among `routers`.
pub fn neighbours(routers: &BTreeSet<u32>, me: u32) -> BTreeSet<u32> {
    if !routers.contains(&me) {
        return BTreeSet::new();
    }
    if routers.len() <= FULL_MAX {
        return routers.iter().copied().filter(|other| *other != me).collect();
    }
    let by_number: Vec<u32> = routers.iter().copied().collect();
    let mut all: BTreeSet<u32> = beside(&by_number, me, 2).collect();
    for ring in RINGS {
        let mut by_hash: Vec<([u8; 32], u32)> =
            by_number.iter().map(|number| (place(ring, *number), *number)).collect();
        by_hash.sort_unstable();
        let by_hash: Vec<u32> = by_hash.into_iter().map(|(_, number)| number).collect();
        all.extend(beside(&by_hash, me, 1));
    }
    all
}

/// A router's place on a circle.
fn place(ring: u8, number: u32) -> [u8; 32] {
    kdf(&[0; 32], "shoal mesh 1", &[&[ring], &number.to_be_bytes()])
}

/// The next `count` numbers on both sides of `me` on a circle of more than twice as many.
fn beside(circle: &[u32], me: u32, count: usize) -> impl Iterator<Item = u32> {
    let len = circle.len();
    let at = circle.iter().position(|number| *number == me).unwrap_or_default();
    (1..=count).flat_map(move |by| [circle[(at + by) % len], circle[(at + len - by) % len]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Rng;
    use std::collections::BTreeMap;

    type Graph = BTreeMap<u32, BTreeSet<u32>>;

    fn graph(routers: &BTreeSet<u32>) -> Graph {
        routers.iter().map(|me| (*me, neighbours(routers, *me))).collect()
    }

    /// Random numbers, as registrars draw them.
    fn routers(count: usize, seed: u8) -> BTreeSet<u32> {
        let mut rng = Rng::new([seed; 32]);
        let mut all = BTreeSet::new();
        while all.len() < count {
            all.insert(1 + rng.below(65_535) as u32);
        }
        all
    }

    /// True if all routers but `gone` reach each other.
    fn is_connected(graph: &Graph, gone: &[u32]) -> bool {
        let mut left: BTreeSet<u32> = graph.keys().copied().collect();
        gone.iter().for_each(|number| {
            left.remove(number);
        });
        let mut next = Vec::from_iter(left.pop_first());
        while let Some(at) = next.pop() {
            next.extend(graph[&at].iter().filter(|other| left.remove(*other)));
        }
        left.is_empty()
    }

    fn links(graph: &Graph) -> BTreeSet<(u32, u32)> {
        let all = graph.iter().flat_map(|(a, others)| others.iter().map(|b| (*a, *b)));
        all.filter(|(a, b)| a < b).collect()
    }

    #[test]
    fn both_ends_want_a_link_and_no_router_has_many() {
        for count in (1..=40).chain([99, 400]) {
            let routers = routers(count, 1);
            let graph = graph(&routers);
            for (me, others) in &graph {
                assert!(others.iter().all(|other| graph[other].contains(me)), "{count}");
                assert!(!others.contains(me));
                let wanted = if count <= FULL_MAX { count - 1..=count - 1 } else { 4..=8 };
                assert!(wanted.contains(&others.len()), "{count}: {}", others.len());
            }
        }
        assert!(neighbours(&routers(20, 1), 0).is_empty(), "no router has the number 0");
    }

    #[test]
    fn routers_reach_each_other_whichever_three_fail() {
        for count in [17, 18, 24] {
            let graph = graph(&routers(count, 2));
            let all: Vec<u32> = graph.keys().copied().collect();
            for (i, a) in all.iter().enumerate() {
                for (j, b) in all[..i].iter().enumerate() {
                    for c in &all[..j] {
                        assert!(is_connected(&graph, &[*a, *b, *c]), "{count}: {a} {b} {c}");
                    }
                }
            }
        }
        let graph = graph(&routers(400, 3));
        let all: Vec<u32> = graph.keys().copied().collect();
        let mut rng = Rng::new([4; 32]);
        for _ in 0..300 {
            let gone = [0; 3].map(|_| all[rng.below(400) as usize]);
            assert!(is_connected(&graph, &gone));
        }
    }

    #[test]
    fn the_seventeenth_router_ends_about_half_of_the_links() {
        for seed in 1..=20 {
            let mut routers = routers(17, seed);
            let now = links(&graph(&routers));
            routers.pop_last();
            let before = links(&graph(&routers));
            let ended = before.difference(&now).count();
            assert_eq!(before.len(), 120);
            assert!((58..=90).contains(&ended), "{ended} ended");
        }
    }

    #[test]
    fn a_newcomer_ends_four_links_at_most() {
        let mut routers = routers(17, 5);
        let mut rng = Rng::new([6; 32]);
        let mut before = links(&graph(&routers));
        while routers.len() < 120 {
            let newcomer = 1 + rng.below(65_535) as u32;
            if !routers.insert(newcomer) {
                continue;
            }
            let now = links(&graph(&routers));
            let ended = before.difference(&now).count();
            let made = now.difference(&before).count();
            assert!(ended <= 4 && made <= 8, "{ended} ended, {made} made");
            before = now;
        }
    }
}
