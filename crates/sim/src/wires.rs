//! The wires between nodes: rate, delay, loss, duplication, corruption, overtaking, cuts, and an
//! attacker who records frames and sends them again.

use core::time::Duration;
use std::collections::VecDeque;
use std::net::SocketAddr;

use shoal_crypto::{Hasher, Rng};
use shoal_relay::{SendOutcome, Sink, Stop};
use shoal_wire::Time;

use crate::check::{Violation, frames};
use crate::options::{Faults, seed_bytes};

/// Arrivals are rounded up to this, so that frames arrive in batches as they do from a socket.
const TICK_NS: u64 = 20_000;
/// How long the attacker waits with a frame at most.
const REPLAY_WITHIN: Duration = Duration::from_secs(3);

/// A frame that will arrive.
pub(crate) struct Flight {
    pub(crate) at: Time,
    pub(crate) to: usize,
    pub(crate) from: SocketAddr,
    /// Run of the receiving node in which the attacker saw this frame arrive; `None` for the
    /// frame itself.
    pub(crate) replayed_in: Option<u32>,
    pub(crate) bytes: Vec<u8>,
}

struct Wire {
    ends: (usize, usize),
    cut: bool,
    /// When the last frame of each direction has left: from the first end, from the second.
    free: [Time; 2],
}

/// All wires, and what is on them.
pub(crate) struct Wires {
    faults: Faults,
    wires: Vec<Wire>,
    rng: Rng,
    /// Frames sent since the world last looked.
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) sent: u64,
    pub(crate) broken: Option<Violation>,
    /// The present sender.
    now: Time,
    node: usize,
    pub(crate) trace: Hasher,
}

/// Socket address of a node.
pub(crate) fn socket(node: usize) -> SocketAddr {
    let n = node as u16;
    SocketAddr::from(([10, 0, (n >> 8) as u8, n as u8], 7_400))
}

/// Where the attacker sends from.
pub(crate) fn attacker() -> SocketAddr {
    SocketAddr::from(([203, 0, 113, 7], 666))
}

fn node_at(address: SocketAddr) -> Option<usize> {
    match address {
        SocketAddr::V4(v4) if v4.port() == 7_400 => {
            let [_, _, high, low] = v4.ip().octets();
            Some(usize::from(high) << 8 | usize::from(low))
        }
        _ => None,
    }
}

impl Wires {
    pub(crate) fn new(seed: u64, faults: Faults, ends: &[(usize, usize)]) -> Wires {
        let wire = |&ends: &(usize, usize)| Wire { ends, cut: false, free: [Time::ZERO; 2] };
        Wires {
            faults,
            wires: ends.iter().map(wire).collect(),
            rng: Rng::new(seed_bytes(seed, "wires")),
            flights: VecDeque::new(),
            sent: 0,
            broken: None,
            now: Time::ZERO,
            node: 0,
            trace: Hasher::new(),
        }
    }

    /// What follows is sent by `node` at `now`.
    pub(crate) fn sender(&mut self, now: Time, node: usize) {
        (self.now, self.node) = (now, node);
    }

    pub(crate) fn set_cut(&mut self, wire: usize, cut: bool) {
        self.wires[wire].cut = cut;
    }

    /// From now on wires only delay and limit.
    pub(crate) fn make_perfect(&mut self) {
        self.faults = Faults {
            delay: self.faults.delay,
            rate_bps: self.faults.rate_bps,
            queue_bytes: self.faults.queue_bytes,
            ..Faults::NONE
        };
        self.wires.iter_mut().for_each(|wire| wire.cut = false);
    }

    fn happens(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.rng.below(1_000_000) < u64::from(ppm)
    }

    fn check(&mut self, to: SocketAddr, frame: &[u8]) {
        let seen = match frames::check(frame) {
            Ok(()) if to == attacker() => "an answer to a stranger's replay".to_string(),
            Ok(()) => return,
            Err(seen) => seen,
        };
        let seen = format!("node {} to {to}: {seen}", self.node);
        let rule = "frames look like noise of three lengths, and strangers get none";
        self.broken.get_or_insert(Violation { rule, at_ns: self.now.0, seen });
    }

    /// Puts one frame on its wire. False when there is no room.
    fn put(&mut self, to: SocketAddr, frame: &[u8]) -> bool {
        let Some(far) = node_at(to) else { return true };
        let (near, now) = (self.node, self.now);
        let joins = |w: &Wire| w.ends == (near, far) || w.ends == (far, near);
        let Some(at) = self.wires.iter().position(joins) else { return true };
        let wire = &mut self.wires[at];
        let free = &mut wire.free[usize::from(wire.ends.0 != near)];
        let byte_ns = 8_000_000_000 / self.faults.rate_bps.max(1);
        let waiting = free.since(now).as_nanos() as u64 / byte_ns.max(1);
        if waiting > self.faults.queue_bytes {
            return false;
        }
        *free = (*free).max(now) + Duration::from_nanos(frame.len() as u64 * byte_ns);
        let leaves = *free;
        self.sent += 1;
        if wire.cut || self.happens(self.faults.loss_ppm) {
            return true;
        }
        let copies = 1 + u32::from(self.happens(self.faults.duplicate_ppm));
        for _ in 0..copies {
            self.fly(leaves, far, frame);
        }
        true
    }

    fn fly(&mut self, leaves: Time, to: usize, frame: &[u8]) {
        let mut bytes = frame.to_vec();
        if self.happens(self.faults.corrupt_ppm) {
            let bit = self.rng.below(bytes.len() as u64 * 8) as usize;
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let mut at = leaves + self.faults.delay;
        if self.happens(self.faults.reorder_ppm) {
            at = at
                + Duration::from_nanos(
                    self.rng.below(self.faults.reorder_by.as_nanos() as u64 + 1),
                );
        }
        let at = Time(at.0.div_ceil(TICK_NS) * TICK_NS);
        self.flights.push_back(Flight {
            at,
            to,
            from: socket(self.node),
            replayed_in: None,
            bytes,
        });
    }

    /// The attacker sees a frame arrive and may keep it for later.
    pub(crate) fn overhear(&mut self, now: Time, flight: &Flight, run: u32) {
        if flight.replayed_in.is_none() && self.happens(self.faults.replay_ppm) {
            let wait = Duration::from_nanos(self.rng.below(REPLAY_WITHIN.as_nanos() as u64));
            self.flights.push_back(Flight {
                at: now + Duration::from_millis(1) + wait,
                to: flight.to,
                from: attacker(),
                replayed_in: Some(run),
                bytes: flight.bytes.clone(),
            });
        }
    }
}

impl Sink for Wires {
    fn send(&mut self, to: SocketAddr, buf: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        for (sent, &at) in offsets.iter().enumerate() {
            let frame = &buf[at as usize..at as usize + len];
            if !self.put(to, frame) {
                return SendOutcome { sent, stop: Some(Stop::Full) };
            }
            self.check(to, frame);
            // Bytes stay out: those of handshakes depend on ML-KEM's own randomness.
            self.trace.update(&self.now.0.to_be_bytes());
            self.trace.update(&(self.node as u32).to_be_bytes());
            self.trace.update(&(len as u32).to_be_bytes());
            self.trace.update(to.to_string().as_bytes());
        }
        SendOutcome { sent: offsets.len(), stop: None }
    }
}
