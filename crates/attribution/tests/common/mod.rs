//! A group with issuer, trustees and members, for tests.
#![allow(dead_code)]

use shoal_attribution::*;
use shoal_crypto::bls::{BadElement, G1};
use shoal_crypto::{Identity, Rng};

pub struct World {
    pub rng: Rng,
    pub group: Group,
    pub issuer: IssuerKey,
    pub trustees: Vec<TrusteeKey>,
    pub registry: Registry,
    /// Notice of the last epoch that [`World::join`] started. The initial epoch is already over.
    pub notice: EpochNotice,
    pub verifier: GroupVerifier,
}

impl World {
    pub fn new(threshold: usize, count: usize) -> World {
        World::seeded(threshold, count, 1)
    }

    /// Every trustee is a dealer.
    pub fn seeded(threshold: usize, count: usize, seed: u8) -> World {
        let mut rng = Rng::new([seed; 32]);
        let deal = |n: usize, rng: &mut Rng| {
            Dealing::new(n as u8, threshold, count, b"test ceremony", rng).unwrap()
        };
        let dealings: Vec<Dealing> = (0..count).map(|n| deal(n, &mut rng)).collect();
        let publics: Vec<DealingPublic> = dealings.iter().map(|d| d.public.clone()).collect();
        let opener = OpenerPublic::new(&publics, count, b"test ceremony").unwrap();
        let trustees = (1..=count).map(|n| {
            let shares: Vec<_> = dealings.iter().map(|d| d.share(n).unwrap()).collect();
            TrusteeKey::new(n, &opener, b"test ceremony", &publics, &shares).unwrap()
        });
        let trustees = trustees.collect();
        let issuer = IssuerKey::from_seed([seed.wrapping_add(100); 32]);
        let group =
            Group::new("test net", issuer.public(), issuer.notary().public(), opener.clone())
                .unwrap();
        let registry = Registry::new();
        let notice = issuer.renew(&group, &registry, 0, 0..=0).notice().clone();
        let mut verifier = GroupVerifier::new(&group);
        verifier.accept_epoch(7);
        World { rng, group, issuer, trustees, registry, notice, verifier }
    }

    /// A request with a new identity.
    pub fn request(&mut self, name: &str) -> (MemberSecret, JoinRequest) {
        let secret = MemberSecret::new(&mut self.rng);
        let identity = Identity::from_seed(self.rng.array());
        let request = secret.request(&self.group, name, &identity, &mut self.rng).unwrap();
        (secret, JoinRequest::decode(&request.encode()).unwrap())
    }

    /// Starts an epoch that never ends.
    pub fn renew(&mut self, epoch: u32) -> Renewal {
        let renewal = self.issuer.renew(&self.group, &self.registry, epoch, 0..=u64::MAX);
        self.notice = EpochNotice::decode(&renewal.notice().encode()).unwrap();
        renewal
    }

    /// A credential of the last epoch.
    pub fn credential(&mut self, renewal: &Renewal, secret: &MemberSecret) -> MemberCredential {
        let found = Renewal::pick(renewal.encode(), &self.notice, &secret.point()).unwrap();
        MemberCredential::decode(&found.unwrap().encode()).unwrap()
    }

    /// Adds a member in a new epoch. (A real epoch begins once.)
    pub fn join(&mut self, name: &str, epoch: u32) -> Signer {
        let (secret, request) = self.request(name);
        self.registry.add(&self.group, &request).unwrap();
        let renewal = self.renew(epoch);
        let credential = self.credential(&renewal, &secret);
        Signer::new(&self.group, secret, &credential).unwrap()
    }

    pub fn sign(&mut self, signer: &Signer, bytes: &[u8]) -> Signature {
        let pre = signer.precompute(&mut self.rng);
        signer.sign(pre, &Message { label: "test", bytes })
    }

    pub fn verify(
        &self,
        bytes: &[u8],
        signature: &Signature,
    ) -> Result<VerifiedSignature, SignatureError> {
        self.verifier.verify(7, &Message { label: "test", bytes }, signature)
    }

    pub fn shares(&mut self, checked: &VerifiedSignature, who: &[usize]) -> Vec<OpeningShare> {
        let share = |n: &usize| {
            OpeningShare::new(&self.group, &self.trustees[n - 1], checked, &mut self.rng)
        };
        who.iter().map(share).collect()
    }

    pub fn opening(
        &self,
        checked: &VerifiedSignature,
        shares: &[OpeningShare],
    ) -> Result<Opening, Error> {
        Opening::new(&self.group, &self.registry, &self.notice, checked, shares)
    }

    pub fn open(&mut self, checked: &VerifiedSignature, who: &[usize]) -> Result<String, Error> {
        let shares = self.shares(checked, who);
        let opening = self.opening(checked, &shares)?;
        let opening = Opening::decode(&opening.encode())?;
        Ok(opening.judge(&self.group, checked)?.name().to_owned())
    }
}

/// A point of the curve that is not in G1.
pub fn outside_subgroup() -> [u8; 48] {
    refused_as(BadElement::NotInSubgroup)
}

/// The encoding of no point of the curve.
pub fn off_curve() -> [u8; 48] {
    refused_as(BadElement::NotOnCurve)
}

fn refused_as(why: BadElement) -> [u8; 48] {
    // Zero is left out: a decoder may refuse it for a different reason.
    let mut candidates = (1..=u8::MAX).map(|n| {
        let mut bytes = [n; 48];
        bytes[0] = 0x80;
        bytes
    });
    let found = candidates.find(|bytes| G1::decode(bytes) == Err(why));
    found.expect("half of all x are of no point, and most points are outside")
}
