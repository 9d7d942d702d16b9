//! Frames between addresses that hop: where they go, the filters on their way that let none pass,
//! and what an attacker sends to addresses that are over.

use core::time::Duration;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_relay::Incoming;
use shoal_session::Endpoints;
use shoal_wire::Time;

use super::{Way, Wires, attacker, hold};
use crate::check::addresses::{Addresses, tag};
use crate::check::{Violation, moves};
use crate::ciphers;
use crate::hops::{address, interval, owner};
use crate::node::Makings;
use crate::plan::Direction;

/// Wires on which addresses hop.
pub(crate) struct Hops {
    makings: Rc<Makings>,
    pub(crate) addresses: Addresses,
    /// Filters that hold now, per wire and direction.
    filters: Vec<[u32; 2]>,
    /// How often each node had moved, as routes know.
    moves: Vec<u8>,
    /// The last frame that came to an address of each node.
    last: Vec<Vec<u8>>,
}

impl Hops {
    pub(crate) fn new(makings: &Rc<Makings>) -> Hops {
        let plan = &makings.plan;
        Hops {
            makings: Rc::clone(makings),
            addresses: Addresses::new(plan.nodes.len()),
            filters: vec![[0; 2]; plan.wires.len()],
            moves: vec![0; plan.nodes.len()],
            last: vec![Vec::new(); plan.nodes.len()],
        }
    }

    /// From now on all pass.
    pub(super) fn end_filters(&mut self) {
        self.filters.fill([0; 2]);
    }
}

impl Wires {
    /// Has filters drop what goes between addresses that hop, or no more.
    pub(crate) fn set_filter(&mut self, wire: usize, direction: Direction, drops: bool) {
        let Some(hops) = &mut self.hops else { return };
        hold(&mut hops.filters[wire], direction, drops);
    }

    /// Another prefix is routed to a node; what goes to the one before is lost.
    pub(crate) fn renumber(&mut self, node: usize) -> u8 {
        let moves = self.hops.as_mut().map(|hops| &mut hops.moves[node]);
        moves.map_or(0, |moves| {
            *moves = moves.wrapping_add(1);
            *moves
        })
    }

    /// The prefix that is routed to a node, as a number.
    pub(crate) fn moves(&self, node: usize) -> u8 {
        self.hops.as_ref().map_or(0, |hops| hops.moves[node])
    }

    pub(super) fn is_filtered(&self, to: &Way) -> bool {
        let filters = self.hops.as_ref().map(|hops| hops.filters[to.wire][to.direction]);
        to.local.is_some() && filters.is_some_and(|count| count > 0)
    }

    /// The way of a frame between addresses that hop, if a wire leads there.
    pub(super) fn way_between(&self, ends: &Endpoints) -> Option<Way> {
        let moves = &self.hops.as_ref()?.moves;
        let routed = |(node, moved): &(usize, u8)| moves.get(*node) == Some(moved);
        let (far, _) = owner(ends.remote).filter(routed)?;
        let own = owner(ends.local?).filter(routed);
        let from = ends.local.filter(|_| own.is_some_and(|own| own.0 == self.node))?;
        let (wire, direction) = self.wire_to(far)?;
        Some(Way { far, wire, direction, from, local: Some(ends.remote), door: None })
    }

    /// Shows a frame between addresses that hop to the checkers.
    pub(super) fn see_hop(&mut self, ends: &Endpoints, far: usize, frame: &[u8]) {
        let (now, near, Some(local)) = (self.now, self.node, ends.local) else { return };
        let Some(hops) = &mut self.hops else { return };
        let (options, plan) = (&hops.makings.options, &hops.makings.plan);
        let Some(interval) = interval(options, plan, near, far) else { return };
        let of_link = ciphers::with_moves(|moves| moves.is_links(tag(frame))) != Some(false);
        // Without addresses to meet at, handshakes go where the link's frames do.
        let hops_there = of_link || options.rendezvous == 0;
        let interval = Some(interval).filter(|_| hops_there);
        let mut bears = |at, far| hops.addresses.bears(now, at, far, interval);
        let result = bears((local, near), far).and_then(|()| bears((ends.remote, far), near));
        let meets = hops.addresses.meets(local);
        let moved = || ciphers::with_moves(|moves| moves.leaves(local, tag(frame)));
        let moved = moved().filter(|_| !meets).unwrap_or(Ok(()));
        let result = result.and_then(|()| moved.map_err(|seen| (moves::RULE, seen)));
        if let Err((rule, seen)) = result {
            let seen = format!("node {near} to {far}: {seen}");
            self.broken.get_or_insert(Violation { rule, at_ns: now.0, seen });
        }
    }

    /// Which of all addresses this is, in the order of their first use; 0 if it is none that hops.
    pub(crate) fn hop_number(&self, at: Option<SocketAddr>) -> u64 {
        self.hops.as_ref().zip(at).map_or(0, |(hops, at)| hops.addresses.number(at))
    }

    /// Frames came to a node.
    pub(crate) fn note_arrivals(&mut self, node: usize, bytes: &[u8], incoming: &[Incoming]) {
        let Some(hops) = &mut self.hops else { return };
        for run in incoming {
            let Some(local) = run.from.local.filter(|at| owner(*at).is_some()) else { continue };
            let frames = &bytes[run.offset as usize..(run.offset + run.len) as usize];
            for frame in frames.chunks(run.stride as usize) {
                ciphers::with_moves(|moves| moves.comes(local, tag(frame)));
                hops.last[node].clear();
                hops.last[node].extend_from_slice(frame);
            }
        }
    }

    /// How many frames came to addresses that are over.
    pub(crate) fn over(&self, now: Time, incoming: &[Incoming]) -> u64 {
        let Some(hops) = &self.hops else { return 0 };
        let is_over = |run: &&Incoming| {
            let local = run.from.local.filter(|at| owner(*at).is_some());
            local.is_some_and(|at| hops.addresses.is_over(now, at))
        };
        incoming.iter().filter(is_over).map(|run| u64::from(run.len / run.stride.max(1))).sum()
    }

    /// The attacker sends a node the last frame that came to it once more: to this address, from
    /// where a neighbour is or from elsewhere.
    pub(crate) fn send_again(&mut self, now: Time, node: usize, run: u32, at: SocketAddr) {
        let Some(frame) = self.hops.as_ref().map(|hops| hops.last[node].clone()) else { return };
        if frame.is_empty() {
            return;
        }
        let identifier = self.rng.u64();
        let near =
            self.beside[node].first().map(|entry| address((entry.0 as usize, 0), identifier));
        let remote = near.filter(|_| identifier.is_multiple_of(2)).unwrap_or_else(attacker);
        self.put += 1;
        let number = self.new_batch(now + Duration::from_millis(1), node, Some(run));
        let len = frame.len() as u32;
        let from = Endpoints { local: Some(at), remote };
        let batch = &mut self.batches[number as usize];
        batch.bytes.extend_from_slice(&frame);
        batch.incoming.push(Incoming { from, offset: 0, len, stride: len, congested: false });
    }
}
