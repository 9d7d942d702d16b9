//! Signatures only: the key pair of an authority, which takes part in no handshake.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::encoding::{base64, from_base64};
use crate::{Secret, kdf};

/// The public half of a [`SigningKey`]: 32 bytes, as text 44 characters of base64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VerifyKey(pub [u8; 32]);

impl VerifyKey {
    /// True if the holder of this key signed `msg` (Ed25519, RFC 8032).
    pub fn verify(&self, msg: &[u8], sig: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.0).verify(msg, sig).is_ok()
    }
}

impl fmt::Display for VerifyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64(&self.0))
    }
}

/// Error: a text is not an authority's public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected an authority's public key: 44 characters of base64, as `shoal authority init` \
     prints them"
)]
pub struct VerifyKeyError;

impl FromStr for VerifyKey {
    type Err = VerifyKeyError;

    fn from_str(text: &str) -> Result<VerifyKey, VerifyKeyError> {
        let bytes = from_base64(text.trim()).ok_or(VerifyKeyError)?;
        bytes.try_into().map(VerifyKey).map_err(|_| VerifyKeyError)
    }
}

/// A key that only signs. Clones share one copy.
#[derive(Clone)]
pub struct SigningKey {
    seed: Arc<Secret<32>>,
    pair: Arc<Ed25519KeyPair>,
}

impl SigningKey {
    /// A new key from 32 bytes of the operating system's randomness.
    pub fn generate(entropy: [u8; 32]) -> SigningKey {
        let entropy = Secret::new(entropy);
        SigningKey::from_seed(kdf(entropy.expose(), "shoal authority seed v1", &[]))
    }

    /// The key that follows from a key file's 32 bytes.
    pub fn from_seed(seed: [u8; 32]) -> SigningKey {
        let seed = Secret::new(seed);
        let key = Secret::new(kdf(seed.expose(), "shoal authority ed25519 v1", &[]));
        // Ed25519 accepts every 32-byte string as a seed (RFC 8032 section 5.1.5).
        let pair = Ed25519KeyPair::from_seed_unchecked(key.expose())
            .expect("any 32 bytes are an Ed25519 seed");
        SigningKey { seed: Arc::new(seed), pair: Arc::new(pair) }
    }

    /// The seed, for writing the key file.
    pub fn seed(&self) -> &Secret<32> {
        &self.seed
    }

    /// The public half.
    pub fn public(&self) -> VerifyKey {
        let mut out = [0; 32];
        out.copy_from_slice(self.pair.public_key().as_ref());
        VerifyKey(out)
    }

    /// Signs `msg` with Ed25519, which is deterministic.
    pub fn sign(&self, msg: &[u8]) -> [u8; 64] {
        let mut out = [0; 64];
        out.copy_from_slice(self.pair.sign(msg).as_ref());
        out
    }
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Identity;

    #[test]
    fn signatures_hold_for_key_and_message_only() {
        let key = SigningKey::generate([1; 32]);
        let again = SigningKey::from_seed(*key.seed().expose());
        assert_eq!(key.public(), again.public());
        let sig = key.sign(b"list");
        assert!(key.public().verify(b"list", &sig));
        assert!(!key.public().verify(b"lisp", &sig));
        assert!(!SigningKey::generate([2; 32]).public().verify(b"list", &sig));
        assert_eq!(key.public().to_string().parse(), Ok(key.public()));
        assert_eq!("short".parse::<VerifyKey>(), Err(VerifyKeyError));
        assert!(!format!("{key:?}").contains("1"));
    }

    /// If one seed file is used for a node and for an authority, neither may sign for the other.
    #[test]
    fn a_seed_means_different_keys_for_nodes_and_authorities() {
        assert_ne!(
            SigningKey::from_seed([7; 32]).public().0,
            Identity::from_seed([7; 32]).public().sign
        );
    }
}
