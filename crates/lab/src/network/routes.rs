//! Routes and options of the kernel in a namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use rtnetlink::RouteMessageBuilder;

use crate::namespace::Namespace;

/// A route.
pub(super) struct Route<'a> {
    /// A prefix; none for all that has no other route.
    pub to: Option<(IpAddr, u8)>,
    /// The way there.
    pub via: Way<'a>,
}

/// Where a route leads.
#[derive(Clone, Copy)]
pub(super) enum Way<'a> {
    /// By this machine, which is on a link.
    By(IpAddr),
    /// All of the prefix is on the link of this interface.
    On(&'a str),
}

/// Adds routes to a namespace. Those over an interface are for IPv6 only.
pub(super) fn add(space: &Namespace, routes: &[Route<'_>]) -> Result<()> {
    for Route { to, via } in routes {
        let message = match (*via, *to) {
            (Way::By(IpAddr::V4(via)), to) => {
                let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(via);
                match to {
                    Some((IpAddr::V4(to), len)) => route.destination_prefix(to, len),
                    _ => route,
                }
                .build()
            }
            (Way::By(IpAddr::V6(via)), to) => {
                let route = RouteMessageBuilder::<Ipv6Addr>::new().gateway(via);
                match to {
                    Some((IpAddr::V6(to), len)) => route.destination_prefix(to, len),
                    _ => route,
                }
                .build()
            }
            (Way::On(interface), to) => {
                let index = space.enter(|| Ok(nix::net::if_::if_nametoindex(interface)?))?;
                let route = RouteMessageBuilder::<Ipv6Addr>::new().output_interface(index);
                match to {
                    Some((IpAddr::V6(to), len)) => route.destination_prefix(to, len),
                    _ => route,
                }
                .build()
            }
        };
        space
            .netlink(async |handle| handle.route().add(message).execute().await)
            .context("adding a route")?;
    }
    Ok(())
}

/// Sets an option of the kernel in one namespace.
pub(super) fn set_option(space: &Namespace, option: &str, value: &str) -> Result<()> {
    let file = format!("/proc/sys/{option}");
    space.enter(|| std::fs::write(&file, value).context(file))
}
