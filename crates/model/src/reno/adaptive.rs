//! A duplicate threshold that adapts to reordering, as in M. Zhang, B. Karp, S. Floyd and L.
//! Peterson, "RR-TCP: A Reordering-Robust TCP with DSACK", ICNP 2003.
//!
//! Selective acknowledgements reveal how many later packets overtook each late one. The threshold
//! covers a share of the latest of these lengths. A spurious retransmission, which a duplicate
//! selective acknowledgement (DSACK) reveals, raises the share; a timeout lowers it.
//! docs/evidence/model.md lists the omitted parts of the published sender.

use std::collections::{BTreeSet, VecDeque};

/// Number of remembered lengths.
const LENGTHS_MAX: usize = 1_000;
/// Largest length; longer ones count as this one.
const LENGTH_MAX: usize = 4_096;
/// Initial share of late packets that the threshold covers.
const SHARE_FIRST: f64 = 0.9;
/// Increase of the share after a spurious retransmission.
const SHARE_STEP: f64 = 0.01;
/// Decrease of the share after a timeout, which costs more than a spurious retransmission.
const SHARE_BACK: f64 = 0.05;
/// Smallest share.
const SHARE_MIN: f64 = 0.5;

pub(super) struct AdaptiveThreshold {
    /// Threshold before any packet was late, which is also its minimum.
    least: u32,
    threshold: u32,
    share: f64,
    /// Number of packets that overtook each of the latest late ones, and a histogram of these
    /// numbers.
    lengths: VecDeque<usize>,
    histogram: Vec<u32>,
    /// Packets above the oldest unacknowledged one that arrived.
    arrived: BTreeSet<u64>,
    /// Packet of the last fast retransmit, and the window before it.
    doubted: Option<(u64, f64)>,
}

impl AdaptiveThreshold {
    pub(super) fn new(least: u32) -> AdaptiveThreshold {
        AdaptiveThreshold {
            least,
            threshold: least,
            share: SHARE_FIRST,
            lengths: VecDeque::new(),
            histogram: vec![0; LENGTH_MAX + 1],
            arrived: BTreeSet::new(),
            doubted: None,
        }
    }

    pub(super) fn threshold(&self) -> u32 {
        self.threshold
    }

    /// Handles an acknowledgement that packet `number` arrived, for the first time or `again`.
    /// Returns the window before a halving that turns out to be spurious.
    pub(super) fn arrived(&mut self, oldest: u64, number: u64, again: bool) -> Option<f64> {
        if again {
            let (_, window) = self.doubted.take_if(|(doubted, _)| *doubted == number)?;
            self.share = (self.share + SHARE_STEP).min(1.0);
            self.adapt();
            return Some(window);
        }
        if number > oldest && self.arrived.insert(number) {
            self.late(number);
        }
        None
    }

    /// Handles a cumulative acknowledgement from `oldest` to before `awaited`. Packets in this
    /// range that no acknowledgement named were late.
    pub(super) fn advance(&mut self, oldest: u64, awaited: u64) {
        for number in oldest..awaited {
            if !self.arrived.remove(&number) {
                self.late(number);
            }
        }
        self.arrived.remove(&awaited);
    }

    pub(super) fn retransmitted(&mut self, number: u64, window: f64) {
        self.doubted = Some((number, window));
    }

    pub(super) fn timed_out(&mut self) {
        self.doubted = None;
        self.share = (self.share - SHARE_BACK).max(SHARE_MIN);
        self.adapt();
    }

    /// Records how many packets overtook this one.
    fn late(&mut self, number: u64) {
        let length = self.arrived.range(number + 1..).take(LENGTH_MAX).count();
        if length == 0 {
            return;
        }
        let first = if self.lengths.len() == LENGTHS_MAX { self.lengths.pop_front() } else { None };
        if let Some(first) = first {
            self.histogram[first] -= 1;
        }
        self.lengths.push_back(length);
        self.histogram[length] += 1;
        self.adapt();
    }

    /// Sets the threshold to one more than the length that covers the share of all lengths.
    fn adapt(&mut self) {
        let mut left = (self.lengths.len() as f64 * self.share).ceil() as u32;
        let covers = |count: &u32| {
            left = left.saturating_sub(*count);
            left == 0
        };
        let length = self.histogram.iter().position(covers).unwrap_or(LENGTH_MAX);
        self.threshold = (length as u32 + 1).max(self.least);
    }
}
