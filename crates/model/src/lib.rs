//! Effect of mixes on TCP: a paper's formulas, as printed and corrected, and its experiments in a
//! small simulator.
//!
//! The paper is X. Fu, W. Yu, S. Jiang, S. Graham, Y. Guan, "TCP Performance in Flow-Based Mix
//! Networks: Modeling and Analysis". Numbers in brackets, such as (42), are its equations. A part
//! of the paper appeared at the IEEE Symposium on Dependable, Autonomic and Secure Computing, 2007.
//!
//! Input: a [`TcpExperiment`] (packets, line, mixes, duplicate threshold), seconds and a seed.
//! Output: windows in packets, throughput in packets per second, and a [`ModelReport`] as text or
//! for JSON.
//!
//! ```text
//! Case --> window, permutation: E(W) --> formulas: E(T) ---------.
//!   |                                                            +--> figures --> report --> text
//!   '----> reno: sender -> line -> mixes -> receiver and back ---'
//! ```
//!
//! 1. `window` computes the paper's probabilities of a halved window, `permutation` the exact ones.
//! 2. `formulas` derives throughput from a window and a round trip.
//! 3. `reno` simulates a Reno sender through mixes.
//! 4. `figures` shows the paper's number, the formula and the simulation side by side.
//!
//! Invariant: no clock, no files, and no randomness except the seed's. Equal arguments give
//! identical text. docs/evidence/model.md lists the errors of the paper and their reasons.

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
pub use case::{DUPTHRESH_MAX, MIXES_MAX, ModelError, SECONDS_MAX, SEEDS_MAX, TcpExperiment};
pub use course::TimeSeries;
pub use figures::{FIGURES, FigureRow, FigureTable, RunParameters, figure};
pub use filling::FillRow;
pub use findings::{PaperError, findings};
pub use law::{BatchingStrategy, MeanAndVariance};
pub use random::{permute, rng};
pub use report::{HoldRow, ModelReport, WindowRow, windows};
pub use sweep::{
    BANDWIDTHS_BPS, DUPTHRESHES, FormulaEstimate, MIXES, estimate, over_bandwidth, over_dupthresh,
    over_mixes,
};
pub use text::render;
