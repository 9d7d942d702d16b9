//! Hashes and key derivation.

use core::fmt;

use aws_lc_rs::{digest, hmac};

/// Incremental BLAKE3, for files and other input whose hash serves as its name.
#[derive(Clone, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// A hasher that has no input yet.
    pub fn new() -> Hasher {
        Hasher(blake3::Hasher::new())
    }

    /// Hashes more bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hash of all bytes so far. More bytes may follow.
    pub fn finalize(&self) -> [u8; 32] {
        *self.0.finalize().as_bytes()
    }

    /// Number of bytes hashed so far.
    pub fn count(&self) -> u64 {
        self.0.count()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hasher(hidden)")
    }
}

/// BLAKE3 of one byte string.
pub fn hash(bytes: &[u8]) -> [u8; 32] {
    *blake3::hash(bytes).as_bytes()
}

/// Derives a key from `key` for the purpose `label`, bound to `parts`
/// (docs/design/wire/session.md).
///
/// BLAKE3 in keyed mode over the label and every part. The length of each, a big-endian `u32`,
/// precedes it, so two different lists of parts never give equal input.
pub fn kdf(key: &[u8; 32], label: &str, parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in core::iter::once(label.as_bytes()).chain(parts.iter().copied()) {
        hasher.update(&(part.len() as u32).to_be_bytes());
        hasher.update(part);
    }
    let out = *hasher.finalize().as_bytes();
    zeroize::Zeroize::zeroize(&mut hasher);
    out
}

/// SHA-256 of the concatenation of `parts` (Noise's HASH).
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut context = digest::Context::new(&digest::SHA256);
    for part in parts {
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.finish().as_ref());
    out
}

/// HMAC-SHA-256 of the concatenation of `parts` (Noise's HMAC-HASH).
pub fn hmac_sha256(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let key = hmac::Key::new(hmac::HMAC_SHA256, key);
    let mut context = hmac::Context::with_key(&key);
    for part in parts {
        context.update(part);
    }
    let mut out = [0; 32];
    out.copy_from_slice(context.sign().as_ref());
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encoding::hex;

    #[test]
    fn kdf_frames_its_parts() {
        let key = [9; 32];
        let a = kdf(&key, "x", &[b"ab", b"c"]);
        assert_ne!(a, kdf(&key, "x", &[b"a", b"bc"]));
        assert_ne!(a, kdf(&key, "x", &[b"abc"]));
        assert_ne!(a, kdf(&key, "xab", &[b"c"]));
        assert_ne!(a, kdf(&[8; 32], "x", &[b"ab", b"c"]));
        assert_eq!(a, kdf(&key, "x", &[b"ab", b"c"]));
    }

    /// RFC 4231 test case 2, FIPS 180-4 example "abc", and the BLAKE3 paper's empty input.
    #[test]
    fn published_vectors() {
        assert_eq!(
            hex(&hmac_sha256(b"Jefe", &[b"what do ya want ", b"for nothing?"])),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
        );
        assert_eq!(
            hex(&sha256(&[b"a", b"bc"])),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(
            hex(&Hasher::new().finalize()),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }
}
