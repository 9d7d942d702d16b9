//! The precomputation pool: presignatures made in idle time, each used once.
//!
//! A nonce used for two messages reveals the member's secret. Three measures prevent that:
//!
//! - a [`Presignature`] can't be copied or stored, and signing takes it by value;
//! - the pool is in memory only: a crash loses it, and the next start uses another seed;
//! - a fork or a restored snapshot copies memory, so each call gets a witness. The witness is a
//!   number from the shell that differs in the copy: process id and a page that the kernel wipes
//!   on fork. If it differs from that of the seeding, the pool wipes everything, the generator
//!   included, and signs nothing until it is seeded again.

use std::collections::VecDeque;

use shoal_crypto::{Rng, kdf};
use shoal_wire::Time;
use zeroize::Zeroize;

use crate::{Error, Message, Presignature, Signature, Signer};

/// Presignatures of one member in one epoch.
pub struct Pool {
    signer: Signer,
    rng: Option<Rng>,
    witness: u64,
    ready: VecDeque<Presignature>,
    capacity: usize,
    made_late: u64,
}

impl Pool {
    /// An empty pool for at most `capacity` presignatures of about 1.2 kB each. `seed` is the
    /// operating system's randomness; `witness` is explained in the module's documentation.
    pub fn new(signer: Signer, capacity: usize, seed: [u8; 32], witness: u64, now: Time) -> Pool {
        let ready = VecDeque::with_capacity(capacity);
        let mut pool = Pool { signer, rng: None, witness, ready, capacity, made_late: 0 };
        pool.reseed(seed, witness, now);
        pool
    }

    /// Wipes everything and starts with a fresh seed.
    pub fn reseed(&mut self, mut seed: [u8; 32], witness: u64, now: Time) {
        self.wipe();
        // The member's secret and the time protect against a poor or repeated seed.
        let secret = shoal_crypto::Secret::new(self.signer.secret_bytes());
        let parts: [&[u8]; 3] = [secret.expose(), &now.0.to_be_bytes(), &witness.to_be_bytes()];
        self.rng = Some(Rng::new(kdf(&seed, "shoal attribution nonces v1", &parts)));
        self.witness = witness;
        seed.zeroize();
    }

    /// Wipes all presignatures and the generator.
    pub fn wipe(&mut self) {
        self.ready.clear();
        self.rng = None;
    }

    /// Makes one presignature (under a millisecond). Returns false if the pool is full.
    pub fn fill(&mut self, witness: u64) -> Result<bool, Error> {
        self.guard(witness)?;
        if self.ready.len() >= self.capacity {
            return Ok(false);
        }
        let made = self.make()?;
        self.ready.push_back(made);
        Ok(true)
    }

    /// Signs with a presignature from the pool, or with a new one if the pool is empty.
    pub fn sign(&mut self, message: &Message<'_>, witness: u64) -> Result<Signature, Error> {
        self.guard(witness)?;
        let presignature = match self.ready.pop_front() {
            Some(presignature) => presignature,
            None => {
                self.made_late += 1;
                self.make()?
            }
        };
        Ok(self.signer.sign(presignature, message))
    }

    /// Number of presignatures.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// Number of presignatures made only when signing.
    pub fn made_late(&self) -> u64 {
        self.made_late
    }

    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Checks that signing would work; wipes everything if not.
    pub(crate) fn guard(&mut self, witness: u64) -> Result<(), Error> {
        if witness != self.witness {
            self.wipe();
        }
        if self.rng.is_none() { Err(Error::Forked) } else { Ok(()) }
    }

    fn make(&mut self) -> Result<Presignature, Error> {
        let rng = self.rng.as_mut().ok_or(Error::Forked)?;
        Ok(self.signer.precompute(rng))
    }
}

impl core::fmt::Debug for Pool {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Pool({} of {})", self.ready.len(), self.capacity)
    }
}
