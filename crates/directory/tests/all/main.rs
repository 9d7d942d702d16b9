//! All tests of lists, chains and their exchange, as one program.
//!
//! One program links all of Shoal once.

mod chains;
mod exchange;
mod handing;
mod vectors;
