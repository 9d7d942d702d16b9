//! Issued tokens and their remaining uses.
//!
//! The table holds hashes, so nobody can use a token who reads the table or its ledger. Spent,
//! expired and withdrawn tokens stay in the table, so their holders hear the reason. When the table
//! is full, the ended token with the earliest expiry is removed; it is then unknown.

use std::collections::BTreeMap;
use std::fmt;

use shoal_crypto::{Secret, kdf};
use shoal_directory::{GROUPS_MAX, RouterRange, is_name};

/// Maximum number of tokens in a table.
pub const TOKENS_MAX: usize = 16_384;
/// Maximum number of uses per token.
pub const USES_MAX: u32 = 65_536;

/// The right to become a member. Registrars store only its [`TokenHash`].
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Secret<{ Token::LEN }>);

impl Token {
    pub const LEN: usize = 16;

    /// A token from random bytes.
    pub fn new(bytes: [u8; Token::LEN]) -> Token {
        Token(Secret::new(bytes))
    }

    /// The bytes, for an invite or a handshake.
    pub fn expose(&self) -> &[u8; Token::LEN] {
        self.0.expose()
    }

    /// The hash that registrars store.
    pub fn hash(&self) -> TokenHash {
        TokenHash(kdf(&[0; 32], "shoal token 1", &[self.expose()]))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// A hash that identifies a token and does not reveal it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    pub const LEN: usize = 32;
}

/// The kind of member that a token admits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenKind {
    /// A host.
    #[default]
    Host,
    /// A router.
    Router {
        /// Name of its operator; `None` for the mandate's family.
        family: Option<String>,
        /// False if it must not be a relay of circuits.
        relay: bool,
    },
    /// A router with a registrar of its own.
    Registrar {
        /// Name of its operator; `None` for the mandate's family.
        family: Option<String>,
        /// False if it must not be a relay of circuits.
        relay: bool,
        /// Router numbers that its registrar may give; `None` for free ones.
        range: Option<RouterRange>,
    },
}

impl TokenKind {
    /// Family, and true for relays; `None` for hosts.
    pub fn router(&self) -> Option<(Option<&str>, bool)> {
        match self {
            TokenKind::Host => None,
            TokenKind::Router { family, relay } | TokenKind::Registrar { family, relay, .. } => {
                Some((family.as_deref(), *relay))
            }
        }
    }
}

/// Terms of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenTerms {
    /// Number of machines that may join; 1 to [`USES_MAX`].
    pub uses: u32,
    /// End of validity in seconds since 1970.
    pub expires_unix_s: u64,
    /// The name that the machine gets, regardless of its wish. Requires a single use.
    pub name: Option<String>,
    /// Groups of the members; sorted, at most 32.
    pub groups: Vec<String>,
    /// True if the registrar's owner must approve each machine.
    pub approve: bool,
    /// The kind of member. The machine has no say in it, nor in a router's family.
    pub kind: TokenKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    #[error("an invite has 1 to 65536 uses")]
    Uses,
    /// A name with more than one use.
    #[error("an invite with a name has one use: two machines can't have one name")]
    NamedTwice,
    /// The name, a group or the family is invalid.
    #[error(
        "a name, a group or a family is 1 to 63 letters, digits, '-', '_' or '.', beginning with a \
         letter or digit"
    )]
    Name,
    #[error("an invite names at most 32 groups")]
    Groups,
    /// The token is already in the table.
    #[error("this token was issued before")]
    Twice,
    /// The table is full of valid tokens.
    #[error("16384 invites are valid at once: withdraw some")]
    Full,
}

impl TokenTerms {
    /// Sorts the groups and checks all terms.
    ///
    /// # Errors
    ///
    /// A number is out of range, or a name is invalid.
    pub fn checked(mut self) -> Result<TokenTerms, TermsError> {
        self.groups.sort();
        self.groups.dedup();
        if !(1..=USES_MAX).contains(&self.uses) {
            return Err(TermsError::Uses);
        }
        if self.name.is_some() && self.uses > 1 {
            return Err(TermsError::NamedTwice);
        }
        if self.groups.len() > GROUPS_MAX {
            return Err(TermsError::Groups);
        }
        let family = self.kind.router().and_then(|(family, _)| family);
        let names = self.name.iter().chain(&self.groups).map(String::as_str);
        let all = names.chain(family).all(is_name);
        all.then_some(self).ok_or(TermsError::Name)
    }
}

/// Reasons why an issued token is no longer valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenEnd {
    /// All uses are spent.
    Spent,
    Expired,
    Withdrawn,
}

#[derive(Clone, Debug)]
struct TokenEntry {
    terms: TokenTerms,
    used: u32,
    withdrawn: bool,
}

impl TokenEntry {
    fn ended(&self, unix_s: u64) -> Option<TokenEnd> {
        if self.withdrawn {
            Some(TokenEnd::Withdrawn)
        } else if self.used >= self.terms.uses {
            Some(TokenEnd::Spent)
        } else {
            (unix_s >= self.terms.expires_unix_s).then_some(TokenEnd::Expired)
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct Tokens(BTreeMap<TokenHash, TokenEntry>);

impl Tokens {
    /// Adds a token issued at `unix_s`, with terms from [`TokenTerms::checked`].
    ///
    /// # Errors
    ///
    /// The token is already known, or [`TOKENS_MAX`] others are valid.
    pub fn issue(
        &mut self,
        unix_s: u64,
        token: TokenHash,
        terms: TokenTerms,
    ) -> Result<(), TermsError> {
        if self.0.contains_key(&token) {
            return Err(TermsError::Twice);
        }
        if self.0.len() >= TOKENS_MAX {
            let ended = self.0.iter().filter(|(_, entry)| entry.ended(unix_s).is_some());
            let first = ended.min_by_key(|(_, entry)| entry.terms.expires_unix_s);
            let first = first.map(|(token, _)| *token).ok_or(TermsError::Full)?;
            self.0.remove(&first);
        }
        self.0.insert(token, TokenEntry { terms, used: 0, withdrawn: false });
        Ok(())
    }

    /// Terms of the token, or the reason why it is not valid at `unix_s`; `None` for an unknown
    /// token.
    pub fn standing(
        &self,
        unix_s: u64,
        token: &TokenHash,
    ) -> Option<Result<&TokenTerms, TokenEnd>> {
        let entry = self.0.get(token)?;
        Some(entry.ended(unix_s).map_or(Ok(&entry.terms), Err))
    }

    /// Counts a use.
    pub fn spend(&mut self, token: &TokenHash) {
        if let Some(entry) = self.0.get_mut(token) {
            entry.used = entry.used.saturating_add(1);
        }
    }

    /// Withdraws a token. Returns true if it is known.
    pub fn withdraw(&mut self, token: &TokenHash) -> bool {
        let entry = self.0.get_mut(token);
        entry.map(|entry| entry.withdrawn = true).is_some()
    }

    /// All known tokens: hash, terms, number of uses so far, and the reason if no longer valid.
    pub fn iter(
        &self,
        unix_s: u64,
    ) -> impl Iterator<Item = (&TokenHash, &TokenTerms, u32, Option<TokenEnd>)> {
        let all = self.0.iter();
        all.map(move |(token, entry)| (token, &entry.terms, entry.used, entry.ended(unix_s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(uses: u32, expires_unix_s: u64) -> TokenTerms {
        let (name, groups, kind) = (None, Vec::new(), TokenKind::Host);
        TokenTerms { uses, expires_unix_s, name, groups, approve: false, kind }
    }

    fn hash(n: u32) -> TokenHash {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_be_bytes());
        TokenHash(bytes)
    }

    #[test]
    fn a_token_ends_by_use_time_or_withdrawal_and_stays_so() {
        let mut tokens = Tokens::default();
        for n in 0..3 {
            tokens.issue(10, hash(n), terms(2, 100)).unwrap();
        }
        let standing = |tokens: &Tokens, at, n| {
            tokens.standing(at, &hash(n)).map(|standing| standing.map(|terms| terms.uses))
        };
        assert_eq!(standing(&tokens, 99, 0), Some(Ok(2)));
        assert_eq!(standing(&tokens, 100, 0), Some(Err(TokenEnd::Expired)));
        assert_eq!(standing(&tokens, 99, 9), None);
        tokens.spend(&hash(1));
        assert_eq!(standing(&tokens, 99, 1), Some(Ok(2)));
        tokens.spend(&hash(1));
        assert_eq!(standing(&tokens, 99, 1), Some(Err(TokenEnd::Spent)));
        // The reason stays the same after the expiry.
        assert_eq!(standing(&tokens, 1_000, 1), Some(Err(TokenEnd::Spent)));
        assert!(tokens.withdraw(&hash(2)) && !tokens.withdraw(&hash(9)));
        assert_eq!(standing(&tokens, 99, 2), Some(Err(TokenEnd::Withdrawn)));
        assert_eq!(tokens.issue(10, hash(2), terms(2, 100)), Err(TermsError::Twice));
        assert_eq!(tokens.iter(99).filter(|token| token.3.is_none()).count(), 1);
    }

    #[test]
    fn a_full_table_forgets_what_ended_and_nothing_else() {
        let mut tokens = Tokens::default();
        for n in 0..TOKENS_MAX as u32 {
            tokens.issue(10, hash(n), terms(1, 1_000 + u64::from(n))).unwrap();
        }
        let more = hash(u32::MAX);
        assert_eq!(tokens.issue(10, more, terms(1, 100)), Err(TermsError::Full));
        tokens.spend(&hash(7));
        tokens.spend(&hash(5));
        tokens.issue(10, more, terms(1, 100)).unwrap();
        assert!(
            tokens.standing(10, &hash(5)).is_none(),
            "the ended token with the earliest expiry"
        );
        assert!(tokens.standing(10, &hash(7)).is_some() && tokens.standing(10, &more).is_some());
        assert_eq!(tokens.iter(10).count(), TOKENS_MAX);
    }

    #[test]
    fn impossible_terms_are_refused() {
        let good = TokenTerms { name: Some("bob".into()), ..terms(1, 100) };
        assert_eq!(good.clone().checked(), Ok(good.clone()));
        let refused = |terms: TokenTerms| terms.checked().unwrap_err();
        assert_eq!(refused(terms(0, 1)), TermsError::Uses);
        assert_eq!(refused(terms(USES_MAX + 1, 1)), TermsError::Uses);
        assert_eq!(refused(TokenTerms { uses: 2, ..good.clone() }), TermsError::NamedTwice);
        assert_eq!(
            refused(TokenTerms { name: Some("-".into()), ..good.clone() }),
            TermsError::Name
        );
        let groups = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        assert_eq!(
            refused(TokenTerms { groups: groups(&["a", ""]), ..good.clone() }),
            TermsError::Name
        );
        let many = (0..33).map(|n| format!("g{n}")).collect();
        assert_eq!(refused(TokenTerms { groups: many, ..good.clone() }), TermsError::Groups);
        let family = |name: &str| TokenKind::Router { family: Some(name.into()), relay: true };
        assert_eq!(refused(TokenTerms { kind: family("a b"), ..good.clone() }), TermsError::Name);
        assert!(TokenTerms { kind: family("acme"), ..good.clone() }.checked().is_ok());
        let twice = TokenTerms { groups: groups(&["b", "a", "b"]), ..good }.checked().unwrap();
        assert_eq!(twice.groups, ["a", "b"]);
    }

    #[test]
    fn a_hash_is_of_its_token_alone_and_debug_says_nothing() {
        let token = Token::new([7; 16]);
        assert_eq!(token.hash(), Token::new([7; 16]).hash());
        assert_ne!(token.hash(), Token::new([8; 16]).hash());
        assert_eq!(format!("{token:?}"), "Token(hidden)");
    }
}
