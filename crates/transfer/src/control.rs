//! How fast a sender sends: the interface of control laws.

pub(crate) mod constants;
mod delay;
mod filter;
mod fixed;
pub(crate) mod mixes;

use core::time::Duration;

use shoal_wire::Time;
use shoal_wire::transfer::SEGMENT_LEN;

use crate::config::{Config, Law};
use crate::types::Added;
use constants::{CADENCE_MAX, RTT_SMOOTHING, WINDOW_FIRST, WINDOW_MORE_S, WINDOW_ROUNDS};
use delay::DelayLaw;
use fixed::FixedLaw;

/// Chooses the rate of one sender.
///
/// A law is a pure value: it takes reports and answers questions. It has no timer. It isn't called
/// for segments that leave, since each [`Report`] says how many have left. Its owner,
/// [`crate::pacing::Pacing`], asks for the rate before every burst. All rates are in segments per
/// second.
pub(crate) trait ControlLaw {
    /// Takes what a NACK says. `limited`: the rate was not used up since the last report, because
    /// the sender had nothing to send or the egress had no room.
    fn on_report(&mut self, now: Time, report: &Report, limited: bool);

    /// The path may be another one from now on: nothing came back for at least 100 ms, or the
    /// receiver was restarted.
    fn on_path_change(&mut self, now: Time);

    /// What mixes on the path add to each segment's way, each way; none before the first call.
    fn on_mixes(&mut self, added: Added);

    /// Segments per second that may leave at `now`; above zero. The rate may change with `now`
    /// alone; the sender notices before its next burst.
    fn rate(&self, now: Time) -> f64;

    /// Most segments on the way. A lost one counts until a report shows that a later one arrived.
    /// Beyond this only probes leave until a report comes.
    fn window(&self) -> u64;

    /// Time between two reports, as the receiver is asked to send them.
    fn cadence(&self) -> Duration;

    /// Smoothed round trip without the receiver's hold, for timers and for the status; zero before
    /// the first report.
    fn rtt(&self) -> Duration;

    /// Queueing delay that the last report showed, for the status.
    fn queue(&self) -> Duration;
}

/// What one NACK says about the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    /// All transmissions that left up to the echoed clock: they arrived or are lost.
    pub(crate) acked: u64,
    /// As `acked`, up to that clock less what mixes add in the mean: as many have left them. It is
    /// what `received` compares with.
    pub(crate) passed: u64,
    /// All transmissions that left so far.
    pub(crate) sent: u64,
    /// The receiver's clock when the echoed segment arrived, nanoseconds, unwrapped.
    pub(crate) arrived_ns: i64,
    /// Smallest one-way delay of the last interval in nanoseconds, from an arbitrary origin.
    pub(crate) delay_ns: i64,
    /// Round trip of this report without the receiver's hold; None when the echo is an old one.
    pub(crate) rtt_ns: Option<i64>,
    /// The receiver's hold: how long the echoed segment waited for its NACK.
    pub(crate) hold_ns: i64,
    /// Segments that arrived since the last report, and how many were marked.
    pub(crate) received: u32,
    pub(crate) marked: u32,
}

/// Segments that are on the way at `rate` while the path answers, of which mixes hold some for up
/// to `hold_s`. More means that it is silent.
fn window(rate: f64, srtt_s: f64, hold_s: f64) -> u64 {
    (rate * (srtt_s * WINDOW_ROUNDS + WINDOW_MORE_S + hold_s)) as u64 + WINDOW_FIRST
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

/// Any of the laws. An enum and no `dyn ControlLaw`: a law is asked a few times for each burst, and
/// a transfer stays one allocation (docs/decisions/control-laws.md).
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
    fn on_report(&mut self, now: Time, report: &Report, limited: bool) {
        law!(self, law => law.on_report(now, report, limited));
    }

    fn on_path_change(&mut self, now: Time) {
        law!(self, law => law.on_path_change(now));
    }

    fn on_mixes(&mut self, added: Added) {
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
