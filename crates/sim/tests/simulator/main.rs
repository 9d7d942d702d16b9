//! All simulated networks that tests run, as one program: each would link all of Shoal again.

mod cover;
mod hops;
mod losses;
mod mixes;
mod narrow;
mod planted;
mod regressions;
mod secrets;
mod seeds;
mod translators;
