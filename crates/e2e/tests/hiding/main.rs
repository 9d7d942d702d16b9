//! Circuits, mixes, cover and addresses that shift, between real nodes.
//!
//! One program links all of Shoal once.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "starts real programs, on real sockets"
)]

mod circuit_packets;
mod circuits;
mod cover;
mod hidden;
mod moving;
mod shift_faults;
mod shift_gateways;
mod shift_prefix;
