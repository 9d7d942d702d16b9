//! An attacker that watches access links and compares their traffic, and how often it is right.
//!
//! In: a [`Scene`] (programs, strategy of the relays, cover, hosts, seconds) and seeds. Out: for
//! each seed a [`ObservedNetwork`]: the record of an observer of all access links.
//!
//! ```text
//! flow    cells that a program sends      \
//! cover   times of a link's frames         +--> network: a Trace for each line and direction
//! path    relays that mix, and lines      /
//! mark    changes that an active attacker makes to frames
//! capture records of real links, in place of all these
//!
//! score       similarity of two links to the ends of one flow, by one Attack: a Matrix
//! fusion      all attacks together
//! assignment  best one-to-one pairing of links
//! members     an attacker without wires: round trips of questions to covered hosts
//! metrics     rates at which the attacker is right: Rates
//! experiment  chooses an attack on some seeds, and measures it on others
//! scenarios   the experiments of this crate, with conditions on their results
//!
//! shifts      an observer that links the old and new addresses of shifting links
//! recognise   a censor that classifies datagrams by program
//! ```
//!
//! Invariant: no clock, no files, no randomness but the seed's. The same arguments give the same
//! figures. Delays are those of `shoal_mix`, drawn as relays draw them.

#![forbid(unsafe_code)]

mod assignment;
pub mod capture;
mod cover;
mod delay;
mod experiment;
mod flow;
mod fusion;
mod mark;
mod matrix;
mod members;
mod metrics;
mod network;
mod path;
mod random;
pub mod recognise;
pub mod scenarios;
pub mod score;
pub mod shifts;
mod trace;

pub use assignment::assign;
pub use cover::{CoverSchedule, Leak, QUEUE_MAX};
pub use delay::DelayDensity;
pub use experiment::{
    AttackMeasurement, AttackRanking, AttackResult, ExperimentSetup, TrainedAttacker, experiment,
};
pub use flow::{FLOW_CELLS_MAX, FlowTimes, ProgramKind};
pub use fusion::{Fusion, PairExample};
pub use mark::{MarkCode, MarkKind};
pub use matrix::Matrix;
pub use metrics::{Interval, LabelledScores, SuccessRates, factor, measure};
pub use network::{
    AccessTraces, Cost, FLOWS_MAX, ObservedNetwork, SECONDS_MAX, SEEDS_MAX, Scene, SceneError,
};
pub use path::{LineDelay, MIXES_MAX};
pub use random::Draws;
pub use score::{AttackMethod, PriorKnowledge, VantagePoint};
pub use trace::{LineTrace, ObservedFrame, Span};
