//! All tests of the model, as one program.
//!
//! One program links all of Shoal once.

mod formulas;
mod laws;
mod report;
mod runs;
