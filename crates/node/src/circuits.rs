//! Circuits at a node: handling of received leg cells, and sending of its own.
//!
//! ```text
//! leg cells -> onion -+-> for the next node of their circuit: fresh routed header -> relay
//!                     +-> units of circuits that end here -> edge
//!                     +-> set-up and echoes, whose answers `send_own_legs` sends -> relay
//! ```
//!
//! Only the first worker handles circuits. A cell for the next node stays in the buffer in which it
//! arrived, and leaves with the batch's cells in transit.

use core::time::Duration;

use shoal_crypto::{Aead, Ciphers, Identity, NetworkSecret, PlantedFault};
use shoal_edge::HostId;
use shoal_ip::SignalSchedule;
use shoal_onion::pool::CircuitPool;
use shoal_onion::{CellResult, CircuitLimits, MixWait, Onion, OnionEvent, OriginatedCell};
use shoal_relay::{CIRCUIT_LEN, CallContext, MixedCell};
use shoal_wire::leg::CellShape;
use shoal_wire::{
    Address, CircuitId, CongestionMark, DropReason, LinkKind, RoutedHeader, SizeClass, Time,
    TrafficClass, link,
};
use zerocopy::IntoBytes;

use crate::control::Control;
use crate::shell::Shell;

/// Position of the congestion mark in a frame.
const MARK_AT: usize = link::ROUTED_AT + RoutedHeader::MARK_AT;
const FULL: usize = SizeClass::Full.frame_len();

/// Extra time to wait for a missing packet, for lines and suspended machines. Half of the mixes'
/// hold is added too. A packet given up too soon counts as lost for TCP, and one in 10,000 is many
/// at 200 Mbit/s.
const LINES: Duration = Duration::from_millis(5);

pub struct NodeCircuits<C: Ciphers> {
    /// The circuit state machine.
    pub onion: Onion<C>,
    /// The circuits that this host begins, if it may.
    pub(crate) pool: Option<CircuitPool>,
    me: Address,
    /// Chooses the circuits that lose a cell when cells arrive with a congestion mark.
    signals: SignalSchedule,
    /// Leg cells received or sent by this node, since the start.
    cells: u64,
    /// Number of received leg cells dropped since the start.
    dropped: u64,
    drops: Vec<(DropReason, u64)>,
    /// Circuits on which the edge could not send.
    gone: Vec<CircuitId>,
    /// Scratch memory: starts of leg cells, and results for them.
    starts: Vec<u32>,
    passed: Vec<Result<CellResult, DropReason>>,
}

impl<C: Ciphers> NodeCircuits<C> {
    /// A node without circuits. A router carries those of others, and a host may be an end of some.
    pub(crate) fn new(
        relay: &shoal_relay::RelayConfig,
        identity: Identity,
        secret: NetworkSecret,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> NodeCircuits<C> {
        let me = relay.address;
        let config = shoal_onion::OnionConfig {
            address: me,
            limits: CircuitLimits::of(me),
            means: relay.session.means,
            relay: me.is_router(),
        };
        let onion = Onion::new(config, identity, secret, seed, now, unix_ms);
        let (drops, gone, starts, passed) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (cells, dropped, signals) = (0, 0, SignalSchedule::default());
        let pool = None;
        NodeCircuits { onion, pool, me, signals, cells, dropped, drops, gone, starts, passed }
    }

    /// Number of leg cells received or sent since the start, and number dropped.
    pub fn cells(&self) -> (u64, u64) {
        (self.cells, self.dropped)
    }

    /// Handles leg cells for this node. `legs` gives the starts of their frames in `buf`.
    ///
    /// Frames for a next node are appended to `onward` with a rewritten header, or to `mixed` if
    /// they must wait in a mix. `unit` gets the frames with units of one circuit that ends here,
    /// with its shape. It returns the host that sealed them.
    pub(crate) fn handle_legs(
        &mut self,
        now: Time,
        buf: &mut [u8],
        legs: &[u32],
        (onward, mixed): (&mut Vec<u32>, &mut Vec<MixedCell>),
        mut unit: impl FnMut(&mut [u8], &[u32], (CircuitId, CellShape)) -> Option<HostId>,
    ) {
        self.cells += legs.len() as u64;
        let mut passed = core::mem::take(&mut self.passed);
        let mut rest = legs;
        while let Some(&first) = rest.first() {
            let both = ends(buf, first);
            let from = both.map(|(from, _)| from);
            let same = rest.iter().take_while(|&&at| ends(buf, at) == both).count();
            let (mut frames, later) = rest.split_at(same);
            rest = later;
            passed.clear();
            // A host with a backlog to its first relay slows down its programs itself.
            let is_judged = from.is_ok_and(Address::is_router);
            match both {
                Ok(both) => {
                    self.find_cells(frames);
                    self.onion.handle_batch_at(now, both, buf, &self.starts, &mut passed);
                }
                Err(reason) => passed.extend(frames.iter().map(|_| Err(reason))),
            }
            for equal in passed.chunk_by(|a, b| a == b) {
                let (run, behind) = frames.split_at(equal.len());
                frames = behind;
                match equal[0] {
                    Ok(CellResult::On(to, carried)) => {
                        let circuit = Some(carried.circuit).filter(|_| carried.unit && is_judged);
                        let before = onward.len();
                        onward.extend(run.iter().filter(|&&at| {
                            let frame = &buf[at as usize..];
                            !circuit.is_some_and(|circuit| self.loses(now, circuit, frame))
                        }));
                        self.address(buf, &onward[before..], (to, self.me), carried.circuit.bits());
                    }
                    Ok(CellResult::Mixed(to, carried, due)) => {
                        let circuit = Some(carried.circuit).filter(|_| carried.unit && is_judged);
                        for &at in run {
                            let frame = &buf[at as usize..];
                            if circuit.is_some_and(|circuit| self.loses(now, circuit, frame)) {
                                continue;
                            }
                            self.address(buf, &[at], (to, self.me), carried.circuit.bits());
                            mixed.extend(from.map(|from| MixedCell { at, due, from }));
                        }
                    }
                    Ok(CellResult::Unit(circuit)) => match self.onion.shape(circuit) {
                        Some(shape) => {
                            if let Some(host) = unit(buf, run, (circuit, shape)) {
                                self.onion.note_sender(circuit, host.bits());
                            }
                        }
                        None => self.count(DropReason::UnknownCircuit, run.len() as u64),
                    },
                    Ok(CellResult::Taken) => {}
                    Err(reason) => self.count(reason, run.len() as u64),
                }
            }
        }
        self.passed = passed;
    }

    /// True if a cell must be lost because of congestion. This is active queue management per
    /// circuit, since flows are not visible here. Counted as `circuit_congested`.
    fn loses(&mut self, now: Time, circuit: CircuitId, frame: &[u8]) -> bool {
        if frame[MARK_AT] != CongestionMark::Congested as u8 {
            return false;
        }
        self.signals.meet(now);
        let lost = self.signals.signal(now, circuit.bits(), Duration::ZERO);
        if lost {
            self.count(DropReason::CircuitCongested, 1);
        }
        lost
    }

    /// Makes leg cells from units, in full frames at `frames` of `buf`.
    ///
    /// # Errors
    ///
    /// The errors of [`Onion::seal_units`]. The edge is told that the circuit is unusable.
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
                self.address(buf, frames, (to, self.onion.source(circuit)), circuit.bits());
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

    /// Takes the next circuit on which the edge sends although it is unusable.
    pub(crate) fn poll_gone(&mut self) -> Option<CircuitId> {
        self.gone.pop()
    }

    fn find_cells(&mut self, frames: &[u32]) {
        self.starts.clear();
        self.starts.extend(frames.iter().map(|at| at + link::CELL_AT as u32));
    }

    /// Writes the routed headers of leg cells for `to`. A fresh header has no mark: a forwarded
    /// mark would be a signal between distant nodes of a circuit. Also writes the circuit's number,
    /// for the queue of a covered link.
    fn address(
        &self,
        buf: &mut [u8],
        frames: &[u32],
        (to, from): (Address, Address),
        circuit: u32,
    ) {
        let header = RoutedHeader::new(to, from, TrafficClass::Bulk);
        for &at in frames {
            buf[at as usize + link::ROUTED_AT..at as usize + link::CELL_AT]
                .copy_from_slice(header.as_bytes());
            buf[at as usize..][..CIRCUIT_LEN].copy_from_slice(&circuit.to_be_bytes());
        }
    }

    /// Writes the next cell of this node's own into `frame`, if there is one. Returns how it waits.
    fn write_own(&mut self, frame: &mut [u8; FULL]) -> Option<Option<MixedCell>> {
        let OriginatedCell { home, to, cell, wait, circuit } = self.onion.poll_transmit()?;
        let from = home.unwrap_or(self.me);
        self.cells += 1;
        frame[link::CELL_AT..link::CELL_AT + cell.len()].copy_from_slice(&cell[..]);
        self.address(frame, &[0], (to, from), circuit.map_or(0, CircuitId::bits));
        Some(wait.map(|MixWait { due, from }| MixedCell { at: 0, due, from }))
    }

    fn count(&mut self, reason: DropReason, more: u64) {
        self.dropped += more;
        match self.drops.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, n)) => *n += more,
            None => self.drops.push((reason, more)),
        }
    }

    /// Handles the result of a set-up job.
    pub(crate) fn handle_done(&mut self, now: Time, done: shoal_onion::SetupJobResult) {
        if let Err(reason) = self.onion.handle_done(now, done) {
            self.count(reason, 1);
        }
    }

    pub(crate) fn me(&self) -> Address {
        self.me
    }

    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        let gone = (!self.gone.is_empty()).then_some((Time::ZERO, "circuit that is gone"));
        let pool = self.pool.as_ref().and_then(CircuitPool::poll_timeout).map(|at| (at, "pool"));
        let onion = self.onion.poll_timeout().map(|at| (at, "circuits"));
        [gone, onion, pool].into_iter().flatten().min()
    }

    /// Takes the drops since the last call.
    pub(crate) fn take_drops(&mut self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        let lost = self.onion.take_lost();
        let lost = (lost > 0).then_some((DropReason::QueueFull, lost));
        self.drops.drain(..).chain(lost)
    }
}

/// Source and destination of the leg cell of the frame at `at`, by its routed header. Only the
/// leg's keys prove the source.
fn ends(buf: &[u8], at: u32) -> Result<(Address, Address), DropReason> {
    let header = RoutedHeader::parse(&buf[at as usize + link::ROUTED_AT..]);
    header.map(|header| (header.src(), header.dst()))
}

impl<S: Shell> Control<S> {
    /// Reports a circuit event to the edge. Returns it if the node's owner may need it too.
    pub(crate) fn tell_edge(&mut self, now: Time, event: OnionEvent) -> Option<OnionEvent> {
        self.circuits.note_event(now, &event);
        match event {
            OnionEvent::Handshake(circuit, mut cell) => {
                let taken = self.edge.handle_hidden_handshake(now, circuit, &mut cell);
                if let Err(reason) = taken {
                    self.circuits.count(reason, 1);
                }
                return None;
            }
            OnionEvent::Failed(circuit, ..) | OnionEvent::Ended(circuit) => {
                self.edge.circuit_ended(now, circuit);
            }
            OnionEvent::Built(circuit) | OnionEvent::Mixed(circuit) => {
                let added = self.circuits.onion.waits(circuit);
                if let Some(added) = added.filter(|added| !added.most.is_zero()) {
                    let (mean, hold) = (added.mean.duration(), added.hold.duration());
                    self.edge.set_hold(circuit, hold * 3 / 2 + LINES);
                    self.edge.set_added(circuit, mean, hold);
                }
            }
            OnionEvent::Echoed(..) => {}
        }
        (!matches!(event, OnionEvent::Mixed(_))).then_some(event)
    }

    /// Maximum time for which the sockets may be ignored and then polled. None means no such delay.
    /// The delay applies on covered links, and while received packets are gathered anyway.
    pub fn doze(&self, now: Time) -> Option<Duration> {
        if self.relay.may_doze(now) {
            return Some(Duration::MAX);
        }
        if self.relay.address().is_router() { None } else { self.edge.gathers() }
    }

    /// Delivers hidden hosts' packets that waited for earlier ones to the interface.
    pub(crate) fn deliver_released(&mut self, now: Time) {
        if let Some(queue) = &mut self.queue {
            self.edge.take_released(|released, buf| queue.deliver(now, released, buf));
        }
    }

    /// Sends the leg cells for set-up, echoes and answers.
    pub(crate) fn send_own_legs(&mut self, now: Time, sink: &mut S::Sink) {
        let mut frame = [0; FULL];
        while let Some(wait) = self.circuits.write_own(&mut frame) {
            let mut turn = CallContext { now, sink: &mut *sink, hand: &mut self.outbox };
            match wait {
                Some(cell) => self.relay.mix_cells(now, &mut frame, &[cell]),
                None if <S::Ciphers as Ciphers>::Aead::flaw() == Some(PlantedFault::LegShort) => {
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
