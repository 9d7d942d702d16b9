//! IP packets of programs at the first worker. Packets to a host without a session wait for one.

use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time, ip};

use crate::book::HostId;
use crate::building::PacketFlow;
use crate::edge::{Edge, EdgeOutput};
use crate::worker::EdgeTurn;

/// Packets that may wait for sessions, to all hosts together. Few are enough, since programs wait
/// for answers.
const WAITING_MAX: usize = 64;

/// Plaintexts to hosts without a session, with their flows.
#[derive(Default)]
pub(crate) struct WaitingPackets(VecDeque<(PacketFlow, Vec<u8>)>);

impl WaitingPackets {
    pub(crate) fn forget(&mut self, host: HostId) {
        self.0.retain(|(flow, _)| flow.host != host);
    }

    pub(crate) fn is_for(&self, host: HostId) -> bool {
        self.0.iter().any(|(flow, _)| flow.host == host)
    }
}

impl<C: Ciphers> Edge<C> {
    /// Sends one IP packet. `write` fills the whole plaintext of a cell that has at least `len`
    /// bytes, kind byte first. If the host has no session, or lacks a circuit that it needs, the
    /// packet waits while there is room. Call [`Edge::drive`] after the last packet.
    ///
    /// Drops are counted: `ip_too_big`, `no_session`.
    pub fn send_packet(
        &mut self,
        now: Time,
        flow: PacketFlow,
        len: usize,
        out: &mut impl EdgeOutput,
        write: impl FnOnce(&mut [u8]),
    ) {
        let mut turn = EdgeTurn { now, shard: self.sessions.shard(), out };
        if self.own.building.is_for(flow.host) || self.own.reaches(&turn, flow.host) {
            self.own.send_packet(&mut turn, flow, len, write);
            return self.take_notes(now);
        }
        if len > ip::PACKET_AT + self.packet_len(flow.host) {
            return self.count(DropReason::IpTooBig);
        }
        self.connect(now, flow.host);
        if self.waiting.0.len() >= WAITING_MAX {
            return self.count(DropReason::NoSession);
        }
        let mut body = vec![0; len];
        write(&mut body);
        self.waiting.0.push_back((flow, body));
    }

    /// Sends the packets that waited for a session with `host`.
    pub(crate) fn send_waiting(&mut self, now: Time, host: HostId, out: &mut impl EdgeOutput) {
        for _ in 0..self.waiting.0.len() {
            let Some((flow, body)) = self.waiting.0.pop_front() else { return };
            if flow.host != host {
                self.waiting.0.push_back((flow, body));
                continue;
            }
            let write = |plain: &mut [u8]| {
                plain[..body.len()].copy_from_slice(&body);
                plain[body.len()..].fill(0);
            };
            self.send_packet(now, flow, body.len(), out, write);
        }
    }

    /// Seals and sends the packets under construction.
    pub(crate) fn flush_packets(&mut self, now: Time, out: &mut impl EdgeOutput) {
        self.own.flush(&mut EdgeTurn { now, shard: self.sessions.shard(), out });
        self.take_notes(now);
    }
}
