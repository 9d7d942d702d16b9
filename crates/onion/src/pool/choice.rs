//! Choice of the relays of a circuit that is to be built.

use shoal_wire::{Address, Time};

use super::live::{self, BuildingCircuit, LiveCircuit};
use super::{CircuitPlan, CircuitPool, RETRY};
use crate::path::{self, PathRequest};

impl CircuitPool {
    /// The set-up of another circuit to `to`; none if there is no relay.
    pub(super) fn choose(&mut self, now: Time, to: Address) -> Option<CircuitPlan> {
        self.condemn(now, to);
        let mut failed = self.blame.failed(now);
        let host = self.hosts.get(&to)?;
        failed.extend(host.last_to_spare().filter(|at| !failed.contains(at)));
        let drawn = self.draw(now, to, &failed);
        let host = self.hosts.get_mut(&to)?;
        host.has_no_relays = drawn.is_none();
        let Some(building) = drawn else {
            host.retry_at = now + RETRY.1;
            return None;
        };
        Some(self.begin(now, to, building, false))
    }

    /// Condemns ends of paths to `to` that failed with every relay that can be next to them.
    pub(super) fn condemn(&mut self, now: Time, to: Address) {
        for (end, others) in self.blame.accused(now) {
            let (own, from, relays) = (self.own_routers(to), self.homes.in_use, self.config.relays);
            if own.contains(&end) {
                continue;
            }
            let (unix_s, failed) = (self.unix_s(now), self.blame.failed(now));
            let (failed, also) = (&failed[..], &own[..]);
            let (beside, doubtful) = (&[][..], &others[..]);
            let ask = PathRequest { from, to, relays, unix_s, failed, beside, doubtful, also };
            if !path::leads_past(&self.routers, &ask, &self.kept, &mut self.rng, end) {
                self.blame.condemn(end);
            }
        }
    }

    /// Draws a path to `to` without the failed relays, if possible; none if there is no relay.
    pub(super) fn draw(
        &mut self,
        now: Time,
        to: Address,
        failed: &[Address],
    ) -> Option<BuildingCircuit> {
        let unix_s = self.unix_s(now);
        let host = self.hosts.get(&to)?;
        let others = host.in_use.iter().flat_map(LiveCircuit::relays).chain(&host.spared);
        let beside: Vec<Address> = others.copied().collect();
        let doubtful: Vec<Address> = self.blame.doubtful(now).collect();
        let ([home, end], also) = (self.ends(to, host), self.own_routers(to));
        let ask = PathRequest {
            from: home,
            to: end,
            relays: self.config.relays,
            unix_s,
            failed,
            beside: &beside,
            doubtful: &doubtful,
            also: &also,
        };
        let chosen = path::choose(&self.routers, &ask, &mut self.kept, &mut self.rng).ok()?;
        let life = live::between((self.life * 4 / 5, self.life * 6 / 5), &mut self.rng);
        let path::RelayPath { relays: mut path, mut warnings } = chosen;
        let (mixes, warning) = self.mixes_of(&path);
        warnings.extend(warning);
        let added = shoal_mix::path(mixes.iter().copied());
        path.push(end);
        Some(BuildingCircuit {
            id: None,
            home,
            path,
            mixes,
            added,
            hops: 0,
            warnings,
            is_doubtful: self.blame.is_doubtful(),
            began: now,
            life,
        })
    }

    /// Begins a set-up or a try.
    pub(super) fn begin(
        &mut self,
        now: Time,
        to: Address,
        building: BuildingCircuit,
        is_try: bool,
    ) -> CircuitPlan {
        let BuildingCircuit { home, path, mixes, life, .. } = &building;
        self.blame.note_chosen(now, &path[..path.len() - 1]);
        let (home, path, mixes, life) = (*home, path.clone(), mixes.clone(), *life);
        if let Some(host) = self.hosts.get_mut(&to) {
            let place = if is_try { &mut host.tries.building } else { &mut host.building };
            *place = Some(building);
        }
        CircuitPlan { to, home, path, shape: self.shape, life, mixes }
    }
}
