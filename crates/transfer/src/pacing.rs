//! The pace of a sender: asks the control law, fills the token bucket, and passes reports to the
//! law. The rest of a sender knows segments and chunks, but neither rate nor round trip.

use core::time::Duration;

use shoal_wire::Time;
use shoal_wire::transfer::Nack;

use crate::TransferConfig;
use crate::control::constants::{CADENCE_AGAIN, SILENCE};
use crate::control::{AnyLaw, ControlLaw};
use crate::feedback::NackReader;
use crate::pacer::Pacer;
use crate::ticks::TICK_NS;
use crate::types::MixDelay;

/// Interval of reports that the receiver is asked to keep.
#[derive(Debug)]
struct ReportInterval {
    interval: Duration,
    decided: Time,
    /// True until the message with the interval has left.
    due: bool,
}

/// The pace of one sender.
#[derive(Debug)]
pub(crate) struct SenderPace {
    law: AnyLaw,
    pacer: Pacer,
    feedback: NackReader,
    /// Transmissions in all.
    sent: u64,
    /// Time of the receiver's last message.
    heard: Time,
    cadence: Option<ReportInterval>,
    added: MixDelay,
    /// True if the delay of mixes has changed since the last NACK.
    is_other_path: bool,
}

impl SenderPace {
    pub(crate) fn new(now: Time, config: &TransferConfig) -> SenderPace {
        SenderPace {
            law: AnyLaw::new(now, config),
            pacer: Pacer::new(now),
            feedback: NackReader::default(),
            sent: 0,
            heard: now,
            cadence: None,
            added: MixDelay::default(),
            is_other_path: false,
        }
    }

    /// Sets the delay that mixes on the path add.
    pub(crate) fn set_added(&mut self, added: MixDelay) {
        self.is_other_path |= added != self.added;
        self.added = added;
        self.law.on_mixes(added);
    }

    /// Delay that mixes on the path add.
    pub(crate) fn added(&self) -> MixDelay {
        self.added
    }

    /// Starts the clocks when segments begin to leave.
    pub(crate) fn start(&mut self, now: Time) {
        self.pacer = Pacer::new(now);
    }

    /// Resets counts, since the receiver was restarted; the path may have changed, too.
    pub(crate) fn restart(&mut self, now: Time) {
        self.feedback.restart();
        self.law.on_path_change(now);
    }

    /// Notes the time of a message from the receiver.
    pub(crate) fn hear(&mut self, now: Time) {
        self.heard = now;
    }

    /// Passes the report of a NACK to the law. False if a later NACK overtook it.
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
            self.cadence = Some(ReportInterval { interval, decided: now, due: true });
        }
    }

    /// True if the receiver must be told the interval of reports.
    pub(crate) fn has_cadence(&self) -> bool {
        self.cadence.as_ref().is_some_and(|cadence| cadence.due)
    }

    /// Interval that the receiver must be told; returned once.
    pub(crate) fn take_cadence(&mut self) -> Option<Duration> {
        let cadence = self.cadence.as_mut().filter(|cadence| cadence.due)?;
        cadence.due = false;
        Some(cadence.interval)
    }

    /// Adds the tokens of the time that passed.
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

    /// Records that `count` transmissions left at `tick` (4 us units). `data` of them count against
    /// the rate; probes don't.
    pub(crate) fn left(&mut self, tick: u64, data: usize, count: usize) {
        self.pacer.take(data);
        self.sent += count as u64;
        self.feedback.remember(tick, self.sent);
    }

    /// Time at which the next quantum may leave.
    pub(crate) fn next(&self) -> Time {
        self.pacer.next(self.law.rate(self.heard))
    }

    /// Transmissions in all, copies and probes included.
    pub(crate) fn sent(&self) -> u64 {
        self.sent
    }

    /// Time of the receiver's last message.
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

    /// Queueing delay in the last report.
    pub(crate) fn queue(&self) -> Duration {
        self.law.queue()
    }
}
