//! An observer of all wires at once: sizes and bytes of datagrams, bytes that two wires share, and
//! secrets that should be on no wire.

use std::collections::HashMap;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use shoal_wire::{Address, RoutedHeader, TrafficClass};
use zerocopy::IntoBytes;

use crate::figures::figure;
use crate::network::Network;
use crate::record::Figure;
use crate::site::RunningNetwork;
use crate::statistics::{Anomaly, PayloadStatistics};
use crate::udp::PATTERN;
use crate::wiretap;

/// Limit of recorded datagrams per node.
const KEPT: usize = 6_000;
/// Number of equal consecutive bytes that can't be a coincidence.
const SAME: usize = 16;
/// Each sequence of [`SAME`] bytes contains an aligned block of this length.
const BLOCK: usize = SAME / 2;

/// Observers of all nodes' wires.
#[derive(Debug)]
pub struct Observers {
    threads: Vec<JoinHandle<Result<Vec<Vec<u8>>>>>,
}

impl Observers {
    /// Starts to record packets that leave each node, for `span`.
    ///
    /// # Errors
    /// Namespaces are missing.
    pub fn start(network: &Network, span: Duration) -> Result<Observers> {
        let mut threads = Vec::new();
        for node in 0..network.topology().nodes.len() {
            let socket =
                wiretap::DepartureRecorder::open(network.namespace(node).context("no namespace")?)?;
            let thread = std::thread::Builder::new().name("observer".into());
            threads.push(thread.spawn(move || Ok(socket.record(span, KEPT)))?);
        }
        Ok(Observers { threads })
    }

    /// Waits until `span` is over, and returns figures of the wires, for two hosts.
    ///
    /// # Errors
    /// An observer failed.
    pub fn finish(self, site: &RunningNetwork, ends: (usize, usize)) -> Result<Vec<Figure>> {
        let mut wires = Vec::new();
        for thread in self.threads {
            let Ok(kept) = thread.join() else { bail!("an observer's thread failed") };
            wires.push(kept?);
        }
        Ok(figures(&wires, &secrets(site, ends)?))
    }
}

/// Bytes that belong on no wire: content, the hosts' overlay addresses, and the part of a cell's
/// header that names both hosts.
fn secrets(site: &RunningNetwork, (from, to): (usize, usize)) -> Result<Vec<Vec<u8>>> {
    let nodes = &site.network().topology().nodes;
    let pair = |from: Address, to: Address| {
        let header = RoutedHeader::new(to, from, TrafficClass::Bulk);
        header.as_bytes()[..RoutedHeader::CLASS_AT].to_vec()
    };
    let (near, far) = (nodes[from].address, nodes[to].address);
    let mut secrets = vec![PATTERN.to_vec(), pair(near, far), pair(far, near)];
    for node in [from, to] {
        secrets.push(match site.interface(node)? {
            std::net::IpAddr::V4(address) => address.octets().to_vec(),
            std::net::IpAddr::V6(address) => address.octets().to_vec(),
        });
    }
    Ok(secrets)
}

/// The figures of recorded datagrams, by wire.
fn figures(wires: &[Vec<Vec<u8>>], secrets: &[Vec<u8>]) -> Vec<Figure> {
    let mut statistics = PayloadStatistics::default();
    let all = || wires.iter().flatten();
    all().for_each(|datagram| statistics.see(datagram));
    let is_size = |anomaly: &Anomaly| matches!(anomaly, Anomaly::Size { .. });
    let anomalies = statistics.anomalies();
    let odd: u64 = statistics.odd_sizes.values().sum();
    let uneven = anomalies.iter().filter(|anomaly| !is_size(anomaly)).count();
    let holds =
        |datagram: &[u8], secret: &[u8]| datagram.windows(secret.len()).any(|w| w == secret);
    let tells = |datagram: &&Vec<u8>| secrets.iter().any(|secret| holds(datagram, secret));
    [
        ("seen", all().count() as f64),
        ("odd_sizes", odd as f64),
        ("uneven", uneven as f64),
        ("on_two_wires", on_two_wires(wires) as f64),
        ("in_clear", all().filter(tells).count() as f64),
    ]
    .map(|(name, value)| figure(name, "", value))
    .into()
}

/// A wire, a datagram on it, and an index into the datagram.
type BlockIndex<'a> = (usize, &'a [u8], usize);

/// Number of datagrams that share [`SAME`] consecutive bytes with a datagram of another wire.
fn on_two_wires(wires: &[Vec<Vec<u8>>]) -> usize {
    let mut blocks: HashMap<&[u8], Vec<BlockIndex<'_>>> = HashMap::new();
    let mut found = 0;
    for (wire, datagrams) in wires.iter().enumerate() {
        let is_common = |datagram: &&Vec<u8>| {
            datagram.windows(BLOCK).enumerate().any(|(at, block)| {
                let places = blocks.get(block).into_iter().flatten();
                places.into_iter().any(|(other, there, there_at)| {
                    *other != wire && common(datagram, at, there, *there_at) >= SAME
                })
            })
        };
        found += datagrams.iter().filter(is_common).count();
        for datagram in datagrams {
            for (i, block) in datagram.chunks_exact(BLOCK).enumerate() {
                blocks.entry(block).or_default().push((wire, datagram, i * BLOCK));
            }
        }
    }
    found
}

/// Length of the equal bytes of two datagrams around an index into each.
fn common(a: &[u8], at: usize, b: &[u8], b_at: usize) -> usize {
    let ahead = a[at..].iter().zip(&b[b_at..]).take_while(|(x, y)| x == y).count();
    let behind = a[..at].iter().rev().zip(b[..b_at].iter().rev());
    ahead + behind.take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use shoal_crypto::Rng;

    use super::*;

    fn random(seed: u8) -> Vec<Vec<Vec<u8>>> {
        let mut rng = Rng::new([seed; 32]);
        let mut datagram = || {
            let mut bytes = vec![0; 192];
            rng.fill(&mut bytes);
            bytes
        };
        (0..3).map(|_| (0..50).map(|_| datagram()).collect()).collect()
    }

    fn value(wires: &[Vec<Vec<u8>>], name: &str) -> f64 {
        let all = figures(wires, &[b"secret of both".to_vec()]);
        all.into_iter().find(|figure| figure.name == name).unwrap().value
    }

    #[test]
    fn random_datagrams_show_nothing() {
        let wires = random(1);
        assert_eq!(value(&wires, "seen"), 150.0);
        for name in ["odd_sizes", "uneven", "on_two_wires", "in_clear"] {
            assert_eq!(value(&wires, name), 0.0, "{name}");
        }
    }

    #[test]
    fn sixteen_bytes_of_another_wire_are_found_at_any_place_and_fifteen_are_none() {
        for at in 1..20 {
            let mut wires = random(2);
            let piece = wires[0][7][at - 1..at + 16].to_vec();
            wires[2][9][99..116].copy_from_slice(&piece);
            wires[2][9][99] ^= 1;
            assert_eq!(value(&wires, "on_two_wires"), 1.0, "{at}");
            wires[2][9][115] ^= 1;
            assert_eq!(value(&wires, "on_two_wires"), 0.0, "{at}");
            // Bytes that one wire carries twice don't count.
            let mut wires = random(3);
            wires[1][3] = wires[1][4].clone();
            assert_eq!(value(&wires, "on_two_wires"), 0.0);
        }
    }

    #[test]
    fn content_odd_sizes_and_constants_are_found() {
        let mut wires = random(4);
        wires[1][2][50..64].copy_from_slice(b"secret of both");
        wires[0][0].truncate(100);
        assert_eq!((value(&wires, "in_clear"), value(&wires, "odd_sizes")), (1.0, 1.0));
        let mut wires = random(5);
        wires.iter_mut().flatten().for_each(|datagram| datagram[100..140].fill(0));
        assert!(value(&wires, "uneven") > 0.0);
    }
}
