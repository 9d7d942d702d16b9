//! The order of packets that came over circuits.
//!
//! ```text
//! circuit 1         7 8 9 . . 12         keeps its order: what is missing on it is lost
//! circuit 2                    13 14     came sooner than 12: held until circuit 1 has brought it
//! circuit 3         7 9 10 8 12 14 13    has mixes: each is held until those before it came
//! ```
//!
//! Packets have numbers in streams, which are the flows between two hosts, or several that share
//! one. A packet that is due is delivered where it lies; one with others right behind it goes with
//! them, since one write to the interface costs more than a copy. One with others missing before it
//! is copied and held until these come or are given up; then it is released, with all that follow
//! it without a gap. One that comes later still is delivered at once. Of a fast stream behind mixes
//! a packet that is due may be kept, too ([`pace`]).
//!
//! How long a missing packet is waited for, from the arrival of the first one behind it on:
//!
//! - on a circuit without mixes not at all, since it keeps its order;
//! - on one with mixes for its hold ([`path`]);
//! - across a change of circuits for [`WAIT`] and the hold of the former;
//! - and no longer once a packet comes that is the first of its stream after a break.
//!
//! Invariants: no packet is delivered before one of its stream that may still come; what is held is
//! bounded, for a stream and in all. Nothing is delivered twice, since the session of the two hosts
//! opens nothing twice.

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
use crate::sequence::front::Record;
use crate::sequence::known::Known;
use crate::sequence::path::Paths;
use crate::sequence::pool::{Held, NONE, Pool, SLOT, SLOTS_MAX};
use crate::sequence::stream::{SPAN, Stream};
use crate::worker::Arrival;

/// How long a packet is held across a change of circuits: longer than two of them differ.
const WAIT: Duration = Duration::from_millis(300);
/// Packets that wait, of all streams. The slots above it are for those that are released and not
/// taken yet: a turn of the node brings fewer.
const HELD_MAX: usize = SLOTS_MAX - 1_024;

/// Who calls after a longer time than this may have been away. What came meanwhile waits in its
/// sockets, and is given as long a time to be taken in, up to a bound, before it counts as missing.
const AWAY: Duration = Duration::from_millis(2);
const AWAY_MAX: Duration = Duration::from_millis(50);

/// Behind mixes packets come in quanta, a few in each. While so many wait for others, which is
/// where a stream is fast, those that come may gather for this part of the path's hold, and no
/// longer than this: a node that wakes for each quantum spends more on that than on packets.
const GATHER_FROM: usize = 64;
const GATHER_PART: u32 = 32;
const GATHER_MAX: Duration = Duration::from_millis(1);

/// The first packet that comes of a stream may have overtaken so many, unless it says otherwise.
const OVERTAKEN: u64 = 48;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is to be delivered, from where it lies.
    Deliver,
    /// It was copied, and is released when those before it came or are given up.
    Held,
    /// One with its number is held already.
    Duplicate,
}

/// What a packet on a circuit says of itself.
#[derive(Clone, Copy, Debug)]
pub struct Label {
    /// Its place.
    pub number: ip::StreamNumber,
    /// Its stream sent nothing for [`ip::BREAK`] before it, or ever.
    pub is_first: bool,
    /// When it was sent.
    pub sent: ip::SendTime,
}

impl Label {
    /// What stands before a packet and in its flags.
    pub fn new(number: ip::StreamNumber, flags: u8) -> Label {
        let is_first = flags & ip::FIRST != 0;
        Label { number, is_first, sent: ip::SendTime::from_flags(flags) }
    }
}

/// Counters of packets that came over circuits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OrderStats {
    /// Packets that were held.
    pub held: u64,
    /// Packets of these that were released, in their order.
    pub released: u64,
    /// Gaps that were given up: packets that were waited for and did not come in time.
    pub given_up: u64,
    /// Packets that came early in a fast stream, and were kept until they had taken longer.
    pub kept: u64,
    /// Packets that came after others behind them were delivered.
    pub late: u64,
    /// Times that packets of a stream were released early, since too many waited.
    pub overflowed: u64,
    /// Packets delivered without regard to their order, since there was no room to hold them or to
    /// know their stream.
    pub unordered: u64,
}

/// A packet as it came.
#[derive(Clone, Copy)]
struct Packet<'a> {
    label: Label,
    circuit: CircuitId,
    bytes: &'a [u8],
    congested: bool,
    /// When it was sent, as far as is known.
    sent: Time,
}

/// The packets of all streams.
#[derive(Default)]
pub struct Sequences {
    known: Known,
    pool: Pool,
    /// How many wait.
    held: usize,
    paths: Paths,
    /// Streams of which packets wait, by when those that are due are given up.
    deadlines: Deadlines,
    /// When something was called last, and until when nothing is given up.
    awake: Time,
    not_before: Time,
    /// Streams of which packets are released and not taken.
    released: Vec<u16>,
    arrivals: Vec<Arrival>,
    stats: OrderStats,
    /// Nothing is held.
    pub(crate) is_off: bool,
}

impl Sequences {
    /// Takes in a packet of a host, which came on a circuit; `bytes` is what is delivered of it.
    #[inline]
    pub fn take(
        &mut self,
        now: Time,
        (host, circuit): (HostId, CircuitId),
        label: Label,
        bytes: &[u8],
        congested: bool,
    ) -> Verdict {
        let number = label.number;
        if self.is_off || number.stream == 0 {
            return Verdict::Deliver;
        }
        self.wake(now);
        if self.paths.come(now, circuit) {
            self.set_all_deadlines();
        }
        let keeps_order = self.paths.hold(circuit).is_zero();
        let missing = if label.is_first || keeps_order { 0 } else { OVERTAKEN };
        let Some(at) = self.known.find(host, number, missing) else {
            self.stats.unordered += 1;
            return Verdict::Deliver;
        };
        let sent = self.paths.sent(now, label.sent);
        let stream = &mut self.known.streams[usize::from(at)];
        stream.pace.turn(now);
        if stream.is_idle() && stream.unwrap(number) == stream.due && stream.pace.due(sent) <= now {
            stream.pace.note(now, sent);
            stream.due += 1;
            stream.circuit = Some(circuit);
            return Verdict::Deliver;
        }
        self.take_other(now, at, &Packet { label, circuit, bytes, congested, sent })
    }

    fn take_other(&mut self, now: Time, at: u16, packet: &Packet<'_>) -> Verdict {
        let at_number = self.come_near(at, packet);
        let stream = &mut self.known.streams[usize::from(at)];
        if at_number < stream.due {
            self.stats.late += 1;
            if at_number >= stream.first && self.paths.note_late(packet.circuit) {
                self.set_all_deadlines();
            }
            return Verdict::Deliver;
        }
        if at_number == stream.due {
            let missed = stream.front.of(at_number).filter(|rec| rec.circuit == packet.circuit);
            missed.inspect(|record| self.paths.note(now.since(record.at)));
        }
        let is_early = stream.pace.due(packet.sent) > now;
        self.stats.kept += u64::from(at_number == stream.due && is_early);
        // With others right behind it, it is delivered together with them.
        let is_followed = stream.holds(at_number + 1);
        if at_number > stream.due || stream.released > 0 || is_early || is_followed {
            return self.hold(now, at, at_number, packet);
        }
        stream.pace.note(now, packet.sent);
        stream.due += 1;
        stream.circuit = Some(packet.circuit);
        self.release_due(at);
        Verdict::Deliver
    }

    /// Gives up what a packet shows to be lost, and what is too far from it. Returns its number,
    /// not wrapped.
    fn come_near(&mut self, at: u16, packet: &Packet<'_>) -> u64 {
        let Packet { label: Label { number, is_first, .. }, circuit, .. } = *packet;
        let stream = &mut self.known.streams[usize::from(at)];
        let at_number = stream.unwrap(number);
        let is_before = is_first && at_number < stream.due;
        if is_before || at_number + SPAN <= stream.due || at_number >= stream.due + 2 * SPAN {
            // The other host was restarted, or was not heard for very long.
            self.release_all(at);
            let stream = &mut self.known.streams[usize::from(at)];
            stream.restart(number);
            return stream.due;
        }
        let hold = self.paths.hold(circuit);
        let keeps_order = hold.is_zero();
        let is_same = stream.circuit.is_none_or(|last| last == circuit);
        let is_next = |stream: &mut Stream| stream.first_held().is_none_or(|n| at_number < n);
        if at_number > stream.due && keeps_order && is_same && is_next(stream) {
            stream.due = at_number;
        } else if at_number > stream.due && is_first && hold + WAIT < ip::BREAK {
            // What was sent so long before it is not on its way any more.
            self.skip_to(at, at_number);
        } else if at_number >= stream.due + SPAN {
            self.stats.overflowed += 1;
            self.skip_to(at, at_number - SPAN + 1);
        }
        at_number
    }

    /// Copies a packet that is not due yet, or may not overtake those that are still to be taken.
    fn hold(&mut self, now: Time, at: u16, number: u64, packet: &Packet<'_>) -> Verdict {
        let stream = &self.known.streams[usize::from(at)];
        if stream.holds(number) {
            return Verdict::Duplicate;
        }
        if !self.store(at, number, packet) {
            return self.pass_by(at, number);
        }
        let Sequences { known, paths, .. } = self;
        self.held += 1;
        self.stats.held += 1;
        known.note_held(at, 1);
        let stream = &mut known.streams[usize::from(at)];
        if number == stream.due {
            self.release_due(at);
        } else {
            let last = stream.circuit;
            let until = |record: &Record| until(paths, last, record);
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
        Verdict::Held
    }

    /// Puts a packet into its place; says whether there was room.
    fn store(&mut self, at: u16, number: u64, packet: &Packet<'_>) -> bool {
        let stream = &self.known.streams[usize::from(at)];
        let has_place = number - stream.base() < stream.ring.len() as u64;
        if !has_place && !self.known.make_place(at, number) {
            return false;
        }
        let Packet { circuit, bytes, congested, sent, .. } = *packet;
        let held = Held { circuit, len: bytes.len() as u16, congested, sent };
        let Some(slot) = self.pool.put(bytes, held) else { return false };
        self.known.streams[usize::from(at)].put(number, slot);
        true
    }

    /// Delivers a packet for which there is no room: its order is lost, and the packet is not.
    fn pass_by(&mut self, at: u16, number: u64) -> Verdict {
        self.stats.unordered += 1;
        self.release_all(at);
        let stream = &mut self.known.streams[usize::from(at)];
        stream.due = stream.due.max(number + 1);
        Verdict::Deliver
    }

    /// Releases what is due, and what waits for nothing but what is lost.
    fn release_due(&mut self, at: u16) {
        let Sequences { known, pool, paths, .. } = self;
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
            // A circuit that keeps its order brings no more of what is missing on it.
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

    /// Gives up the packet that is due, and those behind it up to the first that waits.
    fn give_up(&mut self, at: u16) {
        let stream = &mut self.known.streams[usize::from(at)];
        if let Some(first) = stream.first_held() {
            stream.due = first;
            self.stats.given_up += 1;
        }
        self.release_due(at);
    }

    /// Releases what is due and only kept.
    fn let_go(&mut self, at: u16) {
        let awake = self.awake;
        let stream = &mut self.known.streams[usize::from(at)];
        stream.pace.open(awake);
        if stream.kept().is_some() {
            self.release_due(at);
        }
    }

    /// Gives up all that is missing before packets that wait.
    fn release_all(&mut self, at: u16) {
        self.let_go(at);
        while self.known.streams[usize::from(at)].first_held().is_some() {
            self.give_up(at);
        }
    }

    /// Gives up what is missing until `number` is due or was.
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

    /// Sets when the packet that is due is given up.
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

    /// The hold of a circuit changed.
    fn set_all_deadlines(&mut self) {
        let all: Vec<u16> = self.known.all().collect();
        all.into_iter().for_each(|at| self.set_deadline(at));
    }

    /// Notes that something is called. Nothing is given up at once whose time ran out in between,
    /// while nobody looked.
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

    /// Gives up what was waited for too long.
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

    /// When there is something to give up or to take.
    pub fn poll_timeout(&self) -> Option<Time> {
        if !self.released.is_empty() {
            return Some(Time::ZERO);
        }
        self.deadlines.first().map(|(until, _)| self.not_before.max(until))
    }

    /// For how long packets may gather before they are taken in; none while few wait.
    pub(crate) fn gathers(&self) -> Option<Duration> {
        let part = (self.paths.hold_now() / GATHER_PART).min(GATHER_MAX);
        (self.held >= GATHER_FROM && !part.is_zero()).then_some(part)
    }

    /// Has the released packets delivered, those of a stream together and in their order; gives the
    /// buffer in which they lie, too.
    pub fn take_released(&mut self, deliver: impl FnOnce(&[Arrival], &mut [u8])) {
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
                    let Held { len, congested, .. } = self.pool.get(slot);
                    let at = u32::from(slot) * SLOT as u32;
                    self.arrivals.push(Arrival { host, at, len: len.into(), congested });
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

    /// Says how long packets of a circuit may be late against each other; zero, as without a call,
    /// for a circuit that keeps its order. It counts until [`Self::circuit_ended`].
    pub fn set_hold(&mut self, circuit: CircuitId, hold: Duration) {
        if self.paths.set(circuit, hold) {
            self.set_all_deadlines();
        }
    }

    /// In which steps packets on a circuit say when they were sent.
    pub(crate) fn steps(&self, circuit: CircuitId) -> ip::SendSteps {
        self.paths.steps(circuit)
    }

    /// A circuit is over: what is missing on it does not come any more.
    pub fn circuit_ended(&mut self, circuit: CircuitId) {
        self.paths.set(circuit, Duration::ZERO);
        let is_on = |at: &u16| self.known.streams[usize::from(*at)].circuit == Some(circuit);
        let on: Vec<u16> = self.known.all().filter(is_on).collect();
        for at in on {
            let stream = |sequences: &Sequences| {
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

    /// Forgets a host.
    pub fn forget(&mut self, host: HostId) {
        let streams: Vec<u16> = self.known.streams_of(host).collect();
        for at in streams {
            let Stream { ring, held, until, .. } = &mut self.known.streams[usize::from(at)];
            ring.iter().filter(|slot| **slot != NONE).for_each(|slot| self.pool.free(*slot));
            self.held -= *held as usize;
            self.deadlines.remove(*until, at);
            self.released.retain(|other| *other != at);
        }
        self.known.forget(host);
        self.pool.trim();
    }

    /// Counters.
    pub fn stats(&self) -> OrderStats {
        self.stats
    }
}

/// When those are given up that a record tells of, in a stream whose last packet that was due came
/// on this circuit.
fn until(paths: &Paths, last: Option<CircuitId>, record: &Record) -> Time {
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
