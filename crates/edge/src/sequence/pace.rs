//! How long packets of a fast stream take, so that none takes far less.
//!
//! A packet that has others before it on the way takes longer in order than one alone: behind a mix
//! of 5 ms 25 ms at 17,000 packets a second, and 5 ms if the sender is slow for a moment. A TCP
//! that takes the least round trip of some seconds for the length of the path (BBR) is slow on
//! purpose every ten seconds, and sends too little for the rest of them. So a packet of a fast
//! stream is kept until it has taken three quarters of what the others took of late. Slow streams
//! pay nothing.

use core::time::Duration;

use shoal_wire::Time;

/// What is known is weighed anew as often: what was before counts three quarters of what it did.
const TURN: Duration = Duration::from_secs(1);
/// A stream of so many packets, by these weights, is fast: 200 in each second for some of them.
const FAST: u32 = 800;

/// See the module's documentation.
#[derive(Default)]
pub(crate) struct Pace {
    since: Time,
    /// Packets and how long they took together, by weight.
    packets: u32,
    took: Duration,
    least: Duration,
}

impl Pace {
    /// When a packet may be delivered, which was sent then. Zero says that nobody knows.
    #[inline]
    pub(crate) fn due(&self, sent: Time) -> Time {
        if sent == Time::ZERO { sent } else { sent + self.least }
    }

    /// Notes that a packet is delivered.
    #[inline]
    pub(crate) fn note(&mut self, now: Time, sent: Time) {
        if sent > Time::ZERO {
            self.packets = self.packets.saturating_add(1);
            self.took += now.since(sent);
        }
    }

    /// Weighs what was noted, if it is time to. To be called before packets are noted.
    #[inline]
    pub(crate) fn turn(&mut self, now: Time) {
        if now >= self.since + TURN {
            self.weigh(now);
        }
    }

    fn weigh(&mut self, now: Time) {
        let turns = now.since(self.since).as_secs();
        self.since = now;
        for _ in 0..turns.min(64) {
            self.packets = self.packets / 4 * 3;
            self.took = self.took / 4 * 3;
        }
        self.least = match self.packets {
            FAST.. => self.took / self.packets * 3 / 4,
            _ => Duration::ZERO,
        };
    }

    /// Lets all pass until packets are weighed anew.
    pub(crate) fn open(&mut self) {
        self.least = Duration::ZERO;
    }
}
