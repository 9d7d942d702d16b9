//! Frames between addresses that hop: where they go, the filters on their way that let none pass,
//! and what an attacker sends to addresses that are over.

use core::time::Duration;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_relay::Incoming;
use shoal_relay::hop::{EPOCH, End, Schedule};
use shoal_session::Endpoints;
use shoal_wire::Time;

use super::{Way, Wires, attacker, hold};
use crate::check::addresses::{Addresses, tag};
use crate::check::{Violation, moves};
use crate::ciphers;
use crate::clock;
use crate::hops::{address, identifier, interval, owner};
use crate::node::Makings;
use crate::options::Options;
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
    /// Where the two ends of each wire's link meet, if they have no endpoint that stays.
    meetings: Vec<Option<Schedule>>,
}

impl Hops {
    pub(crate) fn new(makings: &Rc<Makings>) -> Hops {
        let plan = &makings.plan;
        let off = Duration::from_secs(makings.options.wall_off_s.into());
        Hops {
            makings: Rc::clone(makings),
            addresses: Addresses::new(plan.nodes.len(), off),
            filters: vec![[0; 2]; plan.wires.len()],
            moves: vec![0; plan.nodes.len()],
            last: vec![Vec::new(); plan.nodes.len()],
            meetings: Vec::new(),
        }
    }

    /// Whether the two ends of a wire may meet there now, whatever their clocks show.
    fn is_meeting(&self, now: Time, wire: usize, at: SocketAddr) -> bool {
        let Some(Some(schedule)) = self.meetings.get(wire) else { return false };
        let off = self.makings.options.wall_off_s / EPOCH.as_secs() as u32 + 2;
        let epoch = (clock::unix_ms(now) / EPOCH.as_millis() as u64) as u32;
        let ends = [End::Leading, End::Following];
        (epoch - off..=epoch + off).any(|epoch| {
            ends.iter().any(|end| schedule.identifier(*end, epoch, 0) == identifier(at))
        })
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

    /// Whether filters close a wire: a link whose ends have no endpoint that stays has no other way
    /// than between addresses that hop.
    pub(super) fn is_closed(&self, wire: usize) -> bool {
        let closed =
            |hops: &Hops| hops.makings.options.rendezvous == 1 && hops.filters[wire] != [0; 2];
        self.hops.as_ref().is_some_and(closed)
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

    /// Says where the two ends of each wire's link meet.
    pub(crate) fn set_meetings(&mut self, meetings: Vec<Option<Schedule>>) {
        if let Some(hops) = &mut self.hops {
            hops.meetings = meetings;
        }
    }

    /// Shows a frame between addresses that hop to the checkers.
    pub(super) fn see_hop(&mut self, ends: &Endpoints, far: usize, frame: &[u8]) {
        let (now, near, Some(local)) = (self.now, self.node, ends.local) else { return };
        let wire = self.wire_to(far).map_or(usize::MAX, |(wire, _)| wire);
        let Some(hops) = &mut self.hops else { return };
        let (options, plan) = (&hops.makings.options, &hops.makings.plan);
        let Some(interval) = interval(options, plan, near, far) else { return };
        let of_link = ciphers::with_moves(|moves| moves.is_links(tag(frame))) != Some(false);
        // Without addresses to meet at, handshakes go where the link's frames do.
        let hops_there = of_link || options.rendezvous == 0;
        // After hops that failed, data goes where a handshake would.
        let fell = of_link && !hops.addresses.knows(local) && hops.is_meeting(now, wire, local);
        let interval = Some(interval).filter(|_| hops_there && !fell);
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

    /// How many frames of handshakes came that may have gone where nobody meets: where clocks
    /// differ by more than what both ends allow for, and an endpoint is called when nobody answers.
    pub(crate) fn astray(&self, bytes: &[u8], incoming: &[Incoming]) -> u64 {
        let Some(hops) = &self.hops else { return 0 };
        let Options { rendezvous, wall_off_s, .. } = hops.makings.options;
        if rendezvous == 0 || Duration::from_secs(2 * u64::from(wall_off_s)) < EPOCH {
            return 0;
        }
        let is_handshakes =
            |frame: &&[u8]| ciphers::with_moves(|moves| moves.is_links(tag(frame))) == Some(false);
        let of_run = |run: &Incoming| {
            let frames = &bytes[run.offset as usize..(run.offset + run.len) as usize];
            frames.chunks(run.stride.max(1) as usize).filter(is_handshakes).count() as u64
        };
        incoming.iter().map(of_run).sum()
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
