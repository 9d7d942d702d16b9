//! The exact window at the moment of halving: all orders of a window have equal probability.
//!
//! Lemma 1 of the paper requires that no packet moves back by more than two places, and Lemma 2
//! counts such orders. But a late packet causes no duplicate acknowledgement while the receiver
//! still waits for an earlier one. There are therefore more calm orders than (8) says.
//!
//! The exact probability follows from a symmetry. Let the receiver wait for packet e, with r of the
//! N packets behind e received. Each set of r of these N is then equally likely, since an arrival
//! reveals only whether it is e. Two numbers are therefore the whole state.

use crate::window::{SeriesSum, add_up};

/// Probabilities of at most D - 1 duplicate acknowledgements in windows of 1, 2, 3... packets.
///
/// Time and memory per step grow with the window. The iterator never ends.
#[derive(Clone, Debug)]
pub struct CalmProbabilities {
    dupthresh: usize,
    /// Packets of the next window behind its first one.
    behind: usize,
    /// For each r: probability of a calm end, if the receiver begins to wait for a packet and has
    /// r of those behind it.
    begun: Vec<f64>,
    /// For each r: probability of a calm end, if the receiver has just got the packet that it
    /// waited for.
    got: Vec<f64>,
}

impl CalmProbabilities {
    pub fn new(dupthresh: u32) -> CalmProbabilities {
        CalmProbabilities {
            dupthresh: dupthresh as usize,
            behind: 0,
            begun: Vec::new(),
            got: Vec::new(),
        }
    }

    /// Probabilities after the awaited packet came: the first one behind it was received or not.
    fn next_got(&self) -> Vec<f64> {
        let all = self.behind;
        if all == 0 {
            return vec![1.0];
        }
        let chance = |r: usize| {
            let there = if r > 0 { r as f64 * self.got[r - 1] } else { 0.0 };
            let missing = if r < all { (all - r) as f64 * self.begun[r] } else { 0.0 };
            (there + missing) / all as f64
        };
        (0..=all).map(chance).collect()
    }
}

impl Iterator for CalmProbabilities {
    type Item = f64;

    fn next(&mut self) -> Option<f64> {
        let got = self.next_got();
        // The awaited packet is equally likely at each position among those still to come. It comes
        // after 0, 1, ... duplicates; with D of them the sender retransmits.
        let mut before = vec![0.0];
        for chance in &got {
            before.push(before[before.len() - 1] + chance);
        }
        let begun = (0..=self.behind).map(|r| {
            let to_come = self.behind + 1 - r;
            let end = r + to_come.min(self.dupthresh);
            (before[end] - before[r]) / to_come as f64
        });
        self.begun = begun.collect();
        self.got = got;
        self.behind += 1;
        Some(self.begun[0])
    }
}

/// E(W) with exact probabilities: D + 1, plus the sum over n above D of the probability that no
/// window up to n was halved. 5.36 for D = 3; the paper's formula sums to 5.17.
pub fn mean_window(dupthresh: u32) -> SeriesSum {
    let chances = CalmProbabilities::new(dupthresh).skip(dupthresh as usize);
    let terms = chances.scan(1.0, |product, chance| {
        *product *= chance;
        // Probabilities fall with n, so the next quotient is below this one.
        Some((*product, chance))
    });
    add_up(f64::from(dupthresh + 1), terms)
}

/// Largest number of duplicate acknowledgements for one packet when packets 0, 1, 2... arrive in
/// `order`, which contains each packet once.
pub fn most_duplicates(order: &[usize]) -> u32 {
    let mut there = vec![false; order.len() + 1];
    let (mut awaited, mut duplicates, mut most) = (0, 0, 0);
    for &packet in order {
        there[packet] = true;
        if packet != awaited {
            duplicates += 1;
            most = most.max(duplicates);
            continue;
        }
        while there[awaited] {
            awaited += 1;
        }
        duplicates = 0;
    }
    most
}
