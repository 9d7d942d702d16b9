//! The law that keeps one rate.

use core::time::Duration;

use shoal_wire::Time;

use super::constants::CADENCE_MIN;
use super::filter::BaseFilter;
use super::{ControlLaw, PathReport, cadence, smooth, window};
use crate::types::MixDelay;

/// Keeps one rate, whatever the path loses, marks or queues. For measurements, and for paths that
/// something else keeps free: this law yields to no other sender, and a queue that it overfills
/// stays full.
#[derive(Debug)]
pub(crate) struct FixedLaw {
    rate: f64,
    srtt_s: f64,
    hold_s: f64,
    delay_base: BaseFilter,
    queue_s: f64,
}

impl FixedLaw {
    /// `rate` in segments per second; at least 1, so that every file ends.
    pub(crate) fn new(rate: f64) -> FixedLaw {
        let (rate, delay_base) = (rate.max(1.0), BaseFilter::new());
        FixedLaw { rate, srtt_s: 0.0, hold_s: 0.0, delay_base, queue_s: 0.0 }
    }
}

impl ControlLaw for FixedLaw {
    fn on_report(&mut self, now: Time, report: &PathReport, _limited: bool) {
        if let Some(rtt_ns) = report.rtt_ns {
            self.srtt_s = smooth(self.srtt_s, rtt_ns);
        }
        self.delay_base.insert(now, report.delay_ns);
        let base_ns = self.delay_base.get().unwrap_or(report.delay_ns);
        self.queue_s = (report.delay_ns - base_ns).max(0) as f64 / 1e9;
    }

    fn on_path_change(&mut self, _now: Time) {
        self.delay_base = BaseFilter::new();
    }

    fn on_mixes(&mut self, added: MixDelay) {
        self.hold_s = added.hold.as_secs_f64();
    }

    fn rate(&self, _now: Time) -> f64 {
        self.rate
    }

    fn window(&self) -> u64 {
        window(self.rate, self.srtt_s, self.hold_s)
    }

    fn cadence(&self) -> Duration {
        cadence(self.srtt_s, CADENCE_MIN)
    }

    fn rtt(&self) -> Duration {
        Duration::from_secs_f64(self.srtt_s)
    }

    fn queue(&self) -> Duration {
        Duration::from_secs_f64(self.queue_s)
    }
}
