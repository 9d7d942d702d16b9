//! Identity of a node: one seed, two key pairs, one text form.

use core::fmt;
use core::str::FromStr;
use std::sync::Arc;

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

use crate::encoding::{base64, from_base64};
use crate::{DhSecret, Secret, kdf};

/// A node's public identity: 64 bytes, as text 88 characters of base64.
///
/// `Debug` hides the key, because logs must not say who talks to whom. `Display` prints it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey {
    /// X25519 key, which proves the other party of a handshake.
    pub dh: [u8; 32],
    /// Ed25519 key, which proves the signer of a route.
    pub sign: [u8; 32],
}

impl PublicKey {
    /// Length in bytes.
    pub const LEN: usize = 64;

    /// Wire form: `dh`, then `sign`.
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut out = [0; 64];
        out[..32].copy_from_slice(&self.dh);
        out[32..].copy_from_slice(&self.sign);
        out
    }

    /// From the wire form. Whether the halves are valid points is checked when they are used.
    pub fn from_bytes(bytes: &[u8; 64]) -> PublicKey {
        let (mut dh, mut sign) = ([0; 32], [0; 32]);
        dh.copy_from_slice(&bytes[..32]);
        sign.copy_from_slice(&bytes[32..]);
        PublicKey { dh, sign }
    }

    /// True if one of the halves is a point of small order. Such a key belongs to nobody. Under it
    /// some signatures verify for every message, and every key agreement gives one constant secret.
    pub fn is_weak(&self) -> bool {
        let mut y = self.sign;
        // The top bit is the sign of x, which small order does not depend on.
        y[31] &= 0x7f;
        SMALL_ORDER.contains(&y) || DhSecret::new(&[1; 32]).agree(&self.dh).is_err()
    }

    /// True if the holder of this key signed `msg` (Ed25519, RFC 8032).
    pub fn verify(&self, msg: &[u8], sig: &[u8; 64]) -> bool {
        UnparsedPublicKey::new(&ED25519, &self.sign).verify(msg, sig).is_ok()
    }
}

/// The y coordinates of Ed25519's eight points of small order: 0, 1, -1 and two of order 8. Second
/// encodings (p, p + 1) are listed too.
const SMALL_ORDER: [[u8; 32]; 7] = [
    [0; 32],
    near_power(1, 0, 0),
    [
        0x26, 0xe8, 0x95, 0x8f, 0xc2, 0xb2, 0x27, 0xb0, 0x45, 0xc3, 0xf4, 0x89, 0xf2, 0xef, 0x98,
        0xf0, 0xd5, 0xdf, 0xac, 0x05, 0xd3, 0xc6, 0x33, 0x39, 0xb1, 0x38, 0x02, 0x88, 0x6d, 0x53,
        0xfc, 0x05,
    ],
    [
        0xc7, 0x17, 0x6a, 0x70, 0x3d, 0x4d, 0xd8, 0x4f, 0xba, 0x3c, 0x0b, 0x76, 0x0d, 0x10, 0x67,
        0x0f, 0x2a, 0x20, 0x53, 0xfa, 0x2c, 0x39, 0xcc, 0xc6, 0x4e, 0xc7, 0xfd, 0x77, 0x92, 0xac,
        0x03, 0x7a,
    ],
    near_power(0xec, 0xff, 0x7f),
    near_power(0xed, 0xff, 0x7f),
    near_power(0xee, 0xff, 0x7f),
];

/// 32 bytes, all equal except the first and the last.
const fn near_power(first: u8, middle: u8, last: u8) -> [u8; 32] {
    let mut out = [middle; 32];
    out[0] = first;
    out[31] = last;
    out
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&base64(&self.to_bytes()))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PublicKey(hidden)")
    }
}

/// Error: a text is not a public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a public key: 88 characters of base64, as `shoal pubkey` prints them")]
pub struct KeyError;

impl FromStr for PublicKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<PublicKey, KeyError> {
        let bytes = from_base64(text.trim()).ok_or(KeyError)?;
        let bytes: [u8; 64] = bytes.try_into().map_err(|_| KeyError)?;
        Ok(PublicKey::from_bytes(&bytes))
    }
}

struct Inner {
    seed: Secret<32>,
    dh: DhSecret,
    sign: Ed25519KeyPair,
    public: PublicKey,
}

/// Secret identity of a node. Clones share one copy of the keys.
#[derive(Clone)]
pub struct Identity(Arc<Inner>);

impl Identity {
    /// A new identity from 32 bytes of the operating system's randomness.
    pub fn generate(entropy: [u8; 32]) -> Identity {
        let entropy = Secret::new(entropy);
        Identity::from_seed(kdf(entropy.expose(), "shoal identity seed v1", &[]))
    }

    /// The identity that follows from a key file's 32 bytes.
    pub fn from_seed(seed: [u8; 32]) -> Identity {
        let seed = Secret::new(seed);
        let dh_key = Secret::new(kdf(seed.expose(), "shoal identity x25519 v1", &[]));
        let sign_key = Secret::new(kdf(seed.expose(), "shoal identity ed25519 v1", &[]));
        let dh = DhSecret::new(dh_key.expose());
        // Ed25519 accepts every 32-byte string as a seed (RFC 8032 section 5.1.5).
        let sign = Ed25519KeyPair::from_seed_unchecked(sign_key.expose())
            .expect("any 32 bytes are an Ed25519 seed");
        let mut sign_public = [0; 32];
        sign_public.copy_from_slice(sign.public_key().as_ref());
        let public = PublicKey { dh: *dh.public(), sign: sign_public };
        Identity(Arc::new(Inner { seed, dh, sign, public }))
    }

    /// The seed, for writing the key file.
    pub fn seed(&self) -> &Secret<32> {
        &self.0.seed
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.0.public
    }

    /// The handshake key.
    pub fn dh(&self) -> &DhSecret {
        &self.0.dh
    }

    /// Signs `msg` with Ed25519, which is deterministic.
    pub fn sign(&self, msg: &[u8]) -> [u8; 64] {
        let mut out = [0; 64];
        out.copy_from_slice(self.0.sign.sign(msg).as_ref());
        out
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_seed_is_an_identity() {
        let a = Identity::generate([1; 32]);
        let b = Identity::from_seed(*a.seed().expose());
        assert_eq!(a.public(), b.public());
        assert_ne!(a.public(), Identity::generate([2; 32]).public());
        assert_ne!(a.public().dh, a.public().sign);
    }

    #[test]
    fn signatures_verify_for_the_message_and_key_only() {
        let (a, b) = (Identity::generate([1; 32]), Identity::generate([2; 32]));
        let mut sig = a.sign(b"route");
        assert!(a.public().verify(b"route", &sig));
        assert!(!a.public().verify(b"rout", &sig));
        assert!(!b.public().verify(b"route", &sig));
        sig[5] ^= 1;
        assert!(!a.public().verify(b"route", &sig));
    }

    #[test]
    fn keys_of_small_order_are_told_apart() {
        let good = Identity::generate([1; 32]).public();
        assert!(!good.is_weak());
        let mut forged = [0; 64];
        forged[0] = 1;
        // The neutral point: a forged signature verifies for every message.
        let neutral = PublicKey { sign: near_power(1, 0, 0), ..good };
        assert!(neutral.verify(b"anything", &forged));
        for y in SMALL_ORDER {
            for sign_bit in [0, 0x80] {
                let mut sign = y;
                sign[31] |= sign_bit;
                assert!(PublicKey { sign, ..good }.is_weak(), "{sign:?}");
            }
        }
        assert!(PublicKey { dh: [0; 32], ..good }.is_weak());
        assert!(PublicKey { dh: near_power(1, 0, 0), ..good }.is_weak());
    }

    #[test]
    fn text_round_trips_and_debug_says_nothing() {
        let key = Identity::generate([3; 32]).public();
        let text = key.to_string();
        assert_eq!(text.len(), 88);
        assert_eq!(text.parse(), Ok(key));
        assert_eq!(format!("{text}\n").parse(), Ok(key));
        assert_eq!(text[1..].parse::<PublicKey>(), Err(KeyError));
        assert_eq!("".parse::<PublicKey>(), Err(KeyError));
        assert!(!format!("{key:?}{:?}", Identity::generate([3; 32])).contains(&text[..8]));
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text: String) {
            let _ = text.parse::<PublicKey>();
        }
    }
}
