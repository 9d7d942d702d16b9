//! Lists that say how relays mix: drawn from the seed before a run begins, and in force at each
//! node a little later than at the one before.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::{MixTime, Strategy, Time};

use crate::check::streams::Holds;
use crate::ciphers::mix;
use crate::options::{Options, seed_bytes};
use crate::plan::START;

/// Strategies of a list at most, as the directory has it.
const STRATEGIES_MAX: u64 = 4;
/// How long a list is on its way to a node at most.
const SPREAD: Duration = Duration::from_millis(300);
/// One strategy in so many does not delay cells; one relay in so many has a mix of its own.
const NONE_ONE_IN: u64 = 12;
const OWN_ONE_IN: u64 = 3;

/// How relays mix from a time on.
#[derive(Clone, Debug)]
pub(crate) struct List {
    at: Time,
    /// What is offered; circuits take the first.
    pub(crate) mixes: Vec<Strategy>,
    /// By router: what it does with all circuits.
    pub(crate) own: Vec<Option<Strategy>>,
}

/// The lists of a run, the first one first.
pub(crate) fn lists(options: &Options, routers: usize) -> Vec<List> {
    let mut rng = Rng::new(seed_bytes(options.seed, "mixes"));
    let mut list = |number: u32| {
        let later = rng.below(options.trouble().as_nanos() as u64);
        let at = if number == 0 { START } else { START + Duration::from_nanos(later) };
        let count = 1 + rng.below(STRATEGIES_MAX);
        let drawn = |_| strategy(options, &mut rng);
        let mixes: Vec<Strategy> = (0..count).map(drawn).collect();
        let own = |_| {
            let pick = mixes[rng.below(count) as usize];
            (rng.below(OWN_ONE_IN) == 0).then_some(pick)
        };
        List { at, own: (0..routers).map(own).collect(), mixes }
    };
    let count = if options.circuits > 0 { options.mixes } else { 0 };
    let mut lists: Vec<List> = (0..count).map(&mut list).collect();
    lists.sort_by_key(|list| list.at);
    lists
}

/// How long packets wait that others overtook, on all circuits of a run.
pub(crate) fn holds(lists: &[List], options: &Options) -> Holds {
    let relays = |list: &List| list.own.len().min(options.circuits as usize);
    let all = lists.iter().map(|list| list.holds(relays(list)));
    let (least, most) = all.fold((MixTime::MAX, MixTime::default()), |(least, most), holds| {
        (least.min(holds.0), most.max(holds.1))
    });
    Holds::new(least, most)
}

fn strategy(options: &Options, rng: &mut Rng) -> Strategy {
    let units = |units: u64| MixTime::from_units(units as u16).unwrap_or(MixTime::MAX);
    if options.mix_ms > 0 {
        let mean = 10 * u64::from(options.mix_ms);
        return Strategy::StopAndGo { mean: units(mean), most: units(5 * mean) };
    }
    // From half a millisecond to 30 ms, short ones as often as long ones.
    let mean = 5 + (295 >> rng.below(5)) * rng.below(1_000) / 1_000;
    match rng.below(NONE_ONE_IN) {
        0 => Strategy::Pass,
        1 | 2 => Strategy::Timed { every: units(mean) },
        _ => Strategy::StopAndGo { mean: units(mean), most: units(mean * (1 + rng.below(7))) },
    }
}

impl List {
    /// When a node takes it in force, by the network's time.
    pub(crate) fn begins(&self, options: &Options, node: usize) -> Time {
        if self.at == START {
            return START;
        }
        let late = mix(options.seed ^ (node as u64) << 32 ^ self.at.0) % SPREAD.as_nanos() as u64;
        self.at + Duration::from_nanos(late)
    }

    /// Whether all relays have the cells of all circuits wait.
    pub(crate) fn mixes_all(&self) -> bool {
        let offered = self.mixes.first().copied().unwrap_or_default();
        self.own.iter().all(|own| own.unwrap_or(offered).holds())
    }

    /// What circuits of so many relays are worth waiting for, at least and at most.
    fn holds(&self, relays: usize) -> (MixTime, MixTime) {
        let offered = self.mixes.first().copied().unwrap_or_default();
        let does: Vec<Strategy> = self.own.iter().map(|own| own.unwrap_or(offered)).collect();
        let ways = (0_u32..1 << does.len()).filter(|way| way.count_ones() as usize == relays);
        let holds = ways.map(|way| {
            let on = (0..does.len()).filter(|at| way >> at & 1 == 1);
            shoal_mix::path(on.map(|at| does[at])).hold
        });
        holds.fold((MixTime::MAX, MixTime::default()), |(least, most), hold| {
            (least.min(hold), most.max(hold))
        })
    }

    /// The newest that a node has by now; none where nobody mixes.
    pub(crate) fn newest<'a>(
        lists: &'a [List],
        options: &Options,
        node: usize,
        now: Time,
    ) -> Option<&'a List> {
        lists.iter().rfind(|list| list.begins(options, node) <= now)
    }
}
