//! All tests of relays in memory, as one program: each would compile the whole relay again.

#[allow(dead_code, reason = "the benchmark uses the rest")]
#[path = "../support/mod.rs"]
mod support;

mod cover;
mod direct;
mod endpoints;
mod hold;
mod hop_moves;
mod hops;
mod legs;
mod mirror;
mod mix;
mod narrow;
mod noise;
mod paths;
mod periods;
mod probes;
mod races;
mod relay;
mod rendezvous;
mod stun;
mod successors;
mod workers;
