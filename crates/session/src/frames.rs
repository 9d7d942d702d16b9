//! Runs of frames of one lane, opened and sealed in place by whoever holds the lane.

use shoal_crypto::{Aead, MaskKey, Suite};
use shoal_wire::{DropReason, Level, RoutedHeader, SessionHeader, TAG_LEN};

use crate::config::{Opened, Opening, PeerId, Role};
use crate::keys::{Rx, Tx};
use crate::replay::Refused;
use crate::slots::Index;

const HEADER: usize = SessionHeader::LEN;
const AAD: usize = RoutedHeader::IMMUTABLE;
/// Where the associated data stands before a host's frame: the routed header's start.
const AAD_BEFORE: usize = RoutedHeader::LEN;

/// Buffers that live as long as the machine, so that no frame allocates.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) samples: Vec<[u8; 16]>,
    masks: Vec<[u8; 16]>,
    pub(crate) found: Vec<Option<(Index, u8)>>,
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |acc, &b| (acc << 8) | u32::from(b))
}

/// The first four bytes of a mask.
fn head(mask: &[u8; 16]) -> u32 {
    word(&mask[..4])
}

/// The associated data of the frame at `off`: empty between neighbours and on circuits.
fn aad(role: Role, buf: &[u8], off: usize, out: &mut [u8; AAD]) -> usize {
    match role {
        Role::Link | Role::Onion => 0,
        Role::Edge => {
            let start = off - AAD_BEFORE;
            out.copy_from_slice(&buf[start..start + AAD]);
            AAD
        }
    }
}

/// Whether every frame lies inside `buf` and has room for header, a byte, and tag.
pub(crate) fn fits(role: Role, buf: &[u8], offsets: &[u32], len: usize) -> bool {
    let before = match role {
        Role::Link | Role::Onion => 0,
        Role::Edge => AAD_BEFORE,
    };
    let inside = |&off: &u32| {
        let off = off as usize;
        off >= before && off.checked_add(len).is_some_and(|end| end <= buf.len())
    };
    len > HEADER + TAG_LEN && offsets.iter().all(inside)
}

impl Scratch {
    /// Finds the session and lane of every frame. `knows` says whether an index and lane belong to
    /// a session of the epoch that it is given.
    pub(crate) fn find(
        &mut self,
        buf: &[u8],
        offsets: &[u32],
        len: usize,
        (epoch, key): (u32, &MaskKey),
        previous: Option<(u32, &MaskKey)>,
        knows: impl Fn(Index, u8, u32) -> bool,
    ) {
        let Scratch { samples, masks, found } = self;
        samples.clear();
        samples.extend(offsets.iter().map(|&off| {
            let mut tag = [0; 16];
            tag.copy_from_slice(&buf[off as usize + len - TAG_LEN..off as usize + len]);
            tag
        }));
        found.clear();
        masks.clone_from(samples);
        key.mask_batch(masks);
        let look = |off: u32, mask: &[u8; 16], epoch| {
            let off = off as usize;
            let (index, lane) = Index::split(word(&buf[off..off + 4]) ^ head(mask));
            knows(index, lane, epoch).then_some((index, lane))
        };
        found.extend(offsets.iter().zip(&*masks).map(|(&off, mask)| look(off, mask, epoch)));
        let Some((epoch, key)) = previous else { return };
        for ((found, &off), sample) in found.iter_mut().zip(offsets).zip(&*samples) {
            if found.is_none() {
                *found = look(off, &key.mask(sample), epoch);
            }
        }
    }

    /// The run of frames of one session and lane that starts at `at`: where it ends, and whose it
    /// is if anybody's.
    pub(crate) fn run(&self, at: usize) -> (usize, Option<(Index, u8)>) {
        let whose = self.found[at];
        let same = self.found[at..].iter().take_while(|found| **found == whose).count();
        (at + same, whose)
    }
}

/// Opens frames of one lane and pushes one result for each; says whether any opened. `masks` holds
/// their samples and is used up.
#[expect(clippy::too_many_arguments, reason = "the pieces of one run, split for the borrows")]
pub(crate) fn open_run<A: Aead>(
    (role, suite): (Role, Suite),
    (peer, lane): (PeerId, u8),
    rx: &mut Rx<A>,
    buf: &mut [u8],
    offsets: &[u32],
    len: usize,
    masks: &mut [[u8; 16]],
    out: &mut Vec<Opening>,
) -> bool {
    let Rx { half, window } = rx;
    let level = half.level;
    let hot = half.hot(suite);
    hot.mask.mask_batch(masks);
    let mut any = false;
    for (&off, mask) in offsets.iter().zip(&*masks) {
        let off = off as usize;
        let counter = word(&buf[off + 4..off + HEADER]) ^ head(mask);
        if let Err(refused) = window.check(counter) {
            out.push(Opening::Drop(match refused {
                Refused::Seen => DropReason::Replayed,
                Refused::Old => DropReason::TooOld,
            }));
            continue;
        }
        let mut data = [0; AAD];
        let used = aad(role, buf, off, &mut data);
        let body = &mut buf[off + HEADER..off + len];
        let (plain, tag) = body.split_at_mut(len - HEADER - TAG_LEN);
        let verified = match level {
            Level::Encrypt => hot.aead.open(counter.into(), &data[..used], body),
            Level::Authenticate => hot.aead.open(counter.into(), plain, tag),
            Level::None => hot.aead.open(counter.into(), &[], tag),
        };
        out.push(match verified {
            Ok(()) => {
                any = true;
                let newest = window.accept(counter);
                Opening::Data(Opened { peer, lane, level, counter, newest })
            }
            Err(_) => Opening::Drop(DropReason::BadTag),
        });
    }
    any
}

/// Seals frames on one lane, whose index at the receiver is `raw`, and writes header and tag.
///
/// Errors: `key_expired`, `bad_size`, and nothing was changed.
pub(crate) fn seal_run<A: Aead>(
    (role, suite): (Role, Suite),
    (raw, index_mask): (u32, &MaskKey),
    tx: &mut Tx<A>,
    buf: &mut [u8],
    offsets: &[u32],
    len: usize,
    scratch: &mut Scratch,
) -> Result<(), DropReason> {
    let first = tx.counter;
    let count = u32::try_from(offsets.len()).map_err(|_| DropReason::BadSize)?;
    tx.counter = first.checked_add(count).ok_or(DropReason::KeyExpired)?;
    let level = tx.half.level;
    let hot = tx.half.hot(suite);
    let Scratch { samples, masks, .. } = scratch;
    samples.clear();
    for (counter, &off) in (first..).zip(offsets) {
        let off = off as usize;
        let mut data = [0; AAD];
        let used = aad(role, buf, off, &mut data);
        let (body, tail) = buf[off + HEADER..off + len].split_at_mut(len - HEADER - TAG_LEN);
        let mut tag = [0; TAG_LEN];
        match level {
            Level::Encrypt => hot.aead.seal(counter.into(), &data[..used], body, &mut tag),
            // An AEAD over nothing but associated data is a MAC ...
            Level::Authenticate => hot.aead.seal(counter.into(), body, &mut [], &mut tag),
            // ... and over nothing at all it proves the counter. No body changes it.
            Level::None => hot.aead.seal(counter.into(), &[], &mut [], &mut tag),
        }
        tail.copy_from_slice(&tag);
        samples.push(tag);
    }
    masks.clone_from(samples);
    index_mask.mask_batch(samples);
    hot.mask.mask_batch(masks);
    for ((counter, &off), (mask, counter_mask)) in
        (first..).zip(offsets).zip(samples.iter().zip(&*masks))
    {
        let off = off as usize;
        buf[off..off + 4].copy_from_slice(&(raw ^ head(mask)).to_be_bytes());
        let counter = counter ^ head(counter_mask);
        buf[off + 4..off + HEADER].copy_from_slice(&counter.to_be_bytes());
    }
    Ok(())
}
