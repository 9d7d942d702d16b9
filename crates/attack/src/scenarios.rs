//! The experiments of this crate, and the conditions that their results must meet.

use core::fmt;
use core::time::Duration;

use serde::Serialize;
use shoal_wire::{MixStrategy, MixTime};

use crate::cover::{CoverSchedule, Leak};
use crate::experiment::{AttackResult, ExperimentSetup};
use crate::flow::ProgramKind;
use crate::mark::MarkKind;
use crate::network::Scene;
use crate::path::LineDelay;
use crate::score::VantagePoint;

/// Tier of the experiments: 2 Mbit/s of full frames.
const TIER_PER_S: f64 = 174.0;
/// Dummies per second beside the cells of a flow (50 per second and direction): as many, and four
/// times as many.
const DUMMIES_PER_S: [f64; 2] = [50.0, 200.0];
/// Seconds for which the attacker watches, without and with cover.
const WATCHED_S: u32 = 10;
const WATCHED_COVER_S: u32 = 60;
/// Fewest pairs that show within 0.02 that an attacker only guesses.
const PAIRS_MIN: u64 = 1_000;
/// First seed of measured networks, which differs from all seeds of training networks.
const FIRST_SEED: u64 = 1_000;
/// Mean delays of stop-and-go mixes in the sweep over latency, in milliseconds; three relays.
const MEANS_MS: [u64; 7] = [2, 5, 10, 20, 50, 100, 200];
const MIXES: u32 = 3;
/// Watched times in the sweep over time, in seconds.
const TIMES_S: [u32; 7] = [1, 2, 5, 10, 20, 40, 60];

/// A group of experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttackScenario {
    /// Relays that forward cells at once.
    None,
    /// Timed mixes of 5 ms.
    Timed,
    /// Stop-and-go mixes of 5 ms.
    StopAndGo,
    /// Cover at a constant rate on all access links.
    Cover,
    /// An attacker that marks flows.
    Active,
    /// Members that send questions to covered hosts.
    Members,
    /// Success as a function of added latency.
    Latency,
    /// Success as a function of the watched time.
    Time,
    /// Recorded links, without experiments of their own.
    Capture,
}

/// Sizes of the networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Size {
    /// Pairs of hosts in a network whose result must meet conditions.
    pub flows: usize,
    /// Number of networks of this size.
    pub seeds: u64,
    /// Pairs of hosts in the other networks.
    pub small_flows: usize,
    /// Number of the other networks.
    pub small_seeds: u64,
    /// Networks for training and for choosing the attack.
    pub training: u64,
}

impl Size {
    /// 1,000 pairs over ten seeds.
    pub const FULL: Size =
        Size { flows: 100, seeds: 10, small_flows: 40, small_seeds: 5, training: 6 };
    /// Sizes for a first look.
    pub const QUICK: Size =
        Size { flows: 20, seeds: 3, small_flows: 12, small_seeds: 2, training: 4 };
}

#[derive(Clone, Debug, PartialEq)]
pub struct AttackCase {
    /// Short name.
    pub name: String,
    /// Curve to which the experiment adds a point.
    pub series: Option<String>,
    pub setup: ExperimentSetup,
    /// Conditions on the result.
    pub musts: Vec<ResultCondition>,
}

/// A condition on a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ResultCondition {
    /// The attacker is strong: lower end of the area under the curve.
    AucLowAtLeast(f64),
    /// The attacker guesses: upper end of the area under the curve.
    AucHighAtMost(f64),
    /// Greatest excess of the top-1 rate over a guess.
    FirstAboveGuess(f64),
    /// True pairs pass the threshold that one wrong pair in 100 passes no more often than wrong
    /// ones.
    NoneAtOneIn100,
    /// The interval with shuffled labels contains 0.5.
    ShuffledIsHalf,
}

/// A condition, and whether it was met.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ConditionResult {
    pub rule: String,
    /// Figure found.
    pub found: String,
    /// True if the condition is met.
    pub holds: bool,
}

impl ResultCondition {
    /// Compares the condition with a result.
    pub fn check(self, outcome: &AttackResult) -> ConditionResult {
        let rates = &outcome.rates;
        let (auc, shuffled) = (rates.auc, outcome.shuffled);
        let within = |of: crate::Interval, value: f64| of.low <= value && value <= of.high;
        let interval = |of: crate::Interval| format!("{:.3} to {:.3}", of.low, of.high);
        let (rule, found, holds) = match self {
            ResultCondition::AucLowAtLeast(least) => (
                format!("area under the curve, lower 95% end at least {least}"),
                interval(auc),
                auc.low >= least,
            ),
            ResultCondition::AucHighAtMost(most) => (
                format!("area under the curve, upper 95% end at most {most}"),
                interval(auc),
                auc.high <= most,
            ),
            ResultCondition::FirstAboveGuess(more) => (
                format!("top-1 at most {:.3}, {more} above a guess", rates.guess + more),
                format!("{:.3}", rates.top1.value),
                rates.top1.value <= rates.guess + more,
            ),
            ResultCondition::NoneAtOneIn100 => (
                "true pairs found at one wrong in 100: 0.01 within the interval".into(),
                interval(rates.at_1_in_100),
                within(rates.at_1_in_100, 0.01),
            ),
            ResultCondition::ShuffledIsHalf => (
                "labels shuffled: 0.5 within the interval".into(),
                interval(shuffled),
                within(shuffled, 0.5),
            ),
        };
        ConditionResult { rule, found, holds }
    }
}

impl AttackScenario {
    /// All scenarios that are simulated in virtual time.
    pub const ALL: [AttackScenario; 8] = [
        AttackScenario::None,
        AttackScenario::Timed,
        AttackScenario::StopAndGo,
        AttackScenario::Cover,
        AttackScenario::Active,
        AttackScenario::Members,
        AttackScenario::Latency,
        AttackScenario::Time,
    ];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            AttackScenario::None => "none",
            AttackScenario::Timed => "timed",
            AttackScenario::StopAndGo => "stop-and-go",
            AttackScenario::Cover => "cover",
            AttackScenario::Active => "active",
            AttackScenario::Members => "members",
            AttackScenario::Latency => "latency",
            AttackScenario::Time => "time",
            AttackScenario::Capture => "capture",
        }
    }

    /// Experiments of the scenario. With few pairs, a result can show that an attacker is strong,
    /// but not that it only guesses. Conditions about guessing are then left out.
    pub fn cases(self, size: Size) -> Vec<AttackCase> {
        let mut cases = self.all(size);
        if size.flows as u64 * size.seeds < PAIRS_MIN {
            let few = |must: &ResultCondition| {
                matches!(must, ResultCondition::AucLowAtLeast(_) | ResultCondition::ShuffledIsHalf)
            };
            cases.iter_mut().for_each(|case| case.musts.retain(few));
        }
        cases
    }

    fn all(self, size: Size) -> Vec<AttackCase> {
        let sizes = CaseBuilder(size);
        let strong = vec![ResultCondition::AucLowAtLeast(0.98), ResultCondition::ShuffledIsHalf];
        match self {
            AttackScenario::None => {
                sizes.by_program(MixStrategy::Pass, CoverSchedule::None, strong)
            }
            AttackScenario::Timed => {
                let every = time(5);
                sizes.by_program(
                    MixStrategy::Timed { every },
                    CoverSchedule::None,
                    vec![ResultCondition::ShuffledIsHalf],
                )
            }
            AttackScenario::StopAndGo => sizes.by_program(
                stop_and_go(5),
                CoverSchedule::None,
                vec![ResultCondition::ShuffledIsHalf],
            ),
            AttackScenario::Cover => sizes.cover(),
            AttackScenario::Active => sizes.active(),
            AttackScenario::Members => sizes.members(),
            AttackScenario::Latency => sizes.latency(),
            AttackScenario::Time => sizes.time(),
            AttackScenario::Capture => Vec::new(),
        }
    }
}

impl fmt::Display for AttackScenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

struct CaseBuilder(Size);

impl CaseBuilder {
    fn setup(
        &self,
        full: bool,
        strategy: MixStrategy,
        cover: CoverSchedule,
        seconds: u32,
    ) -> ExperimentSetup {
        let Size { flows, seeds, small_flows, small_seeds, training } = self.0;
        let (flows, seeds) = if full { (flows, seeds) } else { (small_flows, small_seeds) };
        let scene = Scene {
            traffic: ProgramKind::Mixed,
            cross: None,
            strategy,
            mixes: MIXES,
            line: LineDelay::default(),
            cover,
            core: CoverSchedule::None,
            leak: Leak::None,
            flows,
            seconds,
        };
        let seeds = FIRST_SEED..FIRST_SEED + seeds;
        ExperimentSetup {
            scene,
            mark: None,
            view: VantagePoint::Wire,
            training: 0..training,
            seeds,
        }
    }

    /// All programs together, with conditions; each by itself; and with cross traffic.
    fn by_program(
        &self,
        strategy: MixStrategy,
        cover: CoverSchedule,
        musts: Vec<ResultCondition>,
    ) -> Vec<AttackCase> {
        let seconds = if cover.scheduled() { WATCHED_COVER_S } else { WATCHED_S };
        let full = self.setup(true, strategy, cover, seconds);
        let mut cases = vec![case(&format!("all programs, {seconds} s"), full, musts)];
        for traffic in ProgramKind::SINGLE {
            let mut setup = self.setup(false, strategy, cover, seconds);
            setup.scene.traffic = traffic;
            cases.push(case(&format!("{traffic} alone, {seconds} s"), setup, Vec::new()));
        }
        let mut setup = self.setup(false, strategy, cover, seconds);
        setup.scene.cross = Some(ProgramKind::Web);
        cases.push(case(&format!("with cross traffic, {seconds} s"), setup, Vec::new()));
        let setup = self.setup(false, strategy, cover, 2);
        cases.push(case("all programs, 2 s", setup, Vec::new()));
        cases
    }

    fn cover(&self) -> Vec<AttackCase> {
        let musts = vec![
            ResultCondition::AucHighAtMost(0.55),
            ResultCondition::FirstAboveGuess(0.02),
            ResultCondition::NoneAtOneIn100,
            ResultCondition::ShuffledIsHalf,
        ];
        let constant = CoverSchedule::Constant { per_s: TIER_PER_S };
        let mut cases = self.by_program(stop_and_go(5), constant, musts.clone());
        let poisson = CoverSchedule::Poisson { per_s: TIER_PER_S };
        let setup = self.setup(true, stop_and_go(5), poisson, WATCHED_COVER_S);
        cases.insert(1, case("all programs, Poisson schedule, 60 s", setup, musts));
        for (leak, what) in [
            (Leak::Pauses, "planted: cover that pauses"),
            (Leak::PassesGaps, "planted: no own schedule"),
        ] {
            let mut setup = self.setup(false, stop_and_go(5), constant, WATCHED_S);
            setup.scene.leak = leak;
            setup.mark = (leak == Leak::PassesGaps).then_some(MarkKind::Gaps);
            cases.push(case(&format!("{what}, {WATCHED_S} s"), setup, Vec::new()));
        }
        cases
    }

    fn active(&self) -> Vec<AttackCase> {
        let mut cases = Vec::new();
        let constant = CoverSchedule::Constant { per_s: TIER_PER_S };
        for mark in MarkKind::ALL {
            let marked = |setup: ExperimentSetup| ExperimentSetup { mark: Some(mark), ..setup };
            for (ms, what) in [(5, "stop-and-go 3 x 5 ms"), (200, "stop-and-go 3 x 200 ms")] {
                let setup = self.setup(false, stop_and_go(ms), CoverSchedule::None, WATCHED_S);
                cases.push(case(&format!("{mark}, {what}, 10 s"), marked(setup), Vec::new()));
            }
            let setup = self.setup(true, stop_and_go(5), constant, WATCHED_COVER_S);
            let must = vec![ResultCondition::AucHighAtMost(0.60), ResultCondition::ShuffledIsHalf];
            cases.push(case(&format!("{mark}, cover, 60 s"), marked(setup), must));
        }
        let router = self.setup(false, stop_and_go(5), constant, WATCHED_COVER_S);
        let router =
            ExperimentSetup { mark: Some(MarkKind::Gaps), view: VantagePoint::Router, ..router };
        cases.push(case("gaps, cover, seen by the far router, 60 s", router, Vec::new()));
        let lines = |core| {
            let mut setup = self.setup(false, stop_and_go(5), constant, WATCHED_COVER_S);
            (setup.mark, setup.view, setup.scene.core) =
                (Some(MarkKind::Drops), VantagePoint::Lines, core);
            setup
        };
        let bare = "drops, cover, seen on lines between routers, 60 s";
        cases.push(case(
            bare,
            lines(CoverSchedule::None),
            vec![ResultCondition::AucLowAtLeast(0.8)],
        ));
        let covered = "drops, cover, seen on covered lines between routers, 60 s";
        let core = CoverSchedule::Constant { per_s: 2.0 * TIER_PER_S };
        cases.push(case(covered, lines(core), Vec::new()));
        cases
    }

    /// Without mixes, so that only the queues of access links blur round trips.
    fn members(&self) -> Vec<AttackCase> {
        let constant = CoverSchedule::Constant { per_s: TIER_PER_S };
        let setup = |full, view, traffic, strategy| {
            let mut setup = self.setup(full, strategy, constant, WATCHED_COVER_S);
            (setup.view, setup.scene.traffic) = (view, traffic);
            setup
        };
        let (turns, line) = (VantagePoint::Members, VantagePoint::MembersInLine);
        let full = setup(true, turns, ProgramKind::Mixed, MixStrategy::Pass);
        let musts = vec![
            ResultCondition::AucHighAtMost(0.55),
            ResultCondition::FirstAboveGuess(0.02),
            ResultCondition::NoneAtOneIn100,
            ResultCondition::ShuffledIsHalf,
        ];
        let mut cases = vec![case("all programs, 60 s", full, musts)];
        for traffic in ProgramKind::SINGLE {
            let setup = |view| setup(false, view, traffic, MixStrategy::Pass);
            cases.push(case(&format!("{traffic} alone, 60 s"), setup(turns), Vec::new()));
            let name = format!("planted: one line for all peers, {traffic} alone, 60 s");
            cases.push(case(&name, setup(line), Vec::new()));
        }
        let planted = setup(false, line, ProgramKind::Web, stop_and_go(5));
        let name = "planted: one line for all peers, web alone, stop-and-go 3 x 5 ms, 60 s";
        cases.push(case(
            name,
            planted,
            vec![ResultCondition::AucLowAtLeast(0.8), ResultCondition::ShuffledIsHalf],
        ));
        let mixed = setup(false, turns, ProgramKind::Web, stop_and_go(5));
        cases.push(case("web alone, stop-and-go 3 x 5 ms, 60 s", mixed, Vec::new()));
        cases
    }

    fn latency(&self) -> Vec<AttackCase> {
        let covers = [
            ("no cover", CoverSchedule::None),
            ("dummies 1 x", CoverSchedule::Dummies { per_s: DUMMIES_PER_S[0] }),
            ("dummies 4 x", CoverSchedule::Dummies { per_s: DUMMIES_PER_S[1] }),
            ("constant rate", CoverSchedule::Constant { per_s: TIER_PER_S }),
        ];
        let mut cases = Vec::new();
        for seconds in [2, WATCHED_S] {
            for (what, cover) in covers {
                let series = format!("{what}, {seconds} s");
                let strategies = MEANS_MS.map(stop_and_go);
                for strategy in [MixStrategy::Pass].into_iter().chain(strategies) {
                    let setup = self.setup(false, strategy, cover, seconds);
                    cases.push(point(&series, &format!("{series}, {strategy}"), setup));
                }
            }
        }
        cases
    }

    fn time(&self) -> Vec<AttackCase> {
        let timed = MixStrategy::Timed { every: time(5) };
        let dummies = CoverSchedule::Dummies { per_s: DUMMIES_PER_S[1] };
        let constant = CoverSchedule::Constant { per_s: TIER_PER_S };
        let lines = [
            ("no mix", MixStrategy::Pass, CoverSchedule::None),
            ("timed 3 x 5 ms", timed, CoverSchedule::None),
            ("stop-and-go 3 x 5 ms", stop_and_go(5), CoverSchedule::None),
            ("stop-and-go 3 x 50 ms", stop_and_go(50), CoverSchedule::None),
            ("stop-and-go 3 x 200 ms", stop_and_go(200), CoverSchedule::None),
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

fn case(name: &str, setup: ExperimentSetup, musts: Vec<ResultCondition>) -> AttackCase {
    AttackCase { name: name.into(), series: None, setup, musts }
}

fn point(series: &str, name: &str, setup: ExperimentSetup) -> AttackCase {
    AttackCase { series: Some(series.into()), ..case(name, setup, Vec::new()) }
}

fn time(ms: u64) -> MixTime {
    MixTime::from_duration(Duration::from_millis(ms)).unwrap_or(MixTime::MAX)
}

/// Stop-and-go mix, capped at five means, as in networks whose list says nothing else.
fn stop_and_go(ms: u64) -> MixStrategy {
    MixStrategy::StopAndGo { mean: time(ms), most: time(5 * ms) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Interval;

    #[test]
    fn all_cases_are_possible_and_differ() {
        for size in [Size::FULL, Size::QUICK] {
            let mut names = Vec::new();
            for scenario in AttackScenario::ALL {
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
        let full = &AttackScenario::None.cases(Size::FULL)[0].setup;
        assert_eq!(full.scene.flows as u64 * (full.seeds.end - full.seeds.start), 1_000);
        let musts = |size| -> usize {
            AttackScenario::Cover.cases(size).iter().map(|case| case.musts.len()).sum()
        };
        assert_eq!((musts(Size::FULL), musts(Size::QUICK)), (8, 2));
    }

    #[test]
    fn conditions_are_compared_with_the_right_ends() {
        let mut outcome = crate::AttackResult::default();
        outcome.rates.auc = Interval { value: 0.52, low: 0.49, high: 0.56 };
        outcome.rates.guess = 0.01;
        outcome.rates.top1.value = 0.029;
        outcome.rates.at_1_in_100 = Interval { value: 0.0, low: 0.0, high: 0.009 };
        outcome.shuffled = Interval { value: 0.51, low: 0.5, high: 0.52 };
        let holds = |must: ResultCondition| must.check(&outcome).holds;
        assert!(
            !holds(ResultCondition::AucHighAtMost(0.55))
                && holds(ResultCondition::AucHighAtMost(0.6))
        );
        assert!(
            !holds(ResultCondition::AucLowAtLeast(0.5))
                && holds(ResultCondition::AucLowAtLeast(0.49))
        );
        assert!(
            holds(ResultCondition::FirstAboveGuess(0.02))
                && !holds(ResultCondition::FirstAboveGuess(0.01))
        );
        assert!(!holds(ResultCondition::NoneAtOneIn100) && holds(ResultCondition::ShuffledIsHalf));
        assert_eq!(ResultCondition::ShuffledIsHalf.check(&outcome).found, "0.500 to 0.520");
    }
}
