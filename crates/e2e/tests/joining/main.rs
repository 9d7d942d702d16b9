//! Machines that join, members that change, keys that rotate: the programs as people start them.
//!
//! One program links all of Shoal once.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "starts real programs, on real sockets"
)]

mod authority;
mod away;
mod first_machine;
mod hosts;
mod invites;
mod joining;
mod lists;
mod mandates;
mod members;
mod moved;
mod names;
mod one_machine;
mod operator;
mod presets;
mod registrar;
mod registrars;
mod rejoin;
mod rekey;
mod rekey_unit;
mod removed;
mod revoked;
mod rotate;
mod rotate_attacks;
mod rotate_late;
mod rotate_tcp;
mod routers;
mod two_routers;
