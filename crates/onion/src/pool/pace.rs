//! How often circuits are echoed where links are covered: a schedule has few frames, and echoes
//! must leave most of them to what programs send.

use core::time::Duration;
use std::collections::BTreeMap;

use shoal_wire::{Address, CoverTier, Time};

use super::Pool;

/// Echoes get one of so many frames of a covered link.
const SHARE: u32 = 10;
/// Circuits of others that a covered host is assumed to have in use; it can't tell them the real
/// number.
const CALLERS: u32 = 16;

/// The schedules of this host's link and of others'.
#[derive(Debug, Default)]
pub(super) struct Paces {
    own: Option<CoverTier>,
    far: BTreeMap<Address, CoverTier>,
}

impl Paces {
    /// The least time between two echoes of a circuit to this host, while so many circuits of this
    /// host are in use.
    fn of(&self, to: Address, in_use: u32) -> Duration {
        let gap = |tier: &CoverTier, circuits| tier.frame_gap() * SHARE * circuits;
        let own = self.own.as_ref().map(|tier| gap(tier, in_use));
        let far = self.far.get(&to).map(|tier| gap(tier, CALLERS));
        own.max(far).unwrap_or_default()
    }
}

impl Pool {
    /// Says by which schedule frames leave this host's link, and those of other hosts, where they
    /// do: circuits are echoed so seldom that echoes take a tenth of a schedule.
    pub fn set_tiers(&mut self, own: Option<CoverTier>, far: BTreeMap<Address, CoverTier>) {
        self.paces = Paces { own, far };
    }

    /// Has all circuits echoed as often as schedules allow.
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
        let paces = Paces { own: Some(tier(2)), far: BTreeMap::from([(there, tier(10))]) };
        // 174 frames a second: 17 echoes, of 19 circuits or of one.
        assert_eq!(paces.of(here, 19), Duration::from_micros(57_600 * 19));
        assert_eq!(paces.of(here, 1), Duration::from_micros(57_600));
        assert_eq!(paces.of(there, 1), Duration::from_micros(11_520 * 16));
        assert_eq!(Paces::default().of(there, 19), Duration::ZERO);
    }
}
