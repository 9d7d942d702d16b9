//! Mix strategies of relays, as lists and the set-up of circuits carry them
//! (docs/design/wire/circuits.md).

use core::fmt;
use core::time::Duration;

use crate::{ParseError, Reader};

/// A time of a mix: a multiple of 100 us, at most one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MixTime(u16);

impl MixTime {
    /// The longest time for which a mix holds a cell.
    pub const MAX: MixTime = MixTime(10_000);

    /// A time of `units` times 100 us; None above [`MixTime::MAX`].
    pub const fn from_units(units: u16) -> Option<MixTime> {
        if units > Self::MAX.0 { None } else { Some(MixTime(units)) }
    }

    /// The time in units of 100 us.
    pub const fn units(self) -> u16 {
        self.0
    }

    /// A duration, rounded up to 100 us; None above [`MixTime::MAX`].
    pub fn from_duration(duration: Duration) -> Option<MixTime> {
        let units = duration.as_nanos().div_ceil(100_000);
        u16::try_from(units).ok().and_then(MixTime::from_units)
    }

    /// As a duration.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(self.0 as u64 * 100)
    }
}

impl fmt::Display for MixTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (ms, 0) => write!(f, "{ms} ms"),
            (ms, tenth) => write!(f, "{ms}.{tenth} ms"),
        }
    }
}

/// Strategy of a relay for the cells of a circuit: how long they wait. Source: Fu et al., "TCP
/// performance in flow-based mix networks", section 2, strategies S0, S1, S2.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MixStrategy {
    /// No wait: the relay is a simple proxy.
    #[default]
    Pass,
    /// Timed mix: after each interval, all cells that have come leave in random order.
    Timed {
        /// Interval; not zero.
        every: MixTime,
    },
    /// Stop-and-go mix: each cell waits for an exponential time of its own. A time above `most` is
    /// drawn again.
    StopAndGo {
        /// Mean before times above `most` are drawn again; not zero.
        mean: MixTime,
        /// Longest wait; at least `mean`.
        most: MixTime,
    },
}

impl MixStrategy {
    /// Length in bytes.
    pub const LEN: usize = 5;

    /// True if cells wait.
    pub const fn holds(self) -> bool {
        !matches!(self, MixStrategy::Pass)
    }

    /// Longest wait of a cell.
    pub const fn most(self) -> MixTime {
        match self {
            MixStrategy::Pass => MixTime(0),
            MixStrategy::Timed { every } => every,
            MixStrategy::StopAndGo { most, .. } => most,
        }
    }

    /// True if its times are within their limits.
    pub fn is_valid(self) -> bool {
        match self {
            MixStrategy::Pass => true,
            MixStrategy::Timed { every } => every.0 > 0,
            MixStrategy::StopAndGo { mean, most } => mean.0 > 0 && mean <= most,
        }
    }
}

impl fmt::Display for MixStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MixStrategy::Pass => f.write_str("none"),
            MixStrategy::Timed { every } => write!(f, "timed {every}"),
            MixStrategy::StopAndGo { mean, most } => {
                write!(f, "stop-and-go {mean}, at most {most}")
            }
        }
    }
}

/// Delays that a circuit's origin sets for, or tells to, a new hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HopDelay {
    /// For a relay: its strategy for the circuit's cells.
    Relay(MixStrategy),
    /// For the destination: the delay that the relays add.
    Path {
        /// Mean delay in one direction.
        mean: MixTime,
        /// Longest wait for a packet that others overtook.
        hold: MixTime,
    },
}

impl Default for HopDelay {
    fn default() -> HopDelay {
        HopDelay::Relay(MixStrategy::Pass)
    }
}

impl HopDelay {
    /// Length in bytes: kind, and two times.
    pub const LEN: usize = MixStrategy::LEN;

    /// Reads the wire form.
    ///
    /// # Errors
    ///
    /// An unknown kind, an impossible time, or a non-zero value in a reserved field.
    pub fn read(reader: &mut Reader<'_>) -> Result<HopDelay, ParseError> {
        let invalid = ParseError::Invalid { what: "mixing" };
        let kind = reader.u8("mixing")?;
        let mut time = || MixTime::from_units(reader.u16("mix time")?).ok_or(invalid);
        let (first, second) = (time()?, time()?);
        let none = MixTime::default();
        let mixing = match (kind, first, second) {
            (0, first, second) if (first, second) == (none, none) => HopDelay::default(),
            (1, every, second) if second == none => HopDelay::Relay(MixStrategy::Timed { every }),
            (2, mean, most) => HopDelay::Relay(MixStrategy::StopAndGo { mean, most }),
            (3, mean, hold) => HopDelay::Path { mean, hold },
            _ => return Err(invalid),
        };
        match mixing {
            HopDelay::Relay(strategy) if !strategy.is_valid() => Err(invalid),
            mixing => Ok(mixing),
        }
    }

    pub fn to_bytes(self) -> [u8; HopDelay::LEN] {
        let (kind, first, second) = match self {
            HopDelay::Relay(MixStrategy::Pass) => (0, MixTime(0), MixTime(0)),
            HopDelay::Relay(MixStrategy::Timed { every }) => (1, every, MixTime(0)),
            HopDelay::Relay(MixStrategy::StopAndGo { mean, most }) => (2, mean, most),
            HopDelay::Path { mean, hold } => (3, mean, hold),
        };
        let ([a, b], [c, d]) = (first.0.to_be_bytes(), second.0.to_be_bytes());
        [kind, a, b, c, d]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> MixTime {
        MixTime::from_duration(Duration::from_millis(ms)).unwrap()
    }

    #[test]
    fn what_is_said_about_delays_is_read_as_it_was_written() {
        let stop = MixStrategy::StopAndGo { mean: ms(5), most: ms(25) };
        let all = [
            (HopDelay::default(), [0, 0, 0, 0, 0]),
            (HopDelay::Relay(MixStrategy::Timed { every: ms(10) }), [1, 0, 100, 0, 0]),
            (HopDelay::Relay(stop), [2, 0, 50, 0, 250]),
            (HopDelay::Path { mean: ms(15), hold: ms(300) }, [3, 0, 150, 0x0b, 0xb8]),
        ];
        for (mixing, bytes) in all {
            assert_eq!(mixing.to_bytes(), bytes);
            assert_eq!(HopDelay::read(&mut Reader::new(&bytes)), Ok(mixing));
        }
        let bad =
            [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 9, 0, 9], [2, 0, 9, 0, 8], [3, 40, 0, 0, 0]];
        for bytes in bad.into_iter().chain([[4, 0, 0, 0, 0], [2, 0, 0, 0, 5], [255; 5]]) {
            assert!(HopDelay::read(&mut Reader::new(&bytes)).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn times_are_rounded_up_and_bounded() {
        assert_eq!(MixTime::from_duration(Duration::from_micros(101)).unwrap().units(), 2);
        assert_eq!(MixTime::from_duration(Duration::from_millis(1_001)), None);
        assert_eq!(MixTime::from_duration(Duration::from_secs(1)), Some(MixTime::MAX));
        assert_eq!([ms(5).to_string(), MixTime(25).to_string()], ["5 ms", "2.5 ms"]);
        let stop = MixStrategy::StopAndGo { mean: ms(5), most: ms(25) };
        assert_eq!(stop.to_string(), "stop-and-go 5 ms, at most 25 ms");
    }
}
