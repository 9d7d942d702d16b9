//! What nodes of a simulation do wrong on purpose, so that its checkers are seen to notice.
//!
//! A machine asks its ciphers, which are a type ([`Aead::flaw`](crate::Aead::flaw)). Those of real
//! networks have none, which is known when a program is compiled: neither a flaw nor the question
//! is in it, and no setting can bring one back. A feature of a crate could not promise that: cargo
//! turns it on for all programs of a workspace that are built together. The pool of a mix, which
//! has no ciphers, is told when it is made. Why so: docs/decisions/planted-faults.md.

/// What a node does wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    /// A relay passes on cells whose layer does not verify.
    LayerUnverified,
    /// A relay does not look whether a cell passed before.
    LayerReplayed,
    /// A relay seals cells that come back without looking whether their number sealed before.
    BackReplayed,
    /// An origin seals two cells under one number.
    NumberTwice,
    /// The origin and the last relay leave the layer that they share open.
    LayerOpen,
    /// A relay leaves what it opened in the cell that goes on.
    NoFiller,
    /// A node never forgets a circuit.
    CircuitKept,
    /// A node sends set-up cells in shorter frames.
    LegShort,
    /// A host sends what is for a hidden host by its address.
    PastCircuit,
    /// Control cells skip the mix.
    ControlUnmixed,
    /// Cells wait for three quarters of the mean that they were to wait for.
    MixHasty,
    /// A mix lets cells go one quantum too soon.
    MixEarly,
    /// A mix keeps cells for one quantum too long.
    MixLate,
    /// A mix lets cells go in the order in which they came.
    MixInOrder,
    /// The permutation of a mix leaves no cell in its place.
    MixMoves,
    /// A mix that is full lets a cell go at once.
    MixOverflows,
    /// A mix keeps as many cells of one node as come.
    MixNoShare,
    /// A host sends no cover beside what it has to send.
    CoverPauses,
    /// A router uses only slots for which it has something.
    CoverPassesGaps,
    /// A slot takes one frame more where more wait.
    CoverExtra,
    /// Reports leave when they are due instead of in slots.
    CoverReports,
    /// The addresses of all links hop by one secret.
    HopOneSecret,
    /// The addresses of a link hop by a secret of the link, anew with each session.
    HopOfLink,
    /// A node takes in frames at addresses of any epoch that was.
    HopKept,
    /// A node takes in frames at the addresses in use alone.
    HopOnlyNow,
    /// The end that leads moves when it calls.
    HopAtCall,
    /// The end that follows moves when it answers.
    HopAtAnswer,
    /// An end never goes back to the fixed endpoint by itself.
    HopStays,
    /// All pairs of neighbours meet at addresses of one secret.
    MeetOneSecret,
}
