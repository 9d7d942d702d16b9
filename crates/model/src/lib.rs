//! What mixes cost TCP: the formulas of a paper as printed and as they should read, and its
//! experiments in a small simulator.
//!
//! The paper is X. Fu, W. Yu, S. Jiang, S. Graham, Y. Guan, "TCP Performance in Flow-Based Mix
//! Networks: Modeling and Analysis". Numbers in brackets, such as (42), are its equations. A part
//! of it appeared at the IEEE Symposium on Dependable, Autonomic and Secure Computing, 2007.
//!
//! In: a [`Case`] (packets, line, mixes, duplicate threshold), seconds and a seed. Out: windows in
//! packets, throughput in packets a second, and a [`Report`] as text or for JSON.
//!
//! ```text
//! Case --> window, permutation: E(W) --> formulas: E(T) ---------.
//!   |                                                            +--> figures --> report --> text
//!   '----> reno: sender -> line -> mixes -> receiver and back ---'
//! ```
//!
//! 1. `window` has the paper's chances of a halved window, and `permutation` the exact ones.
//! 2. `formulas` makes a throughput of a window and a round trip.
//! 3. `reno` runs a Reno sender through mixes event by event.
//! 4. `figures` puts the paper's number, the formula and the run side by side.
//!
//! Invariant: no clock, no files, no randomness but the seed's. The same arguments give the same
//! bytes of text. docs/model.md says what is wrong in the paper, and why.

#![forbid(unsafe_code)]

mod burst;
mod case;
mod course;
mod figures;
mod filling;
mod findings;
mod law;
mod random;
mod report;
mod sweep;
mod text;

pub mod formulas;
pub mod permutation;
pub mod reno;
pub mod window;

pub use burst::calm_through_mix;
pub use case::{Case, DUPTHRESH_MAX, MIXES_MAX, SECONDS_MAX, SEEDS_MAX, Wrong};
pub use course::Course;
pub use figures::{FIGURES, Figure, Row, Runs, figure};
pub use filling::FillRow;
pub use findings::{Finding, findings};
pub use law::{Law, Spread};
pub use random::{permute, rng};
pub use report::{HoldRow, Report, WindowRow, windows};
pub use sweep::{
    BANDWIDTHS_BPS, DUPTHRESHES, Estimate, MIXES, estimate, over_bandwidth, over_dupthresh,
    over_mixes,
};
pub use text::render;
