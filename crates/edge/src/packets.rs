//! IP packets between hosts: cells towards one host and of one class leave together; those that
//! arrived are shown to the owner of the interface where they lie.

use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_session::PeerId;
use shoal_wire::{DropReason, SizeClass, Time, TrafficClass};

use crate::cells::{CELL_AT, PLAIN_AT, address_cell, plain};
use crate::edge::{BURST_MAX, Edge, FULL, HostId, Out};

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

/// What the edge holds of IP packets.
#[derive(Default)]
pub(crate) struct Packets {
    pub(crate) arrived: Vec<Arrival>,
    /// Plaintexts for hosts whose session is being made; bounded by [`WAITING_MAX`].
    waiting: VecDeque<(HostId, Vec<u8>)>,
    /// Frames under construction, all for `run`.
    buf: Vec<u8>,
    run: Option<(HostId, SizeClass)>,
    count: usize,
}

impl Packets {
    /// Cells under construction are due at once.
    pub(crate) fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        self.run.map(|_| (Time::ZERO, "IP packets leave"))
    }

    pub(crate) fn forget(&mut self, host: HostId) {
        self.waiting.retain(|(to, _)| *to != host);
    }
}

impl<C: Ciphers> Edge<C> {
    /// The IP packets among the cells of the last [`Edge::handle_cells`], in their order.
    pub fn arrivals(&self) -> &[Arrival] {
        &self.packets.arrived
    }

    /// Sends one IP packet: `write` fills the whole plaintext of a cell that has at least `len`
    /// bytes, kind byte first. Packets for a host whose session is still to be made wait for it, a
    /// few of them. Call [`Edge::drive`] after the last one.
    ///
    /// Drops are counted: `ip_too_big`, `no_session`.
    pub fn send_packet(
        &mut self,
        now: Time,
        host: HostId,
        len: usize,
        out: &mut impl Out,
        write: impl FnOnce(&mut [u8]),
    ) {
        let Some(class) = SizeClass::for_edge(len) else {
            return self.count(DropReason::IpTooBig);
        };
        if self.packets.run != Some((host, class)) || self.packets.count == BURST_MAX {
            self.flush_packets(now, out);
            if !self.is_reached(now, host, out) {
                return self.wait_for_session(now, host, class, write);
            }
            self.packets.run = Some((host, class));
            self.packets.buf.resize(BURST_MAX * FULL, 0);
        }
        let at = self.packets.count * class.frame_len();
        write(plain(&mut self.packets.buf, at, class));
        self.packets.count += 1;
    }

    fn wait_for_session(
        &mut self,
        now: Time,
        host: HostId,
        class: SizeClass,
        write: impl FnOnce(&mut [u8]),
    ) {
        self.sessions.connect(now, PeerId(host.0));
        if self.packets.waiting.len() >= WAITING_MAX {
            return self.count(DropReason::NoSession);
        }
        let mut body = vec![0; class.edge_len()];
        write(&mut body);
        self.packets.waiting.push_back((host, body));
    }

    /// Sends what waited for a session with `host`.
    pub(crate) fn send_waiting(&mut self, now: Time, host: HostId, out: &mut impl Out) {
        for _ in 0..self.packets.waiting.len() {
            let Some((to, body)) = self.packets.waiting.pop_front() else { return };
            if to != host {
                self.packets.waiting.push_back((to, body));
                continue;
            }
            self.send_packet(now, to, body.len(), out, |plain| plain.copy_from_slice(&body));
        }
    }

    /// Seals and sends the cells under construction.
    pub(crate) fn flush_packets(&mut self, now: Time, out: &mut impl Out) {
        let Some((host, class)) = self.packets.run.take() else { return };
        let count = core::mem::take(&mut self.packets.count);
        let peer = PeerId(host.0);
        let Some(to) = self.sessions.endpoint(peer) else {
            return self.count_all(DropReason::NoEndpoint, count as u64);
        };
        let mut buf = core::mem::take(&mut self.packets.buf);
        let frame_len = class.frame_len();
        self.offsets.clear();
        self.payloads.clear();
        for at in (0..count).map(|i| i * frame_len) {
            address_cell(&mut buf, at, to, self.config.address, TrafficClass::Bulk);
            self.offsets.push(at as u32);
            self.payloads.push((at + CELL_AT) as u32);
        }
        let run = &mut buf[..count * frame_len];
        if let Err(reason) = self.send_run(now, host, to, run, class, out) {
            self.sessions.connect(now, peer);
            self.count_all(reason, count as u64);
        }
        self.packets.buf = buf;
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
