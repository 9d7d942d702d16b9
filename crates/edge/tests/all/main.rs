//! All tests of hosts in memory, as one program.
//!
//! One program links all of Shoal once.

mod circuits;
mod direct;
mod hosts;
mod meet;
mod pair;
mod workers;
