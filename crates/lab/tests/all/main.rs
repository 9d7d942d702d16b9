//! The program shoal-lab as people call it, and memory as an allocator counts it, as one program.
//!
//! One program links all of Shoal once.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    unsafe_code,
    reason = "starts real programs"
)]

mod command_line;
mod shift_memory;
