//! Proofs of origin: signatures by which a router proves that it is a destination.

use shoal_crypto::{Ciphers, Identity, PublicKey};
use shoal_wire::OriginProof;

/// Length of the signed bytes.
const SIGNED_LEN: usize = LABEL.len() + 4 + 64 + 8 + 8;
/// Domain separation: binds the signature to its use and to this version of the format.
const LABEL: &[u8; 20] = b"shoal route origin 1";

/// Label, router, origin key, sequence number and expiry.
fn signed_bytes(router: u32, key: &PublicKey, seqno: u64, expiry_unix_s: u64) -> [u8; SIGNED_LEN] {
    let mut out = [0; SIGNED_LEN];
    let (label, rest) = out.split_at_mut(LABEL.len());
    label.copy_from_slice(LABEL);
    rest[..4].copy_from_slice(&router.to_be_bytes());
    rest[4..68].copy_from_slice(&key.to_bytes());
    rest[68..76].copy_from_slice(&seqno.to_be_bytes());
    rest[76..].copy_from_slice(&expiry_unix_s.to_be_bytes());
    out
}

/// Signs that `identity` is reachable as `router`.
pub(crate) fn prove(
    identity: &Identity,
    router: u32,
    seqno: u64,
    expiry_unix_s: u64,
) -> OriginProof {
    let message = signed_bytes(router, &identity.public(), seqno, expiry_unix_s);
    OriginProof { seqno, expiry_unix_s, signature: identity.sign(&message) }
}

/// True if the holder of `key` signed `proof` for `router`. The expiry is not checked.
pub(crate) fn verify<C: Ciphers>(key: &PublicKey, router: u32, proof: &OriginProof) -> bool {
    let message = signed_bytes(router, key, proof.seqno, proof.expiry_unix_s);
    C::verify(key, &message, &proof.signature)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_crypto::StandardCiphers;

    #[test]
    fn a_proof_holds_for_exactly_what_was_signed() {
        let identity = Identity::generate([1; 32]);
        let key = identity.public();
        let proof = prove(&identity, 7, 100, 5_000);
        assert!(verify::<StandardCiphers>(&key, 7, &proof));
        assert!(!verify::<StandardCiphers>(&key, 8, &proof));
        assert!(!verify::<StandardCiphers>(&Identity::generate([2; 32]).public(), 7, &proof));
        assert!(!verify::<StandardCiphers>(&key, 7, &OriginProof { seqno: 101, ..proof }));
        assert!(!verify::<StandardCiphers>(
            &key,
            7,
            &OriginProof { expiry_unix_s: 5_001, ..proof }
        ));
    }
}
