//! The paper's experiment event by event: a Reno sender, a line, mixes both ways, a receiver.
//!
//! ```text
//! sender -> line (rate, endless queue) -> half base RTT -> mix 1 .. m -> resequencer -> receiver
//!    ^                                                                                     |
//!    '------------------ half base RTT <- mix 1 .. m <- acknowledgements ------------------'
//! ```
//!
//! Nothing is lost. So each fast retransmit and each timeout is spurious: order alone causes it.
//! Acknowledgements occupy no line. Mixes pass on at once what they let go; the paper has a line
//! behind each.
//!
//! In: a case, seconds, a seed. Out: an [`Outcome`]. Bounds: [`EVENTS_MAX`], [`SECONDS_MAX`] and
//! the sender's largest window.

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

use crate::case::{Case, SECONDS_MAX, Wrong};
use crate::law::Law;
use crate::random::{permute, rng, uniform};
use line::{Cause, Event, Events, Line, Packet, Way};
use receiver::Receiver;
use resequencer::Resequencer;
use sender::Sender;

/// Events of one run, a minute or two of work.
pub const EVENTS_MAX: u64 = 100_000_000;
/// Samples of the window in a run.
pub const SAMPLES: u32 = 200;

/// The sender's window at one time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// Seconds since the start.
    pub at_s: f64,
    /// The congestion window in packets.
    pub window: f64,
    /// Packets that reached the receiving program until then.
    pub delivered: u64,
}

/// What a run showed. Unless said otherwise it is of the second half of the run, which leaves the
/// first slow start out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Packets a second that reached the receiving program, each once and in order. It may pass
    /// the line's rate by the few that waited for an earlier one when the second half began.
    pub throughput_pps: f64,
    /// The same in Mbit/s.
    pub throughput_mbps: f64,
    /// Mean of the window in packets when it was halved, in the whole run; none if it never was.
    pub halved_window: Option<f64>,
    /// Mean round trip in milliseconds, the queue's delay included; none if nothing came back.
    pub rtt_ms: Option<f64>,
    /// Fast retransmits in the whole run, all spurious.
    pub fast_retransmits: u64,
    /// Retransmission timeouts in the whole run, all spurious.
    pub timeouts: u64,
    /// The window over the whole run, at [`SAMPLES`] times.
    pub samples: Vec<Sample>,
}

/// Runs a case for `seconds` simulated seconds, 1 to [`SECONDS_MAX`].
///
/// The outcome follows from the arguments alone.
///
/// # Errors
/// [`Wrong::Events`] if the run was given up; otherwise a bound of the arguments is broken, and
/// nothing was run.
pub fn run(case: &Case, seconds: u32, seed: u64) -> Result<Outcome, Wrong> {
    case.check()?;
    if !(1..=SECONDS_MAX).contains(&seconds) {
        return Err(Wrong::Runs);
    }
    let mut world = World::new(*case, seconds, seed);
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
    Err(Wrong::Events)
}

/// A sum and the number of its terms.
#[derive(Default)]
struct Mean {
    sum: f64,
    count: u64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.sum += value;
        self.count += 1;
    }

    fn value(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum / self.count as f64)
    }
}

/// One run.
struct World {
    case: Case,
    now: Time,
    end: Time,
    /// When the second half begins.
    half: Time,
    rng: Rng,
    events: Events,
    line: Line,
    /// What timed mixes hold, for each way and mix.
    held: Vec<Vec<Packet>>,
    /// Time of each timed mix's first flush.
    phases: Vec<Time>,
    sender: Sender,
    receiver: Receiver,
    resequencer: Option<Resequencer>,
    /// The earliest timer of the sender that stands in the events.
    timer: Option<Time>,
    delivered_at_half: u64,
    rtt_s: Mean,
    samples: Vec<Sample>,
}

impl World {
    fn new(case: Case, seconds: u32, seed: u64) -> World {
        let mut rng = rng(seed);
        let length = Duration::from_secs(seconds.into());
        let phase = |_| match case.law {
            Law::Timed { period } => Time::ZERO + period.mul_f64(uniform(&mut rng)),
            _ => Time::ZERO,
        };
        let phases = (0..case.mixes).map(phase).collect();
        let mut events = Events::default();
        for i in 1..=SAMPLES {
            events.push(Time::ZERO + length * i / SAMPLES, Event::Sample);
        }
        events.push(Time::ZERO + length / 2, Event::Half);
        World {
            case,
            now: Time::ZERO,
            end: Time::ZERO + length,
            half: Time::ZERO + length / 2,
            rng,
            events,
            line: Line::new(case.transmission()),
            held: vec![Vec::new(); 2 * case.mixes as usize],
            phases,
            sender: Sender::new(case.dupthresh, case.adapts),
            receiver: Receiver::default(),
            resequencer: case.hold.map(Resequencer::new),
            timer: None,
            delivered_at_half: 0,
            rtt_s: Mean::default(),
            samples: Vec::new(),
        }
    }

    fn step(&mut self, event: Event) {
        match event {
            Event::Arrive { way, mix, packet } => self.arrive(way, mix, packet),
            Event::Flush { way, mix } => self.flush(way, mix),
            Event::Reply(packet) => self.reply(packet),
            Event::HoldOver => self.release(),
            Event::Timer => self.timer_rang(),
            Event::Half => self.delivered_at_half = self.receiver.delivered(),
            Event::Sample => self.samples.push(Sample {
                at_s: self.now.since(Time::ZERO).as_secs_f64(),
                window: self.sender.window(),
                delivered: self.receiver.delivered(),
            }),
        }
    }

    /// Lets the sender send what its window allows, and sets its timer.
    fn send(&mut self) {
        while let Some(number) = self.sender.poll_transmit(self.now) {
            let (order, depart) = self.line.take(self.now);
            let packet = Packet { number, order, sent: self.now, cause: None };
            let event = Event::Arrive { way: Way::Data, mix: 0, packet };
            self.events.push(depart + self.case.base_rtt / 2, event);
        }
        let Some(due) = self.sender.poll_timeout() else { return };
        // A timer that rings too early looks again, so a later time needs no second one.
        if self.timer.is_none_or(|timer| due < timer) {
            self.timer = Some(due);
            self.events.push(due, Event::Timer);
        }
    }

    fn timer_rang(&mut self) {
        if self.timer == Some(self.now) {
            self.timer = None;
        }
        self.sender.handle_timeout(self.now);
        self.send();
    }

    /// A packet reaches a mix, or the end of its way behind the last one.
    fn arrive(&mut self, way: Way, mix: u32, packet: Packet) {
        if mix == self.case.mixes {
            return match way {
                Way::Data => self.meet_resequencer(packet),
                Way::Back => {
                    self.events.push(self.now + self.case.base_rtt / 2, Event::Reply(packet));
                }
            };
        }
        match self.case.law {
            Law::None => self.arrive(way, mix + 1, packet),
            Law::Timed { period } => {
                let place = way as usize * self.case.mixes as usize + mix as usize;
                self.held[place].push(packet);
                if self.held[place].len() == 1 {
                    let flush = next_flush(self.now, self.phases[mix as usize], period);
                    self.events.push(flush, Event::Flush { way, mix });
                }
            }
            Law::StopAndGo { .. } => {
                let due = self.now + self.case.law.draw(&mut self.rng);
                self.events.push(due, Event::Arrive { way, mix: mix + 1, packet });
            }
        }
    }

    fn flush(&mut self, way: Way, mix: u32) {
        let place = way as usize * self.case.mixes as usize + mix as usize;
        let mut batch = core::mem::take(&mut self.held[place]);
        permute(&mut batch, &mut self.rng);
        for packet in batch {
            self.arrive(way, mix + 1, packet);
        }
    }

    fn meet_resequencer(&mut self, packet: Packet) {
        let Some(resequencer) = &mut self.resequencer else { return self.receive(packet) };
        if let Some(over) = resequencer.take(self.now, packet) {
            self.events.push(over, Event::HoldOver);
        }
        self.release();
    }

    /// Passes on what the resequencer lets go now.
    fn release(&mut self) {
        while let Some(packet) = self.resequencer.as_mut().and_then(|r| r.poll(self.now)) {
            self.receive(packet);
        }
    }

    /// Each data packet is acknowledged at once (RFC 5681 section 4.2 asks it of packets out of
    /// order; the paper's receiver does it with all).
    fn receive(&mut self, packet: Packet) {
        let again = self.receiver.has(packet.number);
        let cause = Some(Cause { number: packet.number, again });
        let number = self.receiver.handle_data(packet.number);
        self.arrive(Way::Back, 0, Packet { number, cause, ..packet });
    }

    fn reply(&mut self, packet: Packet) {
        if self.now >= self.half {
            self.rtt_s.add(self.now.since(packet.sent).as_secs_f64());
        }
        if let Some(Cause { number, again }) = packet.cause {
            self.sender.handle_sack(number, again);
        }
        self.sender.handle_ack(self.now, packet.number);
        self.send();
    }

    fn outcome(self) -> Outcome {
        let delivered = self.receiver.delivered() - self.delivered_at_half;
        let throughput_pps = delivered as f64 / self.end.since(self.half).as_secs_f64();
        Outcome {
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

/// The first flush after `now`, of those at `phase` and each `period` after it.
fn next_flush(now: Time, phase: Time, period: Duration) -> Time {
    if now < phase {
        return phase;
    }
    let period_ns = period.as_nanos() as u64;
    Time(phase.0 + (now.since(phase).as_nanos() as u64 / period_ns + 1) * period_ns)
}
