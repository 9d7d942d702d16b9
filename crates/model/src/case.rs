//! Parameters of an experiment: packets, line, mixes, sender.

use core::time::Duration;

use crate::law::{BatchingStrategy, MeanAndVariance};

/// Largest number of mixes in each direction.
pub const MIXES_MAX: u32 = 16;
/// Largest duplicate threshold. The time to compute exact windows grows with its square.
pub const DUPTHRESH_MAX: u32 = 1_024;
/// Longest run in simulated seconds.
pub const SECONDS_MAX: u32 = 1_000;
/// Largest number of runs per case.
pub const SEEDS_MAX: u32 = 100;
/// Fastest line: 10 Gbit/s.
const BANDWIDTH_MAX_BPS: u64 = 10_000_000_000;
/// Largest packet in bytes, as in IP.
const PACKET_MAX_BYTES: u32 = 65_535;
/// Longest delay. It keeps the simulator's times far from overflow.
const DELAY_MAX: Duration = Duration::from_secs(100);
/// Smallest cap, as a multiple of the mean.
const CAP_MIN: f64 = 0.01;
/// Largest cap, as a multiple of the mean. A larger cap has no effect in double precision.
const CAP_MAX: f64 = 30.0;

/// Reason why a case can't be computed or run. The arguments are wrong and nothing was run, except
/// with [`ModelError::Events`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Packets of no bytes, or larger than IP's limit.
    #[error("a packet has 1 to {PACKET_MAX_BYTES} bytes")]
    Packet,
    /// A line without rate, or a rate that is too high.
    #[error("a line carries 1 to {BANDWIDTH_MAX_BPS} bits a second")]
    Bandwidth,
    /// A delay that is too long, or a timed mix without a period.
    #[error("delays are at most 100 s, and a timed mix has a period above 0")]
    Delay,
    #[error("a cap is {CAP_MIN} to {CAP_MAX} times the mean")]
    Cap,
    #[error("a direction has at most {MIXES_MAX} mixes")]
    Mixes,
    /// A duplicate threshold of 0, or one that is too large.
    #[error("a duplicate threshold is 1 to {DUPTHRESH_MAX}")]
    Dupthresh,
    /// Seconds or seeds outside their bounds.
    #[error("seconds are 1 to {SECONDS_MAX} and seeds 1 to {SEEDS_MAX}")]
    Runs,
    /// A window or a number of trials outside its bounds.
    #[error("a window has at most 10000 packets, and trials are 1 to 1000000")]
    Trials,
    /// The paper has no such figure, or this crate omits it.
    #[error("the figures are 4 to 15")]
    Figure,
    /// The run had more events than [`crate::reno::EVENTS_MAX`] and was stopped.
    #[error("the run had too many events")]
    Events,
}

/// One experiment: a sender, a line, mixes in both directions, a receiver.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TcpExperiment {
    /// Bytes per data packet, headers included.
    pub packet_bytes: u32,
    /// Rate of the line in bits per second.
    pub bandwidth_bps: u64,
    /// Round-trip time without mixes, queueing and transmission.
    pub base_rtt: Duration,
    /// Batching strategy of each mix, for data and acknowledgements.
    pub law: BatchingStrategy,
    /// Number of mixes in a row, in each direction.
    pub mixes: u32,
    /// Number of duplicate acknowledgements that trigger a retransmission.
    pub dupthresh: u32,
    /// True if the threshold adapts to reordering, as in RR-TCP. `dupthresh` is its minimum then.
    pub adapts: bool,
    /// Time for which the resequencer in front of the receiver waits for a missing packet. None:
    /// there is no resequencer.
    pub hold: Option<Duration>,
}

impl Default for TcpExperiment {
    fn default() -> TcpExperiment {
        TcpExperiment::paper()
    }
}

impl TcpExperiment {
    /// The paper's experiment (section V): 512 bytes, 10 Mbit/s, one stop-and-go mix of 5 ms,
    /// duplicate threshold 3. The paper does not state the round trip without a mix. 50 ms fits the
    /// 0.4 s after which the line is full in its Figure 5, and its simulated window of 8.76.
    pub fn paper() -> TcpExperiment {
        TcpExperiment {
            packet_bytes: 512,
            bandwidth_bps: 10_000_000,
            base_rtt: Duration::from_millis(50),
            law: BatchingStrategy::StopAndGo { mean: Duration::from_millis(5), cap: None },
            mixes: 1,
            dupthresh: 3,
            adapts: false,
            hold: None,
        }
    }

    /// Rate of the line in packets per second.
    pub fn line_pps(&self) -> f64 {
        self.bandwidth_bps as f64 / (8.0 * f64::from(self.packet_bytes))
    }

    /// Transmission time of a data packet on the line.
    pub fn transmission(&self) -> Duration {
        Duration::from_secs_f64(1.0 / self.line_pps())
    }

    /// Mean and variance of the round trip with an empty queue: the denominator of (14).
    pub fn round_trip(&self) -> MeanAndVariance {
        let way = MeanAndVariance::exactly(self.base_rtt + self.transmission());
        // Each mix delays a packet and its acknowledgement.
        way + self.law.delay().times(2 * self.mixes)
    }

    /// True if packets can be reordered.
    pub fn mixed(&self) -> bool {
        self.mixes > 0 && self.law != BatchingStrategy::None
    }

    /// Checks the bounds of all fields.
    ///
    /// # Errors
    /// The first field that is out of bounds.
    pub fn check(&self) -> Result<(), ModelError> {
        let all = [
            ((1..=PACKET_MAX_BYTES).contains(&self.packet_bytes), ModelError::Packet),
            ((1..=BANDWIDTH_MAX_BPS).contains(&self.bandwidth_bps), ModelError::Bandwidth),
            (self.base_rtt <= DELAY_MAX, ModelError::Delay),
            (self.hold.is_none_or(|hold| hold <= DELAY_MAX), ModelError::Delay),
            (self.mixes <= MIXES_MAX, ModelError::Mixes),
            ((1..=DUPTHRESH_MAX).contains(&self.dupthresh), ModelError::Dupthresh),
        ];
        if let Some((_, wrong)) = all.into_iter().find(|(holds, _)| !holds) {
            return Err(wrong);
        }
        match self.law {
            BatchingStrategy::Timed { period } if period.is_zero() || period > DELAY_MAX => {
                Err(ModelError::Delay)
            }
            BatchingStrategy::StopAndGo { mean, .. } if mean > DELAY_MAX => Err(ModelError::Delay),
            BatchingStrategy::StopAndGo { cap: Some(cap), .. }
                if !(CAP_MIN..=CAP_MAX).contains(&cap) =>
            {
                Err(ModelError::Cap)
            }
            _ => Ok(()),
        }
    }
}
