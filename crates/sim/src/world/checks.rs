//! Input of the checkers, and the times of the checks.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_edge::{DirectEvent, EdgeEvent};
use shoal_link::EgressConfig;
use shoal_onion::OnionEvent as CircuitEvent;
use shoal_relay::{RUN_MAX, RelayEvent};
use shoal_session::SessionRole;
use shoal_wire::DropReason;

use super::SimulatedWorld;
use super::shifts::PULSE_ID;
use crate::check::bounds::{self, Bound};
use crate::check::drops::{self, FrameAccount, WireAccount};
use crate::check::files::{FileStage, WatchedFile};
use crate::check::model::{self, ExpectedFiles, FileExpectation, FoundFiles};
use crate::check::routes::{self, RouteEnd};
use crate::node::{self, SimulatedNode};
use crate::plant::InjectedFault;

impl<C: Ciphers> SimulatedWorld<C> {
    pub(super) fn handle_relay(&mut self, n: usize, event: &RelayEvent) {
        self.links_down += u64::from(matches!(event, RelayEvent::LinkDown(_)));
        if let RelayEvent::Route(change) = event {
            self.route_changes += 1;
            self.wires.trace.add(self.now.0);
            self.wires.trace.add(u64::from(change.router) << 32 | n as u64);
            let hop = change
                .new
                .map_or(u64::MAX, |(link, cost)| u64::from(link.bits()) << 32 | u64::from(cost));
            self.wires.trace.add(hop);
            self.check_route(n, change.router as usize - 1);
            if !self.logs() {
                return;
            }
            return self.remember(Some(n), &format!("{event:?}"));
        }
        if let RelayEvent::LinkUp(link) = event {
            let result = self.nodes[n].check_level(*link);
            self.hold("a direct link has the level that both hosts ask for", result);
            self.note_call_link(n, *link);
        }
        self.note(Some(n), &format!("{event:?}"));
    }

    pub(super) fn handle_direct(&mut self, n: usize, event: DirectEvent, known: usize) {
        self.note(Some(n), &format!("{event:?}"));
        let node = &mut self.nodes[n];
        node.direct.made += usize::from(node.control.direct_links() > known);
    }

    pub(super) fn handle_circuit(&mut self, n: usize, event: &CircuitEvent) {
        self.note(Some(n), &format!("{event:?}"));
    }

    pub(super) fn handle_edge(&mut self, n: usize, event: EdgeEvent) {
        if self.note_call(n, &event) {
            return;
        }
        match event {
            EdgeEvent::Transfer(event) => self.handle_file(n, event),
            EdgeEvent::Echo { .. } if self.makings.options.plant == Some(InjectedFault::Deaf) => {}
            EdgeEvent::Echo { host, id: PULSE_ID, .. } => self.pulse_answered(n, host),
            EdgeEvent::Echo { host, .. } => {
                self.pings.insert((n, host), true);
            }
            EdgeEvent::Established(host) => self.note(Some(n), &format!("host {host:?}")),
            EdgeEvent::Unreachable(host) => {
                self.note(Some(n), &format!("host {host:?} unreachable"));
            }
            // The node handles these and reports its own events.
            EdgeEvent::Direct(_) | EdgeEvent::NeedCircuit(_) => {}
        }
    }

    /// Next node on the path of a cell from node `at` to router `to`, if that node accepts it.
    fn hop(&self, at: usize, to: usize) -> Option<usize> {
        if self.plants(InjectedFault::Loop) && to == 2 && at < 2 {
            return Some(1 - at);
        }
        if self.plants(InjectedFault::BlackHole) && to == 0 {
            return None;
        }
        let here = &self.nodes[at];
        let next = here.neighbour(here.control.relay.next_hop(self.makings.plan.nodes[to])?)?;
        let there = &self.nodes[next];
        (there.alive && there.takes_transit_from(at)).then_some(next)
    }

    fn check_route(&mut self, n: usize, to: usize) {
        if let RouteEnd::Circles(path) = routes::follow(n, to, |at| self.hop(at, to)) {
            self.broken("no route goes in a circle", format!("to node {to}: {path:?}"));
        }
    }

    /// A link that begins to take transit may close a loop for any destination.
    pub(super) fn check_adjacent(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let Some(routing) = node.control.relay.routing() else { return };
        let control = node.control.relay.counters().traffic.control_in;
        if control == node.seen_control {
            return;
        }
        node.seen_control = control;
        let links = node.links().iter().map(|(link, _)| *link);
        let adjacent: Vec<_> = links.filter(|link| routing.is_adjacent(*link)).collect();
        if adjacent == node.seen_adjacent {
            return;
        }
        let new = adjacent.iter().any(|link| !node.seen_adjacent.contains(link));
        node.seen_adjacent = adjacent;
        for to in 0..if new { self.makings.plan.routers } else { 0 } {
            self.check_route(n, to);
        }
    }

    /// Checks tables, queues and accounts of all nodes.
    pub(super) fn audit(&mut self) {
        for n in 0..self.nodes.len() {
            if self.nodes[n].alive {
                let bounds = self.bounds(n);
                let result = bounds::check(&bounds).map_err(|seen| format!("node {n}: {seen}"));
                self.hold("queues and tables stay within bounds", result);
                self.check_account(n);
                self.check_workers(n);
            }
        }
        self.check_wires();
        self.check_links();
        self.check_ends();
        let routers = self.makings.plan.routers;
        let knows_all = |node: &SimulatedNode<C>| {
            node.control.relay.routing().is_none_or(|routing| routing.table().len() == routers - 1)
        };
        if self.converged.is_none() && self.nodes[..routers].iter().all(knows_all) {
            self.converged = Some(self.now);
        }
        if self.plants(InjectedFault::Loop) && routers > 2 {
            self.check_route(0, 2);
        }
        if self.makings.options.plant == Some(InjectedFault::Counter) {
            crate::ciphers::rewind();
        }
        if self.makings.options.plant == Some(InjectedFault::Overtake) {
            crate::ciphers::overtake();
        }
        match self.makings.options.plant {
            Some(InjectedFault::ShortHold) => self.set_holds(Duration::from_millis(1)),
            Some(InjectedFault::LongHold) => self.set_holds(Duration::from_secs(5)),
            _ => {}
        }
        if self.plants(InjectedFault::Keys) {
            crate::ciphers::share(0);
        }
    }

    /// Checks that workers have the same state as control once they handled all orders.
    fn check_workers(&mut self, n: usize) {
        let misled = self.nodes[n].misled();
        if !misled.is_empty() {
            let seen = format!("node {n}: workers {misled:?} have other state");
            self.broken("workers have the state of control", seen);
        }
        if self.plants(InjectedFault::StaleOrder) {
            self.nodes[n].tell_old_view();
            self.arm(n);
        }
    }

    fn bounds(&self, n: usize) -> Vec<Bound> {
        let node = &self.nodes[n];
        let EgressConfig { data_frames_max, control_frames_max, .. } = node::egress();
        let more = usize::from(self.plants(InjectedFault::Queue)) * 1_000;
        let most = data_frames_max + control_frames_max + RUN_MAX;
        let mut all: Vec<Bound> = node
            .control
            .relay
            .links()
            .map(|link| Bound { what: "cells in an egress", holds: link.waiting + more, most })
            .collect();
        let hold = node::hold(&self.makings.options, node.control.relay.address());
        let most = hold.limits.per_link;
        all.extend(node.control.relay.links().map(|link| Bound {
            what: "cells in a hold",
            holds: node.control.relay.held(link.link) + more,
            most,
        }));
        let sessions = |role: SessionRole| {
            let config = shoal_session::SessionConfig::new(role);
            // Four sessions per peer, and those of half-open handshakes.
            move |peers: usize| 4 * peers + 2 * config.handshake_queue + 8
        };
        let peers = node.links().len() + node.control.direct_links();
        let extra = usize::from(self.plants(InjectedFault::Table)) * 10_000;
        let holds = node.control.relay.sessions().session_count() + extra;
        all.push(Bound { what: "link sessions", holds, most: sessions(SessionRole::Link)(peers) });
        let holds = node.control.edge.sessions().session_count();
        let most = sessions(SessionRole::Edge)(self.nodes.len());
        all.push(Bound { what: "host sessions", holds, most });
        if let Some(routing) = node.control.relay.routing() {
            let routers = self.makings.plan.routers;
            // A route may have changed, and may be once in each update that waits for its
            // acknowledgement.
            let unsent = (1 + shoal_routing::WINDOW) * routers;
            let infos = node.links().iter().filter_map(|(link, _)| routing.link_info(*link));
            for info in infos {
                all.push(Bound { what: "routes of a link", holds: info.routes, most: routers });
                all.push(Bound { what: "unsent routes", holds: info.unsent, most: unsent });
            }
            all.push(Bound { what: "routes", holds: routing.table().len(), most: routers });
        }
        all.extend(self.circuit_bounds(n));
        all.push(self.mix_bound(n));
        all
    }

    /// Checks that the frames of this run of a node are all accounted for.
    pub(super) fn check_account(&mut self, n: usize) {
        let vanished = u64::from(self.plants(InjectedFault::VanishOut));
        let node = &self.nodes[n];
        let (counters, coming) = (node.counters(), node.coming());
        let traffic = &counters.traffic;
        let account = FrameAccount {
            delivered: node.delivered,
            taken: self.wires.taken[n] - node.taken_before + vanished,
            frames_in: traffic.frames_in,
            frames_out: traffic.frames_out,
            handled: traffic.control_in
                + traffic.keepalives_in
                + traffic.cover_in
                + traffic.handshakes_in
                + traffic.parts_in
                + traffic.cells_local
                + traffic.cells_transit,
            coming,
            dropped_in: traffic.dropped_in,
            parts: traffic.parts_in,
            wholes: traffic.wholes_in,
            given_up: counters.dropped(DropReason::TooOld),
            half_max: ((node.links().len() + node.direct.made) * shoal_link::parts::WAITING_MAX)
                as u64,
            held: traffic.cells_held + u64::from(self.plants(InjectedFault::VanishHeld)),
            released: traffic.cells_released,
            holding: node.holding(),
            dispatched: traffic.dispatched,
            cut: traffic.cut,
            handshakes_out: traffic.handshakes_out,
            waiting: node.control.relay.links().map(|link| link.waiting as u64).sum::<u64>()
                + node.going(),
            dropped_out: traffic.dropped_out,
        };
        let result = drops::check(&account).map_err(|seen| format!("node {n}: {seen}"));
        self.hold("every drop has a reason", result);
    }

    /// Checks that all frames put on the wires were delivered or lost.
    fn check_wires(&mut self) {
        let wired = WireAccount {
            put: self.wires.put + u64::from(self.plants(InjectedFault::VanishOnWire)),
            lost: self.wires.lost,
            delivered: self.delivered,
            missed: self.missed,
            flying: self.wires.flying(),
        };
        self.hold("every drop has a reason", drops::check_wires(&wired));
    }

    pub(super) fn check_end(&mut self) {
        let routers = self.makings.plan.routers;
        for n in 0..routers {
            for to in 0..routers {
                if routes::follow(n, to, |at| self.hop(at, to)) != RouteEnd::Arrives {
                    let seen = format!("no route from node {n} to node {to}");
                    self.broken("after the trouble every router has a route to every other", seen);
                    return;
                }
            }
        }
        self.audit();
        let results: Vec<_> = self.files.iter().map(WatchedFile::end).collect();
        for result in results {
            self.hold("a file arrives or its sender learns that it doesn't", result);
        }
        self.check_packets();
        self.check_mixes_end();
        if let Err((rule, seen)) = self.wires.covers.check_end() {
            self.broken(rule, seen);
        }
        let result = model::check(&self.expected(), &self.found());
        self.hold("the disks hold what the model says", result);
        self.check_secrets_end();
        self.check_pings("after the trouble every host reaches every other");
    }

    /// The model's expectation for the end of the run.
    fn expected(&self) -> ExpectedFiles {
        let troubled = self.makings.plan.has_node_faults();
        let expect = |watch: &WatchedFile| {
            let told_of_failure = watch.stage == FileStage::Failed && troubled;
            let expect = match told_of_failure || watch.wiped {
                true => FileExpectation::Either,
                false => FileExpectation::There,
            };
            ((watch.plan.to, watch.plan.file_id), expect)
        };
        self.files.iter().map(expect).collect()
    }

    fn found(&self) -> FoundFiles {
        let mut found = FoundFiles::new();
        for (n, node) in self.nodes.iter().enumerate() {
            for (id, stored) in node.disk.stored.iter().filter(|(_, stored)| stored.named) {
                found.insert((n, *id), stored.is_as_sent());
            }
        }
        if self.plants(InjectedFault::Ghost) {
            found.insert((self.makings.plan.routers, [0xee; 16]), true);
        }
        found
    }

    pub(super) fn check_pings(&mut self, rule: &'static str) {
        let deaf = self.pings.iter().filter(|(_, answered)| !**answered);
        let deaf: Vec<_> = deaf.map(|((from, host), _)| (*from, *host)).take(20).collect();
        if !deaf.is_empty() {
            self.broken(rule, format!("no answer to (node, host) {deaf:?}"));
        }
    }
}
