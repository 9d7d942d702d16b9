//! The registrar's desk: decides who joins, with which name and address
//! (docs/design/membership.md).
//!
//! ```text
//! hello   --> door secret? --> cookie
//! knock   --> cookie? share? --> token or member? --> visit, welcome
//! request --> visit's channel --> granted before? token? approval? name, address
//!                             --> supplement: within the mandate? --> ledger --> answer, publish
//! ```
//!
//! Driving it: pass it datagrams, then drain [`Desk::poll_output`].
//!
//! Invariant: an answer or supplement leaves only after its record is in the ledger, and a grant is
//! found by the newcomer's key. So a loss, repetition or crash gives no machine two memberships for
//! one use of a token. No machine loses a membership that it was granted either.

mod endpoints;
mod entry;
mod error;
mod homes;
mod joins;
mod knocks;
mod members;
mod moves;
mod owner;
mod parts;
mod places;
mod pressure;
mod registrars;
mod routers;
mod sources;
mod tiers;
mod visits;
mod waiting;

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shoal_crypto::{Identity, PublicKey, Rng, Secret, VerifyKey};
use shoal_directory::{
    Directory, DoorEndpoint, Freshness, List, ListRejection, Mandate, MandateId, Member, Register,
    SecretNames, Step, StepEntry, StepRejection, Supplement,
};
use shoal_session::cookie::Cookies;
use shoal_wire::{DropReason, Time};

use crate::door::Door;
use crate::invite::DoorSecret;
use crate::ledger::{Ledger, LedgerTail};
use crate::messages::{Answer, Grant, PART_MAX, Refusal, Request};
use crate::record::{LedgerRecord, StepCause};
use crate::tokens::{TokenHash, Tokens};
use crate::words::Words;
pub use error::DeskError;
use knocks::KnockReplayCache;
use members::KeyReplacements;
use moves::MoveLog;
pub use owner::OwnerError;
use owner::{NodeChain, SigningHold};
use parts::KnockReassembly;
use pressure::FloodDetector;
use sources::DoorLimits;
use visits::{Bundle, EncodedChain, VisitId, VisitStage, Visits};
use waiting::WaitingRoom;

/// Maximum number of machines waiting for approval.
pub const WAITING_MAX: usize = 256;

pub trait Disk {
    /// Appends bytes, and returns once they survive a power failure.
    ///
    /// # Errors
    ///
    /// The bytes can't be stored; the file is unchanged.
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()>;
}

/// Settings of a desk.
pub struct DeskConfig {
    /// The registrar's keys. A mandate in the list names the public key.
    pub identity: Identity,
    /// The secret that seals handshakes at the door.
    pub door: DoorSecret,
    /// Former door secrets, which admit members only: a member may know only the secret of its
    /// invite.
    pub doors_before: Vec<DoorSecret>,
    /// The authority's key, which signs the list.
    pub authority: VerifyKey,
    /// The network secret that newcomers get.
    pub network_secret: Secret<32>,
    /// The registrar's endpoints, as invites name them.
    pub endpoints: Vec<DoorEndpoint>,
    /// Duration of memberships. The mandate's limit applies if it is shorter.
    pub membership: Duration,
    /// Maximum age of a list.
    pub staleness_max: Duration,
}

/// An action that the desk asks of its shell.
#[derive(Debug)]
pub enum DeskOutput {
    /// A datagram to send.
    Send(SocketAddr, Vec<u8>),
    /// A nonce for a router's endpoint, to send from another port than the door's.
    Try(SocketAddr, Vec<u8>),
    /// A supplement to pass to the network's nodes.
    Publish(Supplement),
}

/// A machine that waits for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingApproval {
    pub key: PublicKey,
    /// The invite's name, or the name that the machine asks for.
    pub name: Option<String>,
    /// The words that the machine's owner sees and can compare.
    pub words: Words,
}

/// Counters of a registrar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeskStats {
    /// Handshakes completed with a visit.
    pub welcomed: u64,
    /// Members admitted.
    pub joined: u64,
    /// Memberships renewed.
    pub renewed: u64,
    /// Members whose key was replaced.
    pub rekeyed: u64,
    /// Members that moved behind another router.
    pub moved: u64,
    /// Members that left.
    pub left: u64,
    /// Requests and knocks that were refused with a reason.
    pub refused: u64,
}

pub struct Desk<D> {
    config: DeskConfig,
    /// The current door comes first. Former doors behind it admit members only.
    doors: Vec<Door>,
    disk: D,
    /// The error of the last request that the desk could not fulfil.
    fault: Option<String>,
    end: LedgerTail,
    directory: Directory,
    mandate: Option<MandateId>,
    /// Steps of a mandate's chain that the node beside the registrar has.
    known: Option<NodeChain>,
    hold: SigningHold,
    /// The highest step number signed for a mandate.
    signed: Option<(MandateId, u64)>,
    list: Arc<[u8]>,
    /// Supplements, each preceded by its length (2 bytes).
    chain: EncodedChain,
    tokens: Tokens,
    /// Approved machines, and the name under which each was approved.
    approved: BTreeMap<(TokenHash, PublicKey), Option<String>>,
    denied: BTreeSet<(TokenHash, PublicKey)>,
    replaced: KeyReplacements,
    moves: MoveLog,
    /// The token by which each key became a member.
    joined_by: BTreeMap<PublicKey, TokenHash>,
    waiting: WaitingRoom,
    visits: Visits,
    knocks: KnockReplayCache,
    outputs: VecDeque<DeskOutput>,
    shares: DoorLimits,
    cookies: Cookies,
    parts: KnockReassembly,
    pressure: FloodDetector,
    drops: BTreeMap<DropReason, u64>,
    stats: DeskStats,
    rng: Rng,
}

impl<D: Disk> Desk<D> {
    /// Opens a desk and replays its ledger.
    ///
    /// # Errors
    ///
    /// The list or the ledger is unusable.
    pub fn open(
        config: DeskConfig,
        list: List,
        ledger: Ledger,
        disk: D,
        seed: [u8; 32],
        (now, unix_s): (Time, u64),
    ) -> Result<Desk<D>, DeskError> {
        let mut directory = Directory::new(config.staleness_max);
        let bytes = list.shared();
        directory.accept(now, unix_s, list)?;
        let mut rng = Rng::new(seed);
        let (cookies, hellos) = (rng.array(), Secret::new(rng.array()));
        let secrets = core::iter::once(&config.door).chain(&config.doors_before);
        let mut desk = Desk {
            doors: secrets.map(|door| Door::new(config.identity.clone(), door)).collect(),
            disk,
            fault: None,
            end: ledger.end,
            mandate: own_mandate(&directory, &config.identity),
            directory,
            known: None,
            hold: SigningHold::default(),
            signed: None,
            list: bytes,
            chain: EncodedChain::default(),
            tokens: Tokens::default(),
            approved: BTreeMap::new(),
            denied: BTreeSet::new(),
            replaced: KeyReplacements::default(),
            moves: MoveLog::default(),
            joined_by: BTreeMap::new(),
            waiting: WaitingRoom::default(),
            visits: Visits::default(),
            knocks: KnockReplayCache::default(),
            outputs: VecDeque::new(),
            shares: DoorLimits::new(now, hellos),
            cookies: Cookies::new(cookies, now),
            parts: KnockReassembly::default(),
            pressure: FloodDetector::default(),
            drops: BTreeMap::new(),
            stats: DeskStats::default(),
            rng,
            config,
        };
        for record in ledger.records {
            desk.recall(record, now, unix_s)?;
        }
        desk.set_chain();
        Ok(desk)
    }

    /// Replays a record of the ledger.
    fn recall(&mut self, record: LedgerRecord, now: Time, unix_s: u64) -> Result<(), DeskError> {
        match record {
            LedgerRecord::Issued { token, unix_s, terms } => {
                // A full table made the same decision when the token was issued.
                let _ = self.tokens.issue(unix_s, token, terms);
            }
            LedgerRecord::Withdrawn(token) => {
                self.tokens.withdraw(&token);
            }
            LedgerRecord::Denied { token, key } => {
                self.denied.insert((token, key));
            }
            LedgerRecord::Learnt { supplement } => self.recall_learnt(&supplement, now, unix_s),
            LedgerRecord::Step { cause, key, supplement } => {
                if let StepCause::Joined(token) = cause {
                    self.tokens.spend(&token);
                    self.joined_by.insert(key, token);
                }
                let step = Supplement::open(&self.config.identity.public(), &supplement);
                let number = Supplement::peek(&supplement).map_or(0, |(_, number)| number);
                let wrong = |why: String| DeskError::Chain { number, why };
                let step = step.map_err(|error| wrong(error.to_string()))?;
                self.signed = Some((step.step().mandate, number));
                match cause {
                    StepCause::Rekeyed => {
                        self.replaced.note(key, step.step());
                        self.moves.rekeyed(&key, step.step());
                    }
                    StepCause::Moved => {
                        // No router has the number 0.
                        let left = self.member_by_half(&key.dh).map_or(0, |m| m.address.router);
                        self.moves.note(&key, left, step.step().issued_unix_s);
                    }
                    _ => {}
                }
                match self.directory.supplement(now, unix_s.max(step.step().issued_unix_s), &step) {
                    Ok(_) => {}
                    // A step under an earlier mandate: the authority took its members over.
                    Err(StepRejection::Foreign) => {}
                    Err(why) => return Err(wrong(why.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Applies a newer list. Returns false if the list is not newer.
    ///
    /// # Errors
    ///
    /// The list is refused; the current one stays in force.
    pub fn set_list(
        &mut self,
        list: List,
        (now, unix_s): (Time, u64),
    ) -> Result<bool, ListRejection> {
        let bytes = list.shared();
        let is_new = self.directory.accept(now, unix_s, list)?;
        if is_new {
            self.list = bytes;
            self.mandate = own_mandate(&self.directory, &self.config.identity);
            // Steps that a narrowed mandate no longer allows leave the chain.
            self.set_chain();
        }
        Ok(is_new)
    }

    /// Names of the network's secrets, from the list in force.
    pub fn secret_names(&self) -> Option<SecretNames> {
        self.directory.list()?.content().secrets
    }

    /// Sets the network secret that newcomers get.
    pub fn set_network_secret(&mut self, secret: Secret<32>) {
        self.config.network_secret = secret;
    }

    /// Counters since the start.
    pub fn stats(&self) -> DeskStats {
        self.stats
    }

    /// Dropped datagrams, by reason.
    pub fn drops(&self) -> &BTreeMap<DropReason, u64> {
        &self.drops
    }

    /// The registrar's mandate and its members, if the list has a mandate for the registrar.
    pub fn register(&self) -> Option<&Register> {
        self.directory.register(&self.mandate?)
    }

    /// Version of the list in force.
    pub fn list_version(&self) -> u64 {
        self.directory.list().map_or(0, |list| list.content().version)
    }

    /// Seconds since the list in force was signed.
    pub fn list_age_s(&self, now: Time, unix_s: u64) -> Option<u64> {
        self.directory.age_s(now, unix_s)
    }

    /// Freshness of the list in force.
    pub fn standing(&self, now: Time, unix_s: u64) -> Freshness {
        self.directory.standing(now, unix_s)
    }

    /// Issued tokens.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Machines that wait for approval.
    pub fn waiting(&self) -> impl Iterator<Item = &PendingApproval> {
        self.waiting.all()
    }

    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// The next action for the shell.
    pub fn poll_output(&mut self) -> Option<DeskOutput> {
        self.outputs.pop_front()
    }

    fn write(&mut self, record: &LedgerRecord) -> Result<(), OwnerError> {
        let (bytes, end) = self.end.append(record);
        let written = self.disk.append(&bytes).map_err(OwnerError::Disk);
        self.fault = written.as_ref().err().map(OwnerError::to_string);
        written?;
        self.end = end;
        Ok(())
    }

    /// Signs the next step of the chain, writes it to the ledger, applies it and publishes it.
    fn step(
        &mut self,
        cause: StepCause,
        key: PublicKey,
        entries: Vec<StepEntry>,
        (now, unix_s): (Time, u64),
    ) -> Result<(), OwnerError> {
        let register = self.register().ok_or(OwnerError::NoMandate)?;
        self.check_known()?;
        if self.hold.is_early {
            return Err(OwnerError::Early);
        }
        let last = register.step(register.len());
        let issued_unix_s = unix_s.max(last.map_or(0, |last| last.step().issued_unix_s));
        owner::check_clock(issued_unix_s, unix_s)?;
        let step = Step {
            mandate: register.id(),
            number: register.len() + 1,
            previous: register.head(),
            issued_unix_s,
            entries,
        };
        let supplement = step.sign(&self.config.identity).map_err(|_| OwnerError::Descriptor)?;
        self.directory.check_supplement(now, unix_s, &supplement)?;
        self.write(&LedgerRecord::Step { cause, key, supplement: supplement.bytes().to_vec() })?;
        self.signed = Some((supplement.step().mandate, supplement.step().number));
        self.directory.supplement(now, unix_s, &supplement)?;
        self.chain.push(&supplement);
        self.outputs.push_back(DeskOutput::Publish(supplement));
        Ok(())
    }

    fn answer(&mut self, at: (Time, u64), id: VisitId, request: Request) -> Answer {
        let done = match request {
            Request::Join { wish, sign, signature } => self.join(at, id, wish, sign, &signature),
            Request::Router { request, sign, signature } => {
                self.join_router(at, id, (request, sign), &signature)
            }
            Request::Registrar { request, sign, signatures } => {
                self.join_registrar(at, id, (*request, sign), &signatures)
            }
            Request::Reach(nonce) => self.reach(at, id, nonce),
            Request::Await => self.settle(at, id),
            Request::Part { offset } => return self.part(at.0, id, offset),
            Request::Renew => self.renew(at, id),
            Request::Leave => self.leave(at, id),
            Request::Move { router } => self.move_host(at, id, router),
            Request::Rekey { key, signatures } => self.rekey(at, id, key, &signatures),
        };
        match &done {
            Ok(Answer::Trying) => {}
            Ok(Answer::Waiting) => self.visits.progress(id, at.0, VisitStage::Waiting),
            Ok(_) => self.visits.progress(id, at.0, VisitStage::Answered),
            Err(_) => {}
        }
        done.unwrap_or_else(Answer::Refused)
    }

    /// Members whose names, keys and addresses are taken. Members in the list and of other
    /// registrars count even after they expire; this registrar's own count until they expire, even
    /// if revoked.
    fn holders(&self, unix_s: u64) -> impl Iterator<Item = &Member> {
        let listed = self.directory.list().into_iter().flat_map(|list| &list.content().members);
        let given = self.directory.registers().flat_map(move |register| {
            let is_own = Some(register.id()) == self.mandate;
            register.members().filter(move |held| !is_own || held.expires_unix_s > unix_s)
        });
        listed.map(|signed| &signed.member).chain(given)
    }

    /// The descriptor, with a version one above the former descriptor of its key.
    fn newer(&self, member: Member) -> Member {
        let before = self.register().and_then(|r| r.members().find(|m| m.key == member.key));
        Member { version: before.map_or(1, |before| before.version + 1), ..member }
    }

    /// The registrar's mandate, if the mandate is valid and the list is fresh.
    fn mandate_now(&self, now: Time, unix_s: u64) -> Result<Mandate, Refusal> {
        if self.directory.standing(now, unix_s) != Freshness::Fresh {
            return Err(Refusal::Registrar);
        }
        let mandate = self.register().map(Register::mandate).ok_or(Refusal::MandateEnded)?;
        let ends = mandate.until_unix_s <= unix_s;
        if ends { Err(Refusal::MandateEnded) } else { Ok(mandate.clone()) }
    }

    fn is_removed(&self, key: &PublicKey) -> bool {
        let list = self.directory.list();
        list.is_some_and(|list| list.content().is_revoked(key))
            || self.register().is_some_and(|register| register.is_removed(key))
    }

    /// The grant of a member; `None` for a key that is no member's. The visit may then fetch list
    /// and chain.
    fn granted(
        &mut self,
        id: VisitId,
        key: &PublicKey,
        (now, unix_s): (Time, u64),
    ) -> Option<Answer> {
        let mandate = self.mandate?;
        let member = self.directory.members(now, unix_s).find(|member| member.key == *key)?;
        let grant = Grant {
            unix_s,
            name: member.name.clone(),
            address: member.address,
            expires_unix_s: member.expires_unix_s,
            ipv4: member.ipv4,
            secret: self.config.network_secret.clone(),
            mandate: mandate.0,
            list_len: u32::try_from(self.list.len()).ok()?,
            chain_len: u32::try_from(self.chain.len()).ok()?,
        };
        let bundle = Bundle::new(self.list.clone(), &self.chain);
        self.visits.get_mut(id)?.bundle = Some(bundle);
        Some(Answer::Granted(Box::new(grant)))
    }

    fn part(&mut self, now: Time, id: VisitId, offset: u32) -> Answer {
        let bundle = self.visits.get_mut(id).and_then(|visit| visit.bundle.as_ref());
        let part = |bundle: &Bundle| bundle.part(&self.chain, offset as usize, PART_MAX);
        let bytes = bundle.map(part).unwrap_or_default();
        if bytes.is_empty() {
            return Answer::Refused(Refusal::Registrar);
        }
        self.visits.progress(id, now, VisitStage::Part(offset));
        Answer::Part { offset, bytes }
    }
}

/// The mandate in the list that names this registrar.
fn own_mandate(directory: &Directory, identity: &Identity) -> Option<MandateId> {
    let own = |register: &&Register| register.mandate().key == identity.public();
    directory.registers().find(own).map(Register::id)
}
