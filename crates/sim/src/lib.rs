//! A whole Shoal network in one thread under a virtual clock, with checks of the rules that must
//! always hold.
//!
//! Input: [`SimulationOptions`], above all a seed. Output: an [`SimulationOutcome`] with every rule
//! that was broken, the counters, and a hash of all events. Equal options give equal hashes, so a
//! failure is replayed by its seed.
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
//! The nodes are the same values that the daemon drives, with their keys and seals. Only sockets,
//! disks, the clock and the rings between workers are simulated. Only bytes inside ciphertexts
//! depend on the operating system's randomness (ML-KEM), and the trace omits them. If relays mix,
//! the delays of cells follow from such bytes. Equal options then give another run of the same
//! network, under the same rules.
//!
//! Invariant: except for planted faults, the simulator changes nothing inside a machine. It sees
//! only what a shell sees and what an observer of all wires sees. Each rule has its own file in
//! `check/`.

#![forbid(unsafe_code)]

mod check;
mod ciphers;
mod circuits;
mod clock;
mod diagram;
mod disk;
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
mod shifts;
mod shrink;
mod uplinks;
mod wires;
mod world;

pub use check::Violation;
pub use nat::{NatDependence, NatRules, PortAssignment};
pub use options::{RouterTopology, SimulationOptions, WireFaults};
pub use outcome::{
    CallTimes, FileOutcome, FrameFate, LogEntry, SentFrames, SimulationOutcome, StrategyWaits,
};
pub use plant::InjectedFault;
pub use scenario::SavedRun;
pub use shrink::{ShrunkRun, shrink};

/// Runs one simulated network to the end of its plan, or until a rule breaks.
pub fn run(options: SimulationOptions) -> SimulationOutcome {
    match options.cheap_ciphers {
        true => world::SimulatedWorld::<ciphers::CheapCiphers>::new(options).run(),
        false => world::SimulatedWorld::<ciphers::RealCiphers>::new(options).run(),
    }
}
