//! Data path of the first worker. Its shard does the work, and the machine processes its notes at
//! once. A caller that drives the shard itself ([`Sessions::shard`]) must pass on the notes
//! afterwards.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time};

use crate::config::{Endpoint, OpenResult, PeerId};
use crate::sessions::Sessions;
use crate::shard::{SessionShard, SessionUse};

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Opens frames: see [`crate::SessionShard::open_batch`].
    pub fn open_batch(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<OpenResult>,
    ) {
        self.slots.own.open_batch(now, buf, offsets, len, out);
        self.take_notes(now);
    }

    /// Seals frames: see [`crate::SessionShard::seal_batch`].
    ///
    /// # Errors
    ///
    /// The errors of [`crate::SessionShard::seal_batch`]; nothing was changed.
    pub fn seal_batch(
        &mut self,
        now: Time,
        peer: PeerId,
        lane: u8,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
    ) -> Result<(), DropReason> {
        self.slots.own.seal_batch(now, peer, lane, buf, offsets, len)?;
        self.take_notes(now);
        Ok(())
    }

    /// The first worker's shard, for a data path that serves every worker. Its notes wait for
    /// [`Sessions::take_notes`].
    pub fn shard(&mut self) -> &mut SessionShard<C> {
        &mut self.slots.own
    }

    /// The next note of the first worker's shard, for [`Sessions::handle_note`].
    pub fn poll_note(&mut self) -> Option<SessionUse> {
        self.slots.own.poll_note()
    }

    /// Processes the notes of the first worker's shard since the last call.
    pub fn take_notes(&mut self, now: Time) {
        while let Some(note) = self.slots.own.poll_note() {
            self.handle_note(now, &note);
        }
    }
}
