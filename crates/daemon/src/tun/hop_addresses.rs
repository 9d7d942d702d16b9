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
use crate::tun::privileged::{Keeper, Privileged};

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

/// An address that stays: its interface's number and name, and its identifier.
struct Staying {
    index: u32,
    name: String,
    identifier: u64,
}

/// Addresses under the prefix but those that hop, from the kernel's list of a line each.
fn staying(list: &str, prefix: HopPrefix) -> impl Iterator<Item = Staying> + '_ {
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
        let is_its = ip.octets().starts_with(&prefix.0) && !hops;
        is_its.then(|| Staying { index, name, identifier: u128::from(ip) as u64 })
    })
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
            |at: &Staying| !others.contains(&at.name) && inside != Some(at.name.as_str());
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
    staying: Receiver<Vec<u64>>,
}

impl HopAddresses {
    /// Starts the thread ([`Privileged::start`]).
    pub fn start(segment: &Segment, prefix: HopPrefix) -> anyhow::Result<HopAddresses> {
        let (tells, staying) = std::sync::mpsc::sync_channel(1);
        let thread = Privileged::start(AddressKeeper {
            place: Place { interface: segment.index, prefix },
            wanted: BTreeSet::new(),
            held: BTreeSet::new(),
            renewed: Instant::now(),
            own: segment.own.clone(),
            tells,
        })?;
        Ok(HopAddresses { thread, staying })
    }

    /// Has the thread give up all rights but the one to change addresses; returns when it has.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.thread.seal()
    }

    /// Has the interface have these addresses and no others; does not wait for it.
    pub fn set(&self, wanted: BTreeSet<u64>) {
        self.thread.set(wanted);
    }

    /// Takes the identifiers of addresses that stay, if they are others than before.
    pub fn take_staying(&self) -> Option<Vec<u64>> {
        self.staying.try_recv().ok()
    }

    /// Why the interface does not have them all.
    pub fn fault(&self) -> Option<String> {
        self.thread.faults().into_iter().next()
    }
}

/// Where the addresses are.
#[derive(Clone, Copy)]
struct Place {
    interface: u32,
    prefix: HopPrefix,
}

impl Place {
    fn address(&self, identifier: u64) -> Ipv6Addr {
        (u128::from(self.prefix.address()) | u128::from(identifier)).into()
    }
}

struct AddressKeeper {
    place: Place,
    wanted: BTreeSet<u64>,
    held: BTreeSet<u64>,
    /// When all lifetimes began anew.
    renewed: Instant,
    /// Identifiers of addresses that stay, as they were told last.
    own: Vec<u64>,
    tells: SyncSender<Vec<u64>>,
}

impl AddressKeeper {
    /// Looks which addresses stay, and tells it if others did before.
    fn look(&mut self) {
        let Ok(list) = std::fs::read_to_string(ADDRESSES) else { return };
        let here = staying(&list, self.place.prefix);
        let here = here.filter(|at| at.index == self.place.interface);
        let mut own: Vec<u64> = here.map(|at| at.identifier).collect();
        own.sort_unstable();
        // What finds no room is told after the next look.
        if own != self.own && self.tells.try_send(own.clone()).is_ok() {
            self.own = own;
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
            match add(kernel, self.place, id, is_held).await {
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
        let many = self.wanted.len();
        match first {
            Some(error) => vec![format!("{failed} addresses can't be added: {error}")],
            None if many > ADDRESSES_MAX => vec![format!(
                "{many} addresses are in use, and a segment gets {ADDRESSES_MAX} at most"
            )],
            None => Vec::new(),
        }
    }
}

impl Keeper for AddressKeeper {
    type Wanted = BTreeSet<u64>;
    const THREAD: &'static str = "shoal-hops";
    const SETTING: &'static str = "[hop] mode";
    const NEEDS: &'static str = "no address can be added without CAP_NET_ADMIN: start with it";

    async fn keep(&mut self, kernel: &Handle, wanted: Option<BTreeSet<u64>>) -> Vec<String> {
        self.wanted = wanted.unwrap_or_else(|| std::mem::take(&mut self.wanted));
        let renews = self.renewed.elapsed() >= RENEW_EVERY;
        if renews {
            self.renewed = Instant::now();
            self.look();
        }
        for id in self.held.difference(&self.wanted).copied().collect::<Vec<_>>() {
            let mut message = AddressMessageBuilder::<Ipv6Addr>::new();
            message = message.index(self.place.interface).address(self.place.address(id), 128);
            // If it fails, its lifetime has ended, or somebody else has removed it.
            let _gone = kernel.address().del(message.build()).execute().await;
            self.held.remove(&id);
        }
        self.add_all(kernel, renews).await
    }

    fn due(&self) -> Option<Instant> {
        Some(self.renewed + RENEW_EVERY)
    }

    async fn end(&mut self, kernel: &Handle) {
        self.keep(kernel, Some(BTreeSet::new())).await;
    }

    fn log(_faults: &[String], again: bool) {
        if !again {
            tracing::error!("[hop]: addresses are missing on the segment: see `shoal status`");
        }
    }
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
        let prefix = HopPrefix([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2]);
        let (tells, told) = std::sync::mpsc::sync_channel(1);
        let (wanted, held, renewed) = (BTreeSet::new(), BTreeSet::new(), Instant::now());
        let place = Place { interface: 1, prefix };
        let mut keeper = AddressKeeper { place, wanted, held, renewed, own: vec![7], tells };
        assert_eq!(keeper.due(), Some(renewed + RENEW_EVERY));
        // The loopback interface has no address of the documentation's prefix.
        keeper.look();
        assert_eq!(told.try_recv(), Ok(Vec::new()));
        keeper.look();
        assert!(told.try_recv().is_err());
    }
}
