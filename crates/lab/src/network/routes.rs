//! Routes and options of the kernel in a namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::RouteMessage;

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

/// Adds routes to a namespace.
pub(super) fn add(space: &Namespace, routes: &[Route<'_>]) -> Result<()> {
    let message = |Route { to, via }: &Route<'_>| -> Result<RouteMessage> {
        let all = match *via {
            Way::By(IpAddr::V4(_)) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            Way::By(IpAddr::V6(_)) | Way::On(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // The builder takes the family from the destination.
        let (to, len) = to.unwrap_or((all, 0));
        let route = RouteMessageBuilder::<IpAddr>::new().destination_prefix(to, len)?;
        let route = match *via {
            Way::By(via) => route.gateway(via)?,
            Way::On(interface) => {
                route.output_interface(space.enter(|| Ok(if_nametoindex(interface)?))?)
            }
        };
        Ok(route.build())
    };
    let messages = routes.iter().map(message).collect::<Result<Vec<_>>>()?;
    let add = async |handle: rtnetlink::Handle| {
        for message in messages {
            handle.route().add(message).execute().await?;
        }
        Ok(())
    };
    space.netlink(add).context("adding routes")
}

/// Sets an option of the kernel in one namespace.
pub(super) fn set_option(space: &Namespace, option: &str, value: &str) -> Result<()> {
    let file = format!("/proc/sys/{option}");
    space.enter(|| std::fs::write(&file, value).context(file))
}
