//! AEAD suites, with the one nonce layout that Shoal uses.

use core::fmt;

use aegis::aegis256::Aegis256;
use aegis::aegis256x2::Aegis256X2;
use aegis::aegis256x4::Aegis256X4;
use aws_lc_rs::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use zeroize::Zeroizing;

/// AEAD that seals the frames of a session. The values are part of the handshake. The fastest suite
/// depends on the processors of both ends ([`crate::SuiteSupport::agree`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Suite {
    /// AES-256-GCM (NIST SP 800-38D).
    Aes256Gcm = 1,
    /// ChaCha20-Poly1305 (RFC 8439): the only suite that needs no AES instructions.
    ChaCha20Poly1305 = 2,
    /// AEGIS-256X4 (RFC 10032) with tags of 128 bits: four states side by side.
    Aegis256X4 = 3,
    /// AEGIS-256 (RFC 10032) with tags of 128 bits: one state.
    Aegis256 = 4,
    /// AEGIS-256X2 (RFC 10032) with tags of 128 bits: two states side by side.
    Aegis256X2 = 5,
}

impl Suite {
    /// All suites, in the order of their values.
    pub const ALL: [Suite; 5] = [
        Suite::Aes256Gcm,
        Suite::ChaCha20Poly1305,
        Suite::Aegis256X4,
        Suite::Aegis256,
        Suite::Aegis256X2,
    ];

    /// From the byte in the handshake.
    pub const fn from_byte(byte: u8) -> Option<Suite> {
        match byte {
            1..=5 => Some(Self::ALL[byte as usize - 1]),
            _ => None,
        }
    }

    /// Name for people and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Suite::Aes256Gcm => "aes-256-gcm",
            Suite::ChaCha20Poly1305 => "chacha20-poly1305",
            Suite::Aegis256X4 => "aegis-256x4",
            Suite::Aegis256 => "aegis-256",
            Suite::Aegis256X2 => "aegis-256x2",
        }
    }
}

/// The tag did not verify. The body is then undefined and must be dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the seal does not verify: corrupted, forged, or sealed under another key")]
pub struct BadTag;

/// One AEAD key. Never use a counter twice for sealing under one key.
///
/// The nonce is the counter as a big-endian `u64` after zero bytes: four of them (Noise section
/// 12.4), or 24 with AEGIS.
pub struct AeadKey(Expanded);

enum Expanded {
    /// AES-256-GCM or ChaCha20-Poly1305.
    Library(LessSafeKey),
    /// AEGIS has no key schedule: its first state follows from key and nonce together.
    Aegis(Lanes, Zeroizing<[u8; 32]>),
}

/// Number of AEGIS-256 states side by side.
#[derive(Clone, Copy)]
enum Lanes {
    One,
    Two,
    Four,
}

/// Calls a method of the AEGIS type for `$lanes`; each number of lanes has its own type.
macro_rules! aegis {
    ($lanes:expr, $key:expr, $counter:expr, |$cipher:ident| $call:expr) => {{
        let (key, nonce): (&[u8; 32], _) = ($key, aegis_nonce($counter));
        match $lanes {
            Lanes::One => {
                let $cipher = Aegis256::<{ AeadKey::TAG_LEN }>::new(key, &nonce);
                $call
            }
            Lanes::Two => {
                let $cipher = Aegis256X2::<{ AeadKey::TAG_LEN }>::new(key, &nonce);
                $call
            }
            Lanes::Four => {
                let $cipher = Aegis256X4::<{ AeadKey::TAG_LEN }>::new(key, &nonce);
                $call
            }
        }
    }};
}

fn aegis_nonce(counter: u64) -> [u8; 32] {
    let mut nonce = [0; 32];
    nonce[24..].copy_from_slice(&counter.to_be_bytes());
    nonce
}

impl AeadKey {
    /// Length of a tag in bytes.
    pub const TAG_LEN: usize = 16;

    /// Expands `key` for `suite`.
    pub fn new(suite: Suite, key: &[u8; 32]) -> AeadKey {
        let aegis = |lanes| AeadKey(Expanded::Aegis(lanes, Zeroizing::new(*key)));
        let algorithm = match suite {
            Suite::Aes256Gcm => &AES_256_GCM,
            Suite::ChaCha20Poly1305 => &CHACHA20_POLY1305,
            Suite::Aegis256 => return aegis(Lanes::One),
            Suite::Aegis256X2 => return aegis(Lanes::Two),
            Suite::Aegis256X4 => return aegis(Lanes::Four),
        };
        // Both algorithms take 32 bytes, and a wrong length is the only possible error.
        let key = UnboundKey::new(algorithm, key).expect("key length is fixed by the type");
        AeadKey(Expanded::Library(LessSafeKey::new(key)))
    }

    fn nonce(counter: u64) -> Nonce {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&counter.to_be_bytes());
        Nonce::assume_unique_for_key(nonce)
    }

    /// Seals `body` in place and writes its tag.
    pub fn seal(&self, counter: u64, aad: &[u8], body: &mut [u8], tag_out: &mut [u8; 16]) {
        match &self.0 {
            Expanded::Aegis(lanes, key) => {
                *tag_out = aegis!(*lanes, key, counter, |aegis| aegis.encrypt_in_place(body, aad));
            }
            Expanded::Library(key) => {
                // Fails only for a body beyond 2^36 bytes (RFC 5116), which no caller can hold.
                let tag = key
                    .seal_in_place_separate_tag(Self::nonce(counter), Aad::from(aad), body)
                    .expect("body is far below the limit of the AEAD");
                tag_out.copy_from_slice(tag.as_ref());
            }
        }
    }

    /// Opens `body_and_tag` in place: the plaintext is all but the last 16 bytes.
    pub fn open(&self, counter: u64, aad: &[u8], body_and_tag: &mut [u8]) -> Result<(), BadTag> {
        match &self.0 {
            Expanded::Aegis(lanes, key) => {
                let (body, tag) = body_and_tag.split_last_chunk_mut().ok_or(BadTag)?;
                aegis!(*lanes, key, counter, |aegis| aegis.decrypt_in_place(body, tag, aad))
                    .map_err(|_| BadTag)
            }
            Expanded::Library(key) => key
                .open_in_place(Self::nonce(counter), Aad::from(aad), body_and_tag)
                .map(|_| ())
                .map_err(|_| BadTag),
        }
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

    const ALL: [Suite; 5] = Suite::ALL;

    proptest! {
        #[test]
        fn opens_what_it_sealed_and_nothing_else(
            key: [u8; 32], counter: u64, aad: [u8; 13],
            body in proptest::collection::vec(any::<u8>(), 0..200), flip: u16,
            suite in 0..ALL.len(),
        ) {
            let key = AeadKey::new(ALL[suite], &key);
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
        for suite in ALL {
            let key = AeadKey::new(suite, &[0; 32]);
            assert_eq!(key.open(0, &[], &mut [0; 15]), Err(BadTag));
            assert_eq!(key.open(0, &[], &mut []), Err(BadTag));
        }
    }

    #[test]
    fn bytes_and_names_belong_together() {
        for suite in ALL {
            assert_eq!(Suite::from_byte(suite as u8), Some(suite));
        }
        assert_eq!((Suite::from_byte(0), Suite::from_byte(6)), (None, None));
    }

    /// RFC 10032, appendix: AEGIS-256X4 with ascending bytes as key and nonce, and an empty
    /// message.
    #[test]
    fn aegis_published_vector() {
        let key: [u8; 32] = core::array::from_fn(|i| i as u8);
        let nonce: [u8; 32] = core::array::from_fn(|i| 16 + i as u8);
        let tag = Aegis256X4::<16>::new(&key, &nonce).encrypt_in_place(&mut [], &[]);
        assert_eq!(u128::from_be_bytes(tag), 0x3b7f_ee6c_ee7b_f178_88ad_11ed_2397_beb4);
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
