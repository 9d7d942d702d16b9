//! Simulated application traffic: the times at which a host has cells to send.

use core::fmt;

use serde::Serialize;

use crate::random::Draws;

/// Maximum number of cells in one direction of a flow. Further cells are not sent.
pub const FLOW_CELLS_MAX: usize = 1_000_000;
/// Maximum number of cells in one answer.
const ANSWER_MAX: f64 = 400.0;
/// Highest rate of a download or upload, in cells per second.
const LOAD_PER_S: f64 = 140.0;
/// Rate at which a server sends an answer, in cells per second.
const ANSWER_PER_S: f64 = 300.0;

/// Kinds of programs behind a network's hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProgramKind {
    /// Cells at random times in both directions, at equal mean rates in all flows: the hardest case
    /// for an attacker.
    Poisson,
    /// Web pages: requests, answers of differing length, times to read.
    Web,
    /// Endless uploads by TCP: windows that grow and are halved.
    Bulk,
    /// One file by TCP, which begins and ends within the watched time.
    Wget,
    /// Key presses with their echoes, pauses, and output of commands.
    Ssh,
    /// A segment of a film every two seconds.
    Video,
    /// One of the other kinds for each flow.
    Mixed,
}

impl fmt::Display for ProgramKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ProgramKind::Poisson => "Poisson",
            ProgramKind::Web => "web",
            ProgramKind::Bulk => "upload",
            ProgramKind::Wget => "wget",
            ProgramKind::Ssh => "ssh",
            ProgramKind::Video => "video",
            ProgramKind::Mixed => "all programs",
        })
    }
}

/// Traffic between two hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowTimes {
    /// True if most data goes from the called host to its caller.
    pub down: bool,
    /// Times of the cells in that direction, in nanoseconds.
    pub data: Vec<u64>,
    /// Times of the cells in the other direction, without acknowledgements.
    pub other: Vec<u64>,
    /// Number of data cells that one acknowledgement covers; 0 for none.
    pub acks_every: usize,
}

/// Generator of one random flow.
struct FlowGenerator<'a> {
    draws: &'a mut Draws,
    until_s: f64,
    /// Round trip between the hosts, in seconds.
    rtt_s: f64,
}

impl ProgramKind {
    /// All kinds except [`ProgramKind::Mixed`].
    pub const SINGLE: [ProgramKind; 6] = [
        ProgramKind::Poisson,
        ProgramKind::Web,
        ProgramKind::Bulk,
        ProgramKind::Wget,
        ProgramKind::Ssh,
        ProgramKind::Video,
    ];

    /// Draws a flow of this kind over a path with the round trip `rtt_s`.
    pub fn plan(self, until_s: f64, rtt_s: f64, draws: &mut Draws) -> FlowTimes {
        let mut kind = self;
        if self == ProgramKind::Mixed {
            kind = ProgramKind::SINGLE[draws.below(ProgramKind::SINGLE.len())];
        }
        let mut writer = FlowGenerator { draws, until_s, rtt_s };
        let down = !matches!(kind, ProgramKind::Poisson | ProgramKind::Bulk);
        let (data, other) = match kind {
            ProgramKind::Web => writer.web(),
            ProgramKind::Bulk => (writer.load(0.0, usize::MAX), Vec::new()),
            ProgramKind::Wget => writer.wget(),
            ProgramKind::Ssh => writer.ssh(),
            ProgramKind::Video => writer.video(),
            ProgramKind::Poisson | ProgramKind::Mixed => {
                (writer.poisson(50.0), writer.poisson(50.0))
            }
        };
        // An echo is also the acknowledgement of its key press.
        let acks_every =
            if matches!(kind, ProgramKind::Poisson | ProgramKind::Ssh) { 0 } else { 2 };
        FlowTimes { down, data, other, acks_every }
    }
}

impl FlowGenerator<'_> {
    fn poisson(&mut self, per_s: f64) -> Vec<u64> {
        let mut times = Vec::new();
        let mut at = self.draws.exponential(1.0 / per_s);
        while at < self.until_s && times.len() < FLOW_CELLS_MAX {
            times.push(ns(at));
            at += self.draws.exponential(1.0 / per_s);
        }
        times
    }

    /// Adds `cells` cells from `at` on, `gap_s` ±20 % apart. Returns the time after the last gap.
    fn train(&mut self, times: &mut Vec<u64>, mut at: f64, cells: usize, gap_s: f64) -> f64 {
        for _ in 0..cells {
            if at >= self.until_s || times.len() >= FLOW_CELLS_MAX {
                break;
            }
            times.push(ns(at));
            at += gap_s * self.draws.between(0.8, 1.2);
        }
        at
    }

    /// Data of TCP from `at` on. Each round trip sends one window, spread evenly by
    /// acknowledgements. The window doubles, then grows by one, and is halved at losses.
    fn load(&mut self, mut at: f64, cells: usize) -> Vec<u64> {
        let most = (LOAD_PER_S * self.rtt_s).max(4.0);
        let (mut window, mut threshold) = (2.0, most);
        let mut times = Vec::new();
        while at < self.until_s && times.len() < cells.min(FLOW_CELLS_MAX) {
            let now = (window as usize).min(cells - times.len());
            at = self.train(&mut times, at, now, self.rtt_s / window);
            let lost = window >= most || window > 0.7 * most && self.draws.chance(0.1);
            if lost {
                window = (window / 2.0).max(2.0);
                threshold = window;
            } else if window < threshold {
                window = (window * 2.0).min(threshold);
            } else {
                window += 1.0;
            }
        }
        times
    }

    fn wget(&mut self) -> (Vec<u64>, Vec<u64>) {
        let at = self.until_s * self.draws.between(0.0, 0.3);
        let cells = self.until_s * self.draws.between(0.2, 0.6) * LOAD_PER_S;
        let data = self.load(at + self.rtt_s / 2.0, cells as usize + 1);
        (data, vec![ns(at)])
    }

    fn web(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut data, mut requests) = (Vec::new(), Vec::new());
        let mut at = self.draws.exponential(1.0);
        while at < self.until_s {
            for _ in 0..=self.draws.below(6) {
                let asked = 1 + self.draws.below(2);
                at = self.train(&mut requests, at, asked, 0.002);
                let cells = self.draws.lognormal(10.0, 2.5).clamp(1.0, ANSWER_MAX);
                let think = self.draws.exponential(0.02);
                let first = at + self.rtt_s / 2.0 + think;
                let end = self.train(&mut data, first, cells as usize, 1.0 / ANSWER_PER_S);
                at = end + self.rtt_s / 2.0;
            }
            at += self.draws.exponential(2.0);
        }
        (data, requests)
    }

    fn ssh(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut data, mut keys) = (Vec::new(), Vec::new());
        let mut at = self.draws.exponential(0.5);
        while at < self.until_s {
            for _ in 0..5 + self.draws.below(20) {
                at = self.train(&mut keys, at, 1, 0.001);
                self.train(&mut data, at + self.rtt_s / 2.0, 1, 0.001);
                at += self.draws.lognormal(0.12, 1.6);
            }
            let output = 1 + self.draws.below(30);
            let first = at + self.rtt_s / 2.0;
            at = self.train(&mut data, first, output, 1.0 / ANSWER_PER_S);
            at += self.draws.exponential(1.5);
        }
        data.sort_unstable();
        (data, keys)
    }

    fn video(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut data, mut requests) = (Vec::new(), Vec::new());
        let mut next = self.draws.between(0.0, 2.0);
        while next < self.until_s {
            self.train(&mut requests, next, 1, 0.001);
            let cells = self.draws.lognormal(130.0, 1.25).clamp(10.0, ANSWER_MAX) as usize;
            let end = self.train(&mut data, next + self.rtt_s / 2.0, cells, 1.0 / ANSWER_PER_S);
            next = (next + 2.0 + self.draws.between(-0.02, 0.02)).max(end);
        }
        (data, requests)
    }
}

fn ns(at_s: f64) -> u64 {
    (at_s * 1e9) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(traffic: ProgramKind, seed: u64) -> FlowTimes {
        traffic.plan(60.0, 0.05, &mut Draws::new(seed, "flow", 0))
    }

    #[test]
    fn each_kind_sends_in_order_and_at_a_rate_that_a_cover_tier_carries() {
        for traffic in ProgramKind::SINGLE {
            for seed in 0..20 {
                let plan = plan(traffic, seed);
                assert!(plan.data.is_sorted(), "{traffic:?}");
                let rate = plan.data.len() as f64 / 60.0;
                assert!((1.0..160.0).contains(&rate), "{traffic:?} {rate}");
                assert!(plan.data.iter().all(|&at| at < 60_000_000_000));
                assert!(plan.other.is_sorted());
            }
        }
    }

    #[test]
    fn a_flow_follows_from_its_seed() {
        for traffic in ProgramKind::SINGLE.into_iter().chain([ProgramKind::Mixed]) {
            assert_eq!(plan(traffic, 3).data, plan(traffic, 3).data);
            assert_ne!(plan(traffic, 3).data, plan(traffic, 4).data);
        }
    }

    #[test]
    fn a_file_ends_while_it_is_watched_and_an_upload_does_not() {
        let file = plan(ProgramKind::Wget, 1).data;
        assert!(file[file.len() - 1] < 58_000_000_000, "{:?}", file.last());
        let upload = plan(ProgramKind::Bulk, 1).data;
        assert!(upload[upload.len() - 1] > 59_000_000_000);
    }
}
