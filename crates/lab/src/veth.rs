//! Links between namespaces: veth pairs, made by netlink.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::namespace::Namespace;

/// Limit of the kernel's time until a new address is usable.
const LEISURE: Duration = Duration::from_secs(10);

/// One end of a link to make.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    pub namespace: &'a Namespace,
    /// Name of the interface; at most 15 bytes.
    pub interface: &'a str,
    pub address: IpAddr,
    /// Length of the prefix that both ends' addresses share.
    pub prefix_len: u8,
}

/// Makes a link between two namespaces and brings it up.
///
/// Without `aggregates` every packet on it is a wire packet, so that shapers and loss rules count
/// wire packets. With `aggregates` up to 64 kB pass as one packet. That is fast, but correct only
/// on a link without shaping and loss.
pub fn connect(a: VethEnd<'_>, b: VethEnd<'_>, aggregates: bool) -> Result<()> {
    let peer = LinkUnspec::new_with_name(b.interface).setns_by_fd(b.namespace.raw_fd()).build();
    let pair = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Veth)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .name(a.interface)
        .build();
    a.namespace
        .netlink(async |handle| handle.link().add(pair).execute().await)
        .with_context(|| format!("making the link {} - {}", a.interface, b.interface))?;
    for end in [a, b] {
        bring_up(end, aggregates).with_context(|| format!("setting up {}", end.interface))?;
    }
    Ok(())
}

/// Makes half of an emulated or switched link: from `near` to an interface called `far` in another
/// namespace. `far` has no address.
pub fn connect_through(
    near: VethEnd<'_>,
    middle: &Namespace,
    far: &str,
    aggregates: bool,
) -> Result<()> {
    let peer = LinkUnspec::new_with_name(far).setns_by_fd(middle.raw_fd()).build();
    let pair = LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(InfoKind::Veth)
        .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
        .name(near.interface)
        .build();
    near.namespace
        .netlink(async |handle| handle.link().add(pair).execute().await)
        .with_context(|| format!("making half a link {} - {far}", near.interface))?;
    // The kernel must not answer at `far`: only the emulator's packet sockets, or a bridge, may
    // send there.
    let index = middle.enter(|| {
        let quiet = format!("/proc/sys/net/ipv6/conf/{far}/disable_ipv6");
        // A kernel without IPv6 does not answer anyway.
        let _ = std::fs::write(quiet, "1");
        Ok(nix::net::if_::if_nametoindex(far)?)
    })?;
    let up = LinkUnspec::new_with_index(index).up();
    middle.netlink(async |handle| handle.link().set(up.build()).execute().await)?;
    bring_up(near, aggregates).with_context(|| format!("setting up {}", near.interface))
}

/// Prepares a namespace for links with IPv6 addresses, before it has any. An address is then usable
/// without a second of duplicate detection, and the kernel solicits no routers.
///
/// # Errors
/// The kernel has no IPv6.
pub fn prepare_ipv6(namespace: &Namespace) -> Result<()> {
    let options = [
        ("all/disable_ipv6", "0"),
        ("default/disable_ipv6", "0"),
        ("all/accept_dad", "0"),
        ("default/accept_dad", "0"),
        ("default/accept_ra", "0"),
        ("default/router_solicitations", "0"),
    ];
    namespace.enter(|| {
        for (option, value) in options {
            let file = format!("/proc/sys/net/ipv6/conf/{option}");
            std::fs::write(&file, value)
                .with_context(|| format!("{file}: IPv6 may be disabled"))?;
        }
        Ok(())
    })
}

/// Gives an existing interface an address, and brings it up.
pub fn address(namespace: &Namespace, interface: &str, at: IpAddr, prefix: u8) -> Result<()> {
    let index = namespace.enter(|| Ok(nix::net::if_::if_nametoindex(interface)?))?;
    namespace.netlink(async |handle| {
        handle.address().add(index, at, prefix).execute().await?;
        handle.link().set(LinkUnspec::new_with_index(index).up().build()).execute().await
    })?;
    await_good(namespace, interface, at)
}

/// Makes every packet that leaves by `interface` a wire packet.
///
/// The kernel splits a packet with more segments than the interface accepts. `ethtool -K` with tso
/// and gso off is not enough: UDP segmentation is a separate feature. Receive coalescing is off on
/// a veth by default.
pub fn split(namespace: &Namespace, interface: &str) -> Result<()> {
    let index = namespace.enter(|| Ok(nix::net::if_::if_nametoindex(interface)?))?;
    let single = LinkUnspec::new_with_index(index);
    let single = single.append_extra_attribute(LinkAttribute::GsoMaxSegs(1)).build();
    namespace.netlink(async |handle| handle.link().set(single).execute().await)
}

fn bring_up(end: VethEnd<'_>, aggregates: bool) -> Result<()> {
    if !aggregates {
        split(end.namespace, end.interface)?;
    }
    address(end.namespace, end.interface, end.address, end.prefix_len)
}

/// Waits until an IPv6 address is usable. Even without duplicate detection, the kernel takes its
/// time. Until then a neighbour's solicitation gets no answer, and is repeated after a second.
fn await_good(namespace: &Namespace, interface: &str, at: IpAddr) -> Result<()> {
    /// IFA_F_TENTATIVE of linux/if_addr.h.
    const TENTATIVE: u8 = 0x40;
    let IpAddr::V6(at) = at else { return Ok(()) };
    let wanted = format!("{:032x}", u128::from(at));
    namespace.enter(|| {
        let since = Instant::now();
        while since.elapsed() < LEISURE {
            let table = std::fs::read_to_string("/proc/thread-self/net/if_inet6")?;
            // Address, index, length of the prefix, scope, flags, name.
            let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
            let mut ours = fields.filter(|f| f.len() == 6 && f[0] == wanted && f[5] == interface);
            let flags = ours.next().and_then(|f| u8::from_str_radix(f[4], 16).ok());
            if flags.is_some_and(|flags| flags & TENTATIVE == 0) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        bail!("the address {at} is not usable after {LEISURE:?}")
    })
}
