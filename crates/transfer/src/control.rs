//! How fast a sender sends: what a control law is told, and what it answers.

pub(crate) mod constants;
mod delay;
mod filter;
mod fixed;

use core::time::Duration;

use shoal_wire::Time;
use shoal_wire::transfer::SEGMENT_LEN;

use crate::config::{Config, Law};
use constants::{CADENCE_MAX, RTT_SMOOTHING, WINDOW_FIRST, WINDOW_MORE_S, WINDOW_ROUNDS};
use delay::DelayLaw;
use fixed::FixedLaw;

/// Chooses the rate of one sender.
///
/// A law is a pure value: it is told what came back and answers when asked. It has no timer and
/// isn't called for segments that leave, since each [`Report`] says how many have left; the
/// [`crate::pacing::Pacing`] that owns it asks for the rate before every burst. All rates are in
/// segments per second.
pub(crate) trait ControlLaw {
    /// Is told what a NACK says. `limited`: since the last report the sender had nothing to send,
    /// or the egress had no room for it, so that the rate was not used up.
    fn on_report(&mut self, now: Time, report: &Report, limited: bool);

    /// Is told that the path may be another one from now on: nothing came back for a while (at
    /// least 100 ms), or the receiver was restarted.
    fn on_path_change(&mut self, now: Time);

    /// Segments per second that may leave at `now`; above zero. What it answers may change with
    /// `now` alone; the sender notices before its next burst.
    fn rate(&self, now: Time) -> f64;

    /// Segments that may be on the way, lost ones included until a report tells of a later one.
    /// When so many are, only probes leave until a report comes.
    fn window(&self) -> u64;

    /// Time between two reports that the receiver is asked for.
    fn cadence(&self) -> Duration;

    /// Smoothed round trip without the receiver's hold, for timers and for the status; zero before
    /// the first report.
    fn rtt(&self) -> Duration;

    /// How long segments last queued on the way, for the status.
    fn queue(&self) -> Duration;
}

/// What one NACK says about the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// Transmissions that left up to the echoed clock, in all. What of them didn't arrive is lost.
    pub(crate) acked: u64,
    /// Transmissions in all.
    pub(crate) sent: u64,
    /// The receiver's clock when the echoed segment arrived, nanoseconds, unwrapped.
    pub(crate) arrived_ns: i64,
    /// Smallest delay of late in nanoseconds, from an arbitrary origin.
    pub(crate) delay_ns: i64,
    /// Round trip of this report without the receiver's hold, when it is a fresh one.
    pub(crate) rtt_ns: Option<i64>,
    /// The receiver's hold.
    pub(crate) hold_ns: i64,
    /// Segments that arrived since the last report, and how many were marked.
    pub(crate) received: u32,
    pub(crate) marked: u32,
}

/// Segments on the way at `rate` while the path answers: beyond them it is silent, not slow.
fn window(rate: f64, srtt_s: f64) -> u64 {
    (rate * (srtt_s * WINDOW_ROUNDS + WINDOW_MORE_S)) as u64 + WINDOW_FIRST
}

/// Time between reports on a path of this round trip.
fn cadence(srtt_s: f64, least_s: f64) -> Duration {
    Duration::from_secs_f64((srtt_s / 4.0).clamp(least_s, CADENCE_MAX))
}

/// The smoothed round trip in seconds after one more was seen; the first counts whole.
fn smooth(srtt_s: f64, rtt_ns: i64) -> f64 {
    let rtt_s = rtt_ns.max(0) as f64 / 1e9;
    if srtt_s == 0.0 { rtt_s } else { srtt_s + (rtt_s - srtt_s) / RTT_SMOOTHING }
}

/// One of the laws that there are. An enum and no `dyn ControlLaw`: a law is asked a few times for
/// each burst, and a transfer stays one allocation (docs/decisions/control-laws.md).
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a sender is boxed whole, whatever its law")]
pub(crate) enum AnyLaw {
    Delay(DelayLaw),
    Fixed(FixedLaw),
}

impl AnyLaw {
    /// The law that `config` asks for.
    pub(crate) fn new(now: Time, config: &Config) -> AnyLaw {
        let segments = |bytes: u64| bytes as f64 / SEGMENT_LEN as f64;
        match config.law {
            Law::Delay => {
                let rate_max = segments(config.rate_max);
                AnyLaw::Delay(DelayLaw::new(now, config.queue_target, rate_max))
            }
            Law::Fixed { rate } => {
                AnyLaw::Fixed(FixedLaw::new(segments(rate.min(config.rate_max))))
            }
        }
    }
}

/// Calls the law that it is.
macro_rules! law {
    ($any:expr, $law:ident => $call:expr) => {
        match $any {
            AnyLaw::Delay($law) => $call,
            AnyLaw::Fixed($law) => $call,
        }
    };
}

impl ControlLaw for AnyLaw {
    fn on_report(&mut self, now: Time, report: &Report, limited: bool) {
        law!(self, law => law.on_report(now, report, limited));
    }

    fn on_path_change(&mut self, now: Time) {
        law!(self, law => law.on_path_change(now));
    }

    #[inline]
    fn rate(&self, now: Time) -> f64 {
        law!(self, law => law.rate(now))
    }

    #[inline]
    fn window(&self) -> u64 {
        law!(self, law => law.window())
    }

    fn cadence(&self) -> Duration {
        law!(self, law => law.cadence())
    }

    fn rtt(&self) -> Duration {
        law!(self, law => law.rtt())
    }

    fn queue(&self) -> Duration {
        law!(self, law => law.queue())
    }
}
