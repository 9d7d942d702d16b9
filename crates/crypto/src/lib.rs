//! Keys, ciphers, key derivation, masks and hashes; the only crate that names a crypto library.
//!
//! Input is byte strings and seeds. Output is small key types with the few operations that Shoal
//! needs. Each operation has one fixed form (nonce layout, labels, length-framed inputs), so that a
//! caller can't choose wrongly.
//!
//! ```text
//! 32-byte seed (key file) --kdf--> X25519 key (handshakes)  \  PublicKey = both public halves
//!                         --kdf--> Ed25519 key (signatures) /
//! handshake hash --kdf--> AeadKey (frames)   MaskKey (headers)
//! ```
//!
//! Invariant: this crate keeps no protocol state and calls nothing of the operating system. The one
//! exception is ML-KEM, whose library draws its own randomness. Session secrets depend on that, so
//! the simulator has a KEM of its own ([`Ciphers`]). Every type that holds a secret wipes it on
//! drop and hides it from `Debug`.

mod aead;
pub mod bls;
mod ciphers;
mod dh;
pub mod encoding;
mod flaw;
mod hash;
mod identity;
mod kem;
mod mask;
mod processor;
pub mod quantile;
mod rng;
mod secret;
mod sign;

pub use aead::{AeadKey, BadTag, Suite};
pub use ciphers::{Aead, Ciphers, StandardCiphers};
pub use dh::{BadPoint, DhSecret};
pub use flaw::PlantedFault;
pub use hash::{Hasher, hash, hmac_sha256, kdf, sha256};
pub use identity::{Identity, KeyError, PublicKey};
pub use kem::{BadKem, KEM_CIPHERTEXT_LEN, KEM_PUBLIC_LEN, KemSecret, kem_encapsulate};
pub use mask::MaskKey;
pub use processor::{Processor, SuiteSupport, Suites};
pub use rng::Rng;
pub use secret::{NetworkSecret, NetworkSecrets, Secret, ct_eq};
pub use sign::{SigningKey, VerifyKey, VerifyKeyError};
