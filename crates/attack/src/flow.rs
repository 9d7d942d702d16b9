//! What programs send: the times at which cells of one flow are ready at their host.

use core::fmt;

use serde::Serialize;

use crate::random::Draws;

/// Cells of one direction of a flow; a program that wants more sends no more.
pub const FLOW_CELLS_MAX: usize = 1_000_000;
/// Most cells of one answer.
const ANSWER_MAX: f64 = 400.0;
/// What a program that loads something takes at most, in cells a second.
const LOAD_PER_S: f64 = 140.0;
/// How fast a server sends an answer, in cells a second.
const ANSWER_PER_S: f64 = 300.0;

/// What the programs behind a network's hosts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Traffic {
    /// Cells at random times in both directions, all flows at the same mean rate: what an attacker
    /// has least to hold on to.
    Poisson,
    /// Pages: requests, answers of differing length, times to read.
    Web,
    /// Uploads by TCP that never end: windows that grow and are halved.
    Bulk,
    /// One file, by TCP, which begins and ends while it is watched.
    Wget,
    /// Keys with their echoes, pauses, and output of commands.
    Ssh,
    /// A part of a film every two seconds.
    Video,
    /// Each flow is one of the others.
    Mixed,
}

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Traffic::Poisson => "Poisson",
            Traffic::Web => "web",
            Traffic::Bulk => "upload",
            Traffic::Wget => "wget",
            Traffic::Ssh => "ssh",
            Traffic::Video => "video",
            Traffic::Mixed => "all programs",
        })
    }
}

/// What two hosts say to each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Whether most goes from the host that was called to its caller.
    pub down: bool,
    /// Times of the cells of that direction, in nanoseconds.
    pub data: Vec<u64>,
    /// Those of the other one, but for acknowledgements.
    pub other: Vec<u64>,
    /// So many cells of data are acknowledged together; none are if it is 0.
    pub acks_every: usize,
}

/// One flow while it is drawn.
struct Writer<'a> {
    draws: &'a mut Draws,
    until_s: f64,
    /// From host to host and back, in seconds.
    rtt_s: f64,
}

impl Traffic {
    /// Those that are one program.
    pub const SINGLE: [Traffic; 6] = [
        Traffic::Poisson,
        Traffic::Web,
        Traffic::Bulk,
        Traffic::Wget,
        Traffic::Ssh,
        Traffic::Video,
    ];

    /// A flow of this kind, over a path with this round trip.
    pub fn plan(self, until_s: f64, rtt_s: f64, draws: &mut Draws) -> Plan {
        let mut kind = self;
        if self == Traffic::Mixed {
            kind = Traffic::SINGLE[draws.below(Traffic::SINGLE.len())];
        }
        let mut writer = Writer { draws, until_s, rtt_s };
        let down = !matches!(kind, Traffic::Poisson | Traffic::Bulk);
        let (data, other) = match kind {
            Traffic::Web => writer.web(),
            Traffic::Bulk => (writer.load(0.0, usize::MAX), Vec::new()),
            Traffic::Wget => writer.wget(),
            Traffic::Ssh => writer.ssh(),
            Traffic::Video => writer.video(),
            Traffic::Poisson | Traffic::Mixed => (writer.poisson(50.0), writer.poisson(50.0)),
        };
        // An echo is its key's acknowledgement.
        let acks_every = if matches!(kind, Traffic::Poisson | Traffic::Ssh) { 0 } else { 2 };
        Plan { down, data, other, acks_every }
    }
}

impl Writer<'_> {
    fn poisson(&mut self, per_s: f64) -> Vec<u64> {
        let mut times = Vec::new();
        let mut at = self.draws.exponential(1.0 / per_s);
        while at < self.until_s && times.len() < FLOW_CELLS_MAX {
            times.push(ns(at));
            at += self.draws.exponential(1.0 / per_s);
        }
        times
    }

    /// Cells in a row from `at` on, `gap_s` apart with a fifth of that as noise; says when the
    /// last one is over.
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

    /// Data of TCP from `at` on: a window for each round trip, spread over it by acknowledgements;
    /// it doubles, then grows by one, and is halved at losses.
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

    fn plan(traffic: Traffic, seed: u64) -> Plan {
        traffic.plan(60.0, 0.05, &mut Draws::new(seed, "flow", 0))
    }

    #[test]
    fn each_kind_sends_in_order_and_at_a_rate_that_a_tier_carries() {
        for traffic in Traffic::SINGLE {
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
        for traffic in Traffic::SINGLE.into_iter().chain([Traffic::Mixed]) {
            assert_eq!(plan(traffic, 3).data, plan(traffic, 3).data);
            assert_ne!(plan(traffic, 3).data, plan(traffic, 4).data);
        }
    }

    #[test]
    fn a_file_ends_while_it_is_watched_and_an_upload_does_not() {
        let file = plan(Traffic::Wget, 1).data;
        assert!(file[file.len() - 1] < 58_000_000_000, "{:?}", file.last());
        let upload = plan(Traffic::Bulk, 1).data;
        assert!(upload[upload.len() - 1] > 59_000_000_000);
    }
}
