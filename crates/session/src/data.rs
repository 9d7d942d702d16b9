//! The way of a frame: opened in place, sealed in place, many at a time.
//!
//! 1. The tags of all frames are the samples; one AES run masks all indexes.
//! 2. Each index names a session and lane; frames of one lane that stand together are a run.
//! 3. Per run one AES run masks the counters; then window check, AEAD, window mark, one by one.
//! 4. What the run tells of the session (confirmed, heard, due for new keys) is noted once.

use shoal_crypto::{Aead, Ciphers};
use shoal_wire::{DropReason, RoutedHeader, SessionHeader, TAG_LEN, Time};

use crate::config::{Endpoint, Opened, PeerId, Role};
use crate::keys::{Lane, Session};
use crate::replay::Refused;
use crate::sessions::Sessions;
use crate::slots::Index;

const HEADER: usize = SessionHeader::LEN;
const AAD: usize = RoutedHeader::IMMUTABLE;
/// Where the associated data stands before a host's frame: the routed header's start.
const AAD_BEFORE: usize = RoutedHeader::LEN;

/// Buffers that live as long as the machine, so that no frame allocates.
#[derive(Default)]
pub(crate) struct Scratch {
    samples: Vec<[u8; 16]>,
    masks: Vec<[u8; 16]>,
    found: Vec<Option<(Index, u8)>>,
}

fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |acc, &b| (acc << 8) | u32::from(b))
}

/// The first four bytes of a mask.
fn head(mask: &[u8; 16]) -> u32 {
    word(&mask[..4])
}

/// The associated data of the frame at `off`: empty between neighbours.
fn aad(role: Role, buf: &[u8], off: usize, out: &mut [u8; AAD]) -> usize {
    match role {
        Role::Link => 0,
        Role::Edge => {
            let start = off - AAD_BEFORE;
            out.copy_from_slice(&buf[start..start + AAD]);
            AAD
        }
    }
}

/// Whether every frame lies inside `buf` and has room for header, a byte, and tag.
fn fits(role: Role, buf: &[u8], offsets: &[u32], len: usize) -> bool {
    let before = match role {
        Role::Link => 0,
        Role::Edge => AAD_BEFORE,
    };
    let inside = |&off: &u32| {
        let off = off as usize;
        off >= before && off.checked_add(len).is_some_and(|end| end <= buf.len())
    };
    len > HEADER + TAG_LEN && offsets.iter().all(inside)
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Opens frames of equal length `len` at `offsets` of `buf`, in place, and pushes one result
    /// per offset: the plaintext then stands from 8 bytes after the offset to 16 before the end.
    ///
    /// A frame that is refused must be dropped, but for [`DropReason::UnknownIndex`]: that frame
    /// was not touched and may be a handshake, for [`Sessions::handle_handshake`]. For host pairs
    /// the 15 bytes before each offset must be the routed header that came with the frame.
    pub fn open_batch(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<Result<Opened, DropReason>>,
    ) {
        if !fits(self.config.role, buf, offsets, len) {
            out.extend(offsets.iter().map(|_| Err(DropReason::BadSize)));
            return;
        }
        let mut scratch = core::mem::take(&mut self.scratch);
        scratch.samples.clear();
        scratch.samples.extend(offsets.iter().map(|&off| {
            let mut tag = [0; 16];
            tag.copy_from_slice(&buf[off as usize + len - TAG_LEN..off as usize + len]);
            tag
        }));
        self.find(now, buf, offsets, &mut scratch);
        let mut at = 0;
        while at < offsets.len() {
            let Some((index, lane)) = scratch.found[at] else {
                out.push(Err(DropReason::UnknownIndex));
                at += 1;
                continue;
            };
            let same = scratch.found[at..].iter().take_while(|f| **f == Some((index, lane)));
            let end = at + same.count();
            let masks = &mut scratch.samples[at..end];
            self.open_run(now, (index, lane), buf, &offsets[at..end], len, masks, out);
            at = end;
        }
        self.scratch = scratch;
    }

    /// Finds the session and lane of every frame.
    fn find(&mut self, now: Time, buf: &[u8], offsets: &[u32], scratch: &mut Scratch) {
        let Scratch { samples, masks, found } = scratch;
        found.clear();
        masks.clone_from(samples);
        let (epoch, key) = self.masks.current();
        key.mask_batch(masks);
        let slots = &self.slots;
        let look = |off: u32, mask: &[u8; 16], epoch| {
            let off = off as usize;
            let (index, lane) = Index::split(word(&buf[off..off + 4]) ^ head(mask));
            let session = slots.get(index)?;
            let known = session.epoch == epoch && usize::from(lane) < session.lanes.len();
            known.then_some((index, lane))
        };
        found.extend(offsets.iter().zip(&*masks).map(|(&off, mask)| look(off, mask, epoch)));
        let Some((epoch, key)) = self.masks.previous(now) else { return };
        for ((found, &off), sample) in found.iter_mut().zip(offsets).zip(&*samples) {
            if found.is_none() {
                *found = look(off, &key.mask(sample), epoch);
            }
        }
    }

    /// Opens frames of one lane. `masks` holds their samples and is used up.
    #[expect(clippy::too_many_arguments, reason = "the pieces of one run, split for the borrows")]
    fn open_run(
        &mut self,
        now: Time,
        (index, lane): (Index, u8),
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        masks: &mut [[u8; 16]],
        out: &mut Vec<Result<Opened, DropReason>>,
    ) {
        let role = self.config.role;
        let live = |s: &&mut Session<C::Aead>| now.since(s.created) < self.config.reject_after;
        let Some(session) = self.slots.get_mut(index).filter(live) else {
            out.extend(offsets.iter().map(|_| Err(DropReason::KeyExpired)));
            return;
        };
        let (peer, suite) = (session.peer, session.suite);
        let Lane { rx, window, .. } = &mut session.lanes[usize::from(lane)];
        let hot = rx.hot(suite);
        hot.mask.mask_batch(masks);
        let first = out.len();
        let mut any = false;
        for (&off, mask) in offsets.iter().zip(&*masks) {
            let off = off as usize;
            let counter = word(&buf[off + 4..off + HEADER]) ^ head(mask);
            if let Err(refused) = window.check(counter) {
                out.push(Err(match refused {
                    Refused::Seen => DropReason::Replayed,
                    Refused::Old => DropReason::TooOld,
                }));
                continue;
            }
            let mut data = [0; AAD];
            let used = aad(role, buf, off, &mut data);
            let body = &mut buf[off + HEADER..off + len];
            out.push(match hot.aead.open(counter.into(), &data[..used], body) {
                Ok(()) => {
                    any = true;
                    let newest = window.accept(counter);
                    Ok(Opened { peer, lane, counter, newest })
                }
                Err(_) => Err(DropReason::BadTag),
            });
        }
        if any && !self.note_opened(now, index) {
            // An older session's newest frame says nothing of where the peer is now.
            for opened in out[first..].iter_mut().flatten() {
                opened.newest = false;
            }
        }
    }

    /// Seals frames of equal length `len` at `offsets` of `buf`, in place, for one lane of a peer.
    /// The plaintext must stand from 8 bytes after each offset to 16 before the end; header and tag
    /// are written around it. For host pairs the routed header must stand in the 15 bytes before.
    ///
    /// # Errors
    ///
    /// Nothing was changed: [`DropReason::NoSession`] (then `connect`), [`DropReason::KeyExpired`],
    /// [`DropReason::NotAllowed`] for a lane that the session doesn't have,
    /// [`DropReason::BadSize`].
    pub fn seal_batch(
        &mut self,
        now: Time,
        peer: PeerId,
        lane: u8,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) -> Result<(), DropReason> {
        let role = self.config.role;
        let index = self.current(peer).ok_or(DropReason::NoSession)?;
        let session = self.slots.get_mut(index).ok_or(DropReason::NoSession)?;
        if now.since(session.created) >= self.config.reject_after {
            return Err(DropReason::KeyExpired);
        }
        if !fits(role, buf, offsets, len) {
            return Err(DropReason::BadSize);
        }
        let (suite, raw) = (session.suite, Index::with_lane(session.peer_index, lane));
        let (index_mask, lane) = session.sealer(lane).ok_or(DropReason::NotAllowed)?;
        let first = lane.counter;
        let count = u32::try_from(offsets.len()).map_err(|_| DropReason::BadSize)?;
        lane.counter = first.checked_add(count).ok_or(DropReason::KeyExpired)?;
        let hot = lane.tx.hot(suite);
        let Scratch { samples, masks, .. } = &mut self.scratch;
        samples.clear();
        for (counter, &off) in (first..).zip(offsets) {
            let off = off as usize;
            let mut data = [0; AAD];
            let used = aad(role, buf, off, &mut data);
            let (body, tail) = buf[off + HEADER..off + len].split_at_mut(len - HEADER - TAG_LEN);
            let mut tag = [0; TAG_LEN];
            hot.aead.seal(counter.into(), &data[..used], body, &mut tag);
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
        self.note_sealed(now, index);
        Ok(())
    }
}
