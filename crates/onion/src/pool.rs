//! Pool of a host's circuits: for each host that it speaks with, one in use and one standby.
//!
//! Input is the wanted hosts, the network's relays, the results of circuits, and the time. Output
//! is circuits to build, to use and to close, and echoes to send.
//!
//! ```text
//! want --> poll_build --> Onion::build --> note_begun, note_built | note_failed
//!          poll_switch: the circuit that goes to a host from now on
//!          poll_echo --> Onion::echo --> note_echoed     three are missing: the standby takes over
//!                                                        some, of loops: another circuit is built
//!          poll_close --> Onion::close
//! ```
//!
//! A circuit lives for ten minutes, plus or minus a fifth. Before the one in use ends, the standby
//! replaces it. The old one is closed later, so that cells on their way arrive. A standby at half
//! of its life is replaced by a new one.
//!
//! A caller must do two things. After any call, take all output of the `poll_` methods. At the time
//! from [`CircuitPool::poll_timeout`], call [`CircuitPool::handle_timeout`].
//!
//! Invariants: a host has at most one circuit in use and one standby. At most one more is built at
//! a time, with at most one try besides it (`tries`). A relay that failed is avoided for a while,
//! and used again if no other path keeps equal rules ([`crate::path`]).

mod blame;
mod choice;
mod demands;
mod echoes;
mod homes;
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
use shoal_wire::leg::CellShape;
use shoal_wire::{Address, CircuitId, DropReason, MixStrategy, ParseError, Time};

use crate::onion::{SetupFailure, unix_s_at_zero};
use crate::path::{self, PathRequest, PathWarning, RouterList, Vanguards};
use blame::Blame;
pub use blame::SuspectedRelay;
pub use homes::HostHomes;
use live::{BuildingCircuit, EndingCircuit, LiveCircuit};
pub use loops::{LoopTotals, LoopVerdict};
use mixes::MixOffer;
use pace::EchoPaces;
use tries::CircuitTries;
pub use view::{CircuitProblem, CircuitState, CircuitView, HostView, SetupCounts};

/// Least number of tag places, however few the relays: circuits of up to three relays look alike.
const TAGS_MIN: u8 = 3;
/// Life of a circuit, plus or minus a fifth.
const LIFE: Duration = Duration::from_secs(600);
/// Idle time after which a host gets no new circuits.
const WANTED: Duration = Duration::from_secs(600);
/// Time after which a set-up has failed: the first, and the longest, since each failure doubles it.
/// A lost cell of a set-up is not sent again.
const BUILD_MAX: (Duration, Duration) = (Duration::from_millis(1_500), Duration::from_secs(5));
/// First and longest wait after failed set-ups.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));
/// Most set-ups at once.
const BUILDING_MAX: usize = 8;
/// Configuration of a pool at its start.
#[derive(Clone, Copy, Debug)]
pub struct PoolConfig {
    /// The host's own address.
    pub address: Address,
    /// Number of relays in each circuit, 1 to 5.
    pub relays: u8,
    /// Most circuits, of all kinds.
    pub circuits_max: usize,
    /// Longest mean delay that the relays of a circuit may add in one direction; zero for no mixes.
    /// None uses the network's first strategy, whatever it adds.
    pub max_added: Option<Duration>,
}

/// A circuit to be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CircuitPlan {
    /// The destination host.
    pub to: Address,
    /// This host's address at which it begins.
    pub home: Address,
    /// The relays, then an address of the destination.
    pub path: Vec<Address>,
    /// Division of its cells.
    pub shape: CellShape,
    pub life: Duration,
    /// Strategy of each relay.
    pub mixes: Vec<MixStrategy>,
}

/// State for one destination.
struct DestinationCircuits {
    /// Last time at which data was to go there.
    wanted: Time,
    in_use: Option<LiveCircuit>,
    standby: Option<LiveCircuit>,
    building: Option<BuildingCircuit>,
    tries: CircuitTries,
    ending: Vec<EndingCircuit>,
    /// Failed set-ups in a row, not counting those due to this host's uplink.
    failures: u32,
    /// Number of these that ended between two relays. The next set-up uses another middle.
    legs: u32,
    /// Failed set-ups in a row that are due to this host's uplink.
    cut: u32,
    /// The last failure of either kind.
    last: Option<LastFailure>,
    /// Number of set-ups in a row that reached their last relay, and that relay.
    at_last: Option<(Address, u32)>,
    /// No set-up begins before this time.
    retry_at: Time,
    /// Relays of the last failed circuit, if the failed leg is unknown.
    spared: Vec<Address>,
    has_no_relays: bool,
    /// Last verdict of loops on one of its circuits, and its time.
    verdict: Option<(LoopVerdict, Time)>,
}

/// Position and reason of a failed set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastFailure {
    /// The hop that is missing, counted from 1.
    pub hop: u8,
    /// The missing node.
    pub node: Address,
    /// The hop before it; none for hop 1.
    pub before: Option<Address>,
    pub why: SetupFailure,
}

/// The circuits that one host begins.
pub struct CircuitPool {
    config: PoolConfig,
    homes: HostHomes,
    /// Second addresses of other hosts, by the first.
    seconds: BTreeMap<Address, Address>,
    shape: CellShape,
    routers: RouterList,
    /// Strategies that the network offers, and those of relays.
    offer: MixOffer,
    /// Strategies of a newer list, and the time from which they count.
    coming: Option<(Time, MixOffer)>,
    kept: Vanguards,
    kept_is_new: bool,
    rng: Rng,
    life: Duration,
    /// Unix seconds at time zero.
    unix_s: u64,
    hosts: BTreeMap<Address, DestinationCircuits>,
    by_id: BTreeMap<CircuitId, Address>,
    blame: Blame,
    switches: VecDeque<(Address, Option<CircuitId>)>,
    closes: VecDeque<CircuitId>,
    echoes: VecDeque<(CircuitId, u8, u64)>,
    set_ups: SetupCounts,
    /// Limits on echoes per circuit.
    paces: EchoPaces,
    /// True if loops are sent.
    has_loops: bool,
    loop_totals: LoopTotals,
    /// Last time at which the state was updated.
    now: Time,
    due: Option<Time>,
}

impl CircuitPool {
    /// A pool without circuits. `kept` are the relays that this host stays with. `unix_ms` is the
    /// wall clock at `now`.
    ///
    /// # Errors
    ///
    /// `config.relays` is not 1 to 5.
    pub fn new(
        config: PoolConfig,
        kept: Vanguards,
        seed: [u8; 32],
        now: Time,
        unix_ms: u64,
    ) -> Result<CircuitPool, ParseError> {
        Ok(CircuitPool {
            config,
            homes: HostHomes::one(config.address),
            seconds: BTreeMap::new(),
            shape: CellShape::new(config.relays.max(TAGS_MIN))?,
            routers: RouterList::default(),
            offer: MixOffer::default(),
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
            set_ups: SetupCounts::default(),
            paces: EchoPaces::default(),
            has_loops: false,
            loop_totals: LoopTotals::default(),
            now,
            due: None,
        })
    }

    /// Sets the life of circuits that are built later, instead of ten minutes.
    pub fn set_life(&mut self, life: Duration) {
        self.life = life;
    }

    /// Sets the wall clock, in milliseconds since 1970.
    pub fn set_unix_time(&mut self, now: Time, unix_ms: u64) {
        self.unix_s = unix_s_at_zero(now, unix_ms);
    }

    fn unix_s(&self, now: Time) -> u64 {
        self.unix_s + now.since(Time::ZERO).as_secs()
    }

    /// Division of the cells of all circuits.
    pub fn shape(&self) -> CellShape {
        self.shape
    }

    /// Most hosts for which circuits are held.
    fn hosts_max(&self) -> usize {
        (self.config.circuits_max / 2).max(1)
    }

    /// Sets the network's routers. A circuit over a router that is not a relay any more is
    /// replaced. After a change, a circuit with warnings, by the old list or the new one, is
    /// replaced too, since another may hide more.
    pub fn set_routers(&mut self, now: Time, routers: RouterList) {
        let has_changed = self.routers != routers;
        self.offer_own(now, &routers);
        self.routers = routers;
        let CircuitPool { homes, seconds, config: PoolConfig { relays, .. }, .. } = self;
        for (to, host) in &mut self.hosts {
            host.retry_at = host.retry_at.min(now);
            host.has_no_relays = false;
            let also = homes.own_routers(seconds, *to);
            let ask = |live: &LiveCircuit| PathRequest {
                from: live.home,
                to: live.end().unwrap_or(*to),
                relays: *relays,
                unix_s: 0,
                failed: &[],
                beside: &[],
                doubtful: &[],
                also: &also,
            };
            for live in host.in_use.iter_mut().chain(&mut host.standby) {
                let is_listed = live.relays().iter().all(|at| self.routers.is_relay(*at));
                if has_changed {
                    live.note_warnings(path::warnings(&self.routers, &ask(live), live.relays()));
                }
                if !is_listed || (has_changed && !live.warnings.is_empty()) {
                    (live.replace_at, live.stale_at) = (now, now);
                }
            }
        }
        self.settle(now);
    }

    pub fn mixes(&self) -> &[MixStrategy] {
        &self.offer.mixes
    }

    /// Notes that data is to go to `to`. Returns false if `to` is no host, or if circuits to too
    /// many other hosts are in use.
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
        self.hosts.insert(to, DestinationCircuits::new(now));
        self.settle(now);
        true
    }

    /// Notes the traffic of the circuits in use. `carried` returns the time at which one last
    /// carried data. Cheap: call it in each turn.
    pub fn note_carried(&mut self, now: Time, carried: impl Fn(CircuitId) -> Option<Time>) {
        let CircuitPool { hosts, rng, due, .. } = self;
        for host in hosts.values_mut() {
            let Some(live) = &mut host.in_use else { continue };
            let Some(at) = carried(live.id).filter(|at| *at > live.used) else { continue };
            (live.used, host.wanted) = (at, host.wanted.max(at));
            if live.wake(now, rng) {
                *due = Some(due.map_or(live.echo_at, |due| due.min(live.echo_at)));
            }
        }
    }

    /// Notes the progress of set-ups. `hops` returns the number of a circuit's hops. If a set-up
    /// takes too long, the next hop has failed. Cheap: call it in each turn.
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

    /// The next circuit to build. Call [`CircuitPool::note_begun`] with the result of
    /// [`crate::Onion::build`].
    pub fn poll_build(&mut self, now: Time) -> Option<CircuitPlan> {
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

    /// Number of open set-ups.
    fn building(&self) -> usize {
        let hosts = self.hosts.values();
        hosts.flat_map(|host| host.building.iter().chain(&host.tries.building)).count()
    }

    /// The host that needs a circuit most: one without any comes before one without a standby.
    fn next_to_build(&self, now: Time) -> Option<Address> {
        let building = self.building();
        // A circuit that is being built has no id for a moment.
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

    /// A host and the circuit that its data uses from here on; none while there is no circuit.
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

    /// Relays that this host stays with, if they have changed since the last call. The caller must
    /// store them.
    pub fn poll_kept(&mut self) -> Option<&Vanguards> {
        core::mem::take(&mut self.kept_is_new).then_some(&self.kept)
    }

    /// Time of the next call of [`CircuitPool::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let is_queued =
            !(self.switches.is_empty() && self.closes.is_empty() && self.echoes.is_empty());
        if is_queued { Some(self.now) } else { self.due }
    }

    /// Does all work that is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.due.is_some_and(|due| due <= now) {
            self.settle(now);
        }
    }

    /// Notes the result of [`crate::Onion::build`] for the circuit to `to` from
    /// [`CircuitPool::poll_build`].
    pub fn note_begun(&mut self, now: Time, to: Address, begun: Result<CircuitId, DropReason>) {
        let host = self.hosts.get_mut(&to);
        let both = host.map(|host| (host.building.as_mut(), host.tries.building.as_mut()));
        let is_new = |building: &&mut BuildingCircuit| building.id.is_none();
        let (usual, tried) = both.unwrap_or_default();
        match (usual.filter(is_new), tried.filter(is_new), begun) {
            (Some(building), _, Ok(id)) | (None, Some(building), Ok(id)) => {
                building.id = Some(id);
                self.by_id.insert(id, to);
            }
            (Some(_), _, Err(_)) => self.failed(now, to, None, SetupFailure::Here),
            (None, Some(_), Err(_)) => self.try_failed(now, to, None, SetupFailure::Here),
            (None, None, Ok(id)) => self.closes.push_back(id),
            (None, None, Err(_)) => {}
        }
        self.settle(now);
    }

    /// Notes that a circuit has all its hops.
    pub fn note_built(&mut self, now: Time, id: CircuitId) {
        let unix_s = self.unix_s(now);
        let Some((to, host)) = self.host_of(id) else { return };
        let is_this = |building: &mut BuildingCircuit| building.id == Some(id);
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
        let (from, is_doubtful) = (building.home, building.is_doubtful);
        let end = building.path[relays.len()];
        let built = path::BuiltCircuit { from, to: end, relays, unix_s, is_doubtful };
        let before = self.kept.text();
        self.kept.note_built(&self.routers, &built, &mut self.rng);
        self.kept_is_new |= self.kept.text() != before;
        let mut live = LiveCircuit::new(now, id, building, &mut self.rng);
        self.follow_mixes_with(now, &mut live);
        if is_try {
            self.try_built(now, to, live);
        } else {
            self.stand_by(now, to, live);
        }
        self.settle(now);
    }

    /// Makes a new circuit the standby, or uses it if none is in use.
    fn stand_by(&mut self, now: Time, to: Address, live: LiveCircuit) {
        let Some(host) = self.hosts.get_mut(&to) else { return };
        let is_urgent = host.lacks_circuit();
        if let Some(stale) = host.standby.replace(live) {
            self.close(stale.id);
        }
        if is_urgent {
            self.take_over(now, to, true);
        }
    }

    /// Notes that the set-up of a circuit failed at a hop, counted from 1, which is missing.
    pub fn note_failed(&mut self, now: Time, id: CircuitId, hop: u8, why: SetupFailure) {
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

    /// Notes that a circuit has ended.
    pub fn note_ended(&mut self, now: Time, id: CircuitId) {
        self.lose(now, id);
        self.settle(now);
    }

    /// The host that a circuit leads to.
    fn host_of(&mut self, id: CircuitId) -> Option<(Address, &mut DestinationCircuits)> {
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
