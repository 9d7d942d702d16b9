//! Machines between the ends of a link: a switch, a router, or two routers with a tunnel.
//!
//! ```text
//! end 0 - switch - end 1
//! end 0 - router - end 1
//! end 0 - router - end 1                      each end on its own segment
//! end 0 - router = IPv4 = router - end 1      IPv6 in IPv4, by the lab's own tunnel
//! ```
//!
//! Behind a router, each end has its own address with a prefix of 128 bits, and reaches the router
//! at another address.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use rtnetlink::{LinkBridge, LinkUnspec};
use serde::Deserialize;

use super::IpFamily;
use super::routes::{self, KernelNextHop, KernelRoute};
use super::tunnel::{self, Tunnel};
use crate::namespace::Namespace;
use crate::veth::{self, VethEnd};

/// Names of the bridge, and of the tunnel's interface.
const BRIDGE: &str = "bridge";
const TUNNEL: &str = "tunnel";

/// Machines between the ends of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkMiddle {
    /// A cable.
    #[default]
    Nothing,
    Switch,
    /// An IPv6 router.
    Router,
    /// An IPv6 router with the prefixes of both ends on its segments: it resolves each address of
    /// them by neighbour discovery.
    Segments,
    /// Two IPv6 routers that reach each other only over IPv4.
    Tunnel,
}

/// Machines between the ends of one link.
#[derive(Debug, Default)]
pub(super) struct MiddleMachines {
    through: LinkMiddle,
    /// Dropped before its namespaces.
    _tunnel: Option<Tunnel>,
    /// One namespace next to both ends, or one for each end.
    spaces: Vec<Namespace>,
}

/// Name of the interface towards an end.
pub(super) fn towards(end: usize) -> String {
    format!("end{end}")
}

impl MiddleMachines {
    /// Makes a link with the machines between its ends.
    ///
    /// # Errors
    /// A router is requested for IPv4.
    pub fn connect(
        through: LinkMiddle,
        ends: [VethEnd<'_>; 2],
        link: usize,
        aggregates: bool,
    ) -> Result<MiddleMachines> {
        let mut middle = MiddleMachines { through, _tunnel: None, spaces: Vec::new() };
        match through {
            LinkMiddle::Nothing => veth::connect(ends[0], ends[1], aggregates)?,
            LinkMiddle::Switch => {
                middle.spaces.push(Namespace::new()?);
                middle.switch(ends, aggregates)?;
            }
            LinkMiddle::Router | LinkMiddle::Segments | LinkMiddle::Tunnel => {
                let is_v6 = ends.iter().all(|end| end.address.is_ipv6());
                ensure!(is_v6, "a router between a link's ends needs family = \"ipv6\"");
                middle.routers(ends, link, aggregates)?;
            }
        }
        Ok(middle)
    }

    /// Description for reports.
    pub fn words(&self) -> Option<&'static str> {
        match self.through {
            LinkMiddle::Nothing => None,
            LinkMiddle::Switch => Some("a bridge between ends"),
            LinkMiddle::Router => Some("a router between ends"),
            LinkMiddle::Segments => Some("a router between the segments of ends"),
            LinkMiddle::Tunnel => Some("IPv6 in IPv4 between two routers, by the lab's tunnel"),
        }
    }

    /// The machine next to an end.
    pub fn beside(&self, end: usize) -> Option<&Namespace> {
        self.spaces.get(end).or(self.spaces.first())
    }

    /// Next hop of an end for packets to the other end.
    pub fn next(&self, family: IpFamily, link: usize, end: usize) -> IpAddr {
        match self.through {
            LinkMiddle::Nothing | LinkMiddle::Switch => family.address(link, 1 - end),
            LinkMiddle::Router | LinkMiddle::Segments | LinkMiddle::Tunnel => {
                family.router(link, end)
            }
        }
    }

    fn switch(&self, ends: [VethEnd<'_>; 2], aggregates: bool) -> Result<()> {
        let space = &self.spaces[0];
        let bridge = LinkBridge::new(BRIDGE).up().build();
        space.netlink(async |handle| handle.link().add(bridge).execute().await)?;
        let index = |name: &str| space.enter(|| Ok(nix::net::if_::if_nametoindex(name)?));
        let bridge = index(BRIDGE)?;
        for (number, end) in ends.into_iter().enumerate() {
            let port = towards(number);
            veth::connect_through(end, space, &port, aggregates)?;
            let port = LinkUnspec::new_with_index(index(&port)?).controller(bridge).build();
            space.netlink(async |handle| handle.link().set(port).execute().await)?;
        }
        Ok(())
    }

    fn routers(&mut self, ends: [VethEnd<'_>; 2], link: usize, aggregates: bool) -> Result<()> {
        let count = if self.through == LinkMiddle::Tunnel { 2 } else { 1 };
        for _ in 0..count {
            let space = Namespace::new()?;
            veth::prepare_ipv6(&space)?;
            routes::set_option(&space, "net/ipv6/conf/all/forwarding", "1")?;
            self.spaces.push(space);
        }
        if count == 2 {
            self._tunnel = Some(tunnel::start([&self.spaces[0], &self.spaces[1]], TUNNEL)?);
        }
        for (number, end) in ends.into_iter().enumerate() {
            let space = &self.spaces[number % count];
            let (name, at) = (towards(number), IpFamily::Ipv6.router(link, number));
            let beside =
                VethEnd { namespace: space, interface: &name, address: at, prefix_len: 128 };
            veth::connect(VethEnd { prefix_len: 128, ..end }, beside, aggregates)?;
            let on = |to, via| KernelRoute { to: Some((to, 128)), via: KernelNextHop::On(via) };
            routes::add(space, &[on(end.address, &name)])?;
            let far = KernelRoute {
                to: Some((ends[1 - number].address, 128)),
                via: KernelNextHop::By(at),
            };
            routes::add(end.namespace, &[on(at, end.interface), far])?;
        }
        if count == 2 {
            for number in [0, 1] {
                let far = (ends[1 - number].address, 128);
                let route = KernelRoute { to: Some(far), via: KernelNextHop::On(TUNNEL) };
                routes::add(&self.spaces[number], &[route])?;
            }
        }
        Ok(())
    }

    /// Routes `prefix` to an end, at the machines between the ends.
    pub fn route_to(
        &self,
        family: IpFamily,
        link: usize,
        end: usize,
        prefix: (IpAddr, u8),
    ) -> Result<()> {
        let by =
            KernelRoute { to: Some(prefix), via: KernelNextHop::By(family.address(link, end)) };
        match self.through {
            LinkMiddle::Nothing | LinkMiddle::Switch => Ok(()),
            LinkMiddle::Router => routes::add(&self.spaces[0], &[by]),
            LinkMiddle::Segments => {
                let on = KernelRoute { to: Some(prefix), via: KernelNextHop::On(&towards(end)) };
                routes::add(&self.spaces[0], &[on])
            }
            LinkMiddle::Tunnel => {
                let far = KernelRoute { to: Some(prefix), via: KernelNextHop::On(TUNNEL) };
                routes::add(&self.spaces[1 - end], &[far])?;
                routes::add(&self.spaces[end], &[by])
            }
        }
    }
}
