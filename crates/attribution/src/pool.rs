//! The precomputation pool: presignatures made in idle time, each used once.
//!
//! A nonce that is used for two messages reveals the member's secret. What excludes it:
//!
//! - a [`Presignature`] can't be copied or stored, and signing takes it by value;
//! - the pool lives in memory only: a crash forgets it, and the next start has another seed;
//! - a fork, or a restored snapshot, copies memory; so the pool is told a witness at every use, a
//!   number that the shell makes such that it differs in the copy (process id and a page that the
//!   kernel wipes on fork). When the witness isn't the one of the seeding, everything is wiped,
//!   the generator too, and nothing is signed until the pool is seeded anew.

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
    /// An empty pool for at most `capacity` presignatures of about 1.2 kB. `seed` is the operating
    /// system's randomness; `witness` is explained above.
    pub fn new(signer: Signer, capacity: usize, seed: [u8; 32], witness: u64, now: Time) -> Pool {
        let ready = VecDeque::with_capacity(capacity);
        let mut pool = Pool { signer, rng: None, witness, ready, capacity, made_late: 0 };
        pool.reseed(seed, witness, now);
        pool
    }

    /// Wipes everything and starts again from a fresh seed.
    pub fn reseed(&mut self, mut seed: [u8; 32], witness: u64, now: Time) {
        self.wipe();
        // The member's secret and the time hedge against a poor or repeated seed.
        let secret = shoal_crypto::Secret::new(self.signer.secret_bytes());
        let parts: [&[u8]; 3] = [secret.expose(), &now.0.to_be_bytes(), &witness.to_be_bytes()];
        self.rng = Some(Rng::new(kdf(&seed, "shoal attribution nonces v1", &parts)));
        self.witness = witness;
        seed.zeroize();
    }

    /// Forgets all presignatures and the generator.
    pub fn wipe(&mut self) {
        self.ready.clear();
        self.rng = None;
    }

    /// Makes one presignature (under a millisecond); false when the pool is full.
    pub fn fill(&mut self, witness: u64) -> Result<bool, Error> {
        self.guard(witness)?;
        if self.ready.len() >= self.capacity {
            return Ok(false);
        }
        let made = self.make()?;
        self.ready.push_back(made);
        Ok(true)
    }

    /// Signs with a presignature of the pool, or with one made now if there is none.
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

    /// Presignatures at hand.
    pub fn len(&self) -> usize {
        self.ready.len()
    }

    /// Whether none is at hand.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// How often a presignature had to be made while somebody waited.
    pub fn made_late(&self) -> u64 {
        self.made_late
    }

    /// Who signs.
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// Whether signing would work now; wipes everything if not.
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
