//! One stream of packets from one host.

use shoal_wire::{CircuitId, Time, ip};

use crate::book::HostId;
use crate::sequence::front::MissingRecords;
use crate::sequence::pace::StreamPace;
use crate::sequence::pool::{NONE, PacketPool};

/// Largest difference between the numbers of waiting packets, and so their largest count.
pub(crate) const SPAN: u64 = 32_768;
/// Places in a ring: at its start, at most while nothing waits, and at most in all. Released
/// packets that are not taken yet occupy places, too.
pub(crate) const RING_MIN: usize = 64;
pub(crate) const RING_KEPT: usize = 1_024;
pub(crate) const RING_MAX: usize = 2 * SPAN as usize;

/// The state of a stream: its next number, its waiting packets and its deadline.
pub(crate) struct PacketStream {
    pub(crate) host: HostId,
    pub(crate) stream: u16,
    /// Circuit on which the last packet that was due came. None if that circuit has ended.
    pub(crate) circuit: Option<CircuitId>,
    /// Unwrapped number that is due next, and (`shift`) the difference to the number on the wire.
    pub(crate) due: u64,
    shift: u32,
    /// First number of the stream. Earlier numbers were never waited for.
    pub(crate) first: u64,
    /// Slots of packets, by number modulo the length. From `due` on they are waiting, below it they
    /// are released and not yet taken. The length is a power of two.
    pub(crate) ring: Vec<u16>,
    /// Number of waiting packets. None of them is below `empty_to`.
    pub(crate) held: u32,
    empty_to: u64,
    /// Number of released packets. The first of them is number `taken`.
    pub(crate) released: u32,
    pub(crate) taken: u64,
    pub(crate) front: MissingRecords,
    pub(crate) pace: StreamPace,
    /// Deadline at which the missing packet is given up. FAR if nothing waits for it.
    pub(crate) until: Time,
    /// Neighbours in the host's list of streams, by last use.
    pub(crate) newer: u16,
    pub(crate) older: u16,
}

impl PacketStream {
    /// A stream that begins `missing` packets before this one.
    pub(crate) fn new(host: HostId, number: ip::StreamNumber, missing: u64) -> PacketStream {
        // All numbers count as seen once, since packets before the first one may come late.
        let due = u64::from(ip::NUMBERS) - missing;
        PacketStream {
            host,
            stream: number.stream,
            circuit: None,
            due,
            shift: number.number,
            first: due,
            ring: Vec::new(),
            held: 0,
            empty_to: 0,
            released: 0,
            taken: 0,
            front: MissingRecords::default(),
            pace: StreamPace::default(),
            until: Time::FAR,
            newer: NONE,
            older: NONE,
        }
    }

    /// Unwraps a number: the one nearest to `due` that has these low bits.
    #[inline]
    pub(crate) fn unwrap(&self, number: ip::StreamNumber) -> u64 {
        let due = (self.due as u32).wrapping_add(self.shift);
        self.due.wrapping_add_signed(number.ahead_of(due).into())
    }

    /// Continues the stream with this number as the one that is due.
    pub(crate) fn restart(&mut self, number: ip::StreamNumber) {
        self.shift = number.number.wrapping_sub(self.due as u32);
        self.first = self.due;
    }

    /// True if no packet waits or must be taken.
    pub(crate) fn is_idle(&self) -> bool {
        self.held == 0 && self.released == 0
    }

    /// Lowest number with a place in the ring.
    pub(crate) fn base(&self) -> u64 {
        if self.released > 0 { self.taken } else { self.due }
    }

    #[inline]
    pub(crate) fn place(&self, number: u64) -> usize {
        number as usize & self.ring.len().wrapping_sub(1)
    }

    /// Extends the ring to `len` places.
    pub(crate) fn grow(&mut self, len: usize) {
        let mut ring = vec![NONE; len];
        for number in self.base()..self.base() + self.ring.len() as u64 {
            ring[number as usize & (len - 1)] = self.ring[self.place(number)];
        }
        self.ring = ring;
    }

    /// Lowest number of a waiting packet.
    pub(crate) fn first_held(&mut self) -> Option<u64> {
        let end = self.base() + self.ring.len() as u64;
        let mut number = self.due.max(self.empty_to);
        while self.held > 0 && number < end {
            let place = self.place(number);
            let left = (end - number).min(RING_MIN as u64) as usize;
            let places = &self.ring[place..(place | (RING_MIN - 1)) + 1];
            let places = &places[..left.min(places.len())];
            // Checks a block of places at once, and single places only if the block is not empty.
            let is_empty = places.iter().fold(NONE, |all, slot| all & slot) == NONE;
            match (!is_empty).then(|| places.iter().position(|slot| *slot != NONE)).flatten() {
                Some(more) => {
                    self.empty_to = number + more as u64;
                    return Some(self.empty_to);
                }
                None => number += places.len() as u64,
            }
        }
        None
    }

    /// Stores the slot of a waiting packet.
    pub(crate) fn put(&mut self, number: u64, slot: u16) {
        let place = self.place(number);
        self.ring[place] = slot;
        self.held += 1;
        if number > self.due {
            self.empty_to = self.empty_to.min(number);
        }
    }

    /// True if packet `number` waits. Requires `number >= due`.
    pub(crate) fn holds(&self, number: u64) -> bool {
        let is_near = self.held > 0 && number - self.base() < self.ring.len() as u64;
        is_near && self.ring[self.place(number)] != NONE
    }

    /// Slot of the packet that is due, if it is held.
    pub(crate) fn kept(&self) -> Option<u16> {
        let slot = (self.held > 0).then(|| self.ring[self.place(self.due)]);
        slot.filter(|slot| *slot != NONE)
    }

    /// Releases the packets that are due. Returns their count, and the slot of the last one.
    pub(crate) fn release(&mut self, now: Time, pool: &PacketPool) -> Option<(u32, u16)> {
        let (from, mut last) = (self.due, NONE);
        self.pace.turn(now);
        while let Some(slot) = self.kept() {
            let sent = pool.get(slot).sent;
            if self.pace.due(sent) > now {
                self.empty_to = self.due;
                break;
            }
            self.pace.note(now, sent);
            last = slot;
            self.due += 1;
            self.held -= 1;
        }
        let count = (self.due - from) as u32;
        if count > 0 && self.released == 0 {
            self.taken = from;
        }
        self.released += count;
        (count > 0).then_some((count, last))
    }
}
