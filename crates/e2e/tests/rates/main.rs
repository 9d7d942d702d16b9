//! Rates, memory and queues of real nodes: figures that other work on the machine disturbs.
//!
//! One program links all of Shoal once.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "starts real programs, on real sockets"
)]

mod hold;
mod memory;
mod queues;
mod workers;
