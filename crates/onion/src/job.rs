//! Public-key work of circuit set-up, as values that another thread may run.
//!
//! A [`SetupJob`] holds all its input and touches nothing else. Its [`SetupJobResult`] goes back to
//! the machine, which then decides by its tables at that time. Every job must come back.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, Secret, StandardCiphers, SuiteSupport, kdf};
use shoal_session::noise::Initiator;
use shoal_session::outer::SharedOuterSeal;
use shoal_wire::leg::{CellShape, FIRST_LEN, HopOffer, SECOND_LEN};
use shoal_wire::{Address, CircuitId, DropReason, HopDelay};

use crate::layer::LayerSecrets;
use crate::setup::{self, Bond, CreateAnswer, CreateCell};

/// Data that all jobs of one machine share.
pub(crate) struct SetupContext {
    pub(crate) identity: Identity,
    pub(crate) means: SuiteSupport,
}

/// Names one handshake of one of this node's circuits, so that a result of an earlier one is
/// recognized as stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SetupAttempt {
    pub(crate) circuit: CircuitId,
    pub(crate) number: u64,
}

/// Content of the origin's first message to a hop, without the leg secret.
pub(crate) struct FirstMessageInput {
    /// The hop's X25519 key.
    pub(crate) responder: [u8; 32],
    pub(crate) ephemeral: Secret<32>,
    pub(crate) shape: CellShape,
    pub(crate) place: u8,
    /// Lifetime in units of ten seconds.
    pub(crate) lifetime: u8,
    pub(crate) mixing: HopDelay,
}

/// A first message, and the state needed to read its answer.
pub(crate) type FirstMessageState = (Initiator, Box<[u8; FIRST_LEN]>);

pub(crate) enum SetupWork {
    /// Makes the first message to the first hop.
    Begin { attempt: SetupAttempt, leg: Secret<32>, first: FirstMessageInput },
    /// Reads a hop's answer, and makes the first message to the hop behind it.
    Extend {
        attempt: SetupAttempt,
        initiator: Initiator,
        noise: Box<[u8; SECOND_LEN]>,
        next: Option<FirstMessageInput>,
    },
    /// Makes the answer to a create cell for this node.
    Answer {
        /// The asking node, and the own address that it asked if that is not the first one.
        ends: (Address, Option<Address>),
        opener: SharedOuterSeal,
        create: CreateCell,
        bond: Bond,
        ephemeral: Secret<32>,
    },
}

/// One piece of set-up work, which takes 150 to 350 microseconds.
pub struct SetupJob<C = StandardCiphers> {
    pub(crate) common: Arc<SetupContext>,
    pub(crate) work: SetupWork,
    /// Number of times that the machine had forgotten all keys.
    pub(crate) age: u64,
    /// Randomness for the machine's generator.
    pub(crate) fresh: Option<Secret<32>>,
    pub(crate) ciphers: PhantomData<C>,
}

/// Result of a [`SetupJob`], for [`crate::Onion::handle_done`].
pub struct SetupJobResult {
    pub(crate) outcome: SetupJobOutcome,
    pub(crate) age: u64,
    pub(crate) fresh: Option<Secret<32>>,
}

pub(crate) enum SetupJobOutcome {
    Begin {
        attempt: SetupAttempt,
        made: Result<FirstMessageState, DropReason>,
    },
    Extend {
        attempt: SetupAttempt,
        made: Result<(LayerSecrets, Option<FirstMessageState>), DropReason>,
    },
    Answer {
        ends: (Address, Option<Address>),
        opener: SharedOuterSeal,
        made: Result<Box<CreateAnswer>, DropReason>,
    },
}

impl<C: Ciphers> SetupJob<C> {
    /// Mixes fresh randomness of the operating system into all that the job draws, and into all
    /// that the machine draws after its result. The thread that runs the job must call this just
    /// before.
    pub fn freshen(&mut self, fresh: &[u8; 32]) {
        let ephemeral = match &mut self.work {
            SetupWork::Begin { first, .. } => Some(&mut first.ephemeral),
            SetupWork::Extend { next, .. } => next.as_mut().map(|first| &mut first.ephemeral),
            SetupWork::Answer { ephemeral, .. } => Some(ephemeral),
        };
        if let Some(old) = ephemeral {
            *old = Secret::new(kdf(fresh, "ephemeral", &[old.expose()]));
        }
        self.fresh = Some(Secret::new(kdf(fresh, "machine", &[])));
    }

    /// Runs the job. Only the bytes of the KEM depend on anything outside the job; see
    /// [`SetupJob::freshen`] and [`Ciphers::kem_pair`].
    pub fn run(self) -> SetupJobResult {
        let common = &*self.common;
        let outcome = match self.work {
            SetupWork::Begin { attempt, leg, first } => {
                SetupJobOutcome::Begin { attempt, made: begin::<C>(common, &leg, &first) }
            }
            SetupWork::Extend { attempt, initiator, noise, next } => {
                let made = setup::finish(&initiator, &noise[..], common.means);
                let made = made.and_then(|secrets| {
                    let leg = secrets.next_leg();
                    let next = next.map(|first| begin::<C>(common, &leg, &first)).transpose()?;
                    Ok((secrets, next))
                });
                SetupJobOutcome::Extend { attempt, made }
            }
            SetupWork::Answer { ends, opener, create, bond, ephemeral } => {
                let own = common.identity.dh();
                let made = create.answer::<C>(own, bond, common.means, &ephemeral);
                SetupJobOutcome::Answer { ends, opener, made: made.map(Box::new) }
            }
        };
        SetupJobResult { outcome, age: self.age, fresh: self.fresh }
    }
}

fn begin<C: Ciphers>(
    common: &SetupContext,
    leg: &Secret<32>,
    first: &FirstMessageInput,
) -> Result<FirstMessageState, DropReason> {
    let FirstMessageInput { responder, ephemeral, shape, place, lifetime, mixing } = first;
    let offer = HopOffer {
        leg: *leg.expose(),
        suites: common.means.suites.bits(),
        processor: common.means.processor as u8,
        shape: *shape,
        place: *place,
        lifetime: *lifetime,
        mixing: *mixing,
    };
    setup::begin::<C>(responder, &offer, ephemeral)
}

impl<C> fmt::Debug for SetupJob<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.work {
            SetupWork::Begin { .. } => "Job(begin)",
            SetupWork::Extend { .. } => "Job(extend)",
            SetupWork::Answer { .. } => "Job(answer)",
        })
    }
}

impl fmt::Debug for SetupJobResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}
