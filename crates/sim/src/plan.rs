//! What happens in a run, drawn from the seed before it begins.

use core::time::Duration;
use std::collections::BTreeSet;
use std::rc::Rc;

use shoal_crypto::Rng;
use shoal_wire::{Address, Time};

use crate::check::plaintext;
use crate::options::{Options, Topology, seed_bytes};

/// When every run begins: never at zero, which would hide forgotten initialisations.
pub(crate) const START: Time = Time::from_millis(10_000);
/// How often a user tries to send a file.
pub(crate) const ATTEMPTS_MAX: u32 = 6;
/// How long a user waits before trying again.
pub(crate) const TRY_AGAIN: Duration = Duration::from_secs(2);
/// The longest time of a filter, in milliseconds.
const FILTER_MS: u64 = 60_000;
/// The longest time of a narrow wire, in milliseconds.
const NARROW_MS: u64 = 25_000;
/// The most that a spike adds to a frame's delay, in microseconds.
const SPIKE_US: u64 = 300_000;

/// A file to be sent.
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

/// Something that goes wrong, or right again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Wires that carry nothing any more: in both directions, or only one.
    Cut(Vec<(usize, Direction)>),
    Mend(Vec<(usize, Direction)>),
    /// A wire that carries nothing between addresses that hop, or does so again.
    Filter(usize, Direction),
    Pass(usize, Direction),
    /// A node gets another prefix for its addresses that hop.
    Renumber(usize),
    /// A wire that carries no full frames any more, or does so again.
    Narrow(usize, Direction),
    Widen(usize, Direction),
    /// A wire on which everything takes that much longer.
    Slow(usize, Duration),
    Crash(usize, Keep),
    Restart(usize),
    Pause(usize),
    Resume(usize),
}

/// Directions of a wire, from its first end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Both,
    Forth,
    Back,
}

/// What a crash leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    Disk,
    Nothing,
}

/// The network and its fate.
pub(crate) struct Plan {
    /// Address of each node; routers first.
    pub(crate) nodes: Vec<Address>,
    pub(crate) routers: usize,
    /// Pairs of nodes that a wire joins; the first calls the second.
    pub(crate) wires: Vec<(usize, usize)>,
    /// How many of them, the first ones, are links of the configuration; the others join hosts, or
    /// a host and a router that is not its own.
    pub(crate) links: usize,
    pub(crate) files: Vec<FilePlan>,
    /// Sorted by time, without those that `Options::skip` names.
    pub(crate) faults: Vec<(Time, Fault)>,
    /// How many faults there would be without `Options::skip`.
    pub(crate) faults_drawn: u32,
    /// From here on nothing new goes wrong.
    pub(crate) calm_from: Time,
    pub(crate) end: Time,
}

impl Plan {
    pub(crate) fn new(options: &Options) -> Plan {
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
        let links = wires.len();
        wires.extend(host_wires(options, routers, nodes.len()));
        if !options.translators.is_empty() && routers > 1 {
            // Hosts may ask another router than their own where they are seen.
            let hosts = (routers..nodes.len()).map(|host| (host, (host - routers + 1) % routers));
            wires.extend(hosts);
        }
        let calm_from = START + options.trouble();
        let mut plan = Plan {
            files: Vec::new(),
            faults: Vec::new(),
            faults_drawn: 0,
            calm_from,
            end: calm_from + options.calm_time(),
            nodes,
            routers,
            wires,
            links,
        };
        plan.draw_files(options, &mut rng);
        plan.draw_faults(options, backbone);
        plan
    }

    fn draw_files(&mut self, options: &Options, rng: &mut Rng) {
        // Nothing is asked of the host that is removed where the secret changes.
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

    fn draw_faults(&mut self, options: &Options, backbone: usize) {
        // Each kind has a seed of its own, so that dropping one leaves the others as they were.
        let mut drawn: Vec<[(Time, Fault); 2]> = Vec::new();
        let (wires, nodes) = (self.wires.len() as u64, self.nodes.len() as u64);
        let kind = |name: &str, times, most_ms| times_of(options, name, times, most_ms);
        let backbone = if backbone == 0 { None } else { Some(backbone as u64) };
        for (from, until, pick) in kind("cuts", options.cuts, 4_000) {
            let Some(backbone) = backbone else { break };
            let cut = vec![((pick % backbone) as usize, Direction::Both)];
            drawn.push([(from, Fault::Cut(cut.clone())), (until, Fault::Mend(cut))]);
        }
        for (from, until, pick) in kind("one-way cuts", options.one_way_cuts, 4_000) {
            let direction = if pick >> 63 == 0 { Direction::Forth } else { Direction::Back };
            let cut = vec![((pick % wires.max(1)) as usize, direction)];
            drawn.push([(from, Fault::Cut(cut.clone())), (until, Fault::Mend(cut))]);
        }
        for (from, until, pick) in kind("direct cuts", options.direct_wires, 4_000) {
            let direct = (self.wires.len() - self.links) as u64;
            let Some(wire) = pick.checked_rem(direct) else { break };
            let cut = vec![(self.links + wire as usize, Direction::Both)];
            drawn.push([(from, Fault::Cut(cut.clone())), (until, Fault::Mend(cut))]);
        }
        for (from, until, pick) in kind("partitions", options.partitions, 4_000) {
            let side = |n: usize| (pick >> (n % 61)) & 1;
            let apart = |wire: &&(usize, usize)| {
                wire.0 < self.routers && wire.1 < self.routers && side(wire.0) != side(wire.1)
            };
            let wires = self.wires.iter().enumerate().filter(|(_, wire)| apart(wire));
            let cut: Vec<_> = wires.map(|(wire, _)| (wire, Direction::Both)).collect();
            drawn.push([(from, Fault::Cut(cut.clone())), (until, Fault::Mend(cut))]);
        }
        drawn.extend(self.hop_faults(options));
        for (from, until, pick) in kind("narrowings", options.narrowings, NARROW_MS) {
            let ways = [Direction::Both, Direction::Forth, Direction::Back][(pick % 3) as usize];
            let wire = ((pick >> 32) % wires.max(1)) as usize;
            drawn.push([(from, Fault::Narrow(wire, ways)), (until, Fault::Widen(wire, ways))]);
        }
        drawn.extend(crate::world::secrets::faults(self, options));
        for (from, until, pick) in kind("spikes", options.spikes, 3_000) {
            let (wire, more) = ((pick % wires.max(1)) as usize, (pick >> 32) % SPIKE_US);
            let slow = |us| Fault::Slow(wire, Duration::from_micros(us));
            drawn.push([(from, slow(more)), (until, slow(0))]);
        }
        for (keep, name, times) in
            [(Keep::Disk, "crashes", options.crashes), (Keep::Nothing, "wipes", options.wipes)]
        {
            for (from, until, pick) in kind(name, times, 2_000) {
                let node = (pick % nodes) as usize;
                drawn.push([(from, Fault::Crash(node, keep)), (until, Fault::Restart(node))]);
            }
        }
        for (from, until, pick) in kind("pauses", options.pauses, 6_000) {
            let node = (pick % nodes) as usize;
            drawn.push([(from, Fault::Pause(node)), (until, Fault::Resume(node))]);
        }
        self.faults_drawn = drawn.len() as u32;
        let kept = (0..).zip(drawn).filter(|(number, _)| !options.skip.contains(number));
        self.faults = kept.flat_map(|(_, pair)| pair).collect();
        self.faults.sort_by_key(|(at, _)| *at);
    }

    /// What goes wrong with addresses that hop.
    fn hop_faults(&self, options: &Options) -> Vec<[(Time, Fault); 2]> {
        let mut drawn = Vec::new();
        for (from, until, pick) in times_of(options, "filters", options.filters, FILTER_MS) {
            let ways = [Direction::Both, Direction::Forth, Direction::Back][(pick % 3) as usize];
            let wire = ((pick >> 32) % self.links.max(1) as u64) as usize;
            drawn.push([(from, Fault::Filter(wire, ways)), (until, Fault::Pass(wire, ways))]);
        }
        for (from, until, pick) in times_of(options, "moves", options.renumberings, FILTER_MS) {
            let node = (pick % self.nodes.len() as u64) as usize;
            drawn.push([(from, Fault::Renumber(node)), (until, Fault::Renumber(node))]);
        }
        drawn
    }

    /// Whether anything happens to nodes, rather than to wires only.
    pub(crate) fn has_node_faults(&self) -> bool {
        let at_node = |fault: &Fault| matches!(fault, Fault::Crash(..) | Fault::Pause(_));
        self.faults.iter().any(|(_, fault)| at_node(fault))
    }
}

/// When faults of one kind begin and end, and a number that chooses among them.
fn times_of(options: &Options, name: &str, times: u32, most_ms: u64) -> Vec<(Time, Time, u64)> {
    let mut rng = Rng::new(seed_bytes(options.seed, name));
    let span = options.trouble().as_nanos() as u64;
    let draws = (0..times).map(|_| {
        let from = START + Duration::from_nanos(rng.below(span));
        let until = from + Duration::from_nanos(rng.below(most_ms * 1_000_000));
        (from, until.min(START + options.trouble()), rng.u64())
    });
    draws.collect()
}

/// Wires between hosts, as far as there are pairs.
fn host_wires(options: &Options, routers: usize, nodes: usize) -> BTreeSet<(usize, usize)> {
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

/// The wires of the topology, and `chords` more as far as there are pairs.
fn router_wires(options: &Options, routers: usize, rng: &mut Rng) -> Vec<(usize, usize)> {
    let mut wires: Vec<(usize, usize)> = match options.topology {
        Topology::Random => (1..routers).map(|id| (id, rng.below(id as u64) as usize)).collect(),
        Topology::Mesh => (1..routers).flat_map(|a| (0..a).map(move |b| (a, b))).collect(),
        Topology::Tree => (1..routers).map(|id| (id, (id - 1) / 3)).collect(),
        Topology::Line | Topology::Ring => (1..routers).map(|id| (id, id - 1)).collect(),
    };
    if options.topology == Topology::Ring && routers > 2 {
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
