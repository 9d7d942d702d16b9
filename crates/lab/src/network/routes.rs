//! Kernel routes and options in a namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result};
use nix::net::if_::if_nametoindex;
use rtnetlink::RouteMessageBuilder;
use rtnetlink::packet_route::route::RouteMessage;

use crate::namespace::Namespace;

pub(super) struct KernelRoute<'a> {
    /// Destination prefix; `None` for the default route.
    pub to: Option<(IpAddr, u8)>,
    pub via: KernelNextHop<'a>,
}

/// Next hop of a route.
#[derive(Clone, Copy)]
pub(super) enum KernelNextHop<'a> {
    /// Through this neighbouring machine.
    By(IpAddr),
    /// Directly on the link of this interface.
    On(&'a str),
}

/// Adds routes to a namespace.
pub(super) fn add(space: &Namespace, routes: &[KernelRoute<'_>]) -> Result<()> {
    let message = |KernelRoute { to, via }: &KernelRoute<'_>| -> Result<RouteMessage> {
        let all = match *via {
            KernelNextHop::By(IpAddr::V4(_)) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            KernelNextHop::By(IpAddr::V6(_)) | KernelNextHop::On(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // The builder takes the family from the destination.
        let (to, len) = to.unwrap_or((all, 0));
        let route = RouteMessageBuilder::<IpAddr>::new().destination_prefix(to, len)?;
        let route = match *via {
            KernelNextHop::By(via) => route.gateway(via)?,
            KernelNextHop::On(interface) => {
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

/// Sets a kernel option in one namespace.
pub(super) fn set_option(space: &Namespace, option: &str, value: &str) -> Result<()> {
    let file = format!("/proc/sys/{option}");
    space.enter(|| std::fs::write(&file, value).context(file))
}
