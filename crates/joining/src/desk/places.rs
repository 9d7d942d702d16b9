//! Choice of a newcomer's name and addresses.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use shoal_crypto::PublicKey;
use shoal_directory::{CircuitRole, Member, Prefix, Register, check_new_name, fold};
use shoal_wire::Address;

use crate::messages::{NameRequest, Refusal};

/// Numbered names tried for a machine that accepts another name: NAME-2, NAME-3, ...
const NAMES_TRIED: u32 = 65_536;

/// A free name and free addresses.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FreeSlot {
    pub(super) name: String,
    pub(super) address: Address,
    /// Address at a second router.
    pub(super) second: Option<Address>,
    pub(super) ipv4: Option<Ipv4Addr>,
}

impl FreeSlot {
    /// A host at this place.
    pub(super) fn member(self, key: PublicKey, expires_unix_s: u64, groups: Vec<String>) -> Member {
        Member {
            version: 1,
            name: self.name,
            key,
            address: self.address,
            second: self.second,
            expires_unix_s,
            endpoint: None,
            groups,
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: true,
            ipv4: self.ipv4,
            cover: None,
            carrier: CircuitRole::default(),
            unknown: Vec::new(),
        }
    }
}

#[derive(Debug)]
pub(super) enum NameChoice {
    /// The invite's name. If it is taken, the machine is refused.
    Given(String),
    /// A name that the machine asks for. Folded names in `kept` are reserved for other machines.
    Wished { wish: NameRequest, kept: BTreeSet<String> },
}

/// Free addresses of a mandate, and a free name. The host is behind the first of `routers` that has
/// room, else at the first free address of the mandate's ranges. Parts of other registrars are
/// never free. Names are compared as DNS compares them.
pub(super) fn choose<'a>(
    register: &Register,
    members: impl Iterator<Item = &'a Member>,
    routers: &[u32],
    naming: NameChoice,
) -> Result<FreeSlot, Refusal> {
    let mandate = register.mandate();
    let (mut names, mut hosts, mut ipv4s) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for member in members {
        names.insert(fold(&member.name));
        hosts.extend(member.addresses().iter());
        ipv4s.extend(member.ipv4);
    }
    let ranges = mandate.hosts.iter();
    let mut all = ranges
        .flat_map(|range| (range.first..=range.last).map(|host| Address::new(range.router, host)));
    let spread = free_behind(register, &hosts, routers);
    let address = spread.or_else(|| all.find(|address| is_free(register, &hosts, *address)));
    let address = address.ok_or(Refusal::Full)?;
    let is_taken =
        |ipv4: Ipv4Addr| ipv4s.contains(&ipv4) || register.is_delegated(address, Some(ipv4));
    let ipv4 = match &mandate.ipv4 {
        None => None,
        Some(prefix) => Some(free_ipv4(prefix, is_taken).ok_or(Refusal::Full)?),
    };
    let name = name(naming, names, address)?;
    Ok(FreeSlot { name, address, second: None, ipv4 })
}

/// The first free address behind the first of these routers that has room.
pub(super) fn free_behind(
    register: &Register,
    taken: &BTreeSet<Address>,
    routers: &[u32],
) -> Option<Address> {
    let mandate = register.mandate();
    let numbers = mandate.rights.numbers.map(|range| (range.first, range.last));
    routers.iter().find_map(|&router| {
        let own = mandate.hosts.iter().filter(|range| range.router == router);
        let ranges = own.map(|range| (range.first, range.last)).chain(numbers);
        let behind =
            |(first, last): (u16, u16)| (first..=last).map(move |host| Address::new(router, host));
        let mut all = ranges.flat_map(behind);
        all.find(|address| is_free(register, taken, *address))
    })
}

/// True if no member has the address, and no other registrar may give it.
fn is_free(register: &Register, taken: &BTreeSet<Address>, address: Address) -> bool {
    !taken.contains(&address) && !register.is_delegated(address, None)
}

/// A free address for a member that moves behind one of these routers.
pub(super) fn choose_router<'a>(
    register: &Register,
    members: impl Iterator<Item = &'a Member>,
    routers: &[u32],
) -> Option<Address> {
    free_behind(register, &members.flat_map(|member| member.addresses().iter()).collect(), routers)
}

/// A free name for a member at this address.
pub(super) fn choose_name<'a>(
    members: impl Iterator<Item = &'a Member>,
    naming: NameChoice,
    at: Address,
) -> Result<String, Refusal> {
    name(naming, members.map(|member| fold(&member.name)).collect(), at)
}

/// A free name. `names` are folded.
fn name(naming: NameChoice, mut names: BTreeSet<String>, at: Address) -> Result<String, Refusal> {
    let (wish, kept) = match naming {
        NameChoice::Given(name) if names.contains(&fold(&name)) => return Err(Refusal::NameTaken),
        NameChoice::Given(name) => return Ok(name),
        NameChoice::Wished { wish, kept } => (wish, kept),
    };
    names.extend(kept);
    let NameRequest { name, or_another } = wish;
    let any = || match at.is_router() {
        true => format!("router-{}", at.router),
        false => format!("host-{}", at.host),
    };
    let (base, or_another) = match name {
        None => (any(), true),
        // A reserved name such as `localhost` would mislead programs.
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

/// `base` with the least suffix number that makes the name free.
fn another(base: &str, names: &BTreeSet<String>) -> Option<String> {
    let with = |n: u32| {
        let end = format!("-{n}");
        let room = shoal_directory::NAME_MAX - end.len();
        format!("{}{end}", base.chars().take(room).collect::<String>())
    };
    (2..NAMES_TRIED).map(with).find(|name| !names.contains(&fold(name)))
}

/// The lowest free address of the prefix. The first and last address of a prefix with more than two
/// are never host addresses.
fn free_ipv4(prefix: &Prefix, is_taken: impl Fn(Ipv4Addr) -> bool) -> Option<Ipv4Addr> {
    let IpAddr::V4(first) = prefix.ip() else { return None };
    let first = u32::from(first);
    let last = first | u32::MAX.checked_shr(prefix.bits().into()).unwrap_or(0);
    let edge = u32::from(prefix.bits() < 31);
    let mut hosts = (first + edge..=last - edge).map(Ipv4Addr::from);
    // The search ends after at most one more address than are taken.
    hosts.find(|ipv4| !is_taken(*ipv4) && shoal_directory::is_host(ipv4))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::Identity;
    use shoal_directory::{Mandate, MandateRights, NumberRange};

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
            rights: MandateRights::default(),
        }
    }

    fn member(name: &str, address: Address, ipv4: Option<[u8; 4]>) -> Member {
        Member {
            version: 1,
            name: name.into(),
            key: Identity::from_seed([2; 32]).public(),
            address,
            second: None,
            expires_unix_s: 9,
            endpoint: None,
            groups: Vec::new(),
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: true,
            ipv4: ipv4.map(Into::into),
            cover: None,
            carrier: CircuitRole::default(),
            unknown: Vec::new(),
        }
    }

    fn wished(name: Option<&str>, or_another: bool) -> NameChoice {
        let wish = NameRequest { name: name.map(Into::into), or_another };
        NameChoice::Wished { wish, kept: BTreeSet::from(["carl".into()]) }
    }

    #[test]
    fn the_first_free_place_is_taken() {
        let choose = |members: &[Member]| {
            let naming = wished(None, false);
            let place = choose(&Register::new(mandate()), members.iter(), &[], naming)?;
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
    fn the_first_router_with_room_gets_the_host() {
        let numbers = NumberRange { first: 7, last: 8 };
        let rights = MandateRights { numbers: Some(numbers), ..MandateRights::default() };
        let register = Register::new(Mandate { rights, ipv4: None, ..mandate() });
        let choose = |members: &[Member], routers: &[u32]| {
            let place = choose(&register, members.iter(), routers, wished(None, true))?;
            Ok::<_, Refusal>(place.address.to_string())
        };
        let at =
            |router, host| member(&format!("m{router}-{host}"), Address::new(router, host), None);
        assert_eq!(choose(&[], &[5, 1]).unwrap(), "5.7");
        assert_eq!(choose(&[], &[1]).unwrap(), "1.100", "ranges of the router come first");
        let full = [at(5, 7), at(5, 8)];
        assert_eq!(choose(&full, &[5, 9]).unwrap(), "9.7");
        assert_eq!(choose(&full, &[5]).unwrap(), "1.100", "the mandate's ranges come last");
        assert_eq!(choose_router(&register, full.iter(), &[5]), None, "a move has no such way out");
        assert_eq!(choose_router(&register, full.iter(), &[5, 2]), Some(Address::new(2, 7)));
        let two = [Member { second: Some(Address::new(5, 7)), ..at(9, 7) }];
        assert_eq!(choose_router(&register, two.iter(), &[5]), Some(Address::new(5, 8)));
    }

    #[test]
    fn the_edges_of_a_network_are_nobodys() {
        let prefix = |text: &str| text.parse::<Prefix>().unwrap();
        let all = |text: &str| {
            let mut taken = BTreeSet::new();
            while let Some(free) = free_ipv4(&prefix(text), |ipv4| taken.contains(&ipv4)) {
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
        let register = Register::new(mandate());
        let choose = |naming| choose(&register, bob.iter(), &[], naming).map(|place| place.name);
        assert_eq!(choose(wished(Some("al"), false)), Ok("al".into()));
        assert_eq!(choose(wished(Some("Bob."), false)), Err(Refusal::NameTaken));
        assert_eq!(choose(wished(Some("BOB"), false)), Err(Refusal::NameTaken));
        assert_eq!(choose(wished(Some("BOB"), true)), Ok("BOB-2".into()));
        assert_eq!(choose(wished(Some("Carl"), true)), Ok("Carl-2".into()));
        assert_eq!(choose(NameChoice::Given("carl".into())), Ok("carl".into()));
        assert_eq!(choose(NameChoice::Given("BOB".into())), Err(Refusal::NameTaken));
        assert_eq!(choose(wished(Some("localhost"), true)), Ok("host-101".into()));
        let long = "x".repeat(63);
        let names = BTreeSet::from([long.clone()]);
        let other = another(&long, &names).unwrap();
        assert!(other.len() == 63 && other.ends_with("x-2"));
    }
}
