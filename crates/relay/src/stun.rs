//! Public servers that are asked where they see this node, if the operator names any: STUN's
//! Binding, from the socket of the links (docs/ip.md says what that shows to whom).

use core::time::Duration;
use std::net::SocketAddr;

use shoal_crypto::{Ciphers, Rng};
use shoal_session::{EndpointOrigin, EndpointRules};
use shoal_wire::{DropReason, StunId, Time, stun_answer, stun_id, stun_request};

use crate::batch::frame_len;
use crate::forward::hand_on;
use crate::io::Incoming;
use crate::{Event, Forwarder, FrameAt, Handoff, Relay, Unfinished};

/// Servers that are asked.
const SERVERS_MAX: usize = 2;
/// When a server that does not answer is asked again, since it was asked last; then it is given up.
const AGAIN: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_millis(1_000), Duration::from_millis(2_000)];

/// A server that is asked.
struct Ask {
    at: SocketAddr,
    /// What names the requests that were sent.
    ids: Vec<StunId>,
    due: Time,
}

/// The servers, and what they said.
pub(crate) struct Stun {
    rng: Rng,
    servers: Vec<SocketAddr>,
    asks: Vec<Ask>,
    /// By whom, and where, this node is seen.
    pub(crate) views: Vec<(SocketAddr, SocketAddr)>,
}

impl Stun {
    pub(crate) fn new(seed: [u8; 32]) -> Stun {
        Stun { rng: Rng::new(seed), servers: Vec::new(), asks: Vec::new(), views: Vec::new() }
    }

    /// Asks anew.
    pub(crate) fn ask(&mut self, now: Time) {
        self.views.clear();
        let ask = |&at: &SocketAddr| Ask { at, ids: Vec::new(), due: now };
        self.asks = self.servers.iter().take(SERVERS_MAX).map(ask).collect();
    }

    /// The next request that is due, and where it goes.
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

    /// Takes a datagram if it is the answer to a request; none if it is not.
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
    /// Drops datagrams of this worker that have no size of a frame, but for what may be an answer:
    /// the first worker asked, whoever takes it in.
    pub(crate) fn hand_stun(
        &mut self,
        worker: u8,
        hand: &mut impl Handoff,
        buf: &[u8],
        frames: &[(u32, u32)],
        incoming: &[Incoming],
    ) {
        for frame in frames {
            let from = &incoming[frame.1 as usize];
            let at = FrameAt { buf, at: frame.0, len: frame_len(frame, incoming) };
            let outcome = match worker != 0 && stun_id(at.bytes()).is_some() {
                true => hand_on(hand, Unfinished::Unknown { from }, at),
                false => Err(DropReason::BadSize),
            };
            if let Err(reason) = outcome {
                self.counters.drop_in(reason, 1);
            }
        }
    }
}

impl<C: Ciphers> Relay<C> {
    /// Says which servers are asked for the endpoint at which they see this node, whenever a router
    /// sees it elsewhere than before; at most two are. At first there are none.
    pub fn set_stun(&mut self, servers: Vec<SocketAddr>) {
        self.mirrors.stun.servers = servers;
    }

    /// Takes answers of such servers out of a batch: they have none of the sizes of frames. None
    /// if there are no such answers, as in nearly every batch.
    pub(crate) fn take_stun(&mut self, buf: &[u8], incoming: &[Incoming]) -> Option<Vec<Incoming>> {
        let of = |one: &Incoming| &buf[one.offset as usize..(one.offset + one.len) as usize];
        let may_be = |one: &Incoming| stun_id(of(one)).is_some();
        if self.mirrors.stun.asks.is_empty() || !incoming.iter().any(may_be) {
            return None;
        }
        let mut rest = Vec::with_capacity(incoming.len());
        for one in incoming {
            match self.mirrors.stun.take(one.from.remote, of(one), &self.rules) {
                None => rest.push(*one),
                Some(Ok(())) => self.event(Event::Seen),
                Some(Err(reason)) => self.own.counters.drop_in(reason, 1),
            }
        }
        (rest.len() < incoming.len()).then_some(rest)
    }
}
