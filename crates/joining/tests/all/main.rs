//! All tests of joining in memory, as one program.
//!
//! One program links all of Shoal once.

#[path = "../world/mod.rs"]
mod world;

mod door;
mod joining;
mod registrar;
mod registrars;
mod rekey;
mod routers;
mod vectors;
