//! The expensive parts of handshakes, as values that another thread may run.
//!
//! A [`Job`] holds all it needs and touches nothing else; its [`Done`] goes back to the machine,
//! which then decides on everything that its tables know. Every job taken must come back as a
//! `Done`: a slot is held for it until then.

use core::fmt;
use core::marker::PhantomData;
use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, Means, NetworkSecret, NetworkSecrets, PublicKey};
use shoal_crypto::{Secret, Standard, Suite};
use shoal_wire::{DropReason, FirstPayload, Level, Reply, Request, SecondPayload, TAG_LEN};
use shoal_wire::{VERSION, shake};
use zeroize::Zeroizing;

use crate::config::{Config, Endpoint, PeerId, Role};
use crate::cookie::Cookie;
use crate::noise::{Initiator, Pattern, Responder, Split};
use crate::outer::{Lead, Opener, OuterSeal, OuterSeals};
use crate::seen::Name;
use crate::slots::{Index, LANES_MAX};

/// Names the attempt of a peer that a job works for: an answer to an earlier attempt is stale.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttemptId {
    pub(crate) peer: PeerId,
    pub(crate) number: u64,
}

/// What all jobs of one machine share.
pub(crate) struct Common {
    pub(crate) role: Role,
    pub(crate) identity: Identity,
    pub(crate) secrets: NetworkSecrets,
    /// Opens requests to this node.
    outer: OuterSeals,
    /// Opens those that come over circuits.
    onion: OuterSeals,
    pub(crate) means: Means,
    lanes: u8,
}

impl Common {
    pub(crate) fn new(config: &Config, identity: Identity, secrets: NetworkSecrets) -> Common {
        let own = identity.public();
        let outer = |role: Role| OuterSeals::new(role.label(), &secrets, &own);
        Common {
            role: config.role,
            outer: outer(config.role),
            onion: outer(Role::Onion),
            identity,
            means: config.means,
            lanes: config.lanes,
            secrets,
        }
    }

    /// Opens requests for sessions of this use.
    pub(crate) fn outer(&self, role: Role) -> &OuterSeals {
        if role == Role::Onion { &self.onion } else { &self.outer }
    }

    /// The secret for the request of this turn, counted from 1. While the network's secret changes
    /// the peer may know but one of the two, and not the one that handshakes begin with: the third
    /// and fourth of every four go under the other, so that each place of the peer's gets both.
    pub(crate) fn secret_of_turn(&self, turn: u8) -> &NetworkSecret {
        let other = self.secrets.other.as_ref().filter(|_| matches!(turn % 4, 3 | 0));
        other.unwrap_or(&self.secrets.first)
    }

    /// Lanes to offer for a session. Over a circuit it is one: the first worker has all circuits.
    fn lanes(&self, role: Role) -> u8 {
        if role == Role::Onion { 1 } else { self.lanes }
    }
}

/// Our index, and the mask key that the peer needs to use it.
pub(crate) struct Grant {
    pub(crate) index: Index,
    pub(crate) epoch: u32,
    pub(crate) mask: Secret<32>,
}

pub(crate) struct Start {
    pub(crate) attempt: AttemptId,
    pub(crate) role: Role,
    pub(crate) responder: PublicKey,
    /// Which request of the handshake it is.
    pub(crate) turn: u8,
    pub(crate) grant: Grant,
    pub(crate) incarnation: u64,
    pub(crate) timestamp: u64,
    pub(crate) cookie: Cookie,
    pub(crate) lead: Lead,
    pub(crate) ephemeral: Secret<32>,
    /// The weakest level that we take with this peer.
    pub(crate) weakest: Level,
}

/// The weakest level that we take with each peer, by its X25519 key; with others it is the
/// strongest.
pub(crate) type Levels = BTreeMap<[u8; 32], Level>;

/// Where a request came from, and how.
#[derive(Clone, Copy)]
pub(crate) struct Asked<E> {
    pub(crate) from: E,
    pub(crate) name: Name,
    /// It came in parts.
    pub(crate) small: bool,
    /// It is dated before we started.
    pub(crate) dated_before: bool,
    /// How often all keys had been forgotten when it came.
    pub(crate) age: u32,
}

pub(crate) struct Answer<E> {
    pub(crate) asked: Asked<E>,
    pub(crate) lead: Lead,
    pub(crate) opener: Opener,
    pub(crate) cookie: Cookie,
    pub(crate) shown_s: u32,
    pub(crate) noise: Box<[u8; shake::FIRST_LEN]>,
    pub(crate) grant: Grant,
    pub(crate) salt: [u8; shake::SALT_LEN],
    pub(crate) ephemeral: Secret<32>,
    pub(crate) levels: Arc<Levels>,
}

pub(crate) struct Finish {
    pub(crate) attempt: AttemptId,
    pub(crate) role: Role,
    /// The response came in parts.
    pub(crate) small: bool,
    pub(crate) initiator: Arc<Initiator>,
    pub(crate) noise: Box<[u8; shake::SECOND_LEN]>,
}

pub(crate) enum Work<E> {
    Start(Start),
    Answer(Answer<E>),
    Finish(Finish),
}

/// One piece of handshake work: 70 to 130 microseconds.
pub struct Job<E, C = Standard> {
    pub(crate) common: Arc<Common>,
    pub(crate) work: Work<E>,
    /// For the machine's generator.
    pub(crate) fresh: Option<Secret<32>>,
    pub(crate) ciphers: PhantomData<C>,
}

/// What a [`Job`] found out, for [`crate::Sessions::handle_done`].
pub struct Done<E> {
    pub(crate) outcome: Outcome<E>,
    pub(crate) fresh: Option<Secret<32>>,
}

pub(crate) struct Started {
    pub(crate) attempt: AttemptId,
    pub(crate) role: Role,
    pub(crate) grant: Grant,
    pub(crate) lead: Lead,
    pub(crate) token: Lead,
    pub(crate) outer: OuterSeal,
    pub(crate) cookie: Cookie,
    /// With the key of the response; `None` when the peer's key is no key.
    pub(crate) made: Option<(Initiator, Secret<32>, Vec<u8>)>,
}

pub(crate) struct Answered {
    pub(crate) peer: [u8; 32],
    pub(crate) said: FirstPayload,
    pub(crate) suite: Suite,
    pub(crate) level: Level,
    pub(crate) lanes: u8,
    pub(crate) split: Split,
    pub(crate) frame: Vec<u8>,
    /// What the request was sealed under.
    pub(crate) secret: NetworkSecret,
}

pub(crate) struct Finished {
    pub(crate) said: SecondPayload,
    pub(crate) suite: Suite,
    pub(crate) split: Split,
}

pub(crate) enum Outcome<E> {
    Start(Box<Started>),
    Answer { asked: Asked<E>, grant: Grant, result: Result<Box<Answered>, DropReason> },
    Finish { attempt: AttemptId, small: bool, result: Result<Box<Finished>, DropReason> },
}

impl<E: Endpoint, C: Ciphers> Job<E, C> {
    /// Does the work. Nothing but the bytes of the KEM depends on anything outside the job; see
    /// [`Job::freshen`] and [`Ciphers::kem_pair`].
    pub fn run(self) -> Done<E> {
        let common = &*self.common;
        let outcome = match self.work {
            Work::Start(start) => Outcome::Start(Box::new(run_start::<C>(common, start))),
            Work::Answer(answer) => {
                let result = run_answer::<E, C>(common, &answer).map(Box::new);
                let Answer { asked, grant, .. } = answer;
                Outcome::Answer { asked, grant, result }
            }
            Work::Finish(finish) => {
                let result = run_finish(common, &finish).map(Box::new);
                Outcome::Finish { attempt: finish.attempt, small: finish.small, result }
            }
        };
        Done { outcome, fresh: self.fresh }
    }
}

/// What both ends hash before the Noise messages. It holds all that a request says outside of its
/// Noise message, but for the shown time, which is compared instead. So no other member can seal
/// the message anew, be faster, and have the true request taken for a replay.
fn prologue(role: Role, lead: &Lead, cookie: &Cookie) -> Vec<u8> {
    [b"shoal ".as_slice(), &[VERSION], role.label(), lead, cookie].concat()
}

fn run_start<C: Ciphers>(common: &Common, start: Start) -> Started {
    let Start { attempt, role, responder, grant, cookie, lead, ephemeral, .. } = start;
    let secret = common.secret_of_turn(start.turn);
    let outer = OuterSeal::new(role.label(), secret, &responder);
    let said = FirstPayload {
        index: grant.index.raw(),
        mask_key: *grant.mask.expose(),
        incarnation: start.incarnation,
        timestamp: start.timestamp,
        weakest: start.weakest,
        suites: common.means.suites.bits(),
        processor: common.means.processor as u8,
        lanes: common.lanes(role),
    };
    let shown = said;
    let said = Zeroizing::new(said.to_bytes());
    let dh = common.identity.dh();
    let prologue = prologue(role, &lead, &cookie);
    let (key, ephemeral) = (&responder.dh, ephemeral.expose());
    let made = Initiator::start::<C>(&prologue, Some(dh), key, ephemeral, &said[..]).ok().and_then(
        |(initiator, noise)| {
            let noise = noise.as_slice().try_into().ok()?;
            let mut frame = vec![0; role.handshake_len()];
            let end = frame.len() - TAG_LEN;
            let shown_s = shown.shown_s();
            Request { cookie, shown_s, noise }.write(&mut frame[shake::REQUEST_AT..end]).ok()?;
            outer.seal_request(&lead, &mut frame);
            let response_key = initiator.response_key();
            Some((initiator, response_key, frame))
        },
    );
    let token = outer.token(&lead);
    Started { attempt, role, grant, lead, token, outer, cookie, made }
}

fn run_answer<E: Endpoint, C: Ciphers>(
    common: &Common,
    answer: &Answer<E>,
) -> Result<Answered, DropReason> {
    let role = answer.asked.from.role(common.role);
    let dh = common.identity.dh();
    let bad = DropReason::BadHandshake;
    let prologue = prologue(role, &answer.lead, &answer.cookie);
    let responder =
        Responder::read(Pattern::Known, &prologue, dh, &answer.noise[..]).map_err(|_| bad)?;
    let said = FirstPayload::parse(&responder.payload).map_err(|_| DropReason::Malformed)?;
    if said.shown_s() != answer.shown_s {
        // Somebody who has the network's secret dated a captured request anew.
        return Err(DropReason::Malformed);
    }
    let suite = common.means.agree(said_means(said.processor, said.suites)?);
    let suite = suite.ok_or(DropReason::BadVersion)?;
    let peer = responder.peer.ok_or(bad)?;
    let weakest = answer.levels.get(&peer).copied().unwrap_or_default();
    let level = said.weakest.min(weakest);
    let lanes = said.lanes.min(common.lanes(role)).min(lanes_max(level));
    let reply = SecondPayload {
        index: answer.grant.index.raw(),
        mask_key: *answer.grant.mask.expose(),
        level,
        suite: suite as u8,
        processor: common.means.processor as u8,
        lanes,
        suites: common.means.suites.bits(),
    };
    let reply = Zeroizing::new(reply.to_bytes());
    let response_key = responder.response_key();
    let (split, noise) =
        responder.finish::<C>(answer.ephemeral.expose(), &reply[..]).map_err(|_| bad)?;
    let mut frame = vec![0; role.handshake_len()];
    let end = frame.len() - TAG_LEN;
    let noise = noise.as_slice().try_into().map_err(|_| bad)?;
    Reply::Response(noise).write(&mut frame[shake::REPLY_AT..end]).map_err(|_| bad)?;
    answer.opener.seal_reply(&answer.lead, &answer.salt, Some(&response_key), &mut frame);
    let secret = answer.opener.secret().clone();
    Ok(Answered { peer, said, suite, level, lanes, split, frame, secret })
}

fn run_finish(common: &Common, finish: &Finish) -> Result<Finished, DropReason> {
    let dh = common.identity.dh();
    let (split, said) = finish
        .initiator
        .finish(Some(dh), &finish.noise[..])
        .map_err(|_| DropReason::BadHandshake)?;
    let said = SecondPayload::parse(&said).map_err(|_| DropReason::Malformed)?;
    // Whoever answers may not choose: both ends find the same suite.
    let suite = common.means.agree(said_means(said.processor, said.suites)?);
    let suite = suite.filter(|&suite| suite as u8 == said.suite).ok_or(DropReason::BadVersion)?;
    if said.lanes > common.lanes(finish.role).min(lanes_max(said.level)) {
        return Err(DropReason::Malformed);
    }
    Ok(Finished { said, suite, split })
}

/// Means that the other end of a handshake told.
fn said_means(processor: u8, suites: u8) -> Result<Means, DropReason> {
    Means::from_bytes(processor, suites).ok_or(DropReason::Malformed)
}

/// Encrypted lanes of a session at most: below the highest level each has a plain twin.
fn lanes_max(level: Level) -> u8 {
    if level == Level::Encrypt { LANES_MAX } else { LANES_MAX / 2 }
}

impl<E, C> fmt::Debug for Job<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.work {
            Work::Start(_) => "Job(start)",
            Work::Answer(_) => "Job(answer)",
            Work::Finish(_) => "Job(finish)",
        })
    }
}

impl<E> fmt::Debug for Done<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}
