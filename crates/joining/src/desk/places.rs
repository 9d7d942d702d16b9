//! Which name and addresses a newcomer gets.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use shoal_directory::{Mandate, Member, Prefix, check_new_name, fold};
use shoal_wire::Address;

use crate::messages::{Refusal, Wish};

/// Names that are tried for a machine that takes another one: NAME-2, NAME-3, ...
const NAMES_TRIED: u32 = 65_536;

/// A place that nobody has.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) address: Address,
    pub(super) ipv4: Option<Ipv4Addr>,
}

/// The name that a machine gets.
#[derive(Debug)]
pub(super) enum Naming {
    /// The invite's name: that one or none.
    Given(String),
    /// A name that the machine wishes for. Folded names in `kept` wait for other machines.
    Wished { wish: Wish, kept: BTreeSet<String> },
}

/// The first free place of a mandate. Names are compared as DNS compares them.
pub(super) fn choose<'a>(
    mandate: &Mandate,
    members: impl Iterator<Item = &'a Member>,
    naming: Naming,
) -> Result<Place, Refusal> {
    let (mut names, mut hosts, mut ipv4s) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for member in members {
        names.insert(fold(&member.name));
        hosts.insert(member.address);
        ipv4s.extend(member.ipv4);
    }
    let ranges = mandate.hosts.iter();
    let mut all = ranges
        .flat_map(|range| (range.first..=range.last).map(|host| Address::new(range.router, host)));
    let address = all.find(|address| !hosts.contains(address)).ok_or(Refusal::Full)?;
    let ipv4 = match &mandate.ipv4 {
        None => None,
        Some(prefix) => Some(free_ipv4(prefix, &ipv4s).ok_or(Refusal::Full)?),
    };
    let name = name(naming, names, address)?;
    Ok(Place { name, address, ipv4 })
}

/// A name that nobody has. `names` are folded.
fn name(naming: Naming, mut names: BTreeSet<String>, at: Address) -> Result<String, Refusal> {
    let (wish, kept) = match naming {
        Naming::Given(name) if names.contains(&fold(&name)) => return Err(Refusal::NameTaken),
        Naming::Given(name) => return Ok(name),
        Naming::Wished { wish, kept } => (wish, kept),
    };
    names.extend(kept);
    let Wish { name, or_another } = wish;
    let any = || format!("host-{}", at.host);
    let (base, or_another) = match name {
        None => (any(), true),
        // Programs would take the name for something else.
        Some(name) if check_new_name(&name).is_err() && or_another => (any(), true),
        Some(name) if check_new_name(&name).is_err() => return Err(Refusal::NameTaken),
        Some(name) => (name, or_another),
    };
    match names.contains(&fold(&base)) {
        false => Ok(base),
        true if or_another => another(&base, &names).ok_or(Refusal::NameTaken),
        true => Err(Refusal::NameTaken),
    }
}

/// `base` with the least number behind it that makes it nobody's.
fn another(base: &str, names: &BTreeSet<String>) -> Option<String> {
    let with = |n: u32| {
        let end = format!("-{n}");
        let room = shoal_directory::NAME_MAX - end.len();
        format!("{}{end}", base.chars().take(room).collect::<String>())
    };
    (2..NAMES_TRIED).map(with).find(|name| !names.contains(&fold(name)))
}

/// The least address of the network that nobody has; never its first or last one, which are no
/// host's where it has more than two.
fn free_ipv4(prefix: &Prefix, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
    let IpAddr::V4(first) = prefix.ip() else { return None };
    let first = u32::from(first);
    let last = first | u32::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
    let edge = u32::from(prefix.bits() < 31);
    let mut hosts = (first + edge..=last - edge).map(Ipv4Addr::from);
    // As many as are taken, and one more, are looked at.
    hosts.find(|ipv4| !taken.contains(ipv4) && shoal_directory::is_host(ipv4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;
    use shoal_directory::Carrier;

    fn mandate() -> Mandate {
        Mandate {
            name: "desk".into(),
            serial: 1,
            key: Identity::from_seed([1; 32]).public(),
            groups: Vec::new(),
            hosts: vec!["1.100-1.101".parse().unwrap(), "2.7".parse().unwrap()],
            ipv4: Some("10.9.0.0/29".parse().unwrap()),
            most: 9,
            longest_s: 9,
            until_unix_s: 9,
        }
    }

    fn member(name: &str, address: Address, ipv4: Option<[u8; 4]>) -> Member {
        Member {
            version: 1,
            name: name.into(),
            key: Identity::from_seed([2; 32]).public(),
            address,
            expires_unix_s: 9,
            endpoint: None,
            groups: Vec::new(),
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: true,
            ipv4: ipv4.map(Into::into),
            cover: None,
            carrier: Carrier::default(),
            unknown: Vec::new(),
        }
    }

    fn wished(name: Option<&str>, or_another: bool) -> Naming {
        let wish = Wish { name: name.map(Into::into), or_another };
        Naming::Wished { wish, kept: BTreeSet::from(["carl".into()]) }
    }

    #[test]
    fn the_first_free_place_is_taken() {
        let choose = |members: &[Member]| {
            let naming = wished(None, false);
            let place = choose(&mandate(), members.iter(), naming)?;
            Ok((place.name, place.address.to_string(), place.ipv4.unwrap().octets()[3]))
        };
        assert_eq!(choose(&[]), Ok(("host-100".into(), "1.100".into(), 1)));
        let a = member("host-101", Address::new(1, 100), Some([10, 9, 0, 1]));
        assert_eq!(choose(std::slice::from_ref(&a)), Ok(("host-101-2".into(), "1.101".into(), 2)));
        let b = member("b", Address::new(1, 101), Some([10, 9, 0, 3]));
        assert_eq!(choose(&[a.clone(), b.clone()]), Ok(("host-7".into(), "2.7".into(), 2)));
        let c = member("c", Address::new(2, 7), None);
        assert_eq!(choose(&[a, b, c]), Err(Refusal::Full));
    }

    #[test]
    fn the_edges_of_a_network_are_nobodys() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let all = |text: &str| {
            let mut taken = BTreeSet::new();
            while let Some(free) = free_ipv4(&prefix(text), &taken) {
                taken.insert(free);
            }
            taken.into_iter().map(|ipv4| ipv4.octets()[3]).collect::<Vec<_>>()
        };
        assert_eq!(all("10.9.0.0/30"), [1, 2]);
        assert_eq!(all("10.9.0.2/31"), [2, 3]);
        assert_eq!(all("10.9.0.7/32"), [7]);
    }

    #[test]
    fn a_name_is_nobodys_twice() {
        let bob = [member("bob", Address::new(1, 100), None)];
        let choose = |naming| choose(&mandate(), bob.iter(), naming).map(|place| place.name);
        assert_eq!(choose(wished(Some("al"), false)), Ok("al".into()));
        assert_eq!(choose(wished(Some("Bob."), false)), Err(Refusal::NameTaken));
        assert_eq!(choose(wished(Some("BOB"), false)), Err(Refusal::NameTaken));
        assert_eq!(choose(wished(Some("BOB"), true)), Ok("BOB-2".into()));
        assert_eq!(choose(wished(Some("Carl"), true)), Ok("Carl-2".into()));
        assert_eq!(choose(Naming::Given("carl".into())), Ok("carl".into()));
        assert_eq!(choose(Naming::Given("BOB".into())), Err(Refusal::NameTaken));
        assert_eq!(choose(wished(Some("localhost"), true)), Ok("host-101".into()));
        let long = "x".repeat(63);
        let names = BTreeSet::from([long.clone()]);
        let other = another(&long, &names).unwrap();
        assert!(other.len() == 63 && other.ends_with("x-2"));
    }
}
