//! All tests of relays in memory, as one program. Separate programs would each link the whole
//! relay.

#[allow(dead_code, reason = "the benchmark uses the rest")]
#[path = "../support/mod.rs"]
mod support;

mod cover;
mod direct;
mod endpoints;
mod hold;
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
mod shift_moves;
mod shifts;
mod stun;
mod successors;
mod uplinks;
mod workers;
