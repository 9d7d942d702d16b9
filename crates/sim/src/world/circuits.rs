//! What the checkers of circuits are shown.

use shoal_crypto::Ciphers;
use shoal_onion::Limits;
use shoal_wire::DropReason;

use super::World;
use crate::check::bounds::Bound;
use crate::check::legs;
use crate::ciphers;
use crate::circuits::hide_ends;
use crate::options::Plant;

const VIEWS: &str = "no node can tell who uses a circuit";
/// Why nodes drop leg cells that somebody spoilt.
const SPOILT: [DropReason; 12] = [
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
];

impl<C: Ciphers> World<C> {
    /// Looks at what cells and keys tell the nodes that see them.
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

    /// Whether a relay stands between two hosts that are hidden from all routers.
    pub(super) fn check_ends(&mut self) {
        let routers = &self.nodes[..self.makings.plan.routers];
        let carried = routers.iter().filter(|node| node.alive).flat_map(|node| {
            let address = node.control.relay.address();
            node.control.circuits.onion.carried().map(move |ends| (address, ends))
        });
        let between = |(_, (before, behind)): &(_, (shoal_wire::Address, shoal_wire::Address))| {
            !before.is_router() && !behind.is_router() || self.plants(Plant::Ends)
        };
        let seen = carried.filter(|_| hide_ends(&self.makings)).find(between);
        if let Some((relay, (before, behind))) = seen {
            self.broken(VIEWS, format!("relay {relay} stands between {before} and {behind}"));
        }
    }

    /// Tables and queues of a node's circuits.
    pub(super) fn circuit_bounds(&self, n: usize) -> Vec<Bound> {
        let control = &self.nodes[n].control;
        let more = usize::from(self.plants(Plant::Circuits)) * 20_000;
        let fills = control.circuits.onion.fills().into_iter();
        let own = control.pool().map(|pool| ("circuits of the pool", pool.len(), Limits::HOST.own));
        let fills = fills.chain(own);
        fills.map(|(what, holds, most)| Bound { what, holds: holds + more, most }).collect()
    }

    /// Whether leg cells that routers spoilt died at a node of their circuit, by name. One on its
    /// way back goes on to the origin, and may be spoilt once more before it dies: one in eight at
    /// most. A crash takes counters along.
    pub(super) fn check_spoilt(&mut self) {
        let Some(arrived) = ciphers::with_legs(|legs| legs.arrived) else { return };
        let dropped = |reason: &DropReason| -> u64 {
            self.nodes.iter().map(|node| node.counters().dropped(*reason)).sum()
        };
        let dropped: u64 = SPOILT.iter().map(dropped).sum();
        let more = if self.plants(Plant::Spoilt) { 1_000_000 } else { 0 };
        if arrived + more > dropped + arrived / 8 + 1 && !self.makings.plan.has_node_faults() {
            let seen = format!("{} spoilt cells, {dropped} dropped", arrived + more);
            self.broken("what was spoilt on the way dies by name", seen);
        }
    }
}
