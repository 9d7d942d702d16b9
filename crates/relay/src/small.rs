//! Links whose path carries no full frame: each goes as three medium ones (docs/wire.md section 3).

use shoal_crypto::Ciphers;
use shoal_link::parts;
use shoal_wire::{DropReason, LinkId, SizeClass, Time};

use crate::batch::Run;
use crate::{Handed, Handoff, LocalCells, Relay, Sink, Turn};

impl<C: Ciphers> Relay<C> {
    /// Takes in a part; a frame that it makes whole waits for the end of the batch.
    ///
    /// Errors: `malformed`, and it counts as no part.
    pub(crate) fn take_part(&mut self, part: &Handed, frame: &[u8]) -> Result<(), DropReason> {
        if frame.len() != SizeClass::Medium.frame_len() {
            return Err(DropReason::Malformed);
        }
        self.own.counters.traffic.parts_in += 1;
        let Some(neighbour) = self.neighbours.get_mut(part.link) else { return Ok(()) };
        let whole = &mut self.scratch.whole;
        let at = whole.len() as u32;
        let taken = neighbour.assembly.take(frame, whole);
        let len = whole.len() as u32 - at;
        if len > 0 {
            self.own.counters.traffic.wholes_in += 1;
            self.scratch.whole_frames.push(Handed { at, len, ..*part });
        }
        if let Err(reason) = taken {
            self.own.counters.drop(reason, 1);
        }
        Ok(())
    }

    /// Takes in full frames that arrived in parts, as if they had come whole.
    pub(crate) fn handle_whole<S: Sink, H: Handoff>(
        &mut self,
        turn: &mut Turn<'_, S, H>,
        local: &mut impl FnMut(&mut [u8], LocalCells<'_>, &mut H) -> u64,
    ) {
        if self.scratch.whole_frames.is_empty() {
            return;
        }
        let mut whole = core::mem::take(&mut self.scratch.whole);
        let mut frames = core::mem::take(&mut self.scratch.whole_frames);
        self.sort_opened(turn, &mut whole, &frames, local);
        whole.clear();
        frames.clear();
        (self.scratch.whole, self.scratch.whole_frames) = (whole, frames);
    }

    /// Sends full frames of a link that carries none: each as three medium ones.
    pub(crate) fn depart_cut(
        &mut self,
        now: Time,
        link: LinkId,
        run: &Run<'_>,
        sink: &mut impl Sink,
    ) -> bool {
        let mut cut = core::mem::take(&mut self.scratch.cut);
        let mut cut_at = core::mem::take(&mut self.scratch.cut_at);
        cut.clear();
        self.own.counters.traffic.cut += run.count();
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            for &at in run.offsets {
                neighbour.parts_sent = neighbour.parts_sent.wrapping_add(1);
                parts::cut(&run.buf[at as usize..], neighbour.parts_sent, &mut cut);
            }
        }
        let class = SizeClass::Medium;
        let count = (run.offsets.len() * parts::PARTS) as u32;
        cut_at.clear();
        cut_at.extend((0..count).map(|i| i * class.frame_len() as u32));
        let run = &mut Run { buf: &mut cut, offsets: &cut_at, class };
        let goes_on = self.depart(now, link, run, false, sink);
        (self.scratch.cut, self.scratch.cut_at) = (cut, cut_at);
        goes_on
    }
}
