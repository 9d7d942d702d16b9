//! Links whose path carries no full frames: each goes as three medium ones
//! (docs/design/wire/frame.md). Handshakes, this node's network device and probes detect such
//! paths.

use shoal_crypto::Ciphers;
use shoal_link::{Admission, Priority, parts};
use shoal_session::PeerId;
use shoal_wire::{DropReason, LaneReport, LinkId, LinkKind, SizeClass, Time, link};

use crate::batch::{OutgoingRun, seal};
use crate::control::RelayEvent;
use crate::{CallContext, FrameSink, Handoff, HandoffFrame, LocalCells, Relay, SendError};

/// Maximum number of sealed frames in an egress that a probe may join.
const SEALED_MAX: usize = 64;

impl<C: Ciphers> Relay<C> {
    /// Adds a part. A frame that it completes waits for the end of the batch.
    ///
    /// # Errors
    ///
    /// `malformed`: the part is dropped.
    pub(crate) fn take_part(
        &mut self,
        part: &HandoffFrame,
        frame: &[u8],
    ) -> Result<(), DropReason> {
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
            self.scratch.whole_frames.push(HandoffFrame { at, len, ..*part });
        }
        if let Err(reason) = taken {
            self.own.counters.drop(reason, 1);
        }
        Ok(())
    }

    /// Handles full frames that arrived in parts, as if each had arrived whole.
    pub(crate) fn handle_whole<S: FrameSink, H: Handoff>(
        &mut self,
        turn: &mut CallContext<'_, S, H>,
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

    /// Sends each full frame of a narrow link as three medium ones.
    pub(crate) fn depart_cut(
        &mut self,
        now: Time,
        link: LinkId,
        run: &OutgoingRun<'_>,
        sink: &mut impl FrameSink,
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
        let run = &mut OutgoingRun { buf: &mut cut, offsets: &cut_at, class };
        let goes_on = self.depart(now, link, run, false, sink);
        (self.scratch.cut, self.scratch.cut_at) = (cut, cut_at);
        goes_on
    }

    /// Uses a neighbour's report to judge whether its path carries full frames. The report proves
    /// nothing while full frames go to another endpoint than reports. It proves nothing on a
    /// covered link either, where all frames are full.
    pub(crate) fn judge_width(&mut self, now: Time, link: LinkId, report: &LaneReport) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if neighbour.trial.is_limited() || neighbour.is_scheduled() {
            neighbour.width.end_doubt();
        }
        let doubted = neighbour.width.is_in_doubt();
        let changed = neighbour.width.handle_report(now, report);
        if !doubted && neighbour.width.is_in_doubt() {
            neighbour.liveness.hurry_report(now);
        }
        if changed {
            self.note_width(link);
        }
    }

    /// Tells the sessions and the owner that the path to a neighbour became wide or narrow.
    pub(crate) fn note_width(&mut self, link: LinkId) {
        let Some(neighbour) = self.neighbours.get(link) else { return };
        self.sessions.note_path(PeerId::from(link), neighbour.width.is_narrow());
        self.event(RelayEvent::Width(link));
    }

    /// Sends a probe of the path if one is due. In doubt a probe goes ahead of each report
    /// (`reports`). On a narrow path a probe goes from time to time. Returns true if the neighbour
    /// must be asked for a report, since it may have none due.
    pub(crate) fn probe_width(
        &mut self,
        now: Time,
        link: LinkId,
        reports: bool,
        sink: &mut impl FrameSink,
    ) -> bool {
        let neighbour = self.neighbours.get(link).filter(|neighbour| !neighbour.is_scheduled());
        let Some(neighbour) = neighbour else { return false };
        let (doubt, limited) = (neighbour.width.is_in_doubt(), neighbour.trial.is_limited());
        let is_due = doubt && reports || neighbour.width.wants_probe(now);
        if !is_due {
            return false;
        }
        let sent = !limited && self.send_probe(now, link, false, sink);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return false };
        match doubt {
            true if !sent => neighbour.width.end_doubt(),
            true => {}
            false => neighbour.width.probed(now),
        }
        doubt && sent
    }

    /// Sends a keepalive as a whole full frame: at once if `at_once`, else behind sealed frames
    /// that wait. Returns true if it left or will leave.
    pub(crate) fn send_probe(
        &mut self,
        now: Time,
        link: LinkId,
        at_once: bool,
        sink: &mut impl FrameSink,
    ) -> bool {
        let mut frame = [0; SizeClass::Full.frame_len()];
        frame[link::KIND_AT] = LinkKind::Keepalive as u8;
        let run = &mut OutgoingRun { buf: &mut frame, offsets: &[0], class: SizeClass::Full };
        let Some(neighbour) = self.neighbours.get_mut(link) else { return false };
        let Some(to) = neighbour.endpoint.filter(|_| neighbour.established) else { return false };
        if seal(self.sessions.shard(), now, link, run).is_err() {
            return false;
        }
        if !at_once && neighbour.egress.admission(Priority::Control) == Admission::Queue {
            let waits = neighbour.egress.push_sealed(run.class, run.buf, SEALED_MAX);
            self.own.counters.traffic.dispatched += u64::from(waits);
            return waits;
        }
        let outcome = self.own.transmit(sink, (link, to), run);
        self.own.counters.traffic.dispatched += outcome.sent as u64;
        let note = self.own.links.note(link);
        (note.sent, note.sent_full) =
            (note.sent + outcome.sent as u64, note.sent_full + outcome.sent as u64);
        note.too_long |= outcome.stop == Some(SendError::TooLong);
        self.settle(now);
        outcome.sent > 0
    }
}
