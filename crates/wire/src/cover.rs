//! Schedules by which frames leave a covered link, as lists name them (docs/design/cover.md).

use core::fmt;
use core::time::Duration;

use crate::SizeClass;

/// Spacing of the slots of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CoverKind {
    /// One slot in each gap, at a random time in the gap's first half.
    #[default]
    Constant,
    /// Gaps of a Poisson process (Piotrowska et al., "The Loopix Anonymity System", section 4.1).
    Poisson,
}

/// A schedule: full frames leave a link in each direction at this rate, whatever there is to send.
/// Frames leave in slots. A slot sends one or more frames at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoverTier {
    mbit: u16,
    kind: CoverKind,
}

impl CoverTier {
    /// The highest rate in Mbit/s. At a higher rate a slot would be as short as the lateness of
    /// timers.
    pub const MBIT_MAX: u16 = 100;

    /// A schedule that sends `mbit` Mbit/s of frames, UDP and IP headers not counted. None unless
    /// `mbit` is 1 to [`CoverTier::MBIT_MAX`].
    pub const fn new(mbit: u16, kind: CoverKind) -> Option<CoverTier> {
        if mbit == 0 || mbit > Self::MBIT_MAX { None } else { Some(CoverTier { mbit, kind }) }
    }

    /// Rate in Mbit/s.
    pub const fn mbit(self) -> u16 {
        self.mbit
    }

    /// Spacing of the slots.
    pub const fn kind(self) -> CoverKind {
        self.kind
    }

    /// Frames of one slot: 1 up to 9 Mbit/s, 2 from 10 on, 4 at 50. More frames per slot wake a
    /// node less often, and make each cell wait longer. The number grows with the square root of
    /// the rate, which balances both effects.
    pub const fn frames(self) -> usize {
        let frames = (self.mbit as usize * 2 / 5).isqrt();
        if frames == 0 { 1 } else { frames }
    }

    /// Mean time between two frames: 11.52 ms at 1 Mbit/s.
    pub const fn frame_gap(self) -> Duration {
        let bits = SizeClass::Full.frame_len() as u64 * 8;
        Duration::from_nanos(bits * 1_000 / self.mbit as u64)
    }

    /// Longest wait of a cell for its peer's turn when that peer sends little: 16 frames.
    pub const fn turn_wait(self) -> Duration {
        Duration::from_nanos(self.frame_gap().as_nanos() as u64 * 16)
    }

    /// Mean time between two slots: 2.3 ms at 10 Mbit/s, 0.92 ms at 50.
    pub const fn gap(self) -> Duration {
        Duration::from_nanos(self.frame_gap().as_nanos() as u64 * self.frames() as u64)
    }
}

impl fmt::Display for CoverTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            CoverKind::Constant => write!(f, "{} Mbit/s", self.mbit),
            CoverKind::Poisson => write!(f, "{} Mbit/s, Poisson", self.mbit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_has_a_rate_that_timers_keep() {
        let tier = |mbit| CoverTier::new(mbit, CoverKind::Constant);
        assert!(tier(0).is_none() && tier(101).is_none());
        assert_eq!(tier(1).unwrap().gap(), Duration::from_micros(11_520));
        assert_eq!(tier(10).unwrap().gap(), Duration::from_micros(2 * 1_152));
        assert_eq!(tier(100).unwrap().frame_gap(), Duration::from_nanos(115_200));
        let frames = [1, 2, 9, 10, 22, 50, 100].map(|mbit| tier(mbit).unwrap().frames());
        assert_eq!(frames, [1, 1, 1, 2, 2, 4, 6]);
        assert_eq!(tier(2).unwrap().to_string(), "2 Mbit/s");
    }
}
