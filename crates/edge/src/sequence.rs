//! The order of packets that came over circuits.
//!
//! ```text
//! circuit 1         7 8 9 . . 12         no mixes, keeps its order: missing packets are lost
//! circuit 2                    13 14     came before 12: held until circuit 1 brings 12
//! circuit 3         7 9 10 8 12 14 13    has mixes: each is held until the earlier ones come
//! ```
//!
//! Packets are numbered within streams. A stream is one flow between two hosts, or several flows
//! that share it. A packet is due if it is the next one of its stream. It is then delivered from
//! the buffer in which it arrived. If packets right behind it already wait, it is copied and
//! delivered with them: one write to the interface costs more than a copy. If earlier packets are
//! missing, a packet is copied and held until they come or are given up. It is then released, with
//! all that follow it without a gap. A packet that comes after it was given up is delivered at
//! once. In a fast stream behind mixes, even the packet that is due may be held for a while
//! ([`pace`]).
//!
//! Time for which a missing packet is waited for, counted from the arrival of the first packet
//! behind it:
//!
//! - zero on a circuit without mixes, since it keeps its order;
//! - the hold of a circuit with mixes ([`path`]);
//! - [`WAIT`] plus the hold of the former circuit after a change of circuits;
//! - in any case no longer than until a packet comes that is marked as first after a break.
//!
//! Invariants: no packet is delivered while an earlier one of its stream is still waited for. Held
//! packets are bounded, per stream and in total. No packet is delivered twice, since the session of
//! the two hosts opens none twice.

mod deadlines;
mod front;
mod known;
mod pace;
mod path;
mod pool;
mod stream;

use core::time::Duration;

use shoal_wire::{CircuitId, Time, ip};

use crate::book::HostId;
use crate::sequence::deadlines::Deadlines;
use crate::sequence::front::MissingSince;
use crate::sequence::known::StreamTable;
use crate::sequence::path::MixedCircuits;
use crate::sequence::pool::{HeldPacket, NONE, PacketPool, SLOT, SLOTS_MAX};
use crate::sequence::stream::{PacketStream, SPAN};
use crate::worker::PacketArrival;

/// Wait across a change of circuits; the delays of two circuits differ by less.
const WAIT: Duration = Duration::from_millis(300);
/// Packets that wait, in all streams. The remaining slots are for packets that are released and not
/// yet taken; one turn of the node brings fewer.
const HELD_MAX: usize = SLOTS_MAX - 1_024;

/// If calls are further apart than `AWAY`, the node was busy, and packets that arrived meanwhile
/// are still in its sockets. Deadlines that passed in between are then extended by the length of
/// the pause, at most by `AWAY_MAX`.
const AWAY: Duration = Duration::from_millis(2);
const AWAY_MAX: Duration = Duration::from_millis(50);

/// Mixes release packets in quanta of a few. While at least `GATHER_FROM` packets wait, as happens
/// in a fast stream, arriving packets may gather. They gather for the path's hold divided by
/// `GATHER_PART`, at most for `GATHER_MAX`. A node that wakes for each quantum would spend more
/// time on waking than on packets.
const GATHER_FROM: usize = 64;
const GATHER_PART: u32 = 32;
const GATHER_MAX: Duration = Duration::from_millis(1);

/// Number of packets that the first packet of a stream may have overtaken, unless it is marked as
/// first.
const OVERTAKEN: u64 = 48;

/// Decision about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrderVerdict {
    /// Deliver the packet from the buffer in which it arrived.
    Deliver,
    /// The packet was copied. It is released when the earlier ones came or are given up.
    Held,
    /// A packet with this number is already held.
    Duplicate,
}

/// Fields that a packet on a circuit carries.
#[derive(Clone, Copy, Debug)]
pub struct PacketLabel {
    /// Stream and number.
    pub number: ip::StreamNumber,
    /// True if the stream sent nothing for [`ip::BREAK`] before this packet, or never sent before.
    pub is_first: bool,
    /// Time of sending, in coarse steps.
    pub sent: ip::SendTime,
}

impl PacketLabel {
    /// The label from the number before a packet and from the packet's flags.
    pub fn new(number: ip::StreamNumber, flags: u8) -> PacketLabel {
        let is_first = flags & ip::FIRST != 0;
        PacketLabel { number, is_first, sent: ip::SendTime::from_flags(flags) }
    }
}

/// Counters of packets that came over circuits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStats {
    pub held: u64,
    /// Held packets that were released, in their order.
    pub released: u64,
    /// Gaps that were given up: their packets did not come in time.
    pub given_up: u64,
    /// Packets of a fast stream that were due, but were held until they had taken longer.
    pub kept: u64,
    /// Packets that came after later ones of their stream were delivered.
    pub late: u64,
    /// Times that packets of a stream were released early because too many waited.
    pub overflowed: u64,
    /// Packets delivered out of order because there was no room to hold them or to store their
    /// stream.
    pub unordered: u64,
}

/// A packet as it arrived.
#[derive(Clone, Copy)]
struct CircuitPacket<'a> {
    label: PacketLabel,
    circuit: CircuitId,
    bytes: &'a [u8],
    congested: bool,
    /// Time of sending, as far as it is known; zero if not.
    sent: Time,
}

/// All streams and their held packets.
#[derive(Default)]
pub struct PacketReordering {
    known: StreamTable,
    pool: PacketPool,
    /// Number of packets that wait.
    held: usize,
    paths: MixedCircuits,
    /// Streams with waiting packets, by the time at which their missing packets are given up.
    deadlines: Deadlines,
    /// Time of the last call, and the time before which nothing is given up.
    awake: Time,
    not_before: Time,
    /// Streams with packets that are released and not yet taken.
    released: Vec<u16>,
    arrivals: Vec<PacketArrival>,
    stats: OrderStats,
    /// True if the reordering is switched off.
    pub(crate) is_off: bool,
}

impl PacketReordering {
    /// Handles a packet of a host that came on a circuit. `bytes` is the part to deliver.
    #[inline]
    pub fn take(
        &mut self,
        now: Time,
        (host, circuit): (HostId, CircuitId),
        label: PacketLabel,
        bytes: &[u8],
        congested: bool,
    ) -> OrderVerdict {
        let number = label.number;
        if self.is_off || number.stream == 0 {
            return OrderVerdict::Deliver;
        }
        self.wake(now);
        if self.paths.come(now, circuit) {
            self.set_all_deadlines();
        }
        let keeps_order = self.paths.hold(circuit).is_zero();
        let missing = if label.is_first || keeps_order { 0 } else { OVERTAKEN };
        let Some(at) = self.known.find(host, number, missing) else {
            self.stats.unordered += 1;
            return OrderVerdict::Deliver;
        };
        let sent = self.paths.sent(now, label.sent);
        let stream = &mut self.known.streams[usize::from(at)];
        stream.pace.turn(now);
        if stream.is_idle() && stream.unwrap(number) == stream.due && stream.pace.due(sent) <= now {
            stream.pace.note(now, sent);
            stream.due += 1;
            stream.circuit = Some(circuit);
            return OrderVerdict::Deliver;
        }
        self.take_other(now, at, &CircuitPacket { label, circuit, bytes, congested, sent })
    }

    fn take_other(&mut self, now: Time, at: u16, packet: &CircuitPacket<'_>) -> OrderVerdict {
        let at_number = self.come_near(at, packet);
        let stream = &mut self.known.streams[usize::from(at)];
        if at_number < stream.due {
            self.stats.late += 1;
            if at_number >= stream.first && self.paths.note_late(packet.circuit) {
                self.set_all_deadlines();
            }
            return OrderVerdict::Deliver;
        }
        if at_number == stream.due {
            let missed = stream.front.of(at_number).filter(|rec| rec.circuit == packet.circuit);
            missed.inspect(|record| self.paths.note(now.since(record.at)));
        }
        let is_early = stream.pace.due(packet.sent) > now;
        self.stats.kept += u64::from(at_number == stream.due && is_early);
        // Packets right behind this one already wait, so all are delivered together.
        let is_followed = stream.holds(at_number + 1);
        if at_number > stream.due || stream.released > 0 || is_early || is_followed {
            return self.hold(now, at, at_number, packet);
        }
        stream.pace.note(now, packet.sent);
        stream.due += 1;
        stream.circuit = Some(packet.circuit);
        self.release_due(at);
        OrderVerdict::Deliver
    }

    /// Gives up packets that this one shows to be lost, and packets too far before it. Returns the
    /// unwrapped number of the packet.
    fn come_near(&mut self, at: u16, packet: &CircuitPacket<'_>) -> u64 {
        let CircuitPacket { label: PacketLabel { number, is_first, .. }, circuit, .. } = *packet;
        let stream = &mut self.known.streams[usize::from(at)];
        let at_number = stream.unwrap(number);
        let is_before = is_first && at_number < stream.due;
        if is_before || at_number + SPAN <= stream.due || at_number >= stream.due + 2 * SPAN {
            // The other host has restarted, or was not heard for very long.
            self.release_all(at);
            let stream = &mut self.known.streams[usize::from(at)];
            stream.restart(number);
            return stream.due;
        }
        let hold = self.paths.hold(circuit);
        let keeps_order = hold.is_zero();
        let is_same = stream.circuit.is_none_or(|last| last == circuit);
        let is_next = |stream: &mut PacketStream| stream.first_held().is_none_or(|n| at_number < n);
        if at_number > stream.due && keeps_order && is_same && is_next(stream) {
            stream.due = at_number;
        } else if at_number > stream.due && is_first && hold + WAIT < ip::BREAK {
            // Packets sent before such a break are no longer in flight.
            self.skip_to(at, at_number);
        } else if at_number >= stream.due + SPAN {
            self.stats.overflowed += 1;
            self.skip_to(at, at_number - SPAN + 1);
        }
        at_number
    }

    /// Copies a packet that is not due yet, or that must not overtake packets still to be taken.
    fn hold(
        &mut self,
        now: Time,
        at: u16,
        number: u64,
        packet: &CircuitPacket<'_>,
    ) -> OrderVerdict {
        let stream = &self.known.streams[usize::from(at)];
        if stream.holds(number) {
            return OrderVerdict::Duplicate;
        }
        if !self.store(at, number, packet) {
            return self.pass_by(at, number);
        }
        let PacketReordering { known, paths, .. } = self;
        self.held += 1;
        self.stats.held += 1;
        known.note_held(at, 1);
        let stream = &mut known.streams[usize::from(at)];
        if number == stream.due {
            self.release_due(at);
        } else {
            let last = stream.circuit;
            let until = |record: &MissingSince| until(paths, last, record);
            if stream.front.note(now, number, packet.circuit, until) {
                self.set_deadline(at);
            }
        }
        if self.held > HELD_MAX
            && let Some(fullest) = self.known.fullest_stream()
        {
            self.stats.overflowed += 1;
            self.release_all(fullest);
        }
        OrderVerdict::Held
    }

    /// Stores a packet in its slot. Returns false if there is no room.
    fn store(&mut self, at: u16, number: u64, packet: &CircuitPacket<'_>) -> bool {
        let stream = &self.known.streams[usize::from(at)];
        let has_place = number - stream.base() < stream.ring.len() as u64;
        if !has_place && !self.known.make_place(at, number) {
            return false;
        }
        let CircuitPacket { circuit, bytes, congested, sent, .. } = *packet;
        let held = HeldPacket { circuit, len: bytes.len() as u16, congested, sent };
        let Some(slot) = self.pool.put(bytes, held) else { return false };
        self.known.streams[usize::from(at)].put(number, slot);
        true
    }

    /// Delivers a packet for which there is no room. Its order is lost, but not the packet.
    fn pass_by(&mut self, at: u16, number: u64) -> OrderVerdict {
        self.stats.unordered += 1;
        self.release_all(at);
        let stream = &mut self.known.streams[usize::from(at)];
        stream.due = stream.due.max(number + 1);
        OrderVerdict::Deliver
    }

    /// Releases packets that are due, and packets behind those that are certainly lost.
    fn release_due(&mut self, at: u16) {
        let PacketReordering { known, pool, paths, .. } = self;
        let stream = &mut known.streams[usize::from(at)];
        let was_taken = stream.released == 0;
        let mut count = 0;
        loop {
            if let Some((more, last)) = stream.release(self.awake, pool) {
                stream.circuit = Some(pool.get(last).circuit);
                count += more;
            }
            if stream.kept().is_some() {
                break;
            }
            // A circuit that keeps its order won't deliver the missing packets.
            let keeps_order = stream.circuit.is_none_or(|last| paths.hold(last).is_zero());
            let Some(first) = keeps_order.then(|| stream.first_held()).flatten() else { break };
            let next = pool.get(stream.ring[stream.place(first)]).circuit;
            if stream.circuit.is_some_and(|last| last != next) || !paths.hold(next).is_zero() {
                break;
            }
            stream.due = first;
        }
        if count > 0 && was_taken {
            self.released.push(at);
        }
        known.note_held(at, -count.cast_signed());
        self.held -= count as usize;
        self.stats.released += u64::from(count);
        self.set_deadline(at);
    }

    /// Gives up the missing packet that is due, and all up to the first that waits.
    fn give_up(&mut self, at: u16) {
        let stream = &mut self.known.streams[usize::from(at)];
        if let Some(first) = stream.first_held() {
            stream.due = first;
            self.stats.given_up += 1;
        }
        self.release_due(at);
    }

    /// Releases packets that are due and were held only by the pace.
    fn let_go(&mut self, at: u16) {
        let awake = self.awake;
        let stream = &mut self.known.streams[usize::from(at)];
        stream.pace.open(awake);
        if stream.kept().is_some() {
            self.release_due(at);
        }
    }

    /// Gives up all missing packets, so that all waiting ones are released.
    fn release_all(&mut self, at: u16) {
        self.let_go(at);
        while self.known.streams[usize::from(at)].first_held().is_some() {
            self.give_up(at);
        }
    }

    /// Gives up missing packets until `number` is due or has been passed.
    fn skip_to(&mut self, at: u16, number: u64) {
        self.let_go(at);
        while self.known.streams[usize::from(at)].due < number {
            let stream = &mut self.known.streams[usize::from(at)];
            match stream.first_held() {
                Some(first) if first < number => self.give_up(at),
                _ => {
                    stream.due = number;
                    self.stats.given_up += 1;
                    self.release_due(at);
                }
            }
        }
    }

    /// Sets the time at which the missing packet is given up.
    fn set_deadline(&mut self, at: u16) {
        let stream = &mut self.known.streams[usize::from(at)];
        let mut over = Time::FAR;
        if stream.held == 0 {
            stream.front.clear();
        } else if let Some(slot) = stream.kept() {
            over = stream.pace.due(self.pool.get(slot).sent);
        } else if let Some(record) = stream.front.of(stream.due) {
            over = until(&self.paths, stream.circuit, &record);
        }
        let before = core::mem::replace(&mut stream.until, over);
        if before != over {
            if before < Time::FAR {
                self.deadlines.remove(before, at);
            }
            if over < Time::FAR {
                self.deadlines.insert(over, at);
            }
        }
    }

    /// Recomputes all deadlines, after the hold of a circuit changed.
    fn set_all_deadlines(&mut self) {
        let all: Vec<u16> = self.known.all().collect();
        all.into_iter().for_each(|at| self.set_deadline(at));
    }

    /// Notes a call. If deadlines passed since the last call, nothing is given up at once, since
    /// nobody read the sockets meanwhile.
    #[inline]
    fn wake(&mut self, now: Time) {
        let away = now.since(self.awake);
        if away > AWAY
            && let Some((until, _)) = self.deadlines.first()
            && until > self.awake
            && until + AWAY < now
        {
            self.not_before = now + away.min(AWAY_MAX);
        }
        self.awake = self.awake.max(now);
    }

    /// Gives up packets that were waited for too long.
    pub fn handle_timeout(&mut self, now: Time) {
        self.wake(now);
        while let Some((until, at)) = self.deadlines.first()
            && until.max(self.not_before) <= now
        {
            match self.known.streams[usize::from(at)].kept() {
                Some(_) => self.release_due(at),
                None => self.give_up(at),
            }
        }
    }

    /// Time at which packets must be given up or taken.
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.released.is_empty() {
            return Some(Time::ZERO);
        }
        self.deadlines.first().map(|(until, _)| self.not_before.max(until))
    }

    /// Time for which arriving packets may gather before they are handled. None while few wait.
    pub(crate) fn gathers(&self) -> Option<Duration> {
        let part = (self.paths.hold_now() / GATHER_PART).min(GATHER_MAX);
        (self.held >= GATHER_FROM && !part.is_zero()).then_some(part)
    }

    /// Calls `deliver` with the released packets and the buffer that holds them. Packets of one
    /// stream are together and in their order.
    pub fn take_released(&mut self, deliver: impl FnOnce(&[PacketArrival], &mut [u8])) {
        if self.released.is_empty() {
            return;
        }
        for at in self.released.drain(..) {
            let stream = &mut self.known.streams[usize::from(at)];
            let (host, mut number) = (stream.host, stream.taken);
            while stream.released > 0 {
                let place = stream.place(number);
                number += 1;
                let slot = core::mem::replace(&mut stream.ring[place], NONE);
                if slot != NONE {
                    stream.released -= 1;
                    let HeldPacket { len, congested, .. } = self.pool.get(slot);
                    let at = u32::from(slot) * SLOT as u32;
                    self.arrivals.push(PacketArrival { host, at, len: len.into(), congested });
                }
            }
            if stream.held == 0 {
                self.known.note_idle(at);
            }
        }
        deliver(&self.arrivals, &mut self.pool.buf);
        for arrival in self.arrivals.drain(..) {
            self.pool.free((arrival.at / SLOT as u32) as u16);
        }
        self.pool.trim();
    }

    /// Sets how long packets of a circuit wait for earlier ones. Zero, the default, is for a
    /// circuit that keeps its order. The value holds until [`Self::circuit_ended`].
    pub fn set_hold(&mut self, circuit: CircuitId, hold: Duration) {
        if self.paths.set(circuit, hold) {
            self.set_all_deadlines();
        }
    }

    /// Unit of time in which packets on a circuit state when they were sent.
    pub(crate) fn steps(&self, circuit: CircuitId) -> ip::SendSteps {
        self.paths.steps(circuit)
    }

    /// Handles the end of a circuit: its missing packets won't come.
    pub fn circuit_ended(&mut self, circuit: CircuitId) {
        self.paths.set(circuit, Duration::ZERO);
        let is_on = |at: &u16| self.known.streams[usize::from(*at)].circuit == Some(circuit);
        let on: Vec<u16> = self.known.all().filter(is_on).collect();
        for at in on {
            let stream = |sequences: &PacketReordering| {
                let stream = &sequences.known.streams[usize::from(at)];
                (stream.circuit == Some(circuit), stream.held)
            };
            self.let_go(at);
            while let (true, 1..) = stream(self) {
                self.give_up(at);
            }
            let stream = &mut self.known.streams[usize::from(at)];
            stream.circuit = stream.circuit.filter(|last| *last != circuit);
        }
        self.set_all_deadlines();
    }

    pub fn forget(&mut self, host: HostId) {
        let streams: Vec<u16> = self.known.streams_of(host).collect();
        for at in streams {
            let PacketStream { ring, held, until, .. } = &mut self.known.streams[usize::from(at)];
            ring.iter().filter(|slot| **slot != NONE).for_each(|slot| self.pool.free(*slot));
            self.held -= *held as usize;
            self.deadlines.remove(*until, at);
            self.released.retain(|other| *other != at);
        }
        self.known.forget(host);
        self.pool.trim();
    }

    pub fn stats(&self) -> OrderStats {
        self.stats
    }
}

/// Time at which the missing packets of a record are given up. `last` is the circuit on which the
/// stream's last packet that was due came.
fn until(paths: &MixedCircuits, last: Option<CircuitId>, record: &MissingSince) -> Time {
    let hold = paths.hold(record.circuit);
    let wait = match last.filter(|last| *last != record.circuit) {
        Some(last) => WAIT + paths.hold(last),
        None if hold.is_zero() => WAIT,
        None => hold,
    };
    record.at + wait
}

#[cfg(test)]
mod bound_tests;
#[cfg(test)]
mod mix_tests;
#[cfg(test)]
mod tests;
