//! Frames that are open already: those that another worker opened, those that parts made whole, and
//! shorter cells that came in full frames of a covered link.

use shoal_crypto::Ciphers;
use shoal_session::SessionShard;
use shoal_wire::{Level, LinkKind, link};

use crate::forward::Arrived;
use crate::{Forwarder, Handed, Handoff, LocalCells, Sink, Turn};

impl Forwarder {
    /// Takes in frames that another worker opened. That worker's notes account for them.
    pub(crate) fn handle_opened<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        frames: &[Handed],
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        let mut sorted = core::mem::take(&mut self.scratch.sorted);
        (sorted.keeps, sorted.keeps_legs, sorted.last) = (true, true, None);
        self.scratch.sorted = sorted;
        self.sort(shard, turn, buf, frames, Some(local));
        self.sort_wide(shard, turn, buf, Some(local));
    }

    /// Sorts and sends the shorter cells that came in full frames.
    pub(crate) fn sort_wide<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        if self.scratch.sorted.wide.is_empty() {
            return;
        }
        let mut wide = core::mem::take(&mut self.scratch.sorted.wide);
        // One class after the other, each in its order.
        wide.sort_by_key(|cell| cell.len);
        self.sort(shard, turn, buf, &wide, local);
        wide.clear();
        self.scratch.sorted.wide = wide;
    }

    /// Sorts and sends frames that are open.
    fn sort<C: Ciphers, S: Sink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut Turn<'_, S, H>,
        buf: &mut [u8],
        frames: &[Handed],
        mut local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        let mut sorted = core::mem::take(&mut self.scratch.sorted);
        for equal in frames.chunk_by(|a, b| a.len == b.len) {
            let Some(class) = equal[0].class() else { continue };
            for &Handed { link, at, congested, .. } in equal {
                let sender = self.view.link(link);
                // The worker that opened it has dropped what its lane's level does not allow, and
                // an old goodbye. Parts travel on encrypted lanes alone.
                let (level, newest) = (Level::Encrypt, true);
                let frame = Arrived { link, sender, at, level, newest, congested };
                // Parts made it whole; whoever opens a frame counts it, and cover is not handed on.
                let kind = buf[at as usize + link::KIND_AT];
                self.counters.traffic.cover_in += u64::from(kind == LinkKind::Cover as u8);
                if let Err(reason) = self.take(&frame, buf, class, &mut sorted, turn.hand) {
                    self.counters.drop_in(reason, 1);
                }
            }
            self.scratch.sorted = sorted;
            self.pass_on(shard, turn, buf, class, local.as_deref_mut());
            sorted = core::mem::take(&mut self.scratch.sorted);
        }
        self.scratch.sorted = sorted;
    }
}
