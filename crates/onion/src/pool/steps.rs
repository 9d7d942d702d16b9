//! Effects of time on circuits.

use core::time::Duration;

use shoal_wire::{Address, CircuitId, Time};

use super::live::{BuildingCircuit, EndingCircuit, LiveCircuit};
use super::mixes::build_slack;
use super::tries::CircuitTries;
use super::{BUILD_MAX, CircuitPool, DestinationCircuits, LastFailure, RETRY, WANTED};
use crate::onion::SetupFailure;

/// Time for cells on their way over a replaced circuit to arrive.
const DRAIN: Duration = Duration::from_secs(10);
/// Time without an answer after which a circuit in use is given up.
const SURE: Duration = Duration::from_secs(5);
/// Most circuits to one host that wait to be closed.
const ENDING_MAX: usize = 4;
/// After this many set-ups in a row that reached their last relay, every second one uses another
/// last relay. Whether that relay or the host behind it is at fault can't be told.
const AT_LAST: u32 = 4;

impl DestinationCircuits {
    pub(super) fn new(now: Time) -> DestinationCircuits {
        DestinationCircuits {
            wanted: now,
            in_use: None,
            standby: None,
            building: None,
            tries: CircuitTries::default(),
            ending: Vec::new(),
            failures: 0,
            legs: 0,
            cut: 0,
            last: None,
            at_last: None,
            retry_at: now,
            spared: Vec::new(),
            has_no_relays: false,
            verdict: None,
        }
    }

    /// True if a new standby is needed.
    pub(super) fn lacks_standby(&self, now: Time) -> bool {
        self.standby.as_ref().is_none_or(|live| live.stale_at <= now)
    }

    /// Ids of all its circuits.
    pub(super) fn ids(&self) -> Vec<CircuitId> {
        let live = self.in_use.iter().chain(&self.standby).chain(&self.tries.live);
        let live = live.map(|live| live.id);
        let building = self.building.iter().chain(&self.tries.building);
        let building = building.filter_map(|building| building.id);
        live.chain(building).chain(self.ending.iter().map(|ending| ending.id)).collect()
    }

    /// True if a set-up is more urgent than that of a standby.
    pub(super) fn lacks_circuit(&self) -> bool {
        self.in_use.as_ref().is_none_or(|live| live.silent_since.is_some())
    }

    /// Time at which a set-up has taken too long.
    pub(super) fn late_at(&self, building: &BuildingCircuit) -> Time {
        // A set-up over another middle needs no more time, so only every second such failure
        // extends it.
        let failures = self.failures.saturating_add(self.cut).saturating_sub(self.legs.div_ceil(2));
        let most = (BUILD_MAX.0 * 2u32.saturating_pow(failures.min(16))).min(BUILD_MAX.1);
        building.began + most + build_slack(building.path.len() - 1, &building.added)
    }

    /// The last relay behind which the host was silent so often that the next set-up avoids it.
    pub(super) fn last_to_spare(&self) -> Option<Address> {
        let is_turn = |times: u32| times >= AT_LAST && times.is_multiple_of(2);
        self.at_last.filter(|(_, times)| is_turn(*times)).map(|(at, _)| at)
    }

    /// Time of the next deadline, if nothing else happens.
    fn due(&self, now: Time) -> Time {
        let mut due = self.wanted + WANTED;
        // An overdue deadline already waits for something else.
        let mut by = |at: Time| due = if at > now { due.min(at) } else { due };
        if let Some(live) = &self.in_use {
            by(live.due(now));
            by(live.replace_at);
            live.silent_since.into_iter().for_each(|at| by(at + SURE));
            live.probe.iter().chain(&live.scout).for_each(|probe| by(probe.over_at));
        }
        if let Some(live) = &self.standby {
            by(live.due(now));
            by(live.stale_at);
        }
        let building = self.building.iter().chain(&self.tries.building);
        building.for_each(|building| by(self.late_at(building)));
        self.ending.iter().for_each(|ending| by(ending.close_at));
        by(self.retry_at);
        by(self.tries.again_at);
        due
    }
}

impl CircuitPool {
    /// Does all work that is due, and computes the next deadline.
    pub(super) fn settle(&mut self, now: Time) {
        self.blame.forget_old(now);
        let has_middles = self.config.relays > 2;
        let ends = has_middles.then(|| self.kept.ends()).into_iter().flatten().flatten();
        self.blame.set_ends(ends.collect());
        self.settle_mixes(now);
        self.settle_paces(now);
        let all: Vec<Address> = self.hosts.keys().copied().collect();
        for to in all {
            self.settle_host(now, to);
        }
        let may_build = self.next_to_try(now).or_else(|| self.next_to_build(now)).is_some();
        let coming = self.coming.as_ref().map(|(at, _)| *at);
        let due = self.hosts.values().map(|host| host.due(now)).chain(coming).min();
        (self.now, self.due) = (now, if may_build { Some(now) } else { due });
    }

    fn settle_host(&mut self, now: Time, to: Address) {
        let Some(host) = self.hosts.get_mut(&to) else { return };
        if host.wanted + WANTED <= now {
            return self.drop_host(to);
        }
        let late = host.building.as_ref().filter(|b| host.late_at(b) <= now);
        if let Some((id, hops)) = late.map(|b| (b.id, b.hops)) {
            id.into_iter().for_each(|id| self.close(id));
            self.failed(now, to, Some(hops + 1), SetupFailure::Silent);
        }
        self.settle_try(now, to);
        self.settle_loops(now, to);
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let both = host.in_use.iter().chain(&host.standby);
        let dead = both.filter(|live| live.dead_at().is_some_and(|at| at <= now));
        for id in dead.map(|live| live.id).collect::<Vec<_>>() {
            self.die(now, id);
        }
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let is_fresh = host.standby.as_ref().is_some_and(|live| live.replace_at > now);
        let in_use = host.in_use.as_ref();
        if is_fresh && in_use.is_some_and(|live| live.replace_at <= now) {
            self.take_over(now, to, false);
        } else if in_use.and_then(|live| live.silent_since).is_some_and(|at| at + SURE <= now) {
            self.take_over(now, to, true);
        }
        let Some(host) = self.hosts.get_mut(&to) else { return };
        self.echoes.extend(host.scout(now, &mut self.rng));
        for live in host.in_use.iter_mut().chain(&mut host.standby) {
            if let Some(number) = live.ask(now, &mut self.rng) {
                self.echoes.push_back((live.id, live.path.len() as u8, number));
            }
        }
        if let Some(live) = &mut host.in_use
            && let Some(probe) = live.probe.take_if(|probe| probe.over_at <= now)
            && let Some((before, at)) = probe.broken(&live.path)
        {
            self.blame.note_leg(now, probe.asked_at, before, at);
        }
        let over = host.ending.extract_if(.., |ending| ending.close_at <= now);
        for EndingCircuit { id, path, probe, .. } in over.collect::<Vec<_>>() {
            if let Some(probe) = probe
                && let Some((before, at)) = probe.broken(&path)
            {
                self.blame.note_leg(now, probe.asked_at, before, at);
            }
            self.close(id);
        }
    }

    /// Drops a host that gets no more data.
    pub(super) fn drop_host(&mut self, to: Address) {
        let Some(host) = self.hosts.remove(&to) else { return };
        if host.in_use.is_some() {
            self.switches.push_back((to, None));
        }
        host.ids().into_iter().for_each(|id| self.close(id));
    }

    /// Replaces the circuit in use by the standby, if there is one. The old circuit is closed after
    /// a while.
    pub(super) fn take_over(&mut self, now: Time, to: Address, is_dead: bool) {
        if let Some(old) = self.promote(now, to) {
            self.end(now, to, old, is_dead);
        }
    }

    /// Replaces the circuit in use by the standby, if there is one. Returns the old one.
    fn promote(&mut self, now: Time, to: Address) -> Option<LiveCircuit> {
        let host = self.hosts.get_mut(&to)?;
        let old = core::mem::replace(&mut host.in_use, host.standby.take());
        if let Some(live) = &mut host.in_use {
            // Programs that used the old circuit use this one from here on.
            live.used = now;
            live.wake(now, &mut self.rng);
        }
        let id = host.in_use.as_ref().map(|live| live.id);
        self.switches.push_back((to, id));
        old
    }

    /// Closes a circuit after a while.
    pub(super) fn end(&mut self, now: Time, to: Address, live: LiveCircuit, is_dead: bool) {
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let probe = is_dead.then(|| live.ask_hops(now, &mut self.rng));
        if let Some(probe) = &probe {
            host.spared = live.relays().to_vec();
            self.echoes
                .extend((1..).zip(&probe.asked).map(|(hop, number)| (live.id, hop, *number)));
        }
        let LiveCircuit { id, path, built, ends, .. } = live;
        let close_at = probe.as_ref().map_or(now + DRAIN, |probe| probe.over_at);
        let close_at = close_at.min(ends.max(now));
        let first = host.ending.len() >= ENDING_MAX;
        let first = first.then(|| host.ending.remove(0).id);
        host.ending.push(EndingCircuit { id, path, built, close_at, probe });
        first.into_iter().for_each(|id| self.close(id));
    }

    /// Handles a dead circuit. If it is in use, the standby replaces it. Without a standby it stays
    /// in use until another is built or it was silent for long: under a backlog, answers come late.
    pub(super) fn die(&mut self, now: Time, id: CircuitId) {
        let Some(&to) = self.by_id.get(&id) else { return };
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let in_use = host.in_use.as_mut().filter(|live| live.id == id);
        if in_use.is_some() && self.use_tried(now, to) {
            return;
        }
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let in_use = host.in_use.as_mut().filter(|live| live.id == id);
        match (in_use, &host.standby) {
            (Some(_), Some(_)) => self.take_over(now, to, true),
            (Some(live), None) => {
                if live.silent_since.is_none() {
                    let probe = live.ask_hops(now, &mut self.rng);
                    self.echoes.extend((1..).zip(&probe.asked).map(|(hop, n)| (id, hop, *n)));
                    live.probe = Some(probe);
                }
                live.note_silent(now, &mut self.rng);
            }
            (None, _) => {
                if let Some(live) = host.standby.take_if(|live| live.id == id) {
                    self.end(now, to, live, true);
                }
            }
        }
    }

    /// Handles a circuit that is gone.
    pub(super) fn lose(&mut self, now: Time, id: CircuitId) {
        let Some((to, host)) = self.host_of(id) else { return };
        let is_building = host.building.as_ref().is_some_and(|building| building.id == Some(id));
        let is_in_use = host.in_use.as_ref().is_some_and(|live| live.id == id);
        let is_try = host.tries.is_building(id);
        host.tries.live.take_if(|live| live.id == id);
        host.ending.retain(|ending| ending.id != id);
        host.standby.take_if(|live| live.id == id);
        self.by_id.remove(&id);
        self.echoes.retain(|(echoed, ..)| *echoed != id);
        if is_building {
            self.failed(now, to, None, SetupFailure::Silent);
        } else if is_try {
            self.try_failed(now, to, None, SetupFailure::Silent);
        } else if is_in_use {
            self.promote(now, to);
        }
    }

    /// Handles a failed set-up to `to`; `hop` is where it failed, if known.
    pub(super) fn failed(&mut self, now: Time, to: Address, hop: Option<usize>, why: SetupFailure) {
        self.set_ups.failed += 1;
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let Some(building) = host.building.take() else { return };
        let path = &building.path;
        let at = hop.and_then(|hop| Some((hop, *path.get(hop.checked_sub(1)?)?)));
        let before = at.and_then(|(hop, _)| path.get(hop.checked_sub(2)?).copied());
        host.last = at.map(|(hop, node)| LastFailure { hop: hop as u8, node, before, why });
        let at_last = host.at_last.take();
        let again = |before: Option<(_, u32)>| before.map_or(1, |(_, n)| n.saturating_add(1));
        match (why, at, before) {
            (SetupFailure::Here, ..) | (_, None, _) => {
                host.spared = path[..path.len() - 1].to_vec()
            }
            (SetupFailure::Silent, Some((_, first)), None) => {
                self.blame.note_silent(now, building.began, first);
            }
            (_, Some((_, first)), None) => self.blame.note_wrong(now, building.began, first),
            (_, Some((_, next)), Some(before)) if next.is_router() => {
                self.blame.note_leg(now, building.began, before, next);
                host.legs = host.legs.saturating_add(1);
                // With two relays, neither can be left out of a middle. The other host's router
                // can't be left out either, but a host at two routers has another address.
                let is_at_end = path.last().is_some_and(|end| end.router == next.router);
                if path.len() == 3 || (is_at_end && self.seconds.contains_key(&to)) {
                    host.at_last = Some((next, again(at_last)));
                }
            }
            (_, Some(_), Some(last)) => {
                host.at_last = Some((last, again(at_last)));
            }
        }
        let wait = RETRY.0 * 2u32.saturating_pow(host.failures.min(16));
        let wait = wait.min(RETRY.1);
        let spread = self.rng.below(wait.as_nanos() as u64 / 2 + 1);
        let count = if self.blame.is_cut() { &mut host.cut } else { &mut host.failures };
        *count = count.saturating_add(1);
        host.retry_at = now + wait * 3 / 4 + Duration::from_nanos(spread);
    }
}
