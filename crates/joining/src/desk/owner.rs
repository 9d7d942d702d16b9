//! What the registrar's owner asks of the desk.

use std::collections::BTreeSet;

use shoal_crypto::PublicKey;
use shoal_directory::{
    BadMandate, BadName, CLOCK_SKEW_S, Entry, MandateId, Member, Supplement, Unapplied,
    check_new_name, fold, span,
};
use shoal_wire::Time;
use zeroize::Zeroizing;

use super::places::Naming;
use super::{Desk, Disk};
use crate::invite::{Invite, InviteError};
use crate::messages::{Refusal, Wish};
use crate::record::{Cause, Record};
use crate::tokens::{Terms, TermsError, Token, TokenHash};

/// Part of a mandate's chain that the node beside the registrar has.
pub(super) struct Known {
    mandate: MandateId,
    steps: u64,
    /// Hash that its next step names as the one before it.
    head: [u8; 32],
}

/// Why nothing is signed for now.
#[derive(Default)]
pub(super) struct Hold {
    /// The node refuses what was signed, in its words.
    refused: Option<String>,
    /// Bytes of the ledger, and bytes that it is known to have had.
    older: Option<(usize, usize)>,
    /// Nobody has said yet what the network has.
    pub(super) is_early: bool,
}

impl<D: Disk> Desk<D> {
    /// Gives out an invite; it holds once this returns.
    ///
    /// # Errors
    ///
    /// The terms can't be, or the ledger can't be written; then there is no invite.
    pub fn invite(
        &mut self,
        terms: Terms,
        unix_s: u64,
    ) -> Result<(Zeroizing<String>, TokenHash), OwnerError> {
        let terms = terms.checked()?;
        let register = self.register().ok_or(OwnerError::NoMandate)?;
        // An invite in a ledger that is to be replaced would be worth nothing.
        self.check_known()?;
        let mandate = register.mandate();
        if let Some(group) = terms.groups.iter().find(|group| !mandate.groups.contains(group)) {
            let known = mandate.groups.join(", ");
            return Err(OwnerError::Group { group: group.clone(), known });
        }
        self.check_name(&terms, unix_s)?;
        let token = Token::new(self.rng.array());
        let invite = Invite {
            authority: self.config.authority,
            registrar: self.config.identity.public(),
            door: self.config.door.clone(),
            token: token.clone(),
            expires_unix_s: u32::try_from(terms.expires_unix_s).unwrap_or(u32::MAX),
            endpoints: self.config.endpoints.clone(),
        };
        let text = invite.to_text()?;
        let hash = token.hash();
        let mut tokens = self.tokens.clone();
        tokens.issue(unix_s, hash, terms.clone())?;
        self.write(&Record::Issued { token: hash, unix_s, terms })?;
        self.tokens = tokens;
        Ok((text, hash))
    }

    /// Refuses a name that nobody could get by the invite.
    fn check_name(&self, terms: &Terms, unix_s: u64) -> Result<(), OwnerError> {
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

    /// The name for a machine that joins: that of its invite, or one that it wishes for.
    pub(super) fn naming(
        &self,
        given: Option<String>,
        wish: Wish,
        unix_s: u64,
        of: (TokenHash, PublicKey),
    ) -> Naming {
        match given {
            Some(name) => Naming::Given(name),
            None => Naming::Wished { wish, kept: self.kept_names(unix_s, of) },
        }
    }

    /// Folded names that wait for other machines than this one: those of open invites, and those
    /// under which machines were approved.
    fn kept_names(&self, unix_s: u64, except: (TokenHash, PublicKey)) -> BTreeSet<String> {
        let open = self.tokens.iter(unix_s).filter(|(.., ended)| ended.is_none());
        let named = open.filter_map(|(_, terms, ..)| terms.name.as_deref());
        let is_open = |token| matches!(self.tokens.standing(unix_s, token), Some(Ok(_)));
        let approved = self.approved.iter().filter(|(of, _)| **of != except && is_open(&of.0));
        named.chain(approved.filter_map(|(_, name)| name.as_deref())).map(fold).collect()
    }

    /// Takes an invite back.
    ///
    /// # Errors
    ///
    /// Nobody knows it, or the ledger can't be written.
    pub fn withdraw(&mut self, token: &TokenHash) -> Result<(), OwnerError> {
        if self.tokens.standing(0, token).is_none() {
            return Err(OwnerError::UnknownToken);
        }
        self.write(&Record::Withdrawn(*token))?;
        self.tokens.withdraw(token);
        Ok(())
    }

    /// Says yes or no to a machine that waits. A yes is for the name under which it waits. With
    /// `words` the machine must still show them: another name comes with other words.
    ///
    /// # Errors
    ///
    /// Nobody with this key, or with these words, waits, or the ledger can't be written.
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
            self.write(&Record::Denied { token, key })?;
            self.denied.insert((token, key));
        }
        self.waiting.remove(&key);
        Ok(())
    }

    /// Ends a membership of this mandate for good. Returns the invite by which the member joined,
    /// if it still has uses: whoever has it can join again with another key.
    ///
    /// # Errors
    ///
    /// There is no such member, or the ledger can't be written.
    pub fn remove(&mut self, name: &str, at: (Time, u64)) -> Result<Option<TokenHash>, OwnerError> {
        let find = |is: &dyn Fn(&Member) -> bool| self.register()?.members().find(|m| is(m));
        let member = find(&|m| m.name == name).or_else(|| find(&|m| fold(&m.name) == fold(name)));
        let key = member.map(|member| member.key).ok_or(OwnerError::NoMember)?;
        if self.is_adopted(&key) {
            return Err(OwnerError::Adopted);
        }
        let invite = self.invite_of(&key);
        self.step(Cause::Removed, key, vec![Entry::remove(&key)], at)?;
        Ok(invite.filter(|token| matches!(self.tokens.standing(at.1, token), Some(Ok(_)))))
    }

    /// Takes in what the node beside the registrar has of a mandate: how many steps, and what the
    /// next one names as the one before it. While those are more than the ledger's, or others,
    /// nothing is signed: it would have a number that was signed before.
    pub fn set_known(&mut self, mandate: MandateId, steps: u64, head: [u8; 32]) {
        self.known = Some(Known { mandate, steps, head });
    }

    /// The node beside the registrar refuses what was signed, and says why; or does so no more.
    pub fn set_refused(&mut self, why: Option<String>) {
        self.hold.refused = why;
    }

    /// The ledger has so many bytes, and is known to have had more, or others.
    pub fn set_older(&mut self, has: usize, had: usize) {
        self.hold.older = Some((has, had));
    }

    /// Whether nobody has said yet what the network has. Until then nothing is signed, and who asks
    /// for it gets no answer: it asks again.
    pub fn set_early(&mut self, is_early: bool) {
        self.hold.is_early = is_early;
    }

    /// Takes in what another registrar of the list signed, as the node beside this one has it: its
    /// members' names and addresses are given to nobody else. What counts nowhere has no effect.
    pub fn learn(&mut self, step: &[u8], (now, unix_s): (Time, u64)) {
        let Ok((mandate, _)) = Supplement::peek(step) else { return };
        let other = self.directory.register(&mandate).filter(|_| self.mandate != Some(mandate));
        let opened = other.and_then(|other| Supplement::open(&other.mandate().key, step).ok());
        if let Some(step) = opened {
            let _unapplied = self.directory.supplement(now, unix_s, &step);
        }
    }

    /// The other mandates of the list, and how many steps of each are here.
    pub fn learnt(&self) -> impl Iterator<Item = (MandateId, u64)> {
        let others = self.directory.registers().filter(|other| Some(other.id()) != self.mandate);
        others.map(|other| (other.id(), other.len()))
    }

    /// Why the ledger may not be the newest one, so that nothing is signed with it.
    pub fn doubt(&self) -> Option<OwnerError> {
        self.check_known().err()
    }

    /// Compares the ledger with what the node has.
    fn compare(&self) -> Result<(), OwnerError> {
        let Some(register) = self.register() else { return Ok(()) };
        let known = self.known.as_ref().filter(|known| known.mandate == register.id());
        let Some(Known { steps, head, .. }) = known else { return Ok(()) };
        let ours = match register.step(*steps) {
            Some(step) => step.digest(),
            None if *steps == 0 => register.id().0,
            None => return Err(OwnerError::Behind { ledger: register.len(), node: *steps }),
        };
        if ours == *head { Ok(()) } else { Err(OwnerError::Diverged { number: *steps }) }
    }

    /// Why the registrar could not do what it was last asked for, until it can write again: its
    /// ledger can't be written, say. Names neither members nor keys.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// What a visitor hears of an error, which the owner hears as [`Desk::fault`].
    pub(super) fn refused(&mut self, error: &OwnerError) -> Refusal {
        let refusal = error.refusal();
        // As long as the ledger is in doubt, `doubt` speaks of it.
        if refusal == Refusal::Registrar && !error.is_doubt() {
            self.fault = Some(error.to_string());
        }
        refusal
    }

    /// Whether the next number is a new one, as far as anybody here knows.
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

    /// Whether the authority has made this key a member of its own, so that nothing that the
    /// registrar signs of it counts.
    pub(super) fn is_adopted(&self, key: &PublicKey) -> bool {
        let list = self.directory.list();
        list.is_some_and(|list| list.content().members.iter().any(|one| one.member.key == *key))
    }
}

/// Whether a supplement that is issued then counts at nodes now.
pub(super) fn check_clock(issued_unix_s: u64, unix_s: u64) -> Result<(), OwnerError> {
    let ahead_s = issued_unix_s.saturating_sub(unix_s);
    if ahead_s > CLOCK_SKEW_S { Err(OwnerError::Ahead { ahead_s }) } else { Ok(()) }
}

/// Why what the registrar's owner asked for is not done. Nothing has changed then.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The terms can't be.
    #[error("{0}")]
    Terms(#[from] TermsError),
    /// An invite can't be written.
    #[error("{0}")]
    Invite(#[from] InviteError),
    /// The ledger can't be written.
    #[error("the ledger can't be written: {0}")]
    Disk(#[from] std::io::Error),
    /// The list has no mandate for the registrar's key.
    #[error("the authority's list has no mandate for this registrar's key")]
    NoMandate,
    /// The mandate does not have this group.
    #[error("the mandate does not have the group {group:?}: it has {known}")]
    Group {
        /// Which.
        group: String,
        /// Those that it has.
        known: String,
    },
    /// An invite's name is a member's.
    #[error(
        "a member has the name {0:?}, so nobody could join by this invite: give another name, or \
         end that membership first (`shoal registrar remove {0}`; the authority's own member: \
         `shoal authority revoke`)"
    )]
    NameTaken(String),
    /// An invite's name can be no node's.
    #[error("{name:?}: {why}")]
    Name {
        /// The name.
        name: String,
        /// Fault of the name.
        why: BadName,
    },
    /// An invite's name waits for whoever holds another invite.
    #[error(
        "another open invite gives the name {0:?}: give another name, or withdraw that invite \
         first (`shoal invite list`, `shoal invite withdraw ID`)"
    )]
    NameKept(String),
    /// Nobody gave out this token.
    #[error("there is no such invite")]
    UnknownToken,
    /// Nobody with this key waits.
    #[error("nobody waits for approval by this name or key")]
    NotWaiting,
    /// There is no such member.
    #[error("this registrar has no member of this name")]
    NoMember,
    /// The member is the authority's own.
    #[error(
        "the authority has made this member its own: `shoal authority revoke` ends its membership"
    )]
    Adopted,
    /// The ledger is an older copy of what it was.
    #[error(
        "this ledger has {ledger} steps, and the node here knows {node} that this registrar has \
         signed: it is an older copy. Nothing is signed with it, since a number that is signed \
         twice ends the chain everywhere. Stop the registrar and put the newest ledger back; if it \
         is lost, the authority takes the members over (`shoal authority adopt`) and gives a \
         mandate with another serial (`shoal authority mandate NAME --anew`)"
    )]
    Behind {
        /// Steps of the ledger.
        ledger: u64,
        /// Steps that the node has.
        node: u64,
    },
    /// The ledger and the node have different supplements with one number.
    #[error(
        "this registrar has signed two supplements with the number {number}: the node here has \
         another one than this ledger, which is an older copy. Nothing more is signed, since no \
         node would take it in. Stop the registrar and put the newest ledger back. If it is lost, \
         the authority takes the members over (`shoal authority adopt`) and gives a mandate with \
         another serial (`shoal authority mandate NAME --anew`). A machine that joined by this \
         ledger alone joins anew"
    )]
    Diverged {
        /// The number.
        number: u64,
    },
    /// The ledger was longer, or another one.
    #[error(
        "this ledger has {has} bytes, and the registrar had written {had}: it is an older copy, \
         which lacks uses and withdrawals of invites. Nothing is signed with it. Stop the \
         registrar and put the newest ledger back. If that is lost, void all invites by `shoal \
         registrar door --new`, remove the file `ledger.end` beside the ledger, and start the \
         registrar again"
    )]
    Older {
        /// Bytes that it has.
        has: usize,
        /// Bytes that it had.
        had: usize,
    },
    /// The node does not take what was signed.
    #[error("the node here refuses what this registrar signed, so nothing more is signed: {0}")]
    NodeRefuses(String),
    /// The registrar has just started.
    #[error(
        "the registrar has just started, and no neighbour of the node here has said yet which \
         supplements it knows. Until then, or for 30 s, the registrar signs nothing: with a ledger \
         from a backup it would sign a number twice. Try again later"
    )]
    Early,
    /// The list's mandate does not allow what was signed under it before.
    #[error(
        "of the {signed} supplements of this registrar the list's mandate allows the first \
         {counts}: its limits were narrowed. Nothing is signed, since a number that is signed \
         twice ends the chain everywhere. The authority gives the limits of before again, and the \
         registrar is restarted; or it takes the members over (`shoal authority adopt`) and gives \
         a mandate with another serial (`shoal authority mandate NAME --anew`)"
    )]
    Narrowed {
        /// Supplements that count.
        counts: u64,
        /// Supplements that were signed.
        signed: u64,
    },
    /// A supplement was signed by a clock that was ahead of this one.
    #[error(
        "the last supplement bears a time {} ahead of this machine's clock: nodes take in neither \
         it nor any that follows before that time. If the clock is right now, nobody can join or \
         leave until then, unless the authority takes the members over (`shoal authority adopt`) \
         and gives a mandate with another serial (`shoal authority mandate NAME --anew`)",
        span(*ahead_s)
    )]
    Ahead {
        /// By how much, in seconds.
        ahead_s: u64,
    },
    /// A descriptor would be too long.
    #[error("a member's descriptor does not fit: fewer groups")]
    Descriptor,
    /// The mandate does not allow it.
    #[error("{0}")]
    Mandate(#[from] Unapplied),
}

impl OwnerError {
    /// Whether it is about the ledger being the newest one.
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
            OwnerError::Mandate(Unapplied::Bad(BadMandate::Most)) => Refusal::Full,
            OwnerError::NoMandate => Refusal::MandateEnded,
            _ => Refusal::Registrar,
        }
    }
}
