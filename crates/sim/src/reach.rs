//! Direct links of the simulated hosts: who wants them, where hosts are, and why there is none.

use core::time::Duration;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_edge::{DirectConfig, Relayed};
use shoal_wire::{Address, Level, LinkId, Time};

use crate::nat;
use crate::node::{Makings, Node};
use crate::options::Options;

/// How long a direct link may be idle: shorter than in the daemon, so that links end within a run.
const DIRECT_IDLE: Duration = Duration::from_secs(2);
/// The weakest level that hosts take.
fn weakest(options: &Options) -> Level {
    Level::ALL[(options.direct_level as usize).min(Level::ALL.len() - 1)]
}

/// The level of a direct link of two hosts.
pub(crate) fn level(options: &Options, one: usize, other: usize) -> Level {
    if one % 2 == other % 2 { Level::Encrypt } else { weakest(options) }
}

/// What the host at `address` wants of direct links. Every fourth can't be called.
pub(crate) fn direct(options: &Options, at: usize, address: Address) -> Option<DirectConfig> {
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

impl<C: Ciphers> Node<C> {
    /// Says where this host is, and which routers may be asked where they see it.
    pub(crate) fn configure_reach(&mut self, now: Time) {
        let makings = Rc::clone(&self.makings);
        let Makings { plan, keys, own, .. } = &*makings;
        let wires = plan.wires[plan.links..].iter();
        let mirrors = wires.filter(|wire| wire.0 == self.at && wire.1 < plan.routers);
        let mirrors = mirrors.map(|&(_, router)| (keys[router], own[router])).collect();
        self.control.relay.set_mirrors(now, mirrors);
        self.control.set_locals(vec![own[self.at]]);
    }

    /// Says what is wrong with the level of a link that came up, if anything is.
    pub(crate) fn check_level(&self, link: LinkId) -> Result<(), String> {
        let Makings { plan, options, .. } = &*self.makings;
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

    /// Why there is no direct link with hosts that this one wants links with.
    pub(crate) fn relayed(&self) -> impl Iterator<Item = &'static str> + '_ {
        let hosts = self.makings.knows[self.at].iter();
        let hosts = hosts.filter_map(|&other| self.host(self.makings.plan.nodes[other]));
        hosts.filter_map(|host| self.control.edge.direct_relayed(host)).map(Relayed::words)
    }
}
