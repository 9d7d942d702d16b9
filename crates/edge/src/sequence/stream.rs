//! One stream of a host's packets.

use shoal_wire::{CircuitId, Time, ip};

use crate::book::HostId;
use crate::sequence::front::Front;
use crate::sequence::pace::Pace;
use crate::sequence::pool::{NONE, Pool};

/// How far the numbers of packets that wait may be apart; so many may wait.
pub(crate) const SPAN: u64 = 32_768;
/// Places for numbers: of a stream of which little waits, that it keeps when nothing waits, and at
/// most, since packets that are released and not taken yet have theirs, too.
pub(crate) const RING_MIN: usize = 64;
pub(crate) const RING_KEPT: usize = 1_024;
pub(crate) const RING_MAX: usize = 2 * SPAN as usize;

/// See the module's documentation.
pub(crate) struct Stream {
    pub(crate) host: HostId,
    pub(crate) stream: u16,
    /// On which the last packet that was due came; None if that circuit is over.
    pub(crate) circuit: Option<CircuitId>,
    /// The number that is due, not wrapped; and what is to be added to it for that on the wire.
    pub(crate) due: u64,
    shift: u32,
    /// The number with which it began: those before it were never waited for.
    pub(crate) first: u64,
    /// Slots of packets by number: those that wait, and before `due` those that are released and
    /// not taken yet. The length is a power of two.
    pub(crate) ring: Vec<u16>,
    /// How many wait, none of them below this number.
    pub(crate) held: u32,
    empty_to: u64,
    /// How many are released, from which number on.
    pub(crate) released: u32,
    pub(crate) taken: u64,
    pub(crate) front: Front,
    pub(crate) pace: Pace,
    /// When the packet that is due is given up; FAR if nothing waits for it.
    pub(crate) until: Time,
    /// Neighbours among the streams of the host, by their last use.
    pub(crate) newer: u16,
    pub(crate) older: u16,
}

impl Stream {
    /// One that begins with the packet of this number, or so many before it.
    pub(crate) fn new(host: HostId, number: ip::StreamNumber, missing: u64) -> Stream {
        // As if all numbers had gone before: those may come late.
        let due = u64::from(ip::NUMBERS) - missing;
        Stream {
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
            front: Front::default(),
            pace: Pace::default(),
            until: Time::FAR,
            newer: NONE,
            older: NONE,
        }
    }

    /// The number nearest to the one that is due.
    #[inline]
    pub(crate) fn unwrap(&self, number: ip::StreamNumber) -> u64 {
        let due = (self.due as u32).wrapping_add(self.shift);
        self.due.wrapping_add_signed(number.ahead_of(due).into())
    }

    /// Takes the number that is due for this one.
    pub(crate) fn restart(&mut self, number: ip::StreamNumber) {
        self.shift = number.number.wrapping_sub(self.due as u32);
        self.first = self.due;
    }

    /// Whether nothing waits, and nothing is to be taken.
    pub(crate) fn is_idle(&self) -> bool {
        self.held == 0 && self.released == 0
    }

    /// The lowest number of which the ring has to know.
    pub(crate) fn base(&self) -> u64 {
        if self.released > 0 { self.taken } else { self.due }
    }

    #[inline]
    pub(crate) fn place(&self, number: u64) -> usize {
        number as usize & self.ring.len().wrapping_sub(1)
    }

    /// Gives the ring `len` places.
    pub(crate) fn grow(&mut self, len: usize) {
        let mut ring = vec![NONE; len];
        for number in self.base()..self.base() + self.ring.len() as u64 {
            ring[number as usize & (len - 1)] = self.ring[self.place(number)];
        }
        self.ring = ring;
    }

    /// The lowest number that waits.
    pub(crate) fn first_held(&mut self) -> Option<u64> {
        let end = self.base() + self.ring.len() as u64;
        let mut number = self.due.max(self.empty_to);
        while self.held > 0 && number < end {
            let place = self.place(number);
            let left = (end - number).min(RING_MIN as u64) as usize;
            let places = &self.ring[place..(place | (RING_MIN - 1)) + 1];
            let places = &places[..left.min(places.len())];
            // All at once, and one by one only where there is one.
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

    /// Puts a packet that waits into its place.
    pub(crate) fn put(&mut self, number: u64, slot: u16) {
        let place = self.place(number);
        self.ring[place] = slot;
        self.held += 1;
        if number > self.due {
            self.empty_to = self.empty_to.min(number);
        }
    }

    /// Whether the packet of this number waits, which is not below the one that is due.
    pub(crate) fn holds(&self, number: u64) -> bool {
        let is_near = self.held > 0 && number - self.base() < self.ring.len() as u64;
        is_near && self.ring[self.place(number)] != NONE
    }

    /// The slot of the packet that is due, if it came and is kept.
    pub(crate) fn kept(&self) -> Option<u16> {
        let slot = (self.held > 0).then(|| self.ring[self.place(self.due)]);
        slot.filter(|slot| *slot != NONE)
    }

    /// Releases those that are due; returns how many, and the slot of the last.
    pub(crate) fn release(&mut self, now: Time, pool: &Pool) -> Option<(u32, u16)> {
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
