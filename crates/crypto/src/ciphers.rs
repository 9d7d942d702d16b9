//! The primitives that the simulator replaces: those that every frame and every route costs, and
//! those that draw randomness of the operating system.

use crate::{AeadKey, BadKem, BadTag, Flaw, KEM_CIPHERTEXT_LEN, KEM_PUBLIC_LEN, KemSecret};
use crate::{PublicKey, Secret, Suite, kem_encapsulate};

/// A key that seals frames.
pub trait Aead: Sized {
    /// Expands `key` for `suite`.
    fn new(suite: Suite, key: &[u8; 32]) -> Self;

    /// Seals `body` in place and writes its tag; never twice with one counter.
    fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]);

    /// Opens `body_and_tag` in place: the plaintext stands in all but the last 16 bytes.
    ///
    /// # Errors
    ///
    /// The tag does not verify; the body is then undefined.
    fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag>;

    /// What the machines that use such keys do wrong on purpose. Only the simulator's have a flaw.
    #[inline]
    fn flaw() -> Option<Flaw> {
        None
    }
}

/// Seals frames, checks proofs and makes KEM secrets for a machine. A type names them, so that they
/// are fixed when a program is compiled. Code that leaves its type parameter out gets [`Standard`],
/// the only one here; the simulator has others, which nothing else can name.
pub trait Ciphers: 'static {
    /// Seals the frames of sessions.
    type Aead: Aead;

    /// True when the holder of `key` signed `msg` (Ed25519, RFC 8032).
    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool;

    /// A KEM key pair for one handshake. The library draws it from the operating system. `seed` is
    /// a secret of the handshake, from which the simulator's ciphers draw instead.
    fn kem_pair(_seed: &[u8; 32]) -> Result<(KemSecret, Box<[u8; KEM_PUBLIC_LEN]>), BadKem> {
        KemSecret::generate()
    }

    /// A fresh secret for the holder of `public`, and the ciphertext that carries it. `seed` is as
    /// in [`Self::kem_pair`].
    fn kem_encapsulate(
        _seed: &[u8; 32],
        public: &[u8],
    ) -> Result<(Box<[u8; KEM_CIPHERTEXT_LEN]>, Secret<32>), BadKem> {
        kem_encapsulate(public)
    }
}

/// The ciphers of real networks.
#[derive(Clone, Copy, Debug)]
pub struct Standard;

impl Ciphers for Standard {
    type Aead = AeadKey;

    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool {
        key.verify(msg, sig)
    }
}

impl Aead for AeadKey {
    fn new(suite: Suite, key: &[u8; 32]) -> AeadKey {
        AeadKey::new(suite, key)
    }

    fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]) {
        AeadKey::seal(self, counter, aad, body, tag_out);
    }

    fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag> {
        AeadKey::open(self, counter, aad, body_and_tag)
    }
}
