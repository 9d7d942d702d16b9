//! The kernel's side of addresses that hop: the route by which they are this machine's, and the
//! filter that drops what comes to those that are not in use.

use anyhow::Context;

use crate::config::Config;
use crate::control::api;
use crate::net::filter::{FilterState, HopFilter};
use crate::net::ports::Ports;
use crate::net::receive::Receiver;
use crate::tun::hop_route::HopRoute;
use crate::worker::first::Worker;

/// Held as long as addresses hop.
pub struct Hopping {
    _route: HopRoute,
    pub(crate) filter: HopFilter,
}

impl Hopping {
    /// Makes the route, and puts the filter before the sockets of all workers, with the rights of
    /// the start.
    pub fn open(
        config: &Config,
        (first, more): (&Ports, &[(Ports, Vec<Receiver>)]),
    ) -> anyhow::Result<Option<Hopping>> {
        let Some((hop, prefix)) = config.hop.as_ref().zip(config.hop_prefix()) else {
            return Ok(None);
        };
        let route = HopRoute::open(hop, prefix)?;
        let all = std::iter::once(first).chain(more.iter().map(|(ports, _)| ports));
        let sockets = all.map(Ports::hopping).collect::<Result<Vec<_>, _>>();
        let sockets = sockets.context("[hop]: can't keep a handle of the sockets")?;
        let filter = HopFilter::open(sockets.into_iter().flatten().collect(), prefix.0);
        Ok(Some(Hopping { _route: route, filter }))
    }

    /// For the status.
    pub fn status(&self, addresses: usize) -> api::HopStatus {
        let filter = match self.filter.state() {
            FilterState::Counting => "counting",
            FilterState::Plain => "plain",
            FilterState::Off => "off",
        };
        api::HopStatus { filter: filter.into(), addresses: addresses as u32 }
    }

    /// What the operator should know.
    pub fn warnings(&self) -> impl Iterator<Item = String> + '_ {
        let fault = self.filter.fault();
        fault.into_iter().map(|why| {
            format!(
                "[hop]: the kernel filters nothing for this node ({why}): what comes to addresses \
                 that are not in use takes room in the sockets' buffers"
            )
        })
    }
}

impl Worker {
    /// Has the kernel drop what comes to addresses that are not in use any more, before anything is
    /// sent from new ones.
    pub(super) fn let_hops_in(&mut self) {
        let accepted = self.parts.node.relay.accepted();
        if let Some((hopping, accepted)) = self.parts.hopping.as_mut().zip(accepted) {
            hopping.filter.follow(accepted);
        }
    }
}
