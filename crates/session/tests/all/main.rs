//! All tests of sessions between machines in memory, as one program, so that they compile once.

#[path = "../world/mod.rs"]
mod world;

mod attack;
mod former;
mod idle;
mod levels;
mod member;
mod pair;
mod race;
mod removed;
mod renew;
mod replay;
mod secrets;
mod shard;
mod via;
