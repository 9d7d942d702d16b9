//! The experiments that come with the attacker, and what must hold of them.

use core::fmt;
use core::time::Duration;

use serde::Serialize;
use shoal_wire::{MixTime, Strategy};

use crate::cover::{Cover, Leak};
use crate::experiment::{Outcome, Setup};
use crate::flow::Traffic;
use crate::mark::Mark;
use crate::network::Scene;
use crate::path::Line;
use crate::score::View;

/// The tier of the experiments: 2 Mbit/s of full frames.
const TIER_PER_S: f64 = 174.0;
/// Frames beside the cells of a flow that sends 50 a second in each direction: as many, and four
/// times as many.
const DUMMIES_PER_S: [f64; 2] = [50.0, 200.0];
/// How long the attacker watches: without cover, and with it.
const WATCHED_S: u32 = 10;
const WATCHED_COVER_S: u32 = 60;
/// Pairs that show within 0.02 that an attacker only guesses.
const PAIRS_MIN: u64 = 1_000;
/// Training networks and networks that are measured never share a seed.
const FIRST_SEED: u64 = 1_000;
/// Means of stop-and-go mixes in the sweep over latency, in milliseconds; three relays.
const MEANS_MS: [u64; 7] = [2, 5, 10, 20, 50, 100, 200];
const MIXES: u32 = 3;
/// How long it is watched in the sweep over time, in seconds.
const TIMES_S: [u32; 7] = [1, 2, 5, 10, 20, 40, 60];

/// A group of cases.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// Relays that pass cells on at once.
    None,
    /// Timed mixes of 5 ms.
    Timed,
    /// Stop-and-go mixes of 5 ms.
    StopAndGo,
    /// Constant rate on all access links.
    Cover,
    /// An attacker who marks flows.
    Active,
    /// Members who ask covered hosts for answers.
    Members,
    /// Success over added latency.
    Latency,
    /// Success over the time watched.
    Time,
    /// Recorded links; has no cases of its own.
    Capture,
}

/// How large the networks are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Pairs of hosts in networks on which something must hold.
    pub flows: usize,
    /// Such networks.
    pub seeds: u64,
    /// Pairs of hosts in the others.
    pub small_flows: usize,
    /// Such networks.
    pub small_seeds: u64,
    /// Networks on which attacks learn and are chosen.
    pub training: u64,
}

impl Size {
    /// 1,000 pairs over ten seeds.
    pub const FULL: Size =
        Size { flows: 100, seeds: 10, small_flows: 40, small_seeds: 5, training: 6 };
    /// For a first look.
    pub const QUICK: Size =
        Size { flows: 20, seeds: 3, small_flows: 12, small_seeds: 2, training: 4 };
}

/// One experiment of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// What it is, in a few words.
    pub name: String,
    /// The curve that it is a point of.
    pub series: Option<String>,
    /// What is run.
    pub setup: Setup,
    /// What must hold of it.
    pub musts: Vec<Must>,
}

/// A condition on an outcome.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Must {
    /// The attacker is strong: the lower end of the area under the curve.
    AucLowAtLeast(f64),
    /// The attacker guesses: the upper end of it.
    AucHighAtMost(f64),
    /// The right link stands first so much more often than by chance, at most.
    FirstAboveGuess(f64),
    /// As many true pairs as wrong ones pass the threshold that one wrong pair in 100 passes.
    NoneAtOneIn100,
    /// With shuffled labels the interval holds 0.5.
    ShuffledIsHalf,
}

/// A condition, and whether it held.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// The condition.
    pub rule: String,
    /// The figure found.
    pub found: String,
    /// Whether it holds.
    pub holds: bool,
}

impl Must {
    /// Compares it with an outcome.
    pub fn check(self, outcome: &Outcome) -> Checked {
        let rates = &outcome.rates;
        let (auc, shuffled) = (rates.auc, outcome.shuffled);
        let within = |of: crate::Interval, value: f64| of.low <= value && value <= of.high;
        let interval = |of: crate::Interval| format!("{:.3} to {:.3}", of.low, of.high);
        let (rule, found, holds) = match self {
            Must::AucLowAtLeast(least) => (
                format!("area under the curve, lower 95% end at least {least}"),
                interval(auc),
                auc.low >= least,
            ),
            Must::AucHighAtMost(most) => (
                format!("area under the curve, upper 95% end at most {most}"),
                interval(auc),
                auc.high <= most,
            ),
            Must::FirstAboveGuess(more) => (
                format!("top-1 at most {:.3}, {more} above a guess", rates.guess + more),
                format!("{:.3}", rates.top1.value),
                rates.top1.value <= rates.guess + more,
            ),
            Must::NoneAtOneIn100 => (
                "true pairs found at one wrong in 100: 0.01 within the interval".into(),
                interval(rates.at_1_in_100),
                within(rates.at_1_in_100, 0.01),
            ),
            Must::ShuffledIsHalf => (
                "labels shuffled: 0.5 within the interval".into(),
                interval(shuffled),
                within(shuffled, 0.5),
            ),
        };
        Checked { rule, found, holds }
    }
}

impl Scenario {
    /// All that are played in virtual time.
    pub const ALL: [Scenario; 8] = [
        Scenario::None,
        Scenario::Timed,
        Scenario::StopAndGo,
        Scenario::Cover,
        Scenario::Active,
        Scenario::Members,
        Scenario::Latency,
        Scenario::Time,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scenario::None => "none",
            Scenario::Timed => "timed",
            Scenario::StopAndGo => "stop-and-go",
            Scenario::Cover => "cover",
            Scenario::Active => "active",
            Scenario::Members => "members",
            Scenario::Latency => "latency",
            Scenario::Time => "time",
            Scenario::Capture => "capture",
        }
    }

    /// Its experiments. A size of few pairs shows that an attacker is strong, and cannot show that
    /// one only guesses: there such conditions are left out.
    pub fn cases(self, size: Size) -> Vec<Case> {
        let mut cases = self.all(size);
        if size.flows as u64 * size.seeds < PAIRS_MIN {
            let few = |must: &Must| matches!(must, Must::AucLowAtLeast(_) | Must::ShuffledIsHalf);
            cases.iter_mut().for_each(|case| case.musts.retain(few));
        }
        cases
    }

    fn all(self, size: Size) -> Vec<Case> {
        let sizes = Sizes(size);
        let strong = vec![Must::AucLowAtLeast(0.98), Must::ShuffledIsHalf];
        match self {
            Scenario::None => sizes.by_program(Strategy::Pass, Cover::None, strong),
            Scenario::Timed => {
                let every = time(5);
                sizes.by_program(Strategy::Timed { every }, Cover::None, vec![Must::ShuffledIsHalf])
            }
            Scenario::StopAndGo => {
                sizes.by_program(stop_and_go(5), Cover::None, vec![Must::ShuffledIsHalf])
            }
            Scenario::Cover => sizes.cover(),
            Scenario::Active => sizes.active(),
            Scenario::Members => sizes.members(),
            Scenario::Latency => sizes.latency(),
            Scenario::Time => sizes.time(),
            Scenario::Capture => Vec::new(),
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

struct Sizes(Size);

impl Sizes {
    fn setup(&self, full: bool, strategy: Strategy, cover: Cover, seconds: u32) -> Setup {
        let Size { flows, seeds, small_flows, small_seeds, training } = self.0;
        let (flows, seeds) = if full { (flows, seeds) } else { (small_flows, small_seeds) };
        let scene = Scene {
            traffic: Traffic::Mixed,
            cross: None,
            strategy,
            mixes: MIXES,
            line: Line::default(),
            cover,
            core: Cover::None,
            leak: Leak::None,
            flows,
            seconds,
        };
        let seeds = FIRST_SEED..FIRST_SEED + seeds;
        Setup { scene, mark: None, view: View::Wire, training: 0..training, seeds }
    }

    /// All programs together, on which something must hold; each by itself; and with cross traffic.
    fn by_program(&self, strategy: Strategy, cover: Cover, musts: Vec<Must>) -> Vec<Case> {
        let seconds = if cover.scheduled() { WATCHED_COVER_S } else { WATCHED_S };
        let full = self.setup(true, strategy, cover, seconds);
        let mut cases = vec![case(&format!("all programs, {seconds} s"), full, musts)];
        for traffic in Traffic::SINGLE {
            let mut setup = self.setup(false, strategy, cover, seconds);
            setup.scene.traffic = traffic;
            cases.push(case(&format!("{traffic} alone, {seconds} s"), setup, Vec::new()));
        }
        let mut setup = self.setup(false, strategy, cover, seconds);
        setup.scene.cross = Some(Traffic::Web);
        cases.push(case(&format!("with cross traffic, {seconds} s"), setup, Vec::new()));
        let setup = self.setup(false, strategy, cover, 2);
        cases.push(case("all programs, 2 s", setup, Vec::new()));
        cases
    }

    fn cover(&self) -> Vec<Case> {
        let musts = vec![
            Must::AucHighAtMost(0.55),
            Must::FirstAboveGuess(0.02),
            Must::NoneAtOneIn100,
            Must::ShuffledIsHalf,
        ];
        let constant = Cover::Constant { per_s: TIER_PER_S };
        let mut cases = self.by_program(stop_and_go(5), constant, musts.clone());
        let poisson = Cover::Poisson { per_s: TIER_PER_S };
        let setup = self.setup(true, stop_and_go(5), poisson, WATCHED_COVER_S);
        cases.insert(1, case("all programs, Poisson schedule, 60 s", setup, musts));
        for (leak, what) in [
            (Leak::Pauses, "planted: cover that pauses"),
            (Leak::PassesGaps, "planted: no own schedule"),
        ] {
            let mut setup = self.setup(false, stop_and_go(5), constant, WATCHED_S);
            setup.scene.leak = leak;
            setup.mark = (leak == Leak::PassesGaps).then_some(Mark::Gaps);
            cases.push(case(&format!("{what}, {WATCHED_S} s"), setup, Vec::new()));
        }
        cases
    }

    fn active(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        let constant = Cover::Constant { per_s: TIER_PER_S };
        for mark in Mark::ALL {
            let marked = |setup: Setup| Setup { mark: Some(mark), ..setup };
            for (ms, what) in [(5, "stop-and-go 3 x 5 ms"), (200, "stop-and-go 3 x 200 ms")] {
                let setup = self.setup(false, stop_and_go(ms), Cover::None, WATCHED_S);
                cases.push(case(&format!("{mark}, {what}, 10 s"), marked(setup), Vec::new()));
            }
            let setup = self.setup(true, stop_and_go(5), constant, WATCHED_COVER_S);
            let must = vec![Must::AucHighAtMost(0.60), Must::ShuffledIsHalf];
            cases.push(case(&format!("{mark}, cover, 60 s"), marked(setup), must));
        }
        let router = self.setup(false, stop_and_go(5), constant, WATCHED_COVER_S);
        let router = Setup { mark: Some(Mark::Gaps), view: View::Router, ..router };
        cases.push(case("gaps, cover, seen by the far router, 60 s", router, Vec::new()));
        let lines = |core| {
            let mut setup = self.setup(false, stop_and_go(5), constant, WATCHED_COVER_S);
            (setup.mark, setup.view, setup.scene.core) = (Some(Mark::Drops), View::Lines, core);
            setup
        };
        let bare = "drops, cover, seen on lines between routers, 60 s";
        cases.push(case(bare, lines(Cover::None), vec![Must::AucLowAtLeast(0.8)]));
        let covered = "drops, cover, seen on covered lines between routers, 60 s";
        let core = Cover::Constant { per_s: 2.0 * TIER_PER_S };
        cases.push(case(covered, lines(core), Vec::new()));
        cases
    }

    /// Without mixes, so that nothing but the queues of access links blurs round trips.
    fn members(&self) -> Vec<Case> {
        let constant = Cover::Constant { per_s: TIER_PER_S };
        let setup = |full, view, traffic, strategy| {
            let mut setup = self.setup(full, strategy, constant, WATCHED_COVER_S);
            (setup.view, setup.scene.traffic) = (view, traffic);
            setup
        };
        let (turns, line) = (View::Members, View::MembersInLine);
        let full = setup(true, turns, Traffic::Mixed, Strategy::Pass);
        let musts = vec![
            Must::AucHighAtMost(0.55),
            Must::FirstAboveGuess(0.02),
            Must::NoneAtOneIn100,
            Must::ShuffledIsHalf,
        ];
        let mut cases = vec![case("all programs, 60 s", full, musts)];
        for traffic in Traffic::SINGLE {
            let setup = |view| setup(false, view, traffic, Strategy::Pass);
            cases.push(case(&format!("{traffic} alone, 60 s"), setup(turns), Vec::new()));
            let name = format!("planted: one line for all peers, {traffic} alone, 60 s");
            cases.push(case(&name, setup(line), Vec::new()));
        }
        let planted = setup(false, line, Traffic::Web, stop_and_go(5));
        let name = "planted: one line for all peers, web alone, stop-and-go 3 x 5 ms, 60 s";
        cases.push(case(name, planted, vec![Must::AucLowAtLeast(0.8), Must::ShuffledIsHalf]));
        let mixed = setup(false, turns, Traffic::Web, stop_and_go(5));
        cases.push(case("web alone, stop-and-go 3 x 5 ms, 60 s", mixed, Vec::new()));
        cases
    }

    fn latency(&self) -> Vec<Case> {
        let covers = [
            ("no cover", Cover::None),
            ("dummies 1 x", Cover::Dummies { per_s: DUMMIES_PER_S[0] }),
            ("dummies 4 x", Cover::Dummies { per_s: DUMMIES_PER_S[1] }),
            ("constant rate", Cover::Constant { per_s: TIER_PER_S }),
        ];
        let mut cases = Vec::new();
        for seconds in [2, WATCHED_S] {
            for (what, cover) in covers {
                let series = format!("{what}, {seconds} s");
                let strategies = MEANS_MS.map(stop_and_go);
                for strategy in [Strategy::Pass].into_iter().chain(strategies) {
                    let setup = self.setup(false, strategy, cover, seconds);
                    cases.push(point(&series, &format!("{series}, {strategy}"), setup));
                }
            }
        }
        cases
    }

    fn time(&self) -> Vec<Case> {
        let timed = Strategy::Timed { every: time(5) };
        let dummies = Cover::Dummies { per_s: DUMMIES_PER_S[1] };
        let constant = Cover::Constant { per_s: TIER_PER_S };
        let lines = [
            ("no mix", Strategy::Pass, Cover::None),
            ("timed 3 x 5 ms", timed, Cover::None),
            ("stop-and-go 3 x 5 ms", stop_and_go(5), Cover::None),
            ("stop-and-go 3 x 50 ms", stop_and_go(50), Cover::None),
            ("stop-and-go 3 x 200 ms", stop_and_go(200), Cover::None),
            ("stop-and-go 3 x 5 ms, dummies 4 x", stop_and_go(5), dummies),
            ("stop-and-go 3 x 5 ms, constant rate", stop_and_go(5), constant),
        ];
        let mut cases = Vec::new();
        for (series, strategy, cover) in lines {
            for seconds in TIMES_S {
                let setup = self.setup(false, strategy, cover, seconds);
                cases.push(point(series, &format!("{series}, {seconds} s"), setup));
            }
        }
        cases
    }
}

fn case(name: &str, setup: Setup, musts: Vec<Must>) -> Case {
    Case { name: name.into(), series: None, setup, musts }
}

fn point(series: &str, name: &str, setup: Setup) -> Case {
    Case { series: Some(series.into()), ..case(name, setup, Vec::new()) }
}

fn time(ms: u64) -> MixTime {
    MixTime::from_duration(Duration::from_millis(ms)).unwrap_or(MixTime::MAX)
}

/// Capped at five means, as networks do unless their list says otherwise.
fn stop_and_go(ms: u64) -> Strategy {
    Strategy::StopAndGo { mean: time(ms), most: time(5 * ms) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Interval;

    #[test]
    fn all_cases_are_possible_and_differ() {
        for size in [Size::FULL, Size::QUICK] {
            let mut names = Vec::new();
            for scenario in Scenario::ALL {
                for case in scenario.cases(size) {
                    assert_eq!(case.setup.check(), Ok(()), "{}", case.name);
                    names.push(format!("{scenario}: {}", case.name));
                }
            }
            let all = names.len();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), all);
        }
        let full = &Scenario::None.cases(Size::FULL)[0].setup;
        assert_eq!(full.scene.flows as u64 * (full.seeds.end - full.seeds.start), 1_000);
        let musts = |size| -> usize {
            Scenario::Cover.cases(size).iter().map(|case| case.musts.len()).sum()
        };
        assert_eq!((musts(Size::FULL), musts(Size::QUICK)), (8, 2));
    }

    #[test]
    fn conditions_are_compared_with_the_right_ends() {
        let mut outcome = crate::Outcome::default();
        outcome.rates.auc = Interval { value: 0.52, low: 0.49, high: 0.56 };
        outcome.rates.guess = 0.01;
        outcome.rates.top1.value = 0.029;
        outcome.rates.at_1_in_100 = Interval { value: 0.0, low: 0.0, high: 0.009 };
        outcome.shuffled = Interval { value: 0.51, low: 0.5, high: 0.52 };
        let holds = |must: Must| must.check(&outcome).holds;
        assert!(!holds(Must::AucHighAtMost(0.55)) && holds(Must::AucHighAtMost(0.6)));
        assert!(!holds(Must::AucLowAtLeast(0.5)) && holds(Must::AucLowAtLeast(0.49)));
        assert!(holds(Must::FirstAboveGuess(0.02)) && !holds(Must::FirstAboveGuess(0.01)));
        assert!(!holds(Must::NoneAtOneIn100) && holds(Must::ShuffledIsHalf));
        assert_eq!(Must::ShuffledIsHalf.check(&outcome).found, "0.500 to 0.520");
    }
}
