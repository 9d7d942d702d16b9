//! Addresses that hop on a segment: a thread that adds them to the interface and removes them.
//!
//! Each is there from an epoch before it is used, but for those of a session's first hop, which
//! begins at once: steps that are lost until they are there are sent again. It is there without
//! detection of duplicates, which takes a second, without a route of its own, and deprecated, so
//! that no other program sends from it. Its lifetime is short and renewed: what a node that was
//! killed leaves is soon gone by itself.
//!
//! The node has given up its privileges by then (`privileged.rs`).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::net::if_::InterfaceFlags;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, CacheInfo};
use rtnetlink::{AddressMessageBuilder, Handle};

use crate::config::HopPrefix;
use crate::tun::privileged::{Keeper, MOVE_WAIT, Privileged};

/// Addresses on the interface at once, of all links.
const ADDRESSES_MAX: usize = 256;
/// How long one stays when nobody renews it, in seconds, ...
const LIFETIME_S: u32 = 30;
/// ... and how often it is renewed.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// IFA_F_NOPREFIXROUTE of linux/if_addr.h.
const NO_PREFIX_ROUTE: u32 = 0x200;
/// The kernel's list of addresses, in this thread's namespace.
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// Flags of addresses that hop: IFA_F_NODAD and IFA_F_DEPRECATED of linux/if_addr.h, ...
const PASSING: u32 = 0x22;
/// ... and not IFA_F_PERMANENT, which all have whose lifetime does not end.
const PERMANENT: u32 = 0x80;

/// An address under the prefix: its interface's number and name, its identifier, and whether it is
/// one that hops.
struct Listed {
    index: u32,
    name: String,
    identifier: u64,
    hops: bool,
}

/// Addresses under the prefix, from the kernel's list of a line each.
fn listed(list: &str, prefix: HopPrefix) -> impl Iterator<Item = Listed> + '_ {
    list.lines().filter_map(move |line| {
        // Address, number of the interface, bits of the prefix, scope, flags, interface.
        let mut words = line.split_ascii_whitespace();
        let ip = Ipv6Addr::from(u128::from_str_radix(words.next()?, 16).ok()?);
        let index = u32::from_str_radix(words.next()?, 16).ok()?;
        let bits = u32::from_str_radix(words.next()?, 16).ok()?;
        let flags = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        let name = words.next()?.to_string();
        // Also what a node left that was killed.
        let hops = bits == 128 && flags & (PASSING | PERMANENT) == PASSING;
        let identifier = u128::from(ip) as u64;
        let is_under = ip.octets().starts_with(&prefix.0);
        is_under.then_some(Listed { index, name, identifier, hops })
    })
}

/// Those of them that stay.
fn staying(list: &str, prefix: HopPrefix) -> impl Iterator<Item = Listed> + '_ {
    listed(list, prefix).filter(|at| !at.hops)
}

/// The interface whose segment has the prefix: its name, its number, and the identifiers under the
/// prefix that are this machine's own.
pub struct Segment {
    /// Its name.
    pub name: String,
    index: u32,
    /// Identifiers of addresses that stay.
    pub own: Vec<u64>,
}

impl Segment {
    /// Finds it: the interface that has an address under the prefix, is no loopback, and not the
    /// one `inside`, behind which machines with addresses of the prefix are.
    pub fn find(prefix: HopPrefix, inside: Option<&str>) -> anyhow::Result<Option<Segment>> {
        let all = nix::ifaddrs::getifaddrs().context("[hop]: can't list interfaces")?;
        let others = InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_POINTOPOINT;
        let others = all.filter(|at| at.flags.intersects(others)).map(|at| at.interface_name);
        let others: BTreeSet<String> = others.collect();
        let mut found: Option<Segment> = None;
        let list = match std::fs::read_to_string(ADDRESSES) {
            // So it is where IPv6 is turned off.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            list => list.context("[hop]: can't list addresses")?,
        };
        let is_outside =
            |at: &Listed| !others.contains(&at.name) && inside != Some(at.name.as_str());
        for at in staying(&list, prefix).filter(is_outside) {
            match &mut found {
                Some(segment) if segment.index == at.index => segment.own.push(at.identifier),
                Some(segment) => bail!(
                    "[hop] prefix: {} and {} both have addresses under it",
                    segment.name,
                    at.name
                ),
                None => {
                    let own = vec![at.identifier];
                    found = Some(Segment { name: at.name, index: at.index, own });
                }
            }
        }
        if let Some(segment) = &mut found {
            segment.own.sort_unstable();
        }
        Ok(found)
    }
}

/// Removes its addresses, and ends its thread, when it is dropped.
pub struct HopAddresses {
    thread: Privileged<AddressKeeper>,
    staying: Receiver<(Place, Vec<u64>)>,
    place: Place,
}

impl HopAddresses {
    /// Starts the thread ([`Privileged::start`]).
    pub fn start(segment: &Segment, prefix: HopPrefix) -> anyhow::Result<HopAddresses> {
        let (tells, staying) = std::sync::mpsc::sync_channel(1);
        let place = Place { interface: segment.index, prefix };
        let thread = Privileged::start(AddressKeeper {
            told: place,
            name: Some(segment.name.clone()),
            place,
            wanted: BTreeSet::new(),
            held: BTreeSet::new(),
            left: Vec::new(),
            renewed: Instant::now(),
            own: Some(segment.own.clone()),
            tells,
        })?;
        Ok(HopAddresses { thread, staying, place })
    }

    /// Has the thread give up all rights but the one to change addresses; returns when it has.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.thread.seal()
    }

    /// Has the interface have these addresses and no others; does not wait for it.
    pub fn set(&self, wanted: BTreeSet<u64>) {
        self.thread.set((self.place, wanted));
    }

    /// Has the segment's interface have these addresses under this prefix, and waits a moment for
    /// it, so that who is told of them finds them there. Those before stay until their time is
    /// over, since neighbours that have not heard of it still send there.
    ///
    /// Errors: the kernel refuses some, other than that there are too many, as there were before;
    /// the place is what it was, to be [set](Self::set) anew.
    pub fn move_to(
        &mut self,
        segment: &Segment,
        prefix: HopPrefix,
        wanted: BTreeSet<u64>,
    ) -> anyhow::Result<()> {
        let place = Place { interface: segment.index, prefix };
        let moved = self.thread.set_and_wait((place, wanted.clone()), MOVE_WAIT);
        match moved {
            Err(why) if Some(&why) != too_many(wanted.len()).as_ref() => {
                self.set(wanted);
                bail!("[hop] prefix: {why}; addresses hop where they did")
            }
            _ => self.place = place,
        }
        Ok(())
    }

    /// Takes the identifiers of addresses that stay, if they are others than before.
    pub fn take_staying(&self) -> Option<Vec<u64>> {
        // The thread may have looked at another place before it heard of this one.
        self.staying.try_iter().filter(|(at, _)| *at == self.place).map(|(_, own)| own).last()
    }

    /// Why the interface does not have them all.
    pub fn fault(&self) -> Option<String> {
        self.thread.faults().into_iter().next()
    }
}

/// Where the addresses are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    interface: u32,
    prefix: HopPrefix,
}

impl Place {
    fn address(&self, identifier: u64) -> Ipv6Addr {
        (u128::from(self.prefix.address()) | u128::from(identifier)).into()
    }

    /// Whether the interface has this address as one that hops: a node left it that was killed, and
    /// by its keys it is this one's.
    fn was_left(self, identifier: u64) -> bool {
        let list = std::fs::read_to_string(ADDRESSES).unwrap_or_default();
        let is_it = |at: &Listed| at.index == self.interface && at.identifier == identifier;
        listed(&list, self.prefix).any(|at| is_it(&at) && at.hops)
    }
}

struct AddressKeeper {
    /// The place where the node wants addresses.
    told: Place,
    /// The name of the interface there: another one may get it, with another number.
    name: Option<String>,
    /// The place of the addresses: the interface that has the name now.
    place: Place,
    wanted: BTreeSet<u64>,
    held: BTreeSet<u64>,
    /// Addresses in places before this one, and until when they are there.
    left: Vec<(Place, u64, Instant)>,
    /// When all lifetimes began anew.
    renewed: Instant,
    /// Identifiers of addresses that stay here, as they were told last.
    own: Option<Vec<u64>>,
    tells: SyncSender<(Place, Vec<u64>)>,
}

impl AddressKeeper {
    /// Takes the place that the node says, or follows the interface's name to another interface.
    fn settle(&mut self, told: Option<Place>) {
        if let Some(told) = told.filter(|told| *told != self.told || self.name.is_none()) {
            self.told = told;
            self.name = name_of(told.interface);
        }
        let index = self.name.as_deref().and_then(|name| nix::net::if_::if_nametoindex(name).ok());
        let interface = index.unwrap_or(self.told.interface);
        let place = Place { interface, ..self.told };
        if interface != self.place.interface && place.prefix == self.place.prefix {
            // The interface was made anew, and what it had went with it.
            self.held.clear();
            self.renewed = self.renewed.checked_sub(RENEW_EVERY).unwrap_or(self.renewed);
        }
        self.move_to(place);
    }

    /// Leaves what is held in the former place to its lifetime.
    fn move_to(&mut self, place: Place) {
        let (now, former) = (Instant::now(), std::mem::replace(&mut self.place, place));
        self.left.retain(|(.., until)| now < *until);
        if former != place {
            let until = now + Duration::from_secs(LIFETIME_S.into());
            let held = std::mem::take(&mut self.held).into_iter();
            self.left.extend(held.map(|id| (former, id, until)));
            // Back where it was: they are there, and their lifetimes begin anew.
            let back = self.left.extract_if(.., |(known, ..)| *known == place);
            self.held = back.map(|(_, id, _)| id).collect();
            let many = self.left.len().saturating_sub(ADDRESSES_MAX);
            self.left.drain(..many);
            if !self.held.is_empty() {
                self.renewed = now.checked_sub(RENEW_EVERY).unwrap_or(self.renewed);
            }
            self.own = None;
        }
    }

    /// Looks which addresses stay, and tells it if others did before.
    fn look(&mut self) {
        let Ok(list) = std::fs::read_to_string(ADDRESSES) else { return };
        let here = staying(&list, self.place.prefix);
        let here = here.filter(|at| at.index == self.place.interface);
        let mut own: Vec<u64> = here.map(|at| at.identifier).collect();
        own.sort_unstable();
        // What finds no room is told after the next look.
        let told = Some(&own) == self.own.as_ref();
        if !told && self.tells.try_send((self.told, own.clone())).is_ok() {
            self.own = Some(own);
        }
    }

    /// Adds what is wanted and not there; with `renews`, all lifetimes begin anew.
    ///
    /// Errors: why some could not be had. A link that should hop to one falls back by itself.
    async fn add_all(&mut self, kernel: &Handle, renews: bool) -> Vec<String> {
        let (mut failed, mut first) = (0, None);
        for &id in self.wanted.iter().take(ADDRESSES_MAX) {
            let is_held = self.held.contains(&id);
            if is_held && !renews {
                continue;
            }
            let added = match add(kernel, self.place, id, is_held).await {
                Err(error) if is_there_already(&error) && self.place.was_left(id) => {
                    add(kernel, self.place, id, true).await
                }
                added => added,
            };
            match added {
                Ok(()) => {
                    self.held.insert(id);
                }
                Err(error) => {
                    self.held.remove(&id);
                    failed += 1;
                    first.get_or_insert(error);
                }
            }
        }
        match first {
            Some(error) => vec![format!("{failed} addresses can't be added: {error}")],
            None => too_many(self.wanted.len()).into_iter().collect(),
        }
    }
}

/// Whether the kernel has already what it was to add.
pub(crate) fn is_there_already(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(said) if said.raw_code() == -libc::EEXIST)
}

/// The name of the interface with this number.
fn name_of(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index).ok()?;
    name.into_string().ok()
}

/// What is wrong if so many addresses are wanted.
fn too_many(wanted: usize) -> Option<String> {
    (wanted > ADDRESSES_MAX).then(|| {
        format!("{wanted} addresses are in use, and a segment gets {ADDRESSES_MAX} at most")
    })
}

impl Keeper for AddressKeeper {
    type Wanted = (Place, BTreeSet<u64>);
    const THREAD: &'static str = "shoal-hops";
    const SETTING: &'static str = "[hop] mode";
    const NEEDS: &'static str = "no address can be added without CAP_NET_ADMIN: start with it";

    async fn keep(
        &mut self,
        kernel: &Handle,
        wanted: Option<(Place, BTreeSet<u64>)>,
    ) -> Vec<String> {
        let (told, wanted) = wanted.unzip();
        self.settle(told);
        self.wanted = wanted.unwrap_or_else(|| std::mem::take(&mut self.wanted));
        let renews = self.renewed.elapsed() >= RENEW_EVERY;
        if renews {
            self.renewed = Instant::now();
            self.look();
        }
        for id in self.held.difference(&self.wanted).copied().collect::<Vec<_>>() {
            remove(kernel, self.place, id).await;
            self.held.remove(&id);
        }
        self.add_all(kernel, renews).await
    }

    fn due(&self) -> Option<Instant> {
        Some(self.renewed + RENEW_EVERY)
    }

    async fn end(&mut self, kernel: &Handle) {
        self.keep(kernel, Some((self.told, BTreeSet::new()))).await;
        for (place, id, _) in std::mem::take(&mut self.left) {
            remove(kernel, place, id).await;
        }
    }

    fn log(_faults: &[String], again: bool) {
        if !again {
            tracing::error!("[hop]: addresses are missing on the segment: see `shoal status`");
        }
    }
}

async fn remove(kernel: &Handle, place: Place, id: u64) {
    let mut message = AddressMessageBuilder::<Ipv6Addr>::new();
    message = message.index(place.interface).address(place.address(id), 128);
    // If it fails, its lifetime has ended, or somebody else has removed it.
    let _gone = kernel.address().del(message.build()).execute().await;
}

/// Adds an address, or begins its lifetime anew. One that is new must not be there: somebody else's
/// would be lost with this node.
async fn add(handle: &Handle, place: Place, id: u64, renew: bool) -> Result<(), rtnetlink::Error> {
    let ip = IpAddr::V6(place.address(id));
    let mut request = handle.address().add(place.interface, ip, 128);
    let flags = AddressFlags::Nodad | AddressFlags::from_bits_retain(NO_PREFIX_ROUTE);
    let mut lifetime = CacheInfo::default();
    lifetime.ifa_valid = LIFETIME_S;
    let attributes = &mut request.message_mut().attributes;
    attributes.extend([AddressAttribute::Flags(flags), AddressAttribute::CacheInfo(lifetime)]);
    if renew { request.replace().execute().await } else { request.execute().await }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_hops_is_none_that_stays() {
        let list = "20010db8000100020000000000000001 04 40 00 80     wire
20010db800010002000000000000000a 04 80 00 22     wire
20010db800010002000000000000000b 04 80 00 a2     wire
20010db800010002000000000000000c 04 80 00 00     wire
20010db800010002000000000000000d 04 40 00 22     wire
20010db8000100030000000000000001 04 40 00 80     wire
no line
00000000000000000000000000000001 01 80 10 80       lo
";
        let prefix = HopPrefix([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2]);
        let found: Vec<_> = staying(list, prefix).map(|at| at.identifier).collect();
        assert_eq!(found, [1, 0xb, 0xc, 0xd]);
        assert!(staying(list, prefix).all(|at| at.index == 4 && at.name == "wire"));
    }

    #[test]
    fn what_stays_is_told_once_when_it_changes() {
        let (mut keeper, told) = keeper(vec![7]);
        assert_eq!(keeper.due(), Some(keeper.renewed + RENEW_EVERY));
        // The loopback interface has no address of the documentation's prefix.
        keeper.look();
        assert_eq!(told.try_recv().map(|(_, own)| own), Ok(Vec::new()));
        keeper.look();
        assert!(told.try_recv().is_err());
    }

    type Told = Receiver<(Place, Vec<u64>)>;

    /// Of addresses of the loopback interface.
    fn keeper(own: Vec<u64>) -> (AddressKeeper, Told) {
        let (tells, told) = std::sync::mpsc::sync_channel(1);
        let (wanted, held, renewed) = (BTreeSet::new(), BTreeSet::new(), Instant::now());
        let (own, left, place, name) = (Some(own), Vec::new(), place(2), None);
        (AddressKeeper { told: place, name, place, wanted, held, left, renewed, own, tells }, told)
    }

    fn place(last: u8) -> Place {
        Place { interface: 1, prefix: HopPrefix([0x20, 1, 0x0d, 0xb8, 0, 1, 0, last]) }
    }

    /// What the interface has: the last digit of the prefix, and the identifier.
    fn there() -> Vec<(u8, u64)> {
        let list = std::fs::read_to_string(ADDRESSES).unwrap();
        let words = list.lines().filter_map(|line| line.strip_prefix("20010db80001000"));
        let parts = words.map(|line| (&line[..1], &line[1..17]));
        let read = |(prefix, id)| {
            (u8::from_str_radix(prefix, 16).unwrap(), u64::from_str_radix(id, 16).unwrap())
        };
        let mut all: Vec<_> = parts.map(read).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn an_interface_that_is_made_anew_gets_its_addresses_again() {
        if crate::tun::privileged::is_without_ip(
            "an_interface_that_is_made_anew_gets_its_addresses_again",
        ) {
            return;
        }
        crate::tun::privileged::in_a_namespace(async |kernel| {
            let ip = |words: &str| {
                let done = std::process::Command::new("ip").args(words.split(' ')).status();
                assert!(done.unwrap().success(), "ip {words}");
            };
            let make = || {
                ip("link add wire type veth peer name other");
                ip("link set wire up");
                ip("addr add 2001:db8:1:2::7/64 dev wire nodad");
            };
            make();
            let index = || nix::net::if_::if_nametoindex("wire").unwrap();
            let (mut keeper, told) = keeper(vec![7]);
            let at = Place { interface: index(), ..place(2) };
            let wanted = Some((at, BTreeSet::from([1, 2])));
            assert_eq!(keeper.keep(kernel, wanted).await, [""; 0]);
            assert_eq!(there(), [(2, 1), (2, 2), (2, 7)]);
            ip("link del wire");
            make();
            assert_ne!(index(), at.interface);
            assert_eq!(keeper.keep(kernel, None).await, [""; 0]);
            assert_eq!(there(), [(2, 1), (2, 2), (2, 7)]);
            assert_eq!(told.try_recv().ok(), Some((at, vec![7])), "told of the same place");
            keeper.end(kernel).await;
            assert_eq!(there(), [(2, 7)]);
        });
    }

    #[test]
    fn a_move_and_one_back_lose_no_address_and_the_end_leaves_none() {
        crate::tun::privileged::in_a_namespace(async |kernel| {
            let (mut keeper, told) = keeper(Vec::new());
            let ask = async |keeper: &mut AddressKeeper, at, ids: &[u64]| {
                let wanted = Some((place(at), ids.iter().copied().collect()));
                assert_eq!(keeper.keep(kernel, wanted).await, [""; 0]);
                there()
            };
            assert_eq!(ask(&mut keeper, 2, &[1, 2]).await, [(2, 1), (2, 2)]);
            let both = [(2, 1), (2, 2), (3, 2), (3, 4)];
            assert_eq!(ask(&mut keeper, 3, &[2, 4]).await, both);
            // Back: what hops no more is taken away, and what is there begins anew.
            assert_eq!(ask(&mut keeper, 2, &[2, 4]).await, [(2, 2), (2, 4), (3, 2), (3, 4)]);
            assert_eq!(keeper.held, BTreeSet::from([2, 4]));
            assert_eq!(told.try_recv().ok(), Some((place(2), Vec::new())), "told anew");
            keeper.end(kernel).await;
            assert_eq!(there(), []);
        });
    }

    #[test]
    fn what_a_killed_node_left_is_taken_over_and_what_others_have_is_not() {
        crate::tun::privileged::in_a_namespace(async |kernel| {
            add(kernel, place(2), 1, false).await.unwrap();
            let ip = IpAddr::V6(place(2).address(2));
            kernel.address().add(1, ip, 128).execute().await.unwrap();
            let (mut keeper, _told) = keeper(Vec::new());
            let wanted = Some((place(2), BTreeSet::from([1, 2])));
            let faults = keeper.keep(kernel, wanted).await;
            assert!(faults[0].starts_with("1 addresses can't be added"), "{faults:?}");
            assert_eq!(keeper.held, BTreeSet::from([1]));
            keeper.end(kernel).await;
            assert_eq!(there(), [(2, 2)]);
        });
    }

    #[test]
    fn an_address_that_is_refused_is_told_and_those_before_stay() {
        crate::tun::privileged::in_a_namespace(async |kernel| {
            let (mut keeper, _told) = keeper(Vec::new());
            let ids = BTreeSet::from([1]);
            assert_eq!(keeper.keep(kernel, Some((place(2), ids.clone()))).await, [""; 0]);
            let nowhere = Place { interface: 77, ..place(3) };
            let faults = keeper.keep(kernel, Some((nowhere, ids.clone()))).await;
            assert!(faults[0].starts_with("1 addresses can't be added"), "{faults:?}");
            assert_eq!(there(), [(2, 1)]);
            assert_eq!(keeper.keep(kernel, Some((place(2), ids))).await, [""; 0]);
            keeper.end(kernel).await;
            assert_eq!(there(), []);
        });
    }

    #[test]
    fn what_is_told_of_another_place_is_not_taken() {
        let (tells, staying) = std::sync::mpsc::sync_channel(2);
        let (keeper, _) = keeper(Vec::new());
        let thread = Privileged::start(keeper).unwrap();
        let addresses = HopAddresses { thread, staying, place: place(3) };
        tells.send((place(2), vec![7])).unwrap();
        assert_eq!(addresses.take_staying(), None);
        tells.send((place(3), vec![8])).unwrap();
        assert_eq!(addresses.take_staying(), Some(vec![8]));
    }
}
