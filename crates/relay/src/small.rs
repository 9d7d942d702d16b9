//! Links whose path carries no full frame: each goes as three medium ones (docs/wire.md section 3).

use shoal_crypto::Ciphers;
use shoal_link::parts;
use shoal_session::PeerId;
use shoal_wire::{DropReason, Level, LinkId, LinkKind, Mark, SizeClass, Time, link};

use crate::batch::Scratch;
use crate::relay::MARK_AT;
use crate::{Incoming, Relay, Sink};

impl<C: Ciphers> Relay<C> {
    /// Takes in a part; a frame that it makes whole waits for the end of the batch.
    pub(crate) fn take_part(
        &mut self,
        peer: PeerId,
        source: u32,
        frame: &[u8],
        scratch: &mut Scratch,
    ) {
        let Some(neighbour) = self.neighbours.get_mut(LinkId(peer.0)) else { return };
        let before = scratch.whole.len();
        let taken = match frame.len() == SizeClass::Medium.frame_len() {
            true => neighbour.assembly.take(frame, &mut scratch.whole),
            false => Err(DropReason::Malformed),
        };
        if scratch.whole.len() > before {
            self.counters.traffic.wholes_in += 1;
            scratch.whole_from.push((peer, source));
        }
        if let Err(reason) = taken {
            self.counters.drop(reason, 1);
        }
    }

    /// Hands on full frames that arrived in parts, as if they had come whole.
    pub(crate) fn pass_on_whole(
        &mut self,
        now: Time,
        incoming: &[Incoming],
        scratch: &mut Scratch,
        sink: &mut impl Sink,
        local: &mut impl FnMut(&mut [u8], &[u32], usize),
    ) {
        if scratch.whole_from.is_empty() {
            return;
        }
        let (mut whole, from) =
            (core::mem::take(&mut scratch.whole), core::mem::take(&mut scratch.whole_from));
        let class = SizeClass::Full;
        for (frame, &(peer, source)) in (0u32..).zip(&from) {
            let (at, link) = (frame * class.frame_len() as u32, LinkId(peer.0));
            let (mut hop, may_transit) = (None, self.may_transit(link));
            let frame = &mut whole[at as usize..];
            let outcome = match LinkKind::from_byte(frame[link::KIND_AT]) {
                Ok(kind @ (LinkKind::Cell | LinkKind::Direct)) => {
                    if incoming[source as usize].congested {
                        frame[MARK_AT] = Mark::Congested as u8;
                    }
                    match kind {
                        LinkKind::Direct => {
                            self.take_direct(link, at, Level::Encrypt, frame, scratch)
                        }
                        _ => self.steer(link, at, frame, scratch, (may_transit, &mut hop)),
                    }
                }
                Ok(LinkKind::Control) => {
                    self.counters.traffic.control_in += 1;
                    scratch.control.push((link, at));
                    Ok(())
                }
                // Nothing else is ever full, and parts have no parts.
                _ => Err(DropReason::Malformed),
            };
            if let Err(reason) = outcome {
                self.counters.drop_in(reason, 1);
            }
        }
        self.pass_on(now, &mut whole, class, scratch, sink, local);
        whole.clear();
        (scratch.whole, scratch.whole_from) = (whole, from);
        scratch.whole_from.clear();
    }

    /// Sends full frames of a link that carries none: each as three medium ones.
    pub(crate) fn depart_cut(
        &mut self,
        now: Time,
        link: LinkId,
        buf: &[u8],
        offsets: &[u32],
        sink: &mut impl Sink,
    ) -> bool {
        let mut cut = core::mem::take(&mut self.scratch.cut);
        let mut cut_at = core::mem::take(&mut self.scratch.cut_at);
        cut.clear();
        self.counters.traffic.cut += offsets.len() as u64;
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            for &at in offsets {
                neighbour.parts_sent = neighbour.parts_sent.wrapping_add(1);
                parts::cut(&buf[at as usize..], neighbour.parts_sent, &mut cut);
            }
        }
        let class = SizeClass::Medium;
        let count = (offsets.len() * parts::PARTS) as u32;
        cut_at.clear();
        cut_at.extend((0..count).map(|i| i * class.frame_len() as u32));
        let goes_on = self.depart(now, link, &mut cut, &cut_at, class, false, sink);
        (self.scratch.cut, self.scratch.cut_at) = (cut, cut_at);
        goes_on
    }
}
