//! Turns NACKs into reports for the control law.

use std::collections::VecDeque;

use shoal_wire::Time;
use shoal_wire::transfer::Nack;

use crate::control::PathReport;
use crate::ticks::{StampUnwrapper, TICK_NS, ticks, unwrap_past};

/// Most bursts remembered for matching clocks to transmissions.
const LOG_MAX: usize = 8_192;

/// Matches the clocks that NACKs echo to transmissions.
#[derive(Debug, Default)]
pub(crate) struct NackReader {
    /// Clock, and transmissions up to then; oldest first.
    log: VecDeque<(u64, u64)>,
    acked: u64,
    /// As `log`, for bursts up to the newest echo that may still be in mixes.
    mixed: VecDeque<(u64, u64)>,
    /// Transmissions that have left the mixes, if each was delayed by the mean.
    passed: u64,
    number: Option<u32>,
    /// Segments received and marked, as last reported.
    counts: (u32, u32),
    echo: u64,
    arrived: StampUnwrapper,
    delay: StampUnwrapper,
}

impl NackReader {
    /// Resets the counts, since the receiver was restarted and counts from 0.
    pub(crate) fn restart(&mut self) {
        self.number = None;
        self.counts = (0, 0);
    }

    /// Transmissions that left up to the newest echoed clock: each one arrived or is lost.
    pub(crate) fn acked(&self) -> u64 {
        self.acked
    }

    /// Records that `sent` transmissions had left at `tick`.
    pub(crate) fn remember(&mut self, tick: u64, sent: u64) {
        match self.log.back_mut() {
            Some(last) if last.0 == tick => last.1 = sent,
            _ => self.log.push_back((tick, sent)),
        }
        if self.log.len() > LOG_MAX {
            self.log.pop_front();
        }
    }

    /// False for a NACK that was overtaken by a later one.
    pub(crate) fn is_news(&mut self, nack: &Nack<'_>) -> bool {
        let newer = self.number.is_none_or(|n| nack.number.wrapping_sub(n) as i32 > 0);
        if newer {
            self.number = Some(nack.number);
        }
        newer
    }

    /// Report in a NACK; None if nothing arrived since the last one. `mixed` is the mean delay of
    /// mixes, in ticks.
    pub(crate) fn read(
        &mut self,
        now: Time,
        nack: &Nack<'_>,
        sent: u64,
        mixed: u64,
    ) -> Option<PathReport> {
        let received = nack.received.wrapping_sub(self.counts.0);
        if received == 0 || received > 1 << 24 {
            return None;
        }
        let marked = nack.marked.wrapping_sub(self.counts.1).min(received);
        self.counts = (nack.received, nack.marked);
        let echo = unwrap_past(ticks(now), nack.echo);
        while self.log.front().is_some_and(|&(tick, _)| tick <= echo) {
            let burst = self.log.pop_front();
            self.acked = burst.map_or(self.acked, |(_, sent)| sent);
            self.mixed.extend(burst);
        }
        while self.mixed.front().is_some_and(|&(tick, _)| tick + mixed <= echo)
            || self.mixed.len() > LOG_MAX
        {
            self.passed = self.mixed.pop_front().map_or(self.passed, |(_, sent)| sent);
        }
        let hold_ns = i64::from(nack.hold.get()) * TICK_NS as i64;
        let round_ns = ((ticks(now) - echo) * TICK_NS) as i64 - hold_ns;
        let fresh = echo > self.echo;
        self.echo = self.echo.max(echo);
        Some(PathReport {
            acked: self.acked,
            passed: self.passed,
            sent,
            arrived_ns: self.arrived.read(nack.arrived),
            delay_ns: self.delay.read(nack.delay),
            rtt_ns: fresh.then_some(round_ns),
            hold_ns,
            received,
            marked,
        })
    }
}
