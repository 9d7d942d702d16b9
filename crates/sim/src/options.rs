//! What a run is made of: one flat struct, every fault a number.

use core::time::Duration;

use shoal_crypto::Rng;

/// What wires do to frames.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Faults {
    /// Frames lost, per million.
    pub loss_ppm: u32,
    /// Frames delivered twice, per million.
    pub duplicate_ppm: u32,
    /// Frames with one bit flipped, per million.
    pub corrupt_ppm: u32,
    /// Frames held back by up to `reorder_by`, per million, so that later ones overtake them.
    pub reorder_ppm: u32,
    /// Longest time a frame is held back.
    pub reorder_by: Duration,
    /// Time on the wire.
    pub delay: Duration,
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
        reorder_by: Duration::ZERO,
        delay: Duration::from_millis(1),
        rate_bps: 100_000_000,
        queue_bytes: 64 * 1_440,
        replay_ppm: 0,
    };
}

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Everything random follows from it.
    pub seed: u64,
    /// Routers, at least 1.
    pub routers: u32,
    /// Wires between routers beyond those that join them all.
    pub chords: u32,
    /// Hosts behind each router.
    pub hosts_per_router: u32,
    /// What wires do.
    pub faults: Faults,
    /// Files to send, each between two hosts at random.
    pub files: u32,
    /// Length of the longest file in bytes.
    pub file_bytes_max: u64,
    /// Wires between routers that are cut for a while.
    pub cuts: u32,
    /// Nodes that crash and start again, with nothing but their disks.
    pub crashes: u32,
    /// Time in which all this happens; afterwards all is mended.
    pub trouble: Duration,
    /// Time after that, in which everything must come to its end.
    pub calm: Duration,
    /// Steps kept for the report of a failure.
    pub log_len: usize,
}

impl Options {
    /// The paper's network, three meshed routers with two hosts each, on perfect wires.
    pub fn calm(seed: u64) -> Options {
        Options {
            seed,
            routers: 3,
            chords: 1,
            hosts_per_router: 2,
            faults: Faults::NONE,
            files: 3,
            file_bytes_max: 1_000_000,
            cuts: 0,
            crashes: 0,
            trouble: Duration::from_secs(2),
            calm: Duration::from_secs(20),
            log_len: 200,
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
            reorder_by: Duration::from_micros(up_to(5_000)),
            delay: Duration::from_micros(50 + up_to(15_000)),
            rate_bps: 20_000_000 << up_to(4),
            queue_bytes: 1_440 * (8 + up_to(500)),
            replay_ppm: some(up_to(2), up_to(5_000)),
        };
        Options {
            routers: 1 + up_to(4) as u32,
            chords: up_to(3) as u32,
            hosts_per_router: 1 + up_to(1) as u32,
            faults,
            files: 1 + up_to(3) as u32,
            file_bytes_max: 1 << (12 + up_to(9)),
            cuts: up_to(4) as u32,
            crashes: up_to(2) as u32,
            trouble: Duration::from_secs(4 + up_to(8)),
            calm: Duration::from_secs(45),
            ..Options::calm(seed)
        }
    }
}

/// The seed of one part of the run.
pub(crate) fn seed_bytes(seed: u64, part: &str) -> [u8; 32] {
    shoal_crypto::kdf(&[0x51; 32], part, &[&seed.to_be_bytes()])
}
