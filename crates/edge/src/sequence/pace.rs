//! How long packets of a fast stream take, so that none takes far less.
//!
//! A packet that has others before it on the way takes longer in order than one alone: behind a mix
//! of 5 ms 25 ms at 17,000 packets a second, and 5 ms if the sender is slow for a moment. A TCP
//! that takes the least round trip of some seconds for the length of the path (BBR) is slow on
//! purpose every ten seconds, and sends too little for the rest of them. So a packet of a fast
//! stream is kept until it has taken five eighths of what the others took of late: BBR lets twice
//! the least round trip of data be on its way. Slow streams pay nothing.

use core::time::Duration;

use shoal_wire::Time;

/// What is known is weighed anew as often: what was before counts three quarters of what it did.
const TURN: Duration = Duration::from_secs(1);
/// A stream of so many packets, by these weights, is fast: 200 in each second for some of them.
const FAST: u64 = 800;

/// See the module's documentation. Nanoseconds, since each packet is measured.
#[derive(Default)]
pub(crate) struct Pace {
    next: Time,
    /// Packets and how long they took together, by weight.
    packets: u64,
    took: u64,
    least: u64,
}

impl Pace {
    /// When a packet may be delivered, which was sent then. Zero says that nobody knows.
    #[inline]
    pub(crate) fn due(&self, sent: Time) -> Time {
        if sent == Time::ZERO { sent } else { Time(sent.0.saturating_add(self.least)) }
    }

    /// Notes that a packet is delivered.
    #[inline]
    pub(crate) fn note(&mut self, now: Time, sent: Time) {
        if sent > Time::ZERO {
            self.packets += 1;
            self.took = self.took.saturating_add(now.0.saturating_sub(sent.0));
        }
    }

    /// Weighs what was noted, if it is time to. To be called before packets are noted.
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

    /// Lets all pass until packets are weighed anew, which is not before a turn is over: whoever
    /// gives up packet after packet must not have them kept again meanwhile.
    pub(crate) fn open(&mut self, now: Time) {
        (self.least, self.next) = (0, now + TURN);
    }
}
