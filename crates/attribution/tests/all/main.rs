//! All tests of stamps, pools and openers, as one program.
//!
//! One program links all of Shoal once.

#[path = "../common/mod.rs"]
mod common;

mod epochs;
mod pool;
mod scheme;
mod seals;
mod stream;
mod vectors;
