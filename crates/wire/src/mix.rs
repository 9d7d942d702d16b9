//! What a relay does with the cells of a circuit before they leave, as it travels in lists and in
//! the set-up of circuits (docs/wire.md section 12).

use core::fmt;
use core::time::Duration;

use crate::{ParseError, Reader};

/// A time that mixes use: a multiple of 100 us, at most one second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MixTime(u16);

impl MixTime {
    /// The longest: no mix keeps a cell longer.
    pub const MAX: MixTime = MixTime(10_000);

    /// A time of so many units of 100 us; None above [`MixTime::MAX`].
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

/// How long cells of a circuit wait at a relay (Fu et al., "TCP performance in flow-based mix
/// networks", section 2: strategies S0, S1, S2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// Not at all: a simple proxy.
    #[default]
    Pass,
    /// Each time this time is over, all that came leaves in an order that is drawn at random.
    Timed {
        /// Between two departures; not zero.
        every: MixTime,
    },
    /// Each cell waits for an exponential time of its own; one above `most` is drawn again.
    StopAndGo {
        /// The mean before times above `most` are drawn again; not zero.
        mean: MixTime,
        /// The longest; not below the mean.
        most: MixTime,
    },
}

impl Strategy {
    /// Length in bytes.
    pub const LEN: usize = 5;

    /// Whether cells wait.
    pub const fn holds(self) -> bool {
        !matches!(self, Strategy::Pass)
    }

    /// The longest time that a cell waits.
    pub const fn most(self) -> MixTime {
        match self {
            Strategy::Pass => MixTime(0),
            Strategy::Timed { every } => every,
            Strategy::StopAndGo { most, .. } => most,
        }
    }

    /// Whether its times are possible ones.
    pub fn is_valid(self) -> bool {
        match self {
            Strategy::Pass => true,
            Strategy::Timed { every } => every.0 > 0,
            Strategy::StopAndGo { mean, most } => mean.0 > 0 && mean <= most,
        }
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Strategy::Pass => f.write_str("none"),
            Strategy::Timed { every } => write!(f, "timed {every}"),
            Strategy::StopAndGo { mean, most } => {
                write!(f, "stop-and-go {mean}, at most {most}")
            }
        }
    }
}

/// What the origin of a circuit says about delays to a new hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixing {
    /// To a relay: what it shall do with the circuit's cells.
    Relay(Strategy),
    /// To the destination: what the relays before it add.
    Path {
        /// In the mean, one way.
        mean: MixTime,
        /// How long a packet is waited for that others overtook.
        hold: MixTime,
    },
}

impl Default for Mixing {
    fn default() -> Mixing {
        Mixing::Relay(Strategy::Pass)
    }
}

impl Mixing {
    /// Length in bytes: kind, and two times.
    pub const LEN: usize = Strategy::LEN;

    /// Reads one.
    ///
    /// # Errors
    ///
    /// An unknown kind, times that are not possible, or one that must be zero and is not.
    pub fn read(reader: &mut Reader<'_>) -> Result<Mixing, ParseError> {
        let invalid = ParseError::Invalid { what: "mixing" };
        let kind = reader.u8("mixing")?;
        let mut time = || MixTime::from_units(reader.u16("mix time")?).ok_or(invalid);
        let (first, second) = (time()?, time()?);
        let none = MixTime::default();
        let mixing = match (kind, first, second) {
            (0, first, second) if (first, second) == (none, none) => Mixing::default(),
            (1, every, second) if second == none => Mixing::Relay(Strategy::Timed { every }),
            (2, mean, most) => Mixing::Relay(Strategy::StopAndGo { mean, most }),
            (3, mean, hold) => Mixing::Path { mean, hold },
            _ => return Err(invalid),
        };
        match mixing {
            Mixing::Relay(strategy) if !strategy.is_valid() => Err(invalid),
            mixing => Ok(mixing),
        }
    }

    /// Writes it.
    pub fn to_bytes(self) -> [u8; Mixing::LEN] {
        let (kind, first, second) = match self {
            Mixing::Relay(Strategy::Pass) => (0, MixTime(0), MixTime(0)),
            Mixing::Relay(Strategy::Timed { every }) => (1, every, MixTime(0)),
            Mixing::Relay(Strategy::StopAndGo { mean, most }) => (2, mean, most),
            Mixing::Path { mean, hold } => (3, mean, hold),
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
        let stop = Strategy::StopAndGo { mean: ms(5), most: ms(25) };
        let all = [
            (Mixing::default(), [0, 0, 0, 0, 0]),
            (Mixing::Relay(Strategy::Timed { every: ms(10) }), [1, 0, 100, 0, 0]),
            (Mixing::Relay(stop), [2, 0, 50, 0, 250]),
            (Mixing::Path { mean: ms(15), hold: ms(300) }, [3, 0, 150, 0x0b, 0xb8]),
        ];
        for (mixing, bytes) in all {
            assert_eq!(mixing.to_bytes(), bytes);
            assert_eq!(Mixing::read(&mut Reader::new(&bytes)), Ok(mixing));
        }
        let bad =
            [[0, 0, 1, 0, 0], [1, 0, 0, 0, 0], [1, 0, 9, 0, 9], [2, 0, 9, 0, 8], [3, 40, 0, 0, 0]];
        for bytes in bad.into_iter().chain([[4, 0, 0, 0, 0], [2, 0, 0, 0, 5], [255; 5]]) {
            assert!(Mixing::read(&mut Reader::new(&bytes)).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn times_are_rounded_up_and_bounded() {
        assert_eq!(MixTime::from_duration(Duration::from_micros(101)).unwrap().units(), 2);
        assert_eq!(MixTime::from_duration(Duration::from_millis(1_001)), None);
        assert_eq!(MixTime::from_duration(Duration::from_secs(1)), Some(MixTime::MAX));
        assert_eq!([ms(5).to_string(), MixTime(25).to_string()], ["5 ms", "2.5 ms"]);
        let stop = Strategy::StopAndGo { mean: ms(5), most: ms(25) };
        assert_eq!(stop.to_string(), "stop-and-go 5 ms, at most 25 ms");
    }
}
