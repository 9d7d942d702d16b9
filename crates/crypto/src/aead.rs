//! The two AEAD suites, with Shoal's one nonce layout.

use core::fmt;

use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

/// Which AEAD seals the frames of a session. The values travel in the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-256-GCM: where both ends have AES instructions.
    Aes256Gcm = 1,
    /// ChaCha20-Poly1305: otherwise.
    ChaCha20Poly1305 = 2,
}

impl Suite {
    /// What this processor should use, best first: without AES instructions AES-GCM is slow and its
    /// table look-ups can leak, so it is not among them.
    pub fn for_this_cpu() -> &'static [Suite] {
        #[cfg(target_arch = "x86_64")]
        let aes =
            std::is_x86_feature_detected!("aes") && std::is_x86_feature_detected!("pclmulqdq");
        #[cfg(target_arch = "aarch64")]
        let aes = std::arch::is_aarch64_feature_detected!("aes")
            && std::arch::is_aarch64_feature_detected!("pmull");
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let aes = false;
        match aes {
            true => &[Suite::Aes256Gcm, Suite::ChaCha20Poly1305],
            false => &[Suite::ChaCha20Poly1305],
        }
    }

    /// From the byte in the handshake.
    pub const fn from_byte(byte: u8) -> Option<Suite> {
        match byte {
            1 => Some(Suite::Aes256Gcm),
            2 => Some(Suite::ChaCha20Poly1305),
            _ => None,
        }
    }

    /// Name for people and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }
}

/// The tag did not verify. The body is then undefined and must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the seal does not verify: corrupted, forged, or sealed under another key")]
pub struct BadTag;

/// One AEAD key. Never use a counter twice for sealing under one key.
///
/// The nonce is four zero bytes and the counter as a big-endian `u64` (Noise section 12.4).
pub struct AeadKey(LessSafeKey);

impl AeadKey {
    /// Length of a tag in bytes.
    pub const TAG_LEN: usize = 16;

    /// Expands `key` for `suite`.
    pub fn new(suite: Suite, key: &[u8; 32]) -> AeadKey {
        let algorithm = match suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        // Both algorithms take 32 bytes, which is the only thing that can be wrong here.
        let key = UnboundKey::new(algorithm, key).expect("key length is fixed by the type");
        AeadKey(LessSafeKey::new(key))
    }

    fn nonce(counter: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&counter.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals `body` in place and writes its tag.
    pub fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]) {
        // Fails only for a body beyond 2^36 bytes (RFC 5116), which no caller can hold.
        let tag = self
            .0
            .seal_in_place_separate_tag(Self::nonce(counter), Aad::from(aad), body)
            .expect("body is far below the limit of the AEAD");
        tag_out.copy_from_slice(tag.as_ref());
    }

    /// Opens `body_and_tag` in place: the plaintext stands in all but the last 16 bytes.
    pub fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag> {
        self.0
            .open_in_place(Self::nonce(counter), Aad::from(aad), body_and_tag)
            .map(|_| ())
            .map_err(|_| BadTag)
    }
}

impl fmt::Debug for AeadKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AeadKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn opens_what_it_sealed_and_nothing_else(
            key: [u8; 32], counter: u64, aad: [u8; 13],
            body in proptest::collection::vec(any::<u8>(), 0..200), flip: u16, chacha: bool,
        ) {
            let suite = if chacha { Suite::ChaCha20Poly1305 } else { Suite::Aes256Gcm };
            let key = AeadKey::new(suite, &key);
            let mut sealed = body.clone();
            let mut tag = [0; 16];
            key.seal(counter, &aad, &mut sealed, &mut tag);
            sealed.extend_from_slice(&tag);
            let mut good = sealed.clone();
            prop_assert_eq!(key.open(counter, &aad, &mut good), Ok(()));
            prop_assert_eq!(&good[..body.len()], &body[..]);
            prop_assert_eq!(key.open(counter ^ 1, &aad, &mut sealed.clone()), Err(BadTag));
            prop_assert_eq!(key.open(counter, &aad[1..], &mut sealed.clone()), Err(BadTag));
            let bit = usize::from(flip) % (sealed.len() * 8);
            sealed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(key.open(counter, &aad, &mut sealed), Err(BadTag));
        }
    }

    #[test]
    fn short_input_is_a_bad_tag() {
        let key = AeadKey::new(Suite::Aes256Gcm, &[0; 32]);
        assert_eq!(key.open(0, &[], &mut [0; 15]), Err(BadTag));
        assert_eq!(key.open(0, &[], &mut []), Err(BadTag));
    }

    /// McGrew and Viega, "The Galois/Counter Mode of Operation", test case 14: zero key and nonce.
    #[test]
    fn gcm_published_vector() {
        let key = AeadKey::new(Suite::Aes256Gcm, &[0; 32]);
        let (mut body, mut tag) = ([0; 16], [0; 16]);
        key.seal(0, &[], &mut body, &mut tag);
        assert_eq!(u128::from_be_bytes(body), 0xcea7_403d_4d60_6b6e_074e_c5d3_baf3_9d18);
        assert_eq!(u128::from_be_bytes(tag), 0xd0d1_c8a7_9999_6bf0_265b_98b5_d48a_b919);
    }
}
