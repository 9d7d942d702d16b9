//! One experiment: packets, line, mixes, sender.

use core::time::Duration;

use crate::law::{Law, Spread};

/// Most mixes on a way.
pub const MIXES_MAX: u32 = 16;
/// Largest duplicate threshold; exact windows take a time that grows with its square.
pub const DUPTHRESH_MAX: u32 = 1_024;
/// Longest run in simulated seconds.
pub const SECONDS_MAX: u32 = 1_000;
/// Most runs of one case.
pub const SEEDS_MAX: u32 = 100;
/// Fastest line: 10 Gbit/s.
const BANDWIDTH_MAX_BPS: u64 = 10_000_000_000;
/// Largest packet: what IP can carry.
const PACKET_MAX_BYTES: u32 = 65_535;
/// Longest delay of anything; the simulator's times stay far from overflow.
const DELAY_MAX: Duration = Duration::from_secs(100);
/// Lowest cap in means.
const CAP_MIN: f64 = 0.01;
/// Highest cap in means; above it a cap changes nothing that a double can show.
const CAP_MAX: f64 = 30.0;

/// Why a case can't be computed or run. The caller's arguments are at fault, and nothing was run
/// unless it says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// Packets of no bytes, or larger than IP's.
    #[error("a packet has 1 to {PACKET_MAX_BYTES} bytes")]
    Packet,
    /// No line, or one that is too fast.
    #[error("a line carries 1 to {BANDWIDTH_MAX_BPS} bits a second")]
    Bandwidth,
    /// A delay that is too long, or a timed mix without a period.
    #[error("delays are at most 100 s, and a timed mix has a period above 0")]
    Delay,
    /// A cap outside its bounds.
    #[error("a cap is {CAP_MIN} to {CAP_MAX} means")]
    Cap,
    /// Too many mixes.
    #[error("a way has at most {MIXES_MAX} mixes")]
    Mixes,
    /// No duplicate threshold, or one that is too large.
    #[error("a duplicate threshold is 1 to {DUPTHRESH_MAX}")]
    Dupthresh,
    /// No seconds or seeds, or too many.
    #[error("seconds are 1 to {SECONDS_MAX} and seeds 1 to {SEEDS_MAX}")]
    Runs,
    /// A window that is too large, or no trials or too many.
    #[error("a window has at most 10000 packets, and trials are 1 to 1000000")]
    Trials,
    /// The paper has no such figure, or this crate leaves it out.
    #[error("the figures are 4 to 15")]
    Figure,
    /// The run had more events than its bound, and was given up.
    #[error("the run had too many events")]
    Events,
}

/// One sender, one line, mixes in both directions, one receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Case {
    /// Bytes of each data packet, headers included.
    pub packet_bytes: u32,
    /// Rate of the line in bits a second.
    pub bandwidth_bps: u64,
    /// Round trip without mixes, queue and transmission.
    pub base_rtt: Duration,
    /// What each mix does, with data and with acknowledgements.
    pub law: Law,
    /// Mixes one after the other on each way.
    pub mixes: u32,
    /// Duplicate acknowledgements that make the sender retransmit.
    pub dupthresh: u32,
    /// Whether the threshold adapts to reordering, as RR-TCP's does; `dupthresh` is its least value
    /// then.
    pub adapts: bool,
    /// How long the resequencer in front of the receiver waits for a missing packet; none for no
    /// resequencer.
    pub hold: Option<Duration>,
}

impl Default for Case {
    fn default() -> Case {
        Case::paper()
    }
}

impl Case {
    /// The paper's experiment (its section V): 512 bytes, 10 Mbit/s, one stop-and-go mix of 5 ms,
    /// duplicate threshold 3. It does not state the round trip without a mix. 50 ms fits the 0.4 s
    /// in which its Figure 5 fills the line, and the window of 8.76 that it saw.
    pub fn paper() -> Case {
        Case {
            packet_bytes: 512,
            bandwidth_bps: 10_000_000,
            base_rtt: Duration::from_millis(50),
            law: Law::StopAndGo { mean: Duration::from_millis(5), cap: None },
            mixes: 1,
            dupthresh: 3,
            adapts: false,
            hold: None,
        }
    }

    /// Packets a second that the line carries.
    pub fn line_pps(&self) -> f64 {
        self.bandwidth_bps as f64 / (8.0 * f64::from(self.packet_bytes))
    }

    /// How long a data packet occupies the line.
    pub fn transmission(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.line_pps())
    }

    /// Mean and variance of the round trip, with an empty queue: the denominator of (14).
    pub fn round_trip(&self) -> Spread {
        let way = Spread::exactly(self.base_rtt + self.transmission());
        // A packet and its acknowledgement are delayed at each mix.
        way + self.law.delay().times(2 * self.mixes)
    }

    /// Whether packets can change places.
    pub fn mixed(&self) -> bool {
        self.mixes > 0 && self.law != Law::None
    }

    /// Checks the bounds of all fields.
    ///
    /// # Errors
    /// The first field that is out of its bounds.
    pub fn check(&self) -> Result<(), Wrong> {
        let all = [
            ((1..=PACKET_MAX_BYTES).contains(&self.packet_bytes), Wrong::Packet),
            ((1..=BANDWIDTH_MAX_BPS).contains(&self.bandwidth_bps), Wrong::Bandwidth),
            (self.base_rtt <= DELAY_MAX, Wrong::Delay),
            (self.hold.is_none_or(|hold| hold <= DELAY_MAX), Wrong::Delay),
            (self.mixes <= MIXES_MAX, Wrong::Mixes),
            ((1..=DUPTHRESH_MAX).contains(&self.dupthresh), Wrong::Dupthresh),
        ];
        if let Some((_, wrong)) = all.into_iter().find(|(holds, _)| !holds) {
            return Err(wrong);
        }
        match self.law {
            Law::Timed { period } if period.is_zero() || period > DELAY_MAX => Err(Wrong::Delay),
            Law::StopAndGo { mean, .. } if mean > DELAY_MAX => Err(Wrong::Delay),
            Law::StopAndGo { cap: Some(cap), .. } if !(CAP_MIN..=CAP_MAX).contains(&cap) => {
                Err(Wrong::Cap)
            }
            _ => Ok(()),
        }
    }
}
