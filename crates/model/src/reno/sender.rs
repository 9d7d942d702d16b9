//! A Reno sender as in the paper's Appendix A: slow start, congestion avoidance, fast retransmit at
//! the duplicate threshold, fast recovery. Selective acknowledgements and limited transmit are used
//! only if the threshold adapts.
//!
//! Windows are in packets. The program always has more to send. There is at most one fast
//! retransmit per window of data, as in ns-2, which the paper used. RFC 6582 section 3.2 calls the
//! bound `recover`.

use core::time::Duration;

use shoal_wire::Time;

use super::adaptive::AdaptiveThreshold;

/// RFC 6298: the timeout before the first sample, its minimum, and an upper bound as section 2.5
/// allows.
const RTO_FIRST: Duration = Duration::from_secs(1);
const RTO_MIN: Duration = Duration::from_secs(1);
const RTO_MAX: Duration = Duration::from_secs(60);
/// Largest window in packets. The paper's receiver has an unlimited buffer; this bound on packets
/// in flight is far above what its runs reach.
const WINDOW_MAX: f64 = 1_048_576.0;
/// Minimum of the slow-start threshold in packets (the paper's Appendix A).
const SSTHRESH_MIN: f64 = 2.0;

/// The retransmission timeout of RFC 6298.
struct RetransmitTimeout {
    /// Smoothed round trip and its variation in seconds. None before the first sample.
    smooth_s: Option<(f64, f64)>,
    timeout: Duration,
}

impl RetransmitTimeout {
    /// RFC 6298 section 2. A sample also ends the back-off.
    fn sample(&mut self, rtt: Duration) {
        let r = rtt.as_secs_f64();
        let (smooth, variation) = match self.smooth_s {
            None => (r, r / 2.0),
            Some((s, v)) => (0.875 * s + 0.125 * r, 0.75 * v + 0.25 * (s - r).abs()),
        };
        self.smooth_s = Some((smooth, variation));
        let timeout = Duration::from_secs_f64(smooth + 4.0 * variation);
        self.timeout = timeout.clamp(RTO_MIN, RTO_MAX);
    }

    fn back_off(&mut self) {
        self.timeout = (self.timeout * 2).min(RTO_MAX);
    }
}

pub(super) struct RenoSender {
    dupthresh: u32,
    /// Source of an adaptive threshold, in place of `dupthresh`.
    adaptive: Option<AdaptiveThreshold>,
    /// Congestion window in packets.
    window: f64,
    ssthresh: f64,
    /// Oldest unacknowledged packet.
    oldest: u64,
    /// Next packet to send, and (`fresh`) the first that was never sent.
    next: u64,
    fresh: u64,
    /// Duplicate acknowledgements of `oldest`.
    duplicates: u32,
    /// During fast recovery: number of packets by which duplicates have inflated the window.
    inflated: Option<u32>,
    /// Value of `fresh` at the last retransmission. Packets sent before it trigger no further one.
    recover: Option<u64>,
    /// Packet to retransmit first.
    again: Option<u64>,
    rto: RetransmitTimeout,
    /// Packet whose round trip is measured. Never a retransmitted packet (Karn).
    timed: Option<(u64, Time)>,
    deadline: Option<Time>,
    /// Sum of the windows at the moments of halving.
    halved_sum: f64,
    fast_retransmits: u64,
    timeouts: u64,
}

impl RenoSender {
    /// A sender with the threshold `dupthresh`, or with an adaptive one of at least that value.
    pub(super) fn new(dupthresh: u32, adapts: bool) -> RenoSender {
        RenoSender {
            dupthresh,
            adaptive: adapts.then(|| AdaptiveThreshold::new(dupthresh)),
            window: 1.0,
            ssthresh: f64::INFINITY,
            oldest: 0,
            next: 0,
            fresh: 0,
            duplicates: 0,
            inflated: None,
            recover: None,
            again: None,
            rto: RetransmitTimeout { smooth_s: None, timeout: RTO_FIRST },
            timed: None,
            deadline: None,
            halved_sum: 0.0,
            fast_retransmits: 0,
            timeouts: 0,
        }
    }

    pub(super) fn window(&self) -> f64 {
        self.window
    }

    pub(super) fn fast_retransmits(&self) -> u64 {
        self.fast_retransmits
    }

    pub(super) fn timeouts(&self) -> u64 {
        self.timeouts
    }

    /// Mean window at the moments of halving. None if there were none.
    pub(super) fn halved_window(&self) -> Option<f64> {
        let count = self.fast_retransmits;
        (count > 0).then(|| self.halved_sum / count as f64)
    }

    fn threshold(&self) -> u32 {
        self.adaptive.as_ref().map_or(self.dupthresh, AdaptiveThreshold::threshold)
    }

    /// Handles the selective part of the next acknowledgement. After a spurious halving, the window
    /// grows to its former size in slow start.
    pub(super) fn handle_sack(&mut self, number: u64, again: bool) {
        let Some(adaptive) = &mut self.adaptive else { return };
        if let Some(window) = adaptive.arrived(self.oldest, number, again) {
            self.inflated = None;
            self.ssthresh = self.ssthresh.max(window);
        }
    }

    /// Handles an acknowledgement. `awaited` is the first packet that the receiver misses.
    pub(super) fn handle_ack(&mut self, now: Time, awaited: u64) {
        if awaited > self.oldest {
            self.advance(now, awaited);
        } else if awaited == self.oldest && self.fresh > self.oldest {
            self.duplicate(now);
        }
    }

    fn advance(&mut self, now: Time, awaited: u64) {
        if let Some((_, sent)) = self.timed.take_if(|(number, _)| *number < awaited) {
            self.rto.sample(now.since(sent));
        }
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.advance(self.oldest, awaited);
        }
        self.oldest = awaited;
        self.next = self.next.max(awaited);
        self.duplicates = 0;
        self.again = None;
        if self.inflated.take().is_some() {
            self.window = self.ssthresh;
        } else {
            let step = if self.window < self.ssthresh { 1.0 } else { 1.0 / self.window };
            self.window = (self.window + step).min(WINDOW_MAX);
        }
        self.deadline = (self.fresh > self.oldest).then(|| now + self.rto.timeout);
    }

    fn duplicate(&mut self, now: Time) {
        self.duplicates += 1;
        if let Some(inflated) = &mut self.inflated {
            *inflated += 1;
        } else if self.duplicates >= self.threshold()
            && self.recover.is_none_or(|recover| self.oldest > recover)
        {
            self.fast_retransmits += 1;
            self.halved_sum += self.window;
            if let Some(adaptive) = &mut self.adaptive {
                adaptive.retransmitted(self.oldest, self.window);
            }
            self.reduce();
            self.window = self.ssthresh;
            self.inflated = Some(self.duplicates);
            self.again = Some(self.oldest);
            self.deadline = Some(now + self.rto.timeout);
        }
    }

    fn reduce(&mut self) {
        self.ssthresh = (self.window / 2.0).max(SSTHRESH_MIN);
        self.recover = Some(self.fresh);
        self.timed = None;
    }

    /// The next packet to send, if the window has room.
    pub(super) fn poll_transmit(&mut self, now: Time) -> Option<u64> {
        let number = match self.again.take() {
            Some(number) => number,
            None => {
                let room = self.window as u64 + self.more_room();
                if self.next >= self.oldest + room {
                    return None;
                }
                self.next += 1;
                self.next - 1
            }
        };
        if number >= self.fresh {
            self.fresh = number + 1;
            self.timed.get_or_insert((number, now));
        }
        self.deadline.get_or_insert(now + self.rto.timeout);
        Some(number)
    }

    /// Number of packets by which duplicates enlarge the window. This happens in fast recovery.
    /// With an adaptive threshold it also happens before, by at most one more window (extended
    /// limited transmit).
    fn more_room(&self) -> u64 {
        match (self.inflated, &self.adaptive) {
            (Some(inflated), _) => inflated.into(),
            (None, Some(_)) => u64::from(self.duplicates).min(self.window as u64),
            (None, None) => 0,
        }
    }

    /// Time at which `handle_timeout` must be called.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        self.deadline
    }

    /// Goes back to the oldest packet if the retransmission timer is due. Does nothing otherwise.
    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return;
        }
        self.timeouts += 1;
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.timed_out();
        }
        self.reduce();
        self.window = 1.0;
        self.inflated = None;
        self.duplicates = 0;
        self.again = None;
        self.next = self.oldest;
        self.rto.back_off();
        // The deadline is set again when the oldest packet is sent.
        self.deadline = None;
    }
}
