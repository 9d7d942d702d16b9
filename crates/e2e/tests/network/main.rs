//! Links, files, IP traffic and commands of real nodes.
//!
//! One program links all of Shoal once.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "starts real programs, on real sockets"
)]

mod addresses;
mod bad_input;
mod clocks;
mod control;
mod demo;
mod direct;
mod endpoints;
mod files;
mod firewall;
mod flood;
mod forged;
mod forged_errors;
mod gateways;
mod handshakes;
mod interface;
mod lab;
mod offers;
mod ports;
mod ports_mapped;
mod reload;
mod rendezvous;
mod restart;
mod rights;
mod scripts;
mod segment;
mod small_path;
mod start;
mod stun;
mod transfers;
mod tutorial;
mod two_routers;
mod unit;
mod uplinks;
