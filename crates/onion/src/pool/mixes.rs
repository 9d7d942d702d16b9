//! Mix strategies that a host chooses for the relays of its circuits.
//!
//! Hosts without a setting all use the first strategy of the network's list: a host with another
//! one stands out. A relay with its own strategy uses that one, whatever a circuit names.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_mix::AddedDelay;
use shoal_wire::{Address, MixStrategy, Time};

use super::CircuitPool;
use super::live::{LiveCircuit, between};
use crate::path::{PathWarning, RouterList};

/// Time for which circuits are still built with the previous list's strategies, since a relay
/// without the new list drops a set-up with a new strategy. Relays accept the previous ones for
/// longer.
const AFTER: Duration = Duration::from_secs(60);
/// Time after [`AFTER`] within which circuits with other strategies than the new ones are replaced.
const SPREAD: Duration = Duration::from_secs(60);

/// Strategies of relays for the cells of circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MixOffer {
    /// Strategies that circuits may name, in order of preference.
    pub(super) mixes: Vec<MixStrategy>,
    /// Own strategies of relays that have one.
    own: BTreeMap<Address, MixStrategy>,
}

impl CircuitPool {
    /// Sets the strategies that the network offers, in order of preference. They apply a minute
    /// later. Circuits with other strategies are replaced within the minute after that. The first
    /// list applies at once.
    pub fn set_mixes(&mut self, now: Time, mixes: Vec<MixStrategy>) {
        let own = self.newest_offer().own.clone();
        self.put_offer(now, MixOffer { mixes, own });
    }

    /// Sets the strategies that relays have of their own. They apply a minute later too.
    pub(super) fn offer_own(&mut self, now: Time, routers: &RouterList) {
        let mixes = self.newest_offer().mixes.clone();
        let own = routers.relays().filter_map(|at| Some((at, routers.mix(at)?))).collect();
        self.put_offer(now, MixOffer { mixes, own });
    }

    fn newest_offer(&self) -> &MixOffer {
        self.coming.as_ref().map_or(&self.offer, |(_, offer)| offer)
    }

    fn put_offer(&mut self, now: Time, offer: MixOffer) {
        let is_first = self.routers.relays().next().is_none();
        if is_first || offer == self.offer {
            (self.offer, self.coming) = (offer, None);
        } else if self.coming.as_ref().is_none_or(|(_, coming)| *coming != offer) {
            let at = now + AFTER;
            self.coming = Some((at, offer));
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Applies strategies that have come into force.
    pub(super) fn settle_mixes(&mut self, now: Time) {
        if let Some((_, offer)) = self.coming.take_if(|(at, _)| *at <= now) {
            self.offer = offer;
            self.follow_mixes(now);
        }
    }

    /// Replaces circuits whose relays would treat a new circuit's cells differently.
    pub(super) fn follow_mixes(&mut self, now: Time) {
        let mut hosts = core::mem::take(&mut self.hosts);
        let lives = hosts.values_mut();
        for live in lives.flat_map(|host| host.in_use.iter_mut().chain(&mut host.standby)) {
            self.follow_mixes_with(now, live);
        }
        self.hosts = hosts;
    }

    /// Replaces one circuit in that case. It may be new: the strategies can change during a set-up.
    pub(super) fn follow_mixes_with(&mut self, now: Time, live: &mut LiveCircuit) {
        if self.mixes_of(live.relays()).0 != live.mixes {
            let soon = now + between((Duration::ZERO, SPREAD), &mut self.rng);
            live.replace_at = live.replace_at.min(soon);
            live.stale_at = live.stale_at.min(soon);
        }
    }

    /// Strategy of each of these relays, and a warning if there is one.
    pub(super) fn mixes_of(&self, relays: &[Address]) -> (Vec<MixStrategy>, Option<PathWarning>) {
        let own: Vec<_> = relays.iter().map(|at| self.offer.own.get(at).copied()).collect();
        choose(&own, &self.offer.mixes, self.config.max_added)
    }
}

/// Strategy of each relay of a circuit, and a warning if there is one. `own` are the relays' own
/// strategies, `offered` is what the network offers. `max_added` is the longest mean delay that
/// they may add in one direction.
pub fn choose(
    own: &[Option<MixStrategy>],
    offered: &[MixStrategy],
    max_added: Option<Duration>,
) -> (Vec<MixStrategy>, Option<PathWarning>) {
    let with = |offered: MixStrategy| -> Vec<MixStrategy> {
        own.iter().map(|own| own.unwrap_or(offered)).collect()
    };
    let Some(max) = max_added else {
        return (with(offered.first().copied().unwrap_or_default()), None);
    };
    let fits = |mixes: &Vec<MixStrategy>| mean(mixes) <= max;
    if let Some(mixes) = offered.iter().map(|offered| with(*offered)).find(fits) {
        return (mixes, None);
    }
    let nothing_else_is_asked = offered.is_empty() || max.is_zero();
    (with(MixStrategy::Pass), (!nothing_else_is_asked).then_some(PathWarning::Unmixed))
}

/// Mean delay that relays with these strategies add in one direction.
pub fn mean(mixes: &[MixStrategy]) -> Duration {
    shoal_mix::mean(mixes.iter().copied())
}

/// True if an overtaken packet over these relays may take longer than the destination waits for it.
/// Some packets are then delivered out of order.
pub fn loses_order(mixes: &[MixStrategy]) -> bool {
    shoal_mix::path(mixes.iter().copied()).is_too_long()
}

/// Extra time for a set-up over these relays: each hop is asked, and answers, through all relays
/// before it.
pub(super) fn build_slack(relays: usize, added: &AddedDelay) -> Duration {
    added.most * (relays as u32 + 1)
}

#[cfg(test)]
mod tests {
    use shoal_crypto::Rng;

    use super::*;
    use crate::path::{ListedRouter, Vanguards};
    use crate::pool::PoolConfig;
    use shoal_wire::MixTime;

    fn ms(ms: u64) -> MixTime {
        MixTime::from_duration(Duration::from_millis(ms)).unwrap()
    }

    fn stop(mean: u64) -> MixStrategy {
        MixStrategy::StopAndGo { mean: ms(mean), most: ms(5 * mean) }
    }

    fn pool(
        max_added: Option<u64>,
        offered: &[MixStrategy],
        own: &[Option<MixStrategy>],
    ) -> CircuitPool {
        let max_added = max_added.map(Duration::from_millis);
        let address = Address::new(1, 1);
        let config = PoolConfig { address, relays: 3, circuits_max: 64, max_added };
        let seed = Rng::new([1; 32]).fork("pool");
        let mut pool = CircuitPool::new(config, Vanguards::default(), seed, Time::ZERO, 0).unwrap();
        let relay = |(n, mix): (u32, &Option<MixStrategy>)| {
            (Address::new(n, 0), ListedRouter { relay: true, mix: *mix, ..ListedRouter::default() })
        };
        pool.set_mixes(Time::ZERO, offered.to_vec());
        pool.set_routers(Time::ZERO, RouterList::new((1..).zip(own).map(relay)));
        pool
    }

    #[test]
    fn the_first_strategy_is_taken_that_adds_no_more_than_the_host_allows() {
        let relays = [1, 2, 3].map(|n| Address::new(n, 0));
        let offered = [stop(20), stop(5), MixStrategy::Timed { every: ms(2) }];
        // The means are 19.3, 4.8 and 1 ms: in the first two, times above five means are drawn
        // again, which lowers the mean to 0.966 of its setting.
        let cases = [
            (None, offered[0], None),
            (Some(59), offered[0], None),
            (Some(58), offered[0], None),
            (Some(57), offered[1], None),
            (Some(14), offered[2], None),
            (Some(2), MixStrategy::Pass, Some(PathWarning::Unmixed)),
            (Some(0), MixStrategy::Pass, None),
        ];
        for (max, taken, warning) in cases {
            let pool = pool(max, &offered, &[None; 3]);
            assert_eq!(pool.mixes_of(&relays), (vec![taken; 3], warning), "{max:?}");
        }
        assert_eq!(pool(None, &[], &[None; 3]).mixes_of(&relays).0, [MixStrategy::Pass; 3]);
    }

    #[test]
    fn a_relay_with_a_strategy_of_its_own_uses_that_one() {
        let relays = [1, 2, 3].map(|n| Address::new(n, 0));
        let own = [None, Some(stop(20)), None];
        let mixes = pool(None, &[stop(5)], &own).mixes_of(&relays);
        assert_eq!(mixes, (vec![stop(5), stop(20), stop(5)], None));
        let mixes = pool(Some(20), &[stop(5)], &own).mixes_of(&relays);
        assert_eq!(
            mixes,
            (vec![MixStrategy::Pass, stop(20), MixStrategy::Pass], Some(PathWarning::Unmixed))
        );
    }
}
