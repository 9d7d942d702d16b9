//! The public-key work of set-ups, as values that another thread may run.
//!
//! A [`Job`] holds all it needs and touches nothing else; its [`Done`] goes back to the machine,
//! which then decides by what its tables know at that time. Every job taken must come back.

use core::fmt;
use core::marker::PhantomData;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, Means, Secret, Standard, kdf};
use shoal_session::noise::Initiator;
use shoal_session::outer::Opener;
use shoal_wire::leg::{FIRST_LEN, Offer, SECOND_LEN, Shape};
use shoal_wire::{Address, CircuitId, DropReason, Mixing};

use crate::layer::LayerSecrets;
use crate::setup::{self, Answer, Bond, Create};

/// What all jobs of one machine share.
pub(crate) struct Common {
    pub(crate) identity: Identity,
    pub(crate) means: Means,
}

/// Names one handshake of one circuit of ours: the result of an earlier one is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) circuit: CircuitId,
    pub(crate) number: u64,
}

/// What the origin's first message to a hop is made of, beside the leg secret.
pub(crate) struct First {
    /// The hop's X25519 key.
    pub(crate) responder: [u8; 32],
    pub(crate) ephemeral: Secret<32>,
    pub(crate) shape: Shape,
    pub(crate) place: u8,
    /// In units of ten seconds.
    pub(crate) lifetime: u8,
    pub(crate) mixing: Mixing,
}

/// A first message, and what is needed to read its answer.
pub(crate) type Begun = (Initiator, Box<[u8; FIRST_LEN]>);

pub(crate) enum Work {
    /// The first message to the first hop.
    Begin { attempt: Attempt, leg: Secret<32>, first: First },
    /// A hop's answer, and the first message to the hop behind it.
    Extend {
        attempt: Attempt,
        initiator: Initiator,
        noise: Box<[u8; SECOND_LEN]>,
        next: Option<First>,
    },
    /// The answer to a create cell of this node.
    Answer { from: Address, opener: Opener, create: Create, bond: Bond, ephemeral: Secret<32> },
}

/// One piece of set-up work: 150 to 350 microseconds.
pub struct Job<C = Standard> {
    pub(crate) common: Arc<Common>,
    pub(crate) work: Work,
    /// How often the machine had forgotten all keys.
    pub(crate) age: u64,
    /// For the machine's generator.
    pub(crate) fresh: Option<Secret<32>>,
    pub(crate) ciphers: PhantomData<C>,
}

/// What a [`Job`] found out, for [`crate::Onion::handle_done`].
pub struct Done {
    pub(crate) outcome: Outcome,
    pub(crate) age: u64,
    pub(crate) fresh: Option<Secret<32>>,
}

pub(crate) enum Outcome {
    Begin { attempt: Attempt, made: Result<Begun, DropReason> },
    Extend { attempt: Attempt, made: Result<(LayerSecrets, Option<Begun>), DropReason> },
    Answer { from: Address, opener: Opener, made: Result<Box<Answer>, DropReason> },
}

impl<C: Ciphers> Job<C> {
    /// Mixes fresh randomness of the operating system into all that the job draws, and all that the
    /// machine draws after its result. To be called by the thread that runs the job, just before.
    pub fn freshen(&mut self, fresh: &[u8; 32]) {
        let ephemeral = match &mut self.work {
            Work::Begin { first, .. } => Some(&mut first.ephemeral),
            Work::Extend { next, .. } => next.as_mut().map(|first| &mut first.ephemeral),
            Work::Answer { ephemeral, .. } => Some(ephemeral),
        };
        if let Some(old) = ephemeral {
            *old = Secret::new(kdf(fresh, "ephemeral", &[old.expose()]));
        }
        self.fresh = Some(Secret::new(kdf(fresh, "machine", &[])));
    }

    /// Does the work. Nothing but the bytes of the KEM depends on anything outside the job; see
    /// [`Job::freshen`] and [`Ciphers::kem_pair`].
    pub fn run(self) -> Done {
        let common = &*self.common;
        let outcome = match self.work {
            Work::Begin { attempt, leg, first } => {
                Outcome::Begin { attempt, made: begin::<C>(common, &leg, &first) }
            }
            Work::Extend { attempt, initiator, noise, next } => {
                let made = setup::finish(&initiator, &noise[..], common.means);
                let made = made.and_then(|secrets| {
                    let leg = secrets.next_leg();
                    let next = next.map(|first| begin::<C>(common, &leg, &first)).transpose()?;
                    Ok((secrets, next))
                });
                Outcome::Extend { attempt, made }
            }
            Work::Answer { from, opener, create, bond, ephemeral } => {
                let own = common.identity.dh();
                let made = create.answer::<C>(own, bond, common.means, &ephemeral);
                Outcome::Answer { from, opener, made: made.map(Box::new) }
            }
        };
        Done { outcome, age: self.age, fresh: self.fresh }
    }
}

fn begin<C: Ciphers>(
    common: &Common,
    leg: &Secret<32>,
    first: &First,
) -> Result<Begun, DropReason> {
    let First { responder, ephemeral, shape, place, lifetime, mixing } = first;
    let offer = Offer {
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

impl<C> fmt::Debug for Job<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.work {
            Work::Begin { .. } => "Job(begin)",
            Work::Extend { .. } => "Job(extend)",
            Work::Answer { .. } => "Job(answer)",
        })
    }
}

impl fmt::Debug for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}
