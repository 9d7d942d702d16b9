//! Lists with the mixing strategies of relays. They are drawn from the seed before a run begins,
//! and reach each node at a slightly different time.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::{MixStrategy, MixTime, Time};

use crate::check::streams::HoldBounds;
use crate::ciphers::mix;
use crate::options::{SimulationOptions, seed_bytes};
use crate::plan::START;

/// Largest number of strategies in a list, as in the directory.
const STRATEGIES_MAX: u64 = 4;
/// Longest time until a list reaches a node.
const SPREAD: Duration = Duration::from_millis(300);
/// One strategy in this many does not delay cells, and one relay in this many has its own strategy.
const NONE_ONE_IN: u64 = 12;
const OWN_ONE_IN: u64 = 3;

/// Strategies of relays from a time on.
#[derive(Clone, Debug)]
pub(crate) struct MixList {
    at: Time,
    /// Offered strategies; circuits use the first.
    pub(crate) mixes: Vec<MixStrategy>,
    /// Own strategy of each router for all circuits, if it has one.
    pub(crate) own: Vec<Option<MixStrategy>>,
}

/// Lists of a run, by time.
pub(crate) fn lists(options: &SimulationOptions, routers: usize) -> Vec<MixList> {
    let mut rng = Rng::new(seed_bytes(options.seed, "mixes"));
    let mut list = |number: u32| {
        let later = rng.below(options.trouble().as_nanos() as u64);
        let at = if number == 0 { START } else { START + Duration::from_nanos(later) };
        let count = 1 + rng.below(STRATEGIES_MAX);
        let drawn = |_| strategy(options, &mut rng);
        let mixes: Vec<MixStrategy> = (0..count).map(drawn).collect();
        let own = |_| {
            let pick = mixes[rng.below(count) as usize];
            (rng.below(OWN_ONE_IN) == 0).then_some(pick)
        };
        MixList { at, own: (0..routers).map(own).collect(), mixes }
    };
    let count = if options.circuits > 0 { options.mixes } else { 0 };
    let mut lists: Vec<MixList> = (0..count).map(&mut list).collect();
    lists.sort_by_key(|list| list.at);
    lists
}

/// Time for which packets wait for earlier ones, over all circuits of a run.
pub(crate) fn holds(lists: &[MixList], options: &SimulationOptions) -> HoldBounds {
    let relays = |list: &MixList| list.own.len().min(options.circuits as usize);
    let all = lists.iter().map(|list| list.holds(relays(list)));
    let (least, most) = all.fold((MixTime::MAX, MixTime::default()), |(least, most), holds| {
        (least.min(holds.0), most.max(holds.1))
    });
    HoldBounds::new(least, most)
}

fn strategy(options: &SimulationOptions, rng: &mut Rng) -> MixStrategy {
    let units = |units: u64| MixTime::from_units(units as u16).unwrap_or(MixTime::MAX);
    if options.mix_ms > 0 {
        let mean = 10 * u64::from(options.mix_ms);
        return MixStrategy::StopAndGo { mean: units(mean), most: units(5 * mean) };
    }
    // A mean between 0.5 ms and 30 ms, short ones as often as long ones.
    let mean = 5 + (295 >> rng.below(5)) * rng.below(1_000) / 1_000;
    match rng.below(NONE_ONE_IN) {
        0 => MixStrategy::Pass,
        1 | 2 => MixStrategy::Timed { every: units(mean) },
        _ => MixStrategy::StopAndGo { mean: units(mean), most: units(mean * (1 + rng.below(7))) },
    }
}

impl MixList {
    /// Network time at which a node applies the list.
    pub(crate) fn begins(&self, options: &SimulationOptions, node: usize) -> Time {
        if self.at == START {
            return START;
        }
        let late = mix(options.seed ^ (node as u64) << 32 ^ self.at.0) % SPREAD.as_nanos() as u64;
        self.at + Duration::from_nanos(late)
    }

    /// True if all relays delay the cells of all circuits.
    pub(crate) fn mixes_all(&self) -> bool {
        let offered = self.mixes.first().copied().unwrap_or_default();
        self.own.iter().all(|own| own.unwrap_or(offered).holds())
    }

    /// Smallest and largest hold of circuits with this many relays.
    fn holds(&self, relays: usize) -> (MixTime, MixTime) {
        let offered = self.mixes.first().copied().unwrap_or_default();
        let does: Vec<MixStrategy> = self.own.iter().map(|own| own.unwrap_or(offered)).collect();
        let ways = (0_u32..1 << does.len()).filter(|way| way.count_ones() as usize == relays);
        let holds = ways.map(|way| {
            let on = (0..does.len()).filter(|at| way >> at & 1 == 1);
            shoal_mix::path(on.map(|at| does[at])).hold
        });
        holds.fold((MixTime::MAX, MixTime::default()), |(least, most), hold| {
            (least.min(hold), most.max(hold))
        })
    }

    /// The newest list that a node has. None if no relay mixes.
    pub(crate) fn newest<'a>(
        lists: &'a [MixList],
        options: &SimulationOptions,
        node: usize,
        now: Time,
    ) -> Option<&'a MixList> {
        lists.iter().rfind(|list| list.begins(options, node) <= now)
    }
}
