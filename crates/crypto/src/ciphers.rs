//! The primitives that every frame and every route costs, as traits that the simulator replaces.

use crate::{AeadKey, BadTag, Flaw, PublicKey, Suite};

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

/// What a machine seals frames and checks proofs with. It is a type, so that it is fixed when a
/// program is compiled. Code that leaves its type parameter out gets [`Standard`], the only one
/// here; the simulator has others, which nothing else can name.
pub trait Ciphers: 'static {
    /// Seals the frames of sessions.
    type Aead: Aead;

    /// True when the holder of `key` signed `msg` (Ed25519, RFC 8032).
    fn verify(key: &PublicKey, msg: &[u8], sig: &[u8; 64]) -> bool;
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
