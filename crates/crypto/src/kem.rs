//! ML-KEM-768 (FIPS 203). The library draws its own randomness; see the crate's invariant.

use core::fmt;

use aws_lc_rs::kem::{Ciphertext, DecapsulationKey, EncapsulationKey, ML_KEM_768};

use crate::Secret;

/// Length of an ML-KEM-768 public key in bytes.
pub const KEM_PUBLIC_LEN: usize = 1_184;
/// Length of an ML-KEM-768 ciphertext in bytes.
pub const KEM_CIPHERTEXT_LEN: usize = 1_088;
/// Length of an ML-KEM-768 private key in bytes.
const KEM_SECRET_LEN: usize = 2_400;

/// A KEM key or ciphertext that the library refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a valid ML-KEM-768 key or ciphertext")]
pub struct BadKem;

/// A one-time ML-KEM-768 private key.
pub struct KemSecret(DecapsulationKey);

impl KemSecret {
    /// Makes a key pair; the public half is returned as bytes.
    pub fn generate() -> Result<(KemSecret, Box<[u8; KEM_PUBLIC_LEN]>), BadKem> {
        let key = DecapsulationKey::generate(&ML_KEM_768).map_err(|_| BadKem)?;
        let public = key.encapsulation_key().and_then(|k| k.key_bytes()).map_err(|_| BadKem)?;
        let public: [u8; KEM_PUBLIC_LEN] = public.as_ref().try_into().map_err(|_| BadKem)?;
        Ok((KemSecret(key), Box::new(public)))
    }

    /// From the 2,400-byte form of FIPS 203, for recorded handshakes.
    pub fn from_bytes(bytes: &[u8]) -> Result<KemSecret, BadKem> {
        if bytes.len() != KEM_SECRET_LEN {
            return Err(BadKem);
        }
        DecapsulationKey::new(&ML_KEM_768, bytes).map(KemSecret).map_err(|_| BadKem)
    }

    /// The 2,400-byte form of FIPS 203, for recorded handshakes.
    pub fn to_bytes(&self) -> Result<Secret<KEM_SECRET_LEN>, BadKem> {
        let bytes = self.0.key_bytes().map_err(|_| BadKem)?;
        Ok(Secret::new(bytes.as_ref().try_into().map_err(|_| BadKem)?))
    }

    /// The secret inside `ciphertext`. A forged ciphertext gives an unknown secret instead of an
    /// error (implicit rejection).
    pub fn decapsulate(&self, ciphertext: &[u8]) -> Result<Secret<32>, BadKem> {
        if ciphertext.len() != KEM_CIPHERTEXT_LEN {
            return Err(BadKem);
        }
        let shared = self.0.decapsulate(Ciphertext::from(ciphertext)).map_err(|_| BadKem)?;
        Ok(Secret::new(shared.as_ref().try_into().map_err(|_| BadKem)?))
    }
}

impl fmt::Debug for KemSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KemSecret(hidden)")
    }
}

/// Makes a new secret for the holder of `public`, and the ciphertext that carries it.
pub fn kem_encapsulate(
    public: &[u8],
) -> Result<(Box<[u8; KEM_CIPHERTEXT_LEN]>, Secret<32>), BadKem> {
    let key = EncapsulationKey::new(&ML_KEM_768, public).map_err(|_| BadKem)?;
    let (ciphertext, shared) = key.encapsulate().map_err(|_| BadKem)?;
    let ciphertext: [u8; KEM_CIPHERTEXT_LEN] =
        ciphertext.as_ref().try_into().map_err(|_| BadKem)?;
    let shared = shared.as_ref().try_into().map_err(|_| BadKem)?;
    Ok((Box::new(ciphertext), Secret::new(shared)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_also_after_storing_the_key() {
        let (secret, public) = KemSecret::generate().unwrap();
        let (mut ciphertext, shared) = kem_encapsulate(&public[..]).unwrap();
        assert_eq!(secret.decapsulate(&ciphertext[..]), Ok(shared.clone()));
        let stored = KemSecret::from_bytes(secret.to_bytes().unwrap().expose()).unwrap();
        assert_eq!(stored.decapsulate(&ciphertext[..]), Ok(shared.clone()));
        ciphertext[0] ^= 1;
        assert_ne!(secret.decapsulate(&ciphertext[..]), Ok(shared));
    }

    #[test]
    fn wrong_lengths_and_values_out_of_range_are_refused() {
        let (secret, _) = KemSecret::generate().unwrap();
        assert_eq!(secret.decapsulate(&[0; 5]), Err(BadKem));
        assert!(KemSecret::from_bytes(&[0; 5]).is_err());
        assert!(kem_encapsulate(&[0; 5]).is_err());
        // Coefficients above the modulus, which FIPS 203 section 7.2 requires to be refused.
        assert!(kem_encapsulate(&[0xff; KEM_PUBLIC_LEN]).is_err());
    }
}
