//! What a node counts: every drop under its reason, and what went through.

use shoal_mix::LATE;
use shoal_wire::DropReason;

/// Frames and bytes that went through, at the link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Datagrams received.
    pub frames_in: u64,
    /// Bytes of UDP payload received.
    pub bytes_in: u64,
    /// Datagrams sent.
    pub frames_out: u64,
    /// Bytes of UDP payload sent.
    pub bytes_out: u64,
    /// Cells passed on from one neighbour to another.
    pub cells_transit: u64,
    /// Cells for this node.
    pub cells_local: u64,
    /// Cells this node sent.
    pub cells_origin: u64,
    /// Cells that got a congestion mark here.
    pub cells_marked: u64,
    /// Cells that a hold took in.
    pub cells_held: u64,
    /// Held cells that a hold let go or gave up: each was dispatched. The others are held now.
    pub cells_released: u64,
    /// Of these, those that left later than each of [`LATE`] after their time.
    pub cells_late: [u64; LATE.len()],
    /// Frames that were to leave over a link, handshakes apart: each has left, waits, or is counted
    /// as a drop. A cell that is held is dispatched when the hold lets it go.
    pub dispatched: u64,
    /// Handshake frames that left.
    pub handshakes_out: u64,
    /// Dispatched frames that were cut into parts: each part leaves, waits or is dropped by itself.
    pub cut: u64,
    /// Dispatched frames, or their parts, that were dropped.
    pub dropped_out: u64,
    /// Control frames that opened.
    pub control_in: u64,
    /// Keepalives that opened.
    pub keepalives_in: u64,
    /// Handshake frames that were taken in, for work or for an answer.
    pub handshakes_in: u64,
    /// Frames that opened and only filled a slot of a covered link.
    pub cover_in: u64,
    /// Frames that filled a slot here, since nothing else did: each was dispatched.
    pub cover_out: u64,
    /// Parts of full frames that opened.
    pub parts_in: u64,
    /// Full frames that parts made whole.
    pub wholes_in: u64,
    /// Frames that came in, or were made whole, and were dropped before they were passed on.
    pub dropped_in: u64,
}

impl Traffic {
    /// Adds what another worker counted.
    pub fn add(&mut self, other: &Traffic) {
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
pub struct Counters {
    drops: [u64; DropReason::COUNT],
    /// What went through.
    pub traffic: Traffic,
}

impl Default for Counters {
    fn default() -> Self {
        Counters { drops: [0; DropReason::COUNT], traffic: Traffic::default() }
    }
}

impl Counters {
    /// Counts `n` drops.
    pub fn drop(&mut self, reason: DropReason, n: u64) {
        self.drops[reason as usize] += n;
    }

    /// Counts `n` frames that came in and go no further.
    pub(crate) fn drop_in(&mut self, reason: DropReason, n: u64) {
        self.traffic.dropped_in += n;
        self.drop(reason, n);
    }

    /// Counts `n` frames that were to leave and don't.
    pub(crate) fn drop_out(&mut self, reason: DropReason, n: u64) {
        self.traffic.dropped_out += n;
        self.drop(reason, n);
    }

    /// Adds what another worker counted.
    pub fn add(&mut self, other: &Counters) {
        self.drops.iter_mut().zip(other.drops).for_each(|(sum, n)| *sum += n);
        self.traffic.add(&other.traffic);
    }

    /// Drops counted under `reason`.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Every reason with its count, zeros included.
    pub fn drops(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL.iter().map(|&reason| (reason, self.dropped(reason)))
    }
}
