//! Frames between shifting addresses: their paths, filters that drop them, and frames that an
//! attacker sends to expired addresses.

use core::time::Duration;
use std::net::SocketAddr;
use std::rc::Rc;

use shoal_relay::ReceivedRun;
use shoal_relay::shift::{EPOCH, ShiftRole, ShiftSchedule};
use shoal_session::Endpoints;
use shoal_wire::Time;

use super::{FramePath, Wires, attacker, hold};
use crate::check::addresses::{AddressChecker, tag};
use crate::check::{Violation, moves};
use crate::ciphers;
use crate::clock;
use crate::node::NetworkInputs;
use crate::options::SimulationOptions;
use crate::plan::WireDirection;
use crate::shifts::{address, identifier, interval, owner};

/// State of the wires in networks with shifting addresses.
pub(crate) struct ShiftWires {
    makings: Rc<NetworkInputs>,
    pub(crate) addresses: AddressChecker,
    /// Number of present filters, per wire and direction.
    filters: Vec<[u32; 2]>,
    /// Number of prefix changes of each node, as the routes know it.
    moves: Vec<u8>,
    /// The last frame that came to a shifting address of each node.
    last: Vec<Vec<u8>>,
    /// Rendezvous schedule of each wire's link, if its ends have no fixed endpoint.
    meetings: Vec<Option<ShiftSchedule>>,
}

impl ShiftWires {
    pub(crate) fn new(makings: &Rc<NetworkInputs>) -> ShiftWires {
        let plan = &makings.plan;
        let off = Duration::from_secs(makings.options.wall_off_s.into());
        ShiftWires {
            makings: Rc::clone(makings),
            addresses: AddressChecker::new(plan.nodes.len(), off),
            filters: vec![[0; 2]; plan.wires.len()],
            moves: vec![0; plan.nodes.len()],
            last: vec![Vec::new(); plan.nodes.len()],
            meetings: Vec::new(),
        }
    }

    /// True if `at` is a possible rendezvous address of the wire's link at this time, for any error
    /// of the clocks.
    fn is_meeting(&self, now: Time, wire: usize, at: SocketAddr) -> bool {
        let Some(Some(schedule)) = self.meetings.get(wire) else { return false };
        let off = self.makings.options.wall_off_s / EPOCH.as_secs() as u32 + 2;
        let epoch = (clock::unix_ms(now) / EPOCH.as_millis() as u64) as u32;
        let ends = [ShiftRole::Leading, ShiftRole::Following];
        (epoch - off..=epoch + off).any(|epoch| {
            ends.iter().any(|end| schedule.identifier(*end, epoch, 0) == identifier(at))
        })
    }

    /// Removes all filters.
    pub(super) fn end_filters(&mut self) {
        self.filters.fill([0; 2]);
    }
}

impl Wires {
    /// Adds or removes a filter that drops frames between shifting addresses.
    pub(crate) fn set_filter(&mut self, wire: usize, direction: WireDirection, drops: bool) {
        let Some(shifts) = &mut self.shifts else { return };
        hold(&mut shifts.filters[wire], direction, drops);
    }

    /// Assigns another prefix to a node. Frames to the former one are lost. Returns the number of
    /// changes so far.
    pub(crate) fn renumber(&mut self, node: usize) -> u8 {
        let moves = self.shifts.as_mut().map(|shifts| &mut shifts.moves[node]);
        moves.map_or(0, |moves| {
            *moves = moves.wrapping_add(1);
            *moves
        })
    }

    /// Number of prefix changes of a node.
    pub(crate) fn moves(&self, node: usize) -> u8 {
        self.shifts.as_ref().map_or(0, |shifts| shifts.moves[node])
    }

    /// True if filters block a wire whose ends have no fixed endpoint, so that only shifting
    /// addresses connect them.
    pub(super) fn is_closed(&self, wire: usize) -> bool {
        let closed = |shifts: &ShiftWires| {
            shifts.makings.options.rendezvous == 1 && shifts.filters[wire] != [0; 2]
        };
        self.shifts.as_ref().is_some_and(closed)
    }

    pub(super) fn is_filtered(&self, to: &FramePath) -> bool {
        let filters = self.shifts.as_ref().map(|shifts| shifts.filters[to.wire][to.direction]);
        to.local.is_some() && filters.is_some_and(|count| count > 0)
    }

    /// Path of a frame between shifting addresses, if a wire leads there.
    pub(super) fn way_between(&self, ends: &Endpoints) -> Option<FramePath> {
        let moves = &self.shifts.as_ref()?.moves;
        let routed = |(node, moved): &(usize, u8)| moves.get(*node) == Some(moved);
        let (far, _) = owner(ends.remote).filter(routed)?;
        let own = owner(ends.local?).filter(routed);
        let from = ends.local.filter(|_| own.is_some_and(|own| own.0 == self.node))?;
        let (wire, direction) = self.wire_to(far)?;
        Some(FramePath { far, wire, direction, from, local: Some(ends.remote), door: None })
    }

    /// Sets the rendezvous schedules of the links.
    pub(crate) fn set_meetings(&mut self, meetings: Vec<Option<ShiftSchedule>>) {
        if let Some(shifts) = &mut self.shifts {
            shifts.meetings = meetings;
        }
    }

    /// Shows a frame between shifting addresses to the checkers.
    pub(super) fn see_shift(&mut self, ends: &Endpoints, far: usize, frame: &[u8]) {
        let (now, near, Some(local)) = (self.now, self.node, ends.local) else { return };
        let wire = self.wire_to(far).map_or(usize::MAX, |(wire, _)| wire);
        let Some(shifts) = &mut self.shifts else { return };
        let (options, plan) = (&shifts.makings.options, &shifts.makings.plan);
        let Some(interval) = interval(options, plan, near, far) else { return };
        let of_link = ciphers::with_moves(|moves| moves.is_links(tag(frame))) != Some(false);
        // Without rendezvous addresses, handshakes use the same addresses as the link's frames.
        let shifts_there = of_link || options.rendezvous == 0;
        // After failed shifts, data falls back to the address of handshakes.
        let fell = of_link && !shifts.addresses.knows(local) && shifts.is_meeting(now, wire, local);
        let interval = Some(interval).filter(|_| shifts_there && !fell);
        let mut bears = |at, far| shifts.addresses.bears(now, at, far, interval);
        let result = bears((local, near), far).and_then(|()| bears((ends.remote, far), near));
        let meets = shifts.addresses.meets(local);
        let moved = || ciphers::with_moves(|moves| moves.leaves(local, tag(frame)));
        let moved = moved().filter(|_| !meets).unwrap_or(Ok(()));
        let result = result.and_then(|()| moved.map_err(|seen| (moves::RULE, seen)));
        if let Err((rule, seen)) = result {
            let seen = format!("node {near} to {far}: {seen}");
            self.broken.get_or_insert(Violation { rule, at_ns: now.0, seen });
        }
    }

    /// Number of a shifting address, in the order of first use; 0 for other addresses.
    pub(crate) fn shift_number(&self, at: Option<SocketAddr>) -> u64 {
        self.shifts.as_ref().zip(at).map_or(0, |(shifts, at)| shifts.addresses.number(at))
    }

    /// Notes frames that came to a node.
    pub(crate) fn note_arrivals(&mut self, node: usize, bytes: &[u8], incoming: &[ReceivedRun]) {
        let Some(shifts) = &mut self.shifts else { return };
        for run in incoming {
            let Some(local) = run.from.local.filter(|at| owner(*at).is_some()) else { continue };
            let frames = &bytes[run.offset as usize..(run.offset + run.len) as usize];
            for frame in frames.chunks(run.stride as usize) {
                ciphers::with_moves(|moves| moves.comes(local, tag(frame)));
                shifts.last[node].clear();
                shifts.last[node].extend_from_slice(frame);
            }
        }
    }

    /// Number of frames to expired addresses.
    pub(crate) fn over(&self, now: Time, incoming: &[ReceivedRun]) -> u64 {
        let Some(shifts) = &self.shifts else { return 0 };
        let is_over = |run: &&ReceivedRun| {
            let local = run.from.local.filter(|at| owner(*at).is_some());
            local.is_some_and(|at| shifts.addresses.is_over(now, at))
        };
        incoming.iter().filter(is_over).map(|run| u64::from(run.len / run.stride.max(1))).sum()
    }

    /// Number of handshake frames that may have gone to an address where the node is not. This
    /// happens if clocks differ by more than both ends allow for, and an endpoint is called when
    /// there is no answer.
    pub(crate) fn astray(&self, bytes: &[u8], incoming: &[ReceivedRun]) -> u64 {
        let Some(shifts) = &self.shifts else { return 0 };
        let SimulationOptions { rendezvous, wall_off_s, .. } = shifts.makings.options;
        if rendezvous == 0 || Duration::from_secs(2 * u64::from(wall_off_s)) < EPOCH {
            return 0;
        }
        let is_handshakes =
            |frame: &&[u8]| ciphers::with_moves(|moves| moves.is_links(tag(frame))) == Some(false);
        let of_run = |run: &ReceivedRun| {
            let frames = &bytes[run.offset as usize..(run.offset + run.len) as usize];
            frames.chunks(run.stride.max(1) as usize).filter(is_handshakes).count() as u64
        };
        incoming.iter().map(of_run).sum()
    }

    /// Lets the attacker send a node the last frame that came to it once more, to this address. The
    /// source is an address of a neighbour or the attacker's own.
    pub(crate) fn send_again(&mut self, now: Time, node: usize, run: u32, at: SocketAddr) {
        let Some(frame) = self.shifts.as_ref().map(|shifts| shifts.last[node].clone()) else {
            return;
        };
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
        batch.incoming.push(ReceivedRun { from, offset: 0, len, stride: len, congested: false });
    }
}
