use core::time::Duration;

use shoal_wire::{MixStrategy, MixTime};

use super::*;
use crate::cover::{CoverSchedule, Leak};
use crate::flow::ProgramKind;
use crate::path::LineDelay;

fn setup(traffic: ProgramKind, strategy: MixStrategy, seconds: u32) -> ExperimentSetup {
    let scene = Scene {
        traffic,
        cross: None,
        strategy,
        mixes: 3,
        line: LineDelay::default(),
        cover: CoverSchedule::None,
        core: CoverSchedule::None,
        leak: Leak::None,
        flows: 16,
        seconds,
    };
    ExperimentSetup { scene, mark: None, view: VantagePoint::Wire, training: 0..4, seeds: 100..103 }
}

fn stop_and_go(ms: u64) -> MixStrategy {
    let time = |ms| MixTime::from_duration(Duration::from_millis(ms)).unwrap();
    MixStrategy::StopAndGo { mean: time(ms), most: time(5 * ms) }
}

fn covered(mut setup: ExperimentSetup) -> ExperimentSetup {
    setup.scene.cover = CoverSchedule::Constant { per_s: 174.0 };
    setup
}

#[test]
fn without_a_mix_flows_are_found_and_shuffled_labels_are_not() {
    for traffic in [ProgramKind::Poisson, ProgramKind::Mixed] {
        let seen = experiment(&setup(traffic, MixStrategy::Pass, 4)).unwrap();
        assert!(seen.rates.auc.low >= 0.98, "{traffic:?} {:?}", seen.rates);
        assert!(seen.rates.top1.value > 0.9);
        assert!((seen.shuffled.low..=seen.shuffled.high).contains(&0.5), "{:?}", seen.shuffled);
        assert!((seen.overhead - 1.0).abs() < 0.1, "{}", seen.overhead);
        assert!(seen.rates.bits > 2.0, "{:?}", seen.rates);
    }
}

#[test]
fn delay_hides_a_flow_for_seconds_only() {
    let at = |seconds| experiment(&setup(ProgramKind::Poisson, stop_and_go(150), seconds)).unwrap();
    let (short, long) = (at(1), at(15));
    assert!(short.rates.top1.value < long.rates.top1.value, "{short:?} {long:?}");
    assert!(long.rates.top1.value > 0.9, "{:?}", long.rates);
    assert!((short.cost.added_ms - 3.0 * 0.966 * 150.0).abs() < 15.0, "{:?}", short.cost);
}

#[test]
fn a_schedule_at_both_ends_leaves_guessing() {
    for mark in [None, Some(MarkKind::Gaps), Some(MarkKind::Rate)] {
        let passive = covered(setup(ProgramKind::Mixed, stop_and_go(5), 10));
        let seen = experiment(&ExperimentSetup { mark, ..passive }).unwrap();
        assert!(seen.rates.auc.low < 0.5 && seen.rates.auc.high < 0.7, "{mark:?} {:?}", seen.rates);
        assert!(seen.rates.top1.low <= 1.0 / 16.0, "{:?}", seen.rates);
        assert!(seen.overhead > 1.5);
    }
}

#[test]
fn planted_faults_of_cover_are_found() {
    let mut pauses = covered(setup(ProgramKind::Web, stop_and_go(5), 15));
    pauses.scene.leak = Leak::Pauses;
    let seen = experiment(&pauses).unwrap();
    assert!(seen.rates.auc.low > 0.9, "{:?}", seen.rates);
    let mut gaps = covered(setup(ProgramKind::Web, stop_and_go(5), 10));
    gaps.scene.leak = Leak::PassesGaps;
    gaps.mark = Some(MarkKind::Gaps);
    assert!(experiment(&gaps).unwrap().rates.auc.low > 0.95);
}

#[test]
fn a_router_sees_the_gaps_that_a_wire_does_not_show() {
    let mut router = covered(setup(ProgramKind::Bulk, stop_and_go(5), 20));
    router.mark = Some(MarkKind::Gaps);
    router.view = VantagePoint::Router;
    let seen = experiment(&router).unwrap();
    assert!(seen.rates.auc.low > 0.8, "{:?}", seen.rates);
}

#[test]
fn lines_between_routers_show_gaps_of_a_covered_host_unless_they_are_covered() {
    let mut lines = covered(setup(ProgramKind::Bulk, stop_and_go(5), 20));
    (lines.mark, lines.view) = (Some(MarkKind::Drops), VantagePoint::Lines);
    let seen = experiment(&lines).unwrap();
    assert!(seen.rates.auc.low > 0.8, "{:?}", seen.rates);
    lines.scene.core = CoverSchedule::Constant { per_s: 348.0 };
    let seen = experiment(&lines).unwrap();
    assert!(seen.rates.auc.low < 0.5 && seen.rates.auc.high < 0.7, "{:?}", seen.rates);
}

#[test]
fn the_same_seeds_give_the_same_figures() {
    let setup = setup(ProgramKind::Mixed, stop_and_go(5), 2);
    assert_eq!(experiment(&setup), experiment(&setup));
    let seeds = |training, seeds| ExperimentSetup { training, seeds, ..setup.clone() }.check();
    assert_eq!(seeds(0..4, 3..5), Err(SceneError::Seeds));
    assert_eq!(seeds(0..1, 3..5), Err(SceneError::Seeds));
    assert_eq!(seeds(0..2, 3..3), Err(SceneError::Seeds));
}
