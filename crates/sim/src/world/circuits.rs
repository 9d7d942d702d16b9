//! Input of the checkers of circuits.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_onion::CircuitLimits;
use shoal_wire::DropReason;

use super::SimulatedWorld;
use crate::check::bounds::Bound;
use crate::check::{legs, spoilt};
use crate::ciphers;
use crate::circuits::hide_ends;
use crate::plant::InjectedFault;

const VIEWS: &str = "no node can tell who uses a circuit";
/// Time within which a node finds expired circuits.
const LOOKS: Duration = Duration::from_secs(1);
/// Reasons with which a host drops altered units and cells of its circuits. Its link drops frames
/// for some of these reasons, too.
const UNITS: [DropReason; 13] = [
    DropReason::UnknownCircuit,
    DropReason::BadLeg,
    DropReason::BadLayer,
    DropReason::Replayed,
    DropReason::TooOld,
    DropReason::BadTag,
    DropReason::UnknownIndex,
    DropReason::ReplayedHandshake,
    DropReason::CookieRequired,
    DropReason::HandshakeBudget,
    DropReason::BadHandshake,
    DropReason::UnexpectedReply,
    DropReason::OtherWorker,
];

impl<C: Ciphers> SimulatedWorld<C> {
    /// Checks what cells and keys reveal to the nodes that see them.
    pub(super) fn check_views(&mut self) {
        if let Some((from, to)) = ciphers::named() {
            self.broken("no cell names two hosts that are hidden", format!("from {from} to {to}"));
        }
        if let Some(nodes) = ciphers::shared() {
            self.broken(VIEWS, format!("nodes {nodes:?} have one key"));
        }
        if let Some(seen) = ciphers::with_legs(|legs| legs.broken().cloned()).flatten() {
            self.broken(legs::RULE, seen);
        }
    }

    /// Checks that no relay is adjacent to both ends of a circuit between hidden hosts.
    pub(super) fn check_ends(&mut self) {
        let routers = &self.nodes[..self.makings.plan.routers];
        let carried = routers.iter().filter(|node| node.alive).flat_map(|node| {
            let address = node.control.relay.address();
            node.control.circuits.onion.carried().map(move |ends| (address, ends))
        });
        let between = |(_, (before, behind)): &(_, (shoal_wire::Address, shoal_wire::Address))| {
            !before.is_router() && !behind.is_router()
        };
        let seen = carried.filter(|_| hide_ends(&self.makings)).find(between);
        if let Some((relay, (before, behind))) = seen {
            self.broken(VIEWS, format!("relay {relay} stands between {before} and {behind}"));
        }
    }

    /// Bounds of the tables and queues of a node's circuits.
    pub(super) fn circuit_bounds(&self, n: usize) -> Vec<Bound> {
        let control = &self.nodes[n].control;
        let more = usize::from(self.plants(InjectedFault::Circuits)) * 20_000;
        let fills = control.circuits.onion.fills().into_iter();
        let own = control
            .pool()
            .map(|pool| ("circuits of the pool", pool.len(), CircuitLimits::HOST.own));
        let fills = fills.chain(own).chain(self.overdue(n));
        fills.map(|(what, holds, most)| Bound { what, holds: holds + more, most }).collect()
    }

    /// Expired circuits. A node that was paused gets time to find them.
    fn overdue(&self, n: usize) -> Option<(&'static str, usize, usize)> {
        let node = &self.nodes[n];
        let now = node.clock.read(self.now);
        let looked = node.runs() && node.resumed + LOOKS < now;
        looked.then(|| ("circuits whose time is over", node.control.circuits.onion.overdue(now), 0))
    }

    /// Checks that altered leg cells are dropped at the end of their leg. Compares with that node's
    /// counters in the same step or soon after.
    pub(super) fn check_spoilt(&mut self, n: usize) {
        if ciphers::with_spoilt(|spoilt| spoilt.is_watching()) != Some(true) {
            return;
        }
        let node = &self.nodes[n];
        let (now, counters) = (node.clock.read(self.now), node.counters());
        let dropped = match n < self.makings.plan.routers {
            true => {
                let (_, all) = node.control.circuits.cells();
                all - counters.dropped(DropReason::CircuitCongested)
                    + counters.dropped(DropReason::OtherWorker)
            }
            false => UNITS.iter().map(|reason| counters.dropped(*reason)).sum(),
        };
        let broken = ciphers::with_spoilt(|spoilt| {
            spoilt.counted(n, now, dropped);
            spoilt.broken().cloned()
        });
        if let Some(seen) = broken.flatten() {
            self.broken(spoilt::RULE, seen);
        }
    }
}
