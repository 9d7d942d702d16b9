//! Options of a run: one flat struct in which each fault is a number.

use core::time::Duration;

use serde::{Deserialize, Serialize};
use shoal_crypto::Rng;
use shoal_wire::{CoverKind, CoverTier};

use crate::nat::NatRules;
use crate::plant::InjectedFault;

/// Faults of wires.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WireFaults {
    /// Frames lost, per million.
    pub loss_ppm: u32,
    /// Frames delivered twice, per million.
    pub duplicate_ppm: u32,
    /// Frames with one bit flipped, per million.
    pub corrupt_ppm: u32,
    /// Frames held back by up to `reorder_us`, per million, so that later ones overtake them.
    pub reorder_ppm: u32,
    /// Longest time a frame is held back, in microseconds.
    pub reorder_us: u64,
    /// Time on the wire, in microseconds.
    pub delay_us: u64,
    /// Difference of loss, delay and rate between the two directions of a wire, in percent. One
    /// direction has the values given here; the other is better by up to this much.
    pub asymmetry_percent: u32,
    /// Bits of UDP payload per second and direction.
    pub rate_bps: u64,
    /// Bytes that may wait for a wire. Further frames are refused.
    pub queue_bytes: u64,
    /// Delivered frames that an attacker sends again later from its own address, per million.
    pub replay_ppm: u32,
}

impl WireFaults {
    /// Lossless wires of 100 Mbit/s.
    pub const NONE: WireFaults = WireFaults {
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

impl Default for WireFaults {
    fn default() -> WireFaults {
        WireFaults::NONE
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RouterTopology {
    /// A random tree, and `chords` more wires.
    Random,
    /// A wire between each two routers.
    Mesh,
    /// A ring, and `chords` more wires.
    Ring,
    /// A tree in which each router has up to three children, and `chords` more wires.
    Tree,
    /// A line, and `chords` more wires.
    Line,
}

impl RouterTopology {
    /// All topologies.
    pub const ALL: [RouterTopology; 5] = [
        RouterTopology::Random,
        RouterTopology::Mesh,
        RouterTopology::Ring,
        RouterTopology::Tree,
        RouterTopology::Line,
    ];
}

/// The simulated network and its faults. As JSON, part of a [`crate::SavedRun`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SimulationOptions {
    /// Seed of all random choices.
    pub seed: u64,
    pub topology: RouterTopology,
    /// Routers, at least 1.
    pub routers: u32,
    /// Wires between routers beyond those of the topology.
    pub chords: u32,
    /// Hosts, spread over the routers in turn.
    pub hosts: u32,
    /// True if each host has a second address, at another router.
    pub two_routers: bool,
    /// Workers of each node, up to 4. The seed chooses the delays of the rings between them.
    pub workers: u32,
    /// Flows of programs' packets between hosts; policy forbids some of them.
    pub flows: u32,
    /// Number of relays, up to 5, for half of all pairs of hosts, which reach each other over
    /// circuits only. 0: no circuits.
    pub circuits: u32,
    /// Number of lists with mixing strategies. The first applies from the start, the others from
    /// times that the seed chooses. 0: no relay mixes. Ignored without circuits.
    pub mixes: u32,
    /// Mean delay of a cell at each relay in milliseconds; the largest delay is five times as long.
    /// 0: the seed draws the strategies.
    pub mix_ms: u32,
    /// Largest number of cells that a relay holds for a link. 0: the daemon's value.
    pub mix_cells: u32,
    /// Rate in Mbit/s of the schedule of links between hosts and their routers. 0: no cover.
    pub cover: u16,
    /// True if covered links have a Poisson schedule.
    pub cover_poisson: bool,
    /// Epochs of addresses in seconds, by link number; a shorter list repeats. Empty: addresses do
    /// not shift.
    pub shift_s: Vec<u32>,
    /// Meeting place of the two ends of a link with shifting addresses. 0: a fixed endpoint. 1:
    /// rendezvous addresses, which follow from the time. 2: rendezvous addresses, or else the
    /// endpoint.
    pub rendezvous: u32,
    /// Interval in milliseconds at which each host calls another throughout the run. 0: never.
    pub pulse_ms: u64,
    /// Earliest time in milliseconds at which the first host calls the second; up to a second is
    /// added. The run ends when the call is answered and the direct link is up. 0: no call. With
    /// this call, there are no pings at the end.
    pub call_ms: u64,
    /// True if the calling host restarts just before.
    pub call_anew: bool,
    /// Leg cells that a router alters, repeats or replaces by another when it sends them, per
    /// million.
    pub spoilt_ppm: u32,
    /// Wires between pairs of hosts, each of which is cut once for a while. If there are any, hosts
    /// make direct links when there is traffic.
    pub direct_wires: u32,
    /// Times that a host may have no direct links for a while.
    pub direct_bans: u32,
    /// Weakest level that hosts accept on direct links: 0 encrypt, 1 authenticate, 2 none. Hosts
    /// whose numbers are both even or both odd share a security group.
    pub direct_level: u32,
    /// Translators of addresses. Each may be behind an earlier one.
    pub translators: Vec<NatRules>,
    /// Translator that each host is behind, if any. Hosts beyond the list are in the public
    /// network, as routers are.
    pub behind: Vec<Option<u32>>,
    pub faults: WireFaults,
    /// Files to send, each between two hosts at random.
    pub files: u32,
    /// Length of the longest file in bytes.
    pub file_bytes_max: u64,
    /// Fixed rate of every file in bits per second, regardless of losses. 0: the control law.
    pub fixed_rate_bps: u64,
    /// Delay of each cell in the holds of routers, in microseconds.
    pub hold_us: u64,
    /// Delay of each cell in the holds of hosts, in microseconds.
    pub host_hold_us: u64,
    /// All files go to one host.
    pub one_receiver: bool,
    /// True if the network's secret changes; the last host is removed before that.
    pub rotation: bool,
    /// Wires between routers that are cut for a while.
    pub cuts: u32,
    /// Wires that are cut for a while in one direction only.
    pub one_way_cuts: u32,
    /// Times that a part of the routers is cut off from the rest.
    pub partitions: u32,
    /// Times that a wire carries nothing between shifting addresses for a while.
    pub filters: u32,
    /// Times that a node gets another prefix for its shifting addresses, and a third one a while
    /// later.
    pub renumberings: u32,
    /// Times that a wire carries no full frames for a while, in one or both directions.
    pub narrowings: u32,
    /// Times that a wire delays all frames by up to 300 ms more for a while.
    pub spikes: u32,
    /// Nodes that crash and restart with their disks.
    pub crashes: u32,
    /// Nodes that crash and restart with empty disks.
    pub wipes: u32,
    /// Nodes that pause for a while and then continue.
    pub pauses: u32,
    /// Largest drift of clocks, in parts per million.
    pub drift_ppm: u32,
    /// Largest error of wall clocks in seconds; at most 20 minutes for routers. Drawn anew at each
    /// start of a node.
    pub wall_off_s: u32,
    /// Period of the faults in milliseconds; afterwards all of them are repaired.
    pub trouble_ms: u64,
    /// Period after that in milliseconds, by whose end all transfers must be over.
    pub calm_ms: u64,
    /// Numbers of planned faults that are left out, to shrink a failing run.
    pub skip: Vec<u32>,
    /// Numbers of planned files that are left out, to shrink a failing run.
    pub skip_files: Vec<u32>,
    /// Largest number of pairs of hosts that ping each other at the end. If there are more pairs,
    /// some are drawn.
    pub pings_max: u32,
    /// True if nodes use the simulator's cheap ciphers.
    pub cheap_ciphers: bool,
    /// Number of steps and frames kept for the report of a failure.
    pub log_len: usize,
    /// Fault to plant, as a test of the checkers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plant: Option<InjectedFault>,
}

impl Default for SimulationOptions {
    fn default() -> SimulationOptions {
        SimulationOptions::calm(0)
    }
}

impl SimulationOptions {
    /// The paper's network, three meshed routers with two hosts each, on lossless wires.
    pub fn calm(seed: u64) -> SimulationOptions {
        SimulationOptions {
            seed,
            topology: RouterTopology::Mesh,
            routers: 3,
            chords: 0,
            hosts: 6,
            two_routers: false,
            workers: 1,
            flows: 0,
            circuits: 0,
            mixes: 0,
            cover: 0,
            cover_poisson: false,
            mix_cells: 0,
            mix_ms: 0,
            shift_s: Vec::new(),
            rendezvous: 0,
            pulse_ms: 0,
            call_ms: 0,
            call_anew: false,
            spoilt_ppm: 0,
            direct_wires: 0,
            direct_bans: 0,
            direct_level: 0,
            translators: Vec::new(),
            behind: Vec::new(),
            faults: WireFaults::NONE,
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
    pub fn from_seed(seed: u64) -> SimulationOptions {
        let mut rng = Rng::new(seed_bytes(seed, "options"));
        let mut up_to = |most: u64| rng.below(most + 1);
        let some = |chance: u64, value: u64| if chance == 0 { 0 } else { value as u32 };
        let faults = WireFaults {
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
        // Most runs have few kinds of faults; one in four has all of them.
        let all = up_to(3) == 0;
        let mut count = |most: u64| if all || up_to(2) == 0 { up_to(most) as u32 } else { 0 };
        SimulationOptions {
            cuts: count(4),
            one_way_cuts: count(3),
            partitions: count(2),
            spikes: count(3),
            crashes: count(2),
            wipes: count(2),
            pauses: count(2),
            drift_ppm: count(300),
            wall_off_s: count(600),
            topology: RouterTopology::ALL[up_to(4) as usize],
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
            ..SimulationOptions::calm(seed)
        }
    }

    /// A network and faults chosen by the seed, in which hosts make direct links.
    pub fn direct(seed: u64) -> SimulationOptions {
        let mut rng = Rng::new(seed_bytes(seed, "direct"));
        let options = SimulationOptions::from_seed(seed);
        let direct_wires = 1 + rng.below(u64::from(options.hosts)) as u32;
        // Failed attempts are repeated after 5 s at the earliest.
        SimulationOptions { direct_wires, trouble_ms: options.trouble_ms + 8_000, ..options }
    }

    /// A network and faults chosen by the seed, in which hosts make direct links and may have none
    /// at times.
    pub fn direct_bans(seed: u64) -> SimulationOptions {
        SimulationOptions { direct_bans: 6, ..SimulationOptions::direct(seed) }
    }

    /// A network and faults chosen by the seed, in which half of all pairs of hosts use circuits.
    pub fn circuits(seed: u64) -> SimulationOptions {
        let mut rng = Rng::new(seed_bytes(seed, "circuits"));
        let options = SimulationOptions::from_seed(seed);
        let circuits = 1 + rng.below(5.min(options.routers.into())) as u32;
        // Relays refuse nodes whose clock is wrong by ten minutes.
        let wall_off_s = options.wall_off_s.min(250);
        let spoilt_ppm = if rng.below(3) > 0 { rng.below(20_000) as u32 } else { 0 };
        SimulationOptions { circuits, flows: options.flows + 2, spoilt_ppm, wall_off_s, ..options }
    }

    /// A network and faults chosen by the seed, in which half of all pairs of hosts use circuits
    /// whose relays mix. The delays of single cells do not follow from the seed.
    pub fn mixes(seed: u64) -> SimulationOptions {
        let mut rng = Rng::new(seed_bytes(seed, "lists"));
        SimulationOptions { mixes: 1 + rng.below(3) as u32, ..SimulationOptions::circuits(seed) }
    }

    /// A network and faults chosen by the seed, in which the links of all hosts are covered.
    pub fn cover(seed: u64) -> SimulationOptions {
        let mut rng = Rng::new(seed_bytes(seed, "cover"));
        let options = if seed.is_multiple_of(2) {
            SimulationOptions::from_seed
        } else {
            SimulationOptions::circuits
        };
        let (cover, cover_poisson) = (5 + rng.below(6) as u16, rng.below(3) == 0);
        SimulationOptions { cover, cover_poisson, ..options(seed) }
    }

    /// A network and faults chosen by the seed, in which the addresses of all links shift.
    pub fn shifts(seed: u64) -> SimulationOptions {
        // This word fixes a seed's numbers: it stays, so that known seeds show what they showed.
        let mut rng = Rng::new(seed_bytes(seed, "hops"));
        let options = if seed.is_multiple_of(3) {
            SimulationOptions::circuits
        } else {
            SimulationOptions::from_seed
        };
        let mut some = |most: u64| 1 + rng.below(most) as u32;
        let shift_s = (0..some(4)).map(|_| some(6)).collect();
        let (filters, renumberings) = (some(4) - 1, some(4) - 1);
        SimulationOptions { shift_s, filters, renumberings, pulse_ms: 1_000, ..options(seed) }
    }

    /// A network and faults chosen by the seed, whose wires sometimes carry no full frames. Every
    /// second network also has covered links or shifting addresses.
    pub fn narrow(seed: u64) -> SimulationOptions {
        let mut rng = Rng::new(seed_bytes(seed, "narrow"));
        let options = [
            SimulationOptions::from_seed,
            SimulationOptions::cover,
            SimulationOptions::direct,
            SimulationOptions::shifts,
        ][seed as usize % 4];
        let (options, narrowings) = (options(seed), 2 + rng.below(5) as u32);
        SimulationOptions { narrowings, trouble_ms: options.trouble_ms + 20_000, ..options }
    }

    /// Two routers and three hosts for `hours`, with shifting addresses: each second on one link,
    /// more slowly on the others, down to once an hour. Clocks drift, and faults of all kinds
    /// occur.
    pub fn shifting(seed: u64, hours: u32) -> SimulationOptions {
        let mut shift_s = vec![10, 1, 3_600, 90];
        shift_s.rotate_left((seed % 4) as usize);
        SimulationOptions {
            routers: 2,
            hosts: 3,
            shift_s,
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
            faults: WireFaults { loss_ppm: 5_000, delay_us: 10_000, ..WireFaults::NONE },
            ..SimulationOptions::calm(seed)
        }
    }

    /// A network and faults chosen by the seed, whose secret changes during the run.
    pub fn rotation(seed: u64) -> SimulationOptions {
        let options = SimulationOptions::from_seed(seed);
        let (flows, hosts) = (0, options.hosts + 2);
        let trouble_ms = options.trouble_ms + 10_000;
        SimulationOptions { rotation: true, flows, hosts, trouble_ms, calm_ms: 75_000, ..options }
    }

    /// The schedule of covered links.
    pub(crate) fn tier(&self) -> Option<CoverTier> {
        let kind = if self.cover_poisson { CoverKind::Poisson } else { CoverKind::Constant };
        CoverTier::new(self.cover, kind)
    }

    /// A big network that only has to find its routes: `routers` in a random graph of about three
    /// wires each, and `hosts` in all.
    pub fn big(seed: u64, routers: u32, hosts: u32) -> SimulationOptions {
        SimulationOptions {
            topology: RouterTopology::Random,
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
            faults: WireFaults {
                rate_bps: 1_000_000_000,
                queue_bytes: 1 << 20,
                ..WireFaults::NONE
            },
            ..SimulationOptions::calm(seed)
        }
    }

    /// The paper's network for `hours`, with regular files, cuts and crashes, on wires that lose
    /// little.
    pub fn long(seed: u64, hours: u32) -> SimulationOptions {
        SimulationOptions {
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
            faults: WireFaults {
                loss_ppm: 1_000,
                reorder_ppm: 1_000,
                reorder_us: 2_000,
                ..WireFaults::NONE
            },
            ..SimulationOptions::calm(seed)
        }
    }

    /// A line of 24 routers over which 24 hosts send at the rate of 10 Gbit/s wires. It measures
    /// the simulator's frames per second. The line is long so that frames in transit dominate the
    /// cost, not the making of files.
    pub fn fast(seed: u64, cheap_ciphers: bool) -> SimulationOptions {
        SimulationOptions {
            topology: RouterTopology::Line,
            routers: 24,
            hosts: 24,
            files: 24,
            file_bytes_max: 16 << 20,
            pings_max: 24,
            trouble_ms: 500,
            calm_ms: 31_000,
            cheap_ciphers,
            log_len: 0,
            faults: WireFaults {
                rate_bps: 10_000_000_000,
                queue_bytes: 1 << 20,
                delay_us: 200,
                ..WireFaults::NONE
            },
            ..SimulationOptions::calm(seed)
        }
    }

    pub(crate) fn trouble(&self) -> Duration {
        Duration::from_millis(self.trouble_ms.max(1))
    }

    pub(crate) fn calm_time(&self) -> Duration {
        Duration::from_millis(self.calm_ms)
    }
}

/// Seed for one part of the run.
pub(crate) fn seed_bytes(seed: u64, part: &str) -> [u8; 32] {
    shoal_crypto::kdf(&[0x51; 32], part, &[&seed.to_be_bytes()])
}
