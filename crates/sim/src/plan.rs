//! The events of a run, drawn from the seed before it begins.

use core::time::Duration;
use std::collections::BTreeSet;
use std::rc::Rc;

use shoal_crypto::Rng;
use shoal_wire::{Address, Time};

use crate::check::plaintext;
use crate::options::{RouterTopology, SimulationOptions, seed_bytes};
use crate::uplinks;

/// Start of every run. Not zero, which would hide missing initialisations.
pub(crate) const START: Time = Time::from_millis(10_000);
/// Number of times that a user tries to send a file.
pub(crate) const ATTEMPTS_MAX: u32 = 6;
/// Time after which a user tries again.
pub(crate) const TRY_AGAIN: Duration = Duration::from_secs(2);
/// Longest duration of a filter, in milliseconds.
const FILTER_MS: u64 = 60_000;
/// Longest time for which a host may have no direct links, in milliseconds.
const BAN_MS: u64 = 12_000;
/// Longest time for which a wire carries no full frames, in milliseconds.
const NARROW_MS: u64 = 25_000;
/// Largest additional delay of a spike, in microseconds.
const SPIKE_US: u64 = 300_000;

#[derive(Clone, Debug)]
pub(crate) struct FilePlan {
    pub(crate) number: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) at: Time,
    pub(crate) content: Rc<[u8]>,
    pub(crate) hash: [u8; 32],
    pub(crate) file_id: [u8; 16],
}

/// A fault, or its repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PlannedFault {
    /// Wires that carry nothing until their repair, in one or both directions.
    Cut(Vec<(usize, WireDirection)>),
    Mend(Vec<(usize, WireDirection)>),
    /// A wire that carries nothing between shifting addresses, or does so again.
    Filter(usize, WireDirection),
    Pass(usize, WireDirection),
    /// A node that gets another prefix for its shifting addresses.
    Renumber(usize),
    /// A wire that carries no full frames, or does so again.
    Narrow(usize, WireDirection),
    Widen(usize, WireDirection),
    /// A wire that delays all frames by this much more.
    Slow(usize, Duration),
    /// A host that may have no direct links, or may have them again.
    Ban(usize),
    Unban(usize),
    Crash(usize, CrashRemainder),
    Restart(usize),
    Pause(usize),
    Resume(usize),
}

/// Directions of a wire, as seen from its first end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WireDirection {
    Both,
    Forth,
    Back,
}

/// State that survives a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CrashRemainder {
    Disk,
    Nothing,
}

/// The network and its events.
pub(crate) struct NetworkPlan {
    /// Address of each node, routers first.
    pub(crate) nodes: Vec<Address>,
    /// Address of each node at another router.
    pub(crate) seconds: Vec<Option<Address>>,
    pub(crate) routers: usize,
    /// Pairs of nodes that a wire joins; the first one calls the second.
    pub(crate) wires: Vec<(usize, usize)>,
    /// Number of wires, at the start of the list, that are configured links. The other wires join
    /// two hosts, or a host and a router that is not its own.
    pub(crate) links: usize,
    pub(crate) files: Vec<FilePlan>,
    /// Faults by time, without those that `SimulationOptions::skip` names.
    pub(crate) faults: Vec<(Time, PlannedFault)>,
    /// Number of faults without `SimulationOptions::skip`.
    pub(crate) faults_drawn: u32,
    /// Time after which no new fault begins.
    pub(crate) calm_from: Time,
    pub(crate) end: Time,
}

impl NetworkPlan {
    pub(crate) fn new(options: &SimulationOptions) -> NetworkPlan {
        let mut rng = Rng::new(seed_bytes(options.seed, "plan"));
        let routers = options.routers.max(1) as usize;
        let mut nodes: Vec<Address> = (1..=routers as u32).map(|id| Address::new(id, 0)).collect();
        let mut wires = router_wires(options, routers, &mut rng);
        let backbone = wires.len();
        for host in 0..options.hosts as usize {
            let router = host % routers;
            wires.push((nodes.len(), router));
            nodes.push(Address::new(router as u32 + 1, (host / routers) as u16 + 1));
        }
        let seconds = uplinks::seconds(options, &nodes);
        let second =
            |(host, at): (usize, &Option<Address>)| Some((host, (*at)?.router as usize - 1));
        wires.extend(seconds.iter().enumerate().filter_map(second));
        let links = wires.len();
        wires.extend(host_wires(options, routers, nodes.len()));
        if !options.translators.is_empty() && routers > 1 {
            // Hosts may also ask a router other than their own for their public address.
            let hosts = (routers..nodes.len()).map(|host| (host, (host - routers + 1) % routers));
            wires.extend(hosts);
        }
        let calm_from = START + options.trouble();
        let mut plan = NetworkPlan {
            files: Vec::new(),
            faults: Vec::new(),
            faults_drawn: 0,
            calm_from,
            end: calm_from + options.calm_time(),
            nodes,
            seconds,
            routers,
            wires,
            links,
        };
        plan.draw_files(options, &mut rng);
        plan.draw_faults(options, backbone);
        plan
    }

    fn draw_files(&mut self, options: &SimulationOptions, rng: &mut Rng) {
        // The host that is removed for the change of the secret sends and receives no files.
        let hosts = self.nodes.len() - self.routers - usize::from(options.rotation);
        let routers = self.routers;
        if hosts < 2 {
            return;
        }
        let one = rng.below(hosts as u64) as usize;
        for number in 0..options.files as usize {
            let to = if options.one_receiver { one } else { rng.below(hosts as u64) as usize };
            let from = (to + 1 + rng.below(hosts as u64 - 1) as usize) % hosts;
            let size = rng.below(options.file_bytes_max + 1) as usize;
            let at = START + Duration::from_nanos(rng.below(options.trouble().as_nanos() as u64));
            let mut content: Rc<[u8]> = core::iter::repeat_n(0, size).collect();
            if let Some(bytes) = Rc::get_mut(&mut content) {
                rng.fill(bytes);
                plaintext::make_letters(bytes);
            }
            let file_id = rng.array();
            let (from, to) = (routers + from, routers + to);
            let hash = shoal_crypto::hash(&content);
            if !options.skip_files.contains(&(number as u32)) {
                self.files.push(FilePlan { number, from, to, at, content, hash, file_id });
            }
        }
    }

    fn draw_faults(&mut self, options: &SimulationOptions, backbone: usize) {
        // Each kind has its own seed, so that dropping one kind leaves the others unchanged.
        let mut drawn: Vec<[(Time, PlannedFault); 2]> = Vec::new();
        let (wires, nodes) = (self.wires.len() as u64, self.nodes.len() as u64);
        let kind = |name: &str, times, most_ms| times_of(options, name, times, most_ms);
        let backbone = if backbone == 0 { None } else { Some(backbone as u64) };
        for (from, until, pick) in kind("cuts", options.cuts, 4_000) {
            let Some(backbone) = backbone else { break };
            let cut = vec![((pick % backbone) as usize, WireDirection::Both)];
            drawn.push([(from, PlannedFault::Cut(cut.clone())), (until, PlannedFault::Mend(cut))]);
        }
        for (from, until, pick) in kind("one-way cuts", options.one_way_cuts, 4_000) {
            let direction =
                if pick >> 63 == 0 { WireDirection::Forth } else { WireDirection::Back };
            let cut = vec![((pick % wires.max(1)) as usize, direction)];
            drawn.push([(from, PlannedFault::Cut(cut.clone())), (until, PlannedFault::Mend(cut))]);
        }
        for (from, until, pick) in kind("direct cuts", options.direct_wires, 4_000) {
            let direct = (self.wires.len() - self.links) as u64;
            let Some(wire) = pick.checked_rem(direct) else { break };
            let cut = vec![(self.links + wire as usize, WireDirection::Both)];
            drawn.push([(from, PlannedFault::Cut(cut.clone())), (until, PlannedFault::Mend(cut))]);
        }
        for (from, until, pick) in kind("partitions", options.partitions, 4_000) {
            let side = |n: usize| (pick >> (n % 61)) & 1;
            let apart = |wire: &&(usize, usize)| {
                wire.0 < self.routers && wire.1 < self.routers && side(wire.0) != side(wire.1)
            };
            let wires = self.wires.iter().enumerate().filter(|(_, wire)| apart(wire));
            let cut: Vec<_> = wires.map(|(wire, _)| (wire, WireDirection::Both)).collect();
            drawn.push([(from, PlannedFault::Cut(cut.clone())), (until, PlannedFault::Mend(cut))]);
        }
        drawn.extend(self.shift_faults(options));
        for (from, until, pick) in kind("narrowings", options.narrowings, NARROW_MS) {
            let ways = [WireDirection::Both, WireDirection::Forth, WireDirection::Back]
                [(pick % 3) as usize];
            let wire = ((pick >> 32) % wires.max(1)) as usize;
            drawn.push([
                (from, PlannedFault::Narrow(wire, ways)),
                (until, PlannedFault::Widen(wire, ways)),
            ]);
        }
        drawn.extend(crate::world::secrets::faults(self, options));
        for (from, until, pick) in kind("spikes", options.spikes, 3_000) {
            let (wire, more) = ((pick % wires.max(1)) as usize, (pick >> 32) % SPIKE_US);
            let slow = |us| PlannedFault::Slow(wire, Duration::from_micros(us));
            drawn.push([(from, slow(more)), (until, slow(0))]);
        }
        for (keep, name, times) in [
            (CrashRemainder::Disk, "crashes", options.crashes),
            (CrashRemainder::Nothing, "wipes", options.wipes),
        ] {
            for (from, until, pick) in kind(name, times, 2_000) {
                let node = (pick % nodes) as usize;
                drawn.push([
                    (from, PlannedFault::Crash(node, keep)),
                    (until, PlannedFault::Restart(node)),
                ]);
            }
        }
        for (from, until, pick) in kind("pauses", options.pauses, 6_000) {
            let node = (pick % nodes) as usize;
            drawn.push([(from, PlannedFault::Pause(node)), (until, PlannedFault::Resume(node))]);
        }
        drawn.extend(self.direct_bans(options));
        self.faults_drawn = drawn.len() as u32;
        let kept = (0..).zip(drawn).filter(|(number, _)| !options.skip.contains(number));
        self.faults = kept.flat_map(|(_, pair)| pair).collect();
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// Times at which hosts may have no direct links.
    fn direct_bans(&self, options: &SimulationOptions) -> Vec<[(Time, PlannedFault); 2]> {
        let hosts = (self.nodes.len() - self.routers) as u64;
        let times = times_of(options, "direct bans", options.direct_bans, BAN_MS);
        let drawn = times.into_iter().filter_map(|(from, until, pick)| {
            let host = self.routers + pick.checked_rem(hosts)? as usize;
            Some([(from, PlannedFault::Ban(host)), (until, PlannedFault::Unban(host))])
        });
        drawn.collect()
    }

    /// Faults of shifting addresses.
    fn shift_faults(&self, options: &SimulationOptions) -> Vec<[(Time, PlannedFault); 2]> {
        let mut drawn = Vec::new();
        for (from, until, pick) in times_of(options, "filters", options.filters, FILTER_MS) {
            let ways = [WireDirection::Both, WireDirection::Forth, WireDirection::Back]
                [(pick % 3) as usize];
            let wire = ((pick >> 32) % self.links.max(1) as u64) as usize;
            drawn.push([
                (from, PlannedFault::Filter(wire, ways)),
                (until, PlannedFault::Pass(wire, ways)),
            ]);
        }
        for (from, until, pick) in times_of(options, "moves", options.renumberings, FILTER_MS) {
            let node = (pick % self.nodes.len() as u64) as usize;
            drawn.push([
                (from, PlannedFault::Renumber(node)),
                (until, PlannedFault::Renumber(node)),
            ]);
        }
        drawn
    }

    /// True if there are faults of nodes, not only of wires.
    pub(crate) fn has_node_faults(&self) -> bool {
        let at_node = |fault: &PlannedFault| {
            matches!(fault, PlannedFault::Crash(..) | PlannedFault::Pause(_))
        };
        self.faults.iter().any(|(_, fault)| at_node(fault))
    }
}

/// Begin and end of each fault of one kind, and a number that selects its target.
fn times_of(
    options: &SimulationOptions,
    name: &str,
    times: u32,
    most_ms: u64,
) -> Vec<(Time, Time, u64)> {
    let mut rng = Rng::new(seed_bytes(options.seed, name));
    let span = options.trouble().as_nanos() as u64;
    let draws = (0..times).map(|_| {
        let from = START + Duration::from_nanos(rng.below(span));
        let until = from + Duration::from_nanos(rng.below(most_ms * 1_000_000));
        (from, until.min(START + options.trouble()), rng.u64())
    });
    draws.collect()
}

/// Wires between hosts, as long as there are pairs.
fn host_wires(
    options: &SimulationOptions,
    routers: usize,
    nodes: usize,
) -> BTreeSet<(usize, usize)> {
    let (mut rng, mut wires) = (Rng::new(seed_bytes(options.seed, "host wires")), BTreeSet::new());
    let hosts = nodes - routers;
    let wanted = (options.direct_wires as usize).min(hosts * hosts.saturating_sub(1) / 2);
    while wires.len() < wanted {
        let a = routers + rng.below(hosts as u64) as usize;
        let b = routers + rng.below(hosts as u64) as usize;
        if a > b {
            wires.insert((a, b));
        }
    }
    wires
}

/// The wires of the topology, and `chords` more as long as there are pairs.
fn router_wires(options: &SimulationOptions, routers: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut wires: Vec<(usize, usize)> = match options.topology {
        RouterTopology::Random => {
            (1..routers).map(|id| (id, rng.below(id as u64) as usize)).collect()
        }
        RouterTopology::Mesh => (1..routers).flat_map(|a| (0..a).map(move |b| (a, b))).collect(),
        RouterTopology::Tree => (1..routers).map(|id| (id, (id - 1) / 3)).collect(),
        RouterTopology::Line | RouterTopology::Ring => {
            (1..routers).map(|id| (id, id - 1)).collect()
        }
    };
    if options.topology == RouterTopology::Ring && routers > 2 {
        wires.push((routers - 1, 0));
    }
    let mut known: BTreeSet<_> = wires.iter().copied().collect();
    let pairs = routers * (routers - 1) / 2;
    let wanted = (wires.len() + options.chords as usize).min(pairs);
    while wires.len() < wanted {
        let a = rng.below(routers as u64) as usize;
        let b = rng.below(routers as u64) as usize;
        if a > b && known.insert((a, b)) {
            wires.push((a, b));
        }
    }
    wires
}
