//! IP packets between hosts: cells towards one host and of one class leave together; those that
//! arrived are shown to the owner of the interface where they lie.

use core::ops::Range;
use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{Address, DropReason, SizeClass, Time, TrafficClass};

use crate::cells::{CELL_AT, PLAIN_AT, address_cell, plain};
use crate::edge::{BURST_MAX, Edge, FULL, HostId, Out};
use crate::leave::Towards;

/// The lane, of those that may be used, of a flow: it stays on one, so that its packets keep their
/// order. Nobody but the two hosts sees it.
pub(crate) fn lane_of(flow: u32, lanes: Range<u8>) -> u8 {
    lanes.start + (flow % u32::from(lanes.end.saturating_sub(lanes.start).max(1))) as u8
}

/// Packets that wait for sessions, in all: the first of each flow, since programs wait for answers.
const WAITING_MAX: usize = 64;

/// An IP packet that arrived, in the buffer that [`Edge::handle_cells`] was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Who sealed it.
    pub host: HostId,
    /// Where the plaintext of its cell starts, kind byte first.
    pub at: u32,
    /// Bytes of the plaintext, padding included.
    pub len: u32,
    /// Its cell met congestion on the way.
    pub congested: bool,
}

/// Cells under construction, all for one host, of one class and for one lane.
pub(crate) struct Building {
    /// Their frames, back to back.
    buf: Vec<u8>,
    run: Option<Run>,
    /// The flow that was added last, whose cells mostly come in rows.
    last: Option<(HostId, SizeClass, u32)>,
    count: usize,
    /// Of each, the low bits of its flow.
    pub(crate) flows: [u8; BURST_MAX],
}

impl Default for Building {
    fn default() -> Building {
        Building { buf: Vec::new(), run: None, last: None, count: 0, flows: [0; BURST_MAX] }
    }
}

/// What cells that leave together have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) host: HostId,
    pub(crate) class: SizeClass,
    pub(crate) lane: u8,
}

impl Building {
    /// Whether a cell of this flow leaves with those that are there, on the same lane for sure.
    pub(crate) fn goes_on(&self, host: HostId, class: SizeClass, flow: u32) -> bool {
        self.last == Some((host, class, flow)) && self.count < BURST_MAX
    }

    /// Whether a cell may be added to those that are there.
    pub(crate) fn fits(&self, run: &Run) -> bool {
        self.run.as_ref() == Some(run) && self.count < BURST_MAX
    }

    /// Adds a cell; there are none, or it fits.
    pub(crate) fn add(&mut self, run: Run, flow: u32, write: impl FnOnce(&mut [u8])) {
        self.buf.resize(BURST_MAX * FULL, 0);
        self.last = Some((run.host, run.class, flow));
        self.run = Some(run);
        self.push(flow, write);
    }

    /// Adds a cell that goes on.
    pub(crate) fn push(&mut self, flow: u32, write: impl FnOnce(&mut [u8])) {
        let Some(run) = self.run else { return };
        let at = self.count * run.class.frame_len();
        write(plain(&mut self.buf, at, run.class));
        self.flows[self.count] = flow as u8;
        self.count += 1;
    }

    /// Takes what was built: the buffer, to be given back, and what is in it.
    pub(crate) fn take(&mut self) -> Option<(Vec<u8>, Run, usize)> {
        let run = self.run.take()?;
        self.last = None;
        Some((core::mem::take(&mut self.buf), run, core::mem::take(&mut self.count)))
    }

    /// Gives the buffer back.
    pub(crate) fn give_back(&mut self, buf: Vec<u8>) {
        self.buf = buf;
    }

    /// Writes the routed headers of what was taken, and where frames and cells start.
    pub(crate) fn address(
        &self,
        (buf, class, count): (&mut [u8], SizeClass, usize),
        (to, me): (Address, Address),
        offsets: &mut Vec<u32>,
        payloads: &mut Vec<u32>,
    ) {
        offsets.clear();
        payloads.clear();
        for i in 0..count {
            let at = i * class.frame_len();
            address_cell(buf, at, to, me, TrafficClass::Bulk);
            offsets.push(at as u32);
            payloads.push((at + CELL_AT) as u32);
        }
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.run.is_none()
    }
}

/// What the edge holds of IP packets.
#[derive(Default)]
pub(crate) struct Packets {
    pub(crate) arrived: Vec<Arrival>,
    /// Plaintexts for hosts whose session is being made, with their flows; bounded by
    /// [`WAITING_MAX`].
    waiting: VecDeque<(HostId, u32, Vec<u8>)>,
    building: Building,
}

impl Packets {
    /// Cells under construction are due at once.
    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        (!self.building.is_empty()).then_some((Time::ZERO, "IP packets leave"))
    }

    pub(crate) fn forget(&mut self, host: HostId) {
        self.waiting.retain(|(to, ..)| *to != host);
    }
}

impl<C: Ciphers> Edge<C> {
    /// The IP packets among the cells of the last [`Edge::handle_cells`], in their order.
    pub fn arrivals(&self) -> &[Arrival] {
        &self.packets.arrived
    }

    /// Sends one IP packet of a flow, which any number names: `write` fills the whole plaintext of
    /// a cell that has at least `len` bytes, kind byte first. Packets for a host whose session is
    /// still to be made wait for it, a few of them. Call [`Edge::drive`] after the last one.
    ///
    /// Drops are counted: `ip_too_big`, `no_session`.
    pub fn send_packet(
        &mut self,
        now: Time,
        (host, flow): (HostId, u32),
        len: usize,
        out: &mut impl Out,
        write: impl FnOnce(&mut [u8]),
    ) {
        let Some(class) = SizeClass::for_edge(len) else {
            return self.count(DropReason::IpTooBig);
        };
        if self.packets.building.goes_on(host, class, flow) {
            return self.packets.building.push(flow, write);
        }
        let lanes = self.sessions.seal_lanes(now, PeerId(host.0));
        let run = Run { host, class, lane: lane_of(flow, 0..lanes) };
        if !self.packets.building.fits(&run) {
            self.flush_packets(now, out);
            if !self.is_reached(now, host, out) {
                return self.wait_for_session(now, (host, flow), class, write);
            }
        }
        self.packets.building.add(run, flow, write);
    }

    fn wait_for_session(
        &mut self,
        now: Time,
        (host, flow): (HostId, u32),
        class: SizeClass,
        write: impl FnOnce(&mut [u8]),
    ) {
        self.sessions.connect(now, PeerId(host.0));
        if self.packets.waiting.len() >= WAITING_MAX {
            return self.count(DropReason::NoSession);
        }
        let mut body = vec![0; class.edge_len()];
        write(&mut body);
        self.packets.waiting.push_back((host, flow, body));
    }

    /// Sends what waited for a session with `host`.
    pub(crate) fn send_waiting(&mut self, now: Time, host: HostId, out: &mut impl Out) {
        for _ in 0..self.packets.waiting.len() {
            let Some((to, flow, body)) = self.packets.waiting.pop_front() else { return };
            if to != host {
                self.packets.waiting.push_back((to, flow, body));
                continue;
            }
            let write = |plain: &mut [u8]| plain.copy_from_slice(&body);
            self.send_packet(now, (to, flow), body.len(), out, write);
        }
    }

    /// Seals and sends the cells under construction.
    pub(crate) fn flush_packets(&mut self, now: Time, out: &mut impl Out) {
        let Some((mut buf, run, count)) = self.packets.building.take() else { return };
        let peer = PeerId(run.host.0);
        match self.sessions.endpoint(peer) {
            Some(to) => {
                let frames = &mut buf[..count * run.class.frame_len()];
                let (ends, built) = ((to, self.config.address), (&mut *frames, run.class, count));
                let (offsets, payloads) = (&mut self.offsets, &mut self.payloads);
                self.packets.building.address(built, ends, offsets, payloads);
                // Keys may have changed since it was chosen.
                let lanes = self.sessions.seal_lanes(now, peer).max(1);
                let (lane, flows) = (run.lane.min(lanes - 1), self.packets.building.flows);
                let way = Towards { host: run.host, to, lane, flows: &flows };
                if let Err(reason) = self.send_run(now, way, frames, run.class, out) {
                    self.sessions.connect(now, peer);
                    self.count_all(reason, count as u64);
                }
            }
            None => self.count_all(DropReason::NoEndpoint, count as u64),
        }
        self.packets.building.give_back(buf);
    }

    /// Notes an IP packet whose frame starts at `at`.
    pub(crate) fn note_arrival(
        &mut self,
        host: HostId,
        at: usize,
        class: SizeClass,
        congested: bool,
    ) {
        let (at, len) = ((at + PLAIN_AT) as u32, class.edge_len() as u32);
        self.packets.arrived.push(Arrival { host, at, len, congested });
    }
}
