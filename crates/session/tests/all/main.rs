//! All tests of sessions between machines in memory, as one program: each would compile them again.

#[path = "../world/mod.rs"]
mod world;

mod attack;
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
