//! The way of a frame: opened in place, sealed in place, many at a time.
//!
//! 1. The tags of all frames are the samples; one AES run masks all indexes.
//! 2. Each index names a session and lane; frames of one lane that stand together are a run.
//! 3. Per run one AES run masks the counters; then window check, AEAD, window mark, one by one.
//! 4. What the run tells of the session (confirmed, heard, due for new keys) is noted once.
//!
//! Lanes that another worker holds (see [`crate::Share`]) are not opened and not sealed here.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time};

use crate::config::{Endpoint, Opened, PeerId};
use crate::frames::{fits, open_run, seal_run};
use crate::keys::Session;
use crate::sessions::Sessions;
use crate::slots::Index;

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Opens frames of equal length `len` at `offsets` of `buf`, in place, and pushes one result
    /// per offset: the plaintext then stands from 8 bytes after the offset to 16 before the end.
    ///
    /// A frame that is refused must be dropped, but for two that were not touched:
    /// [`DropReason::UnknownIndex`] may be a handshake, for [`Sessions::handle_handshake`];
    /// [`DropReason::OtherWorker`] is for the worker that [`Sessions::opener`] names. For host
    /// pairs the 15 bytes before each offset must be the routed header that came with the frame.
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
        let slots = &self.slots;
        let knows = |index, lane, epoch| {
            let known =
                |s: &Session<C::Aead>| s.epoch == epoch && usize::from(lane) < s.lanes.len();
            slots.get(index).is_some_and(known)
        };
        let (current, previous) = self.masks.both(now);
        scratch.find(buf, offsets, len, current, previous, knows);
        let mut at = 0;
        while at < offsets.len() {
            let (end, whose) = scratch.run(at);
            match whose {
                None => out.extend((at..end).map(|_| Err(DropReason::UnknownIndex))),
                Some(lane) => {
                    let masks = &mut scratch.samples[at..end];
                    self.open_run(now, lane, buf, &offsets[at..end], len, masks, out);
                }
            }
            at = end;
        }
        self.scratch = scratch;
    }

    /// Which worker opens the frame that was the `at`-th of the last batch.
    pub fn opener(&self, at: usize) -> Option<u8> {
        let (_, lane) = self.scratch.found.get(at).copied().flatten()?;
        Some(crate::share::opener(lane, self.config.workers))
    }

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
        let live = |s: &&mut Session<C::Aead>| now.since(s.created) < self.config.reject_after;
        let Some(session) = self.slots.get_mut(index).filter(live) else {
            out.extend(offsets.iter().map(|_| Err(DropReason::KeyExpired)));
            return;
        };
        let how = (self.config.role, session.suite);
        let whose = (session.peer, lane);
        let Some(rx) = session.lanes[usize::from(lane)].rx.as_mut() else {
            out.extend(offsets.iter().map(|_| Err(DropReason::OtherWorker)));
            return;
        };
        let first = out.len();
        let any = open_run(how, whose, rx, buf, offsets, len, masks, out);
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
    /// [`DropReason::NotAllowed`] for a lane that the session doesn't have or that another worker
    /// seals on, [`DropReason::BadSize`].
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
        let (index_mask, tx) = session.sealer(lane).ok_or(DropReason::NotAllowed)?;
        seal_run((role, suite), (raw, index_mask), tx, buf, offsets, len, &mut self.scratch)?;
        self.note_sealed(now, index);
        Ok(())
    }
}
