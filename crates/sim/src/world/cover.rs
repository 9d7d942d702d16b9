//! Input of the checker of covered links.

use shoal_crypto::Ciphers;
use shoal_relay::CoverState;

use super::SimulatedWorld;
use crate::check::cover::CoverReport;

impl<C: Ciphers> SimulatedWorld<C> {
    /// Checks the covered links of a node after its last step.
    pub(super) fn check_cover(&mut self, n: usize) {
        if self.makings.options.cover == 0 || !self.nodes[n].alive {
            return;
        }
        let node = &self.nodes[n];
        let (now, resumed) = (node.clock.read(self.now), node.resumed);
        let covered = node.control.relay.links().filter_map(|view| {
            // The link's own report of its slots is not used: a link that should have slots and
            // uses none is wrong.
            let off = matches!(view.cover?.state, CoverState::Off(..));
            let runs = view.established && view.endpoint.is_some() && !off;
            let to = node.far_end(view.link)?;
            Some((
                view.link,
                CoverReport {
                    to,
                    runs,
                    in_parts: view.small,
                    is_up: view.up_since.is_some(),
                    resumed,
                },
            ))
        });
        let broken = covered
            .map(|(link, says)| self.wires.covers.check((n, link), now, says))
            .find_map(Result::err);
        if let Some((rule, seen)) = broken {
            self.broken(rule, seen);
        }
    }
}
