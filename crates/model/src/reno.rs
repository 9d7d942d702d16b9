//! Event simulation of the paper's experiment: a Reno sender, a line, mixes in both directions, a
//! receiver.
//!
//! ```text
//! sender -> line (rate, endless queue) -> half base RTT -> mix 1 .. m -> resequencer -> receiver
//!    ^                                                                                     |
//!    '------------------ half base RTT <- mix 1 .. m <- acknowledgements ------------------'
//! ```
//!
//! No packet is lost. Each fast retransmit and each timeout is therefore spurious, caused only by
//! reordering. Acknowledgements do not occupy the line. Packets leave a mix without transmission
//! time; in the paper, each mix has its own line.
//!
//! Input: a case, seconds, a seed. Output: an [`RenoOutcome`]. Bounds: [`EVENTS_MAX`],
//! [`SECONDS_MAX`] and the sender's largest window.

mod adaptive;
mod line;
mod receiver;
mod resequencer;
mod sender;
#[cfg(test)]
mod tests;

use core::time::Duration;

use serde::Serialize;
use shoal_crypto::Rng;
use shoal_wire::Time;

use crate::case::{ModelError, SECONDS_MAX, TcpExperiment};
use crate::law::BatchingStrategy;
use crate::random::{permute, rng, uniform};
use line::{AckCause, BottleneckLine, EventQueue, ModelPacket, PacketDirection, RenoEvent};
use receiver::RenoReceiver;
use resequencer::Resequencer;
use sender::RenoSender;

/// Largest number of events in a run, one or two minutes of computation.
pub const EVENTS_MAX: u64 = 100_000_000;
/// Number of samples of the window in a run.
pub const SAMPLES: u32 = 200;

/// The sender's window at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowSample {
    /// Seconds since the start.
    pub at_s: f64,
    /// The congestion window in packets.
    pub window: f64,
    /// Packets delivered to the receiving program so far.
    pub delivered: u64,
}

/// Results of a run. Unless stated otherwise, they are from the second half, which excludes the
/// first slow start.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RenoOutcome {
    /// Packets per second that reached the receiving program, each once and in order. A few packets
    /// that waited for an earlier one at the start of the second half may raise it above the line's
    /// rate.
    pub throughput_pps: f64,
    /// The throughput in Mbit/s.
    pub throughput_mbps: f64,
    /// Mean window in packets at the moment of halving, over the whole run. None if it was never
    /// halved.
    pub halved_window: Option<f64>,
    /// Mean round trip in milliseconds, queueing included. None without acknowledgements.
    pub rtt_ms: Option<f64>,
    /// Number of fast retransmits in the whole run, all spurious.
    pub fast_retransmits: u64,
    /// Number of retransmission timeouts in the whole run, all spurious.
    pub timeouts: u64,
    /// The window at [`SAMPLES`] times of the whole run.
    pub samples: Vec<WindowSample>,
}

/// Simulates a case for `seconds` seconds, 1 to [`SECONDS_MAX`]. The outcome depends only on the
/// arguments.
///
/// # Errors
/// [`ModelError::Events`] if the run was stopped. Otherwise a bound of the arguments is broken, and
/// nothing was run.
pub fn run(case: &TcpExperiment, seconds: u32, seed: u64) -> Result<RenoOutcome, ModelError> {
    case.check()?;
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(ModelError::Runs);
    }
    let mut world = RenoSimulation::new(*case, seconds, seed);
    world.send();
    for _ in 0..EVENTS_MAX {
        match world.events.next() {
            Some((now, event)) if now <= world.end => {
                world.now = now;
                world.step(event);
            }
            _ => return Ok(world.outcome()),
        }
    }
    Err(ModelError::Events)
}

/// A sum and the number of its terms.
#[derive(Default)]
struct RunningMean {
    sum: f64,
    count: u64,
}

impl RunningMean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

struct RenoSimulation {
    case: TcpExperiment,
    now: Time,
    end: Time,
    /// Start of the second half.
    half: Time,
    rng: Rng,
    events: EventQueue,
    line: BottleneckLine,
    /// Packets held by timed mixes, for each direction and mix.
    held: Vec<Vec<ModelPacket>>,
    /// Time of each timed mix's first flush.
    phases: Vec<Time>,
    sender: RenoSender,
    receiver: RenoReceiver,
    resequencer: Option<Resequencer>,
    /// Earliest pending timer event of the sender.
    timer: Option<Time>,
    delivered_at_half: u64,
    rtt_s: RunningMean,
    samples: Vec<WindowSample>,
}

impl RenoSimulation {
    fn new(case: TcpExperiment, seconds: u32, seed: u64) -> RenoSimulation {
        let mut rng = rng(seed);
        let length = Duration::from_secs(seconds.into());
        let phase = |_| match case.law {
            BatchingStrategy::Timed { period } => Time::ZERO + period.mul_f64(uniform(&mut rng)),
            _ => Time::ZERO,
        };
        let phases = (0..case.mixes).map(phase).collect();
        let mut events = EventQueue::default();
        for i in 1..=SAMPLES {
            events.push(Time::ZERO + length * i / SAMPLES, RenoEvent::Sample);
        }
        events.push(Time::ZERO + length / 2, RenoEvent::Half);
        RenoSimulation {
            case,
            now: Time::ZERO,
            end: Time::ZERO + length,
            half: Time::ZERO + length / 2,
            rng,
            events,
            line: BottleneckLine::new(case.transmission()),
            held: vec![Vec::new(); 2 * case.mixes as usize],
            phases,
            sender: RenoSender::new(case.dupthresh, case.adapts),
            receiver: RenoReceiver::default(),
            resequencer: case.hold.map(Resequencer::new),
            timer: None,
            delivered_at_half: 0,
            rtt_s: RunningMean::default(),
            samples: Vec::new(),
        }
    }

    fn step(&mut self, event: RenoEvent) {
        match event {
            RenoEvent::Arrive { way, mix, packet } => self.arrive(way, mix, packet),
            RenoEvent::Flush { way, mix } => self.flush(way, mix),
            RenoEvent::Reply(packet) => self.reply(packet),
            RenoEvent::HoldOver => self.release(),
            RenoEvent::Timer => self.timer_rang(),
            RenoEvent::Half => self.delivered_at_half = self.receiver.delivered(),
            RenoEvent::Sample => self.samples.push(WindowSample {
                at_s: self.now.since(Time::ZERO).as_secs_f64(),
                window: self.sender.window(),
                delivered: self.receiver.delivered(),
            }),
        }
    }

    /// Lets the sender send as much as its window allows, and sets its timer.
    fn send(&mut self) {
        while let Some(number) = self.sender.poll_transmit(self.now) {
            let (order, depart) = self.line.take(self.now);
            let packet = ModelPacket { number, order, sent: self.now, cause: None };
            let event = RenoEvent::Arrive { way: PacketDirection::Data, mix: 0, packet };
            self.events.push(depart + self.case.base_rtt / 2, event);
        }
        let Some(due) = self.sender.poll_timeout() else { return };
        // A timer that fires too early checks again, so a later deadline needs no second event.
        if self.timer.is_none_or(|timer| due < timer) {
            self.timer = Some(due);
            self.events.push(due, RenoEvent::Timer);
        }
    }

    fn timer_rang(&mut self) {
        if self.timer == Some(self.now) {
            self.timer = None;
        }
        self.sender.handle_timeout(self.now);
        self.send();
    }

    /// Handles a packet that reaches a mix, or the end of the path behind the last mix.
    fn arrive(&mut self, way: PacketDirection, mix: u32, packet: ModelPacket) {
        if mix == self.case.mixes {
            return match way {
                PacketDirection::Data => self.meet_resequencer(packet),
                PacketDirection::Back => {
                    self.events.push(self.now + self.case.base_rtt / 2, RenoEvent::Reply(packet));
                }
            };
        }
        match self.case.law {
            BatchingStrategy::None => self.arrive(way, mix + 1, packet),
            BatchingStrategy::Timed { period } => {
                let place = way as usize * self.case.mixes as usize + mix as usize;
                self.held[place].push(packet);
                if self.held[place].len() == 1 {
                    let flush = next_flush(self.now, self.phases[mix as usize], period);
                    self.events.push(flush, RenoEvent::Flush { way, mix });
                }
            }
            BatchingStrategy::StopAndGo { .. } => {
                let due = self.now + self.case.law.draw(&mut self.rng);
                self.events.push(due, RenoEvent::Arrive { way, mix: mix + 1, packet });
            }
        }
    }

    fn flush(&mut self, way: PacketDirection, mix: u32) {
        let place = way as usize * self.case.mixes as usize + mix as usize;
        let mut batch = core::mem::take(&mut self.held[place]);
        permute(&mut batch, &mut self.rng);
        for packet in batch {
            self.arrive(way, mix + 1, packet);
        }
    }

    fn meet_resequencer(&mut self, packet: ModelPacket) {
        let Some(resequencer) = &mut self.resequencer else { return self.receive(packet) };
        if let Some(over) = resequencer.take(self.now, packet) {
            self.events.push(over, RenoEvent::HoldOver);
        }
        self.release();
    }

    /// Delivers the packets that the resequencer releases.
    fn release(&mut self) {
        while let Some(packet) = self.resequencer.as_mut().and_then(|r| r.poll(self.now)) {
            self.receive(packet);
        }
    }

    /// Acknowledges a data packet at once. RFC 5681 section 4.2 requires this for packets out of
    /// order; the paper's receiver does it for all.
    fn receive(&mut self, packet: ModelPacket) {
        let again = self.receiver.has(packet.number);
        let cause = Some(AckCause { number: packet.number, again });
        let number = self.receiver.handle_data(packet.number);
        self.arrive(PacketDirection::Back, 0, ModelPacket { number, cause, ..packet });
    }

    fn reply(&mut self, packet: ModelPacket) {
        if self.now >= self.half {
            self.rtt_s.add(self.now.since(packet.sent).as_secs_f64());
        }
        if let Some(AckCause { number, again }) = packet.cause {
            self.sender.handle_sack(number, again);
        }
        self.sender.handle_ack(self.now, packet.number);
        self.send();
    }

    fn outcome(self) -> RenoOutcome {
        let delivered = self.receiver.delivered() - self.delivered_at_half;
        let throughput_pps = delivered as f64 / self.end.since(self.half).as_secs_f64();
        RenoOutcome {
            throughput_pps,
            throughput_mbps: throughput_pps * f64::from(self.case.packet_bytes) * 8e-6,
            halved_window: self.sender.halved_window(),
            rtt_ms: self.rtt_s.value().map(|s| s * 1e3),
            fast_retransmits: self.sender.fast_retransmits(),
            timeouts: self.sender.timeouts(),
            samples: self.samples,
        }
    }
}

/// The first flush after `now`. Flushes are at `phase` and each `period` after it.
fn next_flush(now: Time, phase: Time, period: Duration) -> Time {
    if now < phase {
        return phase;
    }
    let period_ns = period.as_nanos() as u64;
    Time(phase.0 + (now.since(phase).as_nanos() as u64 / period_ns + 1) * period_ns)
}
