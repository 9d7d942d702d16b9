//! Input of the checkers of shifting addresses, and regular calls between hosts that show whether
//! data flows.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_edge::HostId;
use shoal_relay::shift::ShiftSchedule;
use shoal_session::PeerId;
use shoal_wire::{DropReason, Time};

use super::{SimulatedWorld, WorldEvent};
use crate::check::addresses::{self, AddressVerdict};
use crate::check::outages::{self, Outage};
use crate::ciphers;
use crate::plan::PlannedFault;
use crate::shifts::{address, owner};
use crate::wires::WireBatch;

/// Id of these calls.
pub(super) const PULSE_ID: u32 = 78;
/// Time after which an unanswered call is repeated.
const AGAIN: Duration = Duration::from_secs(1);
/// Time after a fault at one end for which a neighbour may use addresses that the other end forgot.
const CALM_AFTER: Duration = Duration::from_secs(20);
/// Number of frames that an attacker sends to expired addresses, over the whole run.
const FORGED: u32 = 5_000;
/// Shortest interval between these frames.
const FORGED_EVERY: Duration = Duration::from_millis(100);

/// A host that calls another regularly.
struct RegularCall {
    from: usize,
    to: usize,
    outage: Outage,
    /// True if the last call was answered.
    answered: bool,
    calls: u32,
}

/// State of links and calls during faults.
pub(super) struct RegularCalls {
    all: Vec<RegularCall>,
    links: Vec<Outage>,
    /// Time of the last fault or repair at each node or one of its wires.
    troubled: Vec<Time>,
}

impl RegularCalls {
    pub(super) fn new(makings: &crate::node::NetworkInputs, now: Time) -> RegularCalls {
        let (options, plan) = (&makings.options, &makings.plan);
        let hosts = if options.pulse_ms > 0 { plan.routers..plan.nodes.len() } else { 0..0 };
        let next = |from: usize| if from + 1 < plan.nodes.len() { from + 1 } else { plan.routers };
        let pulse = |from| RegularCall {
            from,
            to: next(from),
            outage: Outage::default(),
            answered: true,
            calls: 0,
        };
        let all = hosts.map(pulse).filter(|pulse| pulse.from != pulse.to).collect();
        let links = vec![Outage::default(); plan.links];
        RegularCalls { all, links, troubled: vec![now; plan.nodes.len()] }
    }

    /// Notes a fault or repair at all nodes.
    pub(super) fn all_troubled(&mut self, now: Time) {
        self.troubled.fill(now);
    }

    /// Total time for which links were down while nothing was wrong with them.
    pub(super) fn down(&self) -> Duration {
        self.links.iter().map(|link| link.total).sum()
    }
}

impl<C: Ciphers> SimulatedWorld<C> {
    pub(super) fn begin_shifts(&mut self) {
        let options = &self.makings.options;
        let (pulse, shifts) = (options.pulse_ms > 0, !options.shift_s.is_empty());
        if options.rendezvous > 0 {
            let links = &self.makings.plan.wires[..self.makings.plan.links];
            let meetings = links.iter().map(|(a, b)| self.meeting(*a, *b)).collect();
            self.wires.set_meetings(meetings);
        }
        if pulse {
            self.push(self.now + AGAIN, WorldEvent::Pulse);
        }
        if shifts {
            ciphers::watch_moves();
            self.push(self.now + AGAIN, WorldEvent::Forge);
        }
    }

    /// Rendezvous schedule of two neighbours.
    fn meeting(&self, near: usize, far: usize) -> Option<ShiftSchedule> {
        let node = &self.nodes[near];
        let (link, _) = node.links().iter().find(|(_, known)| *known == far)?;
        let secrets = node.control.relay.sessions().meeting_secrets(PeerId::from(*link))?;
        Some(ShiftSchedule::new(secrets.0.expose()))
    }

    /// Notes the nodes that a fault or repair affects.
    pub(super) fn note_trouble(&mut self, fault: &PlannedFault) {
        let wires = |wires: &mut dyn Iterator<Item = usize>| {
            let ends = wires.map(|wire| self.makings.plan.wires[wire]);
            ends.flat_map(|(a, b)| [a, b]).collect::<Vec<_>>()
        };
        let nodes = match fault {
            PlannedFault::Cut(cut) | PlannedFault::Mend(cut) => {
                wires(&mut cut.iter().map(|cut| cut.0))
            }
            PlannedFault::Filter(wire, _)
            | PlannedFault::Pass(wire, _)
            | PlannedFault::Narrow(wire, _)
            | PlannedFault::Widen(wire, _)
            | PlannedFault::Slow(wire, _) => wires(&mut [*wire].into_iter()),
            PlannedFault::Crash(n, _)
            | PlannedFault::Restart(n)
            | PlannedFault::Pause(n)
            | PlannedFault::Resume(n) => vec![*n],
            PlannedFault::Renumber(n) | PlannedFault::Ban(n) | PlannedFault::Unban(n) => vec![*n],
        };
        for node in nodes {
            self.pulses.troubled[node] = self.now;
        }
    }

    /// Assigns another prefix to a node, which is told.
    pub(super) fn renumber(&mut self, n: usize) {
        let moves = self.wires.renumber(n);
        self.nodes[n].renumber(self.now, moves);
        if self.nodes[n].runs() {
            self.finish_step(n);
        }
    }

    /// Time since when nothing is wrong at these nodes. None if one of them does not run.
    fn calm_since(&self, nodes: impl Iterator<Item = usize>) -> Option<Time> {
        let mut since = Time::ZERO;
        for node in nodes {
            if !self.nodes[node].runs() {
                return None;
            }
            since = since.max(self.pulses.troubled[node]);
        }
        Some(since)
    }

    fn is_whole(&self, link: usize) -> bool {
        self.wires.is_whole(link)
    }

    /// True if all links of a node are usable. Otherwise a neighbour may look for it at an address
    /// where it is not.
    fn is_reached(&self, n: usize) -> bool {
        let links = self.makings.plan.wires[..self.makings.plan.links].iter().enumerate();
        links.filter(|(_, ends)| ends.0 == n || ends.1 == n).all(|(link, _)| self.is_whole(link))
    }

    /// Checks that links are up if they can be.
    pub(super) fn check_links(&mut self) {
        if self.makings.options.pulse_ms == 0 {
            return;
        }
        for number in 0..self.makings.plan.links {
            let (a, b) = self.makings.plan.wires[number];
            let calm = self.calm_since([a, b].into_iter()).filter(|_| self.is_whole(number));
            let is_up = |near: usize, far: usize| {
                let node = &self.nodes[near];
                let link = node.links().iter().find(|(_, known)| *known == far);
                let view = link.and_then(|(link, _)| node.control.relay.view(*link));
                view.is_some_and(|view| view.up_since.is_some())
            };
            let is_up = is_up(a, b) && is_up(b, a);
            if let Err(lasts) = self.pulses.links[number].look(self.now, is_up, calm) {
                self.broken(outages::DOWN, format!("nodes {a} and {b}: down for {lasts:?}"));
            }
        }
    }

    /// Hosts call each other. Unanswered calls are repeated soon.
    pub(super) fn pulse(&mut self) {
        let whole = (0..self.makings.plan.links).all(|link| self.is_whole(link));
        let calm = self.calm_since(0..self.nodes.len()).filter(|_| whole);
        let mut waits = false;
        for number in 0..self.pulses.all.len() {
            let RegularCall { from, to, answered, .. } = self.pulses.all[number];
            let looked = self.pulses.all[number].outage.look(self.now, answered, calm);
            if let Err(lasts) = looked {
                let seen = format!("node {from} was not answered by {to} for {lasts:?}");
                self.broken(outages::SILENT, seen);
            }
            waits |= !answered;
            let (node, address) = (&mut self.nodes[from], self.makings.plan.nodes[to]);
            let host = node.host(address).filter(|_| node.runs());
            let Some(host) = host else { continue };
            let _full = node.control.edge.ping(host, PULSE_ID, self.pulses.all[number].calls);
            self.pulses.all[number].calls += 1;
            self.pulses.all[number].answered = false;
            self.finish_step(from);
        }
        let every = Duration::from_millis(self.makings.options.pulse_ms).max(AGAIN);
        self.push(self.now + if waits { AGAIN } else { every }, WorldEvent::Pulse);
    }

    /// Notes an answer to a host's call.
    pub(super) fn pulse_answered(&mut self, n: usize, by: HostId) {
        for number in 0..self.pulses.all.len() {
            let pulse = &self.pulses.all[number];
            let (from, address) = (pulse.from, self.makings.plan.nodes[pulse.to]);
            if from == n && self.nodes[n].host(address) == Some(by) {
                self.pulses.all[number].answered = true;
            }
        }
    }

    /// Lets the attacker send a frame to an address that has expired or was never used.
    pub(super) fn forge(&mut self) {
        let every = self.makings.options.trouble() / FORGED;
        self.push(self.now + every.max(FORGED_EVERY), WorldEvent::Forge);
        let node = self.programs_rng.below(self.nodes.len() as u64) as usize;
        let (guess, pick) = (self.programs_rng.u64(), self.programs_rng.u64());
        let Some(shifts) = &self.wires.shifts else { return };
        let known = shifts.addresses.pick(node, pick).filter(|_| guess % 4 > 0);
        // No route leads to a former prefix of the node.
        let here = (node, self.wires.moves(node));
        let is_over = |at: &SocketAddr| shifts.addresses.is_over(self.now, *at);
        let known = known.filter(|at| is_over(at) && owner(*at) == Some(here));
        let at = known.unwrap_or_else(|| address(here, guess));
        let run = self.nodes[node].run;
        self.wires.send_again(self.now, node, run, at);
        self.schedule();
    }

    /// Gives a node frames, and counts those that it drops because of their address.
    pub(super) fn receive(&mut self, batch: &mut WireBatch) {
        let n = batch.to;
        let dropped = |world: &SimulatedWorld<C>| match world.wires.shifts {
            Some(_) => world.nodes[n].counters().dropped(DropReason::StaleAddress),
            None => 0,
        };
        let before = dropped(self);
        let over = self.wires.over(self.now, &batch.incoming);
        let astray = self.wires.astray(&batch.bytes, &batch.incoming);
        self.wires.note_arrivals(n, &batch.bytes, &batch.incoming);
        self.nodes[n].receive(self.now, &mut batch.bytes, &batch.incoming, &mut self.wires);
        let neighbours = self.nodes[n].links().iter().map(|(_, far)| *far);
        // Orders of control may still be in transit to another worker, which gets the first call of
        // a schedule.
        let told = self.makings.options.workers == 1;
        let calm = self.calm_since(neighbours.chain([n])).filter(|_| told && self.is_reached(n));
        let taken = AddressVerdict {
            over,
            dropped: dropped(self) - before,
            astray,
            forged: batch.replayed_in.is_some(),
            calm: calm.is_some_and(|since| since + CALM_AFTER < self.now),
        };
        if let Err((rule, seen)) = addresses::check(&taken) {
            self.broken(rule, format!("node {n}: {seen}"));
        }
    }
}
