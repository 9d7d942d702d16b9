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
    /// The low bits of each packet's flow.
    pub(crate) flows: [u8; BURST_MAX],
}

impl Default for Building {
    fn default() -> Building {
        Building { buf: Vec::new(), run: None, last: None, count: 0, flows: [0; BURST_MAX] }
    }
}

impl Building {
    /// Whether there are cells for this host.
    pub(crate) fn is_for(&self, host: HostId) -> bool {
        self.run.is_some_and(|run| run.host == host)
    }

    /// Whether a cell of this flow can be added without a look at its lane.
    pub(crate) fn goes_on(&self, flow: Flow, class: SizeClass) -> bool {
        self.last == Some((flow, class)) && self.count < BURST_MAX
    }

    /// Whether a cell may be added to those that are there.
    pub(crate) fn fits(&self, run: &Run) -> bool {
        self.run.as_ref() == Some(run) && self.count < BURST_MAX
    }

    /// Adds a cell, of a class unless it is a unit; there are none, or it fits.
    pub(crate) fn add(
        &mut self,
        run: Run,
        class: Option<SizeClass>,
        flow: Flow,
        write: impl FnOnce(&mut [u8]),
    ) {
        self.buf.resize(BURST_MAX * FULL, 0);
        self.last = class.map(|class| (flow, class));
        self.run = Some(run);
        self.push(flow, write);
    }

    /// Adds a cell for which [`Building::goes_on`] is true.
    pub(crate) fn push(&mut self, flow: Flow, write: impl FnOnce(&mut [u8])) {
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
