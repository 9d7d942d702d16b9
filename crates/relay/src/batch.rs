//! Helpers to sort and send one batch: runs, groups, lanes.

use core::ops::Range;

use shoal_crypto::Ciphers;
use shoal_link::Priority;
use shoal_session::{PeerId, SessionShard};
use shoal_wire::{
    Address, CONTROL_GOODBYE, DropReason, LinkId, LinkKind, NodeAddresses, RoutedHeader, SizeClass,
    Time, TrafficClass, link,
};

use crate::{FrameAt, ReceivedRun};

pub(crate) const MARK_AT: usize = link::ROUTED_AT + RoutedHeader::MARK_AT;
pub(crate) const HOP_LIMIT_AT: usize = link::ROUTED_AT + RoutedHeader::HOP_LIMIT_AT;

/// Frames of one size class with a common next step.
pub(crate) struct OutgoingRun<'a> {
    pub(crate) buf: &'a mut [u8],
    pub(crate) offsets: &'a [u32],
    pub(crate) class: SizeClass,
}

impl OutgoingRun<'_> {
    /// Number of frames.
    pub(crate) fn count(&self) -> u64 {
        self.offsets.len() as u64
    }

    /// A run of some of these frames, in the same buffer.
    pub(crate) fn of<'b>(&'b mut self, offsets: &'b [u32]) -> OutgoingRun<'b> {
        OutgoingRun { buf: &mut *self.buf, offsets, class: self.class }
    }

    /// One of the frames.
    pub(crate) fn frame(&self, at: u32) -> FrameAt<'_> {
        FrameAt { buf: &*self.buf, at, len: self.class.frame_len() as u32 }
    }

    /// True if the neighbour must report on these frames, since they are not only reports and
    /// keepalives. Valid only before they are sealed.
    pub(crate) fn is_traffic(&self) -> bool {
        self.offsets.first().is_some_and(|&at| is_traffic(self.buf[at as usize + link::KIND_AT]))
    }
}

/// Frames of a batch that leave by one link with one priority.
pub(crate) struct SendGroup {
    pub(crate) link: LinkId,
    pub(crate) priority: Priority,
    pub(crate) offsets: Vec<u32>,
}

/// The last look-up of a batch, cached because consecutive cells mostly have the same destination.
pub(crate) struct RouteCache {
    pub(crate) dst: Address,
    pub(crate) link: LinkId,
}

/// The lanes of a link, for a worker to choose from.
struct LaneChoice {
    /// Number of all lanes, of all workers.
    all: u8,
    mine: Range<u8>,
    /// Offset from a lane's number to that of its plain twin, if lanes have twins.
    plain: Option<u8>,
}

impl LaneChoice {
    /// The lane of the frame at `at`. All workers choose the same lane for a pair of hosts. If this
    /// worker does not own that lane, it chooses among its own.
    fn of(&self, buf: &[u8], at: u32) -> u8 {
        let lane = lane_of(buf, at, &(0..self.all));
        let lane = if self.mine.contains(&lane) { lane } else { lane_of(buf, at, &self.mine) };
        lane + self.plain.filter(|_| is_plain(buf, at)).unwrap_or(0)
    }
}

/// Seals a run, each flow's cells on that flow's lane.
///
/// # Errors
///
/// The errors of [`SessionShard::seal_batch`].
pub(crate) fn seal<C: Ciphers>(
    shard: &mut SessionShard<C>,
    now: Time,
    link: LinkId,
    run: &mut OutgoingRun<'_>,
) -> Result<(), DropReason> {
    let peer = PeerId::from(link);
    let lanes = LaneChoice {
        all: shard.lanes(now, peer),
        mine: shard.seal_lanes(now, peer),
        plain: shard.plain_from(now, peer),
    };
    let one = lanes.all <= 1 && lanes.plain.is_none();
    let mut rest = run.offsets;
    while let Some(&first) = rest.first() {
        let lane = lanes.of(run.buf, first);
        let same = |at: &&u32| one || lanes.of(run.buf, **at) == lane;
        let (now_sealed, later) = rest.split_at(rest.iter().take_while(same).count());
        forget_flows(run.buf, now_sealed);
        shard.seal_batch(now, peer, lane, run.buf, now_sealed, run.class.frame_len())?;
        rest = later;
    }
    Ok(())
}

/// True if the frame at `at` may use a lane without encryption: bulk between the two hosts of a
/// direct link.
fn is_plain(buf: &[u8], at: u32) -> bool {
    let frame = &buf[at as usize..];
    frame[link::KIND_AT] == LinkKind::Direct as u8
        && frame[link::ROUTED_AT + RoutedHeader::CLASS_AT] == TrafficClass::Bulk as u8
}

/// True if a control frame says goodbye. A goodbye counts only as the newest frame of the newest
/// session. A delayed one must not end a session that its sender agreed on after a restart.
pub(crate) fn is_goodbye(frame: &[u8]) -> bool {
    frame[link::BODY_AT] == CONTROL_GOODBYE
}

/// True if the kind byte denotes a cell.
fn is_cell(kind: u8) -> bool {
    let cells = [LinkKind::Cell, LinkKind::Direct, LinkKind::Leg];
    let wide = [LinkKind::SmallCell, LinkKind::MediumCell];
    cells.into_iter().chain(wide).any(|cell| kind == cell as u8)
}

/// True if the kind byte denotes more than a keepalive or report. This includes cover: a covered
/// link is monitored like one in use.
pub(crate) fn is_traffic(kind: u8) -> bool {
    is_cell(kind) || kind == LinkKind::Part as u8 || kind == LinkKind::Cover as u8
}

/// Position at which the edge writes the flow of a cell without an end-to-end seal: one byte, in
/// place of the seal's header. It is zeroed before the cell leaves.
pub(crate) const FLOW_AT: usize = link::CELL_AT;

/// Zeroes the flow numbers of frames that leave.
pub(crate) fn forget_flows(buf: &mut [u8], offsets: &[u32]) {
    for &at in offsets {
        let frame = &mut buf[at as usize..];
        if frame[link::KIND_AT] == LinkKind::Direct as u8 {
            frame[FLOW_AT] = 0;
        }
    }
}

/// Length of the circuit number that a node writes at the start of its own unsealed leg cell. It
/// occupies the place of the session header, which sealing overwrites.
pub const CIRCUIT_LEN: usize = 4;

/// The peer whose turns of a covered link a cell uses. It is the pair of nodes in the routed
/// header, with the circuit for this node's own leg cells. The circuit of other leg cells is
/// hidden. None if the frame is no cell.
pub(crate) fn peer_of(frame: &[u8], me: NodeAddresses) -> Option<u64> {
    if !is_cell(frame[link::KIND_AT]) {
        return None;
    }
    let pair = &frame[link::ROUTED_AT..link::ROUTED_AT + 2 * Address::LEN];
    let header = RoutedHeader::parse(&frame[link::ROUTED_AT..]);
    let own = header.is_ok_and(|header| me.has(header.src()));
    let circuit = match frame[link::KIND_AT] == LinkKind::Leg as u8 && own {
        true => &frame[..CIRCUIT_LEN],
        false => &[],
    };
    // FNV-1a with 64 bits. A sender that chooses colliding addresses shares turns, and gains no
    // more than a ninth peer has.
    let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    Some(pair.iter().chain(circuit).fold(0xcbf2_9ce4_8422_2325, mix))
}

/// Chooses one of `lanes` for the frame at `at`.
///
/// A pair of hosts stays on one lane, so its cells keep their order and routers see no flows. The
/// cells of a leg also stay on one lane, and so does each flow of a direct link. Frames that are no
/// cells take the first lane.
pub(crate) fn lane_of(buf: &[u8], at: u32, lanes: &Range<u8>) -> u8 {
    let frame = &buf[at as usize..];
    if lanes.len() <= 1 || !is_cell(frame[link::KIND_AT]) {
        return lanes.start;
    }
    let pair = &frame[link::ROUTED_AT..link::ROUTED_AT + 2 * Address::LEN];
    let flow = match frame[link::KIND_AT] == LinkKind::Direct as u8 {
        true => &frame[FLOW_AT..FLOW_AT + 1],
        false => &[],
    };
    // FNV-1a, then the finalizer of MurmurHash3, without which the source's last byte would hardly
    // count. The hash only spreads load, so an attacker gains nothing from collisions.
    let mut hash = pair
        .iter()
        .chain(flow)
        .fold(0x811c_9dc5_u32, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^= hash >> 16;
    lanes.start + (hash as usize % lanes.len()) as u8
}

/// Maximum number of lanes of a link.
pub(crate) const LANES: usize = 16;

/// Fills `frames` with the start of each frame of a batch and its index in `incoming`. Returns the
/// number of bytes.
pub(crate) fn cut(incoming: &[ReceivedRun], frames: &mut Vec<(u32, u32)>) -> u64 {
    frames.clear();
    let mut bytes = 0;
    for (source, run) in incoming.iter().enumerate() {
        bytes += u64::from(run.len);
        let end = run.offset + run.len;
        let mut at = run.offset;
        while at < end {
            frames.push((at, source as u32));
            at += run.stride.max(1);
        }
    }
    bytes
}

/// Length in bytes of a frame that [`cut`] found.
#[inline]
pub(crate) fn frame_len(&(at, source): &(u32, u32), incoming: &[ReceivedRun]) -> u32 {
    let run = &incoming[source as usize];
    run.stride.min(run.offset + run.len - at)
}

/// The offsets of the batch's frames that leave by `link` with this priority.
pub(crate) fn group(
    groups: &mut Vec<SendGroup>,
    link: LinkId,
    priority: Priority,
) -> &mut Vec<u32> {
    let same = |g: &SendGroup| g.link == link && g.priority == priority;
    let at = match groups.iter().position(same) {
        Some(at) => at,
        None => match groups.iter().position(|g| g.offsets.is_empty()) {
            Some(free) => {
                groups[free].link = link;
                groups[free].priority = priority;
                free
            }
            None => {
                groups.push(SendGroup { link, priority, offsets: Vec::new() });
                groups.len() - 1
            }
        },
    };
    &mut groups[at].offsets
}

pub(crate) fn priority(class: TrafficClass) -> Priority {
    match class {
        TrafficClass::Control => Priority::Control,
        TrafficClass::Bulk => Priority::Data,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_between_few_hosts_spread_over_all_lanes() {
        for lanes in [2u8, 4, 16] {
            let mut flows = vec![0u32; usize::from(lanes)];
            for (a, b) in (1..=12).flat_map(|a| (1..=12).map(move |b| (a, b))) {
                let mut frame = vec![0; 64];
                frame[link::KIND_AT] = LinkKind::Cell as u8;
                let (dst, src) = (Address::new(2, a).to_bytes(), Address::new(1, b).to_bytes());
                frame[link::ROUTED_AT..][..2 * Address::LEN].copy_from_slice(&[dst, src].concat());
                flows[usize::from(lane_of(&frame, 0, &(0..lanes)))] += 1;
            }
            let fair = 144 / u32::from(lanes);
            assert!(flows.iter().all(|n| (fair / 2..=fair * 2).contains(n)), "{flows:?}");
        }
    }
}
