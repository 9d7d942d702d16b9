//! What the checkers of addresses that hop are shown, and the calls of hosts by which they see that
//! data flows.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::Ciphers;
use shoal_edge::HostId;
use shoal_relay::hop::Schedule;
use shoal_session::PeerId;
use shoal_wire::{DropReason, Time};

use super::{What, World};
use crate::check::addresses::{self, Taken};
use crate::check::outages::{self, Outage};
use crate::ciphers;
use crate::hops::{address, owner};
use crate::plan::Fault;
use crate::wires::Batch;

/// Identifies these calls.
pub(super) const PULSE_ID: u32 = 78;
/// How soon a host calls again that was not answered.
const AGAIN: Duration = Duration::from_secs(1);
/// For how long after something went wrong at one of its ends a neighbour may use addresses that
/// the other forgot.
const CALM_AFTER: Duration = Duration::from_secs(20);
/// Frames that an attacker sends to addresses that are over, in all; at most one each ...
const FORGED: u32 = 5_000;
/// ... so often.
const FORGED_EVERY: Duration = Duration::from_millis(100);

/// A host that calls another all the time.
struct Pulse {
    from: usize,
    to: usize,
    outage: Outage,
    /// Whether the last call was answered.
    answered: bool,
    calls: u32,
}

/// What is known of links and calls while things go wrong.
pub(super) struct Pulses {
    all: Vec<Pulse>,
    links: Vec<Outage>,
    /// When something went wrong, or right again, at each node or one of its wires.
    troubled: Vec<Time>,
}

impl Pulses {
    pub(super) fn new(makings: &crate::node::Makings, now: Time) -> Pulses {
        let (options, plan) = (&makings.options, &makings.plan);
        let hosts = if options.pulse_ms > 0 { plan.routers..plan.nodes.len() } else { 0..0 };
        let next = |from: usize| if from + 1 < plan.nodes.len() { from + 1 } else { plan.routers };
        let pulse = |from| Pulse {
            from,
            to: next(from),
            outage: Outage::default(),
            answered: true,
            calls: 0,
        };
        let all = hosts.map(pulse).filter(|pulse| pulse.from != pulse.to).collect();
        let links = vec![Outage::default(); plan.links];
        Pulses { all, links, troubled: vec![now; plan.nodes.len()] }
    }

    /// Something goes wrong or right again everywhere.
    pub(super) fn all_troubled(&mut self, now: Time) {
        self.troubled.fill(now);
    }

    /// For how long links were down in all while nothing was wrong with them.
    pub(super) fn down(&self) -> Duration {
        self.links.iter().map(|link| link.total).sum()
    }
}

impl<C: Ciphers> World<C> {
    pub(super) fn begin_hops(&mut self) {
        let options = &self.makings.options;
        let (pulse, hops) = (options.pulse_ms > 0, !options.hop_s.is_empty());
        if options.rendezvous > 0 {
            let links = &self.makings.plan.wires[..self.makings.plan.links];
            let meetings = links.iter().map(|(a, b)| self.meeting(*a, *b)).collect();
            self.wires.set_meetings(meetings);
        }
        if pulse {
            self.push(self.now + AGAIN, What::Pulse);
        }
        if hops {
            ciphers::watch_moves();
            self.push(self.now + AGAIN, What::Forge);
        }
    }

    /// Where two neighbours meet.
    fn meeting(&self, near: usize, far: usize) -> Option<Schedule> {
        let node = &self.nodes[near];
        let (link, _) = node.links().iter().find(|(_, known)| *known == far)?;
        let secrets = node.control.relay.sessions().meeting_secrets(PeerId::from(*link))?;
        Some(Schedule::new(secrets.0.expose()))
    }

    /// Notes where something goes wrong or right again.
    pub(super) fn note_trouble(&mut self, fault: &Fault) {
        let wires = |wires: &mut dyn Iterator<Item = usize>| {
            let ends = wires.map(|wire| self.makings.plan.wires[wire]);
            ends.flat_map(|(a, b)| [a, b]).collect::<Vec<_>>()
        };
        let nodes = match fault {
            Fault::Cut(cut) | Fault::Mend(cut) => wires(&mut cut.iter().map(|cut| cut.0)),
            Fault::Filter(wire, _)
            | Fault::Pass(wire, _)
            | Fault::Narrow(wire, _)
            | Fault::Widen(wire, _)
            | Fault::Slow(wire, _) => wires(&mut [*wire].into_iter()),
            Fault::Crash(n, _) | Fault::Restart(n) | Fault::Pause(n) | Fault::Resume(n) => vec![*n],
            Fault::Renumber(n) => vec![*n],
        };
        for node in nodes {
            self.pulses.troubled[node] = self.now;
        }
    }

    /// Another prefix is routed to a node, which knows of it.
    pub(super) fn renumber(&mut self, n: usize) {
        let moves = self.wires.renumber(n);
        self.nodes[n].renumber(self.now, moves);
        if self.nodes[n].runs() {
            self.finish_step(n);
        }
    }

    /// Since when nothing is wrong at these nodes.
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

    /// Whether nothing closes a link of a node: its neighbour would look for it elsewhere, where it
    /// may not be.
    fn is_reached(&self, n: usize) -> bool {
        let links = self.makings.plan.wires[..self.makings.plan.links].iter().enumerate();
        links.filter(|(_, ends)| ends.0 == n || ends.1 == n).all(|(link, _)| self.is_whole(link))
    }

    /// Looks whether links are up that could be.
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

    /// Hosts call each other; those that were not answered do so again soon.
    pub(super) fn pulse(&mut self) {
        let whole = (0..self.makings.plan.links).all(|link| self.is_whole(link));
        let calm = self.calm_since(0..self.nodes.len()).filter(|_| whole);
        let mut waits = false;
        for number in 0..self.pulses.all.len() {
            let Pulse { from, to, answered, .. } = self.pulses.all[number];
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
        self.push(self.now + if waits { AGAIN } else { every }, What::Pulse);
    }

    /// A host was answered.
    pub(super) fn pulse_answered(&mut self, n: usize, by: HostId) {
        for number in 0..self.pulses.all.len() {
            let pulse = &self.pulses.all[number];
            let (from, address) = (pulse.from, self.makings.plan.nodes[pulse.to]);
            if from == n && self.nodes[n].host(address) == Some(by) {
                self.pulses.all[number].answered = true;
            }
        }
    }

    /// The attacker sends something to an address that is over, or that nobody ever used.
    pub(super) fn forge(&mut self) {
        let every = self.makings.options.trouble() / FORGED;
        self.push(self.now + every.max(FORGED_EVERY), What::Forge);
        let node = self.programs_rng.below(self.nodes.len() as u64) as usize;
        let (guess, pick) = (self.programs_rng.u64(), self.programs_rng.u64());
        let Some(hops) = &self.wires.hops else { return };
        let known = hops.addresses.pick(node, pick).filter(|_| guess % 4 > 0);
        // No route leads to a prefix that the node has left.
        let here = (node, self.wires.moves(node));
        let is_over = |at: &SocketAddr| hops.addresses.is_over(self.now, *at);
        let known = known.filter(|at| is_over(at) && owner(*at) == Some(here));
        let at = known.unwrap_or_else(|| address(here, guess));
        let run = self.nodes[node].run;
        self.wires.send_again(self.now, node, run, at);
        self.schedule();
    }

    /// Gives a node frames, and sees which of them it drops for their address.
    pub(super) fn receive(&mut self, batch: &mut Batch) {
        let n = batch.to;
        let dropped = |world: &World<C>| match world.wires.hops {
            Some(_) => world.nodes[n].counters().dropped(DropReason::StaleAddress),
            None => 0,
        };
        let before = dropped(self);
        let over = self.wires.over(self.now, &batch.incoming);
        let astray = self.wires.astray(&batch.bytes, &batch.incoming);
        self.wires.note_arrivals(n, &batch.bytes, &batch.incoming);
        self.nodes[n].receive(self.now, &mut batch.bytes, &batch.incoming, &mut self.wires);
        let neighbours = self.nodes[n].links().iter().map(|(_, far)| *far);
        // What control says may still be on its way to another worker, to which the first call of a
        // schedule comes.
        let told = self.makings.options.workers == 1;
        let calm = self.calm_since(neighbours.chain([n])).filter(|_| told && self.is_reached(n));
        let taken = Taken {
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
