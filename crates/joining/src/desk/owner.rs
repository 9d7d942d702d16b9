//! Commands of the registrar's owner.

use std::collections::BTreeSet;
use std::net::IpAddr;

use shoal_crypto::PublicKey;
use shoal_directory::{
    BadName, CLOCK_SKEW_S, MandateId, MandateViolation, Member, Register, RouterRange, StepEntry,
    StepRejection, check_new_name, fold, span,
};
use shoal_wire::Time;
use zeroize::Zeroizing;

use super::places::NameChoice;
use super::{Desk, Disk};
use crate::invite::{Invite, InviteError};
use crate::messages::{NameRequest, Refusal};
use crate::record::{LedgerRecord, StepCause};
use crate::tokens::{TermsError, Token, TokenHash, TokenKind, TokenTerms};

/// Steps of a mandate's chain that the node beside the registrar has.
pub(super) struct NodeChain {
    mandate: MandateId,
    steps: u64,
    /// Hash that the next step must name as its predecessor.
    head: [u8; 32],
}

/// Reasons why signing is suspended.
#[derive(Default)]
pub(super) struct SigningHold {
    /// The node's message, if it refuses a supplement of this registrar.
    refused: Option<String>,
    /// Length of the ledger in bytes, and the length that the registrar had noted.
    older: Option<(usize, usize)>,
    /// True until a neighbour of the node has reported which supplements it knows.
    pub(super) is_early: bool,
}

impl<D: Disk> Desk<D> {
    /// Issues an invite. The invite is in the ledger when this returns.
    ///
    /// # Errors
    ///
    /// The terms are invalid, or the ledger can't be written. No invite exists then.
    pub fn invite(
        &mut self,
        terms: TokenTerms,
        unix_s: u64,
    ) -> Result<(Zeroizing<String>, TokenHash), OwnerError> {
        let terms = terms.checked()?;
        let register = self.register().ok_or(OwnerError::NoMandate)?;
        // An invite in a ledger that must be replaced would be lost with it.
        self.check_known()?;
        let mandate = register.mandate();
        if let Some(group) = terms.groups.iter().find(|group| !mandate.groups.contains(group)) {
            let known = mandate.groups.join(", ");
            return Err(OwnerError::Group { group: group.clone(), known });
        }
        if let Some((family, relay)) = terms.kind.router() {
            check_router(register, family, relay)?;
        }
        if let TokenKind::Registrar { range, .. } = &terms.kind {
            check_registrar(register, *range)?;
        }
        self.check_name(&terms, unix_s)?;
        let token = Token::new(self.rng.array());
        let invite = Invite {
            authority: self.config.authority,
            registrar: self.config.identity.public(),
            door: self.config.door.clone(),
            token: token.clone(),
            expires_unix_s: u32::try_from(terms.expires_unix_s).unwrap_or(u32::MAX),
            endpoints: self.endpoints().to_vec(),
        };
        let text = invite.to_text()?;
        let hash = token.hash();
        let mut tokens = self.tokens.clone();
        tokens.issue(unix_s, hash, terms.clone())?;
        self.write(&LedgerRecord::Issued { token: hash, unix_s, terms })?;
        self.tokens = tokens;
        Ok((text, hash))
    }

    /// Refuses a name that no machine could get by the invite.
    fn check_name(&self, terms: &TokenTerms, unix_s: u64) -> Result<(), OwnerError> {
        let Some(name) = &terms.name else { return Ok(()) };
        let bad = |why| OwnerError::Name { name: name.clone(), why };
        check_new_name(name).map_err(bad)?;
        let folded = fold(name);
        if let Some(holder) = self.holders(unix_s).find(|member| fold(&member.name) == folded) {
            return Err(OwnerError::NameTaken(holder.name.clone()));
        }
        let mut open = self.tokens.iter(unix_s).filter(|(.., ended)| ended.is_none());
        match open.any(|(_, open, ..)| open.name.as_deref().map(fold) == Some(folded.clone())) {
            true => Err(OwnerError::NameKept(name.clone())),
            false => Ok(()),
        }
    }

    /// The name for a machine that joins: the invite's, or the one that the machine asks for.
    pub(super) fn naming(
        &self,
        given: Option<String>,
        wish: NameRequest,
        unix_s: u64,
        of: (TokenHash, PublicKey),
    ) -> NameChoice {
        match given {
            Some(name) => NameChoice::Given(name),
            None => NameChoice::Wished { wish, kept: self.kept_names(unix_s, of) },
        }
    }

    /// Folded names reserved for other machines: names of open invites, and names under which
    /// machines were approved.
    fn kept_names(&self, unix_s: u64, except: (TokenHash, PublicKey)) -> BTreeSet<String> {
        let open = self.tokens.iter(unix_s).filter(|(.., ended)| ended.is_none());
        let named = open.filter_map(|(_, terms, ..)| terms.name.as_deref());
        let is_open = |token| matches!(self.tokens.standing(unix_s, token), Some(Ok(_)));
        let approved = self.approved.iter().filter(|(of, _)| **of != except && is_open(&of.0));
        named.chain(approved.filter_map(|(_, name)| name.as_deref())).map(fold).collect()
    }

    /// Withdraws an invite.
    ///
    /// # Errors
    ///
    /// The token is unknown, or the ledger can't be written.
    pub fn withdraw(&mut self, token: &TokenHash) -> Result<(), OwnerError> {
        if self.tokens.standing(0, token).is_none() {
            return Err(OwnerError::UnknownToken);
        }
        self.write(&LedgerRecord::Withdrawn(*token))?;
        self.tokens.withdraw(token);
        Ok(())
    }

    /// Withdraws an invite and removes all members that joined by it. Returns the number of these.
    ///
    /// # Errors
    ///
    /// As [`Desk::withdraw`]; or a member can't be removed, though the invite is withdrawn.
    pub fn withdraw_all(
        &mut self,
        token: &TokenHash,
        at: (Time, u64),
    ) -> Result<usize, OwnerError> {
        self.withdraw(token)?;
        let members = self.register().into_iter().flat_map(Register::members);
        let keys: Vec<PublicKey> = members.map(|member| member.key).collect();
        let by_it = |key: &PublicKey| self.invite_of(key) == Some(*token);
        let keys: Vec<_> =
            keys.into_iter().filter(|key| by_it(key) && !self.is_adopted(key)).collect();
        for key in &keys {
            let entries = self.removal(key);
            self.step(StepCause::Removed, *key, entries, at)?;
        }
        Ok(keys.len())
    }

    /// Approves or denies a waiting machine. An approval holds for the name under which the machine
    /// waits. If `words` is given, the machine must still show these words: a machine that changes
    /// its name shows other words.
    ///
    /// # Errors
    ///
    /// No machine with this key or these words waits, or the ledger can't be written.
    pub fn approve(
        &mut self,
        key: &PublicKey,
        words: Option<&str>,
        yes: bool,
    ) -> Result<(), OwnerError> {
        let (token, key) = (self.waiting.token(key).ok_or(OwnerError::NotWaiting)?, *key);
        if words.is_some_and(|words| !self.waiting.shows(&key, words)) {
            return Err(OwnerError::NotWaiting);
        }
        if yes {
            let name = self.waiting.name(&key);
            self.approved.insert((token, key), name);
        } else {
            self.write(&LedgerRecord::Denied { token, key })?;
            self.denied.insert((token, key));
        }
        self.waiting.remove(&key);
        Ok(())
    }

    /// Removes a member of this mandate for good. Returns the invite by which the member joined if
    /// it has uses left: its holder can join again with another key.
    ///
    /// # Errors
    ///
    /// No member has this name, or the ledger can't be written.
    pub fn remove(&mut self, name: &str, at: (Time, u64)) -> Result<Option<TokenHash>, OwnerError> {
        let find = |is: &dyn Fn(&Member) -> bool| self.register()?.members().find(|m| is(m));
        let member = find(&|m| m.name == name).or_else(|| find(&|m| fold(&m.name) == fold(name)));
        let key = member.map(|member| member.key).ok_or(OwnerError::NoMember)?;
        if self.is_adopted(&key) {
            return Err(OwnerError::Adopted);
        }
        let invite = self.invite_of(&key);
        let entries = self.removal(&key);
        self.step(StepCause::Removed, key, entries, at)?;
        Ok(invite.filter(|token| matches!(self.tokens.standing(at.1, token), Some(Ok(_)))))
    }

    /// The entries that remove a member, and withdraw its registrar if it has one.
    pub(super) fn removal(&self, key: &PublicKey) -> Vec<StepEntry> {
        let mut members = self.register().into_iter().flat_map(Register::members);
        let member = members.find(|member| member.key == *key);
        let registrar = member.and_then(|member| self.withdrawal(member.address));
        [StepEntry::remove(key)].into_iter().chain(registrar).collect()
    }

    /// Records how many steps of a mandate the node beside the registrar has, and the hash of the
    /// last one. If the node has more steps than the ledger, or different ones, nothing is signed:
    /// a new step would reuse a number.
    pub fn set_known(&mut self, mandate: MandateId, steps: u64, head: [u8; 32]) {
        self.known = Some(NodeChain { mandate, steps, head });
    }

    /// Records why the node beside the registrar refuses a supplement; `None` if it accepts them
    /// again.
    pub fn set_refused(&mut self, why: Option<String>) {
        self.hold.refused = why;
    }

    /// Records that the ledger has `has` bytes although the registrar had noted another end at
    /// `had` bytes.
    pub fn set_older(&mut self, has: usize, had: usize) {
        self.hold.older = Some((has, had));
    }

    /// Sets whether the network's state is still unknown. While it is, nothing is signed, and
    /// requests other than for parts of the list get no answer; visitors repeat them.
    pub fn set_early(&mut self, is_early: bool) {
        self.hold.is_early = is_early;
    }

    /// The other mandates in the list, each with the number of its steps known at this registrar.
    pub fn learnt(&self) -> impl Iterator<Item = (MandateId, u64)> {
        let others = self.directory.registers().filter(|other| Some(other.id()) != self.mandate);
        others.map(|other| (other.id(), other.len()))
    }

    /// The reason why the ledger may be out of date, so that nothing is signed with it.
    pub fn doubt(&self) -> Option<OwnerError> {
        self.check_known().err()
    }

    /// Compares the ledger with the node's copy of the chain.
    fn compare(&self) -> Result<(), OwnerError> {
        let Some(register) = self.register() else { return Ok(()) };
        let known = self.known.as_ref().filter(|known| known.mandate == register.id());
        let Some(NodeChain { steps, head, .. }) = known else { return Ok(()) };
        let ours = match register.step(*steps) {
            Some(step) => step.digest(),
            None if *steps == 0 => register.id().0,
            None => return Err(OwnerError::Behind { ledger: register.len(), node: *steps }),
        };
        if ours == *head { Ok(()) } else { Err(OwnerError::Diverged { number: *steps }) }
    }

    /// The error of the last request that the registrar could not fulfil, such as a failed write of
    /// the ledger. A successful write clears it. The text names neither members nor keys.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// The refusal that a visitor gets for an error. The owner sees the error itself through
    /// [`Desk::fault`].
    pub(super) fn refused(&mut self, error: &OwnerError) -> Refusal {
        let refusal = error.refusal();
        // While the ledger is in doubt, `doubt` reports that.
        if refusal == Refusal::Registrar && !error.is_doubt() {
            self.fault = Some(error.to_string());
        }
        refusal
    }

    /// Checks, with all that is known here, that the next step number was never signed.
    pub(super) fn check_known(&self) -> Result<(), OwnerError> {
        let register = self.register().map(|register| (register.id(), register.len()));
        let signed = self.signed.zip(register).filter(|((of, _), (id, _))| of == id);
        if let Some(((_, signed), (_, counts))) = signed.filter(|(s, r)| s.1 > r.1) {
            return Err(OwnerError::Narrowed { counts, signed });
        }
        self.compare()?;
        if let Some((has, had)) = self.hold.older {
            return Err(OwnerError::Older { has, had });
        }
        let refused = self.hold.refused.clone();
        refused.map_or(Ok(()), |why| Err(OwnerError::NodeRefuses(why)))
    }

    /// True if the authority has made this key a member of its own. Nodes then ignore supplements
    /// of the registrar about it.
    pub(super) fn is_adopted(&self, key: &PublicKey) -> bool {
        let list = self.directory.list();
        list.is_some_and(|list| list.content().members.iter().any(|one| one.member.key == *key))
    }
}

/// Checks that a router of this family, or a relay, can join under the register's mandate.
fn check_router(register: &Register, family: Option<&str>, relay: bool) -> Result<(), OwnerError> {
    let rights = &register.mandate().rights;
    if register.remainder().routers == 0 {
        return Err(OwnerError::NoRouters { most: rights.routers_most });
    }
    if relay && !rights.relay {
        return Err(OwnerError::NoRelays);
    }
    let (families, most) = (register.families(), rights.families_most);
    let family = fold(family.or(rights.family.as_deref()).unwrap_or_default());
    if !families.contains(&family) && register.remainder().families == 0 {
        return Err(OwnerError::Families { most });
    }
    Ok(())
}

/// Checks that the register's mandate has room for another registrar, with these router numbers.
pub(super) fn check_registrar(
    register: &Register,
    range: Option<RouterRange>,
) -> Result<(), OwnerError> {
    let rights = &register.mandate().rights;
    if register.remainder().registrars == 0 {
        return Err(OwnerError::NoRegistrars { most: rights.registrars });
    }
    if register.remainder().keys < 3 {
        return Err(OwnerError::Mandate(StepRejection::Bad(MandateViolation::Most)));
    }
    let Some(range) = range else { return Ok(()) };
    let is_own =
        rights.routers.iter().any(|own| own.first <= range.first && range.last <= own.last);
    let is_delegated = register.ever_delegated().any(|made| {
        made.rights.routers.iter().any(|r| r.first <= range.last && range.first <= r.last)
    });
    if !is_own || is_delegated || register.has_given_in(&range) {
        return Err(OwnerError::Range(range));
    }
    Ok(())
}

/// Checks that nodes accept a supplement with this time of issue at `unix_s`.
pub(super) fn check_clock(issued_unix_s: u64, unix_s: u64) -> Result<(), OwnerError> {
    let ahead_s = issued_unix_s.saturating_sub(unix_s);
    if ahead_s > CLOCK_SKEW_S { Err(OwnerError::Ahead { ahead_s }) } else { Ok(()) }
}

/// Reasons why a command of the registrar's owner fails. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    #[error("{0}")]
    Terms(#[from] TermsError),
    #[error("{0}")]
    Invite(#[from] InviteError),
    #[error("the ledger can't be written: {0}")]
    Disk(#[from] std::io::Error),
    #[error("the authority's list has no mandate for this registrar's key")]
    NoMandate,
    #[error("the mandate does not have the group {group:?}: it has {known}")]
    Group {
        /// The group asked for.
        group: String,
        /// The groups of the mandate.
        known: String,
    },
    #[error(
        "the mandate admits {most} routers, former ones included: the authority must widen it \
         (`shoal authority mandate --dir DIR NAME --router-max N`)"
    )]
    NoRouters {
        /// The mandate's limit.
        most: u16,
    },
    #[error(
        "the mandate lets this registrar make {most} registrars, withdrawn ones included: the \
         authority must widen it (`shoal authority mandate --dir DIR NAME --registrars N`)"
    )]
    NoRegistrars {
        /// The mandate's limit.
        most: u8,
    },
    #[error(
        "--range {0}: not all of these router numbers are the mandate's and free: name others, or \
         leave out --range"
    )]
    Range(RouterRange),
    #[error(
        "the mandate allows no relays: add --no-relay, or let the authority allow them (`shoal \
         authority mandate NAME --right relay`)"
    )]
    NoRelays,
    #[error(
        "the mandate admits {most} families of routers, former ones included: name one of these \
         with --family, or let the authority widen the mandate"
    )]
    Families {
        /// The mandate's limit.
        most: u8,
    },
    /// The invite's name belongs to a member.
    #[error(
        "a member has the name {0:?}, so nobody could join by this invite: give another name, or \
         end that membership first (`shoal registrar remove {0}`; the authority's own member: \
         `shoal authority revoke --dir DIR {0}`)"
    )]
    NameTaken(String),
    /// The invite's name is invalid.
    #[error("{name:?}: {why}")]
    Name { name: String, why: BadName },
    /// Another open invite gives the name.
    #[error(
        "another open invite gives the name {0:?}: give another name, or withdraw that invite \
         first (`shoal invite list`, `shoal invite withdraw ID`)"
    )]
    NameKept(String),
    #[error("there is no such invite")]
    UnknownToken,
    #[error("nobody waits for approval by this name or key")]
    NotWaiting,
    #[error("this registrar has no member of this name")]
    NoMember,
    #[error(
        "this registrar has made no registrar of this name: `shoal registrar status` lists them"
    )]
    NotMade,
    #[error(
        "the authority has made this member its own: `shoal authority revoke --dir DIR NAME` ends \
         its membership"
    )]
    Adopted,
    /// The node has more steps than the ledger.
    #[error(
        "this ledger has {ledger} steps, and the node here knows {node} that this registrar has \
         signed: it is an older copy. Nothing is signed with it, since a number that is signed \
         twice ends the chain everywhere. Stop the registrar and put the newest ledger back. If it \
         is lost, the authority takes the members over (`shoal authority adopt --dir DIR NAME`) \
         and gives a mandate with another serial (`shoal authority mandate --dir DIR NAME --anew`)"
    )]
    Behind {
        /// Number of steps in the ledger.
        ledger: u64,
        /// Number of steps at the node.
        node: u64,
    },
    /// The ledger and the node have different supplements with the same number.
    #[error(
        "this registrar has signed two supplements with the number {number}: the node here has \
         one, and this ledger, an older copy, has the other. Nothing more is signed, since no node \
         would accept it. Stop the registrar and put the newest ledger back. If it is lost, the \
         authority takes the members over (`shoal authority adopt --dir DIR NAME`) and gives a \
         mandate with another serial (`shoal authority mandate --dir DIR NAME --anew`). Machines \
         that joined by this ledger only must join anew"
    )]
    Diverged { number: u64 },
    /// The ledger's end is not the one that the registrar had noted.
    #[error(
        "this ledger has {has} bytes, and the registrar had written {had}: it is an older copy, \
         which lacks uses and withdrawals of invites. Nothing is signed with it. Stop the \
         registrar and put the newest ledger back. If that is lost, void all invites by `shoal \
         registrar door --new`, remove the file `ledger.end` beside the ledger, and start the \
         registrar again"
    )]
    Older {
        /// Length of the ledger in bytes.
        has: usize,
        /// Noted length in bytes.
        had: usize,
    },
    #[error("the node here refuses a supplement of this registrar, so nothing more is signed: {0}")]
    NodeRefuses(String),
    /// The registrar waits for the network's state after its start.
    #[error(
        "the registrar has just started, and no neighbour of the node here has said yet which \
         supplements it knows. Until then, or for 30 s, the registrar signs nothing: with a ledger \
         from a backup it would sign a number twice. Try again later"
    )]
    Early,
    /// The mandate in the list does not allow all supplements that were signed under it.
    #[error(
        "the list's mandate allows {counts} of the {signed} supplements that this registrar \
         signed: its limits were narrowed. Nothing is signed, since a number that is signed twice \
         ends the chain everywhere. The authority must restore the former limits; then restart the \
         registrar. Or the authority takes the members over (`shoal authority adopt --dir DIR \
         NAME`) and gives a mandate with another serial (`shoal authority mandate --dir DIR NAME \
         --anew`)"
    )]
    Narrowed {
        /// Number of supplements that the mandate allows.
        counts: u64,
        /// Number of supplements signed.
        signed: u64,
    },
    /// The last supplement bears a time ahead of this machine's clock.
    #[error(
        "the last supplement bears a time {} ahead of this machine's clock. Until that time nodes \
         accept neither it nor any later one, so nobody can join or leave. If this clock is \
         right, the authority can take the members over (`shoal authority adopt --dir DIR NAME`) \
         and give a mandate with another serial (`shoal authority mandate --dir DIR NAME --anew`)",
        span(*ahead_s)
    )]
    Ahead {
        /// Difference in seconds.
        ahead_s: u64,
    },
    #[error(
        "endpoints: {0} is inside the network, where nobody can call this registrar: name an \
         address or a name outside it in registrar.toml"
    )]
    EndpointInside(IpAddr),
    #[error("a member's descriptor is too long: use fewer groups")]
    Descriptor,
    #[error("{0}")]
    Mandate(#[from] StepRejection),
}

impl OwnerError {
    /// True if the error says that the ledger may be out of date.
    fn is_doubt(&self) -> bool {
        matches!(
            self,
            OwnerError::Behind { .. }
                | OwnerError::Diverged { .. }
                | OwnerError::Older { .. }
                | OwnerError::NodeRefuses(_)
                | OwnerError::Early
        )
    }

    fn refusal(&self) -> Refusal {
        match self {
            OwnerError::Mandate(StepRejection::Bad(MandateViolation::Most)) => Refusal::Full,
            OwnerError::NoMandate => Refusal::MandateEnded,
            _ => Refusal::Registrar,
        }
    }
}
