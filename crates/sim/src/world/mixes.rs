//! What the checkers of mixes are shown, and when nodes take new lists.

use shoal_crypto::Ciphers;

use super::{What, World};
use crate::check::bounds::Bound;
use crate::check::mixes::Excuse;
use crate::ciphers;
use crate::options::Plant;
use crate::plan::START;

impl<C: Ciphers> World<C> {
    pub(super) fn begin_lists(&mut self) {
        let makings = self.makings.clone();
        for list in &makings.lists {
            for n in 0..self.nodes.len() {
                let at = list.begins(&makings.options, n);
                if at > START {
                    self.push(at, What::List(n));
                }
            }
        }
    }

    /// A node hears of a newer list, as one that starts or goes on does anyway.
    pub(super) fn take_list(&mut self, n: usize) {
        if self.nodes[n].runs() {
            self.note(Some(n), "a list of mixes");
            self.nodes[n].take_list(self.now);
            self.finish_step(n);
        }
    }

    /// Looks at the cells that a relay took in and let go in its last step.
    pub(super) fn check_mixes(&mut self, n: usize) {
        if self.makings.lists.is_empty() || n >= self.makings.plan.routers {
            return;
        }
        let node = &mut self.nodes[n];
        let excuse = Excuse { busy: node.was_busy, resumed: node.resumed };
        let onion = &node.control.circuits.onion;
        let broken = ciphers::with_mixes(|mixes| {
            for (number, key) in mixes.unknown() {
                mixes.learn(number, onion.waits_under(&key));
            }
            mixes.settle(n, excuse);
            mixes.broken()
        });
        node.was_busy = node.is_busy();
        if let Some((rule, seen)) = broken.flatten() {
            self.broken(rule, seen);
        }
    }

    /// How much of a mix is one node's. What is lost on the way is forgotten here.
    pub(super) fn mix_bound(&self, n: usize) -> Bound {
        let node = &self.nodes[n];
        let shown = node.clock.read(self.now);
        ciphers::with_mixes(|mixes| mixes.forget_lost(n, shown));
        let (holds, most) = node.control.relay.largest_share();
        let more = usize::from(self.plants(Plant::MixShare)) * 10_000;
        Bound { what: "cells of one node in a mix", holds: holds + more, most }
    }

    /// Looks at all that mixes did.
    pub(super) fn check_mixes_end(&mut self) {
        let checked = ciphers::with_mixes(|mixes| mixes.check_end());
        if let Some(Err((rule, seen))) = checked {
            self.broken(rule, seen);
        }
    }
}
