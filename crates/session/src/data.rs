//! The first worker's data path: its shard does the work, and what it notes is taken in at once.
//! Whoever drives the shard itself ([`Sessions::shard`]) has its notes taken in afterwards.

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, Time};

use crate::config::{Endpoint, Opening, PeerId};
use crate::sessions::Sessions;
use crate::shard::{Note, SessionShard};

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Opens frames: see [`crate::SessionShard::open_batch`].
    pub fn open_batch(
        &mut self,
        now: Time,
        buf: &mut [u8],
        offsets: &[u32],
        len: usize,
        out: &mut Vec<Opening>,
    ) {
        self.slots.own.open_batch(now, buf, offsets, len, out);
        self.take_notes(now);
    }

    /// Seals frames: see [`crate::SessionShard::seal_batch`].
    ///
    /// # Errors
    ///
    /// Those of [`crate::SessionShard::seal_batch`]; nothing was changed.
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

    /// The first worker's shard, for a data path that serves every worker. What it notes waits for
    /// [`Sessions::take_notes`].
    pub fn shard(&mut self) -> &mut SessionShard<C> {
        &mut self.slots.own
    }

    /// The next thing that the first worker's shard noted, for [`Sessions::handle_note`].
    pub fn poll_note(&mut self) -> Option<Note> {
        self.slots.own.poll_note()
    }

    /// Takes in what the first worker's shard opened and sealed since the last time.
    pub fn take_notes(&mut self, now: Time) {
        while let Some(note) = self.slots.own.poll_note() {
            self.handle_note(now, &note);
        }
    }
}
