//! What a host has the relays of its circuits do with cells.
//!
//! All hosts that leave it open take the first strategy of the network's list: who takes another
//! one stands out among those who don't. A relay with a strategy of its own does that, whatever a
//! circuit names.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_mix::Added;
use shoal_wire::{Address, Strategy, Time};

use super::Pool;
use super::live::{Live, between};
use crate::path::{Routers, Warning};

/// How long circuits are still built with the strategies of the list before, which relays take for
/// longer: a relay that does not have the new list yet lets a set-up with another strategy die.
const AFTER: Duration = Duration::from_secs(60);
/// Within so long after that, circuits with other strategies give way.
const SPREAD: Duration = Duration::from_secs(60);

/// What relays do with the cells of circuits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Offer {
    /// The strategies that circuits may name, the first one first.
    pub(super) mixes: Vec<Strategy>,
    /// Those of relays that have one of their own.
    own: BTreeMap<Address, Strategy>,
}

impl Pool {
    /// Says which strategies the network offers, the first one first. They count a minute later,
    /// and within another minute circuits with others give way; the first list counts at once.
    pub fn set_mixes(&mut self, now: Time, mixes: Vec<Strategy>) {
        let own = self.newest_offer().own.clone();
        self.put_offer(now, Offer { mixes, own });
    }

    /// Says the same of what relays do with all circuits.
    pub(super) fn offer_own(&mut self, now: Time, routers: &Routers) {
        let mixes = self.newest_offer().mixes.clone();
        let own = routers.relays().filter_map(|at| Some((at, routers.mix(at)?))).collect();
        self.put_offer(now, Offer { mixes, own });
    }

    fn newest_offer(&self) -> &Offer {
        self.coming.as_ref().map_or(&self.offer, |(_, offer)| offer)
    }

    fn put_offer(&mut self, now: Time, offer: Offer) {
        let is_first = self.routers.relays().next().is_none();
        if is_first || offer == self.offer {
            (self.offer, self.coming) = (offer, None);
        } else if self.coming.as_ref().is_none_or(|(_, coming)| *coming != offer) {
            let at = now + AFTER;
            self.coming = Some((at, offer));
            self.due = Some(self.due.map_or(at, |due| due.min(at)));
        }
    }

    /// Puts in force what relays do by now.
    pub(super) fn settle_mixes(&mut self, now: Time) {
        if let Some((_, offer)) = self.coming.take_if(|(at, _)| *at <= now) {
            self.offer = offer;
            self.follow_mixes(now);
        }
    }

    /// Has circuits give way whose relays would do something else with a new one's cells.
    pub(super) fn follow_mixes(&mut self, now: Time) {
        let mut hosts = core::mem::take(&mut self.hosts);
        let lives = hosts.values_mut();
        for live in lives.flat_map(|host| host.in_use.iter_mut().chain(&mut host.standby)) {
            self.follow_mixes_with(now, live);
        }
        self.hosts = hosts;
    }

    /// The same with one circuit, which may have been set up meanwhile.
    pub(super) fn follow_mixes_with(&mut self, now: Time, live: &mut Live) {
        if self.mixes_of(live.relays()).0 != live.mixes {
            let soon = now + between((Duration::ZERO, SPREAD), &mut self.rng);
            live.replace_at = live.replace_at.min(soon);
            live.stale_at = live.stale_at.min(soon);
        }
    }

    /// What each of these relays does with cells, and what must be said about it.
    pub(super) fn mixes_of(&self, relays: &[Address]) -> (Vec<Strategy>, Option<Warning>) {
        let own: Vec<_> = relays.iter().map(|at| self.offer.own.get(at).copied()).collect();
        choose(&own, &self.offer.mixes, self.config.max_added)
    }
}

/// What each relay of a circuit does with cells, and what must be said about it. `own` are the
/// strategies of those relays that have one, `offered` is what the network offers, and `max_added`
/// what they may add in the mean, one way.
pub fn choose(
    own: &[Option<Strategy>],
    offered: &[Strategy],
    max_added: Option<Duration>,
) -> (Vec<Strategy>, Option<Warning>) {
    let with = |offered: Strategy| -> Vec<Strategy> {
        own.iter().map(|own| own.unwrap_or(offered)).collect()
    };
    let Some(max) = max_added else {
        return (with(offered.first().copied().unwrap_or_default()), None);
    };
    let fits = |mixes: &Vec<Strategy>| mean(mixes) <= max;
    if let Some(mixes) = offered.iter().map(|offered| with(*offered)).find(fits) {
        return (mixes, None);
    }
    let nothing_else_is_asked = offered.is_empty() || max.is_zero();
    (with(Strategy::Pass), (!nothing_else_is_asked).then_some(Warning::Unmixed))
}

/// What relays with these strategies add in the mean, one way.
pub fn mean(mixes: &[Strategy]) -> Duration {
    shoal_mix::mean(mixes.iter().copied())
}

/// Whether packets over relays with these strategies may be on the way for longer than the end
/// waits for one that others overtook, so that some are delivered out of order.
pub fn loses_order(mixes: &[Strategy]) -> bool {
    shoal_mix::path(mixes.iter().copied()).is_too_long()
}

/// How much longer a set-up over these relays may take than over others: each hop is asked through
/// all relays before it, and answers through them.
pub(super) fn build_slack(relays: usize, added: &Added) -> Duration {
    added.most * (relays as u32 + 1)
}

#[cfg(test)]
mod tests {
    use shoal_crypto::Rng;

    use super::*;
    use crate::path::{Kept, Router};
    use crate::pool::Config;
    use shoal_wire::MixTime;

    fn ms(ms: u64) -> MixTime {
        MixTime::from_duration(Duration::from_millis(ms)).unwrap()
    }

    fn stop(mean: u64) -> Strategy {
        Strategy::StopAndGo { mean: ms(mean), most: ms(5 * mean) }
    }

    fn pool(max_added: Option<u64>, offered: &[Strategy], own: &[Option<Strategy>]) -> Pool {
        let max_added = max_added.map(Duration::from_millis);
        let address = Address::new(1, 1);
        let config = Config { address, relays: 3, circuits_max: 64, max_added };
        let seed = Rng::new([1; 32]).fork("pool");
        let mut pool = Pool::new(config, Kept::default(), seed, Time::ZERO, 0).unwrap();
        let relay = |(n, mix): (u32, &Option<Strategy>)| {
            (Address::new(n, 0), Router { relay: true, mix: *mix, ..Router::default() })
        };
        pool.set_mixes(Time::ZERO, offered.to_vec());
        pool.set_routers(Time::ZERO, Routers::new((1..).zip(own).map(relay)));
        pool
    }

    #[test]
    fn the_first_strategy_is_taken_that_adds_no_more_than_the_host_allows() {
        let relays = [1, 2, 3].map(|n| Address::new(n, 0));
        let offered = [stop(20), stop(5), Strategy::Timed { every: ms(2) }];
        // The means are 0.966 of 20 and 5 ms, since times above five means are drawn again, and 1.
        let cases = [
            (None, offered[0], None),
            (Some(59), offered[0], None),
            (Some(58), offered[0], None),
            (Some(57), offered[1], None),
            (Some(14), offered[2], None),
            (Some(2), Strategy::Pass, Some(Warning::Unmixed)),
            (Some(0), Strategy::Pass, None),
        ];
        for (max, taken, warning) in cases {
            let pool = pool(max, &offered, &[None; 3]);
            assert_eq!(pool.mixes_of(&relays), (vec![taken; 3], warning), "{max:?}");
        }
        assert_eq!(pool(None, &[], &[None; 3]).mixes_of(&relays).0, [Strategy::Pass; 3]);
    }

    #[test]
    fn a_relay_with_a_strategy_of_its_own_does_that() {
        let relays = [1, 2, 3].map(|n| Address::new(n, 0));
        let own = [None, Some(stop(20)), None];
        let mixes = pool(None, &[stop(5)], &own).mixes_of(&relays);
        assert_eq!(mixes, (vec![stop(5), stop(20), stop(5)], None));
        let mixes = pool(Some(20), &[stop(5)], &own).mixes_of(&relays);
        assert_eq!(mixes, (vec![Strategy::Pass, stop(20), Strategy::Pass], Some(Warning::Unmixed)));
    }
}
