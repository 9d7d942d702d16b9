//! Cells under construction, which leave together.

use core::ops::Range;

use shoal_wire::{EdgeKind, SizeClass, TrafficClass, ip};

use crate::book::HostId;
use crate::cells::{CellLayout, plain};
use crate::edge::{BURST_MAX, FULL};

/// Packets in one run. The interface takes about 1 us for a packet, so the first one leaves within
/// 0.2 ms, however many small packets follow it.
const PACKETS_MAX: usize = 4 * BURST_MAX;

/// A flow of packets to a host. Its packets keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PacketFlow {
    pub host: HostId,
    /// Any number that identifies the flow between these hosts.
    pub number: u32,
    /// Stream number towards a hidden host, below [`ip::STREAMS`]. Flows in one stream wait for
    /// each other's lost packets at that host. Packets of stream 0 are delivered in any order, at
    /// once.
    pub stream: u16,
}

impl PacketFlow {
    /// The flow's lane within this range, the same one each time. Only the two hosts see the
    /// choice.
    pub(crate) fn lane(self, lanes: Range<u8>) -> u8 {
        let count = lanes.end.saturating_sub(lanes.start).max(1);
        lanes.start + (self.number % u32::from(count)) as u8
    }
}

/// Properties that all cells of one send have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellBatch {
    pub(crate) host: HostId,
    pub(crate) form: CellLayout,
    pub(crate) traffic: TrafficClass,
    /// Preferred lane. Without it, the first lane on which this worker seals is used.
    pub(crate) lane: u8,
}

impl CellBatch {
    /// A run for the edge's own messages.
    pub(crate) fn control(host: HostId, form: CellLayout) -> CellBatch {
        CellBatch { host, form, traffic: TrafficClass::Control, lane: 0 }
    }

    /// Segments of a file. They use one lane, since their order shows losses.
    pub(crate) fn segments(host: HostId, form: CellLayout) -> CellBatch {
        CellBatch { host, form, traffic: TrafficClass::Bulk, lane: 0 }
    }
}

/// Cells under construction, all of one run.
pub(crate) struct BatchBuilder {
    /// Frames, back to back.
    buf: Vec<u8>,
    run: Option<CellBatch>,
    /// Flow of the last packet, unless its cell is a unit. The next packet mostly has the same
    /// flow.
    last: Option<(PacketFlow, SizeClass)>,
    count: usize,
    /// Number of packets in all cells.
    packets: usize,
    /// Bytes of the last cell's plaintext that are filled with packets.
    filled: usize,
    /// Low eight bits of the flow number, for each cell.
    pub(crate) flows: [u8; BURST_MAX],
}

impl Default for BatchBuilder {
    fn default() -> BatchBuilder {
        let (buf, flows) = (Vec::new(), [0; BURST_MAX]);
        BatchBuilder { buf, run: None, last: None, count: 0, packets: 0, filled: 0, flows }
    }
}

impl BatchBuilder {
    /// True if these cells are for this host.
    pub(crate) fn is_for(&self, host: HostId) -> bool {
        self.run.is_some_and(|run| run.host == host)
    }

    /// True if a packet of this flow can be added without choosing its lane again.
    pub(crate) fn goes_on(&self, flow: PacketFlow, class: SizeClass, len: usize) -> bool {
        self.last == Some((flow, class))
            && self.packets < PACKETS_MAX
            && (self.count < BURST_MAX || self.has_room(len))
    }

    /// True if the last cell has room for another packet of `len` bytes. A packet of that flow then
    /// costs no cell of its own.
    fn has_room(&self, len: usize) -> bool {
        self.run.is_some_and(|run| self.filled + len <= run.form.plain_len())
    }

    /// Enlarges the only cell so that a packet of `len` bytes fits, if a larger size class allows
    /// that. Packets in quick succession therefore share long cells, and a lone packet leaves in a
    /// short one.
    fn grow(&mut self, len: usize) {
        let larger = |form: CellLayout| {
            [SizeClass::Medium, SizeClass::Full].map(CellLayout::cell).into_iter().find(|larger| {
                larger.frame_len() > form.frame_len() && self.filled + len <= larger.plain_len()
            })
        };
        if let Some(run) = self.run.as_mut().filter(|_| self.count == 1)
            && let Some(form) = larger(run.form)
        {
            run.form = form;
        }
    }

    /// True if another cell of this run may be added.
    pub(crate) fn fits(&self, run: &CellBatch) -> bool {
        self.run.as_ref() == Some(run) && self.count < BURST_MAX && self.packets < PACKETS_MAX
    }

    /// Adds a cell for a packet of `len` bytes. Requires that no cells are there or that
    /// [`BatchBuilder::fits`] is true. `class` is None for a unit.
    pub(crate) fn add(
        &mut self,
        run: CellBatch,
        class: Option<SizeClass>,
        (flow, len): (PacketFlow, usize),
        write: impl FnOnce(&mut [u8]),
    ) {
        self.buf.resize(BURST_MAX * FULL, 0);
        self.run = Some(run);
        self.begin(flow, len, write);
        self.last = class.map(|class| (flow, class));
    }

    /// Adds a packet of `len` bytes for which [`BatchBuilder::goes_on`] is true. A unit carries one
    /// packet number and therefore one packet.
    pub(crate) fn push(&mut self, flow: PacketFlow, len: usize, write: impl FnOnce(&mut [u8])) {
        if !self.has_room(len) {
            self.grow(len);
        }
        let Some(run) = self.run.filter(|_| self.has_room(len)) else {
            return self.begin(flow, len, write);
        };
        let at = (self.count - 1) * run.form.frame_len();
        write(&mut plain(&mut self.buf, at, run.form)[self.filled..]);
        self.filled += len;
        self.packets += 1;
    }

    fn begin(&mut self, flow: PacketFlow, len: usize, write: impl FnOnce(&mut [u8])) {
        let Some(run) = self.run else { return };
        let at = self.count * run.form.frame_len();
        let plain = plain(&mut self.buf, at, run.form);
        if run.form.is_unit() {
            plain[0] = EdgeKind::Numbered as u8;
            write(&mut plain[ip::NUMBER_LEN..]);
            // The stream number overwrites the kind byte that `write` put there. The packet number
            // is filled in when the run leaves.
            let stream = ip::StreamNumber { stream: flow.stream, number: 0 };
            plain[ip::NUMBER_AT..][..ip::NUMBER_LEN].copy_from_slice(&stream.to_bytes());
        } else {
            write(plain);
        }
        self.flows[self.count] = flow.number as u8;
        self.count += 1;
        self.packets += 1;
        self.filled = len;
    }

    /// Takes the run: its buffer (to be given back), its description, and the number of cells.
    pub(crate) fn take(&mut self) -> Option<(Vec<u8>, CellBatch, usize)> {
        let run = self.run.take()?;
        (self.last, self.packets) = (None, 0);
        Some((core::mem::take(&mut self.buf), run, core::mem::take(&mut self.count)))
    }

    pub(crate) fn give_back(&mut self, buf: Vec<u8>) {
        self.buf = buf;
    }

    /// True if there are no cells.
    pub(crate) fn is_empty(&self) -> bool {
        self.run.is_none()
    }
}
