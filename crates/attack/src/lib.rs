//! An attacker who watches access links and compares what they carry, and how often it is right.
//!
//! In: a [`Scene`] (programs, strategy of the relays, cover, hosts, seconds) and seeds. Out: for
//! each seed a [`Network`], which is what an observer of all access links records.
//!
//! ```text
//! flow    what a program sends            \
//! cover   when a link's frames leave       +--> network: a Trace for each line and direction
//! path    relays that mix, and lines      /
//! mark    what an active attacker does to frames on their way
//! capture what was recorded on real links, in place of all these
//!
//! score       how much two links look like the ends of one flow, by one Attack: a Matrix
//! fusion      all attacks together; assignment: each link used once
//! members     an attacker without wires: round trips of questions to covered hosts
//! metrics     how often the attacker is right: Rates
//! experiment  chooses an attack on some seeds, and measures it on others
//! scenarios   the experiments that come with it, and what must hold of them
//!
//! hops        an observer of links whose addresses hop, who links them again
//! recognise   another attacker: a censor who asks which program some datagrams come from
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
pub mod hops;
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
mod trace;

pub use assignment::assign;
pub use cover::{Cover, Leak, QUEUE_MAX};
pub use delay::Density;
pub use experiment::{Candidate, Measured, Outcome, Setup, Trained, experiment};
pub use flow::{FLOW_CELLS_MAX, Plan, Traffic};
pub use fusion::{Example, Fusion};
pub use mark::{Code, Mark};
pub use matrix::Matrix;
pub use metrics::{Interval, Judged, Rates, factor, measure};
pub use network::{Access, Cost, FLOWS_MAX, Network, SECONDS_MAX, SEEDS_MAX, Scene, Wrong};
pub use path::{Line, MIXES_MAX};
pub use random::Draws;
pub use score::{Attack, Known, View};
pub use trace::{Frame, Span, Trace};
