//! A whole Shoal network in one thread under a virtual clock: what must hold, whatever happens.
//!
//! In: [`Options`], above all a seed. Out: an [`Outcome`] with every rule that was broken, the
//! counters, and a hash of everything that happened. The same options give the same hash, so a
//! failure that a machine found at night is replayed by its seed.
//!
//! ```text
//!            +------------------------------ World ------------------------------+
//! seed ----> | plan: topology, files, cuts, crashes                 (plan.rs)    |
//!            |   Node (shoal_node + disk) --frames--> Wires --> Node             | --> Outcome
//!            |     (node.rs, rings.rs)     loss, delay, replays (wires.rs)       |
//!            |   checkers look at frames, routes and files      (check/)         |
//!            +-------------------------------------------------------------------+
//! ```
//!
//! The nodes are the very value that the daemon drives, keys and seals included; only sockets,
//! disks, the clock and the rings between workers are played. Nothing but bytes inside ciphertexts
//! depends on the operating system's randomness (ML-KEM), and the trace leaves those out. Where
//! relays mix, how long cells wait follows from such bytes: there the same options give another run
//! of the same network, which keeps the same rules.
//!
//! Invariant: but for planted faults, the simulator changes nothing inside a machine; it sees what
//! a shell sees, and what an observer of every wire sees. The rules it checks stand in `check/`,
//! one file each.

#![forbid(unsafe_code)]

mod check;
mod ciphers;
mod circuits;
mod clock;
mod diagram;
mod disk;
mod hops;
mod kem;
mod mixes;
mod nat;
mod node;
mod options;
mod outcome;
mod plan;
mod plant;
mod programs;
mod reach;
mod rings;
mod scenario;
mod secrets;
mod shell;
mod shrink;
mod wires;
mod world;

pub use check::Violation;
pub use nat::{Depends, Ports, Translator};
pub use options::{Faults, Options, Topology};
pub use outcome::{Called, Fate, FileOutcome, Mixed, Outcome, Packet, Step};
pub use plant::Plant;
pub use scenario::Scenario;
pub use shrink::{Shrunk, shrink};

/// Runs one simulated network from its start to the end of its plan, or until a rule breaks.
pub fn run(options: Options) -> Outcome {
    match options.cheap_ciphers {
        true => world::World::<ciphers::Cheap>::new(options).run(),
        false => world::World::<ciphers::Real>::new(options).run(),
    }
}
