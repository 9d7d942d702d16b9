//! Echo requests of programs that wait for their answer.

use std::time::Duration;

use shoal_edge::{Edge, HostId};
use shoal_wire::Time;

use crate::control::api::{ControlReply, ErrorCode};
use crate::control::circuits;
use crate::control::socket::{ClientId, PendingReply};
use crate::worker::first::WorkerParts;

/// Most pings that may wait at once.
const PINGS_MAX: usize = 256;
/// Interval at which an unanswered request is repeated: one lost cell must not fail the ping.
const REPEAT: Duration = Duration::from_millis(500);
/// Most requests of a ping; more than repeats in the longest time-out.
const SEQUENCES_MAX: usize = 128;
/// A ping younger than this survives a failed handshake: that handshake began long before.
const YOUNG: Duration = Duration::from_secs(10);
/// Longest time-out.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

struct PendingPing {
    pending: PendingReply,
    host: HostId,
    id: u32,
    began: Time,
    /// Time at which each request left, by sequence number.
    sent: Vec<Time>,
    repeat_at: Time,
    deadline: Time,
}

#[derive(Default)]
pub struct Pings {
    all: Vec<PendingPing>,
    last_id: u32,
}

impl Pings {
    /// Begins a ping; the answer goes to `pending`.
    pub fn start(
        &mut self,
        now: Time,
        edge: &mut Edge,
        host: HostId,
        timeout_ms: u32,
        pending: PendingReply,
    ) {
        if self.all.len() >= PINGS_MAX {
            return pending.reply(ControlReply::error(ErrorCode::Busy, "too many pings at once"));
        }
        self.last_id = self.last_id.wrapping_add(1);
        let timeout = Duration::from_millis(u64::from(timeout_ms.max(1))).min(TIMEOUT_MAX);
        let deadline = now + timeout;
        let mut ping = PendingPing {
            pending,
            host,
            id: self.last_id,
            began: now,
            sent: Vec::new(),
            repeat_at: now,
            deadline,
        };
        ping.send(now, edge);
        self.all.push(ping);
    }

    /// Handles an answer of a host.
    pub fn answered(&mut self, now: Time, host: HostId, id: u32, seq: u32) {
        let Some(at) = self.all.iter().position(|p| p.id == id && p.host == host) else { return };
        let sent = &self.all[at].sent;
        let (Some(&first), Some(&sent)) = (sent.first(), sent.get(seq as usize)) else { return };
        let [rtt_us, since_us] =
            [sent, first].map(|at| u64::try_from(now.since(at).as_micros()).unwrap_or(u64::MAX));
        self.all.swap_remove(at).pending.reply(ControlReply::Pong { rtt_us, since_us });
    }

    /// Notes a new session: requests that waited for it leave at `now`, and their time counts from
    /// `now`.
    pub fn established(&mut self, now: Time, host: HostId) {
        for ping in self.all.iter_mut().filter(|p| p.host == host) {
            ping.sent.fill(now);
        }
    }

    /// Ends pings to a host that did not answer the handshake, or had no circuit: `why` in words.
    pub fn unreachable(&mut self, now: Time, host: HostId, why: impl Fn() -> String) {
        let over = |ping: &mut PendingPing| ping.host == host && ping.began + YOUNG <= now;
        for ping in self.all.extract_if(.., over) {
            ping.pending.reply(ControlReply::error(ErrorCode::Unreachable, why()));
        }
    }

    /// Forgets a program that is gone.
    pub fn client_closed(&mut self, client: ClientId) {
        self.all.retain(|ping| ping.pending.client() != client);
    }

    /// Time at which [`Pings::handle_timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.all.iter().map(|ping| ping.repeat_at.min(ping.deadline)).min()
    }

    /// Repeats requests, and ends pings whose time has run out.
    pub fn handle_timeout(&mut self, now: Time, parts: &mut WorkerParts) {
        for ping in self.all.extract_if(.., |ping| ping.deadline <= now) {
            ping.pending.reply(match circuits::missing(parts, now, ping.host) {
                Some(why) => ControlReply::error(ErrorCode::Unreachable, why),
                None => ControlReply::error(ErrorCode::TimedOut, silent(parts, ping.host)),
            });
        }
        for ping in self.all.iter_mut().filter(|ping| ping.repeat_at <= now) {
            ping.send(now, &mut parts.node.edge);
        }
    }
}

/// Message about a host that did not answer in time.
fn silent(parts: &WorkerParts, host: HostId) -> String {
    format!("no answer in time{}", of_circuits(parts, host))
}

/// Addition to a message about a host that is bound to circuits because it was met so. Its user may
/// have ended that at the other end only.
fn of_circuits(parts: &WorkerParts, host: HostId) -> String {
    let at = parts.node.edge.address_of(host);
    let words = at.and_then(|at| circuits::met_words(parts, at));
    words.map_or(String::new(), |words| format!("; {words}"))
}

/// Reason why a host can't be reached, with a hint.
pub fn unreachable(parts: &WorkerParts, now: Time, host: HostId) -> String {
    circuits::missing(parts, now, host).unwrap_or_else(|| {
        let (name, bound) = (parts.names.host(host), of_circuits(parts, host));
        format!("{name:?} can't be reached: is it running, and is there a route?{bound}")
    })
}

impl PendingPing {
    fn send(&mut self, now: Time, edge: &mut Edge) {
        self.repeat_at = now + REPEAT;
        if self.sent.len() < SEQUENCES_MAX
            && edge.ping(self.host, self.id, self.sent.len() as u32).is_ok()
        {
            self.sent.push(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_lately_outlives_an_older_attempt() {
        let (mut pings, host) = (Pings::default(), HostId::from_bits(1));
        let at = Time::from_millis;
        let mut waiting = |began, host| {
            let (pending, replies) = PendingReply::of_test();
            let deadline = at(60_000);
            let (sent, repeat_at) = (Vec::new(), deadline);
            pings.all.push(PendingPing { pending, host, id: 1, began, sent, repeat_at, deadline });
            replies
        };
        let (old, young) = (waiting(at(1_000), host), waiting(at(11_001), host));
        let other = waiting(at(1_000), HostId::from_bits(2));
        pings.unreachable(at(21_000), host, || "gone".into());
        assert!(old.try_recv().is_ok());
        assert!(young.try_recv().is_err() && other.try_recv().is_err());
        assert_eq!(pings.all.len(), 2);
    }
}
