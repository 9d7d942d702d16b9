//! Direct links of the simulated hosts: their configuration, and reasons for missing links.

use core::time::Duration;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_edge::{DirectConfig, NoDirectReason};
use shoal_wire::{Address, Level, LinkId, Time};

use crate::nat;
use crate::node::{NetworkInputs, SimulatedNode};
use crate::options::SimulationOptions;
use crate::plant::InjectedFault;

/// Time after which an idle direct link ends. Shorter than the daemon's, so that links end within a
/// run.
const DIRECT_IDLE: Duration = Duration::from_secs(2);
/// Longest time for which links of a host that may have none still close.
const BAN_WAIT: Duration = Duration::from_millis(5_100);
/// Weakest level that hosts accept.
fn weakest(options: &SimulationOptions) -> Level {
    Level::ALL[(options.direct_level as usize).min(Level::ALL.len() - 1)]
}

/// Level of a direct link between two hosts.
pub(crate) fn level(options: &SimulationOptions, one: usize, other: usize) -> Level {
    if one % 2 == other % 2 { Level::Encrypt } else { weakest(options) }
}

/// Direct-link configuration of a host. Every fourth host has no endpoint.
pub(crate) fn direct(
    options: &SimulationOptions,
    at: usize,
    address: Address,
) -> Option<DirectConfig> {
    let wanted = options.direct_wires > 0 && !address.is_router();
    let callable = at % 4 != 3 && options.translators.is_empty();
    wanted.then(|| DirectConfig {
        proactive: false,
        endpoint: callable.then(|| nat::public(at)),
        weakest: weakest(options),
        groups: vec![[at as u8 % 2; 8]],
        idle: DIRECT_IDLE,
        links_max: 64,
    })
}

/// A node's direct links, and the times at which it may have none.
#[derive(Default)]
pub(crate) struct DirectRecord {
    /// Links made since the node's start.
    pub(crate) made: usize,
    /// Links that came up in earlier runs of the node.
    pub(crate) up_before: u64,
    /// Bans in force.
    bans: i32,
    /// Time of the first ban in force, by the node's clock.
    banned_at: Time,
}

impl<C: Ciphers> SimulatedNode<C> {
    /// Counts a ban of direct links that begins or ends.
    pub(crate) fn change_bans(&mut self, now: Time, more: i32) {
        if self.direct.bans == 0 {
            self.direct.banned_at = self.clock.read(now);
        }
        self.direct.bans += more;
    }

    /// Allows direct links unless a ban is in force.
    pub(crate) fn apply_bans(&mut self, now: Time) {
        let is_allowed =
            self.direct.bans == 0 || self.makings.options.plant == Some(InjectedFault::BanIgnored);
        let now = self.read_clock(now);
        self.control.edge.allow_direct(now, is_allowed);
    }

    /// Checks that there is no direct link [`BAN_WAIT`] after the begin of a ban. `now` is the time
    /// by the node's clock.
    pub(crate) fn check_bans(&self, now: Time) -> Result<(), String> {
        let since = self.direct.banned_at.max(self.resumed);
        let links = self.control.direct_links();
        match self.direct.bans > 0 && links > 0 && now > since + BAN_WAIT {
            true => Err(format!("node {}: {links} links", self.at)),
            false => Ok(()),
        }
    }

    /// Configures this host's own endpoint, and the routers that it may ask for its public address.
    pub(crate) fn configure_reach(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let NetworkInputs { plan, keys, own, .. } = &*makings;
        let wires = plan.wires[plan.links..].iter();
        let mirrors = wires.filter(|wire| wire.0 == self.at && wire.1 < plan.routers);
        let mirrors = mirrors.map(|&(_, router)| (keys[router], own[router])).collect();
        self.control.relay.set_mirrors(now, mirrors);
        self.control.set_locals(vec![own[self.at]]);
    }

    /// Checks the level of a link that came up.
    pub(crate) fn check_level(&self, link: LinkId) -> Result<(), String> {
        let NetworkInputs { plan, options, .. } = &*self.makings;
        let Some(view) = self.control.relay.view(link) else { return Ok(()) };
        let far = plan.nodes.iter().position(|node| *node == view.address);
        let asked = match (far, self.control.direct_host(link)) {
            (Some(far), Some(_)) => level(options, self.at, far),
            _ => Level::Encrypt,
        };
        match view.level == asked {
            true => Ok(()),
            false => Err(format!("node {}: {:?}, not {asked:?}", self.at, view.level)),
        }
    }

    /// Reasons for missing direct links to hosts with which this one wants links.
    pub(crate) fn relayed(&self) -> impl Iterator<Item = &'static str> + '_ {
        let hosts = self.makings.knows[self.at].iter();
        let hosts = hosts.filter_map(|&other| self.host(self.makings.plan.nodes[other]));
        hosts.filter_map(|host| self.control.edge.direct_relayed(host)).map(NoDirectReason::words)
    }
}
