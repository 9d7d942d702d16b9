//! The names and addresses that a responder knows, and the zones around them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use shoal_directory::{Prefix, fold};

/// Labels of a complete reverse name, and bits of each label.
const IPV4: (usize, usize) = (4, 8);
const IPV6: (usize, usize) = (32, 4);

/// Names and addresses of hosts.
#[derive(Default)]
pub struct NameTable {
    /// Addresses by folded name, without the domain.
    names: BTreeMap<String, Vec<IpAddr>>,
    /// Names by address, as the list writes them.
    hosts: BTreeMap<IpAddr, String>,
    /// Networks of the hosts' addresses. The responder is the authority for reverse names in them.
    networks: Vec<Prefix>,
}

/// A name within a zone of this responder.
#[derive(Debug, PartialEq, Eq)]
pub struct ZoneEntry<'a> {
    /// The name of the zone.
    pub apex: String,
    /// The records of the name.
    pub content: RecordContent<'a>,
}

/// The records of a name.
#[derive(Debug, PartialEq, Eq)]
pub enum RecordContent<'a> {
    Missing,
    /// The name exists without records: names below it have some.
    Empty,
    /// The name is the zone's own.
    Apex,
    /// The addresses of a host.
    Addresses(&'a [IpAddr]),
    /// The name of the host with this address.
    Host(&'a str),
}

impl NameTable {
    /// A book of these hosts, whose addresses are in these networks.
    pub fn new<'a>(
        hosts: impl IntoIterator<Item = (&'a str, Vec<IpAddr>)>,
        networks: Vec<Prefix>,
    ) -> NameTable {
        let mut book = NameTable { networks, ..NameTable::default() };
        for (name, addresses) in hosts {
            book.hosts.extend(addresses.iter().map(|address| (*address, name.to_owned())));
            book.names.insert(fold(name), addresses);
        }
        book
    }

    /// The content of the lower-case `name`, if it is in one of this responder's zones.
    pub fn look_up(&self, name: &str, domain: &str) -> Option<ZoneEntry<'_>> {
        if name == domain {
            return Some(ZoneEntry { apex: domain.into(), content: RecordContent::Apex });
        }
        if let Some(host) = name.strip_suffix(domain).and_then(|name| name.strip_suffix('.')) {
            let content = match self.names.get(host) {
                Some(addresses) => RecordContent::Addresses(addresses),
                None if self.is_above_another(host) => RecordContent::Empty,
                None => RecordContent::Missing,
            };
            return Some(ZoneEntry { apex: domain.into(), content });
        }
        let (labels, suffix, shape) = match (name.strip_suffix(V6), name.strip_suffix(V4)) {
            (Some(labels), _) => (labels, V6, IPV6),
            (_, Some(labels)) => (labels, V4, IPV4),
            _ => return None,
        };
        self.networks.iter().find_map(|network| self.reverse(network, labels, suffix, shape))
    }

    /// True if a host's name ends with this one, after a dot.
    fn is_above_another(&self, host: &str) -> bool {
        let below = |name: &String| name.strip_suffix(host).is_some_and(|n| n.ends_with('.'));
        self.names.keys().any(below)
    }

    /// The content of a reverse name, if it is in the zone of `network`.
    fn reverse(
        &self,
        network: &Prefix,
        name: &str,
        suffix: &str,
        (whole, bits): (usize, usize),
    ) -> Option<ZoneEntry<'_>> {
        if network.ip().is_ipv6() != (whole == IPV6.0) {
            return None;
        }
        // A zone begins at a whole label: 10.9.0.0/20 has 16 zones, each with its own apex.
        let depth = usize::from(network.bits()).div_ceil(bits).max(1);
        let labels: Vec<&str> = name.rsplit('.').collect();
        let digits: Option<Vec<u8>> =
            labels.iter().take(depth).map(|label| digit(label, bits)).collect();
        let digits = digits.filter(|digits| digits.len() == depth)?;
        if !network.holds(address(&digits, bits)) {
            return None;
        }
        let top: Vec<&str> = labels[..depth].iter().rev().copied().collect();
        let apex = format!("{}{suffix}", top.join("."));
        let all: Option<Vec<u8>> = labels.iter().map(|label| digit(label, bits)).collect();
        let content = match all {
            Some(all) if all.len() == whole => self
                .hosts
                .get(&address(&all, bits))
                .map_or(RecordContent::Missing, |n| RecordContent::Host(n)),
            Some(all) if all.len() == depth => RecordContent::Apex,
            Some(all) if all.len() < whole && self.has_below(&all, bits) => RecordContent::Empty,
            _ => RecordContent::Missing,
        };
        Some(ZoneEntry { apex, content })
    }

    /// True if a host has an address that begins with these digits.
    fn has_below(&self, digits: &[u8], bits: usize) -> bool {
        let (ip, bits) = (address(digits, bits), (digits.len() * bits) as u8);
        Prefix::new(ip, bits).is_some_and(|all| self.hosts.keys().any(|host| all.holds(*host)))
    }
}

const V6: &str = ".ip6.arpa";
const V4: &str = ".in-addr.arpa";

/// The names of the reverse zones of a network; none if there are more than 16.
pub fn reverse_zones(network: &Prefix) -> Vec<String> {
    let (bits, suffix) = if network.ip().is_ipv6() { (IPV6.1, V6) } else { (IPV4.1, V4) };
    let depth = usize::from(network.bits()).div_ceil(bits).max(1);
    let spare = depth * bits - usize::from(network.bits());
    let octets = match network.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().iter().flat_map(|octet| [octet >> 4, octet & 15]).collect(),
    };
    let zone = |n: u8| {
        let mut labels: Vec<u8> = octets[..depth].to_vec();
        labels[depth - 1] |= n;
        let text = |label: &u8| if bits == 4 { format!("{label:x}") } else { label.to_string() };
        format!("{}{suffix}", labels.iter().rev().map(text).collect::<Vec<_>>().join("."))
    };
    if spare > 4 { Vec::new() } else { (0..1 << spare).map(zone).collect() }
}

/// Parses a label of a reverse name.
fn digit(label: &str, bits: usize) -> Option<u8> {
    let is_plain = !label.starts_with('0') || label.len() == 1;
    match bits {
        4 if label.len() == 1 => u8::from_str_radix(label, 16).ok(),
        8 if is_plain && label.bytes().all(|byte| byte.is_ascii_digit()) => label.parse().ok(),
        _ => None,
    }
}

/// The first address that begins with these digits.
fn address(digits: &[u8], bits: usize) -> IpAddr {
    if bits == IPV4.1 {
        let mut octets = [0; 4];
        octets.iter_mut().zip(digits).for_each(|(octet, digit)| *octet = *digit);
        return Ipv4Addr::from(octets).into();
    }
    let digits = digits.iter().chain(std::iter::repeat(&0)).take(IPV6.0);
    Ipv6Addr::from(digits.fold(0_u128, |all, digit| all << 4 | u128::from(*digit))).into()
}
