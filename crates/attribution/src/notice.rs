//! The issuer's notice of an epoch, and the memory of notices that finds an issuer's second one.

use std::collections::BTreeMap;

use shoal_wire::Reader;

use crate::{Error, Group, GroupId, Registry, codec};

const LABEL: &[u8] = b"shoal attribution epoch notice v2";

/// How far the signer's clock may be from the issuer's, in milliseconds.
const CLOCK_SLACK_MS: u64 = 60_000;

/// The issuer's word on an epoch: when it is, who had been admitted, and which credentials are good
/// in it. There is one notice for each epoch; two that differ prove that the issuer treats members
/// differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochNotice {
    pub(crate) group: GroupId,
    /// The epoch.
    pub epoch: u32,
    /// First second of it (Unix time).
    pub not_before: u64,
    /// Last second of it (Unix time).
    pub not_after: u64,
    /// How many members were ever admitted when it began.
    pub members: u32,
    /// Root of the hash tree over their entries in the registry.
    pub registry: [u8; 32],
    /// How many credentials there are: a signature is one of so many members'.
    pub credentials: u32,
    /// Hash of the renewal, the file with all the credentials.
    pub renewal: [u8; 32],
    pub(crate) signature: [u8; 64],
}

impl EpochNotice {
    /// Length in bytes without the kind.
    pub(crate) const LEN: usize = 32 + 4 + 8 + 8 + 4 + 32 + 4 + 32 + 64;

    /// Checks that the group's issuer says so, and that `now` (Unix seconds) is inside.
    pub fn verify(&self, group: &Group, now: u64) -> Result<(), Error> {
        self.verify_signature(group)?;
        if now < self.not_before || now > self.not_after {
            return Err(Error::Range("the time of the epoch notice"));
        }
        Ok(())
    }

    /// Checks that the group's issuer says so, now or at any other time.
    pub fn verify_signature(&self, group: &Group) -> Result<(), Error> {
        if self.group != group.id() {
            return Err(Error::OtherGroup);
        }
        if !group.notary().verify(&self.signed(), &self.signature) {
            return Err(Error::Proof("the epoch notice's signature"));
        }
        Ok(())
    }

    /// Checks that a registry begins with the entries that the notice is about.
    pub fn verify_registry(&self, registry: &Registry) -> Result<(), Error> {
        if registry.root(self.members as usize) != Some(self.registry) {
            return Err(Error::Proof("the registry of this epoch"));
        }
        Ok(())
    }

    /// Whether a stamp may say that it was made at this time (Unix milliseconds) in this epoch.
    pub(crate) fn holds_time(&self, time_ms: u64) -> bool {
        let earliest = self.not_before.saturating_mul(1_000).saturating_sub(CLOCK_SLACK_MS);
        let latest = self.not_after.saturating_add(1).saturating_mul(1_000);
        (earliest..latest.saturating_add(CLOCK_SLACK_MS)).contains(&time_ms)
    }

    pub(crate) fn signed(&self) -> Vec<u8> {
        let mut out = LABEL.to_vec();
        self.put_unsigned(&mut out);
        out
    }

    fn put_unsigned(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.group.0);
        out.extend_from_slice(&self.epoch.to_be_bytes());
        out.extend_from_slice(&self.not_before.to_be_bytes());
        out.extend_from_slice(&self.not_after.to_be_bytes());
        out.extend_from_slice(&self.members.to_be_bytes());
        out.extend_from_slice(&self.registry);
        out.extend_from_slice(&self.credentials.to_be_bytes());
        out.extend_from_slice(&self.renewal);
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        self.put_unsigned(out);
        out.extend_from_slice(&self.signature);
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<EpochNotice, Error> {
        Ok(EpochNotice {
            group: GroupId(reader.array("group id")?),
            epoch: reader.u32("epoch")?,
            not_before: reader.u64("not before")?,
            not_after: reader.u64("not after")?,
            members: reader.u32("members")?,
            registry: reader.array("registry root")?,
            credentials: reader.u32("credentials")?,
            renewal: reader.array("renewal hash")?,
            signature: reader.array("notice signature")?,
        })
    }

    /// The encoding (docs/attribution.md section 7).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAE2".to_vec();
        self.put(&mut out);
        out
    }

    /// Reads an encoding; the signature is still to be checked.
    pub fn decode(bytes: &[u8]) -> Result<EpochNotice, Error> {
        codec::file(bytes, b"SAE2", "epoch notice", EpochNotice::read)
    }
}

/// The newest notice of each group that was accepted. Signers and verifiers keep it. It shows that
/// an earlier epoch is over, which an old notice does not say of itself, and whether the issuer
/// signed two notices for one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen(BTreeMap<GroupId, EpochNotice>);

impl Seen {
    /// Most groups that one file remembers.
    pub const GROUPS_MAX: usize = 64;

    /// Nothing was seen yet.
    pub fn new() -> Seen {
        Seen::default()
    }

    /// Accepts a notice at `now` (Unix seconds) if it is the newest of its group. Returns whether
    /// there is something new to remember.
    pub fn take(&mut self, group: &Group, notice: &EpochNotice, now: u64) -> Result<bool, Error> {
        notice.verify(group, now)?;
        let last = self.0.get(&group.id());
        if last.is_none() && self.0.len() >= Seen::GROUPS_MAX {
            return Err(Error::Full("the memory of notices"));
        }
        match last {
            Some(last) if last == notice => return Ok(false),
            Some(last) if last.epoch == notice.epoch => Err(Error::TwoNotices(notice.epoch)),
            Some(last) if last.epoch > notice.epoch => Err(Error::EpochOver(last.epoch)),
            _ => Ok(()),
        }?;
        self.0.insert(group.id(), notice.clone());
        Ok(true)
    }

    /// The newest notice of a group.
    pub fn newest(&self, group: &GroupId) -> Option<&EpochNotice> {
        self.0.get(group)
    }

    /// The encoding (docs/attribution.md section 7).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAP1".to_vec();
        out.push(self.0.len() as u8);
        self.0.values().for_each(|notice| notice.put(&mut out));
        out
    }

    /// Reads an encoding.
    pub fn decode(bytes: &[u8]) -> Result<Seen, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAP1", "notices seen")?;
        let count = usize::from(reader.u8("notices")?);
        if count > Seen::GROUPS_MAX {
            return Err(Error::Range("notices"));
        }
        let mut seen = Seen::new();
        for _ in 0..count {
            let notice = EpochNotice::read(&mut reader)?;
            if seen.0.last_key_value().is_some_and(|(last, _)| *last >= notice.group) {
                return Err(Error::Range("the order of notices"));
            }
            seen.0.insert(notice.group, notice);
        }
        reader.finish("notices seen")?;
        Ok(seen)
    }
}
