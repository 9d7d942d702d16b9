//! Circuits at a node: what becomes of the leg cells that reach it, and how its own leave.
//!
//! ```text
//! leg cells -> onion -+-> for the next node of their circuit: fresh routed header -> relay
//!                     +-> units of circuits that end here -> edge
//!                     +-> set-up and echoes, whose answers `send_own` sends -> relay
//! ```
//!
//! Circuits are the first worker's alone. A cell that goes on stays in the buffer in which it came,
//! and leaves with the cells of its batch that are in transit.

use core::time::Duration;

use shoal_crypto::{Aead, Ciphers, Flaw, Identity, NetworkSecret};
use shoal_edge::HostId;
use shoal_ip::Signals;
use shoal_onion::pool::Pool;
use shoal_onion::{Event, Limits, Onion, Own, Passed, Wait};
use shoal_relay::{CIRCUIT_LEN, MixedCell, Turn};
use shoal_wire::leg::Shape;
use shoal_wire::{
    Address, CircuitId, DropReason, LinkKind, Mark, RoutedHeader, SizeClass, Time, TrafficClass,
    link,
};
use zerocopy::IntoBytes;

use crate::control::Control;
use crate::shell::Shell;

/// Where a frame says whether it waited.
const MARK_AT: usize = link::ROUTED_AT + RoutedHeader::MARK_AT;
const FULL: usize = SizeClass::Full.frame_len();

/// How much longer than mixes alone explain a packet is waited for: a packet that is given up too
/// soon counts as lost with a TCP, and one in 10,000 is many at 200 Mbit/s. So half of what mixes
/// add comes on top, and this for lines and stalls of machines.
const LINES: Duration = Duration::from_millis(5);

/// The circuits of one node.
pub struct Circuits<C: Ciphers> {
    /// The machine.
    pub onion: Onion<C>,
    /// The circuits that this host begins, if it begins any.
    pub(crate) pool: Option<Pool>,
    me: Address,
    /// Which circuits lose a cell when cells come marked.
    signals: Signals,
    /// Leg cells that came in or began here, since the start.
    cells: u64,
    /// Of those that came in, how many were dropped, since the start.
    dropped: u64,
    drops: Vec<(DropReason, u64)>,
    /// Circuits on which the edge could not send.
    gone: Vec<CircuitId>,
    /// Memory that every batch uses again: where leg cells start, and what became of them.
    starts: Vec<u32>,
    passed: Vec<Result<Passed, DropReason>>,
}

impl<C: Ciphers> Circuits<C> {
    /// A node without circuits: a router carries those of others, a host is the end of some.
    pub(crate) fn new(
        relay: &shoal_relay::Config,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Circuits<C> {
        let me = relay.address;
        let config = shoal_onion::Config {
            address: me,
            limits: Limits::of(me),
            means: relay.session.means,
            relay: me.is_router(),
        };
        let onion = Onion::new(config, identity, secret, seed, now, unix_ms);
        let (drops, gone, starts, passed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (cells, dropped, signals) = (0, 0, Signals::default());
        let pool = None;
        Circuits { onion, pool, me, signals, cells, dropped, drops, gone, starts, passed }
    }

    /// Leg cells that came in or began here, and how many were dropped, since the start.
    pub fn cells(&self) -> (u64, u64) {
        (self.cells, self.dropped)
    }

    /// Takes in leg cells for this node: `legs` says where in `buf` their frames start. Frames that
    /// go on are added to `onward`, their routed header written anew; `unit` gets frames that hold
    /// units of one circuit that ends here, with its shape, and says which host sealed them. Those
    /// that are to wait in a mix are added to `mixed`.
    pub(crate) fn handle_legs(
        &mut self,
        now: Time,
        buf: &mut [u8],
        legs: &[u32],
        (onward, mixed): (&mut Vec<u32>, &mut Vec<MixedCell>),
        mut unit: impl FnMut(&mut [u8], &[u32], (CircuitId, Shape)) -> Option<HostId>,
    ) {
        self.cells += legs.len() as u64;
        let mut passed = core::mem::take(&mut self.passed);
        let mut rest = legs;
        while let Some(&first) = rest.first() {
            let from = source(buf, first);
            let same = rest.iter().take_while(|&&at| source(buf, at) == from).count();
            let (mut frames, later) = rest.split_at(same);
            rest = later;
            passed.clear();
            // A host with a backlog on its way to the first relay slows its programs down itself.
            let is_judged = from.is_ok_and(Address::is_router);
            match from {
                Ok(from) => {
                    self.find_cells(frames);
                    self.onion.handle_batch(now, from, buf, &self.starts, &mut passed);
                }
                Err(reason) => passed.extend(frames.iter().map(|_| Err(reason))),
            }
            for equal in passed.chunk_by(|a, b| a == b) {
                let (run, behind) = frames.split_at(equal.len());
                frames = behind;
                match equal[0] {
                    Ok(Passed::On(to, carried)) => {
                        let circuit = Some(carried.circuit).filter(|_| carried.unit && is_judged);
                        let before = onward.len();
                        onward.extend(run.iter().filter(|&&at| {
                            let frame = &buf[at as usize..];
                            !circuit.is_some_and(|circuit| self.loses(now, circuit, frame))
                        }));
                        self.address(buf, &onward[before..], to, carried.circuit.bits());
                    }
                    Ok(Passed::Mixed(to, carried, due)) => {
                        let circuit = Some(carried.circuit).filter(|_| carried.unit && is_judged);
                        for &at in run {
                            let frame = &buf[at as usize..];
                            if circuit.is_some_and(|circuit| self.loses(now, circuit, frame)) {
                                continue;
                            }
                            self.address(buf, &[at], to, carried.circuit.bits());
                            mixed.extend(from.map(|from| MixedCell { at, due, from }));
                        }
                    }
                    Ok(Passed::Unit(circuit)) => match self.onion.shape(circuit) {
                        Some(shape) => {
                            if let Some(host) = unit(buf, run, (circuit, shape)) {
                                self.onion.note_sender(circuit, host.bits());
                            }
                        }
                        None => self.count(DropReason::UnknownCircuit, run.len() as u64),
                    },
                    Ok(Passed::Taken) => {}
                    Err(reason) => self.count(reason, run.len() as u64),
                }
            }
        }
        self.passed = passed;
    }

    /// Whether a cell is lost because it or others before it waited: active queue management by
    /// circuit, whose flows can't be told apart here. Counted as `circuit_congested`.
    fn loses(&mut self, now: Time, circuit: CircuitId, frame: &[u8]) -> bool {
        if frame[MARK_AT] != Mark::Congested as u8 {
            return false;
        }
        self.signals.meet(now);
        let lost = self.signals.signal(now, circuit.bits(), Duration::ZERO);
        if lost {
            self.count(DropReason::CircuitCongested, 1);
        }
        lost
    }

    /// Makes leg cells of units, which stand in full frames at `frames` of `buf`.
    ///
    /// Errors: as of [`Onion::seal_units`]; the edge is told that the circuit is of no use.
    pub(crate) fn seal_units(
        &mut self,
        now: Time,
        circuit: CircuitId,
        buf: &mut [u8],
        frames: &[u32],
    ) -> Result<(), DropReason> {
        self.find_cells(frames);
        match self.onion.seal_units(now, circuit, buf, &self.starts) {
            Ok(to) => {
                self.cells += frames.len() as u64;
                self.address(buf, frames, to, circuit.bits());
                Ok(())
            }
            Err(reason) => {
                if !self.gone.contains(&circuit) {
                    self.gone.push(circuit);
                }
                Err(reason)
            }
        }
    }

    /// The next circuit on which the edge sends though nothing can go over it.
    pub(crate) fn poll_gone(&mut self) -> Option<CircuitId> {
        self.gone.pop()
    }

    fn find_cells(&mut self, frames: &[u32]) {
        self.starts.clear();
        self.starts.extend(frames.iter().map(|at| at + link::CELL_AT as u32));
    }

    /// Writes the routed headers of leg cells that leave for `to`. A fresh header has no mark: one
    /// that travelled on would let a node before signal to a node behind. Writes the circuit's
    /// number, too, for the queue of a covered link.
    fn address(&self, buf: &mut [u8], frames: &[u32], to: Address, circuit: u32) {
        let header = RoutedHeader::new(to, self.me, TrafficClass::Bulk);
        for &at in frames {
            buf[at as usize + link::ROUTED_AT..at as usize + link::CELL_AT]
                .copy_from_slice(header.as_bytes());
            buf[at as usize..][..CIRCUIT_LEN].copy_from_slice(&circuit.to_be_bytes());
        }
    }

    /// Writes the next cell of the machine's own into `frame`, if there is one, and says how it
    /// waits.
    fn write_own(&mut self, frame: &mut [u8; FULL]) -> Option<Option<MixedCell>> {
        let Own { to, cell, wait, circuit } = self.onion.poll_transmit()?;
        self.cells += 1;
        frame[link::CELL_AT..link::CELL_AT + cell.len()].copy_from_slice(&cell[..]);
        self.address(frame, &[0], to, circuit.map_or(0, CircuitId::bits));
        Some(wait.map(|Wait { due, from }| MixedCell { at: 0, due, from }))
    }

    fn count(&mut self, reason: DropReason, more: u64) {
        self.dropped += more;
        match self.drops.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, n)) => *n += more,
            None => self.drops.push((reason, more)),
        }
    }

    /// Takes in the result of a piece of set-up work.
    pub(crate) fn handle_done(&mut self, now: Time, done: shoal_onion::Done) {
        if let Err(reason) = self.onion.handle_done(now, done) {
            self.count(reason, 1);
        }
    }

    /// This node's own address.
    pub(crate) fn me(&self) -> Address {
        self.me
    }

    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let gone = (!self.gone.is_empty()).then_some((Time::ZERO, "circuit that is gone"));
        let pool = self.pool.as_ref().and_then(Pool::poll_timeout).map(|at| (at, "pool"));
        let onion = self.onion.poll_timeout().map(|at| (at, "circuits"));
        [gone, onion, pool].into_iter().flatten().min()
    }

    /// Drops since the last call.
    pub(crate) fn take_drops(&mut self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let lost = self.onion.take_lost();
        let lost = (lost > 0).then_some((DropReason::QueueFull, lost));
        self.drops.drain(..).chain(lost)
    }
}

/// The node that sent the leg cell of the frame at `at`, as its routed header says; only the leg's
/// keys prove it.
fn source(buf: &[u8], at: u32) -> Result<Address, DropReason> {
    RoutedHeader::parse(&buf[at as usize + link::ROUTED_AT..]).map(|header| header.src())
}

impl<S: Shell> Control<S> {
    /// Tells the edge of what it must know; returns the event if the node's owner may want it, too.
    pub(crate) fn tell_edge(&mut self, now: Time, event: Event) -> Option<Event> {
        self.circuits.note_event(now, &event);
        match event {
            Event::Handshake(circuit, mut cell) => {
                let taken = self.edge.handle_hidden_handshake(now, circuit, &mut cell);
                if let Err(reason) = taken {
                    self.circuits.count(reason, 1);
                }
                return None;
            }
            Event::Failed(circuit, ..) | Event::Ended(circuit) => {
                self.edge.circuit_ended(now, circuit);
            }
            Event::Built(circuit) | Event::Mixed(circuit) => {
                let added = self.circuits.onion.waits(circuit);
                if let Some(added) = added.filter(|added| !added.most.is_zero()) {
                    let (mean, hold) = (added.mean.duration(), added.hold.duration());
                    self.edge.set_hold(circuit, hold * 3 / 2 + LINES);
                    self.edge.set_added(circuit, mean, hold);
                }
            }
            Event::Echoed(..) => {}
        }
        (!matches!(event, Event::Mixed(_))).then_some(event)
    }

    /// For how long the sockets may be left alone, to be looked at then, whatever else ends the
    /// wait: where a link is covered, and where what comes waits in any case.
    pub fn doze(&self, now: Time) -> Option<Duration> {
        if self.relay.may_doze(now) {
            return Some(Duration::MAX);
        }
        if self.relay.address().is_router() { None } else { self.edge.gathers() }
    }

    /// Hands the interface the packets of hidden hosts that waited for others.
    pub(crate) fn deliver_released(&mut self, now: Time) {
        if let Some(queue) = &mut self.queue {
            self.edge.take_released(|released, buf| queue.deliver(now, released, buf));
        }
    }

    /// Sends the leg cells that set circuits up, ask and answer.
    pub(crate) fn send_own_legs(&mut self, now: Time, sink: &mut S::Sink) {
        let mut frame = [0; FULL];
        while let Some(wait) = self.circuits.write_own(&mut frame) {
            let mut turn = Turn { now, sink: &mut *sink, hand: &mut self.outbox };
            match wait {
                Some(cell) => self.relay.mix_cells(now, &mut frame, &[cell]),
                None if <S::Ciphers as Ciphers>::Aead::flaw() == Some(Flaw::LegShort) => {
                    let len = SizeClass::Medium.frame_len();
                    let frame = &mut frame[..len];
                    self.relay.send_cells(&mut turn, LinkKind::Leg, frame, &[0], len);
                }
                None => self.relay.send_cells(&mut turn, LinkKind::Leg, &mut frame, &[0], FULL),
            }
        }
    }
}

#[cfg(test)]
mod hidden;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod times;
