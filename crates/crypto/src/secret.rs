//! Byte strings that must not leak.

use core::fmt;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Secret bytes: wiped on drop, hidden from `Debug`, compared in constant time.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret<const N: usize>([u8; N]);

impl<const N: usize> Secret<N> {
    /// Stores the bytes. The caller must wipe its own copy.
    pub const fn new(bytes: [u8; N]) -> Self {
        Secret(bytes)
    }

    /// The bytes, for the one computation that needs them.
    pub const fn expose(&self) -> &[u8; N] {
        &self.0
    }
}

impl<const N: usize> PartialEq for Secret<N> {
    fn eq(&self, other: &Self) -> bool {
        ct_eq(&self.0, &other.0)
    }
}

impl<const N: usize> Eq for Secret<N> {}

impl<const N: usize> fmt::Debug for Secret<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(hidden)")
    }
}

/// The secret that all nodes of one network share. It hides handshakes from strangers, but proves
/// no identity.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct NetworkSecret(pub [u8; 32]);

impl fmt::Debug for NetworkSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NetworkSecret(hidden)")
    }
}

impl NetworkSecret {
    /// The secret's name in the authority's list. The secret can't be computed from it.
    pub fn name(&self) -> [u8; 32] {
        crate::kdf(&self.0, "shoal v1 network secret name", &[])
    }
}

/// Secrets of a network during a change: handshakes sealed under either are accepted.
#[derive(Clone, Debug)]
pub struct NetworkSecrets {
    /// The secret under which this node begins handshakes.
    pub first: NetworkSecret,
    /// The next secret, or the previous one.
    pub other: Option<NetworkSecret>,
}

impl From<NetworkSecret> for NetworkSecrets {
    fn from(first: NetworkSecret) -> NetworkSecrets {
        NetworkSecrets { first, other: None }
    }
}

/// Compares in a time that depends only on the lengths. Different lengths are unequal.
pub fn ct_eq(a: &[u8], b: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(a, b).is_ok()
}
