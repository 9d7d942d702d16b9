//! Tokens that were given out, and how many uses each has left.
//!
//! A table holds hashes: who reads it, or the ledger it is made from, can't use a token. What was
//! spent, expired or withdrawn stays known, so that its bearer hears the reason; when the table is
//! full the one that ended first is forgotten, and is then as unknown as one that never was.

use std::collections::BTreeMap;
use std::fmt;

use shoal_crypto::{Secret, kdf};
use shoal_directory::{GROUPS_MAX, is_name};

/// Tokens that a table knows at once.
pub const TOKENS_MAX: usize = 16_384;
/// Most uses of a token.
pub const USES_MAX: u32 = 65_536;

/// The right to become a member. Only its [`TokenHash`] is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Secret<{ Token::LEN }>);

impl Token {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// A token from random bytes.
    pub fn new(bytes: [u8; Token::LEN]) -> Token {
        Token(Secret::new(bytes))
    }

    /// The bytes, for an invite or a handshake.
    pub fn expose(&self) -> &[u8; Token::LEN] {
        self.0.expose()
    }

    /// What registrars keep of it.
    pub fn hash(&self) -> TokenHash {
        TokenHash(kdf(&[0; 32], "shoal token 1", &[self.expose()]))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(hidden)")
    }
}

/// Names a token to whoever has seen it, and gives it to nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Length in bytes.
    pub const LEN: usize = 32;
}

/// What a token is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// How many machines may join by it; 1 to [`USES_MAX`].
    pub uses: u32,
    /// From this time on, in seconds since 1970, it is worth nothing.
    pub expires_unix_s: u64,
    /// The name that the machine gets, whatever it wishes. Only with one use.
    pub name: Option<String>,
    /// Groups that its members are in; ascending, at most 32.
    pub groups: Vec<String>,
    /// Whether somebody must approve each machine.
    pub approve: bool,
}

/// Why terms are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// Too few or too many uses.
    #[error("an invite has 1 to 65536 uses")]
    Uses,
    /// Several machines can't have one name.
    #[error("an invite with a name has one use: two machines can't have one name")]
    NamedTwice,
    /// No name.
    #[error(
        "a name, and a group, is 1 to 63 letters, digits, '-', '_' or '.', beginning with a letter \
         or digit"
    )]
    Name,
    /// Too many groups.
    #[error("an invite names at most 32 groups")]
    Groups,
    /// The token exists.
    #[error("this token was given out before")]
    Twice,
    /// No room.
    #[error("16384 invites are valid at once: withdraw some")]
    Full,
}

impl Terms {
    /// Sorts its groups, and checks them and all else.
    ///
    /// # Errors
    ///
    /// A number out of its range, or a text that is no name.
    pub fn checked(mut self) -> Result<Terms, TermsError> {
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
        let all = self.name.iter().chain(&self.groups).all(|name| is_name(name));
        all.then_some(self).ok_or(TermsError::Name)
    }
}

/// Why a token that was given out is worth nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All its uses are.
    Spent,
    /// Its time is over.
    Expired,
    /// Its registrar took it back.
    Withdrawn,
}

#[derive(Clone, Debug)]
struct Entry {
    terms: Terms,
    used: u32,
    withdrawn: bool,
}

impl Entry {
    fn ended(&self, unix_s: u64) -> Option<Ended> {
        if self.withdrawn {
            Some(Ended::Withdrawn)
        } else if self.used >= self.terms.uses {
            Some(Ended::Spent)
        } else {
            (unix_s >= self.terms.expires_unix_s).then_some(Ended::Expired)
        }
    }
}

/// See the module's documentation.
#[derive(Clone, Debug, Default)]
pub struct Tokens(BTreeMap<TokenHash, Entry>);

impl Tokens {
    /// Takes in a token that was given out at `unix_s`, with terms that were
    /// [`Terms::checked`].
    ///
    /// # Errors
    ///
    /// It is known, or [`TOKENS_MAX`] others hold.
    pub fn issue(&mut self, unix_s: u64, token: TokenHash, terms: Terms) -> Result<(), TermsError> {
        if self.0.contains_key(&token) {
            return Err(TermsError::Twice);
        }
        if self.0.len() >= TOKENS_MAX {
            let ended = self.0.iter().filter(|(_, entry)| entry.ended(unix_s).is_some());
            let first = ended.min_by_key(|(_, entry)| entry.terms.expires_unix_s);
            let first = first.map(|(token, _)| *token).ok_or(TermsError::Full)?;
            self.0.remove(&first);
        }
        self.0.insert(token, Entry { terms, used: 0, withdrawn: false });
        Ok(())
    }

    /// What the token is good for at `unix_s`; none where nobody knows it.
    pub fn standing(&self, unix_s: u64, token: &TokenHash) -> Option<Result<&Terms, Ended>> {
        let entry = self.0.get(token)?;
        Some(entry.ended(unix_s).map_or(Ok(&entry.terms), Err))
    }

    /// Counts a use.
    pub fn spend(&mut self, token: &TokenHash) {
        if let Some(entry) = self.0.get_mut(token) {
            entry.used = entry.used.saturating_add(1);
        }
    }

    /// Takes a token back; whether it is known.
    pub fn withdraw(&mut self, token: &TokenHash) -> bool {
        let entry = self.0.get_mut(token);
        entry.map(|entry| entry.withdrawn = true).is_some()
    }

    /// Every token that is known: its terms, how often it was used, and why it holds no more.
    pub fn iter(
        &self,
        unix_s: u64,
    ) -> impl Iterator<Item = (&TokenHash, &Terms, u32, Option<Ended>)> {
        let all = self.0.iter();
        all.map(move |(token, entry)| (token, &entry.terms, entry.used, entry.ended(unix_s)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(uses: u32, expires_unix_s: u64) -> Terms {
        Terms { uses, expires_unix_s, name: None, groups: Vec::new(), approve: false }
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
        assert_eq!(standing(&tokens, 100, 0), Some(Err(Ended::Expired)));
        assert_eq!(standing(&tokens, 99, 9), None);
        tokens.spend(&hash(1));
        assert_eq!(standing(&tokens, 99, 1), Some(Ok(2)));
        tokens.spend(&hash(1));
        assert_eq!(standing(&tokens, 99, 1), Some(Err(Ended::Spent)));
        // Who asks after the end hears what ended it.
        assert_eq!(standing(&tokens, 1_000, 1), Some(Err(Ended::Spent)));
        assert!(tokens.withdraw(&hash(2)) && !tokens.withdraw(&hash(9)));
        assert_eq!(standing(&tokens, 99, 2), Some(Err(Ended::Withdrawn)));
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
        assert!(tokens.standing(10, &hash(5)).is_none(), "the one that would have ended first");
        assert!(tokens.standing(10, &hash(7)).is_some() && tokens.standing(10, &more).is_some());
        assert_eq!(tokens.iter(10).count(), TOKENS_MAX);
    }

    #[test]
    fn impossible_terms_are_refused() {
        let good = Terms { name: Some("bob".into()), ..terms(1, 100) };
        assert_eq!(good.clone().checked(), Ok(good.clone()));
        let refused = |terms: Terms| terms.checked().unwrap_err();
        assert_eq!(refused(terms(0, 1)), TermsError::Uses);
        assert_eq!(refused(terms(USES_MAX + 1, 1)), TermsError::Uses);
        assert_eq!(refused(Terms { uses: 2, ..good.clone() }), TermsError::NamedTwice);
        assert_eq!(refused(Terms { name: Some("-".into()), ..good.clone() }), TermsError::Name);
        let groups = |names: &[&str]| names.iter().map(|&name| name.into()).collect();
        assert_eq!(refused(Terms { groups: groups(&["a", ""]), ..good.clone() }), TermsError::Name);
        let many = (0..33).map(|n| format!("g{n}")).collect();
        assert_eq!(refused(Terms { groups: many, ..good.clone() }), TermsError::Groups);
        let twice = Terms { groups: groups(&["b", "a", "b"]), ..good }.checked().unwrap();
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
