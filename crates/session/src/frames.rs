//! Runs of frames of one lane, opened and sealed in place by the holder of the lane.

use shoal_crypto::{Aead, MaskKey, Suite};
use shoal_wire::{DropReason, Level, RoutedHeader, SessionHeader, TAG_LEN};

use crate::config::{OpenResult, OpenedSessionFrame, PeerId, SessionRole};
use crate::keys::{Rx, Tx};
use crate::replay::ReplayError;
use crate::slots::SessionIndex;

const HEADER: usize = SessionHeader::LEN;
const AAD: usize = RoutedHeader::IMMUTABLE;
/// Distance from the associated data, which is the routed header's start, to a host's frame.
const AAD_BEFORE: usize = RoutedHeader::LEN;

/// Buffers for the life of the machine, so that no frame allocates.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) samples: Vec<[u8; 16]>,
    masks: Vec<[u8; 16]>,
    pub(crate) found: Vec<Option<(SessionIndex, u8)>>,
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |acc, &b| (acc << 8) | u32::from(b))
}

/// The first four bytes of a mask.
fn head(mask: &[u8; 16]) -> u32 {
    word(&mask[..4])
}

/// Associated data of the frame at `off`: empty between neighbours and on circuits.
fn aad(role: SessionRole, buf: &[u8], off: usize, out: &mut [u8; AAD]) -> usize {
    match role {
        SessionRole::Link | SessionRole::Onion => 0,
        SessionRole::Edge => {
            let start = off - AAD_BEFORE;
            out.copy_from_slice(&buf[start..start + AAD]);
            AAD
        }
    }
}

/// True if every frame lies inside `buf` and has room for header, one byte and tag.
pub(crate) fn fits(role: SessionRole, buf: &[u8], offsets: &[u32], len: usize) -> bool {
    let before = match role {
        SessionRole::Link | SessionRole::Onion => 0,
        SessionRole::Edge => AAD_BEFORE,
    };
    let inside = |&off: &u32| {
        let off = off as usize;
        off >= before && off.checked_add(len).is_some_and(|end| end <= buf.len())
    };
    len > HEADER + TAG_LEN && offsets.iter().all(inside)
}

impl Scratch {
    /// Finds the session and lane of every frame. `knows` must return true if an index and lane
    /// belong to a session of the given epoch.
    pub(crate) fn find(
        &mut self,
        buf: &[u8],
        offsets: &[u32],
        len: usize,
        (epoch, key): (u32, &MaskKey),
        previous: Option<(u32, &MaskKey)>,
        knows: impl Fn(SessionIndex, u8, u32) -> bool,
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
            let (index, lane) = SessionIndex::split(word(&buf[off..off + 4]) ^ head(mask));
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

    /// End of the run of frames that starts at `at`, and its session and lane if any. A run has one
    /// session and lane.
    pub(crate) fn run(&self, at: usize) -> (usize, Option<(SessionIndex, u8)>) {
        let whose = self.found[at];
        let same = self.found[at..].iter().take_while(|found| **found == whose).count();
        (at + same, whose)
    }
}

/// Opens frames of one lane and pushes one result for each. Returns true if any opened. `masks`
/// holds the frames' samples and is overwritten.
#[expect(clippy::too_many_arguments, reason = "the pieces of one run, split for the borrows")]
pub(crate) fn open_run<A: Aead>(
    (role, suite): (SessionRole, Suite),
    (peer, lane): (PeerId, u8),
    rx: &mut Rx<A>,
    buf: &mut [u8],
    offsets: &[u32],
    len: usize,
    masks: &mut [[u8; 16]],
    out: &mut Vec<OpenResult>,
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
            out.push(OpenResult::Drop(match refused {
                ReplayError::Seen => DropReason::Replayed,
                ReplayError::Old => DropReason::TooOld,
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
                OpenResult::Data(OpenedSessionFrame { peer, lane, level, counter, newest })
            }
            Err(_) => OpenResult::Drop(DropReason::BadTag),
        });
    }
    any
}

/// Seals frames on one lane, whose index at the receiver is `raw`, and writes header and tag.
///
/// Errors: `key_expired` and `bad_size`; nothing is changed.
pub(crate) fn seal_run<A: Aead>(
    (role, suite): (SessionRole, Suite),
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
            // An AEAD with associated data only is a MAC.
            Level::Authenticate => hot.aead.seal(counter.into(), body, &mut [], &mut tag),
            // An AEAD without any data proves the counter only. The body may be anything.
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
