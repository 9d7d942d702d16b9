//! Kernel entries for machines behind gateways with addresses in the shifting prefix. Machines
//! behind this node get routes, and machines behind other nodes get proxy answers.
//!
//! ```text
//!   near   behind this node    a route to the interface inside, before that of all the prefix
//!   far    behind other nodes  proxy NDP on the interface inside: machines there take them for
//!                              neighbours (their route leads into the virtual interface)
//! ```
//!
//! Routes have a lifetime that is renewed, so a killed node leaves none. Proxy entries have no
//! lifetime. They carry a protocol number, by which the next node that starts with an interface
//! recognises and removes abandoned ones. Entries of another running node carry that number, too;
//! its [`ProxyClaim`] shows that it runs. Both kinds vanish when the interface goes down for a
//! moment, and are set again with the renewal.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv6Addr};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use rtnetlink::packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteProtocol};
use rtnetlink::packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::{Handle, RouteMessageBuilder};

use crate::config::ShiftPrefix;
use crate::tun::changes;

/// The kernel's table of its own addresses (RT_TABLE_LOCAL). It is searched first, and also holds
/// the route for the whole prefix.
pub(crate) const TABLE_LOCAL: u32 = 255;
/// Protocol number that marks this program's entries. The kernel ignores it, and iproute2's list
/// gives it to nobody else.
const OURS: RouteProtocol = RouteProtocol::Other(115);
/// Lifetime of a route that nobody renews, in seconds.
const LIFETIME_S: u32 = 30;
/// Time between two renewals.
const RENEW_EVERY: Duration = Duration::from_secs(10);
/// Most proxy entries read from the kernel.
const LISTED_MAX: usize = 65_536;
/// Most nodes in one network namespace that can claim their entries.
const CLAIMS_MAX: usize = 8;

/// Mark of a node with proxy entries: a socket under an abstract name of the network namespace. The
/// kernel removes it with the process, however that ends.
struct ProxyClaim {
    _socket: UnixDatagram,
}

impl ProxyClaim {
    fn all() -> impl Iterator<Item = Option<ProxyClaim>> {
        (0..CLAIMS_MAX).map(|number| {
            let name = format!("shoal-proxies-{number}");
            let at = std::os::unix::net::SocketAddr::from_abstract_name(name).ok()?;
            Some(ProxyClaim { _socket: UnixDatagram::bind_addr(&at).ok()? })
        })
    }

    fn take() -> Option<ProxyClaim> {
        ProxyClaim::all().flatten().next()
    }

    /// True if no node of this network namespace has proxy entries.
    fn is_free() -> bool {
        ProxyClaim::all().collect::<Vec<_>>().iter().all(Option::is_some)
    }
}

/// Entries that the kernel should have.
#[derive(Clone, PartialEq, Eq)]
pub struct InsideMachines {
    pub interface: String,
    /// The shifting prefix.
    pub prefix: ShiftPrefix,
    /// Machines behind this node.
    pub near: BTreeSet<Ipv6Addr>,
    /// Machines behind other nodes.
    pub far: BTreeSet<Ipv6Addr>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum InsideEntry {
    Near(Ipv6Addr),
    Far(Ipv6Addr),
}

/// Sets the entries and removes them.
#[derive(Default)]
pub(crate) struct InsideKeeper {
    wanted: Option<InsideMachines>,
    /// The interface's number. Entries at another number are gone with that interface.
    index: u32,
    held: BTreeSet<InsideEntry>,
    renewed: Option<Instant>,
    /// Proxy entries of others; none before the first check.
    foreign: Option<BTreeSet<Ipv6Addr>>,
    claim: Option<ProxyClaim>,
    /// True after the search for abandoned entries at the start.
    swept: bool,
}

impl InsideKeeper {
    /// Gives the kernel the entries that are `wanted`, or those wanted last. Returns the failures.
    pub(crate) async fn keep(
        &mut self,
        kernel: &Handle,
        wanted: Option<Option<InsideMachines>>,
    ) -> Vec<String> {
        if let Some(wanted) = wanted {
            self.wanted = wanted;
        }
        let Some(InsideMachines { interface, prefix, near, far }) = self.wanted.clone() else {
            self.end(kernel).await;
            self.sweep_once(kernel).await;
            return Vec::new();
        };
        let Ok(index) = nix::net::if_::if_nametoindex(interface.as_str()) else {
            self.held.clear();
            self.renewed = Some(Instant::now());
            return vec![format!("[shift] inside: this machine has no interface {interface:?}")];
        };
        if index != self.index {
            self.held.clear();
            self.index = index;
        }
        let mut faults = Vec::new();
        if self.foreign.is_none() {
            let everywhere = self.claim.is_none() && ProxyClaim::is_free();
            self.claim = self.claim.take().or_else(ProxyClaim::take);
            match sweep(kernel, (index, prefix), &far, everywhere).await {
                Ok(foreign) => self.foreign = Some(foreign),
                Err(error) => {
                    faults.push(format!("[shift] inside: proxies can't be listed: {error}"))
                }
            }
        }
        let foreign = self.foreign.clone().unwrap_or_default();
        let far = far.difference(&foreign).copied().map(InsideEntry::Far);
        let all: BTreeSet<InsideEntry> =
            near.into_iter().map(InsideEntry::Near).chain(far).collect();
        for gone in self.held.difference(&all).copied().collect::<Vec<_>>() {
            remove(kernel, index, gone).await;
            self.held.remove(&gone);
        }
        faults.extend(self.add_all(kernel, &all).await);
        faults
    }

    /// Removes, once, the proxy entries of a killed node that had an `inside`.
    async fn sweep_once(&mut self, kernel: &Handle) {
        if std::mem::replace(&mut self.swept, true) || !ProxyClaim::is_free() {
            return;
        }
        // If the kernel's entries can't be listed, none are removed.
        let left = proxies().unwrap_or_default().into_iter().filter(|(.., is_ours)| *is_ours);
        for (index, ip, _) in left {
            remove(kernel, index, InsideEntry::Far(ip)).await;
        }
    }

    /// Adds missing entries, and renews those that are due.
    async fn add_all(&mut self, kernel: &Handle, all: &BTreeSet<InsideEntry>) -> Option<String> {
        let renews = self.renewed.is_none_or(|at| at.elapsed() >= RENEW_EVERY);
        if renews {
            self.renewed = Some(Instant::now());
        }
        let (mut failed, mut first) = (0, None);
        for &entry in all {
            if self.held.contains(&entry) && !renews {
                continue;
            }
            match add(kernel, self.index, entry).await {
                Ok(()) => _ = self.held.insert(entry),
                Err(error) => {
                    self.held.remove(&entry);
                    failed += 1;
                    first.get_or_insert(error);
                }
            }
        }
        first.map(|error| {
            format!(
                "[shift] inside: the kernel does not take {failed} addresses of machines \
                 ({error}): is the interface down, or IPv6 turned off there?"
            )
        })
    }

    /// Time of the next renewal.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.wanted.as_ref()?;
        self.renewed.map(|at| at + RENEW_EVERY)
    }

    /// Removes all entries.
    pub(crate) async fn end(&mut self, kernel: &Handle) {
        for entry in std::mem::take(&mut self.held) {
            remove(kernel, self.index, entry).await;
        }
        self.claim = None;
    }
}

fn route(index: u32, to: Ipv6Addr) -> RouteMessage {
    RouteMessageBuilder::<Ipv6Addr>::new()
        .destination_prefix(to, 128)
        .output_interface(index)
        .table_id(TABLE_LOCAL)
        .protocol(OURS)
        .build()
}

async fn add(kernel: &Handle, index: u32, entry: InsideEntry) -> Result<(), rtnetlink::Error> {
    match entry {
        InsideEntry::Near(ip) => {
            let mut message = route(index, ip);
            message.attributes.push(RouteAttribute::Expires(LIFETIME_S));
            kernel.route().add(message).replace().execute().await
        }
        InsideEntry::Far(ip) => {
            let mut request = kernel.neighbours().add(index, IpAddr::V6(ip));
            request = request.flags(NeighbourFlags::Proxy);
            request.message_mut().attributes.push(NeighbourAttribute::Protocol(OURS));
            request.execute().await
        }
    }
}

/// Removes an entry. A failure means that it is gone: by its lifetime, with the interface, or by
/// others.
async fn remove(kernel: &Handle, index: u32, entry: InsideEntry) {
    let gone = match entry {
        InsideEntry::Near(ip) => kernel.route().del(route(index, ip)).execute().await,
        InsideEntry::Far(ip) => kernel.neighbours().del(proxy(index, Some(ip))).execute().await,
    };
    if let Err(error) = gone {
        tracing::debug!("an entry of [shift] inside was gone: {error}");
    }
}

fn proxy(index: u32, ip: Option<Ipv6Addr>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Inet6;
    message.header.ifindex = index;
    message.header.flags = NeighbourFlags::Proxy;
    let destination = |ip| NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip));
    message.attributes.extend(ip.map(destination));
    message
}

/// Removes unwanted proxy entries that a killed node left on the interface or anywhere under the
/// prefix. `everywhere`: no other node's entries exist, so all are checked. Returns the entries of
/// others on the interface.
async fn sweep(
    kernel: &Handle,
    (index, prefix): (u32, ShiftPrefix),
    wanted: &BTreeSet<Ipv6Addr>,
    everywhere: bool,
) -> io::Result<BTreeSet<Ipv6Addr>> {
    let mut foreign = BTreeSet::new();
    for (at, ip, is_ours) in proxies()? {
        let is_near = everywhere || at == index || prefix.holds(ip);
        match is_ours {
            true if is_near && !(at == index && wanted.contains(&ip)) => {
                remove(kernel, at, InsideEntry::Far(ip)).await;
            }
            false if at == index => _ = foreign.insert(ip),
            _ => {}
        }
    }
    Ok(foreign)
}

/// All proxy entries: interface, address, and whether this program set them.
fn proxies() -> io::Result<Vec<(u32, Ipv6Addr, bool)>> {
    let all = changes::dump(RouteNetlinkMessage::GetNeighbour(proxy(0, None)), LISTED_MAX)?;
    let found = all.iter().filter_map(|message| match message {
        RouteNetlinkMessage::NewNeighbour(one) => entry(one),
        _ => None,
    });
    Ok(found.collect())
}

fn entry(message: &NeighbourMessage) -> Option<(u32, Ipv6Addr, bool)> {
    let ip = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(*ip),
        _ => None,
    })?;
    let is_ours = message.attributes.contains(&NeighbourAttribute::Protocol(OURS));
    Some((message.header.ifindex, ip, is_ours))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun::privileged::in_a_namespace;

    #[test]
    fn a_start_without_inside_removes_what_a_killed_node_left_and_nothing_else() {
        in_a_namespace(async |kernel| {
            let ip = |n: u16| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
            let left = || proxies().unwrap().into_iter().map(|(_, ip, _)| ip).collect::<Vec<_>>();
            let mut other = kernel.neighbours().add(1, IpAddr::V6(ip(1)));
            other = other.flags(NeighbourFlags::Proxy);
            other.execute().await.unwrap();
            add(kernel, 1, InsideEntry::Far(ip(2))).await.unwrap();
            // Another node runs, and the entries may belong to it.
            let claim = ProxyClaim::take().unwrap();
            assert!(InsideKeeper::default().keep(kernel, Some(None)).await.is_empty());
            assert_eq!(left().len(), 2);
            drop(claim);
            let mut keeper = InsideKeeper::default();
            assert!(keeper.keep(kernel, Some(None)).await.is_empty());
            assert_eq!(left(), [ip(1)]);
        });
    }

    #[test]
    fn a_start_with_inside_removes_what_was_left_elsewhere_unless_another_node_runs() {
        if crate::tun::privileged::is_without_ip(
            "a_start_with_inside_removes_what_was_left_elsewhere_unless_another_node_runs",
        ) {
            return;
        }
        in_a_namespace(async |kernel| {
            let ip = |n: u16| Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, n);
            let far = Ipv6Addr::new(0xfd42, 0, 0, 0, 0, 0, 0, 7);
            let inside = InsideMachines {
                interface: "lo".into(),
                prefix: ShiftPrefix(far.octets()[..8].try_into().unwrap()),
                near: BTreeSet::new(),
                far: [far].into(),
            };
            // An abandoned entry on an interface that is not the one inside.
            let mut ip_tool = std::process::Command::new("ip");
            let made = ip_tool.args("link add v type veth peer name w".split(' ')).status();
            assert!(made.unwrap().success());
            let index = nix::net::if_::if_nametoindex("v").unwrap();
            let lost = |n| add(kernel, index, InsideEntry::Far(ip(n)));
            let left = || proxies().unwrap().into_iter().map(|(_, ip, _)| ip).collect::<Vec<_>>();
            lost(2).await.unwrap();
            let mut first = InsideKeeper::default();
            assert_eq!(first.keep(kernel, Some(Some(inside.clone()))).await, [""; 0]);
            assert_eq!(left(), [far]);
            lost(3).await.unwrap();
            let mut second = InsideKeeper::default();
            assert!(second.keep(kernel, Some(None)).await.is_empty());
            assert_eq!(left().len(), 2, "the first node runs");
            first.end(kernel).await;
            assert_eq!(left(), [ip(3)]);
            assert!(InsideKeeper::default().keep(kernel, Some(None)).await.is_empty());
            assert!(left().is_empty());
        });
    }
}
