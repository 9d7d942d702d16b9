//! Control laws, which choose a sender's rate: their interface.

pub(crate) mod constants;
mod delay;
mod filter;
mod fixed;
pub(crate) mod mixes;

use core::time::Duration;

use shoal_wire::Time;
use shoal_wire::transfer::SEGMENT_LEN;

use crate::config::{LawChoice, TransferConfig};
use crate::types::MixDelay;
use constants::{CADENCE_MAX, RTT_SMOOTHING, WINDOW_FIRST, WINDOW_MORE_S, WINDOW_ROUNDS};
use delay::DelayLaw;
use fixed::FixedLaw;

/// Chooses the rate of one sender.
///
/// A law is a pure value without a timer: it takes reports and answers queries. It isn't called for
/// segments that leave, since each [`PathReport`] has their number. Its owner,
/// [`crate::pacing::SenderPace`], asks for the rate before every burst. All rates are in segments
/// per second.
pub(crate) trait ControlLaw {
    /// Takes the report of a NACK. `limited` is true if the rate was not used up since the last
    /// report: the sender had nothing to send, or the egress was full.
    fn on_report(&mut self, now: Time, report: &PathReport, limited: bool);

    /// The path may have changed: no report came for at least 100 ms, or the receiver was
    /// restarted.
    fn on_path_change(&mut self, now: Time);

    /// Sets the delay that mixes on the path add to each segment, in each direction; at first none.
    fn on_mixes(&mut self, added: MixDelay);

    /// Segments per second that may leave at `now`; above zero. The rate may change with `now`
    /// alone; the sender notices before its next burst.
    fn rate(&self, now: Time) -> f64;

    /// Most segments in flight. A lost one counts until a report shows that a later one arrived.
    /// While the window is full, only probes leave until a report comes.
    fn window(&self) -> u64;

    /// Time between two reports, which the receiver is asked to keep.
    fn cadence(&self) -> Duration;

    /// Smoothed round trip without the receiver's hold, for timers and the status; zero before the
    /// first report.
    fn rtt(&self) -> Duration;

    /// Queueing delay in the last report, for the status.
    fn queue(&self) -> Duration;
}

/// State of the path, as one NACK shows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathReport {
    /// Transmissions that left up to the echoed clock: each one arrived or is lost.
    pub(crate) acked: u64,
    /// As `acked`, up to that clock less the mean delay of mixes: as many have left the mixes. The
    /// count `received` is compared with it.
    pub(crate) passed: u64,
    /// Transmissions that left so far.
    pub(crate) sent: u64,
    /// The receiver's clock when the echoed segment arrived, nanoseconds, unwrapped.
    pub(crate) arrived_ns: i64,
    /// Smallest one-way delay since the last report, in nanoseconds from an arbitrary origin.
    pub(crate) delay_ns: i64,
    /// Round trip of this report without the receiver's hold; None if the echo is an old one.
    pub(crate) rtt_ns: Option<i64>,
    /// The receiver's hold: nanoseconds that the echoed segment waited for its NACK.
    pub(crate) hold_ns: i64,
    /// Segments that arrived since the last report, and the marked ones among them.
    pub(crate) received: u32,
    pub(crate) marked: u32,
}

/// Segments in flight at `rate` on a path that answers; mixes hold some for up to `hold_s`. More
/// segments in flight mean that the path is silent.
fn window(rate: f64, srtt_s: f64, hold_s: f64) -> u64 {
    (rate * (srtt_s * WINDOW_ROUNDS + WINDOW_MORE_S + hold_s)) as u64 + WINDOW_FIRST
}

/// Time between reports on a path with this round trip.
fn cadence(srtt_s: f64, least_s: f64) -> Duration {
    Duration::from_secs_f64((srtt_s / 4.0).clamp(least_s, CADENCE_MAX))
}

/// Smoothed round trip in seconds after one more sample; the first sample counts whole.
fn smooth(srtt_s: f64, rtt_ns: i64) -> f64 {
    let rtt_s = rtt_ns.max(0) as f64 / 1e9;
    if srtt_s == 0.0 { rtt_s } else { srtt_s + (rtt_s - srtt_s) / RTT_SMOOTHING }
}

/// Any of the laws. An enum is used, not `dyn ControlLaw`: a law is asked a few times for each
/// burst, and a transfer stays one allocation (docs/design/decisions/control-laws.md).
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "a sender is boxed whole, whatever its law")]
pub(crate) enum AnyLaw {
    Delay(DelayLaw),
    Fixed(FixedLaw),
}

impl AnyLaw {
    /// The law that `config` selects.
    pub(crate) fn new(now: Time, config: &TransferConfig) -> AnyLaw {
        let segments = |bytes: u64| bytes as f64 / SEGMENT_LEN as f64;
        match config.law {
            LawChoice::Delay => {
                let rate_max = segments(config.rate_max);
                AnyLaw::Delay(DelayLaw::new(now, config.queue_target, rate_max))
            }
            LawChoice::Fixed { rate } => {
                AnyLaw::Fixed(FixedLaw::new(segments(rate.min(config.rate_max))))
            }
        }
    }
}

/// Calls a method of the law that `$any` holds.
macro_rules! law {
    ($any:expr, $law:ident => $call:expr) => {
        match $any {
            AnyLaw::Delay($law) => $call,
            AnyLaw::Fixed($law) => $call,
        }
    };
}

impl ControlLaw for AnyLaw {
    fn on_report(&mut self, now: Time, report: &PathReport, limited: bool) {
        law!(self, law => law.on_report(now, report, limited));
    }

    fn on_path_change(&mut self, now: Time) {
        law!(self, law => law.on_path_change(now));
    }

    fn on_mixes(&mut self, added: MixDelay) {
        law!(self, law => law.on_mixes(added));
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
