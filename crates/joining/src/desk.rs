//! The registrar's desk: who may come in, under which name and address (docs/joining.md section 2).
//!
//! ```text
//! hello   --> door secret? --> cookie
//! knock   --> cookie? share? --> token or member? --> visit, welcome
//! request --> visit's channel --> granted before? token? approval? name, address
//!                             --> supplement: within the mandate? --> ledger --> answer, publish
//! ```
//!
//! Driving it: hand over datagrams, then take everything from [`Desk::poll_output`].
//!
//! Invariant: nothing is answered or published before its record is in the ledger, and a grant is
//! found by the newcomer's key. So whatever is lost, repeated or interrupted, no machine gets two
//! memberships for one use of a token, and none that was granted one is shut out.

mod entry;
mod error;
mod knocks;
mod members;
mod owner;
mod parts;
mod places;
mod pressure;
mod sources;
mod visits;
mod waiting;

use core::net::SocketAddr;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use shoal_crypto::{Identity, PublicKey, Rng, Secret, VerifyKey};
use shoal_directory::{
    Carrier, Directory, Entry, List, Mandate, MandateId, Member, Refused, Register, SecretNames,
    Standing, Step, Supplement, Unapplied,
};
use shoal_session::cookie::Cookies;
use shoal_wire::{DropReason, Time};

use crate::door::Door;
use crate::invite::DoorSecret;
use crate::ledger::{End, Ledger};
use crate::messages::{Answer, Grant, JOIN_LABEL, PART_MAX, Refusal, Request, Wish};
use crate::record::{Cause, Record};
use crate::tokens::{Ended, TokenHash, Tokens};
use crate::words::Words;
pub use error::DeskError;
use knocks::Knocks;
use members::Replaced;
pub use owner::OwnerError;
use owner::{Hold, Known};
use parts::Parts;
use pressure::Pressure;
use sources::Shares;
use visits::{Bundle, Chain, Progress, VisitId, Visits};
use waiting::WaitingRoom;

/// Machines that may wait for approval at once.
pub const WAITING_MAX: usize = 256;

/// Store of the ledger.
pub trait Disk {
    /// Appends bytes, and returns once they outlast a loss of power.
    ///
    /// # Errors
    ///
    /// They don't; the file is as before.
    fn append(&mut self, bytes: &[u8]) -> std::io::Result<()>;
}

/// What makes a desk.
pub struct DeskConfig {
    /// The registrar's keys; a mandate of the list names them.
    pub identity: Identity,
    /// What its door is sealed with.
    pub door: DoorSecret,
    /// Former secrets of the door: members who know no other are still let in.
    pub doors_before: Vec<DoorSecret>,
    /// Signs the list.
    pub authority: VerifyKey,
    /// What newcomers get.
    pub network_secret: Secret<32>,
    /// Where the registrar can be called, for invites.
    pub endpoints: Vec<SocketAddr>,
    /// How long memberships last, if the mandate allows it.
    pub membership: Duration,
    /// How old a list may be.
    pub staleness_max: Duration,
}

/// What a desk asks for.
#[derive(Debug)]
pub enum Output {
    /// A datagram.
    Send(SocketAddr, Vec<u8>),
    /// A supplement for the network's nodes.
    Publish(Supplement),
}

/// Somebody who waits for approval.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The key that wants to join.
    pub key: PublicKey,
    /// The name that it wishes for.
    pub name: Option<String>,
    /// What its owner sees, too.
    pub words: Words,
}

/// What a registrar counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeskStats {
    /// Handshakes that were answered.
    pub welcomed: u64,
    /// Members admitted.
    pub joined: u64,
    /// Memberships renewed.
    pub renewed: u64,
    /// Members that have another key.
    pub rekeyed: u64,
    /// Members that left.
    pub left: u64,
    /// Requests that got a reason instead.
    pub refused: u64,
}

/// See the module's documentation.
pub struct Desk<D> {
    config: DeskConfig,
    /// The door that is open to all, and former doors, which are open to members.
    doors: Vec<Door>,
    disk: D,
    /// Why the desk could not do its part when it last tried.
    fault: Option<String>,
    end: End,
    directory: Directory,
    mandate: Option<MandateId>,
    /// Part of a mandate that the node beside the registrar has.
    known: Option<Known>,
    hold: Hold,
    /// The highest number that was signed for a mandate.
    signed: Option<(MandateId, u64)>,
    list: Arc<[u8]>,
    /// Supplements, each behind its length (2 bytes).
    chain: Chain,
    tokens: Tokens,
    /// Machines that may join, and the name that each was approved by.
    approved: BTreeMap<(TokenHash, PublicKey), Option<String>>,
    denied: BTreeSet<(TokenHash, PublicKey)>,
    replaced: Replaced,
    /// By which invite a key became a member's.
    joined_by: BTreeMap<PublicKey, TokenHash>,
    waiting: WaitingRoom,
    visits: Visits,
    knocks: Knocks,
    outputs: VecDeque<Output>,
    shares: Shares,
    cookies: Cookies,
    parts: Parts,
    pressure: Pressure,
    drops: BTreeMap<DropReason, u64>,
    stats: DeskStats,
    rng: Rng,
}

impl<D: Disk> Desk<D> {
    /// A desk that goes on where its ledger ends.
    ///
    /// # Errors
    ///
    /// List or ledger can't be used.
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
            hold: Hold::default(),
            signed: None,
            list: bytes,
            chain: Chain::default(),
            tokens: Tokens::default(),
            approved: BTreeMap::new(),
            denied: BTreeSet::new(),
            replaced: Replaced::default(),
            joined_by: BTreeMap::new(),
            waiting: WaitingRoom::default(),
            visits: Visits::default(),
            knocks: Knocks::default(),
            outputs: VecDeque::new(),
            shares: Shares::new(now, hellos),
            cookies: Cookies::new(cookies, now),
            parts: Parts::default(),
            pressure: Pressure::default(),
            drops: BTreeMap::new(),
            stats: DeskStats::default(),
            rng,
            config,
        };
        for record in ledger.records {
            desk.recall(record, now, unix_s)?;
        }
        Ok(desk)
    }

    /// Takes in a record of the ledger.
    fn recall(&mut self, record: Record, now: Time, unix_s: u64) -> Result<(), DeskError> {
        match record {
            Record::Issued { token, unix_s, terms } => {
                // The table was as full when the token was given out.
                let _ = self.tokens.issue(unix_s, token, terms);
            }
            Record::Withdrawn(token) => {
                self.tokens.withdraw(&token);
            }
            Record::Denied { token, key } => {
                self.denied.insert((token, key));
            }
            Record::Step { cause, key, supplement } => {
                if let Cause::Joined(token) = cause {
                    self.tokens.spend(&token);
                    self.joined_by.insert(key, token);
                }
                let step = Supplement::open(&self.config.identity.public(), &supplement);
                let number = Supplement::peek(&supplement).map_or(0, |(_, number)| number);
                let wrong = |why: String| DeskError::Chain { number, why };
                let step = step.map_err(|error| wrong(error.to_string()))?;
                self.signed = Some((step.step().mandate, number));
                if cause == Cause::Rekeyed {
                    self.replaced.note(key, step.step());
                }
                match self.directory.supplement(now, unix_s.max(step.step().issued_unix_s), &step) {
                    Ok(_) => self.chain.push(&step),
                    // Steps of a mandate before this one: its members are the authority's own.
                    Err(Unapplied::Foreign) => {}
                    Err(why) => return Err(wrong(why.to_string())),
                }
            }
        }
        Ok(())
    }

    /// Takes in a newer list.
    ///
    /// # Errors
    ///
    /// It is refused, and the one before stays.
    pub fn set_list(&mut self, list: List, (now, unix_s): (Time, u64)) -> Result<bool, Refused> {
        let bytes = list.shared();
        let is_new = self.directory.accept(now, unix_s, list)?;
        if is_new {
            self.list = bytes;
            self.mandate = own_mandate(&self.directory, &self.config.identity);
            // What a changed mandate cuts off is no part of the chain any more.
            let steps = self.register().map(Register::steps).unwrap_or_default().to_vec();
            self.chain.set(&steps);
        }
        Ok(is_new)
    }

    /// What the list in force says of the network's secrets.
    pub fn secret_names(&self) -> Option<SecretNames> {
        self.directory.list()?.content().secrets
    }

    /// Has newcomers get this secret of the network.
    pub fn set_network_secret(&mut self, secret: Secret<32>) {
        self.config.network_secret = secret;
    }

    /// What happened since the start.
    pub fn stats(&self) -> DeskStats {
        self.stats
    }

    /// Datagrams that had no effect, by reason.
    pub fn drops(&self) -> &BTreeMap<DropReason, u64> {
        &self.drops
    }

    /// The registrar's mandate and its members, if the list has it.
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

    /// Whether the list in force counts.
    pub fn standing(&self, now: Time, unix_s: u64) -> Standing {
        self.directory.standing(now, unix_s)
    }

    /// Tokens that were given out.
    pub fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// Who waits for approval.
    pub fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.waiting.all()
    }

    /// Store of the ledger.
    pub fn disk_mut(&mut self) -> &mut D {
        &mut self.disk
    }

    /// Store of the ledger.
    pub fn disk(&self) -> &D {
        &self.disk
    }

    /// What is to be done next.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn write(&mut self, record: &Record) -> Result<(), OwnerError> {
        let (bytes, end) = self.end.append(record);
        let written = self.disk.append(&bytes).map_err(OwnerError::Disk);
        self.fault = written.as_ref().err().map(OwnerError::to_string);
        written?;
        self.end = end;
        Ok(())
    }

    /// Signs the next step of the chain, writes it down, puts it in force and publishes it.
    fn step(
        &mut self,
        cause: Cause,
        key: PublicKey,
        entries: Vec<Entry>,
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
        self.write(&Record::Step { cause, key, supplement: supplement.bytes().to_vec() })?;
        self.signed = Some((supplement.step().mandate, supplement.step().number));
        self.directory.supplement(now, unix_s, &supplement)?;
        self.chain.push(&supplement);
        self.outputs.push_back(Output::Publish(supplement));
        Ok(())
    }

    fn answer(&mut self, at: (Time, u64), id: VisitId, request: Request) -> Answer {
        let done = match request {
            Request::Join { wish, sign, signature } => self.join(at, id, wish, sign, &signature),
            Request::Await => self.settle(at, id),
            Request::Part { offset } => return self.part(at.0, id, offset),
            Request::Renew => self.renew(at, id),
            Request::Leave => self.leave(at, id),
            Request::Rekey { key, signatures } => self.rekey(at, id, key, &signatures),
        };
        match &done {
            Ok(Answer::Waiting) => self.visits.progress(id, at.0, Progress::Waiting),
            Ok(_) => self.visits.progress(id, at.0, Progress::Answered),
            Err(_) => {}
        }
        done.unwrap_or_else(Answer::Refused)
    }

    fn join(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        wish: Wish,
        sign: [u8; 32],
        signature: &[u8; 64],
    ) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let key = PublicKey { dh: visit.half, sign };
        let said = [JOIN_LABEL, visit.channel.binding()].concat();
        if key.is_weak() || !key.verify(&said, signature) {
            return Err(Refusal::Key);
        }
        (visit.key, visit.wish) = (Some(key), wish);
        self.settle(at, id)
    }

    /// Decides about a visitor who wants to join.
    fn settle(&mut self, (now, unix_s): (Time, u64), id: VisitId) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let (token, words, source) = (visit.token, visit.channel.words(), visit.source());
        let (key, wish) = (visit.key.ok_or(Refusal::Key)?, visit.wish.clone());
        let mandate = self.mandate_now(now, unix_s)?;
        if self.is_removed(&key) || self.is_anothers(&key, unix_s) {
            return Err(Refusal::Key);
        }
        if let Some(answer) = self.granted(id, &key, (now, unix_s)) {
            return Ok(answer);
        }
        let terms = match self.tokens.standing(unix_s, &token) {
            Some(terms) => terms.map_err(ended)?.clone(),
            None => return Err(Refusal::Withdrawn),
        };
        let approved = self.approved.get(&(token, key)).cloned();
        if terms.approve && approved.is_none() {
            if self.denied.contains(&(token, key)) {
                return Err(Refusal::NotApproved);
            }
            let waiting = Waiting { key, name: terms.name.or(wish.name), words };
            self.waiting.put(now, token, source, waiting)?;
            return Ok(Answer::Waiting);
        }
        if self.holders(unix_s).any(|held| held.key.dh == key.dh && held.key != key) {
            return Err(Refusal::Key);
        }
        // An approval is of one name: what the machine wishes for later counts no more.
        let wish = Wish { name: approved.unwrap_or(wish.name), ..wish };
        let naming = self.naming(terms.name, wish, unix_s, (token, key));
        let place = places::choose(&mandate, self.holders(unix_s), naming)?;
        let groups = if terms.groups.is_empty() { mandate.groups.clone() } else { terms.groups };
        let member = Member {
            version: 1,
            name: place.name,
            key,
            address: place.address,
            expires_unix_s: self.expiry(&mandate, unix_s),
            endpoint: None,
            groups,
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: true,
            ipv4: place.ipv4,
            cover: None,
            carrier: Carrier::default(),
            unknown: Vec::new(),
        };
        let entries = vec![Entry::Member(Box::new(self.newer(member)))];
        self.step(Cause::Joined(token), key, entries, (now, unix_s))
            .map_err(|e| self.refused(&e))?;
        self.tokens.spend(&token);
        self.joined_by.insert(key, token);
        self.approved.remove(&(token, key));
        self.stats.joined += 1;
        self.granted(id, &key, (now, unix_s)).ok_or(Refusal::Registrar)
    }

    /// Whose names, keys and addresses nobody else gets: all of the list and of other registrars,
    /// expired or not, and this one's own until they expire, revoked or not.
    fn holders(&self, unix_s: u64) -> impl Iterator<Item = &Member> {
        let listed = self.directory.list().into_iter().flat_map(|list| &list.content().members);
        let given = self.directory.registers().flat_map(move |register| {
            let is_own = Some(register.id()) == self.mandate;
            register.members().filter(move |held| !is_own || held.expires_unix_s > unix_s)
        });
        listed.map(|signed| &signed.member).chain(given)
    }

    /// The descriptor with a version above the one that its key had before.
    fn newer(&self, member: Member) -> Member {
        let before = self.register().and_then(|r| r.members().find(|m| m.key == member.key));
        Member { version: before.map_or(1, |before| before.version + 1), ..member }
    }

    /// The registrar's mandate, if it may use it now.
    fn mandate_now(&self, now: Time, unix_s: u64) -> Result<Mandate, Refusal> {
        if self.directory.standing(now, unix_s) != Standing::Fresh {
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

    /// What a member was granted; none for others. Its visit may fetch list and chain.
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
        self.visits.progress(id, now, Progress::Part(offset));
        Answer::Part { offset, bytes }
    }
}

/// Answer to the holder of a token that ended.
fn ended(why: Ended) -> Refusal {
    match why {
        Ended::Spent => Refusal::Spent,
        Ended::Expired => Refusal::Expired,
        Ended::Withdrawn => Refusal::Withdrawn,
    }
}

/// The mandate of the list that names this registrar.
fn own_mandate(directory: &Directory, identity: &Identity) -> Option<MandateId> {
    let own = |register: &&Register| register.mandate().key == identity.public();
    directory.registers().find(own).map(Register::id)
}
