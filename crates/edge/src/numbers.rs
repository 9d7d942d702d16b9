//! Numbers of packets to hidden hosts.

use shoal_crypto::Rng;
use shoal_session::IdTable;
use shoal_wire::{Time, ip};

use crate::book::HostId;

const _: () = assert!(ip::NUMBERS == 1 << NUMBER_BITS);
const NUMBER_BITS: u32 = 20;
/// The time of a stream's last packet is stored in steps of 2^28 ns (268 ms). The step shares 32
/// bits with a packet number and wraps after 18 minutes.
const STEP_BITS: u32 = 28;
const STEPS: u32 = 1 << (u32::BITS - NUMBER_BITS);
/// Number of steps after which a stream had a break of [`ip::BREAK`].
const BREAK: u32 = 8;

const _: () = assert!(ip::BREAK.as_nanos() < ((BREAK - 1) as u128) << STEP_BITS);

/// The step at `now`.
fn step(now: Time) -> u32 {
    (now.0 >> STEP_BITS) as u32 % STEPS
}

/// Next number of each stream to each host, with the step of its last packet in the bits above. 16
/// KiB for each host that packets went to.
///
/// Numbers survive circuits and sessions. A host that is removed and added again gets new random
/// numbers. They are most likely far from the numbers that the host remembers.
pub(crate) struct PacketNumbers {
    rng: Rng,
    next: IdTable<HostId, Box<[u32; ip::STREAMS]>>,
}

impl PacketNumbers {
    pub(crate) fn new(seed: [u8; 32]) -> PacketNumbers {
        PacketNumbers { rng: Rng::new(seed), next: IdTable::default() }
    }

    /// Takes the next number of a host's stream. Also returns true if the stream had a break.
    pub(crate) fn take(&mut self, now: Time, host: HostId, stream: u16) -> (u32, bool) {
        if self.next.get(host).is_none() {
            let never = step(now).wrapping_sub(BREAK) % STEPS * ip::NUMBERS;
            let first = core::array::from_fn(|_| self.rng.u32() % ip::NUMBERS + never);
            self.next.put(host, Box::new(first));
        }
        let next = self.next.get_mut(host).expect("the entry exists or was just inserted");
        let next = &mut next[usize::from(stream)];
        let (number, last) = (*next % ip::NUMBERS, *next / ip::NUMBERS);
        let is_first = step(now).wrapping_sub(last) % STEPS >= BREAK;
        *next = (number + 1) % ip::NUMBERS + step(now) * ip::NUMBERS;
        (number, is_first)
    }

    pub(crate) fn forget(&mut self, host: HostId) {
        self.next.remove(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_on_and_those_after_a_break_are_first() {
        let mut numbers = PacketNumbers::new([1; 32]);
        let host = HostId::from_bits(3);
        let mut take = |ms, stream| numbers.take(Time::from_millis(ms), host, stream);
        let (first, is_first) = take(5_000, 7);
        assert!(is_first);
        let after = |count: u32| (first + count) % ip::NUMBERS;
        assert_eq!(take(5_000, 7), (after(1), false));
        assert_eq!(take(6_799, 7), (after(2), false));
        assert_eq!(take(9_000, 7), (after(3), true));
        assert!(take(9_000, 8).1, "another stream");
        assert_eq!(take(9_100, 7), (after(4), false));
        for more in 0..ip::NUMBERS {
            assert_eq!(take(9_100, 7).0, after(5 + more));
        }
    }
}
