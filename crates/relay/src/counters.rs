//! Counters of a node: traffic, and drops by reason.

use shoal_mix::LATE;
use shoal_wire::DropReason;

/// Counters of frames and bytes on links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounters {
    /// Datagrams received.
    pub frames_in: u64,
    /// Bytes of UDP payload received.
    pub bytes_in: u64,
    /// Datagrams sent.
    pub frames_out: u64,
    /// Bytes of UDP payload sent.
    pub bytes_out: u64,
    /// Cells forwarded from one neighbour to another.
    pub cells_transit: u64,
    /// Cells for this node.
    pub cells_local: u64,
    /// Cells this node sent.
    pub cells_origin: u64,
    /// Cells that got a congestion mark here.
    pub cells_marked: u64,
    /// Cells that entered a hold.
    pub cells_held: u64,
    /// Cells that left a hold or were given up there: each was dispatched. The rest is held.
    pub cells_released: u64,
    /// Released cells that were later than each of [`LATE`].
    pub cells_late: [u64; LATE.len()],
    /// Frames to send over a link, without handshakes. Each was sent, waits, or is counted as a
    /// drop. A held cell is dispatched when its hold releases it.
    pub dispatched: u64,
    /// Handshake frames sent.
    pub handshakes_out: u64,
    /// Dispatched frames that were cut into parts. Each part is sent, waits or is dropped by
    /// itself.
    pub cut: u64,
    /// Dispatched frames, or their parts, that were dropped.
    pub dropped_out: u64,
    /// Control frames opened.
    pub control_in: u64,
    /// Keepalives opened.
    pub keepalives_in: u64,
    /// Handshake frames accepted, as a request or as an answer.
    pub handshakes_in: u64,
    /// Opened frames that only filled a slot of a covered link.
    pub cover_in: u64,
    /// Frames sent only to fill a slot: each was dispatched.
    pub cover_out: u64,
    /// Parts of full frames opened.
    pub parts_in: u64,
    /// Full frames completed from parts.
    pub wholes_in: u64,
    /// Received or completed frames that were dropped before they were forwarded.
    pub dropped_in: u64,
}

impl TrafficCounters {
    /// Adds the counters of another worker.
    pub fn add(&mut self, other: &TrafficCounters) {
        self.frames_in += other.frames_in;
        self.bytes_in += other.bytes_in;
        self.frames_out += other.frames_out;
        self.bytes_out += other.bytes_out;
        self.cells_transit += other.cells_transit;
        self.cells_local += other.cells_local;
        self.cells_origin += other.cells_origin;
        self.cells_marked += other.cells_marked;
        self.cells_held += other.cells_held;
        self.cells_released += other.cells_released;
        self.cells_late.iter_mut().zip(other.cells_late).for_each(|(sum, n)| *sum += n);
        self.dispatched += other.dispatched;
        self.handshakes_out += other.handshakes_out;
        self.cut += other.cut;
        self.control_in += other.control_in;
        self.keepalives_in += other.keepalives_in;
        self.handshakes_in += other.handshakes_in;
        self.cover_in += other.cover_in;
        self.cover_out += other.cover_out;
        self.parts_in += other.parts_in;
        self.wholes_in += other.wholes_in;
        self.dropped_in += other.dropped_in;
        self.dropped_out += other.dropped_out;
    }
}

/// Drops by reason, and traffic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DropCounters {
    drops: [u64; DropReason::COUNT],
    pub traffic: TrafficCounters,
}

impl Default for DropCounters {
    fn default() -> Self {
        DropCounters { drops: [0; DropReason::COUNT], traffic: TrafficCounters::default() }
    }
}

impl DropCounters {
    /// Counts `n` drops.
    pub fn drop(&mut self, reason: DropReason, n: u64) {
        self.drops[reason as usize] += n;
    }

    /// Counts `n` received frames that are dropped.
    pub(crate) fn drop_in(&mut self, reason: DropReason, n: u64) {
        self.traffic.dropped_in += n;
        self.drop(reason, n);
    }

    /// Counts `n` outgoing frames that are dropped.
    pub(crate) fn drop_out(&mut self, reason: DropReason, n: u64) {
        self.traffic.dropped_out += n;
        self.drop(reason, n);
    }

    /// Adds the counters of another worker.
    pub fn add(&mut self, other: &DropCounters) {
        self.drops.iter_mut().zip(other.drops).for_each(|(sum, n)| *sum += n);
        self.traffic.add(&other.traffic);
    }

    /// Drops counted under `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// All reasons with their counts, including zeros.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)))
    }
}
