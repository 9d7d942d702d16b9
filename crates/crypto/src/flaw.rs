//! Deliberate faults of simulated nodes, which prove that the simulator's checkers notice them.
//!
//! A machine asks its ciphers, which are a type parameter, for its fault
//! ([`Aead::flaw`](crate::Aead::flaw)). The ciphers of real networks have none, and the compiler
//! knows it. A real program thus contains neither a fault nor the check for one, and no setting can
//! add one. A cargo feature could not promise that: cargo turns it on for all programs of a
//! workspace that are built together. A mix has no ciphers, so it gets its fault as an argument.
//! Reasons: docs/design/decisions/planted-faults.md.

/// A deliberate fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlantedFault {
    /// A relay forwards cells whose layer does not verify.
    LayerUnverified,
    /// A relay does not check if a cell came before.
    LayerReplayed,
    /// A relay seals cells on their way back without checking if their number was used before.
    BackReplayed,
    /// An origin seals two cells under one number.
    NumberTwice,
    /// The origin and the last relay leave their shared layer unsealed.
    LayerOpen,
    /// A relay leaves its opened layer in the cell that it forwards.
    NoFiller,
    /// A node never forgets a circuit.
    CircuitKept,
    /// A node sends set-up cells in shorter frames.
    LegShort,
    /// A host sends data for a hidden host to that host's address, past the circuit.
    PastCircuit,
    /// Control cells bypass the mix.
    ControlUnmixed,
    /// Cells wait for three quarters of the intended mean.
    MixHasty,
    /// A mix releases cells one quantum too early.
    MixEarly,
    /// A mix releases cells one quantum too late.
    MixLate,
    /// A mix releases cells in the order in which they arrived.
    MixInOrder,
    /// The permutation of a mix never leaves a cell at its position.
    MixMoves,
    /// A full mix releases a cell at once.
    MixOverflows,
    /// A mix accepts any number of cells from one node.
    MixNoShare,
    /// A host sends no cover while it has data to send.
    CoverPauses,
    /// A router uses only those slots for which it has data.
    CoverPassesGaps,
    /// A slot sends one extra frame if more wait.
    CoverExtra,
    /// Reports leave when they are due instead of in slots.
    CoverReports,
    /// The addresses of all links change by one secret.
    ShiftOneSecret,
    /// The addresses of a link change by one secret of the link, restarted with each session.
    ShiftOfLink,
    /// A node accepts frames at addresses of any past epoch.
    ShiftKept,
    /// A node accepts frames only at the addresses in use.
    ShiftOnlyNow,
    /// The leading end changes its address when it calls.
    ShiftAtCall,
    /// The following end changes its address when it answers.
    ShiftAtAnswer,
    /// An end never returns to the fixed endpoint by itself.
    ShiftStays,
    /// All pairs of neighbours use one rendezvous secret.
    MeetOneSecret,
}
