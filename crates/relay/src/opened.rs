//! Handling of frames that are already open: opened by another worker, reassembled from parts, or
//! shorter cells from full frames of a covered link.

use shoal_crypto::Ciphers;
use shoal_session::SessionShard;
use shoal_wire::{Level, LinkKind, link};

use crate::forward::OpenedFrame;
use crate::{CallContext, Forwarder, FrameSink, Handoff, HandoffFrame, LocalCells};

impl Forwarder {
    /// Handles frames that another worker opened. That worker's notes account for them.
    pub(crate) fn handle_opened<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        frames: &[HandoffFrame],
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        let mut sorted = core::mem::take(&mut self.scratch.sorted);
        (sorted.keeps, sorted.keeps_legs, sorted.last) = (true, true, None);
        self.scratch.sorted = sorted;
        self.sort(shard, turn, buf, frames, Some(local));
        self.sort_wide(shard, turn, buf, Some(local));
    }

    /// Sorts and sends shorter cells that arrived in full frames.
    pub(crate) fn sort_wide<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        if self.scratch.sorted.wide.is_empty() {
            return;
        }
        let mut wide = core::mem::take(&mut self.scratch.sorted.wide);
        // Groups cells by class and keeps the order within a class.
        wide.sort_by_key(|cell| cell.len);
        self.sort(shard, turn, buf, &wide, local);
        wide.clear();
        self.scratch.sorted.wide = wide;
    }

    /// Sorts and sends opened frames.
    fn sort<C: Ciphers, S: FrameSink, H: Handoff>(
        &mut self,
        shard: &mut SessionShard<C>,
        turn: &mut CallContext<'_, S, H>,
        buf: &mut [u8],
        frames: &[HandoffFrame],
        mut local: Option<&mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64>,
    ) {
        let mut sorted = core::mem::take(&mut self.scratch.sorted);
        for equal in frames.chunk_by(|a, b| a.len == b.len) {
            let Some(class) = equal[0].class() else { continue };
            for &HandoffFrame { link, at, congested, .. } in equal {
                let sender = self.view.link(link);
                // The opening worker has already dropped frames that their lane's level forbids,
                // and old goodbyes. Parts only use encrypted lanes.
                let (level, newest) = (Level::Encrypt, true);
                let frame = OpenedFrame { link, sender, at, level, newest, congested };
                // Cover counted here was reassembled from parts. Other cover is counted when opened
                // and not handed over.
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
