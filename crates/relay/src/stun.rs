//! STUN Binding requests to public servers for this node's public address, from the links' socket.
//! Requests leave only if the operator names servers. docs/guide/direct.md says what that reveals.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::{Ciphers, Rng};
use shoal_session::{EndpointOrigin, EndpointRules};
use shoal_wire::{DropReason, StunId, Time, stun_answer, stun_id, stun_request};

use crate::batch::frame_len;
use crate::handoff::hand_on;
use crate::io::ReceivedRun;
use crate::{Forwarder, FrameAt, Handoff, HandoffKind, Relay, RelayEvent};

/// Maximum number of servers to ask.
const SERVERS_MAX: usize = 2;
/// Delays between requests to a server that does not answer. After the last one it is given up.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(1_000), Duration::from_millis(2_000)];

/// A server that is being asked.
struct StunTransaction {
    at: SocketAddr,
    /// Transaction ids of the requests that were sent.
    ids: Vec<StunId>,
    due: Time,
}

/// The servers and their answers.
pub(crate) struct StunClient {
    rng: Rng,
    servers: Vec<SocketAddr>,
    asks: Vec<StunTransaction>,
    /// Servers, and the address that each of them reported.
    pub(crate) views: Vec<(SocketAddr, SocketAddr)>,
}

impl StunClient {
    pub(crate) fn new(seed: [u8; 32]) -> StunClient {
        StunClient { rng: Rng::new(seed), servers: Vec::new(), asks: Vec::new(), views: Vec::new() }
    }

    /// Asks all servers again.
    pub(crate) fn ask(&mut self, now: Time) {
        self.views.clear();
        let ask = |&at: &SocketAddr| StunTransaction { at, ids: Vec::new(), due: now };
        self.asks = self.servers.iter().take(SERVERS_MAX).map(ask).collect();
    }

    /// Takes the next request that is due, with its destination.
    pub(crate) fn poll_request(&mut self, now: Time) -> Option<(SocketAddr, [u8; 20])> {
        self.asks.retain(|ask| ask.due > now || ask.ids.len() < AGAIN.len());
        let ask = self.asks.iter_mut().find(|ask| ask.due <= now)?;
        let id: StunId = self.rng.array();
        ask.due = now + AGAIN[ask.ids.len()];
        ask.ids.push(id);
        Some((ask.at, stun_request(&id)))
    }

    pub(crate) fn next(&self) -> Option<Time> {
        self.asks.iter().map(|ask| ask.due).min()
    }

    /// Handles a datagram if it answers a request. None if it does not.
    fn take(
        &mut self,
        from: SocketAddr,
        datagram: &[u8],
        rules: &EndpointRules,
    ) -> Option<Result<(), DropReason>> {
        let id = stun_id(datagram)?;
        let at = self.asks.iter().position(|ask| ask.at == from && ask.ids.contains(&id))?;
        Some(match stun_answer(datagram) {
            Ok(seen) => {
                self.asks.swap_remove(at);
                let checked = rules.check(seen, EndpointOrigin::View);
                if checked.is_ok() {
                    self.views.push((from, seen));
                }
                checked
            }
            Err(_) => Err(DropReason::Malformed),
        })
    }
}

impl Forwarder {
    /// Drops datagrams of no frame length, except possible STUN answers. The first worker sent the
    /// requests, but any worker may receive the answer.
    pub(crate) fn hand_stun(
        &mut self,
        worker: u8,
        hand: &mut impl Handoff,
        buf: &[u8],
        frames: &[(u32, u32)],
        incoming: &[ReceivedRun],
    ) {
        for frame in frames {
            let from = &incoming[frame.1 as usize];
            let at = FrameAt { buf, at: frame.0, len: frame_len(frame, incoming) };
            let outcome = match worker != 0 && stun_id(at.bytes()).is_some() {
                true => hand_on(hand, HandoffKind::Unknown { from }, at),
                false => Err(DropReason::BadSize),
            };
            if let Err(reason) = outcome {
                self.counters.drop_in(reason, 1);
            }
        }
    }
}

impl<C: Ciphers> Relay<C> {
    /// Sets the STUN servers; initially there are none. At most two of them are asked, whenever a
    /// router sees a new address of this node. Other servers than before are asked at once if a
    /// router sees this node already.
    pub fn set_stun(&mut self, now: Time, servers: Vec<SocketAddr>) {
        let stun = &mut self.mirrors.stun;
        if stun.servers != servers {
            stun.servers = servers;
            if self.neighbours.iter().any(|(_, neighbour)| neighbour.seen.is_some()) {
                stun.ask(now);
            }
        }
    }

    /// Removes STUN answers from a batch; they have no frame length. None if there are no answers,
    /// as in nearly every batch.
    pub(crate) fn take_stun(
        &mut self,
        buf: &[u8],
        incoming: &[ReceivedRun],
    ) -> Option<Vec<ReceivedRun>> {
        let of = |one: &ReceivedRun| &buf[one.offset as usize..(one.offset + one.len) as usize];
        let may_be = |one: &ReceivedRun| stun_id(of(one)).is_some();
        if self.mirrors.stun.asks.is_empty() || !incoming.iter().any(may_be) {
            return None;
        }
        let mut rest = Vec::with_capacity(incoming.len());
        for one in incoming {
            match self.mirrors.stun.take(one.from.remote, of(one), &self.rules) {
                None => rest.push(*one),
                Some(Ok(())) => self.event(RelayEvent::Seen),
                Some(Err(reason)) => self.own.counters.drop_in(reason, 1),
            }
        }
        (rest.len() < incoming.len()).then_some(rest)
    }
}
