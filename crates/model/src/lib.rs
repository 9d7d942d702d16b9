//! What mixes cost TCP: the formulas of a paper as printed and as they should read, and its
//! experiments in a small simulator.
//!
//! The paper is X. Fu, W. Yu, S. Jiang, S. Graham, Y. Guan, "TCP Performance in Flow-Based Mix
//! Networks: Modeling and Analysis". Numbers in brackets, such as (42), are its equations. A part
//! of it appeared at the IEEE Symposium on Dependable, Autonomic and Secure Computing, 2007.
//!
//! In: a [`Case`] (packets, line, mixes, duplicate threshold). Out: windows in packets, throughput
//! in packets a second. Runs take seconds and a seed too.
//!
//! 1. `window` has the paper's chances of a halved window, and `permutation` the exact ones.
//! 2. `formulas` makes a throughput of a window and a round trip.
//! 3. `reno` runs a Reno sender through mixes event by event.
//!
//! Invariant: no clock, no files, no randomness but the seed's.

#![forbid(unsafe_code)]

mod burst;
mod case;
mod law;
mod random;
mod sweep;

pub mod formulas;
pub mod permutation;
pub mod reno;
pub mod window;

pub use burst::calm_through_mix;
pub use case::{Case, DUPTHRESH_MAX, MIXES_MAX, SECONDS_MAX, SEEDS_MAX, Wrong};
pub use law::{Law, Spread};
pub use random::{permute, rng};
pub use sweep::{
    BANDWIDTHS_BPS, DUPTHRESHES, Estimate, MIXES, estimate, over_bandwidth, over_dupthresh,
    over_mixes,
};
