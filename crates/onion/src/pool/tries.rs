//! Circuits over other ends, built before it is certain that those in use are dead.
//!
//! The standby has the guard and the last relay of the circuit in use. If one of these dies, both
//! circuits are silent. As soon as the circuit in use is late with an answer, its hops and the
//! standby therefore get echoes. If the standby is late too, and the circuit seems to end at its
//! guard or last relay, a *try* begins. A try is a circuit with another relay in that place only.
//! The try is used if the circuit in use counts as dead, and closed if an answer comes before.
//!
//! A relay at an end can cause tries by late answers, as it can by failures. Its gain is bounded in
//! both cases: [`crate::path::Vanguards`] limits which relays stand in, and how many are drawn. The
//! ends of a built try are kept as stand-ins, since they have learned of this host. If one were
//! forgotten, a late answer would reveal this host to yet another relay.

use core::time::Duration;

use shoal_crypto::Rng;
use shoal_wire::{Address, CircuitId, Time};

use super::live::{BuildingCircuit, LiveCircuit};
use super::{BUILDING_MAX, CircuitPlan, CircuitPool, DestinationCircuits};
use crate::onion::SetupFailure;

/// First and longest time from one try to the next for a host. It doubles with each unused try.
const AGAIN: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// Time without a try after which it starts again at the first.
const FORGIVEN: Duration = Duration::from_secs(3_600);

/// Tries for one host.
#[derive(Default)]
pub(super) struct CircuitTries {
    pub(super) building: Option<BuildingCircuit>,
    /// A built try that waits for the verdict on the circuit in use.
    pub(super) live: Option<LiveCircuit>,
    /// No try begins before this time.
    pub(super) again_at: Time,
    /// Time at which the last try began.
    last: Time,
    /// Number of tries since one was used.
    unused: u32,
}

impl CircuitTries {
    pub(super) fn is_building(&self, id: CircuitId) -> bool {
        self.building.as_ref().is_some_and(|building| building.id == Some(id))
    }

    /// True if a set-up has no id yet.
    pub(super) fn is_new(&self) -> bool {
        self.building.as_ref().is_some_and(|building| building.id.is_none())
    }

    fn note_begun(&mut self, now: Time) {
        if self.last + FORGIVEN <= now {
            self.unused = 0;
        }
        self.last = now;
        self.again_at = now + (AGAIN.0 * 2u32.saturating_pow(self.unused.min(16))).min(AGAIN.1);
        self.unused = self.unused.saturating_add(1);
    }

    fn note_used(&mut self, now: Time) {
        (self.again_at, self.unused) = (now + AGAIN.0, 0);
    }
}

impl DestinationCircuits {
    /// Sends echoes to the hops of the circuit in use once an answer is late, and to the standby.
    /// Returns the echoes for the hops.
    pub(super) fn scout(&mut self, now: Time, rng: &mut Rng) -> Vec<(CircuitId, u8, u64)> {
        let late = self.in_use.as_mut().filter(|live| live.scout.is_none() && live.is_late(now));
        let Some(live) = late else { return Vec::new() };
        if let Some(standby) = &mut self.standby {
            standby.hurry(now);
        }
        let id = live.id;
        let asked = &live.scout(now, rng).asked;
        (1..).zip(asked).map(|(hop, number)| (id, hop, *number)).collect()
    }

    /// True if neither the circuit in use nor the standby seems to answer.
    fn is_silent(&self, now: Time) -> bool {
        self.in_use.as_ref().is_none_or(|live| live.is_doubted(now))
            && self.standby.as_ref().is_none_or(|live| live.is_late(now))
    }

    /// The end relay at which the circuit in use seems to end. None if the circuit is not active,
    /// or if it ends at one of the hosts' own routers.
    fn silent_end(&self, now: Time, own: &[Address]) -> Option<Address> {
        let live = self.in_use.as_ref().filter(|live| live.is_active(now))?;
        let scout = live.scout.as_ref().filter(|scout| scout.over_at <= now)?;
        let hop = scout.silent()?;
        let relays = live.relays();
        let at = *relays.get(hop - 1)?;
        let is_end = hop == 1 || hop == relays.len();
        (is_end && !own.contains(&at)).then_some(at)
    }
}

impl CircuitPool {
    /// The host for which a try should begin. None while this host's uplink may be at fault.
    pub(super) fn next_to_try(&self, now: Time) -> Option<Address> {
        let building = self.building();
        let is_full = self.by_id.len() + building >= self.config.circuits_max;
        if building >= BUILDING_MAX || is_full || self.blame.is_doubtful() {
            return None;
        }
        let wants = |to: Address, host: &DestinationCircuits| {
            let DestinationCircuits { building, tries, .. } = host;
            let is_free = tries.building.is_none() && tries.live.is_none();
            let is_begun = building.as_ref().is_none_or(|building| building.id.is_some());
            let is_time = is_free && is_begun && tries.again_at <= now && host.is_silent(now);
            is_time && host.silent_end(now, &self.own_routers(to)).is_some()
        };
        self.hosts.iter().find(|(to, host)| wants(**to, host)).map(|(to, _)| *to)
    }

    /// Begins a try, if there is a path without the silent end.
    pub(super) fn choose_try(&mut self, now: Time, to: Address) -> Option<CircuitPlan> {
        let own = self.own_routers(to);
        let host = self.hosts.get_mut(&to)?;
        let silent = host.silent_end(now, &own)?;
        host.tries.note_begun(now);
        self.condemn(now, to);
        let mut failed = self.blame.failed(now);
        failed.retain(|at| *at != silent);
        // The last entry is tried last.
        failed.push(silent);
        let building = self.draw(now, to, &failed)?;
        let has_another = !building.path.contains(&silent);
        has_another.then(|| self.begin(now, to, building, true))
    }

    /// Handles a built try: it is used if no other circuit answers, and waits while that is
    /// uncertain.
    pub(super) fn try_built(&mut self, now: Time, to: Address, mut live: LiveCircuit) {
        // A try is replaced as soon as there is a circuit over the usual ends.
        (live.replace_at, live.stale_at) = (now, now);
        let Some(host) = self.hosts.get_mut(&to) else { return };
        if !host.is_silent(now) {
            return self.close(live.id);
        }
        host.tries.live = Some(live);
        self.settle_try(now, to);
    }

    /// Handles a failed try; `hop` is where it failed, if known.
    pub(super) fn try_failed(
        &mut self,
        now: Time,
        to: Address,
        hop: Option<usize>,
        why: SetupFailure,
    ) {
        let host = self.hosts.get_mut(&to);
        let Some(building) = host.and_then(|host| host.tries.building.take()) else { return };
        self.set_ups.failed += 1;
        let relays = &building.path[..building.path.len() - 1];
        let at = hop.and_then(|hop| Some((hop, *relays.get(hop.checked_sub(1)?)?)));
        match (at, why) {
            (None, _) | (_, SetupFailure::Here) => {}
            (Some((1, first)), SetupFailure::Silent) => {
                self.blame.note_silent(now, building.began, first);
            }
            (Some((1, first)), _) => self.blame.note_wrong(now, building.began, first),
            (Some((hop, at)), _) => {
                self.blame.note_leg(now, building.began, relays[hop - 2], at);
            }
        }
    }

    /// Ends a try that takes too long or is not needed, and uses one that is needed.
    pub(super) fn settle_try(&mut self, now: Time, to: Address) {
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let late = host.tries.building.as_ref().filter(|b| host.late_at(b) <= now);
        if let Some((id, hops)) = late.map(|b| (b.id, b.hops)) {
            id.into_iter().for_each(|id| self.close(id));
            self.try_failed(now, to, Some(hops + 1), SetupFailure::Silent);
        }
        let Some(host) = self.hosts.get_mut(&to) else { return };
        if !host.is_silent(now) {
            let unused = host.tries.live.take();
            unused.into_iter().for_each(|live| self.close(live.id));
        } else if host.lacks_circuit() {
            self.use_tried(now, to);
        }
    }

    /// Uses the built try, if there is one and the standby is as silent as the circuit in use.
    /// Returns true if it does.
    pub(super) fn use_tried(&mut self, now: Time, to: Address) -> bool {
        let Some(host) = self.hosts.get_mut(&to) else { return false };
        if host.standby.as_ref().is_some_and(|standby| !standby.is_late(now)) {
            return false;
        }
        let Some(tried) = host.tries.live.take() else { return false };
        host.tries.note_used(now);
        let silent = host.standby.replace(tried);
        self.take_over(now, to, true);
        silent.into_iter().for_each(|live| self.end(now, to, live, true));
        true
    }
}
