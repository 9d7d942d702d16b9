//! Cells under construction, which leave together.

use core::ops::Range;

use shoal_wire::{EdgeKind, SizeClass, TrafficClass, ip};

use crate::book::HostId;
use crate::cells::{Form, plain};
use crate::edge::{BURST_MAX, FULL};

/// A flow of packets to a host. Its packets keep their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Where it goes.
    pub host: HostId,
    /// Any number that names it.
    pub number: u32,
    /// Its stream to a hidden host, below [`ip::STREAMS`]. Flows of one stream wait for each other
    /// at that host; packets of stream 0 wait for nothing and keep no order.
    pub stream: u16,
}

impl Flow {
    /// The flow's lane among those that may be used; it stays the same. Only the two hosts see it.
    pub(crate) fn lane(self, lanes: Range<u8>) -> u8 {
        let count = lanes.end.saturating_sub(lanes.start).max(1);
        lanes.start + (self.number % u32::from(count)) as u8
    }
}

/// What cells that leave together have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) host: HostId,
    pub(crate) form: Form,
    pub(crate) traffic: TrafficClass,
    /// The lane to seal on, if this worker seals on it.
    pub(crate) lane: u8,
}

impl Run {
    /// A run for the edge's own messages.
    pub(crate) fn control(host: HostId, form: Form) -> Run {
        Run { host, form, traffic: TrafficClass::Control, lane: 0 }
    }

    /// Segments of a file. They use one lane, since their order shows losses.
    pub(crate) fn segments(host: HostId, form: Form) -> Run {
        Run { host, form, traffic: TrafficClass::Bulk, lane: 0 }
    }
}

/// Packets under construction, all of one run.
pub(crate) struct Building {
    /// Their frames, back to back.
    buf: Vec<u8>,
    run: Option<Run>,
    /// The flow that was added last, if its cell is no unit: cells of a flow mostly follow each
    /// other.
    last: Option<(Flow, SizeClass)>,
    count: usize,
    /// Bytes of the last cell's plaintext that packets fill.
    filled: usize,
    /// The low bits of each cell's flow.
    pub(crate) flows: [u8; BURST_MAX],
}

impl Default for Building {
    fn default() -> Building {
        let (buf, flows) = (Vec::new(), [0; BURST_MAX]);
        Building { buf, run: None, last: None, count: 0, filled: 0, flows }
    }
}

impl Building {
    /// Whether there are cells for this host.
    pub(crate) fn is_for(&self, host: HostId) -> bool {
        self.run.is_some_and(|run| run.host == host)
    }

    /// Whether a packet of this flow can be added without a look at its lane.
    pub(crate) fn goes_on(&self, flow: Flow, class: SizeClass, len: usize) -> bool {
        self.last == Some((flow, class)) && (self.count < BURST_MAX || self.has_room(len))
    }

    /// Whether the last cell has room for a packet of `len` bytes behind those of its flow. There
    /// the packet costs no cell of its own.
    fn has_room(&self, len: usize) -> bool {
        self.run.is_some_and(|run| self.filled + len <= run.form.plain_len())
    }

    /// Makes the only cell longer, if a packet of `len` bytes then has room in it: packets that
    /// come in numbers share long cells, and one that comes alone has a short one.
    fn grow(&mut self, len: usize) {
        let larger = |form: Form| {
            [SizeClass::Medium, SizeClass::Full].map(Form::cell).into_iter().find(|larger| {
                larger.frame_len() > form.frame_len() && self.filled + len <= larger.plain_len()
            })
        };
        if let Some(run) = self.run.as_mut().filter(|_| self.count == 1)
            && let Some(form) = larger(run.form)
        {
            run.form = form;
        }
    }

    /// Whether a cell may be added to those that are there.
    pub(crate) fn fits(&self, run: &Run) -> bool {
        self.run.as_ref() == Some(run) && self.count < BURST_MAX
    }

    /// Adds a cell for a packet of `len` bytes, of a class unless it is a unit; there are none, or
    /// it fits.
    pub(crate) fn add(
        &mut self,
        run: Run,
        class: Option<SizeClass>,
        (flow, len): (Flow, usize),
        write: impl FnOnce(&mut [u8]),
    ) {
        self.buf.resize(BURST_MAX * FULL, 0);
        self.run = Some(run);
        self.begin(flow, len, write);
        self.last = class.map(|class| (flow, class));
    }

    /// Adds a packet of `len` bytes for which [`Building::goes_on`] is true. A unit has one number,
    /// and so one packet.
    pub(crate) fn push(&mut self, flow: Flow, len: usize, write: impl FnOnce(&mut [u8])) {
        if !self.has_room(len) {
            self.grow(len);
        }
        let Some(run) = self.run.filter(|_| self.has_room(len)) else {
            return self.begin(flow, len, write);
        };
        let at = (self.count - 1) * run.form.frame_len();
        write(&mut plain(&mut self.buf, at, run.form)[self.filled..]);
        self.filled += len;
    }

    /// Begins another cell.
    fn begin(&mut self, flow: Flow, len: usize, write: impl FnOnce(&mut [u8])) {
        let Some(run) = self.run else { return };
        let at = self.count * run.form.frame_len();
        let plain = plain(&mut self.buf, at, run.form);
        if run.form.is_unit() {
            plain[0] = EdgeKind::Numbered as u8;
            write(&mut plain[ip::NUMBER_LEN..]);
            // Over the second kind byte; the number is known when the run leaves.
            let stream = ip::StreamNumber { stream: flow.stream, number: 0 };
            plain[ip::NUMBER_AT..][..ip::NUMBER_LEN].copy_from_slice(&stream.to_bytes());
        } else {
            write(plain);
        }
        self.flows[self.count] = flow.number as u8;
        self.count += 1;
        self.filled = len;
    }

    /// Takes the run: its buffer (to be given back), its description, and the number of cells.
    pub(crate) fn take(&mut self) -> Option<(Vec<u8>, Run, usize)> {
        let run = self.run.take()?;
        self.last = None;
        Some((core::mem::take(&mut self.buf), run, core::mem::take(&mut self.count)))
    }

    /// Gives the buffer back.
    pub(crate) fn give_back(&mut self, buf: Vec<u8>) {
        self.buf = buf;
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.run.is_none()
    }
}
