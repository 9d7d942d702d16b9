//! The order of packets that came over circuits, across a change of circuits.
//!
//! ```text
//! circuit 1   7 8 9 . . 12         one circuit keeps its order: what is missing there is lost
//! circuit 2              13 14     came sooner than 12: held until circuit 1 has brought it
//! ```
//!
//! Numbers are those that the sender gives each packet of a pair. A packet that is due is delivered
//! where it lies. One that came on another circuit than the last, with others missing before it,
//! is copied and held until those come, for at most [`WAIT`]; then it is released, with all that
//! waits. One that comes later still is delivered at once.
//!
//! Invariant: nothing is delivered twice; what is held is bounded, for a pair and in all.

use core::ops::Range;
use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{CircuitId, SizeClass, Time};

use crate::book::HostId;
use crate::worker::Arrival;

/// How long a packet is held: longer than two circuits differ.
const WAIT: Duration = Duration::from_millis(300);
/// Packets of a pair that are held, and how far numbers may be apart.
const CELLS_MAX: u64 = 16_384;
/// Bytes of held packets, in all.
const BYTES_MAX: usize = 64 << 20;
/// Bytes that a held packet takes.
const SLOT: usize = SizeClass::Full.edge_len();
const SLOTS_MAX: usize = BYTES_MAX / SLOT;

/// What becomes of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is to be delivered, from where it lies.
    Deliver,
    /// It was copied, and is released when those before it came or are given up.
    Held,
    /// It was delivered before.
    Duplicate,
}

#[derive(Clone, Copy)]
struct Held {
    slot: u32,
    len: u32,
    congested: bool,
    circuit: CircuitId,
}

/// One pair's packets.
struct Pair {
    /// The number that is due, not wrapped.
    next: u64,
    /// On which the last packet that was due came.
    circuit: CircuitId,
    /// Which of the [`CELLS_MAX`] numbers before `next` were delivered; a bit stands at its number.
    delivered: Box<[u64]>,
    held: BTreeMap<u64, Held>,
    /// When what is held is released.
    until: Time,
    /// Packets of it that are released and not taken yet.
    released: usize,
}

impl Pair {
    fn new(number: u32, circuit: CircuitId) -> Pair {
        // As if 2^32 numbers had gone before: those may come late.
        let next = (1 << 32) + u64::from(number);
        let (delivered, held) = (vec![0; CELLS_MAX as usize / 64].into(), BTreeMap::new());
        Pair { next, circuit, delivered, held, until: Time::FAR, released: 0 }
    }

    /// The number nearest to the one that is due.
    fn unwrap(&self, number: u32) -> u64 {
        let ahead = number.wrapping_sub(self.next as u32).cast_signed();
        self.next.wrapping_add_signed(ahead.into())
    }

    /// Notes that a number is delivered; false if it was before.
    fn note(&mut self, number: u64) -> bool {
        let (at, bit) = ((number % CELLS_MAX) as usize, 1 << (number % 64));
        let fresh = self.delivered[at / 64] & bit == 0;
        self.delivered[at / 64] |= bit;
        fresh
    }

    /// Moves on to `next`, over numbers that were not delivered.
    fn skip_to(&mut self, next: u64) {
        self.forget(self.next..next.min(self.next + CELLS_MAX));
        self.next = next;
    }

    /// Delivers the number that is due.
    fn step(&mut self, circuit: CircuitId) {
        self.forget(self.next..self.next + 1);
        self.note(self.next);
        (self.next, self.circuit) = (self.next + 1, circuit);
    }

    /// Clears the bits of these numbers, word by word: the other host chooses how many there are.
    fn forget(&mut self, numbers: Range<u64>) {
        let mut number = numbers.start;
        while number < numbers.end {
            let end = (number / 64 * 64 + 64).min(numbers.end);
            let bits = u64::MAX >> (64 - (end - number)) << (number % 64);
            self.delivered[(number % CELLS_MAX) as usize / 64] &= !bits;
            number = end;
        }
    }
}

/// The packets of all pairs.
#[derive(Default)]
pub(crate) struct Sequences {
    pairs: BTreeMap<HostId, Pair>,
    /// Held and released packets, [`SLOT`] bytes for each, and the places that are free.
    buf: Vec<u8>,
    free: Vec<u32>,
    /// Released packets, in their order.
    released: Vec<Arrival>,
    /// Nothing is held.
    pub(crate) is_off: bool,
}

impl Sequences {
    /// Takes in packet `number` of a host; `bytes` is what is delivered of it.
    pub(crate) fn take(
        &mut self,
        now: Time,
        (host, circuit): (HostId, CircuitId),
        number: u32,
        bytes: &[u8],
        congested: bool,
    ) -> Verdict {
        if self.is_off {
            return Verdict::Deliver;
        }
        let pair = self.pairs.entry(host).or_insert_with(|| Pair::new(number, circuit));
        let at = pair.unwrap(number);
        if pair.next.abs_diff(at) >= CELLS_MAX {
            // The other host was restarted, or was not heard for very long.
            self.release(host);
            let Some(pair) = self.pairs.get_mut(&host) else { return Verdict::Deliver };
            let released = pair.released;
            *pair = Pair { released, ..Pair::new(number, circuit) };
            return self.take_due(now, (host, circuit), bytes, congested);
        }
        if at < pair.next {
            return if pair.note(at) { Verdict::Deliver } else { Verdict::Duplicate };
        }
        let is_first = pair.held.first_key_value().is_none_or(|held| at <= *held.0);
        if at > pair.next && !(circuit == pair.circuit && is_first) {
            return self.hold(now, (host, circuit), at, bytes, congested);
        }
        pair.skip_to(at);
        self.take_due(now, (host, circuit), bytes, congested)
    }

    /// Takes the packet that is due; what was held behind it follows.
    fn take_due(
        &mut self,
        now: Time,
        (host, circuit): (HostId, CircuitId),
        bytes: &[u8],
        congested: bool,
    ) -> Verdict {
        let Some(pair) = self.pairs.get_mut(&host) else { return Verdict::Deliver };
        if pair.released > 0 {
            // It must not overtake those that are still to be taken.
            let at = pair.next;
            let verdict = self.hold(now, (host, circuit), at, bytes, congested);
            self.release_due(host);
            return verdict;
        }
        pair.step(circuit);
        if !pair.held.is_empty() {
            self.release_due(host);
        }
        Verdict::Deliver
    }

    /// Copies a packet that is not due yet, or releases all that waits if there is no room.
    fn hold(
        &mut self,
        now: Time,
        (host, circuit): (HostId, CircuitId),
        at: u64,
        bytes: &[u8],
        congested: bool,
    ) -> Verdict {
        let Some(pair) = self.pairs.get_mut(&host) else { return Verdict::Deliver };
        if pair.held.contains_key(&at) {
            return Verdict::Duplicate;
        }
        let slots = self.buf.len() / SLOT;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if slots < SLOTS_MAX => {
                self.buf.resize((slots + 1) * SLOT, 0);
                slots as u32
            }
            None => {
                self.release(host);
                // Without room the order of this one is lost, and the packet is not.
                let Some(pair) = self.pairs.get_mut(&host) else { return Verdict::Deliver };
                if at < pair.next {
                    return if pair.note(at) { Verdict::Deliver } else { Verdict::Duplicate };
                }
                pair.skip_to(at);
                pair.step(circuit);
                return Verdict::Deliver;
            }
        };
        let place = slot as usize * SLOT;
        self.buf[place..place + bytes.len()].copy_from_slice(bytes);
        if pair.held.is_empty() {
            pair.until = now + WAIT;
        }
        pair.held.insert(at, Held { slot, len: bytes.len() as u32, congested, circuit });
        Verdict::Held
    }

    /// Releases what is held and due.
    fn release_due(&mut self, host: HostId) {
        let Some(pair) = self.pairs.get_mut(&host) else { return };
        while let Some(entry) = pair.held.first_entry().filter(|held| *held.key() <= pair.next) {
            let (number, Held { slot, len, congested, circuit }) = entry.remove_entry();
            if number < pair.next {
                // A copy of it was delivered meanwhile.
                self.free.push(slot);
                continue;
            }
            pair.step(circuit);
            pair.released += 1;
            self.released.push(Arrival { host, at: slot * SLOT as u32, len, congested });
        }
        if pair.held.is_empty() {
            pair.until = Time::FAR;
        }
    }

    /// Releases all that is held of a host: what is missing is given up.
    fn release(&mut self, host: HostId) {
        while let Some(pair) = self.pairs.get_mut(&host)
            && let Some((&first, _)) = pair.held.first_key_value()
        {
            pair.skip_to(first);
            self.release_due(host);
        }
    }

    /// Releases what was held too long.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        let is_due = |(host, pair): (&HostId, &Pair)| (pair.until <= now).then_some(*host);
        let due: Vec<HostId> = self.pairs.iter().filter_map(is_due).collect();
        due.into_iter().for_each(|host| self.release(host));
    }

    /// When there is something to release or to take.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        if !self.released.is_empty() {
            return Some(Time::ZERO);
        }
        self.pairs.values().map(|pair| pair.until).filter(|until| *until < Time::FAR).min()
    }

    /// Has the released packets delivered, in their order; gives the buffer in which they lie, too.
    pub(crate) fn take_released(&mut self, deliver: impl FnOnce(&[Arrival], &mut [u8])) {
        if self.released.is_empty() {
            return;
        }
        deliver(&self.released, &mut self.buf);
        for arrival in self.released.drain(..) {
            self.free.push(arrival.at / SLOT as u32);
            if let Some(pair) = self.pairs.get_mut(&arrival.host) {
                pair.released = 0;
            }
        }
        if self.free.len() * SLOT == self.buf.len() {
            (self.buf, self.free) = (Vec::new(), Vec::new());
        }
    }

    /// A circuit is over: what is missing on it does not come any more.
    pub(crate) fn circuit_ended(&mut self, circuit: CircuitId) {
        let waits = |(host, pair): (&HostId, &Pair)| (pair.circuit == circuit).then_some(*host);
        let hosts: Vec<HostId> = self.pairs.iter().filter_map(waits).collect();
        hosts.into_iter().for_each(|host| self.release(host));
    }

    /// Forgets a host.
    pub(crate) fn forget(&mut self, host: HostId) {
        self.released.retain(|arrival| {
            let kept = arrival.host != host;
            if !kept {
                self.free.push(arrival.at / SLOT as u32);
            }
            kept
        });
        if let Some(pair) = self.pairs.remove(&host) {
            self.free.extend(pair.held.into_values().map(|held| held.slot));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostId = HostId::from_bits(1);

    fn circuit(n: u32) -> CircuitId {
        CircuitId::from_bits(n)
    }

    fn at(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    /// Takes packets in and notes in which order they are delivered.
    #[derive(Default)]
    struct Edge {
        sequences: Sequences,
        delivered: Vec<u32>,
        again: usize,
    }

    impl Edge {
        fn take(&mut self, ms: u64, on: u32, number: u32) -> Verdict {
            let bytes = number.to_be_bytes();
            let verdict = self.sequences.take(at(ms), (HOST, circuit(on)), number, &bytes, false);
            match verdict {
                Verdict::Deliver => self.delivered.push(number),
                Verdict::Held => {}
                Verdict::Duplicate => self.again += 1,
            }
            verdict
        }

        fn released(&mut self) {
            let delivered = &mut self.delivered;
            self.sequences.take_released(|arrivals, buf| {
                for Arrival { host, at, len, .. } in arrivals {
                    assert_eq!((*host, *len), (HOST, 4));
                    let bytes = buf[*at as usize..][..4].try_into().expect("four bytes");
                    delivered.push(u32::from_be_bytes(bytes));
                }
            });
        }

        fn memory(&self) -> usize {
            self.sequences.buf.len()
        }
    }

    #[test]
    fn in_order_nothing_is_copied_and_losses_hold_nothing_up() {
        let mut edge = Edge::default();
        for number in (0..1_000).filter(|n| n % 7 != 0) {
            assert_eq!(edge.take(1, 1, number), Verdict::Deliver);
        }
        for number in 1_000..2_000 {
            assert_eq!(edge.take(1, 2, number), Verdict::Deliver, "a change without a gap");
        }
        assert_eq!((edge.memory(), edge.sequences.poll_timeout()), (0, None));
        assert!(edge.delivered.is_sorted());
        // What seemed lost came late, once.
        assert_eq!(
            (edge.take(2, 1, 994), edge.take(2, 1, 994)),
            (Verdict::Deliver, Verdict::Duplicate)
        );
    }

    #[test]
    fn what_overtakes_on_a_new_circuit_waits_for_the_old_one() {
        let mut edge = Edge::default();
        (0..10).for_each(|n| assert_eq!(edge.take(0, 1, n), Verdict::Deliver));
        (14..20).for_each(|n| assert_eq!(edge.take(1, 2, n), Verdict::Held));
        edge.released();
        assert_eq!(edge.delivered.len(), 10);
        // 10 and 12 were lost: circuit 1 keeps its order.
        assert_eq!(
            (edge.take(5, 1, 11), edge.take(5, 1, 13)),
            (Verdict::Deliver, Verdict::Deliver)
        );
        // What comes before the released ones are taken stays behind them.
        assert_eq!(edge.take(5, 2, 20), Verdict::Held);
        assert_eq!(edge.sequences.poll_timeout(), Some(Time::ZERO));
        edge.released();
        assert_eq!(edge.take(6, 2, 21), Verdict::Deliver);
        let all: Vec<u32> = (0..22).filter(|n| ![10, 12].contains(n)).collect();
        assert_eq!((edge.delivered, edge.sequences.poll_timeout()), (all, None));
        assert_eq!(edge.sequences.buf.len(), 0, "the memory is given back");
    }

    #[test]
    fn where_any_order_will_do_nothing_waits() {
        let mut edge = Edge::default();
        edge.sequences.is_off = true;
        for (on, number) in [(1, 0), (2, 5), (1, 1)] {
            assert_eq!(edge.take(0, on, number), Verdict::Deliver);
        }
        assert_eq!((edge.delivered, edge.sequences.poll_timeout()), (vec![0, 5, 1], None));
    }

    #[test]
    fn what_is_missing_is_given_up_in_time_or_with_its_circuit() {
        for ends in [false, true] {
            let mut edge = Edge::default();
            edge.take(0, 1, 0);
            edge.take(1, 2, 5);
            edge.take(200, 2, 9);
            assert_eq!(edge.sequences.poll_timeout(), Some(at(301)));
            edge.sequences.handle_timeout(at(300));
            edge.released();
            assert_eq!(edge.delivered, [0]);
            match ends {
                true => edge.sequences.circuit_ended(circuit(1)),
                false => edge.sequences.handle_timeout(at(301)),
            }
            edge.released();
            assert_eq!(edge.delivered, [0, 5, 9]);
            assert_eq!(
                (edge.take(400, 1, 3), edge.take(400, 1, 3)),
                (Verdict::Deliver, Verdict::Duplicate)
            );
            assert_eq!(edge.sequences.poll_timeout(), None);
        }
    }

    #[test]
    fn a_restarted_sender_is_followed_and_numbers_wrap() {
        let mut edge = Edge::default();
        edge.take(0, 1, u32::MAX - 1);
        edge.take(0, 2, 1);
        edge.take(0, 1, u32::MAX);
        edge.take(0, 1, 0);
        edge.released();
        assert_eq!(edge.delivered, [u32::MAX - 1, u32::MAX, 0, 1]);
        edge.take(1, 2, 3);
        edge.take(1, 3, 9);
        for number in [1_000_000, 1_000_001] {
            edge.take(2, 3, number);
        }
        edge.released();
        assert_eq!(edge.delivered[4..], [3, 9, 1_000_000, 1_000_001]);
        assert_eq!(edge.take(3, 3, 1_000_001), Verdict::Duplicate);
    }

    /// Numbers that are skipped are forgotten word by word, and no others.
    #[test]
    fn what_is_skipped_is_as_if_each_number_were_cleared_alone() {
        let mut rng = shoal_crypto::Rng::new([9; 32]);
        for _ in 0..200 {
            let mut pair = Pair::new(rng.u32(), circuit(1));
            pair.delivered.fill_with(|| rng.u64());
            let from = pair.next;
            let width = 1u64 << rng.below(16);
            let to = from + rng.below(width);
            let mut slow = pair.delivered.clone();
            for number in from..to.min(from + CELLS_MAX) {
                slow[(number % CELLS_MAX) as usize / 64] &= !(1 << (number % 64));
            }
            pair.skip_to(to);
            assert!((pair.next, pair.delivered) == (to, slow), "{from} to {to}");
        }
    }

    #[test]
    fn memory_is_bounded_and_a_forgotten_host_leaves_none() {
        let mut edge = Edge::default();
        let bytes = [0; SLOT];
        let mut held = 0;
        for host in 0..8 {
            let host = HostId::from_bits(host);
            for number in (0..CELLS_MAX as u32).filter(|n| *n != 1) {
                let on = circuit(number.min(1));
                let sequences = &mut edge.sequences;
                let verdict = sequences.take(at(0), (host, on), number, &bytes, false);
                held += usize::from(verdict == Verdict::Held);
            }
        }
        assert!(edge.memory() <= BYTES_MAX, "{}", edge.memory());
        assert_eq!(held, SLOTS_MAX);
        edge.sequences.handle_timeout(at(300));
        edge.sequences.take_released(|arrivals, _| assert!(arrivals.len() <= SLOTS_MAX));
        assert_eq!(edge.memory(), 0);
        edge.take(500, 1, 0);
        edge.take(500, 2, 2);
        edge.sequences.forget(HOST);
        assert_eq!(edge.sequences.free.len() * SLOT, edge.memory());
        assert_eq!(edge.sequences.poll_timeout(), None);
    }

    #[test]
    fn any_order_on_two_circuits_delivers_each_once_and_those_of_one_circuit_in_order() {
        let mut rng = shoal_crypto::Rng::new([8; 32]);
        for _ in 0..200 {
            let mut edge = Edge::default();
            // Circuits change every so many numbers, and each carries its own in order.
            let mut lines: Vec<std::collections::VecDeque<u32>> = vec![Default::default(); 2];
            for number in 0..400u32 {
                lines[(number / 40) as usize % 2].push_back(number);
            }
            edge.take(0, 0, 0);
            lines[0].pop_front();
            let mut ms = 0;
            while lines.iter().any(|line| !line.is_empty()) {
                let line = rng.below(2) as usize;
                let Some(number) = lines[line].pop_front() else { continue };
                ms += 1;
                edge.sequences.handle_timeout(at(ms));
                edge.take(ms, line as u32, number);
                if rng.below(4) == 0 {
                    edge.released();
                }
            }
            edge.sequences.handle_timeout(at(ms + 300));
            edge.released();
            let mut sorted = edge.delivered.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..400).collect::<Vec<_>>());
            assert_eq!(edge.again, 0);
        }
    }
}
