//! The KEM of simulated handshakes. All its randomness follows from the seed.
//!
//! The library draws key pairs and ciphertexts from the operating system. Session secrets would
//! then differ between two runs of one seed, and so would addresses and epochs that follow from
//! them. Every simulated handshake therefore uses one recorded key pair, which protects nothing.
//! The ciphertext is random bytes, for which ML-KEM also yields a secret (implicit rejection).
//! Handshakes differ by their ciphertexts and by X25519.

use std::sync::OnceLock;

use shoal_crypto::{BadKem, KEM_CIPHERTEXT_LEN, KEM_PUBLIC_LEN, KemSecret, Rng, Secret, kdf};

/// Offset of the public key within a private key (FIPS 203).
const PUBLIC_AT: usize = 1_152;

fn recorded() -> &'static [u8] {
    static RECORDED: OnceLock<Vec<u8>> = OnceLock::new();
    RECORDED.get_or_init(|| {
        let text = include_str!("../../wire/vectors/session/kem-secret.hex");
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let digits: Vec<u8> = lines.flat_map(str::bytes).collect();
        let value = |digit: &u8| char::from(*digit).to_digit(16).unwrap_or_default() as u8;
        digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, d| byte << 4 | value(d))).collect()
    })
}

pub(crate) fn pair() -> Result<(KemSecret, Box<[u8; KEM_PUBLIC_LEN]>), BadKem> {
    let public = recorded().get(PUBLIC_AT..).and_then(|key| key.first_chunk()).ok_or(BadKem)?;
    Ok((KemSecret::from_bytes(recorded())?, Box::new(*public)))
}

/// A ciphertext derived from `seed`, and the secret that the holder of the recorded key gets from
/// it.
pub(crate) fn encapsulate(
    seed: &[u8; 32],
) -> Result<(Box<[u8; KEM_CIPHERTEXT_LEN]>, Secret<32>), BadKem> {
    let mut ciphertext = Box::new([0; KEM_CIPHERTEXT_LEN]);
    Rng::new(kdf(seed, "simulated kem", &[])).fill(&mut ciphertext[..]);
    let shared = KemSecret::from_bytes(recorded())?.decapsulate(&ciphertext[..])?;
    Ok((ciphertext, shared))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_on_a_secret_that_the_seed_chooses() {
        let (secret, public) = pair().unwrap();
        assert_eq!(pair().unwrap().1, public);
        let (ciphertext, shared) = encapsulate(&[1; 32]).unwrap();
        assert_eq!(secret.decapsulate(&ciphertext[..]), Ok(shared.clone()));
        assert_eq!(encapsulate(&[1; 32]), Ok((ciphertext, shared.clone())));
        assert_ne!(encapsulate(&[2; 32]).unwrap().1, shared);
    }
}
