//! Echo requests of programs that wait for their answer.

use std::time::Duration;

use shoal_edge::{Edge, HostId};
use shoal_wire::Time;

use crate::control::api::{ErrorCode, Reply};
use crate::control::circuits;
use crate::control::socket::{ClientId, Pending};
use crate::worker::first::Parts;

/// Pings that may wait at once.
const PINGS_MAX: usize = 256;
/// An unanswered request is repeated this often: one lost cell is no reason to fail.
const REPEAT: Duration = Duration::from_millis(500);
/// Requests whose answer is still taken; more than repeats in the longest time-out.
const SEQUENCES_MAX: usize = 128;
/// A request that waited less goes on when its host did not answer: what failed began long before.
const YOUNG: Duration = Duration::from_secs(10);
/// Longest time-out.
const TIMEOUT_MAX: Duration = Duration::from_secs(60);

struct Ping {
    pending: Pending,
    host: HostId,
    id: u32,
    began: Time,
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
        let mut ping = Ping {
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

    /// A host answered.
    pub fn answered(&mut self, now: Time, host: HostId, id: u32, seq: u32) {
        let Some(at) = self.all.iter().position(|p| p.id == id && p.host == host) else { return };
        let sent = &self.all[at].sent;
        let (Some(&first), Some(&sent)) = (sent.first(), sent.get(seq as usize)) else { return };
        let [rtt_us, since_us] =
            [sent, first].map(|at| u64::try_from(now.since(at).as_micros()).unwrap_or(u64::MAX));
        self.all.swap_remove(at).pending.reply(Reply::Pong { rtt_us, since_us });
    }

    /// A session was agreed: requests that waited for it leave now, and their time counts from now.
    pub fn established(&mut self, now: Time, host: HostId) {
        for ping in self.all.iter_mut().filter(|p| p.host == host) {
            ping.sent.fill(now);
        }
    }

    /// A host did not answer the handshake, or there was no circuit to it: `why` in words.
    pub fn unreachable(&mut self, now: Time, host: HostId, why: impl Fn() -> String) {
        let over = |ping: &mut Ping| ping.host == host && ping.began + YOUNG <= now;
        for ping in self.all.extract_if(.., over) {
            ping.pending.reply(Reply::error(ErrorCode::Unreachable, why()));
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
    pub fn handle_timeout(&mut self, now: Time, parts: &mut Parts) {
        for ping in self.all.extract_if(.., |ping| ping.deadline <= now) {
            ping.pending.reply(match circuits::missing(parts, now, ping.host) {
                Some(why) => Reply::error(ErrorCode::Unreachable, why),
                None => Reply::error(ErrorCode::TimedOut, "no answer in time"),
            });
        }
        for ping in self.all.iter_mut().filter(|ping| ping.repeat_at <= now) {
            ping.send(now, &mut parts.node.edge);
        }
    }
}

/// Why a host can't be reached, and what to look at.
pub fn unreachable(parts: &Parts, now: Time, host: HostId) -> String {
    circuits::missing(parts, now, host).unwrap_or_else(|| {
        let name = parts.names.host(host);
        format!("{name:?} can't be reached: is it running, and is there a route?")
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_lately_outlives_an_older_attempt() {
        let (mut pings, host) = (Pings::default(), HostId::from_bits(1));
        let at = Time::from_millis;
        let mut waiting = |began, host| {
            let (pending, replies) = Pending::of_test();
            let deadline = at(60_000);
            let (sent, repeat_at) = (Vec::new(), deadline);
            pings.all.push(Ping { pending, host, id: 1, began, sent, repeat_at, deadline });
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
