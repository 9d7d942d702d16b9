//! TCP connections beside the transfers: rate and window of BBR (version 1) and cubic.

use std::collections::VecDeque;

/// Bytes of an Ethernet frame with a full TCP segment, and of its payload.
pub const WIRE: f64 = 1_514.0;
pub const PAYLOAD: f64 = 1_448.0;

const SECOND: f64 = 1e9;
const MIN_RTT_NS: u64 = 10_000_000_000;
const PROBE_RTT_NS: u64 = 200_000_000;
const GAINS: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
const HIGH: f64 = 2.885;

/// A packet in flight, as its sender remembers it.
#[derive(Clone, Copy)]
pub struct SentPacket {
    pub at: u64,
    delivered: u64,
    delivered_at: u64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum BbrState {
    Startup,
    Drain,
    ProbeBw { turn: usize, since: u64 },
    ProbeRtt { until: Option<u64> },
}

enum TcpLaw {
    Bbr(Box<Bbr>),
    Cubic(Cubic),
}

/// One connection that always has something to send.
pub struct Rival {
    law: TcpLaw,
    pub inflight: u64,
    pub delivered: u64,
    delivered_at: u64,
    pub srtt_ns: f64,
    pub next_send: u64,
}

/// Makes a connection at a time.
pub type NewRival = fn(u64) -> Rival;

impl Rival {
    pub fn bbr(now: u64) -> Rival {
        Rival::new(now, TcpLaw::Bbr(Box::new(Bbr::new(now))))
    }

    pub fn cubic(now: u64) -> Rival {
        Rival::new(now, TcpLaw::Cubic(Cubic::default()))
    }

    fn new(now: u64, law: TcpLaw) -> Rival {
        Rival { law, inflight: 0, delivered: 0, delivered_at: now, srtt_ns: 0.0, next_send: now }
    }

    /// Sends a packet, if the window and the rate allow one.
    pub fn send(&mut self, now: u64) -> Option<SentPacket> {
        let (window, rate) = match &self.law {
            TcpLaw::Bbr(bbr) => (bbr.window(), bbr.rate()),
            TcpLaw::Cubic(cubic) => (cubic.window, 1e9),
        };
        if self.inflight as f64 >= window || now < self.next_send {
            return None;
        }
        self.next_send = self.next_send.max(now.saturating_sub(1_000_000));
        self.next_send += (SECOND / rate) as u64;
        self.inflight += 1;
        Some(SentPacket { at: now, delivered: self.delivered, delivered_at: self.delivered_at })
    }

    pub fn acked(&mut self, now: u64, sent: SentPacket) {
        self.inflight -= 1;
        self.delivered += 1;
        self.delivered_at = now;
        let rtt_ns = (now - sent.at) as f64;
        let first = self.srtt_ns == 0.0;
        self.srtt_ns = if first { rtt_ns } else { self.srtt_ns * 0.875 + rtt_ns * 0.125 };
        let seconds = (now - sent.delivered_at).max(1) as f64 / SECOND;
        let rate = (self.delivered - sent.delivered) as f64 / seconds;
        match &mut self.law {
            TcpLaw::Bbr(bbr) => bbr.acked(now, sent, rate, self.delivered, self.inflight),
            TcpLaw::Cubic(cubic) => cubic.acked(now, self.srtt_ns),
        }
    }

    pub fn lost(&mut self, now: u64, sent: SentPacket) {
        self.inflight -= 1;
        if let TcpLaw::Cubic(cubic) = &mut self.law {
            cubic.lost(now, sent);
        }
    }
}

struct Bbr {
    state: BbrState,
    rates: VecDeque<(u64, f64)>,
    round: u64,
    round_ends: u64,
    min_rtt: u64,
    min_rtt_at: u64,
    full: f64,
    full_rounds: u32,
}

impl Bbr {
    fn new(now: u64) -> Bbr {
        Bbr {
            state: BbrState::Startup,
            rates: VecDeque::new(),
            round: 0,
            round_ends: 0,
            min_rtt: u64::MAX,
            min_rtt_at: now,
            full: 0.0,
            full_rounds: 0,
        }
    }

    fn most(&self) -> f64 {
        self.rates.front().map_or(1_000.0, |&(_, rate)| rate)
    }

    fn bdp(&self) -> f64 {
        if self.min_rtt == u64::MAX { 10.0 } else { self.most() * self.min_rtt as f64 / SECOND }
    }

    fn window(&self) -> f64 {
        match self.state {
            BbrState::Startup | BbrState::Drain => (self.bdp() * HIGH).max(10.0),
            BbrState::ProbeBw { .. } => self.bdp() * 2.0 + 6.0,
            BbrState::ProbeRtt { .. } => 4.0,
        }
    }

    fn rate(&self) -> f64 {
        let gain = match self.state {
            BbrState::Startup => HIGH,
            BbrState::Drain => 1.0 / HIGH,
            BbrState::ProbeBw { turn, .. } => GAINS[turn],
            BbrState::ProbeRtt { .. } => 1.0,
        };
        gain * self.most() * 0.99
    }

    fn acked(&mut self, now: u64, sent: SentPacket, rate: f64, delivered: u64, inflight: u64) {
        let rtt = now - sent.at;
        let expired = now - self.min_rtt_at > MIN_RTT_NS;
        if rtt <= self.min_rtt || expired {
            (self.min_rtt, self.min_rtt_at) = (rtt, now);
        }
        let new_round = sent.delivered >= self.round_ends;
        if new_round {
            self.round += 1;
            self.round_ends = delivered;
        }
        while self.rates.back().is_some_and(|&(_, known)| known <= rate) {
            self.rates.pop_back();
        }
        self.rates.push_back((self.round, rate));
        while self.rates.front().is_some_and(|&(round, _)| round + 10 < self.round) {
            self.rates.pop_front();
        }
        self.turn(now, new_round, expired, inflight as f64);
    }

    fn turn(&mut self, now: u64, new_round: bool, expired: bool, inflight: f64) {
        match self.state {
            BbrState::Startup if new_round => {
                if self.most() >= self.full * 1.25 {
                    (self.full, self.full_rounds) = (self.most(), 0);
                } else {
                    self.full_rounds += 1;
                }
                if self.full_rounds >= 3 {
                    self.state = BbrState::Drain;
                }
            }
            BbrState::Drain if inflight <= self.bdp() => {
                self.state = BbrState::ProbeBw { turn: 2, since: now };
            }
            BbrState::ProbeBw { turn, since } => {
                let long = now - since > self.min_rtt;
                let ends = match turn {
                    0 => long && inflight >= 1.25 * self.bdp(),
                    1 => long || inflight <= self.bdp(),
                    _ => long,
                };
                if ends {
                    self.state = BbrState::ProbeBw { turn: (turn + 1) % 8, since: now };
                }
            }
            BbrState::ProbeRtt { until: None } if inflight <= 4.0 => {
                self.state = BbrState::ProbeRtt { until: Some(now + PROBE_RTT_NS) };
            }
            BbrState::ProbeRtt { until: Some(until) } if now >= until => {
                self.min_rtt_at = now;
                self.state = BbrState::ProbeBw { turn: 2 + now as usize % 6, since: now };
            }
            _ => {}
        }
        if expired && !matches!(self.state, BbrState::ProbeRtt { .. }) {
            self.state = BbrState::ProbeRtt { until: None };
        }
    }
}

struct Cubic {
    window: f64,
    most: f64,
    since: u64,
    starting: bool,
}

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic { window: 10.0, most: 0.0, since: 0, starting: true }
    }
}

impl Cubic {
    fn acked(&mut self, now: u64, srtt_ns: f64) {
        if self.starting {
            self.window += 1.0;
            return;
        }
        let seconds = (now - self.since) as f64 / SECOND;
        let k = (self.most * 0.3 / 0.4).cbrt();
        let at = 0.4 * (seconds + srtt_ns / SECOND - k).powi(3) + self.most;
        // Grows at least as Reno would: a segment per round trip.
        let reno = self.most * 0.7 + 0.53 * seconds / (srtt_ns / SECOND);
        self.window += ((at.max(reno) - self.window) / self.window).clamp(0.0, 0.5);
    }

    fn lost(&mut self, now: u64, sent: SentPacket) {
        // Once per window: a packet from before the last decrease says nothing new.
        if sent.at < self.since {
            return;
        }
        (self.most, self.starting, self.since) = (self.window, false, now);
        self.window = (self.window * 0.7).max(2.0);
    }
}
