//! Changes that an active attacker makes to the frames of an access link, to recognise them later.

use core::fmt;

use serde::Serialize;
use shoal_wire::SizeClass;

use crate::cover::LineFrame;
use crate::random::Draws;

const MS: u64 = 1_000_000;
/// A rate mark consists of pieces of this length.
const CHIP_NS: u64 = 250 * MS;
/// Share of the frames in a slow piece that leave in the next fast one.
const MOVED: f64 = 0.6;
/// Change of the delay from frame to frame under a RAINBOW mark.
const STEP_NS: u64 = 5 * MS;
/// Greatest delay of a RAINBOW mark, in steps.
const STEPS_MAX: u64 = 8;
/// Length of a gap; each second has one.
const GAP_NS: u64 = 200 * MS;
/// Time in which all frames are dropped, once in every second.
const DROP_NS: u64 = 100 * MS;
const SECOND_NS: u64 = 1_000 * MS;

/// Kind of active attack. The attacker changes the frames of a flow's hosts on their access links,
/// and looks for the change behind the network. All frames look alike to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MarkKind {
    /// Spread-spectrum mark: frames are delayed so that the rate follows a random code.
    Rate,
    /// Delays each frame a little, by a secret random walk (RAINBOW).
    Rainbow,
    /// Holds all frames for 200 ms in each second, at a secret time.
    Gaps,
    /// Drops all frames of 100 ms in each second, at a secret time.
    Drops,
}

impl MarkKind {
    pub const ALL: [MarkKind; 4] =
        [MarkKind::Rate, MarkKind::Rainbow, MarkKind::Gaps, MarkKind::Drops];

    /// Secret code of a mark for one link, for a caller that marks frames outside this crate.
    pub fn code(self, seconds: u32, seed: u64, link: u64) -> MarkCode {
        MarkCode::new(self, seconds, &mut Draws::new(seed, "mark", link))
    }
}

impl fmt::Display for MarkKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MarkKind::Rate => "rate mark",
            MarkKind::Rainbow => "RAINBOW",
            MarkKind::Gaps => "gaps",
            MarkKind::Drops => "drops",
        })
    }
}

/// The mark of one line, with a record of its effect.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MarkCode {
    /// True for each piece of 250 ms in which the rate is high.
    chips: Vec<bool>,
    /// Beginnings of gaps or drops.
    holes: Vec<u64>,
    hole_ns: u64,
    /// True if frames in a hole leave at its end; false if they are dropped.
    kept: bool,
    /// Time at which each full frame came, and its delay.
    pub(crate) delayed: Vec<(u64, u64)>,
}

impl MarkCode {
    /// Draws the code of a mark for so many seconds.
    pub(crate) fn new(mark: MarkKind, seconds: u32, draws: &mut Draws) -> MarkCode {
        let mut code = MarkCode::default();
        match mark {
            MarkKind::Rate => {
                let bits = u64::from(seconds) * SECOND_NS / (2 * CHIP_NS);
                // A bit is two pieces, either high and low or low and high. At most two low ones
                // thus follow each other, and no frame waits for longer.
                code.chips =
                    (0..bits).map(|_| draws.chance(0.5)).flat_map(|bit| [bit, !bit]).collect();
            }
            MarkKind::Gaps | MarkKind::Drops => {
                code.kept = mark == MarkKind::Gaps;
                code.hole_ns = if code.kept { GAP_NS } else { DROP_NS };
                let room = (SECOND_NS - 2 * code.hole_ns) as f64;
                let hole = |s: u64| s * SECOND_NS + draws.between(0.0, room) as u64;
                code.holes = (0..u64::from(seconds)).map(hole).collect();
            }
            MarkKind::Rainbow => {}
        }
        code
    }

    /// Beginnings and ends of gaps or drops, in nanoseconds after the start.
    pub fn holes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.holes.iter().map(|from| (*from, from + self.hole_ns))
    }

    /// Time at which a frame that came at `at` leaves under gaps or drops; none if it is dropped.
    pub fn left(&self, at: u64) -> Option<u64> {
        match self.hole(at) {
            Some(hole) => self.kept.then_some(hole + self.hole_ns),
            None => Some(at),
        }
    }

    /// Changes the frames of a line, which are sorted by time.
    pub(crate) fn apply(&mut self, mark: MarkKind, frames: &mut Vec<LineFrame>, draws: &mut Draws) {
        match mark {
            MarkKind::Rate => {
                for frame in frames.iter_mut() {
                    frame.at = self.moved(frame.at, draws);
                }
            }
            MarkKind::Rainbow => {
                let (mut steps, mut last) = (STEPS_MAX / 2, 0);
                for frame in frames.iter_mut() {
                    steps = if draws.chance(0.5) {
                        (steps + 1).min(STEPS_MAX)
                    } else {
                        steps.saturating_sub(1)
                    };
                    let came = frame.at;
                    frame.at = (came + steps * STEP_NS).max(last);
                    last = frame.at;
                    if frame.class == SizeClass::Full {
                        self.delayed.push((came, frame.at - came));
                    }
                }
            }
            MarkKind::Gaps => {
                for frame in frames.iter_mut() {
                    frame.at = self.left(frame.at).unwrap_or(frame.at);
                }
            }
            MarkKind::Drops => frames.retain(|frame| self.left(frame.at).is_some()),
        }
        frames.sort_unstable();
    }

    /// Time at which a frame leaves under a rate mark.
    fn moved(&self, at: u64, draws: &mut Draws) -> u64 {
        let chip = (at / CHIP_NS) as usize;
        if self.chips.get(chip) != Some(&false) || !draws.chance(MOVED) {
            return at;
        }
        let fast = self.chips[chip..].iter().position(|&fast| fast);
        let Some(fast) = fast else { return at };
        ((chip + fast) as u64 * CHIP_NS + (draws.uniform() * CHIP_NS as f64) as u64).max(at)
    }

    /// The hole that contains the time `at`.
    fn hole(&self, at: u64) -> Option<u64> {
        let hole = *self.holes.get((at / SECOND_NS) as usize)?;
        (hole..hole + self.hole_ns).contains(&at).then_some(hole)
    }

    /// Expected level of an even stream in each bin, relative to 1. Empty for marks that change no
    /// rate.
    pub(crate) fn template(&self, from: u64, bins: usize, bin_ns: u64) -> Vec<f32> {
        if self.chips.is_empty() && self.holes.is_empty() {
            return Vec::new();
        }
        let level = |bin: usize| {
            let at = from + bin as u64 * bin_ns + bin_ns / 2;
            match self.chips.get((at / CHIP_NS) as usize) {
                Some(true) => return 1.0 + MOVED as f32,
                Some(false) => return 1.0 - MOVED as f32,
                None => {}
            }
            let after = at.checked_sub(self.hole_ns).and_then(|before| self.hole(before));
            match (self.hole(at), after) {
                (Some(_), _) => 0.0,
                // Held frames leave all at once at the end of the hole.
                (None, Some(hole)) if self.kept && at < hole + self.hole_ns + bin_ns => {
                    1.0 + self.hole_ns as f32 / bin_ns as f32
                }
                _ => 1.0,
            }
        };
        (0..bins).map(level).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cover::FrameContent;

    /// A frame every 10 ms for 20 s, marked.
    fn marked(mark: MarkKind) -> (MarkCode, Vec<LineFrame>) {
        let mut draws = Draws::new(1, "mark", 0);
        let mut code = MarkCode::new(mark, 20, &mut draws);
        let sent = |i: u64| LineFrame {
            at: i * 10 * MS,
            class: SizeClass::Full,
            what: FrameContent::Dummy,
        };
        let mut frames = (0..2_000).map(sent).collect();
        code.apply(mark, &mut frames, &mut draws);
        (code, frames)
    }

    #[test]
    fn frames_are_moved_and_only_drops_lose_some() {
        for mark in MarkKind::ALL {
            let (_, frames) = marked(mark);
            assert!(frames.is_sorted());
            match mark {
                MarkKind::Drops => assert!((1_780..1_820).contains(&frames.len())),
                _ => assert_eq!(frames.len(), 2_000),
            }
        }
        let (code, _) = marked(MarkKind::Rainbow);
        assert!(code.delayed.iter().all(|&(_, kept)| kept <= STEPS_MAX * STEP_NS));
    }

    #[test]
    fn a_template_says_where_frames_are() {
        for mark in [MarkKind::Rate, MarkKind::Gaps, MarkKind::Drops] {
            let (code, frames) = marked(mark);
            let template = code.template(0, 400, 50 * MS);
            let mut counts = vec![0.0_f32; 440];
            frames.iter().for_each(|f| counts[(f.at / (50 * MS)) as usize] += 1.0);
            let product =
                |a: &[f32], b: &[f32]| -> f32 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
            let plain: f32 =
                counts[..400].iter().sum::<f32>() * template.iter().sum::<f32>() / 400.0;
            assert!(product(&counts, &template) > 1.05 * plain, "{mark:?}");
        }
    }
}
