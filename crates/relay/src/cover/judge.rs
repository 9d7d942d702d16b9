//! Judges once a minute whether a path can carry its schedule.

use core::time::Duration;

use shoal_crypto::Ciphers;
use shoal_link::LinkStats;
use shoal_wire::{LinkId, Time};

use super::{CoverFault, HOUR_MS, HourlyChange, LinkCover};
use crate::{FrameSink, Relay};

/// Period of judging.
const MINUTE: Duration = Duration::from_secs(60);
/// Number of bad minutes in a row that ends a schedule.
const BAD_MINUTES: u32 = 5;
/// Share of a minute's frames that may be lost, or refused by the kernel.
const LOST_MAX: f32 = 0.05;

/// Counters at the start of the current minute, and the number of bad minutes before it.
#[derive(Debug, Default)]
pub(super) struct LossMinute {
    began: Time,
    sent: u64,
    reported: u64,
    received: u64,
    frames: u64,
    refused: u64,
    pub(super) bad: u32,
}

impl LossMinute {
    pub(super) fn is_over(&self, now: Time) -> bool {
        now.since(self.began) >= MINUTE
    }
}

impl LinkCover {
    pub(super) fn begin_minute(&mut self, now: Time, stats: &LinkStats) {
        self.minute = LossMinute {
            began: now,
            sent: stats.sent,
            reported: stats.reported,
            received: stats.received,
            frames: self.frames,
            refused: self.refused,
            bad: self.minute.bad,
        };
    }

    /// Judges a finished minute. Returns the reason for which the schedule must end, if any.
    /// Minutes in which the link was down or the neighbour restarted don't count. Each full frame
    /// is sent and received as `parts` frames.
    pub(super) fn judge(
        &mut self,
        now: Time,
        stats: &LinkStats,
        is_up: bool,
        parts: usize,
    ) -> Option<CoverFault> {
        let minute = &mut self.minute;
        let sent = stats.sent.saturating_sub(minute.sent) as f32;
        let refused = (self.refused - minute.refused) as f32;
        let due = (self.frames - minute.frames) as f32 + refused;
        let known = is_up && stats.reported >= minute.reported && sent > 0.0 && due > 0.0;
        let mut fault = None;
        if known {
            let lost = 1.0 - ((stats.reported - minute.reported) as f32 / sent).min(1.0);
            let received = (stats.received.saturating_sub(minute.received)) as f32;
            let gaps = now.since(minute.began).as_secs_f32()
                / self.schedule.tier().frame_gap().as_secs_f32();
            self.lost = Some(lost);
            self.arriving = Some(received / (gaps * parts as f32));
            fault = match (refused / due > LOST_MAX, lost > LOST_MAX) {
                (true, _) => Some(CoverFault::NoRoom),
                (_, true) => Some(CoverFault::Loss),
                _ => None,
            };
            minute.bad = if fault.is_some() { minute.bad + 1 } else { 0 };
        }
        let ends = minute.bad >= BAD_MINUTES;
        self.begin_minute(now, stats);
        fault.filter(|_| ends)
    }
}

impl<C: Ciphers> Relay<C> {
    /// Ends a schedule: frames leave without one.
    pub(super) fn end_cover(
        &mut self,
        now: Time,
        link: LinkId,
        ends: HourlyChange,
        sink: &mut impl FrameSink,
    ) {
        let usual = self.config.egress;
        self.tell_cover(now, link, sink);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let Some(cover) = &mut neighbour.cover else { return };
        cover.off = Some((ends, ends.at + Duration::from_millis(HOUR_MS)));
        cover.running = false;
        self.slots.set(link, &mut cover.listed, None);
        neighbour.egress.set_limits(usual);
        neighbour.egress.set_shares(None);
        neighbour.liveness.set_unhurried(false);
        self.block(now, link);
    }

    /// The next full hour by the current wall clock.
    pub(super) fn next_hour(&self, now: Time) -> HourlyChange {
        let unix_ms = self.unix_ms(now);
        let hour_ms = (unix_ms / HOUR_MS + 1) * HOUR_MS;
        HourlyChange {
            at: now + Duration::from_millis(hour_ms - unix_ms),
            unix_s: hour_ms / 1_000,
            fault: CoverFault::Neighbour,
        }
    }

    /// Wall-clock time in milliseconds since 1970.
    pub(crate) fn unix_ms(&self, now: Time) -> u64 {
        let (at, unix_ms) = self.wall;
        unix_ms + now.since(at).as_millis() as u64
    }
}
