//! All tests that run simulated networks, as one program: separate ones would each link all of
//! Shoal.

mod cover;
mod losses;
mod mixes;
mod narrow;
mod planted;
mod regressions;
mod secrets;
mod seeds;
mod shifts;
mod translators;
mod uplinks;
