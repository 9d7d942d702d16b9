//! Input of the checkers of mixes, and the times at which nodes take new lists.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_wire::CircuitId;

use super::{SimulatedWorld, WorldEvent};
use crate::check::bounds::Bound;
use crate::check::mixes::LateExcuse;
use crate::check::streams::FlowOrders;
use crate::node::NetworkInputs;
use crate::plan::START;
use crate::{ciphers, mixes};

/// Number of circuits per host whose holds a planted fault changes.
const CIRCUITS: u32 = 64;

/// Order checker for programs' packets if relays mix.
pub(super) fn streams(makings: &NetworkInputs) -> FlowOrders {
    let NetworkInputs { options, lists, .. } = makings;
    let flows = if lists.is_empty() { 0 } else { options.flows };
    FlowOrders::new(mixes::holds(lists, options), flows as usize)
}

impl<C: Ciphers> SimulatedWorld<C> {
    pub(super) fn begin_lists(&mut self) {
        let makings = self.makings.clone();
        for list in &makings.lists {
            for n in 0..self.nodes.len() {
                let at = list.begins(&makings.options, n);
                if at > START {
                    self.push(at, WorldEvent::List(n));
                }
            }
        }
    }

    /// Lets a node take a newer list. A node that starts or resumes does so anyway.
    pub(super) fn take_list(&mut self, n: usize) {
        if self.nodes[n].runs() {
            self.note(Some(n), "a list of mixes");
            self.nodes[n].take_list(self.now);
            self.finish_step(n);
        }
    }

    /// Checks the cells that a relay received and sent in its last step.
    pub(super) fn check_mixes(&mut self, n: usize) {
        if self.makings.lists.is_empty() || n >= self.makings.plan.routers {
            return;
        }
        let node = &mut self.nodes[n];
        let excuse = LateExcuse { busy: node.was_busy, resumed: node.resumed };
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

    /// Bound on one node's share of a mix. Also forgets lost cells.
    pub(super) fn mix_bound(&self, n: usize) -> Bound {
        let node = &self.nodes[n];
        let shown = node.clock.read(self.now);
        ciphers::with_mixes(|mixes| mixes.forget_lost(n, shown));
        let (holds, most) = node.control.relay.largest_share();
        Bound { what: "cells of one node in a mix", holds, most }
    }

    /// Checks the distributions of all mixes.
    pub(super) fn check_mixes_end(&mut self) {
        let checked = ciphers::with_mixes(|mixes| mixes.check_end());
        if let Some(Err((rule, seen))) = checked {
            self.broken(rule, seen);
        }
    }
    /// Notes the packets that a host opened in its last step. Also notes reasons to give up the
    /// order: new and ended circuits, and full queues.
    pub(super) fn note_opened(&mut self, n: usize) {
        if self.makings.lists.is_empty() || n < self.makings.plan.routers {
            return;
        }
        for (flow, number, at) in
            ciphers::with_mixes(|mixes| core::mem::take(&mut mixes.opened)).unwrap_or_default()
        {
            self.streams.comes(flow, number, at);
        }
        let control = &self.nodes[n].control;
        let stats = control.edge.order_stats();
        let circuits = control.circuits.onion.len() as u64;
        let seen = [circuits, stats.overflowed, stats.unordered];
        let (until, before) = &mut self.excused[n];
        if *before != seen {
            *before = seen;
            *until = self.nodes[n].clock.read(self.now) + self.streams.holds().in_all();
        }
    }

    /// Checks the order of packets that programs of a host were given.
    pub(super) fn check_order(&mut self, n: usize, delivered: &[(u32, u32)]) {
        let node = &self.nodes[n];
        let now = node.clock.read(self.now);
        let resumed = node.resumed + self.streams.holds().in_all();
        let excused = if node.resumed.0 > 0 { resumed } else { node.resumed };
        let excused = excused.max(self.excused[n].0);
        for packet in delivered {
            if let Err((rule, seen)) = self.streams.delivered(*packet, now, excused) {
                self.broken(rule, format!("node {n}: {seen}"));
            }
        }
    }

    /// Plants a fault: hosts wait for a wrong time.
    pub(super) fn set_holds(&mut self, hold: Duration) {
        for node in self.nodes.iter_mut().filter(|node| node.alive) {
            for id in (0..CIRCUITS).map(CircuitId::from_bits) {
                let added = node.control.circuits.onion.waits(id);
                if added.is_some_and(|added| !added.most.is_zero()) {
                    node.control.edge.set_hold(id, hold);
                }
            }
        }
    }

    /// Forgets the state of a node that crashed.
    pub(super) fn forget_mixes(&mut self, n: usize) {
        ciphers::with_mixes(|mixes| mixes.crash(n));
        for at in 0..self.flows.len() {
            if [self.flows[at].flow.from, self.flows[at].flow.to].contains(&n) {
                self.streams.begin_anew(at);
            }
        }
    }
}
