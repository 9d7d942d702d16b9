//! Primitives that the simulator replaces: those used for every frame and route, whose cost
//! matters, and those that draw randomness from the operating system.

use crate::{AeadKey, BadKem, BadTag, KEM_CIPHERTEXT_LEN, KEM_PUBLIC_LEN, KemSecret, PlantedFault};
use crate::{PublicKey, Secret, Suite, kem_encapsulate};

/// A key that seals frames.
pub trait Aead: Sized {
    /// Expands `key` for `suite`.
    fn new(suite: Suite, key: &[u8; 32]) -> Self;

    /// Seals `body` in place and writes its tag. Never use a counter twice.
    fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]);

    /// Opens `body_and_tag` in place: the plaintext is all but the last 16 bytes.
    ///
    /// # Errors
    ///
    /// The tag does not verify; the body is then undefined.
    fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag>;

    /// Deliberate fault of the machines that use such keys. Only the simulator's keys have one.
    #[inline]
    fn flaw() -> Option<PlantedFault> {
        None
    }
}

/// Primitives that seal frames, check proofs and make KEM secrets for a machine. A machine has them
/// as a type parameter, fixed when a program is compiled. Its default is [`StandardCiphers`], the
/// only implementation here. The simulator has others, which no other crate can name.
pub trait Ciphers: 'static {
    /// Seals the frames of sessions.
    type Aead: Aead;

    /// True if the holder of `key` signed `msg` (Ed25519, RFC 8032).
    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool;

    /// A KEM key pair for one handshake. The library draws it from the operating system's
    /// randomness. The simulator's ciphers derive it from `seed` instead, a secret of the
    /// handshake.
    fn kem_pair(_seed: &[u8; 32]) -> Result<(KemSecret, Box<[u8; KEM_PUBLIC_LEN]>), BadKem> {
        KemSecret::generate()
    }

    /// A new secret for the holder of `public`, and the ciphertext that carries it. `seed` is used
    /// as in [`Self::kem_pair`].
    fn kem_encapsulate(
        _seed: &[u8; 32],
        public: &[u8],
    ) -> Result<(Box<[u8; KEM_CIPHERTEXT_LEN]>, Secret<32>), BadKem> {
        kem_encapsulate(public)
    }
}

/// The ciphers of real networks.
#[derive(Clone, Copy, Debug)]
pub struct StandardCiphers;

impl Ciphers for StandardCiphers {
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
