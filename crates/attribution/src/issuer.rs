//! The issuer, which starts epochs.
//!
//! A credential is valid for one epoch. At its end the issuer makes new ones for all members that
//! are not revoked. So revocations and joins take effect with the next epoch, and signers and
//! verifiers do no work per revoked member.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use shoal_crypto::bls::{G1, G2, Scalar};
use shoal_crypto::{Hasher, Identity, Rng, Secret, kdf};
use shoal_wire::Reader;
use zeroize::Zeroize;

use crate::{EpochNotice, Error, Group, MemberCredential, Registry, codec};

/// The issuer's keys: for credentials (`γ`) and notices. Wiped on drop.
pub struct IssuerKey {
    seed: Secret<32>,
    gamma: Scalar,
    exponents: Secret<32>,
    notary: Identity,
}

impl IssuerKey {
    /// Derives the keys from a 32-byte seed of the operating system's randomness.
    pub fn from_seed(seed: [u8; 32]) -> IssuerKey {
        let mut rng = Rng::new(kdf(&seed, "shoal attribution issuer v1", &[]));
        IssuerKey {
            gamma: Scalar::random(&mut rng),
            exponents: Secret::new(kdf(&seed, "shoal attribution exponents v1", &[])),
            notary: Identity::from_seed(kdf(&seed, "shoal attribution notary v1", &[])),
            seed: Secret::new(seed),
        }
    }

    /// The seed, for the key file.
    pub fn seed(&self) -> &Secret<32> {
        &self.seed
    }

    /// The public key for credentials: `W = γ G2`.
    pub fn public(&self) -> G2 {
        G2::generate(&self.gamma)
    }

    /// The key for notices.
    pub fn notary(&self) -> &Identity {
        &self.notary
    }

    /// Signs `point` for `epoch`. Equal inputs give equal credentials, so a second request gains
    /// nothing.
    fn sign(&self, group: &Group, epoch: u32, base: &G1, member: MemberPoint<'_>) -> (G1, Scalar) {
        let (encoded, point) = member;
        let parts: [&[u8]; 3] = [&group.id().0, &epoch.to_be_bytes(), encoded];
        let mut wide = [0; 64];
        for (n, half) in wide.chunks_exact_mut(32).enumerate() {
            let label = ["exponent high", "exponent low"][n];
            half.copy_from_slice(&kdf(self.exponents.expose(), label, &parts));
        }
        let e = Scalar::from_wide(&wide);
        wide.zeroize();
        (base.add(point).mul(&self.gamma.add(&e).invert()), e)
    }

    /// Starts an epoch that lasts for `seconds` (Unix time). Returns the credentials of all members
    /// that are not revoked by then. The notice binds the issuer to them and to the registry.
    ///
    /// A published epoch does not change: later joins and revocations count from the next one.
    pub fn renew(
        &self,
        group: &Group,
        registry: &Registry,
        epoch: u32,
        seconds: RangeInclusive<u64>,
    ) -> Renewal {
        let base = group.epoch_base(epoch);
        let current = registry.members().filter(|m| !m.revoked(epoch));
        let points: BTreeMap<[u8; 48], &G1> =
            current.map(|m| (m.request.point().encode(), m.request.point())).collect();
        let mut bytes = b"SAN1".to_vec();
        bytes.extend_from_slice(&epoch.to_be_bytes());
        bytes.extend_from_slice(&(points.len() as u32).to_be_bytes());
        for (encoded, point) in &points {
            let (a, e) = self.sign(group, epoch, &base, (encoded, point));
            bytes.extend_from_slice(encoded);
            bytes.extend_from_slice(&a.encode());
            bytes.extend_from_slice(&e.encode());
        }
        let members = registry.members().len();
        let mut notice = EpochNotice {
            group: group.id(),
            epoch,
            not_before: *seconds.start(),
            not_after: *seconds.end(),
            members: members as u32,
            registry: registry.root(members).expect("a registry has all its members"),
            credentials: points.len() as u32,
            renewal: renewal_hash(&bytes),
            signature: [0; 64],
        };
        notice.signature = self.notary.sign(&notice.signed());
        Renewal { notice, bytes }
    }
}

impl core::fmt::Debug for IssuerKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IssuerKey(hidden)")
    }
}

/// A member's point, encoded and decoded.
type MemberPoint<'a> = (&'a [u8; 48], &'a G1);

/// A new epoch: its notice, and the credentials of all its members. Each member downloads all of
/// them, so a download does not reveal the member.
#[derive(Clone, PartialEq, Eq)]
pub struct Renewal {
    notice: EpochNotice,
    bytes: Vec<u8>,
}

impl Renewal {
    /// The notice that starts the epoch.
    pub fn notice(&self) -> &EpochNotice {
        &self.notice
    }

    /// Number of credentials.
    pub fn count(&self) -> usize {
        self.notice.credentials as usize
    }

    /// The encoded credentials (docs/design/wire/attribution.md): 128 bytes for each member,
    /// ascending by point.
    pub fn encode(&self) -> &[u8] {
        &self.bytes
    }

    /// Finds the credential of `point` in an encoding, without decoding other entries. The encoding
    /// must match the hash in `notice`: with different encodings the issuer could tell its members
    /// apart.
    pub fn pick(
        bytes: &[u8],
        notice: &EpochNotice,
        point: &G1,
    ) -> Result<Option<MemberCredential>, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAN1", "credentials")?;
        let epoch = reader.u32("epoch")?;
        let count = reader.u32("credentials")?;
        let want = point.encode();
        let mut found = None;
        let mut last = None;
        for _ in 0..count {
            let name: [u8; 48] = reader.array("member point")?;
            let mut entry = Reader::new(reader.bytes("credential", 80)?);
            // Each member appears once, so that the count is the number of members.
            if last >= Some(name) {
                return Err(Error::Range("the order of credentials"));
            }
            last = Some(name);
            if name == want {
                let a = codec::point(&mut entry, "credential")?;
                let e = codec::scalar(&mut entry, "credential exponent")?;
                found = Some(MemberCredential { notice: notice.clone(), a, e });
            }
        }
        reader.finish("renewal")?;
        let stated = (notice.epoch, notice.credentials, notice.renewal);
        if stated != (epoch, count, renewal_hash(bytes)) {
            return Err(Error::Proof("the notice's hash of the credentials"));
        }
        Ok(found)
    }
}

fn renewal_hash(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = Hasher::new();
    hasher.update(b"shoal attribution renewal v1");
    hasher.update(bytes);
    hasher.finalize()
}

impl core::fmt::Debug for Renewal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Renewal(epoch {}, {} members)", self.notice.epoch, self.count())
    }
}
