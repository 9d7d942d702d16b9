//! When segments may leave: asks the control law, fills the token bucket, and passes reports to the
//! law. The rest of a sender knows segments and chunks, but neither rate nor round trip.

use core::time::Duration;

use shoal_wire::Time;
use shoal_wire::transfer::Nack;

use crate::Config;
use crate::control::constants::{CADENCE_AGAIN, SILENCE};
use crate::control::{AnyLaw, ControlLaw};
use crate::feedback::Feedback;
use crate::pacer::Pacer;
use crate::ticks::TICK_NS;
use crate::types::Added;

/// How often the receiver is asked to report.
#[derive(Debug)]
struct Cadence {
    interval: Duration,
    decided: Time,
    /// The message that says so has not left yet.
    due: bool,
}

/// The pace of one sender.
#[derive(Debug)]
pub(crate) struct Pacing {
    law: AnyLaw,
    pacer: Pacer,
    feedback: Feedback,
    /// Transmissions in all.
    sent: u64,
    /// When the receiver last said something.
    heard: Time,
    cadence: Option<Cadence>,
    added: Added,
    /// What mixes add has changed since the last NACK.
    is_other_path: bool,
}

impl Pacing {
    pub(crate) fn new(now: Time, config: &Config) -> Pacing {
        Pacing {
            law: AnyLaw::new(now, config),
            pacer: Pacer::new(now),
            feedback: Feedback::default(),
            sent: 0,
            heard: now,
            cadence: None,
            added: Added::default(),
            is_other_path: false,
        }
    }

    /// Mixes on the path add so much from now on.
    pub(crate) fn set_added(&mut self, added: Added) {
        self.is_other_path |= added != self.added;
        self.added = added;
        self.law.on_mixes(added);
    }

    /// What mixes on the path add.
    pub(crate) fn added(&self) -> Added {
        self.added
    }

    /// Starts the clocks: segments begin to leave.
    pub(crate) fn start(&mut self, now: Time) {
        self.pacer = Pacer::new(now);
    }

    /// The receiver was restarted: it counts anew, and the path may be another one.
    pub(crate) fn restart(&mut self, now: Time) {
        self.feedback.restart();
        self.law.on_path_change(now);
    }

    /// The receiver said something.
    pub(crate) fn hear(&mut self, now: Time) {
        self.heard = now;
    }

    /// Takes what a NACK says about the path. False when a later one overtook it.
    pub(crate) fn nack(&mut self, now: Time, nack: &Nack<'_>) -> bool {
        if !self.feedback.is_news(nack) {
            return false;
        }
        let answer = self.law.cadence() * 4 + self.law.rtt();
        let quiet = SILENCE.max(answer) + self.added.hold;
        if core::mem::take(&mut self.is_other_path) || now.since(self.heard) > quiet {
            self.law.on_path_change(now);
        }
        self.heard = now;
        let mixed = self.added.mean.as_nanos() as u64 / TICK_NS;
        if let Some(report) = self.feedback.read(now, nack, self.sent, mixed) {
            self.law.on_report(now, &report, self.pacer.take_overflowed());
            self.choose_cadence(now);
        }
        true
    }

    fn choose_cadence(&mut self, now: Time) {
        let interval = self.law.cadence();
        let known = self.cadence.as_ref().is_some_and(|told| {
            let gap = told.interval / 5;
            let same = interval <= told.interval + gap && interval + gap >= told.interval;
            same && !told.due && now.since(told.decided) <= CADENCE_AGAIN
        });
        if !known {
            self.cadence = Some(Cadence { interval, decided: now, due: true });
        }
    }

    /// Whether the receiver must be told how often to report.
    pub(crate) fn has_cadence(&self) -> bool {
        self.cadence.as_ref().is_some_and(|cadence| cadence.due)
    }

    /// The cadence that the receiver must be told; given once.
    pub(crate) fn take_cadence(&mut self) -> Option<Duration> {
        let cadence = self.cadence.as_mut().filter(|cadence| cadence.due)?;
        cadence.due = false;
        Some(cadence.interval)
    }

    /// Lets time pass.
    pub(crate) fn refill(&mut self, now: Time) {
        self.pacer.refill(now, self.law.rate(now));
    }

    /// Segments that may be sent before the next NACK.
    pub(crate) fn room(&self) -> u64 {
        let on_the_way = self.sent - self.feedback.acked();
        self.law.window().saturating_sub(on_the_way)
    }

    /// Segments that may leave now; 0 until a whole quantum may.
    pub(crate) fn allowed(&self, now: Time) -> usize {
        let paced = self.pacer.ready(self.law.rate(now)) as u64;
        paced.min(self.room()) as usize
    }

    /// `count` transmissions left at `tick` (4 us units). `data` of them count against the rate;
    /// probes don't.
    pub(crate) fn left(&mut self, tick: u64, data: usize, count: usize) {
        self.pacer.take(data);
        self.sent += count as u64;
        self.feedback.remember(tick, self.sent);
    }

    /// When the next quantum may leave.
    pub(crate) fn next(&self) -> Time {
        self.pacer.next(self.law.rate(self.heard))
    }

    /// Transmissions in all, copies and probes included.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// When the receiver last said something.
    pub(crate) fn heard(&self) -> Time {
        self.heard
    }

    /// Segments per second that may leave now.
    pub(crate) fn rate(&self, now: Time) -> f64 {
        self.law.rate(now)
    }

    /// Smoothed round trip; zero before the first report.
    pub(crate) fn rtt(&self) -> Duration {
        self.law.rtt()
    }

    /// Queueing delay last seen.
    pub(crate) fn queue(&self) -> Duration {
        self.law.queue()
    }
}
