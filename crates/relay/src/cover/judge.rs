//! Whether a path carries its schedule, judged once a minute.

use core::time::Duration;

use shoal_link::LinkStats;
use shoal_wire::Time;

use super::{Cover, CoverFault};

/// How often it is judged.
const MINUTE: Duration = Duration::from_secs(60);
/// So many bad minutes in a row end a schedule.
const BAD_MINUTES: u32 = 5;
/// Share of a minute's frames that may be lost, or refused by the kernel.
const LOST_MAX: f32 = 0.05;

/// Counters when the present minute began, and the bad minutes before it.
#[derive(Debug, Default)]
pub(super) struct Minute {
    began: Time,
    sent: u64,
    reported: u64,
    received: u64,
    frames: u64,
    refused: u64,
    pub(super) bad: u32,
}

impl Minute {
    pub(super) fn is_over(&self, now: Time) -> bool {
        now.since(self.began) >= MINUTE
    }
}

impl Cover {
    /// Begins a minute.
    pub(super) fn begin_minute(&mut self, now: Time, stats: &LinkStats) {
        self.minute = Minute {
            began: now,
            sent: stats.sent,
            reported: stats.reported,
            received: stats.received,
            frames: self.frames,
            refused: self.refused,
            bad: self.minute.bad,
        };
    }

    /// Judges a minute that is over; why the schedule must end, if it must. A minute in which the
    /// link was down, or the neighbour began anew, says nothing. Each full frame leaves and comes
    /// as so many `parts`.
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
