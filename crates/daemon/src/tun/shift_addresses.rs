//! Shifting addresses on a segment: a thread adds them to the interface and removes them.
//!
//! Each address is added one epoch before its use. Only those of a session's first shift are used
//! at once: shift steps that are lost until then are sent again. An address is added without
//! detection of duplicates, which takes a second, and without a route. It is deprecated, so that no
//! other program sends from it. Its lifetime is short and renewed, so that addresses of a killed
//! node end by themselves.
//!
//! The node has dropped its privileges before (`privileged.rs`).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::mpsc::{Receiver, SyncSender};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nix::net::if_::InterfaceFlags;
use rtnetlink::packet_route::address::{AddressAttribute, AddressFlags, CacheInfo};
use rtnetlink::{AddressMessageBuilder, Handle};

use crate::config::ShiftPrefix;
use crate::tun::privileged::{KernelKeeper, MOVE_WAIT, PrivilegedThread};

/// Most addresses on the interface at once, for all links.
const ADDRESSES_MAX: usize = 256;
/// Lifetime of an address that nobody renews, in seconds.
const LIFETIME_S: u32 = 30;
/// Time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// IFA_F_NOPREFIXROUTE of linux/if_addr.h.
const NO_PREFIX_ROUTE: u32 = 0x200;
/// The kernel's list of addresses, in this thread's namespace.
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// Flags of shifting addresses: IFA_F_NODAD and IFA_F_DEPRECATED of linux/if_addr.h.
const PASSING: u32 = 0x22;
/// IFA_F_PERMANENT: a flag of all addresses without a lifetime, so not of shifting ones.
const PERMANENT: u32 = 0x80;

/// An address under the prefix: number and name of its interface, its identifier, and whether it is
/// a shifting one.
struct SegmentAddress {
    index: u32,
    name: String,
    identifier: u64,
    shifts: bool,
}

/// Addresses under the prefix, from the kernel's list with one line for each.
fn listed(list: &str, prefix: ShiftPrefix) -> impl Iterator<Item = SegmentAddress> + '_ {
    list.lines().filter_map(move |line| {
        // Address, number of the interface, bits of the prefix, scope, flags, interface.
        let mut words = line.split_ascii_whitespace();
        let ip = Ipv6Addr::from(u128::from_str_radix(words.next()?, 16).ok()?);
        let index = u32::from_str_radix(words.next()?, 16).ok()?;
        let bits = u32::from_str_radix(words.next()?, 16).ok()?;
        let flags = u32::from_str_radix(words.nth(1)?, 16).ok()?;
        let name = words.next()?.to_string();
        // Addresses that a killed node left count as shifting ones, too.
        let shifts = bits == 128 && flags & (PASSING | PERMANENT) == PASSING;
        let identifier = u128::from(ip) as u64;
        let is_under = ip.octets().starts_with(&prefix.0);
        is_under.then_some(SegmentAddress { index, name, identifier, shifts })
    })
}

/// Addresses under the prefix that do not shift.
fn staying(list: &str, prefix: ShiftPrefix) -> impl Iterator<Item = SegmentAddress> + '_ {
    listed(list, prefix).filter(|at| !at.shifts)
}

/// The interface whose segment has the prefix, with this machine's permanent identifiers under the
/// prefix.
pub struct ShiftSegment {
    pub name: String,
    index: u32,
    /// Identifiers of the permanent addresses.
    pub own: Vec<u64>,
}

impl ShiftSegment {
    /// Finds the interface that has an address under the prefix. The loopback, point-to-point
    /// interfaces and the interface `inside` don't count; machines behind `inside` have addresses
    /// of the prefix.
    pub fn find(prefix: ShiftPrefix, inside: Option<&str>) -> anyhow::Result<Option<ShiftSegment>> {
        let all = nix::ifaddrs::getifaddrs().context("[shift]: can't list interfaces")?;
        let others = InterfaceFlags::IFF_LOOPBACK | InterfaceFlags::IFF_POINTOPOINT;
        let others = all.filter(|at| at.flags.intersects(others)).map(|at| at.interface_name);
        let others: BTreeSet<String> = others.collect();
        let mut found: Option<ShiftSegment> = None;
        let list = match std::fs::read_to_string(ADDRESSES) {
            // This file is absent if IPv6 is turned off.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            list => list.context("[shift]: can't list addresses")?,
        };
        let is_outside =
            |at: &SegmentAddress| !others.contains(&at.name) && inside != Some(at.name.as_str());
        for at in staying(&list, prefix).filter(is_outside) {
            match &mut found {
                Some(segment) if segment.index == at.index => segment.own.push(at.identifier),
                Some(segment) => bail!(
                    "[shift] prefix: {} and {} both have addresses under it",
                    segment.name,
                    at.name
                ),
                None => {
                    let own = vec![at.identifier];
                    found = Some(ShiftSegment { name: at.name, index: at.index, own });
                }
            }
        }
        if let Some(segment) = &mut found {
            segment.own.sort_unstable();
        }
        Ok(found)
    }
}

/// Removes its addresses and ends its thread when it is dropped.
pub struct SegmentShifts {
    thread: PrivilegedThread<AddressKeeper>,
    staying: Receiver<(AddressPlace, Vec<u64>)>,
    place: AddressPlace,
}

impl SegmentShifts {
    /// Starts the thread ([`PrivilegedThread::start`]).
    pub fn start(segment: &ShiftSegment, prefix: ShiftPrefix) -> anyhow::Result<SegmentShifts> {
        let (tells, staying) = std::sync::mpsc::sync_channel(1);
        let place = AddressPlace { interface: segment.index, prefix };
        let thread = PrivilegedThread::start(AddressKeeper {
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
        Ok(SegmentShifts { thread, staying, place })
    }

    /// Makes the thread drop all privileges but the one to change addresses, and waits for it.
    pub fn seal(&self) -> anyhow::Result<()> {
        self.thread.seal()
    }

    /// Requests exactly these addresses for the interface, without waiting.
    pub fn set(&self, wanted: BTreeSet<u64>) {
        self.thread.set((self.place, wanted));
    }

    /// Requests these addresses under this prefix for the segment's interface. Waits up to
    /// [`MOVE_WAIT`], so that neighbours that learn the addresses find them there. The former
    /// addresses stay until their lifetime ends, since neighbours that have not heard of the new
    /// ones still send there.
    ///
    /// Errors: the kernel refuses some addresses. The place is then unchanged. More addresses than
    /// the most are no error here.
    pub fn move_to(
        &mut self,
        segment: &ShiftSegment,
        prefix: ShiftPrefix,
        wanted: BTreeSet<u64>,
    ) -> anyhow::Result<()> {
        let place = AddressPlace { interface: segment.index, prefix };
        let moved = self.thread.set_and_wait((place, wanted.clone()), MOVE_WAIT);
        match moved {
            Err(why) if Some(&why) != too_many(wanted.len()).as_ref() => {
                self.set(wanted);
                bail!("[shift] prefix: {why}; addresses keep shifting under the former prefix")
            }
            _ => self.place = place,
        }
        Ok(())
    }

    /// Takes the identifiers of permanent addresses, if they changed.
    pub fn take_staying(&self) -> Option<Vec<u64>> {
        // The thread may report another place that it checked before it learned of this one.
        self.staying.try_iter().filter(|(at, _)| *at == self.place).map(|(_, own)| own).last()
    }

    /// Reason why the interface lacks some of the addresses.
    pub fn fault(&self) -> Option<String> {
        self.thread.faults().into_iter().next()
    }
}

/// Interface and prefix of the addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AddressPlace {
    interface: u32,
    prefix: ShiftPrefix,
}

impl AddressPlace {
    fn address(&self, identifier: u64) -> Ipv6Addr {
        (u128::from(self.prefix.address()) | u128::from(identifier)).into()
    }

    /// True if the interface already has this address as a shifting one. A killed node left it, and
    /// only this node's keys yield it.
    fn was_left(self, identifier: u64) -> bool {
        let list = std::fs::read_to_string(ADDRESSES).unwrap_or_default();
        let is_it = |at: &SegmentAddress| at.index == self.interface && at.identifier == identifier;
        listed(&list, self.prefix).any(|at| is_it(&at) && at.shifts)
    }
}

struct AddressKeeper {
    /// The interface and prefix that the node requested.
    told: AddressPlace,
    /// The name of that interface: another one may get it, with another number.
    name: Option<String>,
    /// The current place: the interface that has the name.
    place: AddressPlace,
    wanted: BTreeSet<u64>,
    held: BTreeSet<u64>,
    /// Addresses at former places, with the ends of their lifetimes.
    left: Vec<(AddressPlace, u64, Instant)>,
    /// Time of the last renewal of all lifetimes.
    renewed: Instant,
    /// Permanent identifiers at this place, as reported last.
    own: Option<Vec<u64>>,
    tells: SyncSender<(AddressPlace, Vec<u64>)>,
}

impl AddressKeeper {
    /// Adopts the requested place, or follows the interface's name to a new interface.
    fn settle(&mut self, told: Option<AddressPlace>) {
        if let Some(told) = told.filter(|told| *told != self.told || self.name.is_none()) {
            self.told = told;
            self.name = name_of(told.interface);
        }
        let index = self.name.as_deref().and_then(|name| nix::net::if_::if_nametoindex(name).ok());
        let interface = index.unwrap_or(self.told.interface);
        let place = AddressPlace { interface, ..self.told };
        if interface != self.place.interface && place.prefix == self.place.prefix {
            // The interface was created anew, so its former addresses are gone.
            self.held.clear();
            self.renewed = self.renewed.checked_sub(RENEW_EVERY).unwrap_or(self.renewed);
        }
        self.move_to(place);
    }

    /// Changes the place. Addresses at the former place stay until their lifetime ends.
    fn move_to(&mut self, place: AddressPlace) {
        let (now, former) = (Instant::now(), std::mem::replace(&mut self.place, place));
        self.left.retain(|(.., until)| now < *until);
        if former != place {
            let until = now + Duration::from_secs(LIFETIME_S.into());
            let held = std::mem::take(&mut self.held).into_iter();
            self.left.extend(held.map(|id| (former, id, until)));
            // The former addresses of a revisited place are still there: their lifetimes are
            // renewed.
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

    /// Checks which addresses are permanent, and reports changes.
    fn look(&mut self) {
        let Ok(list) = std::fs::read_to_string(ADDRESSES) else { return };
        let here = staying(&list, self.place.prefix);
        let here = here.filter(|at| at.index == self.place.interface);
        let mut own: Vec<u64> = here.map(|at| at.identifier).collect();
        own.sort_unstable();
        // A report that finds the channel full is sent after the next check.
        let told = Some(&own) == self.own.as_ref();
        if !told && self.tells.try_send((self.told, own.clone())).is_ok() {
            self.own = Some(own);
        }
    }

    /// Adds the wanted addresses that are missing. With `renews`, also renews all lifetimes.
    ///
    /// Errors: reasons why some could not be added. A link that was to shift to one falls back by
    /// itself.
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

/// True if the kernel already has the object that was to be added.
pub(crate) fn is_there_already(error: &rtnetlink::Error) -> bool {
    matches!(error, rtnetlink::Error::NetlinkError(said) if said.raw_code() == -libc::EEXIST)
}

/// The name of the interface with this number.
fn name_of(index: u32) -> Option<String> {
    let name = nix::net::if_::if_indextoname(index).ok()?;
    name.into_string().ok()
}

/// Warning if more addresses are wanted than the interface may have.
fn too_many(wanted: usize) -> Option<String> {
    (wanted > ADDRESSES_MAX).then(|| {
        format!("{wanted} addresses are in use, and a segment gets {ADDRESSES_MAX} at most")
    })
}

impl KernelKeeper for AddressKeeper {
    type Wanted = (AddressPlace, BTreeSet<u64>);
    const THREAD: &'static str = "shoal-shifts";
    const SETTING: &'static str = "[shift] mode";
    const NEEDS: &'static str = "no address can be added without CAP_NET_ADMIN: start with it";

    async fn keep(
        &mut self,
        kernel: &Handle,
        wanted: Option<(AddressPlace, BTreeSet<u64>)>,
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
            tracing::error!("[shift]: addresses are missing on the segment: see `shoal status`");
        }
    }
}

async fn remove(kernel: &Handle, place: AddressPlace, id: u64) {
    let mut message = AddressMessageBuilder::<Ipv6Addr>::new();
    message = message.index(place.interface).address(place.address(id), 128);
    // A failure means that the lifetime has ended, or that somebody else removed the address.
    let _gone = kernel.address().del(message.build()).execute().await;
}

/// Adds an address, or renews its lifetime. A new one must not exist yet: otherwise the node would
/// later remove somebody else's address.
async fn add(
    handle: &Handle,
    place: AddressPlace,
    id: u64,
    renew: bool,
) -> Result<(), rtnetlink::Error> {
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
    fn an_address_that_shifts_is_none_that_stays() {
        let list = "20010db8000100020000000000000001 04 40 00 80     wire
20010db800010002000000000000000a 04 80 00 22     wire
20010db800010002000000000000000b 04 80 00 a2     wire
20010db800010002000000000000000c 04 80 00 00     wire
20010db800010002000000000000000d 04 40 00 22     wire
20010db8000100030000000000000001 04 40 00 80     wire
no line
00000000000000000000000000000001 01 80 10 80       lo
";
        let prefix = ShiftPrefix([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2]);
        let found: Vec<_> = staying(list, prefix).map(|at| at.identifier).collect();
        assert_eq!(found, [1, 0xb, 0xc, 0xd]);
        assert!(staying(list, prefix).all(|at| at.index == 4 && at.name == "wire"));
    }

    #[test]
    fn permanent_identifiers_are_reported_once_per_change() {
        let (mut keeper, told) = keeper(vec![7]);
        assert_eq!(keeper.due(), Some(keeper.renewed + RENEW_EVERY));
        // The loopback interface has no address of the documentation's prefix.
        keeper.look();
        assert_eq!(told.try_recv().map(|(_, own)| own), Ok(Vec::new()));
        keeper.look();
        assert!(told.try_recv().is_err());
    }

    type Told = Receiver<(AddressPlace, Vec<u64>)>;

    /// A keeper for addresses of the loopback interface.
    fn keeper(own: Vec<u64>) -> (AddressKeeper, Told) {
        let (tells, told) = std::sync::mpsc::sync_channel(1);
        let (wanted, held, renewed) = (BTreeSet::new(), BTreeSet::new(), Instant::now());
        let (own, left, place, name) = (Some(own), Vec::new(), place(2), None);
        (AddressKeeper { told: place, name, place, wanted, held, left, renewed, own, tells }, told)
    }

    fn place(last: u8) -> AddressPlace {
        AddressPlace { interface: 1, prefix: ShiftPrefix([0x20, 1, 0x0d, 0xb8, 0, 1, 0, last]) }
    }

    /// The addresses of the interface: the last digit of the prefix, and the identifier.
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
            let at = AddressPlace { interface: index(), ..place(2) };
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
            // Back: addresses that are not wanted are removed, and those left are renewed.
            assert_eq!(ask(&mut keeper, 2, &[2, 4]).await, [(2, 2), (2, 4), (3, 2), (3, 4)]);
            assert_eq!(keeper.held, BTreeSet::from([2, 4]));
            assert_eq!(told.try_recv().ok(), Some((place(2), Vec::new())), "told anew");
            keeper.end(kernel).await;
            assert_eq!(there(), []);
        });
    }

    #[test]
    fn addresses_of_a_killed_node_are_taken_over_and_those_of_others_are_not() {
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
            let nowhere = AddressPlace { interface: 77, ..place(3) };
            let faults = keeper.keep(kernel, Some((nowhere, ids.clone()))).await;
            assert!(faults[0].starts_with("1 addresses can't be added"), "{faults:?}");
            assert_eq!(there(), [(2, 1)]);
            assert_eq!(keeper.keep(kernel, Some((place(2), ids))).await, [""; 0]);
            keeper.end(kernel).await;
            assert_eq!(there(), []);
        });
    }

    #[test]
    fn a_report_about_another_place_is_ignored() {
        let (tells, staying) = std::sync::mpsc::sync_channel(2);
        let (keeper, _) = keeper(Vec::new());
        let thread = PrivilegedThread::start(keeper).unwrap();
        let addresses = SegmentShifts { thread, staying, place: place(3) };
        tells.send((place(2), vec![7])).unwrap();
        assert_eq!(addresses.take_staying(), None);
        tells.send((place(3), vec![8])).unwrap();
        assert_eq!(addresses.take_staying(), Some(vec![8]));
    }
}
