//! All tests of the mix, as one program.
//!
//! One program links all of Shoal once.

mod law;
mod mix;
mod path;
