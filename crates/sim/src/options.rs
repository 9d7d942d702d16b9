//! What a run is made of: one flat struct, every fault a number.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use shoal_crypto::Rng;
use shoal_wire::{CoverKind, CoverTier};

use crate::nat::Translator;
use crate::plant::Plant;

/// What wires do to frames.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Faults {
    /// Frames lost, per million.
    pub loss_ppm: u32,
    /// Frames delivered twice, per million.
    pub duplicate_ppm: u32,
    /// Frames with one bit flipped, per million.
    pub corrupt_ppm: u32,
    /// Frames held back by up to `reorder_by`, per million, so that later ones overtake them.
    pub reorder_ppm: u32,
    /// Longest time a frame is held back, in microseconds.
    pub reorder_us: u64,
    /// Time on the wire, in microseconds.
    pub delay_us: u64,
    /// By how much loss, delay and rate of the two directions of a wire differ, in percent: one
    /// direction has them as they stand here, the other better by up to this much.
    pub asymmetry_percent: u32,
    /// Bits of UDP payload per second and direction.
    pub rate_bps: u64,
    /// Bytes that may wait for a wire before the sender is told that there is no room.
    pub queue_bytes: u64,
    /// Delivered frames that an attacker sends again later from an address of its own, per million.
    pub replay_ppm: u32,
}

impl Faults {
    /// Perfect wires of 100 Mbit/s.
    pub const NONE: Faults = Faults {
        loss_ppm: 0,
        duplicate_ppm: 0,
        corrupt_ppm: 0,
        reorder_ppm: 0,
        reorder_us: 0,
        delay_us: 1_000,
        asymmetry_percent: 0,
        rate_bps: 100_000_000,
        queue_bytes: 64 * 1_440,
        replay_ppm: 0,
    };
}

impl Default for Faults {
    fn default() -> Faults {
        Faults::NONE
    }
}

/// How routers are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Topology {
    /// A random tree, and `chords` more wires.
    Random,
    /// Each with each.
    Mesh,
    /// A circle, and `chords` more wires.
    Ring,
    /// A tree in which every router has up to three below it, and `chords` more wires.
    Tree,
    /// One after the other, and `chords` more wires.
    Line,
}

impl Topology {
    /// Every kind.
    pub const ALL: [Topology; 5] =
        [Topology::Random, Topology::Mesh, Topology::Ring, Topology::Tree, Topology::Line];
}

/// What is simulated. As JSON it is part of a [`crate::Scenario`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// Everything random follows from it.
    pub seed: u64,
    /// How routers are joined.
    pub topology: Topology,
    /// Routers, at least 1.
    pub routers: u32,
    /// Wires between routers beyond those of the topology.
    pub chords: u32,
    /// Hosts, spread over the routers in turn.
    pub hosts: u32,
    /// Workers of each node, up to 4, with rings between them that the seed delays.
    pub workers: u32,
    /// Flows of programs' packets between hosts, some of which no rule allows.
    pub flows: u32,
    /// Relays of the circuits over which alone every second pair of hosts is spoken with, up to 5;
    /// 0: no pair is hidden.
    pub circuits: u32,
    /// Lists that say how relays mix: the first holds from the start on, the others from times that
    /// the seed chooses; 0: no relay mixes. Without circuits it says nothing.
    pub mixes: u32,
    /// How long cells wait in the mean at each relay, in milliseconds, and five times as long at
    /// most; 0: the lists say different things, drawn by the seed.
    pub mix_ms: u32,
    /// Cells that a relay may hold for a link; 0: as many as a daemon's.
    pub mix_cells: u32,
    /// Mbit/s by whose schedule the links between hosts and their routers are covered; 0: none is.
    pub cover: u16,
    /// Slots of covered links come at random times.
    pub cover_poisson: bool,
    /// For how many seconds an address of a link is used, by the link's number, again from the
    /// first where the list is shorter; with none, addresses do not hop.
    pub hop_s: Vec<u32>,
    /// Where the two ends of links whose addresses hop meet: 0: at an endpoint that stays; 1: at
    /// addresses that follow from the time, and nowhere else; 2: there, or else at the endpoint.
    pub rendezvous: u32,
    /// How often each host calls another all the time, in milliseconds; 0: never.
    pub pulse_ms: u64,
    /// When the first host begins to call the second, in milliseconds, or up to a second later; the
    /// run ends when it was answered and has the direct link that it wants. 0: never. With such a
    /// call no others are made at the end.
    pub call_ms: u64,
    /// The calling host starts anew just before.
    pub call_anew: bool,
    /// Leg cells that a router changes, repeats or puts in another's place as it sends them, per
    /// million.
    pub spoilt_ppm: u32,
    /// Wires between pairs of hosts, which are cut for a while once each. With any, all hosts make
    /// direct links when there is traffic.
    pub direct_wires: u32,
    /// The weakest level that hosts take over direct links: 0 encrypt, 1 authenticate, 2 none.
    /// Hosts whose numbers are both even or both odd are in one security group.
    pub direct_level: u32,
    /// Translators of addresses, each behind none or one before it.
    pub translators: Vec<Translator>,
    /// Behind which of them each host stands, if behind any; hosts beyond the list stand in the
    /// public network, as routers do.
    pub behind: Vec<Option<u32>>,
    /// What wires do.
    pub faults: Faults,
    /// Files to send, each between two hosts at random.
    pub files: u32,
    /// Length of the longest file in bytes.
    pub file_bytes_max: u64,
    /// Bits of file per second at which every file leaves, whatever becomes of it; 0: the control
    /// law that follows the path.
    pub fixed_rate_bps: u64,
    /// How long the holds of routers keep each cell back, in microseconds.
    pub hold_us: u64,
    /// How long those of hosts do.
    pub host_hold_us: u64,
    /// All files go to one host.
    pub one_receiver: bool,
    /// The network's secret changes, and the last host is removed before that.
    pub rotation: bool,
    /// Wires between routers that are cut for a while.
    pub cuts: u32,
    /// Wires that are cut for a while in one direction only.
    pub one_way_cuts: u32,
    /// Times that a part of the routers is cut off from the others.
    pub partitions: u32,
    /// Times that a wire carries nothing between addresses that hop for a while.
    pub filters: u32,
    /// Times that a node gets another prefix for addresses that hop, and yet another a while later.
    pub renumberings: u32,
    /// Times that a wire carries no full frames for a while, in one direction or both.
    pub narrowings: u32,
    /// Times that a wire delays everything by up to 300 ms more, for a while.
    pub spikes: u32,
    /// Nodes that crash and start again, with nothing but their disks.
    pub crashes: u32,
    /// Nodes that crash and start again, with empty disks.
    pub wipes: u32,
    /// Nodes that stand still for a while and go on where they were.
    pub pauses: u32,
    /// How much faster or slower clocks run than they should, at most, in parts per million.
    pub drift_ppm: u32,
    /// How far wall clocks are off, at most, in seconds, those of routers by 20 minutes; anew at
    /// each start of a node.
    pub wall_off_s: u32,
    /// Time in which all this happens, in milliseconds; afterwards all is mended.
    pub trouble_ms: u64,
    /// Time after that, in which everything must come to its end, in milliseconds.
    pub calm_ms: u64,
    /// Numbers of planned faults that don't happen: how a failing run is made smaller.
    pub skip: Vec<u32>,
    /// Numbers of planned files that nobody sends, for the same end.
    pub skip_files: Vec<u32>,
    /// Pairs of hosts that are tried at the end; more hosts than that are drawn from.
    pub pings_max: u32,
    /// Seal with the simulator's own cheap ciphers.
    pub cheap_ciphers: bool,
    /// Steps and frames kept for the report of a failure.
    pub log_len: usize,
    /// What to break on purpose, to see that a checker notices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plant: Option<Plant>,
}

impl Default for Options {
    fn default() -> Options {
        Options::calm(0)
    }
}

impl Options {
    /// The paper's network, three meshed routers with two hosts each, on perfect wires.
    pub fn calm(seed: u64) -> Options {
        Options {
            seed,
            topology: Topology::Mesh,
            routers: 3,
            chords: 0,
            hosts: 6,
            workers: 1,
            flows: 0,
            circuits: 0,
            mixes: 0,
            cover: 0,
            cover_poisson: false,
            mix_cells: 0,
            mix_ms: 0,
            hop_s: Vec::new(),
            rendezvous: 0,
            pulse_ms: 0,
            call_ms: 0,
            call_anew: false,
            spoilt_ppm: 0,
            direct_wires: 0,
            direct_level: 0,
            translators: Vec::new(),
            behind: Vec::new(),
            faults: Faults::NONE,
            files: 3,
            file_bytes_max: 1_000_000,
            fixed_rate_bps: 0,
            hold_us: 0,
            host_hold_us: 0,
            one_receiver: false,
            rotation: false,
            cuts: 0,
            one_way_cuts: 0,
            partitions: 0,
            filters: 0,
            renumberings: 0,
            narrowings: 0,
            spikes: 0,
            crashes: 0,
            wipes: 0,
            pauses: 0,
            drift_ppm: 0,
            wall_off_s: 0,
            trouble_ms: 2_000,
            calm_ms: 20_000,
            skip: Vec::new(),
            skip_files: Vec::new(),
            pings_max: 200,
            cheap_ciphers: false,
            log_len: 200,
            plant: None,
        }
    }

    /// A network and faults chosen by the seed.
    pub fn from_seed(seed: u64) -> Options {
        let mut rng = Rng::new(seed_bytes(seed, "options"));
        let mut up_to = |most: u64| rng.below(most + 1);
        let some = |chance: u64, value: u64| if chance == 0 { 0 } else { value as u32 };
        let faults = Faults {
            loss_ppm: some(up_to(3), up_to(80_000)),
            duplicate_ppm: some(up_to(2), up_to(30_000)),
            corrupt_ppm: some(up_to(2), up_to(10_000)),
            reorder_ppm: some(up_to(2), up_to(200_000)),
            reorder_us: up_to(5_000),
            delay_us: 50 + up_to(15_000),
            asymmetry_percent: some(up_to(1), up_to(90)),
            rate_bps: 20_000_000 << up_to(4),
            queue_bytes: 1_440 * (8 + up_to(500)),
            replay_ppm: some(up_to(2), up_to(5_000)),
        };
        let routers = 1 + up_to(6) as u32;
        let mut more = Rng::new(seed_bytes(seed, "workers"));
        let (workers, flows) = (1 + more.below(4) as u32, more.below(5) as u32);
        // Most runs have a few kinds of faults; one in four has them all.
        let all = up_to(3) == 0;
        let mut count = |most: u64| if all || up_to(2) == 0 { up_to(most) as u32 } else { 0 };
        Options {
            cuts: count(4),
            one_way_cuts: count(3),
            partitions: count(2),
            spikes: count(3),
            crashes: count(2),
            wipes: count(2),
            pauses: count(2),
            drift_ppm: count(300),
            wall_off_s: count(600),
            topology: Topology::ALL[up_to(4) as usize],
            routers,
            chords: up_to(3) as u32,
            workers,
            flows,
            hosts: (routers + up_to(routers.into()) as u32).max(2),
            faults,
            files: 1 + up_to(6) as u32,
            file_bytes_max: 1 << (12 + up_to(9)),
            one_receiver: up_to(3) == 0,
            trouble_ms: 4_000 + up_to(8_000),
            calm_ms: 45_000,
            ..Options::calm(seed)
        }
    }

    /// A network and faults chosen by the seed, in which hosts make direct links.
    pub fn direct(seed: u64) -> Options {
        let mut rng = Rng::new(seed_bytes(seed, "direct"));
        let options = Options::from_seed(seed);
        let direct_wires = 1 + rng.below(u64::from(options.hosts)) as u32;
        // Failed attempts are repeated after 5 s at the earliest.
        Options { direct_wires, trouble_ms: options.trouble_ms + 8_000, ..options }
    }

    /// A network and faults chosen by the seed, in which half of all pairs of hosts speak over
    /// circuits.
    pub fn circuits(seed: u64) -> Options {
        let mut rng = Rng::new(seed_bytes(seed, "circuits"));
        let options = Options::from_seed(seed);
        let circuits = 1 + rng.below(5.min(options.routers.into())) as u32;
        // Relays refuse who is ten minutes off.
        let wall_off_s = options.wall_off_s.min(250);
        let spoilt_ppm = if rng.below(3) > 0 { rng.below(20_000) as u32 } else { 0 };
        Options { circuits, flows: options.flows + 2, spoilt_ppm, wall_off_s, ..options }
    }

    /// A network and faults chosen by the seed, in which half of all pairs of hosts speak over
    /// circuits whose relays mix. How long each cell waits, the seed does not choose.
    pub fn mixes(seed: u64) -> Options {
        let mut rng = Rng::new(seed_bytes(seed, "lists"));
        Options { mixes: 1 + rng.below(3) as u32, ..Options::circuits(seed) }
    }

    /// A network and faults chosen by the seed, in which the links of all hosts are covered.
    pub fn cover(seed: u64) -> Options {
        let mut rng = Rng::new(seed_bytes(seed, "cover"));
        let options = if seed.is_multiple_of(2) { Options::from_seed } else { Options::circuits };
        let (cover, cover_poisson) = (5 + rng.below(6) as u16, rng.below(3) == 0);
        Options { cover, cover_poisson, ..options(seed) }
    }

    /// A network and faults chosen by the seed, in which the addresses of all links hop.
    pub fn hops(seed: u64) -> Options {
        let mut rng = Rng::new(seed_bytes(seed, "hops"));
        let options = if seed.is_multiple_of(3) { Options::circuits } else { Options::from_seed };
        let mut some = |most: u64| 1 + rng.below(most) as u32;
        let hop_s = (0..some(4)).map(|_| some(6)).collect();
        let (filters, renumberings) = (some(4) - 1, some(4) - 1);
        Options { hop_s, filters, renumberings, pulse_ms: 1_000, ..options(seed) }
    }

    /// A network and faults chosen by the seed, whose wires get narrower and wider. Every second
    /// one has links that are covered or whose addresses hop.
    pub fn narrow(seed: u64) -> Options {
        let mut rng = Rng::new(seed_bytes(seed, "narrow"));
        let options =
            [Options::from_seed, Options::cover, Options::direct, Options::hops][seed as usize % 4];
        let (options, narrowings) = (options(seed), 2 + rng.below(5) as u32);
        Options { narrowings, trouble_ms: options.trouble_ms + 20_000, ..options }
    }

    /// Two routers and three hosts for `hours`, whose addresses hop: those of one link each second,
    /// those of the others more slowly, down to once an hour. Clocks drift, and everything goes
    /// wrong now and then.
    pub fn hopping(seed: u64, hours: u32) -> Options {
        let mut hop_s = vec![10, 1, 3_600, 90];
        hop_s.rotate_left((seed % 4) as usize);
        Options {
            routers: 2,
            hosts: 3,
            hop_s,
            pulse_ms: 30_000,
            files: hours,
            file_bytes_max: 50_000,
            cuts: hours,
            one_way_cuts: hours,
            filters: hours,
            renumberings: hours,
            spikes: hours,
            crashes: hours,
            pauses: hours.div_ceil(4),
            drift_ppm: 100,
            wall_off_s: 240,
            trouble_ms: u64::from(hours) * 3_600_000,
            calm_ms: 60_000,
            faults: Faults { loss_ppm: 5_000, delay_us: 10_000, ..Faults::NONE },
            ..Options::calm(seed)
        }
    }

    /// A network and faults chosen by the seed, whose secret changes meanwhile.
    pub fn rotation(seed: u64) -> Options {
        let options = Options::from_seed(seed);
        let (flows, hosts) = (0, options.hosts + 2);
        let trouble_ms = options.trouble_ms + 10_000;
        Options { rotation: true, flows, hosts, trouble_ms, calm_ms: 75_000, ..options }
    }

    /// The schedule of covered links.
    pub(crate) fn tier(&self) -> Option<CoverTier> {
        let kind = if self.cover_poisson { CoverKind::Poisson } else { CoverKind::Constant };
        CoverTier::new(self.cover, kind)
    }

    /// A big network that only has to find itself: `routers` in a random graph of about three
    /// wires each, and `hosts` in all.
    pub fn big(seed: u64, routers: u32, hosts: u32) -> Options {
        Options {
            topology: Topology::Random,
            routers,
            chords: routers / 2,
            hosts,
            files: (hosts / 2).min(20),
            file_bytes_max: 100_000,
            trouble_ms: 5_000,
            calm_ms: 35_000,
            pings_max: 100,
            cheap_ciphers: true,
            log_len: 0,
            faults: Faults { rate_bps: 1_000_000_000, queue_bytes: 1 << 20, ..Faults::NONE },
            ..Options::calm(seed)
        }
    }

    /// The paper's network for `hours`, with files, cuts and crashes all the time, on wires that
    /// lose little.
    pub fn long(seed: u64, hours: u32) -> Options {
        Options {
            chords: 0,
            files: 12 * hours,
            cuts: 6 * hours,
            one_way_cuts: 2 * hours,
            spikes: 4 * hours,
            crashes: 2 * hours,
            pauses: hours,
            drift_ppm: 50,
            trouble_ms: u64::from(hours) * 3_600_000,
            calm_ms: 45_000,
            faults: Faults {
                loss_ppm: 1_000,
                reorder_ppm: 1_000,
                reorder_us: 2_000,
                ..Faults::NONE
            },
            ..Options::calm(seed)
        }
    }

    /// A line of 24 routers over which 24 hosts send as fast as 10 Gbit/s wires take it: how many
    /// frames per second the simulator moves. The line is long so that what is measured is frames
    /// on their way, rather than the making of files.
    pub fn fast(seed: u64, cheap_ciphers: bool) -> Options {
        Options {
            topology: Topology::Line,
            routers: 24,
            hosts: 24,
            files: 24,
            file_bytes_max: 16 << 20,
            pings_max: 24,
            trouble_ms: 500,
            calm_ms: 31_000,
            cheap_ciphers,
            log_len: 0,
            faults: Faults {
                rate_bps: 10_000_000_000,
                queue_bytes: 1 << 20,
                delay_us: 200,
                ..Faults::NONE
            },
            ..Options::calm(seed)
        }
    }

    pub(crate) fn trouble(&self) -> Duration {
        Duration::from_millis(self.trouble_ms.max(1))
    }

    pub(crate) fn calm_time(&self) -> Duration {
        Duration::from_millis(self.calm_ms)
    }
}

/// The seed of one part of the run.
pub(crate) fn seed_bytes(seed: u64, part: &str) -> [u8; 32] {
    shoal_crypto::kdf(&[0x51; 32], part, &[&seed.to_be_bytes()])
}
