//! The pace of a fast stream: no packet is delivered much sooner than the others.
//!
//! Packets of a fast stream wait for those before them, so they take longer than a lone packet.
//! Behind a mix with a mean of 5 ms they take 25 ms at 17,000 packets a second. If the sender
//! pauses for a moment, the next one takes 5 ms. BBR takes the smallest round trip of some seconds
//! as the length of the path. Every ten seconds it slows down to measure it, sees the short delay,
//! and then sends too little. A packet of a fast stream is therefore held until it has taken five
//! eighths of the recent average. That is enough, since BBR allows twice the smallest round trip of
//! data in flight. Slow streams are not delayed.

use core::time::Duration;

use shoal_wire::Time;

/// Interval at which the average is recomputed. Each time, the weight of older packets falls to
/// three quarters.
const TURN: Duration = Duration::from_secs(1);
/// Weighted number of packets from which a stream counts as fast: 200 packets a second for some
/// seconds.
const FAST: u64 = 800;

/// Average delay of a stream's packets. Nanoseconds in integers, since each packet is measured.
#[derive(Default)]
pub(crate) struct StreamPace {
    next: Time,
    /// Weighted number of packets, and (`took`) the sum of their delays in nanoseconds.
    packets: u64,
    took: u64,
    least: u64,
}

impl StreamPace {
    /// Time from which a packet may be delivered. Zero, also for `sent`, means unknown.
    #[inline]
    pub(crate) fn due(&self, sent: Time) -> Time {
        if sent == Time::ZERO { sent } else { Time(sent.0.saturating_add(self.least)) }
    }

    #[inline]
    pub(crate) fn note(&mut self, now: Time, sent: Time) {
        if sent > Time::ZERO {
            self.packets += 1;
            self.took = self.took.saturating_add(now.0.saturating_sub(sent.0));
        }
    }

    /// Recomputes the average if it is due. Call this before packets are noted.
    #[inline]
    pub(crate) fn turn(&mut self, now: Time) {
        if now >= self.next {
            self.weigh(now);
        }
    }

    #[cold]
    fn weigh(&mut self, now: Time) {
        let turns = 1 + now.since(self.next).as_secs();
        self.next = now + TURN;
        for _ in 0..turns.min(64) {
            self.packets = self.packets / 4 * 3;
            self.took = self.took / 4 * 3;
        }
        self.least = match self.packets {
            FAST.. => self.took / self.packets / 8 * 5,
            _ => 0,
        };
    }

    /// Lets all packets pass for one turn. A stream that gives up packet after packet must not hold
    /// packets because of the pace meanwhile.
    pub(crate) fn open(&mut self, now: Time) {
        (self.least, self.next) = (0, now + TURN);
    }
}
