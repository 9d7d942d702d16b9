//! What an active attacker does to the frames of an access link, so as to know them again.

use core::fmt;

use serde::Serialize;
use shoal_wire::SizeClass;

use crate::cover::Sent;
use crate::random::Draws;

const MS: u64 = 1_000_000;
/// A mark of the rate is made of pieces of this length.
const CHIP_NS: u64 = 250 * MS;
/// Of the frames in a slow piece, so many leave in the next fast one.
const MOVED: f64 = 0.6;
/// By so much the delay of RAINBOW-like marks changes from frame to frame.
const STEP_NS: u64 = 5 * MS;
/// The longest of those delays.
const STEPS_MAX: u64 = 8;
/// A gap in every second.
const GAP_NS: u64 = 200 * MS;
/// All frames of this time are dropped, once in every second.
const DROP_NS: u64 = 100 * MS;
const SECOND_NS: u64 = 1_000 * MS;

/// A kind of active attack. The attacker changes what the hosts of a flow send, on their access
/// links, and looks for the change behind the network. All frames are alike to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// A spread-spectrum mark: frames are kept back so that the rate follows a random code.
    Rate,
    /// Each frame is delayed by a little, as a secret walk says (RAINBOW).
    Rainbow,
    /// Nothing passes for 200 ms in each second, at a time that a secret names.
    Gaps,
    /// The frames of 100 ms in each second are dropped.
    Drops,
}

impl Mark {
    /// All of them.
    pub const ALL: [Mark; 4] = [Mark::Rate, Mark::Rainbow, Mark::Gaps, Mark::Drops];

    /// The secret that marks a link of a network whose frames are marked elsewhere.
    pub fn code(self, seconds: u32, seed: u64, link: u64) -> Code {
        Code::new(self, seconds, &mut Draws::new(seed, "mark", link))
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mark::Rate => "rate mark",
            Mark::Rainbow => "RAINBOW",
            Mark::Gaps => "gaps",
            Mark::Drops => "drops",
        })
    }
}

/// The mark of one line, and what applying it did there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Code {
    /// By pieces of 250 ms: whether the rate is high.
    chips: Vec<bool>,
    /// Beginnings of gaps or drops, and how long these are.
    holes: Vec<u64>,
    hole_ns: u64,
    /// Whether what falls into a hole leaves at its end.
    kept: bool,
    /// By full frame: when it came, and how long it was kept back.
    pub(crate) delayed: Vec<(u64, u64)>,
}

impl Code {
    /// The code of a mark, for so many seconds.
    pub(crate) fn new(mark: Mark, seconds: u32, draws: &mut Draws) -> Code {
        let mut code = Code::default();
        match mark {
            Mark::Rate => {
                let bits = u64::from(seconds) * SECOND_NS / (2 * CHIP_NS);
                // Each bit is high, low or low, high: frames never wait for more than two pieces.
                code.chips =
                    (0..bits).map(|_| draws.chance(0.5)).flat_map(|bit| [bit, !bit]).collect();
            }
            Mark::Gaps | Mark::Drops => {
                code.kept = mark == Mark::Gaps;
                code.hole_ns = if code.kept { GAP_NS } else { DROP_NS };
                let room = (SECOND_NS - 2 * code.hole_ns) as f64;
                let hole = |s: u64| s * SECOND_NS + draws.between(0.0, room) as u64;
                code.holes = (0..u64::from(seconds)).map(hole).collect();
            }
            Mark::Rainbow => {}
        }
        code
    }

    /// When gaps or drops begin and end, in nanoseconds after the beginning.
    pub fn holes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.holes.iter().map(|from| (*from, from + self.hole_ns))
    }

    /// When a frame that came at `at` left: none if it was dropped. Of gaps and drops.
    pub fn left(&self, at: u64) -> Option<u64> {
        match self.hole(at) {
            Some(hole) => self.kept.then_some(hole + self.hole_ns),
            None => Some(at),
        }
    }

    /// Changes the frames of a line, which stand in the order of their times.
    pub(crate) fn apply(&mut self, mark: Mark, frames: &mut Vec<Sent>, draws: &mut Draws) {
        match mark {
            Mark::Rate => {
                for frame in frames.iter_mut() {
                    frame.at = self.moved(frame.at, draws);
                }
            }
            Mark::Rainbow => {
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
            Mark::Gaps => {
                for frame in frames.iter_mut() {
                    frame.at = self.left(frame.at).unwrap_or(frame.at);
                }
            }
            Mark::Drops => frames.retain(|frame| self.left(frame.at).is_some()),
        }
        frames.sort_unstable();
    }

    /// When a frame leaves under a mark of the rate.
    fn moved(&self, at: u64, draws: &mut Draws) -> u64 {
        let chip = (at / CHIP_NS) as usize;
        if self.chips.get(chip) != Some(&false) || !draws.chance(MOVED) {
            return at;
        }
        let fast = self.chips[chip..].iter().position(|&fast| fast);
        let Some(fast) = fast else { return at };
        ((chip + fast) as u64 * CHIP_NS + (draws.uniform() * CHIP_NS as f64) as u64).max(at)
    }

    /// The hole in which a time lies.
    fn hole(&self, at: u64) -> Option<u64> {
        let hole = *self.holes.get((at / SECOND_NS) as usize)?;
        (hole..hole + self.hole_ns).contains(&at).then_some(hole)
    }

    /// How much of an even stream is left in each bin, in place of 1. Empty for marks that change
    /// no rate.
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
                // What was kept comes at once when the hole is over.
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
    use crate::cover::What;

    /// A frame every 10 ms for 20 s, marked.
    fn marked(mark: Mark) -> (Code, Vec<Sent>) {
        let mut draws = Draws::new(1, "mark", 0);
        let mut code = Code::new(mark, 20, &mut draws);
        let sent = |i: u64| Sent { at: i * 10 * MS, class: SizeClass::Full, what: What::Dummy };
        let mut frames = (0..2_000).map(sent).collect();
        code.apply(mark, &mut frames, &mut draws);
        (code, frames)
    }

    #[test]
    fn frames_are_moved_and_only_drops_lose_some() {
        for mark in Mark::ALL {
            let (_, frames) = marked(mark);
            assert!(frames.is_sorted());
            match mark {
                Mark::Drops => assert!((1_780..1_820).contains(&frames.len())),
                _ => assert_eq!(frames.len(), 2_000),
            }
        }
        let (code, _) = marked(Mark::Rainbow);
        assert!(code.delayed.iter().all(|&(_, kept)| kept <= STEPS_MAX * STEP_NS));
    }

    #[test]
    fn a_template_says_where_frames_are() {
        for mark in [Mark::Rate, Mark::Gaps, Mark::Drops] {
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
