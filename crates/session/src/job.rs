//! Expensive parts of handshakes, as values that another thread may run.
//!
//! A [`HandshakeTask`] holds all its input and touches nothing else. Its [`HandshakeTaskResult`]
//! goes back to the machine, which then applies its tables. Every job must come back as a
//! `HandshakeTaskResult`: until then its slot stays reserved.

use core::fmt;
use core::marker::PhantomData;
use std::collections::BTreeMap;
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, NetworkSecret, NetworkSecrets, PublicKey, SuiteSupport};
use shoal_crypto::{Secret, StandardCiphers, Suite};
use shoal_wire::{
    DropReason, FirstPayload, HandshakeReply, HandshakeRequest, Level, SecondPayload, TAG_LEN,
};
use shoal_wire::{VERSION, shake};
use zeroize::Zeroizing;

use crate::config::{Endpoint, PeerId, SessionConfig, SessionRole};
use crate::cookie::Cookie;
use crate::noise::{Initiator, NoisePattern, Responder, Split};
use crate::outer::{Lead, OuterSeal, OuterSeals, SharedOuterSeal};
use crate::removed::{self, FormerKeys, RemovedResult};
use crate::seen::HandshakeDigest;
use crate::slots::{LANES_MAX, SessionIndex};

/// Identifies a peer's handshake attempt, so that an answer to an earlier one is recognized as
/// stale.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct AttemptId {
    pub(crate) peer: PeerId,
    pub(crate) number: u64,
}

/// Data that all jobs of one machine share.
pub(crate) struct JobContext {
    pub(crate) role: SessionRole,
    pub(crate) identity: Identity,
    pub(crate) secrets: NetworkSecrets,
    /// Opens requests to this node.
    outer: OuterSeals,
    /// Opens requests that come over circuits.
    onion: OuterSeals,
    pub(crate) means: SuiteSupport,
    lanes: u8,
}

impl JobContext {
    pub(crate) fn new(
        config: &SessionConfig,
        identity: Identity,
        secrets: NetworkSecrets,
    ) -> JobContext {
        let own = identity.public();
        let outer = |role: SessionRole| OuterSeals::new(role.label(), &secrets, &own);
        JobContext {
            role: config.role,
            outer: outer(config.role),
            onion: outer(SessionRole::Onion),
            identity,
            means: config.means,
            lanes: config.lanes,
            secrets,
        }
    }

    /// Opens requests for sessions of this role.
    pub(crate) fn outer(&self, role: SessionRole) -> &OuterSeals {
        if role == SessionRole::Onion { &self.onion } else { &self.outer }
    }

    /// Network secret for the request of this turn, counted from 1. During a change of the secret
    /// the peer may know only one of the two. The third and fourth request of every four therefore
    /// use the other secret. In this way each endpoint of the peer gets both.
    pub(crate) fn secret_of_turn(&self, turn: u8) -> &NetworkSecret {
        let other = self.secrets.other.as_ref().filter(|_| matches!(turn % 4, 3 | 0));
        other.unwrap_or(&self.secrets.first)
    }

    /// Lanes to offer for a session. A session over a circuit has one, since the first worker holds
    /// all circuits.
    fn lanes(&self, role: SessionRole) -> u8 {
        if role == SessionRole::Onion { 1 } else { self.lanes }
    }
}

/// An index of this node, and the mask key that the peer needs to use it.
pub(crate) struct IndexGrant {
    pub(crate) index: SessionIndex,
    pub(crate) epoch: u32,
    pub(crate) mask: Secret<32>,
}

pub(crate) struct RequestJob {
    pub(crate) attempt: AttemptId,
    pub(crate) role: SessionRole,
    pub(crate) responder: PublicKey,
    /// Number of the request in the handshake.
    pub(crate) turn: u8,
    pub(crate) grant: IndexGrant,
    pub(crate) incarnation: u64,
    pub(crate) timestamp: u64,
    pub(crate) cookie: Cookie,
    pub(crate) lead: Lead,
    pub(crate) ephemeral: Secret<32>,
    /// The weakest level that this node accepts from the peer.
    pub(crate) weakest: Level,
}

/// The weakest level accepted from each peer, by its X25519 key. For other peers it is the
/// strongest level.
pub(crate) type Levels = BTreeMap<[u8; 32], Level>;

/// Origin of a request.
#[derive(Clone, Copy)]
pub(crate) struct RequestOrigin<E> {
    pub(crate) from: E,
    pub(crate) name: HandshakeDigest,
    /// True if the request came in parts.
    pub(crate) small: bool,
    /// True if the request is dated before this node's start.
    pub(crate) dated_before: bool,
    /// Value of the machine's `age` when the request came.
    pub(crate) age: u32,
}

pub(crate) struct ResponseJob<E> {
    pub(crate) asked: RequestOrigin<E>,
    pub(crate) lead: Lead,
    pub(crate) opener: SharedOuterSeal,
    pub(crate) cookie: Cookie,
    pub(crate) shown_s: u32,
    pub(crate) noise: Box<[u8; shake::FIRST_LEN]>,
    pub(crate) grant: IndexGrant,
    pub(crate) salt: [u8; shake::SALT_LEN],
    pub(crate) ephemeral: Secret<32>,
    pub(crate) levels: Arc<Levels>,
    /// Former members. Their requests get no response.
    pub(crate) former: Arc<FormerKeys>,
    /// True if a former member may be told.
    pub(crate) tells: bool,
}

pub(crate) struct FinishJob {
    pub(crate) attempt: AttemptId,
    pub(crate) role: SessionRole,
    /// True if the response came in parts.
    pub(crate) small: bool,
    pub(crate) initiator: Arc<Initiator>,
    pub(crate) noise: Box<[u8; shake::SECOND_LEN]>,
}

pub(crate) enum HandshakeWork<E> {
    Start(RequestJob),
    Answer(ResponseJob<E>),
    Finish(FinishJob),
}

/// One piece of handshake work, which takes 70 to 130 microseconds.
pub struct HandshakeTask<E, C = StandardCiphers> {
    pub(crate) common: Arc<JobContext>,
    pub(crate) work: HandshakeWork<E>,
    /// Randomness for the machine's generator.
    pub(crate) fresh: Option<Secret<32>>,
    pub(crate) ciphers: PhantomData<C>,
}

/// Result of a [`HandshakeTask`], for [`crate::Sessions::handle_done`].
pub struct HandshakeTaskResult<E> {
    pub(crate) outcome: HandshakeTaskOutcome<E>,
    pub(crate) fresh: Option<Secret<32>>,
}

pub(crate) struct RequestResult {
    pub(crate) attempt: AttemptId,
    pub(crate) role: SessionRole,
    pub(crate) grant: IndexGrant,
    pub(crate) lead: Lead,
    pub(crate) token: Lead,
    pub(crate) outer: OuterSeal,
    pub(crate) cookie: Cookie,
    /// Initiator, response key and frame; `None` if the peer's key is invalid.
    pub(crate) made: Option<(Initiator, Secret<32>, Vec<u8>)>,
}

pub(crate) struct ResponseResult {
    pub(crate) peer: [u8; 32],
    pub(crate) said: FirstPayload,
    pub(crate) suite: Suite,
    pub(crate) level: Level,
    pub(crate) lanes: u8,
    pub(crate) split: Split,
    pub(crate) frame: Vec<u8>,
    /// Network secret under which the request was sealed.
    pub(crate) secret: NetworkSecret,
}

/// Outcome of a request that opened.
pub(crate) enum RequestVerdict {
    Response(Box<ResponseResult>),
    /// The caller is a former member that may be told.
    Removed(Box<RemovedResult>),
}

pub(crate) struct FinishResult {
    pub(crate) said: SecondPayload,
    pub(crate) suite: Suite,
    pub(crate) split: Split,
}

pub(crate) enum HandshakeTaskOutcome<E> {
    Start(Box<RequestResult>),
    Answer {
        asked: RequestOrigin<E>,
        grant: IndexGrant,
        result: Result<RequestVerdict, DropReason>,
    },
    Finish {
        attempt: AttemptId,
        small: bool,
        result: Result<Box<FinishResult>, DropReason>,
    },
}

impl<E: Endpoint, C: Ciphers> HandshakeTask<E, C> {
    /// Runs the job. Only the bytes of the KEM depend on anything outside the job; see
    /// [`HandshakeTask::freshen`] and [`Ciphers::kem_pair`].
    pub fn run(self) -> HandshakeTaskResult<E> {
        let common = &*self.common;
        let outcome = match self.work {
            HandshakeWork::Start(start) => {
                HandshakeTaskOutcome::Start(Box::new(run_start::<C>(common, start)))
            }
            HandshakeWork::Answer(answer) => {
                let result = run_answer::<E, C>(common, &answer);
                let ResponseJob { asked, grant, .. } = answer;
                HandshakeTaskOutcome::Answer { asked, grant, result }
            }
            HandshakeWork::Finish(finish) => {
                let result = run_finish(common, &finish).map(Box::new);
                HandshakeTaskOutcome::Finish {
                    attempt: finish.attempt,
                    small: finish.small,
                    result,
                }
            }
        };
        HandshakeTaskResult { outcome, fresh: self.fresh }
    }
}

/// Prologue that both ends hash before the Noise messages. It has all that a request says outside
/// its Noise message, except the shown time, which is compared instead. Otherwise another member
/// could seal the message with other values and send it faster, so that the true request looked
/// like a replay.
fn prologue(role: SessionRole, lead: &Lead, cookie: &Cookie) -> Vec<u8> {
    [b"shoal ".as_slice(), &[VERSION], role.label(), lead, cookie].concat()
}

fn run_start<C: Ciphers>(common: &JobContext, start: RequestJob) -> RequestResult {
    let RequestJob { attempt, role, responder, grant, cookie, lead, ephemeral, .. } = start;
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
            HandshakeRequest { cookie, shown_s, noise }
                .write(&mut frame[shake::REQUEST_AT..end])
                .ok()?;
            outer.seal_request(&lead, &mut frame);
            let response_key = initiator.response_key();
            Some((initiator, response_key, frame))
        },
    );
    let token = outer.token(&lead);
    RequestResult { attempt, role, grant, lead, token, outer, cookie, made }
}

fn run_answer<E: Endpoint, C: Ciphers>(
    common: &JobContext,
    answer: &ResponseJob<E>,
) -> Result<RequestVerdict, DropReason> {
    let role = answer.asked.from.role(common.role);
    let dh = common.identity.dh();
    let bad = DropReason::BadHandshake;
    let prologue = prologue(role, &answer.lead, &answer.cookie);
    let responder =
        Responder::read(NoisePattern::Known, &prologue, dh, &answer.noise[..]).map_err(|_| bad)?;
    let said = FirstPayload::parse(&responder.payload).map_err(|_| DropReason::Malformed)?;
    if said.shown_s() != answer.shown_s {
        // A holder of the network's secret has put another date on a captured request.
        return Err(DropReason::Malformed);
    }
    let suite = common.means.agree(said_means(said.processor, said.suites)?);
    let suite = suite.ok_or(DropReason::BadVersion)?;
    let peer = responder.peer.ok_or(bad)?;
    if let Some(former) = answer.former.get(&peer) {
        // The second message is the expensive one, and is of no use here.
        if !answer.tells {
            return Err(DropReason::UnknownPeer);
        }
        let told = removed::answer(*former, role, answer, &responder)?;
        return Ok(RequestVerdict::Removed(Box::new(told)));
    }
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
    HandshakeReply::Response(noise).write(&mut frame[shake::REPLY_AT..end]).map_err(|_| bad)?;
    answer.opener.seal_reply(&answer.lead, &answer.salt, Some(&response_key), &mut frame);
    let secret = answer.opener.secret().clone();
    let made = ResponseResult { peer, said, suite, level, lanes, split, frame, secret };
    Ok(RequestVerdict::Response(Box::new(made)))
}

fn run_finish(common: &JobContext, finish: &FinishJob) -> Result<FinishResult, DropReason> {
    let dh = common.identity.dh();
    let (split, said) = finish
        .initiator
        .finish(Some(dh), &finish.noise[..])
        .map_err(|_| DropReason::BadHandshake)?;
    let said = SecondPayload::parse(&said).map_err(|_| DropReason::Malformed)?;
    // The responder may not choose: both ends compute the suite.
    let suite = common.means.agree(said_means(said.processor, said.suites)?);
    let suite = suite.filter(|&suite| suite as u8 == said.suite).ok_or(DropReason::BadVersion)?;
    if said.lanes > common.lanes(finish.role).min(lanes_max(said.level)) {
        return Err(DropReason::Malformed);
    }
    Ok(FinishResult { said, suite, split })
}

/// Means claimed by the other end of a handshake.
fn said_means(processor: u8, suites: u8) -> Result<SuiteSupport, DropReason> {
    SuiteSupport::from_bytes(processor, suites).ok_or(DropReason::Malformed)
}

/// Most encrypted lanes of a session. Below the highest level each has a plain twin.
fn lanes_max(level: Level) -> u8 {
    if level == Level::Encrypt { LANES_MAX } else { LANES_MAX / 2 }
}

impl<E, C> fmt::Debug for HandshakeTask<E, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.work {
            HandshakeWork::Start(_) => "Job(start)",
            HandshakeWork::Answer(_) => "Job(answer)",
            HandshakeWork::Finish(_) => "Job(finish)",
        })
    }
}

impl<E> fmt::Debug for HandshakeTaskResult<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Done")
    }
}
