//! Machines between the ends of a link: a switch, a router, or two routers with a tunnel.
//!
//! ```text
//! end 0 - switch - end 1
//! end 0 - router - end 1
//! end 0 - router - end 1                      each end on a segment of its own
//! end 0 - router = IPv4 = router - end 1      IPv6 in IPv4, by the lab's own tunnel
//! ```
//!
//! Behind a router the ends have addresses of their own, each a prefix of 128 bits, and reach the
//! router at another address.

use std::net::IpAddr;

use anyhow::{Result, ensure};
use rtnetlink::{LinkBridge, LinkUnspec};
use serde::Deserialize;

use super::Family;
use super::routes::{self, Route, Way};
use super::tunnel::{self, Tunnel};
use crate::namespace::Namespace;
use crate::veth::{self, End};

/// Name of the bridge, and of the tunnel's interface.
const BRIDGE: &str = "bridge";
const TUNNEL: &str = "tunnel";

/// What is between the ends of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Through {
    /// A cable.
    #[default]
    Nothing,
    /// A switch.
    Switch,
    /// A router of IPv6.
    Router,
    /// The same, which has the prefixes of both ends on the segments before it: it asks on the wire
    /// for each address of them.
    Segments,
    /// Two routers of IPv6 that reach each other over IPv4 only.
    Tunnel,
}

/// The machines.
#[derive(Debug, Default)]
pub(super) struct Middle {
    through: Through,
    /// Dropped before its namespaces.
    _tunnel: Option<Tunnel>,
    /// One that is next to both ends, or one for each end.
    spaces: Vec<Namespace>,
}

/// The name of the interface towards an end.
pub(super) fn towards(end: usize) -> String {
    format!("end{end}")
}

impl Middle {
    /// Makes a link with what is between its ends.
    ///
    /// # Errors
    /// Routers are for IPv6 only.
    pub fn connect(
        through: Through,
        ends: [End<'_>; 2],
        link: usize,
        aggregates: bool,
    ) -> Result<Middle> {
        let mut middle = Middle { through, _tunnel: None, spaces: Vec::new() };
        match through {
            Through::Nothing => veth::connect(ends[0], ends[1], aggregates)?,
            Through::Switch => {
                middle.spaces.push(Namespace::new()?);
                middle.switch(ends, aggregates)?;
            }
            Through::Router | Through::Segments | Through::Tunnel => {
                let is_v6 = ends.iter().all(|end| end.address.is_ipv6());
                ensure!(is_v6, "a router between a link's ends needs family = \"ipv6\"");
                middle.routers(ends, link, aggregates)?;
            }
        }
        Ok(middle)
    }

    /// In words, for reports.
    pub fn words(&self) -> Option<&'static str> {
        match self.through {
            Through::Nothing => None,
            Through::Switch => Some("a bridge between ends"),
            Through::Router => Some("a router between ends"),
            Through::Segments => Some("a router between the segments of ends"),
            Through::Tunnel => Some("IPv6 in IPv4 between two routers, by the lab's tunnel"),
        }
    }

    /// The machine next to an end.
    pub fn beside(&self, end: usize) -> Option<&Namespace> {
        self.spaces.get(end).or(self.spaces.first())
    }

    /// Where an end sends what is for the other one.
    pub fn next(&self, family: Family, link: usize, end: usize) -> IpAddr {
        match self.through {
            Through::Nothing | Through::Switch => family.address(link, 1 - end),
            Through::Router | Through::Segments | Through::Tunnel => family.router(link, end),
        }
    }

    fn switch(&self, ends: [End<'_>; 2], aggregates: bool) -> Result<()> {
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

    fn routers(&mut self, ends: [End<'_>; 2], link: usize, aggregates: bool) -> Result<()> {
        let count = if self.through == Through::Tunnel { 2 } else { 1 };
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
            let (name, at) = (towards(number), Family::Ipv6.router(link, number));
            let beside = End { namespace: space, interface: &name, address: at, prefix_len: 128 };
            veth::connect(End { prefix_len: 128, ..end }, beside, aggregates)?;
            let on = |to, via| Route { to: Some((to, 128)), via: Way::On(via) };
            routes::add(space, &[on(end.address, &name)])?;
            let far = Route { to: Some((ends[1 - number].address, 128)), via: Way::By(at) };
            routes::add(end.namespace, &[on(at, end.interface), far])?;
        }
        if count == 2 {
            for number in [0, 1] {
                let far = (ends[1 - number].address, 128);
                let route = Route { to: Some(far), via: Way::On(TUNNEL) };
                routes::add(&self.spaces[number], &[route])?;
            }
        }
        Ok(())
    }

    /// Sends what is for `prefix` to an end, at the machines between the ends.
    pub fn route_to(
        &self,
        family: Family,
        link: usize,
        end: usize,
        prefix: (IpAddr, u8),
    ) -> Result<()> {
        let by = Route { to: Some(prefix), via: Way::By(family.address(link, end)) };
        match self.through {
            Through::Nothing | Through::Switch => Ok(()),
            Through::Router => routes::add(&self.spaces[0], &[by]),
            Through::Segments => {
                let on = Route { to: Some(prefix), via: Way::On(&towards(end)) };
                routes::add(&self.spaces[0], &[on])
            }
            Through::Tunnel => {
                let far = Route { to: Some(prefix), via: Way::On(TUNNEL) };
                routes::add(&self.spaces[1 - end], &[far])?;
                routes::add(&self.spaces[end], &[by])
            }
        }
    }
}
