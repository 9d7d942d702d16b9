//! What the registrar's owner asks of the desk.

use shoal_crypto::PublicKey;
use shoal_directory::{BadMandate, Entry, Register, Unapplied};
use shoal_wire::Time;
use zeroize::Zeroizing;

use super::{Desk, Disk};
use crate::invite::{Invite, InviteError};
use crate::messages::Refusal;
use crate::record::{Cause, Record};
use crate::tokens::{Terms, TermsError, Token, TokenHash};

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
        let mandate = self.register().map(Register::mandate).ok_or(OwnerError::NoMandate)?;
        if let Some(group) = terms.groups.iter().find(|group| !mandate.groups.contains(group)) {
            let known = mandate.groups.join(", ");
            return Err(OwnerError::Group { group: group.clone(), known });
        }
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

    /// Says yes or no to a machine that waits.
    ///
    /// # Errors
    ///
    /// Nobody with this key waits, or the ledger can't be written.
    pub fn approve(&mut self, key: &PublicKey, yes: bool) -> Result<(), OwnerError> {
        let (token, key) = (self.waiting.token(key).ok_or(OwnerError::NotWaiting)?, *key);
        if yes {
            self.approved.insert((token, key));
        } else {
            self.write(&Record::Denied { token, key })?;
            self.denied.insert((token, key));
        }
        self.waiting.remove(&key);
        Ok(())
    }

    /// Ends a membership of this mandate for good.
    ///
    /// # Errors
    ///
    /// There is no such member, or the ledger can't be written.
    pub fn remove(&mut self, name: &str, at: (Time, u64)) -> Result<(), OwnerError> {
        let member = self.register().and_then(|r| r.members().find(|m| m.name == name));
        let key = member.map(|member| member.key).ok_or(OwnerError::NoMember)?;
        self.step(Cause::Removed, key, Entry::remove(&key), at)
    }
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
    /// Nobody gave out this token.
    #[error("there is no such invite")]
    UnknownToken,
    /// Nobody with this key waits.
    #[error("nobody waits for approval by this name or key")]
    NotWaiting,
    /// There is no such member.
    #[error("this registrar has no member of this name")]
    NoMember,
    /// A descriptor would be too long.
    #[error("a member's descriptor does not fit: fewer groups")]
    Descriptor,
    /// The mandate does not allow it.
    #[error("{0}")]
    Mandate(#[from] Unapplied),
}

impl OwnerError {
    pub(super) fn refusal(&self) -> Refusal {
        match self {
            OwnerError::Mandate(Unapplied::Bad(BadMandate::Most)) => Refusal::Full,
            OwnerError::NoMandate => Refusal::MandateEnded,
            _ => Refusal::Registrar,
        }
    }
}
