//! The kernel's side of addresses that hop: the route, or the addresses on a segment, by which they
//! are this machine's, and the filter that drops what comes to those that are not in use.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use nix::net::if_::InterfaceFlags;
use shoal_relay::{Accepted, FORMER_KEPT, FORMER_MAX};
use shoal_wire::HopPlace;

use crate::config::reach::under_own_prefix;
use crate::config::{Config, Hop, HopMode, HopPrefix};
use crate::control::api;
use crate::membership::hosts::Hosts;
use crate::net::filter::{FilterState, HopFilter};
use crate::net::ports::Ports;
use crate::net::receive::Receiver;
use crate::net::socket::SharedPrefix;
use crate::tun::hop_addresses::{HopAddresses, Segment};
use crate::tun::hop_route::HopRoute;
use crate::worker::first::Worker;

/// How the addresses come to this machine.
enum Way {
    Routed(HopRoute),
    Segment(Segment, HopAddresses),
}

/// The segment on which addresses are to hop; none if they are routed.
fn segment(hop: &Hop, prefix: HopPrefix) -> anyhow::Result<Option<Segment>> {
    let found = match hop.mode {
        HopMode::Routed => return Ok(None),
        HopMode::Auto | HopMode::Segment => {
            Segment::find(prefix, hop.inside.as_ref().map(|name| name.as_str()))?
        }
    };
    if found.is_none() && hop.mode == HopMode::Segment {
        anyhow::bail!(
            "[hop] mode: no interface of this machine has an address under {}/64: give one such an \
             address, or have the prefix routed here and say mode = \"routed\"",
            prefix.address()
        );
    }
    Ok(found)
}

/// Whether machines behind this node can have the addresses that the file says.
///
/// Errors: there is no such interface, or an address is this machine's.
pub fn check_inside(config: &Config) -> anyhow::Result<()> {
    let Some(inside) = config.inside() else { return Ok(()) };
    if nix::net::if_::if_nametoindex(inside).is_err() {
        anyhow::bail!("[hop] inside: this machine has no interface {inside:?}");
    }
    let all = nix::ifaddrs::getifaddrs().context("[hop]: can't list interfaces")?;
    for at in all {
        if at.interface_name == inside && at.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            anyhow::bail!("[hop] inside: behind {inside} there is this machine alone");
        }
        let ip = at.address.and_then(|address| Some(address.as_sockaddr_in6()?.ip()));
        if let Some(ip) = ip.filter(|ip| config.protected().any(|machine| machine.0 == *ip)) {
            anyhow::bail!(
                "[hop] protect: {ip} is this machine's own, on {}: expected addresses of machines \
                 behind it",
                at.interface_name
            );
        }
    }
    Ok(())
}

impl Way {
    fn open(hop: &Hop, prefix: HopPrefix) -> anyhow::Result<Way> {
        match segment(hop, prefix)? {
            Some(segment) => {
                let addresses = HopAddresses::start(&segment, prefix)?;
                Ok(Way::Segment(segment, addresses))
            }
            None => Ok(Way::Routed(HopRoute::open(hop, prefix)?)),
        }
    }
}

/// Another prefix, and the identifiers there that don't hop.
pub(crate) type Moved = ([u8; 8], Vec<u64>);

/// A prefix before the one in use.
struct Former {
    prefix: HopPrefix,
    /// Identifiers there of this machine's that don't hop.
    stays: Vec<u64>,
    /// When none is left of those that hop.
    until: Instant,
}

/// Held as long as addresses hop.
pub struct Hopping {
    way: Way,
    prefix: HopPrefix,
    /// Prefixes before that one; the last at first.
    former: Vec<Former>,
    /// By which sockets choose the sources that a send may name.
    sources: Vec<SharedPrefix>,
    pub(crate) filter: HopFilter,
    accepted: Option<Arc<Accepted>>,
}

impl Hopping {
    /// Makes the route, or readies the segment's interface, and puts the filter before the sockets
    /// of all workers, with the rights of the start.
    pub fn open(
        config: &Config,
        (first, more): (&Ports, &[(Ports, Vec<Receiver>)]),
    ) -> anyhow::Result<Option<Hopping>> {
        let Some((hop, prefix)) = config.hop.as_ref().zip(config.hop_prefix()) else {
            return Ok(None);
        };
        check_inside(config)?;
        let way = Way::open(hop, prefix)?;
        let all = std::iter::once(first).chain(more.iter().map(|(ports, _)| ports));
        let sockets = all.map(Ports::hopping).collect::<Result<Vec<_>, _>>();
        let sockets = sockets.context("[hop]: can't keep a handle of the sockets")?;
        let all = std::iter::once(first).chain(more.iter().map(|(ports, _)| ports));
        let sources = all.flat_map(Ports::names_under).collect();
        let filter = HopFilter::open(sockets.into_iter().flatten().collect(), prefix.0);
        Ok(Some(Hopping { way, prefix, former: Vec::new(), sources, filter, accepted: None }))
    }

    /// Whether addresses can go on under the prefix of this configuration without a restart.
    ///
    /// Errors: they can't, since they would come to this machine in another way.
    pub fn may_move(&self, config: &Config) -> anyhow::Result<()> {
        let Some((hop, prefix)) = config.hop.as_ref().zip(config.hop_prefix()) else {
            return Ok(());
        };
        let on_segment = segment(hop, prefix)?.is_some();
        let prefix = prefix.address();
        match &self.way {
            Way::Routed(_) if on_segment => anyhow::bail!(
                "[hop] prefix: {prefix}/64 is a segment's, since an interface has an address under \
                 it, and addresses were routed: restart, or say mode = \"routed\""
            ),
            Way::Segment(segment, _) if !on_segment => anyhow::bail!(
                "[hop] prefix: no interface has an address under {prefix}/64: give {} one; or, if \
                 the prefix is routed to this machine, restart",
                segment.name
            ),
            Way::Routed(_) | Way::Segment(..) => Ok(()),
        }
    }

    /// Addresses are under this configuration's prefix from now on, if [`Self::may_move`]. Gives
    /// the prefix if it is another one, and the identifiers there that don't hop.
    ///
    /// Errors: the kernel does not bring it here; they are where they were.
    pub(crate) fn move_to(&mut self, config: &Config) -> anyhow::Result<Option<Moved>> {
        let Some((hop, prefix)) = config.hop.as_ref().zip(config.hop_prefix()) else {
            return Ok(None);
        };
        if prefix == self.prefix {
            return Ok(None);
        }
        let before = self.staying();
        let accepted = self.accepted.clone();
        let identifiers = accepted.as_ref().map_or(&[][..], |known| known.identifiers());
        match &mut self.way {
            Way::Routed(route) => route.move_to(self.prefix, prefix)?,
            Way::Segment(known, addresses) => {
                let there = segment(hop, prefix)?.context("[hop] prefix: its interface is gone")?;
                let stays = |id: &&u64| before.contains(id) || there.own.contains(id);
                let wanted = identifiers.iter().filter(|id| !stays(id)).copied();
                addresses.move_to(&there, prefix, wanted.collect())?;
                *known = there;
            }
        }
        let former = std::mem::replace(&mut self.prefix, prefix);
        let now = Instant::now();
        self.former.retain(|known| known.prefix != prefix && now < known.until);
        let former = Former { prefix: former, stays: before, until: now + FORMER_KEPT };
        self.former.insert(0, former);
        self.former.truncate(FORMER_MAX);
        self.sources.iter().for_each(|source| source.set(prefix.0));
        self.filter.move_to(prefix.0, identifiers);
        self.accepted = None;
        Ok(Some((prefix.0, self.staying())))
    }

    /// Whether addresses would hop on a segment.
    ///
    /// Errors: they are to, and there is none; or there are two.
    pub fn is_on_segment(config: &Config) -> anyhow::Result<bool> {
        let Some((hop, prefix)) = config.hop.as_ref().zip(config.hop_prefix()) else {
            return Ok(false);
        };
        segment(hop, prefix).map(|found| found.is_some())
    }

    /// What is wrong with an endpoint if the mode, left to the node, turns out to be `routed`.
    pub fn unreached(config: &Config, hosts: &Hosts) -> Option<String> {
        config.hop.as_ref().filter(|hop| hop.mode == HopMode::Auto)?;
        let is_routed = Hopping::is_on_segment(config).is_ok_and(|on_segment| !on_segment);
        is_routed.then(|| under_own_prefix(config, hosts))?
    }

    /// Gives up all rights that are not needed any more.
    pub fn seal(&self) -> anyhow::Result<()> {
        match &self.way {
            Way::Routed(route) => route.seal(),
            Way::Segment(_, addresses) => addresses.seal(),
        }
    }

    /// Interface identifiers of this machine's addresses under the prefix that don't hop.
    pub fn staying(&self) -> Vec<u64> {
        match &self.way {
            Way::Routed(_) => Vec::new(),
            Way::Segment(segment, _) => segment.own.clone(),
        }
    }

    /// Whether an address is under the prefix and is not one that stays: nobody may be told of it.
    pub(super) fn is_passing(&self, ip: IpAddr) -> bool {
        let Some((prefix, identifier)) = HopPlace::split(SocketAddr::new(ip, 0)) else {
            return false;
        };
        let now = Instant::now();
        let left = |known: &&Former| known.prefix.0 == prefix && now < known.until;
        match (&self.way, self.former.iter().find(left)) {
            (_, Some(former)) => !former.stays.contains(&identifier),
            _ if prefix != self.prefix.0 => false,
            (Way::Routed(_), None) => true,
            (Way::Segment(segment, _), None) => !segment.own.contains(&identifier),
        }
    }

    /// Takes the identifiers of addresses that stay, if the machine has others than before.
    fn take_staying(&mut self) -> Option<Vec<u64>> {
        let Way::Segment(segment, addresses) = &mut self.way else { return None };
        segment.own = addresses.take_staying()?;
        Some(segment.own.clone())
    }

    /// Has the kernel let in what comes to these addresses, and nothing else of the prefix.
    fn follow(&mut self, accepted: &Arc<Accepted>) {
        if self.accepted.as_ref().is_some_and(|known| Arc::ptr_eq(known, accepted)) {
            return;
        }
        self.accepted = Some(Arc::clone(accepted));
        self.filter.let_in(accepted.identifiers());
        if let Way::Segment(segment, addresses) = &self.way {
            // Those that stay under a former prefix may be others' under this one.
            let former = self.former.iter().flat_map(|known| &known.stays);
            let stays: Vec<u64> = former.chain(&segment.own).copied().collect();
            let hop = accepted.identifiers().iter().filter(|id| !stays.contains(id));
            addresses.set(hop.copied().collect());
        }
    }

    /// For the status.
    pub fn status(&self, addresses: usize) -> api::HopStatus {
        let filter = match self.filter.state() {
            FilterState::Counting => "counting",
            FilterState::Plain => "plain",
            FilterState::Off => "off",
        };
        let (mode, interface) = match &self.way {
            Way::Routed(_) => ("routed", None),
            Way::Segment(segment, _) => ("segment", Some(segment.name.clone())),
        };
        let (mode, filter, addresses) = (mode.into(), filter.into(), addresses as u32);
        let prefix = format!("{:?}", self.prefix);
        api::HopStatus { mode, prefix, interface, filter, addresses }
    }

    /// What the operator should know.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        let unfiltered = self.filter.fault().map(|why| {
            format!(
                "[hop]: the kernel filters nothing for this node ({why}): what comes to addresses \
                 that are not in use takes room in the sockets' buffers"
            )
        });
        let missing = match &self.way {
            Way::Routed(route) => route.fault().map(|why| format!("[hop] prefix: {why}")),
            Way::Segment(segment, addresses) => addresses.fault().map(|why| {
                let name = &segment.name;
                format!("[hop]: on {name} {why}: links that would use them stay where they are")
            }),
        };
        unfiltered.into_iter().chain(missing)
    }
}

impl Worker {
    /// Has the kernel drop what comes to addresses that are not in use any more, before anything is
    /// sent from new ones. On a segment the interface gets those a moment later: that is an epoch
    /// before they are used, but for the first hop of a session, which begins at once.
    pub(super) fn let_hops_in(&mut self) {
        // Each turn asks.
        if self.parts.hopping.is_none() {
            return;
        }
        if let Some(staying) = self.parts.hopping.as_mut().and_then(Hopping::take_staying) {
            self.parts.node.relay.set_staying(staying);
            self.look_at_reach();
        }
        let accepted = self.parts.node.relay.accepted();
        if let Some((hopping, accepted)) = self.parts.hopping.as_mut().zip(accepted) {
            hopping.follow(accepted);
        }
    }
}
