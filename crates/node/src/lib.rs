//! The daemon: owns the operating system and drives the relay and edge machines.

#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod api;
pub mod config;
pub mod control;
pub mod hosts;
pub mod keys;
pub mod receive;
pub mod send;
pub mod socket;
