//! Six words that two people compare to verify the other end of a handshake.
//!
//! The words encode the first 66 bits of a hash of the handshake, by the English list of BIP 39.
//! That list has 2,048 common words, each with different first four letters. Both ends add fresh
//! randomness to a handshake, so nobody can search for keys that give the same words as another
//! handshake.

use core::fmt;

use bip39::Language;
use shoal_crypto::kdf;

/// Number of words.
pub const WORDS: usize = 6;
/// Bits per word.
const BITS: u32 = 11;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Words([u16; WORDS]);

impl Words {
    /// The words for a handshake hash.
    pub fn of(handshake: &[u8; 32]) -> Words {
        let long = kdf(handshake, "shoal words 1", &[]);
        let mut first = [0; 16];
        first.copy_from_slice(&long[..16]);
        let bits = u128::from_be_bytes(first);
        let word = |at| bits >> (u128::BITS - BITS * (at as u32 + 1)) & ((1 << BITS) - 1);
        Words(core::array::from_fn(|at| word(at) as u16))
    }

    pub fn iter(&self) -> impl Iterator<Item = &'static str> {
        let list = Language::English.word_list();
        self.0.map(|at| list[usize::from(at)]).into_iter()
    }

    /// True if the typed `text` means these words. Separators don't matter, and only the first four
    /// letters of each word count.
    pub fn are(&self, text: &str) -> bool {
        let start = |word: &str| word.chars().take(4).collect::<String>().to_lowercase();
        let typed = text.split(|c: char| !c.is_alphabetic()).filter(|word| !word.is_empty());
        typed.map(start).eq(self.iter().map(start))
    }
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.iter().collect::<Vec<_>>().join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Fixes the words for a hash: both ends must compute the same ones.
    #[test]
    fn golden_words() {
        assert_eq!(Words::of(&[0; 32]).to_string(), "source plastic walk dirt name bacon");
        assert_eq!(Words::of(&[7; 32]).to_string(), "evolve trophy double carpet hollow pluck");
    }

    #[test]
    fn every_bit_of_a_hash_counts() {
        let mut seen = BTreeSet::new();
        for bit in 0..256 {
            let mut hash = [3; 32];
            hash[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(Words::of(&hash).to_string()));
        }
        let all: BTreeSet<_> = seen.iter().flat_map(|words| words.split(' ')).collect();
        assert!(all.len() > 900, "{} different words of 1,536", all.len());
    }

    #[test]
    fn typed_words_are_compared_by_their_first_four_letters() {
        let words = Words::of(&[0; 32]);
        let text = words.to_string();
        assert!(words.are(&text) && words.are(&text.to_uppercase().replace(' ', ", ")));
        let short: Vec<_> = words.iter().map(|word| &word[..word.len().min(4)]).collect();
        assert!(words.are(&short.join("-")));
        let mut swapped: Vec<_> = words.iter().collect();
        swapped.swap(0, 1);
        assert!(!words.are(&swapped.join(" ")));
        assert!(!words.are(&short[..5].join(" ")) && !words.are(""));
        assert!(!words.are(&format!("{text} zoo")));
        assert!(!words.are(&Words::of(&[1; 32]).to_string()));
    }

    /// Checks the module documentation's statement about the list.
    #[test]
    fn the_first_four_letters_tell_words_apart() {
        let list = Language::English.word_list();
        let starts: BTreeSet<_> = list.iter().map(|word| &word[..word.len().min(4)]).collect();
        assert_eq!((list.len(), starts.len()), (2_048, 2_048));
    }
}
