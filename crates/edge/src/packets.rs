//! IP packets of programs at the first worker. Packets for a host without a session wait for it.

use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time, ip};

use crate::book::HostId;
use crate::building::Flow;
use crate::edge::{Edge, Out};
use crate::worker::Turn;

/// Packets that wait for sessions, over all hosts. They are few: programs wait for answers.
const WAITING_MAX: usize = 64;

/// Plaintexts for hosts whose session is being made, with their flows.
#[derive(Default)]
pub(crate) struct Waiting(VecDeque<(Flow, Vec<u8>)>);

impl Waiting {
    pub(crate) fn forget(&mut self, host: HostId) {
        self.0.retain(|(flow, _)| flow.host != host);
    }

    pub(crate) fn is_for(&self, host: HostId) -> bool {
        self.0.iter().any(|(flow, _)| flow.host == host)
    }
}

impl<C: Ciphers> Edge<C> {
    /// Sends one IP packet: `write` fills the whole plaintext of a cell that has at least `len`
    /// bytes, kind byte first. A packet for a host without a session, or without the circuit that
    /// it needs, waits for that if there is room. Call [`Edge::drive`] after the last one.
    ///
    /// Drops are counted: `ip_too_big`, `no_session`.
    pub fn send_packet(
        &mut self,
        now: Time,
        flow: Flow,
        len: usize,
        out: &mut impl Out,
        write: impl FnOnce(&mut [u8]),
    ) {
        let mut turn = Turn { now, shard: self.sessions.shard(), out };
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

    /// Sends what waited for a session with `host`.
    pub(crate) fn send_waiting(&mut self, now: Time, host: HostId, out: &mut impl Out) {
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
    pub(crate) fn flush_packets(&mut self, now: Time, out: &mut impl Out) {
        self.own.flush(&mut Turn { now, shard: self.sessions.shard(), out });
        self.take_notes(now);
    }
}
