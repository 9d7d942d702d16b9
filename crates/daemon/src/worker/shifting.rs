//! The kernel's side of shifting addresses. A route, or addresses on a segment, bring their
//! datagrams to this machine. A filter drops datagrams to addresses that are not in use.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context;
use nix::net::if_::InterfaceFlags;
use shoal_relay::{AcceptedAddresses, FORMER_KEPT, FORMER_MAX};
use shoal_wire::ShiftAnnouncement;

use crate::config::reach::under_own_prefix;
use crate::config::{NodeConfig, ShiftConfig, ShiftMode, ShiftPrefix};
use crate::control::api;
use crate::membership::hosts::HostList;
use crate::net::filter::{FilterState, ShiftFilter};
use crate::net::ports::NodeSockets;
use crate::net::receive::DatagramReceiver;
use crate::net::socket::SharedPrefix;
use crate::tun::shift_addresses::{SegmentShifts, ShiftSegment};
use crate::tun::shift_route::ShiftRoute;
use crate::worker::first::FirstWorker;

/// Method by which the addresses' datagrams reach this machine.
enum ShiftMethod {
    Routed(ShiftRoute),
    Segment(ShiftSegment, SegmentShifts),
}

/// The segment on which addresses shall shift; none if they are routed.
fn segment(shift: &ShiftConfig, prefix: ShiftPrefix) -> anyhow::Result<Option<ShiftSegment>> {
    let found = match shift.mode {
        ShiftMode::Routed => return Ok(None),
        ShiftMode::Auto | ShiftMode::Segment => {
            ShiftSegment::find(prefix, shift.inside.as_ref().map(|name| name.as_str()))?
        }
    };
    if found.is_none() && shift.mode == ShiftMode::Segment {
        anyhow::bail!(
            "[shift] mode: no interface of this machine has an address under {}/64: give one such \
             an address, or have the prefix routed here and set mode = \"routed\"",
            prefix.address()
        );
    }
    Ok(found)
}

/// Checks that the file's protected addresses can belong to machines behind this node.
///
/// Errors: there is no such interface, or an address is this machine's.
pub fn check_inside(config: &NodeConfig) -> anyhow::Result<()> {
    let Some(inside) = config.inside() else { return Ok(()) };
    if nix::net::if_::if_nametoindex(inside).is_err() {
        anyhow::bail!("[shift] inside: this machine has no interface {inside:?}");
    }
    let all = nix::ifaddrs::getifaddrs().context("[shift]: can't list interfaces")?;
    for at in all {
        if at.interface_name == inside && at.flags.contains(InterfaceFlags::IFF_LOOPBACK) {
            anyhow::bail!(
                "[shift] inside: {inside} is the loopback: no other machine is behind it"
            );
        }
        let ip = at.address.and_then(|address| Some(address.as_sockaddr_in6()?.ip()));
        if let Some(ip) = ip.filter(|ip| config.protected().any(|machine| machine.0 == *ip)) {
            anyhow::bail!(
                "[shift] protect: {ip} is this machine's own, on {}: expected addresses of \
                 machines behind it",
                at.interface_name
            );
        }
    }
    Ok(())
}

impl ShiftMethod {
    fn open(shift: &ShiftConfig, prefix: ShiftPrefix) -> anyhow::Result<ShiftMethod> {
        match segment(shift, prefix)? {
            Some(segment) => {
                let addresses = SegmentShifts::start(&segment, prefix)?;
                Ok(ShiftMethod::Segment(segment, addresses))
            }
            None => Ok(ShiftMethod::Routed(ShiftRoute::open(shift, prefix)?)),
        }
    }
}

/// A new prefix, and this machine's permanent identifiers under it.
pub(crate) type PrefixMove = ([u8; 8], Vec<u64>);

/// A prefix used before.
struct ExpiringPrefix {
    prefix: ShiftPrefix,
    /// This machine's permanent identifiers under it.
    stays: Vec<u64>,
    /// End of the lifetimes of its shifting addresses.
    until: Instant,
}

/// Owner of the kernel's settings while addresses shift.
pub struct KernelShifts {
    way: ShiftMethod,
    prefix: ShiftPrefix,
    /// Former prefixes, the latest first.
    former: Vec<ExpiringPrefix>,
    /// Prefixes from which the sockets let a send choose its source address.
    sources: Vec<SharedPrefix>,
    pub(crate) filter: ShiftFilter,
    accepted: Option<Arc<AcceptedAddresses>>,
}

impl KernelShifts {
    /// Sets up the route or the segment's interface, and puts the filter before the sockets of all
    /// workers. Needs the privileges of the start.
    pub fn open(
        config: &NodeConfig,
        (first, more): (&NodeSockets, &[(NodeSockets, Vec<DatagramReceiver>)]),
    ) -> anyhow::Result<Option<KernelShifts>> {
        let Some((shift, prefix)) = config.shift.as_ref().zip(config.shift_prefix()) else {
            return Ok(None);
        };
        check_inside(config)?;
        let way = ShiftMethod::open(shift, prefix)?;
        let all = std::iter::once(first).chain(more.iter().map(|(ports, _)| ports));
        let sockets = all.map(NodeSockets::shifting).collect::<Result<Vec<_>, _>>();
        let sockets = sockets.context("[shift]: can't keep a handle of the sockets")?;
        let all = std::iter::once(first).chain(more.iter().map(|(ports, _)| ports));
        let sources = all.flat_map(NodeSockets::names_under).collect();
        let filter = ShiftFilter::open(sockets.into_iter().flatten().collect(), prefix.0);
        Ok(Some(KernelShifts { way, prefix, former: Vec::new(), sources, filter, accepted: None }))
    }

    /// Checks that addresses can move to the prefix of this configuration without a restart.
    ///
    /// Errors: they can't, since the method would change between route and segment.
    pub fn may_move(&self, config: &NodeConfig) -> anyhow::Result<()> {
        let Some((shift, prefix)) = config.shift.as_ref().zip(config.shift_prefix()) else {
            return Ok(());
        };
        let on_segment = segment(shift, prefix)?.is_some();
        let prefix = prefix.address();
        match &self.way {
            ShiftMethod::Routed(_) if on_segment => anyhow::bail!(
                "[shift] prefix: an interface has an address under {prefix}/64, so the prefix \
                 belongs to a segment, but addresses are routed: restart, or set mode = \"routed\""
            ),
            ShiftMethod::Segment(segment, _) if !on_segment => anyhow::bail!(
                "[shift] prefix: no interface has an address under {prefix}/64: give {} one; or, \
                 if the prefix is routed to this machine, restart",
                segment.name
            ),
            ShiftMethod::Routed(_) | ShiftMethod::Segment(..) => Ok(()),
        }
    }

    /// Moves addresses to this configuration's prefix, after [`Self::may_move`]. Returns the
    /// prefix, if it is new, with the permanent identifiers under it.
    ///
    /// Errors: the kernel refuses. The former prefix stays in use.
    pub(crate) fn move_to(&mut self, config: &NodeConfig) -> anyhow::Result<Option<PrefixMove>> {
        let Some((shift, prefix)) = config.shift.as_ref().zip(config.shift_prefix()) else {
            return Ok(None);
        };
        if prefix == self.prefix {
            return Ok(None);
        }
        let before = self.staying();
        let accepted = self.accepted.clone();
        let identifiers = accepted.as_ref().map_or(&[][..], |known| known.identifiers());
        match &mut self.way {
            ShiftMethod::Routed(route) => route.move_to(self.prefix, prefix)?,
            ShiftMethod::Segment(known, addresses) => {
                let there =
                    segment(shift, prefix)?.context("[shift] prefix: its interface is gone")?;
                let stays = |id: &&u64| before.contains(id) || there.own.contains(id);
                let wanted = identifiers.iter().filter(|id| !stays(id)).copied();
                addresses.move_to(&there, prefix, wanted.collect())?;
                *known = there;
            }
        }
        let former = std::mem::replace(&mut self.prefix, prefix);
        let now = Instant::now();
        self.former.retain(|known| known.prefix != prefix && now < known.until);
        let former = ExpiringPrefix { prefix: former, stays: before, until: now + FORMER_KEPT };
        self.former.insert(0, former);
        self.former.truncate(FORMER_MAX);
        self.sources.iter().for_each(|source| source.set(prefix.0));
        self.filter.move_to(prefix.0, identifiers);
        self.accepted = None;
        Ok(Some((prefix.0, self.staying())))
    }

    /// True if addresses would shift on a segment.
    ///
    /// Errors: the file requires a segment and there is none, or two interfaces have the prefix.
    pub fn is_on_segment(config: &NodeConfig) -> anyhow::Result<bool> {
        let Some((shift, prefix)) = config.shift.as_ref().zip(config.shift_prefix()) else {
            return Ok(false);
        };
        segment(shift, prefix).map(|found| found.is_some())
    }

    /// Warning about an endpoint, if automatic mode chooses `routed`.
    pub fn unreached(config: &NodeConfig, hosts: &HostList) -> Option<String> {
        config.shift.as_ref().filter(|shift| shift.mode == ShiftMode::Auto)?;
        let is_routed = KernelShifts::is_on_segment(config).is_ok_and(|on_segment| !on_segment);
        is_routed.then(|| under_own_prefix(config, hosts))?
    }

    /// Drops all privileges that are not needed after the start.
    pub fn seal(&self) -> anyhow::Result<()> {
        match &self.way {
            ShiftMethod::Routed(route) => route.seal(),
            ShiftMethod::Segment(_, addresses) => addresses.seal(),
        }
    }

    /// Identifiers of this machine's permanent addresses under the prefix.
    pub fn staying(&self) -> Vec<u64> {
        match &self.way {
            ShiftMethod::Routed(_) => Vec::new(),
            ShiftMethod::Segment(segment, _) => segment.own.clone(),
        }
    }

    /// True if an address is under the prefix and shifts: it must not be announced to anybody.
    pub(super) fn is_passing(&self, ip: IpAddr) -> bool {
        let Some((prefix, identifier)) = ShiftAnnouncement::split(SocketAddr::new(ip, 0)) else {
            return false;
        };
        let now = Instant::now();
        let left = |known: &&ExpiringPrefix| known.prefix.0 == prefix && now < known.until;
        match (&self.way, self.former.iter().find(left)) {
            (_, Some(former)) => !former.stays.contains(&identifier),
            _ if prefix != self.prefix.0 => false,
            (ShiftMethod::Routed(_), None) => true,
            (ShiftMethod::Segment(segment, _), None) => !segment.own.contains(&identifier),
        }
    }

    /// Takes the identifiers of permanent addresses, if they changed.
    fn take_staying(&mut self) -> Option<Vec<u64>> {
        let ShiftMethod::Segment(segment, addresses) = &mut self.way else { return None };
        segment.own = addresses.take_staying()?;
        Some(segment.own.clone())
    }

    /// Makes the kernel accept datagrams to these addresses, and to no others of the prefix.
    fn follow(&mut self, accepted: &Arc<AcceptedAddresses>) {
        if self.accepted.as_ref().is_some_and(|known| Arc::ptr_eq(known, accepted)) {
            return;
        }
        self.accepted = Some(Arc::clone(accepted));
        self.filter.let_in(accepted.identifiers());
        if let ShiftMethod::Segment(segment, addresses) = &self.way {
            // Identifiers that are permanent under a former prefix may belong to others under this
            // one.
            let former = self.former.iter().flat_map(|known| &known.stays);
            let stays: Vec<u64> = former.chain(&segment.own).copied().collect();
            let shift = accepted.identifiers().iter().filter(|id| !stays.contains(id));
            addresses.set(shift.copied().collect());
        }
    }

    pub fn status(&self, addresses: usize) -> api::ShiftStatus {
        let filter = match self.filter.state() {
            FilterState::Counting => "counting",
            FilterState::Plain => "plain",
            FilterState::Off => "off",
        };
        let (mode, interface) = match &self.way {
            ShiftMethod::Routed(_) => ("routed", None),
            ShiftMethod::Segment(segment, _) => ("segment", Some(segment.name.clone())),
        };
        let (mode, filter, addresses) = (mode.into(), filter.into(), addresses as u32);
        let prefix = format!("{:?}", self.prefix);
        api::ShiftStatus { mode, prefix, interface, filter, addresses }
    }

    /// Warnings for the operator.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        let unfiltered = self.filter.fault().map(|why| {
            format!(
                "[shift]: the kernel filters nothing for this node ({why}): datagrams to addresses \
                 out of use fill the sockets' buffers"
            )
        });
        let missing = match &self.way {
            ShiftMethod::Routed(route) => route.fault().map(|why| format!("[shift] prefix: {why}")),
            ShiftMethod::Segment(segment, addresses) => addresses.fault().map(|why| {
                let name = &segment.name;
                format!("[shift]: on {name} {why}: links that need them keep their addresses")
            }),
        };
        unfiltered.into_iter().chain(missing)
    }
}

impl FirstWorker {
    /// Makes the kernel drop datagrams to addresses out of use, before anything leaves from new
    /// ones. On a segment the interface gets new addresses a moment later. That is an epoch before
    /// their use, except for the first shift of a session, which begins at once.
    pub(super) fn let_shifts_in(&mut self) {
        // This function runs in each turn.
        if self.parts.shifting.is_none() {
            return;
        }
        if let Some(staying) = self.parts.shifting.as_mut().and_then(KernelShifts::take_staying) {
            self.parts.node.relay.set_staying(staying);
            self.look_at_reach();
        }
        let accepted = self.parts.node.relay.accepted();
        if let Some((shifting, accepted)) = self.parts.shifting.as_mut().zip(accepted) {
            shifting.follow(accepted);
        }
    }
}
