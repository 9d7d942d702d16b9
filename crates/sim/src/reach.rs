//! Direct links of the simulated hosts: who wants them, where hosts are, and why there is none.

use core::time::Duration;
use std::rc::Rc;

use shoal_crypto::Ciphers;
use shoal_edge::{DirectConfig, Relayed};
use shoal_wire::{Address, Level, Time};

use crate::nat;
use crate::node::{Makings, Node};
use crate::options::Options;

/// How long a direct link may be idle: shorter than in the daemon, so that links end within a run.
const DIRECT_IDLE: Duration = Duration::from_secs(2);
/// What the host at `address` wants of direct links. Every fourth can't be called.
pub(crate) fn direct(options: &Options, at: usize, address: Address) -> Option<DirectConfig> {
    let wanted = options.direct_wires > 0 && !address.is_router();
    let callable = at % 4 != 3 && options.translators.is_empty();
    wanted.then(|| DirectConfig {
        proactive: false,
        endpoint: callable.then(|| nat::public(at)),
        weakest: Level::Encrypt,
        groups: Vec::new(),
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

    /// Why there is no direct link with hosts that this one wants links with.
    pub(crate) fn relayed(&self) -> impl Iterator<Item = &'static str> + '_ {
        let hosts = self.makings.knows[self.at].iter();
        let hosts = hosts.filter_map(|&other| self.host(self.makings.plan.nodes[other]));
        hosts.filter_map(|host| self.control.edge.direct_relayed(host)).map(Relayed::words)
    }
}
