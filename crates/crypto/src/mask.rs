//! Header masks: one AES-256 block per header, many at a time (docs/design/wire/frame.md).

use core::fmt;

use aes::Aes256Enc;
use aes::cipher::{Array, BlockCipherEncrypt, KeyInit};

/// A key that turns a sample of ciphertext into a mask, as in RFC 9001 section 5.4.3.
#[derive(Clone)]
pub struct MaskKey(Aes256Enc);

impl MaskKey {
    /// Expands `key`.
    pub fn new(key: &[u8; 32]) -> MaskKey {
        MaskKey(Aes256Enc::new(&Array(*key)))
    }

    /// The mask for one sample.
    pub fn mask(&self, sample: &[u8; 16]) -> [u8; 16] {
        let mut block = Array(*sample);
        self.0.encrypt_block(&mut block);
        block.0
    }

    /// Turns samples into masks in place, with as few AES calls as the machine allows.
    pub fn mask_batch(&self, samples: &mut [[u8; 16]]) {
        self.0.encrypt_blocks(Array::cast_slice_from_core_mut(samples));
    }
}

impl fmt::Debug for MaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MaskKey(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 197 appendix C.3.
    #[test]
    fn aes256_published_vector() {
        let key = MaskKey::new(&core::array::from_fn(|i| i as u8));
        let sample = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
        let mask = 0x8ea2_b7ca_5167_45bf_eafc_4990_4b49_6089_u128;
        assert_eq!(u128::from_be_bytes(key.mask(&sample)), mask);
    }

    #[test]
    fn a_batch_is_the_same_as_one_at_a_time() {
        let key = MaskKey::new(&[5; 32]);
        for n in 0..70_u8 {
            let samples: Vec<[u8; 16]> = (0..n).map(|i| [i; 16]).collect();
            let one: Vec<_> = samples.iter().map(|s| key.mask(s)).collect();
            let mut batch = samples;
            key.mask_batch(&mut batch);
            assert_eq!(one, batch);
        }
    }

    #[test]
    fn a_key_is_small_enough_for_ten_thousand_idle_sessions() {
        assert!(size_of::<MaskKey>() <= 1_024, "{}", size_of::<MaskKey>());
    }
}
