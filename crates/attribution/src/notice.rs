//! The issuer's notice of an epoch, and a memory of notices that detects a second one for the same
//! epoch.

use std::collections::BTreeMap;

use shoal_wire::Reader;

use crate::{Error, Group, GroupId, Registry, codec};

const LABEL: &[u8] = b"shoal attribution epoch notice v2";

/// Maximum difference between signer's and issuer's clock in milliseconds.
const CLOCK_SLACK_MS: u64 = 60_000;

/// The issuer's statement on an epoch: its time, the members admitted so far, and the valid
/// credentials. Each epoch has one notice; two different ones prove that the issuer treats members
/// differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EpochNotice {
    pub(crate) group: GroupId,
    pub epoch: u32,
    /// First second of the epoch (Unix time).
    pub not_before: u64,
    /// Last second of the epoch (Unix time).
    pub not_after: u64,
    /// Number of members ever admitted when the epoch began.
    pub members: u32,
    /// Root of the hash tree over their registry entries.
    pub registry: [u8; 32],
    /// Number of credentials; a signature hides among this many members.
    pub credentials: u32,
    /// Hash of the renewal, which has all credentials.
    pub renewal: [u8; 32],
    pub(crate) signature: [u8; 64],
}

impl EpochNotice {
    /// Length in bytes without the magic bytes.
    pub(crate) const LEN: usize = 32 + 4 + 8 + 8 + 4 + 32 + 4 + 32 + 64;

    /// Checks that the group's issuer signed the notice, and that `now` (Unix seconds) is within
    /// the epoch.
    pub fn verify(&self, group: &Group, now: u64) -> Result<(), Error> {
        self.verify_signature(group)?;
        if now < self.not_before || now > self.not_after {
            return Err(Error::Range("the time of the epoch notice"));
        }
        Ok(())
    }

    /// Checks that the group's issuer signed the notice, at any time.
    pub fn verify_signature(&self, group: &Group) -> Result<(), Error> {
        if self.group != group.id() {
            return Err(Error::OtherGroup);
        }
        if !group.notary().verify(&self.signed(), &self.signature) {
            return Err(Error::Proof("the epoch notice's signature"));
        }
        Ok(())
    }

    /// Checks that a registry begins with the notice's entries.
    pub fn verify_registry(&self, registry: &Registry) -> Result<(), Error> {
        if registry.root(self.members as usize) != Some(self.registry) {
            return Err(Error::Proof("the registry of this epoch"));
        }
        Ok(())
    }

    /// True if a stamp of this epoch may state this time (Unix milliseconds).
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

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAE2".to_vec();
        self.put(&mut out);
        out
    }

    /// Decodes a notice without checking its signature.
    pub fn decode(bytes: &[u8]) -> Result<EpochNotice, Error> {
        codec::file(bytes, b"SAE2", "epoch notice", EpochNotice::read)
    }
}

/// The newest accepted notice of each group, as signers and verifiers store it. The memory shows
/// that an earlier epoch is over, which an old notice can't show itself. It also detects two
/// notices for one epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoticeMemory(BTreeMap<GroupId, EpochNotice>);

impl NoticeMemory {
    /// Maximum number of groups in a file.
    pub const GROUPS_MAX: usize = 64;

    pub fn new() -> NoticeMemory {
        NoticeMemory::default()
    }

    /// Accepts a notice at `now` (Unix seconds) if it is the newest of its group. Returns true if
    /// it is new and must be stored.
    pub fn take(&mut self, group: &Group, notice: &EpochNotice, now: u64) -> Result<bool, Error> {
        notice.verify(group, now)?;
        let last = self.0.get(&group.id());
        if last.is_none() && self.0.len() >= NoticeMemory::GROUPS_MAX {
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

    /// The encoding (docs/design/wire/attribution.md).
    pub fn encode(&self) -> Vec<u8> {
        let mut out = b"SAP1".to_vec();
        out.push(self.0.len() as u8);
        self.0.values().for_each(|notice| notice.put(&mut out));
        out
    }

    pub fn decode(bytes: &[u8]) -> Result<NoticeMemory, Error> {
        let mut reader = Reader::new(bytes);
        codec::magic(&mut reader, b"SAP1", "notices seen")?;
        let count = usize::from(reader.u8("notices")?);
        if count > NoticeMemory::GROUPS_MAX {
            return Err(Error::Range("notices"));
        }
        let mut seen = NoticeMemory::new();
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
