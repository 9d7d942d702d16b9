//! A duplicate threshold that adapts to reordering, after M. Zhang, B. Karp, S. Floyd and
//! L. Peterson, "RR-TCP: A Reordering-Robust TCP with DSACK", ICNP 2003.
//!
//! Selective acknowledgements tell by how many later packets each late one was overtaken. The
//! threshold covers a share of the last of these lengths. A retransmission that was in vain, which
//! a duplicate selective acknowledgement (DSACK) tells, raises the share; a timeout lowers it.
//! docs/model.md says what of the published sender is left out.

use std::collections::{BTreeSet, VecDeque};

/// Lengths that are remembered.
const LENGTHS_MAX: usize = 1_000;
/// A longer length counts as this one.
const LENGTH_MAX: usize = 4_096;
/// Share of late packets that the threshold covers at first.
const SHARE_FIRST: f64 = 0.9;
/// What a retransmission in vain adds to the share.
const SHARE_STEP: f64 = 0.01;
/// What a timeout takes off the share: it costs more than a retransmission in vain.
const SHARE_BACK: f64 = 0.05;
/// The share stays above this.
const SHARE_MIN: f64 = 0.5;

pub(super) struct Adaptive {
    /// Threshold before any packet was late, and its least value.
    least: u32,
    threshold: u32,
    share: f64,
    /// By how many packets each of the last late ones was overtaken, and how many were by so many.
    lengths: VecDeque<usize>,
    histogram: Vec<u32>,
    /// Packets above the oldest that arrived.
    arrived: BTreeSet<u64>,
    /// The packet that was last retransmitted fast, and the window before.
    doubted: Option<(u64, f64)>,
}

impl Adaptive {
    pub(super) fn new(least: u32) -> Adaptive {
        Adaptive {
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

    /// An acknowledgement says that packet `number` arrived, for the first time or `again`. Gives
    /// the window that was halved in vain, if that is what it tells.
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

    /// All packets from `oldest` to before `awaited` arrived; those that no acknowledgement named
    /// were late.
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

    /// Remembers by how many packets this one was overtaken.
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

    /// One more than the length that the share of all lengths does not exceed.
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
