//! Rate of echoes on covered links: a schedule has few frames, and echoes must leave most of them
//! to programs.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{Address, CoverTier, Time};

use super::CircuitPool;

/// Share of a covered link's frames for echoes: one of this many.
const SHARE: u32 = 10;
/// Number of other hosts' active circuits that a covered host is assumed to have. It can't tell
/// them the real number.
const CALLERS: u32 = 16;

/// Schedules of this host's link, and of other hosts' links.
#[derive(Debug, Default)]
pub(super) struct EchoPaces {
    own: Option<CoverTier>,
    far: BTreeMap<Address, CoverTier>,
}

impl EchoPaces {
    /// Least time between two echoes of a circuit to this host, while `in_use` circuits of this
    /// host are active.
    fn of(&self, to: Address, in_use: u32) -> Duration {
        let gap = |tier: &CoverTier, circuits| tier.frame_gap() * SHARE * circuits;
        let own = self.own.as_ref().map(|tier| gap(tier, in_use));
        let far = self.far.get(&to).map(|tier| gap(tier, CALLERS));
        own.max(far).unwrap_or_default()
    }
}

impl CircuitPool {
    /// Sets the schedules of this host's link, and of other hosts' links that have one. Echoes then
    /// use at most a tenth of a schedule.
    pub fn set_tiers(&mut self, own: Option<CoverTier>, far: BTreeMap<Address, CoverTier>) {
        self.paces = EchoPaces { own, far };
    }

    /// Sets the rate of echoes on all circuits to the highest that schedules allow.
    pub(super) fn settle_paces(&mut self, now: Time) {
        let live = self.hosts.values().filter_map(|host| host.in_use.as_ref());
        let in_use = live.filter(|live| live.is_active(now)).count() as u32;
        for (to, host) in &mut self.hosts {
            let pace = self.paces.of(*to, in_use.max(1));
            host.in_use.iter_mut().chain(&mut host.standby).for_each(|live| live.pace = pace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_wire::CoverKind;

    #[test]
    fn echoes_take_a_tenth_of_a_schedule() {
        let tier = |mbit| CoverTier::new(mbit, CoverKind::Constant).unwrap();
        let (here, there) = (Address::new(1, 7), Address::new(2, 7));
        let paces = EchoPaces { own: Some(tier(2)), far: BTreeMap::from([(there, tier(10))]) };
        // 174 frames a second allow 17 echoes, of 19 circuits or of one.
        assert_eq!(paces.of(here, 19), Duration::from_micros(57_600 * 19));
        assert_eq!(paces.of(here, 1), Duration::from_micros(57_600));
        assert_eq!(paces.of(there, 1), Duration::from_micros(11_520 * 16));
        assert_eq!(EchoPaces::default().of(there, 19), Duration::ZERO);
    }
}
