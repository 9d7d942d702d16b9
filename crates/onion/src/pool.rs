//! Which circuits a host has: to each host that it speaks with one in use and one that stands by.
//!
//! In: hosts that are wanted, the network's relays, what became of circuits, time. Out: circuits to
//! build, to use, to close, and echoes to send.
//!
//! ```text
//! want --> poll_build --> Onion::build --> note_begun, note_built | note_failed
//!          poll_switch: the circuit that goes to a host from now on
//!          poll_echo --> Onion::echo --> note_echoed     three are missing: the standby takes over
//!                                                        some, of loops: another circuit is built
//!          poll_close --> Onion::close
//! ```
//!
//! A circuit lives for ten minutes, or up to a fifth more or less. The one in use gives way to the
//! standby before it ends, and is closed later, so that what is on the way arrives. A standby that
//! is half as old as it may become gives way to a new one.
//!
//! Driving it: after any call take everything from the `poll_` methods; call
//! [`Pool::handle_timeout`] at [`Pool::poll_timeout`].
//!
//! Invariants: a host has at most one circuit in use and one standby, and one more is built at a
//! time, with a try beside it at most (`tries`); a relay that failed is avoided for a while, and
//! taken again where no other path keeps the same rules ([`crate::path`]).

mod blame;
mod echoes;
mod live;
mod loops;
pub mod mixes;
mod pace;
mod steps;
mod tries;
mod view;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};

use shoal_crypto::Rng;
use shoal_wire::leg::Shape;
use shoal_wire::{Address, CircuitId, DropReason, ParseError, Strategy, Time};

use crate::onion::{Failure, unix_s_at_zero};
use crate::path::{self, Ask, Kept, Routers, Warning};
pub use blame::Avoided;
use blame::Blame;
use live::{Building, Ending, Live};
pub use loops::{LoopTotals, Verdict};
use mixes::Offer;
use pace::Paces;
use tries::Tries;
pub use view::{CircuitState, CircuitView, HostView, Problem, SetUps};

/// Tag places at least, however few relays there are: circuits of up to three relays look alike.
const TAGS_MIN: u8 = 3;
/// A circuit's life. It may be longer or shorter by a fifth.
const LIFE: Duration = Duration::from_secs(600);
/// A host that nothing was sent to for so long gets no new circuits.
const WANTED: Duration = Duration::from_secs(600);
/// A set-up that takes longer has failed: at first, and after failures, each of which doubles it.
/// A cell that gets lost is not sent again.
const BUILD_MAX: (Duration, Duration) = (Duration::from_millis(1_500), Duration::from_secs(5));
/// First and longest wait after failed set-ups.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// Set-ups at once.
const BUILDING_MAX: usize = 8;
/// What a pool is told at its start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The host's own address.
    pub address: Address,
    /// Relays of each circuit, 1 to 5.
    pub relays: u8,
    /// Circuits at most, of all kinds.
    pub circuits_max: usize,
    /// What the relays of a circuit may add in the mean, one way; zero for no mixes. None: the
    /// first strategy of the network is used, whatever it adds.
    pub max_added: Option<Duration>,
}

/// A circuit to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The host that it leads to.
    pub to: Address,
    /// The relays, and `to` behind them.
    pub path: Vec<Address>,
    /// How its cells are divided.
    pub shape: Shape,
    /// How long it lives.
    pub life: Duration,
    /// What each relay does with cells.
    pub mixes: Vec<Strategy>,
}

/// What is known of one destination.
struct Host {
    /// When something was last to go there.
    wanted: Time,
    in_use: Option<Live>,
    standby: Option<Live>,
    building: Option<Building>,
    tries: Tries,
    ending: Vec<Ending>,
    /// Set-ups that failed in a row, but for those that this host's uplink is at fault for.
    failures: u32,
    /// How many of these ended between two relays: the next one goes over another middle.
    legs: u32,
    /// Set-ups in a row that this host's uplink is at fault for.
    cut: u32,
    /// The last of either.
    last: Option<LastFailure>,
    /// How many set-ups in a row came as far as their last relay, and over which the last one went.
    at_last: Option<(Address, u32)>,
    /// No set-up begins before.
    retry_at: Time,
    /// The relays of the circuit that failed last, if it is not known on which leg.
    spared: Vec<Address>,
    has_no_relays: bool,
    /// What loops last showed of one of its circuits, and when.
    verdict: Option<(Verdict, Time)>,
}

/// Where and why a set-up ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// The hop that is not there, counted from 1.
    pub hop: u8,
    /// Which node it is.
    pub node: Address,
    /// The hop before it; none of hop 1.
    pub before: Option<Address>,
    /// Why.
    pub why: Failure,
}

/// The circuits that one host begins.
pub struct Pool {
    config: Config,
    shape: Shape,
    routers: Routers,
    /// The strategies that the network offers, and those of relays.
    offer: Offer,
    /// What a newer list says of them, and from when on that counts.
    coming: Option<(Time, Offer)>,
    kept: Kept,
    kept_is_new: bool,
    rng: Rng,
    life: Duration,
    /// Unix seconds at time zero.
    unix_s: u64,
    hosts: BTreeMap<Address, Host>,
    by_id: BTreeMap<CircuitId, Address>,
    blame: Blame,
    switches: VecDeque<(Address, Option<CircuitId>)>,
    closes: VecDeque<CircuitId>,
    echoes: VecDeque<(CircuitId, u8, u64)>,
    set_ups: SetUps,
    /// How often circuits may be echoed.
    paces: Paces,
    /// Whether loops are sent.
    has_loops: bool,
    loop_totals: LoopTotals,
    /// When the state was last looked at.
    now: Time,
    due: Option<Time>,
}

impl Pool {
    /// A pool without circuits. `kept` are the relays that this host stays with; `unix_ms` is the
    /// wall clock that goes with `now`.
    ///
    /// # Errors
    ///
    /// `config.relays` is not 1 to 5.
    pub fn new(
        config: Config,
        kept: Kept,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Result<Pool, ParseError> {
        Ok(Pool {
            config,
            shape: Shape::new(config.relays.max(TAGS_MIN))?,
            routers: Routers::default(),
            offer: Offer::default(),
            coming: None,
            kept,
            kept_is_new: false,
            rng: Rng::new(seed),
            life: LIFE,
            unix_s: unix_s_at_zero(now, unix_ms),
            hosts: BTreeMap::new(),
            by_id: BTreeMap::new(),
            blame: Blame::new(Address::new(config.address.router, 0)),
            switches: VecDeque::new(),
            closes: VecDeque::new(),
            echoes: VecDeque::new(),
            set_ups: SetUps::default(),
            paces: Paces::default(),
            has_loops: false,
            loop_totals: LoopTotals::default(),
            now,
            due: None,
        })
    }

    /// Lets circuits that are built from now on live for so long, in place of ten minutes.
    pub fn set_life(&mut self, life: Duration) {
        self.life = life;
    }

    /// Says what the wall clock shows, in milliseconds since 1970.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.unix_s = unix_s_at_zero(now, unix_ms);
    }

    fn unix_s(&self, now: Time) -> u64 {
        self.unix_s + now.since(Time::ZERO).as_secs()
    }

    /// How the cells of all circuits are divided.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Hosts that circuits are held for at most.
    fn hosts_max(&self) -> usize {
        (self.config.circuits_max / 2).max(1)
    }

    /// Puts the network's routers in force. A circuit over one that is no relay any more gives way
    /// to another; and when they change, one that hides less than was asked for, be it by the new
    /// list or by the old one, since another may hide more.
    pub fn set_routers(&mut self, now: Time, routers: Routers) {
        let has_changed = self.routers != routers;
        self.offer_own(now, &routers);
        self.routers = routers;
        let Config { address: from, relays, .. } = self.config;
        for (to, host) in &mut self.hosts {
            host.retry_at = host.retry_at.min(now);
            host.has_no_relays = false;
            let (unix_s, none): (_, &[Address]) = (0, &[]);
            let ask =
                Ask { from, to: *to, relays, unix_s, failed: none, beside: none, doubtful: none };
            for live in host.in_use.iter_mut().chain(&mut host.standby) {
                let is_listed = live.relays().iter().all(|at| self.routers.is_relay(*at));
                if has_changed {
                    live.note_warnings(path::warnings(&self.routers, &ask, live.relays()));
                }
                if !is_listed || (has_changed && !live.warnings.is_empty()) {
                    (live.replace_at, live.stale_at) = (now, now);
                }
            }
        }
        self.settle(now);
    }

    /// The strategies that the network offers.
    pub fn mixes(&self) -> &[Strategy] {
        &self.offer.mixes
    }

    /// Notes that something is to go to `to`. False if it is no host, or circuits to too many
    /// others are in use.
    pub fn want(&mut self, now: Time, to: Address) -> bool {
        if let Some(host) = self.hosts.get_mut(&to) {
            host.wanted = now;
            return true;
        }
        if to.is_router() || to == self.config.address {
            return false;
        }
        if self.hosts.len() >= self.hosts_max() {
            let idle = self.hosts.iter().min_by_key(|(_, host)| host.wanted);
            let idle = idle.filter(|(_, host)| host.wanted + live::ACTIVE < now).map(|(at, _)| *at);
            let Some(idle) = idle else { return false };
            self.forget(now, idle);
        }
        self.hosts.insert(to, Host::new(now));
        self.settle(now);
        true
    }

    /// Notes what the circuits in use carried: `carried` says when one last did. Cheap: to be
    /// called in each turn.
    pub fn note_carried(&mut self, now: Time, carried: impl Fn(CircuitId) -> Option<Time>) {
        let Pool { hosts, rng, due, .. } = self;
        for host in hosts.values_mut() {
            let Some(live) = &mut host.in_use else { continue };
            let Some(at) = carried(live.id).filter(|at| *at > live.used) else { continue };
            (live.used, host.wanted) = (at, host.wanted.max(at));
            if live.wake(now, rng) {
                *due = Some(due.map_or(live.echo_at, |due| due.min(live.echo_at)));
            }
        }
    }

    /// Notes how far set-ups have come: `hops` says how many hops of a circuit are there. The hop
    /// behind them failed when a set-up takes too long. Cheap: to be called in each turn.
    pub fn note_progress(&mut self, now: Time, hops: impl Fn(CircuitId) -> Option<usize>) {
        let hosts = self.hosts.values_mut();
        for building in
            hosts.flat_map(|host| host.building.iter_mut().chain(&mut host.tries.building))
        {
            let hops = building.id.and_then(&hops).unwrap_or(building.hops);
            if hops > building.hops {
                building.hops = hops;
                self.blame.note_heard(now, building.path[0]);
            }
        }
    }

    /// Forgets a host, and closes its circuits.
    pub fn forget(&mut self, now: Time, to: Address) {
        self.drop_host(to);
        self.settle(now);
    }

    /// The next circuit to build. Call [`Pool::note_begun`] with what [`crate::Onion::build`] says.
    pub fn poll_build(&mut self, now: Time) -> Option<Build> {
        loop {
            let build = match self.next_to_try(now) {
                Some(to) => self.choose_try(now, to),
                None => self.choose(now, self.next_to_build(now)?),
            };
            self.settle(now);
            if build.is_some() {
                return build;
            }
        }
    }

    /// Set-ups that are under way.
    fn building(&self) -> usize {
        let hosts = self.hosts.values();
        hosts.flat_map(|host| host.building.iter().chain(&host.tries.building)).count()
    }

    /// The host that needs a circuit most: one without any comes before one without a standby.
    fn next_to_build(&self, now: Time) -> Option<Address> {
        let building = self.building();
        // What is being built has no number for a moment.
        let all = self.by_id.len() + building;
        if building >= BUILDING_MAX || all >= self.config.circuits_max {
            return None;
        }
        let needs = |to: &Address| {
            let host = &self.hosts[to];
            let is_time = host.building.is_none() && host.retry_at <= now && !host.tries.is_new();
            let may_stand_by = all < self.config.circuits_max * 3 / 4;
            let is_urgent = host.lacks_circuit();
            (is_time && (is_urgent || (may_stand_by && host.lacks_standby(now))))
                .then_some((!is_urgent, core::cmp::Reverse(host.wanted)))
        };
        let needing = self.hosts.keys().filter_map(|to| Some((needs(to)?, *to)));
        needing.min().map(|(_, to)| to)
    }

    fn choose(&mut self, now: Time, to: Address) -> Option<Build> {
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

    /// Has ends of paths to `to` left out that failed with every relay that can stand beside them.
    fn condemn(&mut self, now: Time, to: Address) {
        for (end, others) in self.blame.accused(now) {
            let Config { address: from, relays, .. } = self.config;
            if [from.router, to.router].contains(&end.router) {
                continue;
            }
            let (unix_s, failed) = (self.unix_s(now), self.blame.failed(now));
            let (failed, beside, doubtful) = (&failed[..], &[][..], &others[..]);
            let ask = Ask { from, to, relays, unix_s, failed, beside, doubtful };
            if !path::leads_past(&self.routers, &ask, &self.kept, &mut self.rng, end) {
                self.blame.condemn(end);
            }
        }
    }

    /// Draws a path to `to` without these relays, as far as can be; none if there is no relay.
    fn draw(&mut self, now: Time, to: Address, failed: &[Address]) -> Option<Building> {
        let unix_s = self.unix_s(now);
        let host = self.hosts.get(&to)?;
        let others = host.in_use.iter().flat_map(Live::relays).chain(&host.spared);
        let beside: Vec<Address> = others.copied().collect();
        let doubtful: Vec<Address> = self.blame.doubtful(now).collect();
        let ask = Ask {
            from: self.config.address,
            to,
            relays: self.config.relays,
            unix_s,
            failed,
            beside: &beside,
            doubtful: &doubtful,
        };
        let chosen = path::choose(&self.routers, &ask, &mut self.kept, &mut self.rng).ok()?;
        let life = live::between((self.life * 4 / 5, self.life * 6 / 5), &mut self.rng);
        let path::Path { relays: mut path, mut warnings } = chosen;
        let (mixes, warning) = self.mixes_of(&path);
        warnings.extend(warning);
        let added = shoal_mix::path(mixes.iter().copied());
        path.push(to);
        Some(Building {
            id: None,
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

    /// Begins a set-up, or a try.
    fn begin(&mut self, now: Time, to: Address, building: Building, is_try: bool) -> Build {
        let Building { path, mixes, life, .. } = &building;
        self.blame.note_chosen(now, &path[..path.len() - 1]);
        let (path, mixes, life) = (path.clone(), mixes.clone(), *life);
        if let Some(host) = self.hosts.get_mut(&to) {
            let place = if is_try { &mut host.tries.building } else { &mut host.building };
            *place = Some(building);
        }
        Build { to, path, shape: self.shape, life, mixes }
    }

    /// The circuit that goes to a host from now on; none while there is none.
    pub fn poll_switch(&mut self) -> Option<(Address, Option<CircuitId>)> {
        self.switches.pop_front()
    }

    /// The next circuit to close.
    pub fn poll_close(&mut self) -> Option<CircuitId> {
        self.closes.pop_front()
    }

    /// The next echo to send: circuit, hop, number.
    pub fn poll_echo(&mut self) -> Option<(CircuitId, u8, u64)> {
        self.echoes.pop_front()
    }

    /// The relays that this host stays with, if they changed since this was asked last: to be
    /// written down.
    pub fn poll_kept(&mut self) -> Option<&Kept> {
        core::mem::take(&mut self.kept_is_new).then_some(&self.kept)
    }

    /// When [`Pool::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        let is_queued =
            !(self.switches.is_empty() && self.closes.is_empty() && self.echoes.is_empty());
        if is_queued { Some(self.now) } else { self.due }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.due.is_some_and(|due| due <= now) {
            self.settle(now);
        }
    }

    /// Notes what [`crate::Onion::build`] said of the circuit to `to` that [`Pool::poll_build`]
    /// gave.
    pub fn note_begun(&mut self, now: Time, to: Address, begun: Result<CircuitId, DropReason>) {
        let host = self.hosts.get_mut(&to);
        let both = host.map(|host| (host.building.as_mut(), host.tries.building.as_mut()));
        let is_new = |building: &&mut Building| building.id.is_none();
        let (usual, tried) = both.unwrap_or_default();
        match (usual.filter(is_new), tried.filter(is_new), begun) {
            (Some(building), _, Ok(id)) | (None, Some(building), Ok(id)) => {
                building.id = Some(id);
                self.by_id.insert(id, to);
            }
            (Some(_), _, Err(_)) => self.failed(now, to, None, Failure::Here),
            (None, Some(_), Err(_)) => self.try_failed(now, to, None, Failure::Here),
            (None, None, Ok(id)) => self.closes.push_back(id),
            (None, None, Err(_)) => {}
        }
        self.settle(now);
    }

    /// Notes that all hops of a circuit are there.
    pub fn note_built(&mut self, now: Time, id: CircuitId) {
        let unix_s = self.unix_s(now);
        let Some((to, host)) = self.host_of(id) else { return };
        let is_this = |building: &mut Building| building.id == Some(id);
        let tried = host.tries.building.take_if(is_this);
        let is_try = tried.is_some();
        let Some(building) = tried.or_else(|| host.building.take_if(is_this)) else { return };
        if !is_try {
            (host.failures, host.legs, host.cut) = (0, 0, 0);
            (host.last, host.at_last) = (None, None);
            host.retry_at = now;
            host.spared.clear();
        }
        self.set_ups.built += 1;
        let relays = &building.path[..building.path.len() - 1];
        self.blame.note_heard(now, relays[0]);
        self.blame.note_built(now, relays);
        let (from, is_doubtful) = (self.config.address, building.is_doubtful);
        let built = path::Built { from, to, relays, unix_s, is_doubtful };
        let before = self.kept.text();
        self.kept.note_built(&self.routers, &built, &mut self.rng);
        self.kept_is_new |= self.kept.text() != before;
        let mut live = Live::new(now, id, building, &mut self.rng);
        self.follow_mixes_with(now, &mut live);
        if is_try {
            self.try_built(now, to, live);
        } else {
            self.stand_by(now, to, live);
        }
        self.settle(now);
    }

    /// Has a circuit that was built stand by, or be used if one is missing.
    fn stand_by(&mut self, now: Time, to: Address, live: Live) {
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let is_urgent = host.lacks_circuit();
        if let Some(stale) = host.standby.replace(live) {
            self.close(stale.id);
        }
        if is_urgent {
            self.take_over(now, to, true);
        }
    }

    /// Notes that the set-up of a circuit failed at a hop, counted from 1: it is not there.
    pub fn note_failed(&mut self, now: Time, id: CircuitId, hop: u8, why: Failure) {
        let Some((to, host)) = self.host_of(id) else { return };
        if host.building.as_ref().is_some_and(|building| building.id == Some(id)) {
            self.by_id.remove(&id);
            self.failed(now, to, Some(hop.into()), why);
        } else if host.tries.is_building(id) {
            self.by_id.remove(&id);
            self.try_failed(now, to, Some(hop.into()), why);
        } else {
            self.lose(now, id);
        }
        self.settle(now);
    }

    /// Notes that a circuit is gone.
    pub fn note_ended(&mut self, now: Time, id: CircuitId) {
        self.lose(now, id);
        self.settle(now);
    }

    /// The host that a circuit leads to.
    fn host_of(&mut self, id: CircuitId) -> Option<(Address, &mut Host)> {
        let to = *self.by_id.get(&id)?;
        Some((to, self.hosts.get_mut(&to)?))
    }

    fn close(&mut self, id: CircuitId) {
        if self.by_id.remove(&id).is_some() {
            self.closes.push_back(id);
        }
    }
}

#[cfg(test)]
mod tests;
