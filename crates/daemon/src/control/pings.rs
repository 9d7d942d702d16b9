//! Echo requests of programs that wait for their answer.

use std::time::Duration;

use shoal_edge::{Edge, HostId};
use shoal_wire::Time;

use crate::control::api::{ErrorCode, Reply};
use crate::control::socket::{ClientId, Pending};

/// Pings that may wait at once.
const PINGS_MAX: usize = 256;
/// An unanswered request is repeated this often: one lost cell is no reason to fail.
const REPEAT: Duration = Duration::from_millis(500);
/// Requests whose answer is still taken; more than repeats in the longest time-out.
const SEQUENCES_MAX: usize = 128;
/// Longest time-out.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

struct Ping {
    pending: Pending,
    host: HostId,
    id: u32,
    /// When each request left, by sequence number.
    sent: Vec<Time>,
    repeat_at: Time,
    deadline: Time,
}

/// All pings under way.
#[derive(Default)]
pub struct Pings {
    all: Vec<Ping>,
    last_id: u32,
}

impl Pings {
    /// Sends a request whose answer goes to `pending`.
    pub fn start(
        &mut self,
        now: Time,
        edge: &mut Edge,
        host: HostId,
        timeout_ms: u32,
        pending: Pending,
    ) {
        if self.all.len() >= PINGS_MAX {
            return pending.reply(Reply::error(ErrorCode::Busy, "too many pings at once"));
        }
        self.last_id = self.last_id.wrapping_add(1);
        let timeout = Duration::from_millis(u64::from(timeout_ms.max(1))).min(TIMEOUT_MAX);
        let deadline = now + timeout;
        let mut ping =
            Ping { pending, host, id: self.last_id, sent: Vec::new(), repeat_at: now, deadline };
        ping.send(now, edge);
        self.all.push(ping);
    }

    /// A host answered.
    pub fn answered(&mut self, now: Time, host: HostId, id: u32, seq: u32) {
        let Some(at) = self.all.iter().position(|p| p.id == id && p.host == host) else { return };
        let Some(&sent) = self.all[at].sent.get(seq as usize) else { return };
        let rtt_us = u64::try_from(now.since(sent).as_micros()).unwrap_or(u64::MAX);
        self.all.swap_remove(at).pending.reply(Reply::Pong { rtt_us });
    }

    /// A session was agreed: requests that waited for it leave now, and their time counts from now.
    pub fn established(&mut self, now: Time, host: HostId) {
        for ping in self.all.iter_mut().filter(|p| p.host == host) {
            ping.sent.fill(now);
        }
    }

    /// A host did not answer the handshake.
    pub fn unreachable(&mut self, host: HostId, name: &str) {
        let mut at = 0;
        while at < self.all.len() {
            if self.all[at].host == host {
                let text =
                    format!("{name:?} can't be reached: is it running, and is there a route?");
                let reply = Reply::error(ErrorCode::Unreachable, text);
                self.all.swap_remove(at).pending.reply(reply);
            } else {
                at += 1;
            }
        }
    }

    /// A program is gone.
    pub fn client_closed(&mut self, client: ClientId) {
        self.all.retain(|ping| ping.pending.client() != client);
    }

    /// When [`Pings::handle_timeout`] has something to do.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.all.iter().map(|ping| ping.repeat_at.min(ping.deadline)).min()
    }

    /// Repeats requests and gives up.
    pub fn handle_timeout(&mut self, now: Time, edge: &mut Edge) {
        let mut at = 0;
        while at < self.all.len() {
            let ping = &mut self.all[at];
            if ping.deadline <= now {
                let reply = Reply::error(ErrorCode::TimedOut, "no answer in time");
                self.all.swap_remove(at).pending.reply(reply);
                continue;
            }
            if ping.repeat_at <= now {
                ping.send(now, edge);
            }
            at += 1;
        }
    }
}

impl Ping {
    fn send(&mut self, now: Time, edge: &mut Edge) {
        self.repeat_at = now + REPEAT;
        if self.sent.len() < SEQUENCES_MAX
            && edge.ping(self.host, self.id, self.sent.len() as u32).is_ok()
        {
            self.sent.push(now);
        }
    }
}
