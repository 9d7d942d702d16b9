//! X25519.

use core::fmt;

use aws_lc_rs::agreement::{PrivateKey, UnparsedPublicKey, X25519, agree};

use crate::Secret;

/// Error: the other side's point gives an all-zero secret, which RFC 7748 section 6.1 refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the public key gives no shared secret")]
pub struct BadPoint;

/// An X25519 private key with its public half.
pub struct DhSecret {
    key: PrivateKey,
    public: [u8; 32],
}

impl DhSecret {
    /// From 32 secret random bytes.
    pub fn new(bytes: &[u8; 32]) -> DhSecret {
        // X25519 accepts every 32-byte string as a private key (RFC 7748 section 5).
        let key = PrivateKey::from_private_key(&X25519, bytes).expect("any 32 bytes are a key");
        let computed = key.compute_public_key().expect("an X25519 key has a public half");
        let mut public = [0; 32];
        public.copy_from_slice(computed.as_ref());
        DhSecret { key, public }
    }

    /// The public half.
    pub const fn public(&self) -> &[u8; 32] {
        &self.public
    }

    /// The secret shared with the holder of `public`.
    pub fn agree(&self, public: &[u8; 32]) -> Result<Secret<32>, BadPoint> {
        let public = UnparsedPublicKey::new(&X25519, public.as_slice());
        agree(&self.key, public, BadPoint, |shared| {
            let bytes = shared.try_into().map_err(|_| BadPoint)?;
            Ok(Secret::new(bytes))
        })
    }
}

impl fmt::Debug for DhSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DhSecret(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::from_hex;

    #[test]
    fn both_sides_agree() {
        let (a, b) = (DhSecret::new(&[1; 32]), DhSecret::new(&[2; 32]));
        assert_eq!(a.agree(b.public()), b.agree(a.public()));
        assert_ne!(a.agree(b.public()), a.agree(a.public()));
    }

    #[test]
    fn zero_points_are_refused() {
        assert_eq!(DhSecret::new(&[1; 32]).agree(&[0; 32]), Err(BadPoint));
    }

    /// RFC 7748 section 6.1.
    #[test]
    fn published_vector() {
        let hex = |s: &str| from_hex(s).unwrap();
        let alice =
            DhSecret::new(&hex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"));
        let bob = hex("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
        let shared = hex("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
        assert_eq!(alice.agree(&bob), Ok(Secret::new(shared)));
    }
}
