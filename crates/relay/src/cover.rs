//! Covered links: full frames leave by a schedule, regardless of traffic (docs/design/cover.md).
//!
//! ```text
//! cells, control ----> egress --+
//! handshakes (sealed) --^       +--> as many as a slot has --> widen --> seal --> datagram
//! cover, if nothing waits ------+
//! ```
//!
//! The schedule never depends on waiting frames. If the path can't carry it, it ends at a full
//! hour, so that the end reveals nothing about the traffic. It begins again an hour later. On a
//! path without full frames, each full frame leaves as three medium ones in the same slot.
//!
//! [`Relay::refresh`] makes an entry in the list of slots for each link that should have one. When
//! its time comes, the entry is used or removed.
//!
//! ```text
//!            session, tier               minutes with too much loss          full hour
//! waiting ------------------> running ------------------------------> ending ---------> off
//!    ^                         |   ^                                    |                 |
//!    +----- no session --------+   +------- an hour later, or the neighbour begins -------+
//! ```

mod fill;
mod judge;
mod required;
mod slots;

use core::time::Duration;

use shoal_crypto::{Aead, Ciphers, PlantedFault};
use shoal_link::{EgressConfig, LinkStats, SlotSchedule, parts};
use shoal_session::{Endpoint, Endpoints};
use shoal_wire::{CONTROL_COVER, COVER_KEPT, CoverTier, DropReason, LinkId, SizeClass, Time};

use crate::batch::OutgoingRun;
use crate::neighbours::Neighbour;
use crate::{FrameSink, RUN_MAX, Relay};
use fill::{cover_frames, fill};
use judge::LossMinute;
use slots::LatenessEqualizer;
pub(crate) use slots::SlotQueue;

/// Reason for which a schedule ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverFault {
    /// For five minutes in a row, the neighbour received too few of the frames sent.
    Loss,
    /// For five minutes in a row, the kernel had no room for too many frames.
    NoRoom,
    /// The neighbour ends its schedule.
    Neighbour,
}

/// State of a covered link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverState {
    /// There is no session, so no frame is sent.
    Waiting,
    /// Frames leave by the schedule.
    Running,
    /// Frames leave by the schedule until this full hour, in seconds since 1970.
    Ending(u64, CoverFault),
    /// Frames leave without a schedule for an hour, since this time in seconds since 1970.
    Off(u64, CoverFault),
}

/// State of a link's cover, for status output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoverView {
    pub tier: CoverTier,
    pub state: CoverState,
    /// Frames that left in slots.
    pub frames: u64,
    /// Frames among them that carried data or control.
    pub filled: u64,
    /// Slots skipped for more than a second, because this node was suspended or the kernel had no
    /// room.
    pub skipped: u64,
    /// Share of the frames sent in the last full minute that were lost, 0 to 1. None before the
    /// first full minute.
    pub lost: Option<f32>,
    /// Frames received in that minute, relative to the schedule: about 1 if the neighbour keeps it
    /// too.
    pub arriving: Option<f32>,
    /// The fault that would have ended the schedule, if the schedule is kept regardless of loss.
    pub strained: Option<CoverFault>,
}

/// Maximum time for which a host delays datagrams until its next slot.
const DOZE_MAX: Duration = Duration::from_millis(3);
/// Minimum mean distance of slots for this delay. With nearer slots the node wakes often anyway.
const DOZE_GAP: Duration = Duration::from_millis(2);
/// Milliseconds per hour.
const HOUR_MS: u64 = 3_600_000;
/// Maximum time until a neighbour's announced end, in milliseconds: an hour, and ten minutes of
/// clock difference.
const AHEAD_MAX_MS: u64 = HOUR_MS + 600_000;
/// Maximum number of handshakes that wait for slots. Timers repeat dropped ones.
const HANDSHAKES_MAX: usize = 8;
/// Maximum wait of cells. The egress holds the cells of this time, but at least one run of a file.
const WAIT_MAX: Duration = Duration::from_millis(100);
/// Wait from which on cells are marked.
const WAIT_MARKED: Duration = Duration::from_millis(10);
/// Time after its last cell for which a peer keeps its turns on a covered link.
const TURNS_KEPT: Duration = Duration::from_secs(5);
/// Maximum debt of frames for which the kernel had no room: the frames of this time.
const OWED_MAX: Duration = Duration::from_secs(1);

/// A full hour at which the schedule's state changes.
#[derive(Clone, Copy, Debug)]
struct HourlyChange {
    /// Monotonic time, so jumps of the wall clock have no effect.
    at: Time,
    /// This hour in seconds since 1970.
    unix_s: u64,
    fault: CoverFault,
}

/// The slots of one link, and counts of their use.
#[derive(Debug)]
pub(crate) struct LinkCover {
    schedule: SlotSchedule,
    punctual: LatenessEqualizer,
    /// The link's entry in the list of slots.
    listed: Option<Time>,
    /// True if slots are in use.
    running: bool,
    /// End of the schedule.
    ends: Option<HourlyChange>,
    /// End of the last schedule, and time of the next begin.
    off: Option<(HourlyChange, Time)>,
    /// True if the neighbour requires this schedule regardless of loss.
    kept: bool,
    /// The fault that would have ended it otherwise.
    strained: Option<CoverFault>,
    frames: u64,
    filled: u64,
    /// Number of frames of past slots that leave in the next slots, beside their own frames.
    owed: usize,
    /// Number of frames of past slots that were given up, since the debt was full.
    given_up: u64,
    refused: u64,
    minute: LossMinute,
    lost: Option<f32>,
    arriving: Option<f32>,
}

/// Action when a link's entry in the list of slots is due.
enum SlotAction {
    /// Remove the entry.
    Nothing,
    /// Begin the schedule.
    Begin,
    /// Send this number of frames.
    Frames(usize),
}

impl LinkCover {
    fn new(tier: CoverTier, seed: u64, now: Time) -> LinkCover {
        LinkCover {
            schedule: SlotSchedule::new(tier, seed, now),
            punctual: LatenessEqualizer::default(),
            listed: None,
            running: false,
            ends: None,
            off: None,
            kept: false,
            strained: None,
            frames: 0,
            filled: 0,
            owed: 0,
            given_up: 0,
            refused: 0,
            minute: LossMinute::default(),
            lost: None,
            arriving: None,
        }
    }

    /// The action when the link's entry is due.
    fn due(&mut self, now: Time, scheduled: bool) -> SlotAction {
        if self.off.is_some_and(|(_, again)| again <= now) {
            (self.off, self.ends) = (None, None);
        }
        if !scheduled || self.off.is_some() {
            self.running = false;
            return SlotAction::Nothing;
        }
        if !core::mem::replace(&mut self.running, true) {
            return SlotAction::Begin;
        }
        let each = self.schedule.tier().frames();
        let mut frames = 0;
        while frames + each <= RUN_MAX && self.schedule.take(now) {
            frames += each;
        }
        SlotAction::Frames(frames)
    }

    fn begin(&mut self, now: Time, stats: &LinkStats) {
        self.schedule.begin(now);
        self.owed = 0;
        self.minute.bad = 0;
        self.begin_minute(now, stats);
        // An end that passed while there was no session is void.
        self.ends = self.ends.filter(|ends| ends.at > now);
    }

    /// Notes that the kernel refused `short` frames of a slot. `paid` of the slot's frames were
    /// owed from earlier slots.
    fn owe(&mut self, short: usize, paid: usize) {
        self.refused += short.saturating_sub(paid) as u64;
        let most = OWED_MAX.as_nanos() / self.schedule.tier().frame_gap().as_nanos();
        let owed = self.owed + short;
        self.owed = owed.min(most as usize);
        self.given_up += (owed - self.owed) as u64;
    }
}

impl Neighbour {
    /// True if its frames leave in slots, or wait until they can.
    pub(crate) fn is_covered(&self) -> bool {
        self.cover.as_ref().is_some_and(|cover| cover.off.is_none())
    }

    /// True if its frames leave in slots now.
    pub(crate) fn is_scheduled(&self) -> bool {
        self.is_covered() && self.established && self.endpoint.is_some() && !self.closing
    }

    pub(crate) fn cover_view(&self) -> Option<CoverView> {
        let cover = self.cover.as_ref()?;
        let state = match (cover.off, cover.ends) {
            (Some((off, _)), _) => CoverState::Off(off.unix_s, off.fault),
            _ if !self.is_scheduled() => CoverState::Waiting,
            (_, Some(ends)) => CoverState::Ending(ends.unix_s, ends.fault),
            _ => CoverState::Running,
        };
        let tier = cover.schedule.tier();
        Some(CoverView {
            tier,
            state,
            frames: cover.frames,
            filled: cover.filled,
            skipped: cover.schedule.skipped() + cover.given_up / tier.frames() as u64,
            lost: cover.lost,
            arriving: cover.arriving,
            strained: cover.strained,
        })
    }
}

/// Limits of a covered link's egress, whose frames leave one by one.
fn limits(tier: CoverTier, usual: EgressConfig) -> EgressConfig {
    let frames = |span: Duration| (span.as_nanos() / tier.frame_gap().as_nanos()) as usize;
    EgressConfig {
        data_frames_max: frames(WAIT_MAX).clamp(RUN_MAX, usual.data_frames_max.max(RUN_MAX)),
        control_frames_max: frames(WAIT_MAX).clamp(16, usual.control_frames_max.max(16)),
        mark_frames: frames(WAIT_MARKED).clamp(4, usual.mark_frames.max(4)),
    }
}

/// Rounds of 32 frames after which a silent peer loses its turns.
fn idle_rounds(tier: CoverTier) -> u32 {
    (TURNS_KEPT.as_nanos() / (32 * tier.frame_gap().as_nanos())).max(1) as u32
}

impl<C: Ciphers> Relay<C> {
    /// Sets or removes the schedule of a link. The same schedule again changes nothing, except that
    /// it restarts a schedule that is off.
    pub fn set_cover(&mut self, now: Time, link: LinkId, tier: Option<CoverTier>) {
        let seed = self.rng.u64();
        let usual = self.config.egress;
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let kept = neighbour.cover.as_ref().filter(|cover| cover.off.is_none());
        if kept.map(|cover| cover.schedule.tier()) != tier {
            if let Some(old) = &mut neighbour.cover {
                self.slots.set(link, &mut old.listed, None);
            }
            neighbour.cover = tier.map(|tier| LinkCover::new(tier, seed, now));
            neighbour.egress.set_limits(tier.map_or(usual, |tier| limits(tier, usual)));
            neighbour.egress.set_shares(tier.map(idle_rounds));
            neighbour.liveness.set_unhurried(tier.is_some());
            if neighbour.is_shut() {
                let lost = neighbour.egress.clear() as u64;
                self.own.counters.drop_out(DropReason::CoverRequired, lost);
            } else if neighbour.cover.is_none() {
                self.block(now, link);
            }
        }
        self.refresh();
    }

    /// True if datagrams may wait for the next slot.
    ///
    /// This holds on hosts whose slots are far apart, if the next slot is near. A node that wakes
    /// only for slots wakes half as often. It must do so always. If it did so only without traffic,
    /// the times of its answers and frames would reveal incoming traffic.
    pub fn may_doze(&self, now: Time) -> bool {
        let near = |next: Time| next.since(now) <= DOZE_MAX;
        let far_apart = |link| {
            let cover = self.neighbours.get(link).and_then(|neighbour| neighbour.cover.as_ref());
            cover.is_some_and(|cover| cover.schedule.tier().gap() >= DOZE_GAP)
        };
        !self.address().is_router()
            && self.slots.next().is_some_and(near)
            && self.slots.links().all(far_apart)
    }

    /// Sends the frames of due slots. Call this first after a wait, since other work makes slots
    /// late.
    pub fn handle_slots(&mut self, now: Time, sink: &mut impl FrameSink) {
        if self.slots.next().is_some_and(|at| at <= now) {
            self.fill_slots(now, sink);
            self.refresh();
        }
    }

    pub(crate) fn fill_slots(&mut self, now: Time, sink: &mut impl FrameSink) {
        while let Some(link) = self.slots.pop(now) {
            let Some(neighbour) = self.neighbours.get_mut(link) else { continue };
            let scheduled = neighbour.is_scheduled();
            let stats = neighbour.liveness.stats();
            let Some(cover) = &mut neighbour.cover else { continue };
            let woke_for = cover.listed.take().unwrap_or(now);
            let due = cover.due(now, scheduled);
            match due {
                SlotAction::Nothing => continue,
                SlotAction::Begin => {
                    cover.begin(now, &stats);
                    self.covers_to_tell.push(link);
                }
                SlotAction::Frames(_) => cover.punctual.woke(now.since(woke_for)),
            }
            let next = cover.punctual.wake_for(cover.schedule.next());
            self.slots.set(link, &mut cover.listed, Some(next));
            let minute_is_over = cover.minute.is_over(now);
            let ends = cover.ends.filter(|ends| ends.at <= now);
            if let SlotAction::Frames(frames) = due {
                let frames = self.spoil_slot(link, frames);
                self.send_slots(now, link, frames, sink);
            }
            if minute_is_over {
                self.judge_cover(now, link, sink);
            }
            if let Some(ends) = ends {
                self.end_cover(now, link, ends, sink);
            }
        }
    }

    /// Number of frames that leave in a slot of `frames`. It differs only in a simulation with a
    /// deliberate flaw.
    fn spoil_slot(&self, link: LinkId, frames: usize) -> usize {
        let waiting = || self.neighbours.get(link).map_or(0, |n| n.egress.backlog());
        match C::Aead::flaw() {
            Some(PlantedFault::CoverPauses) if !self.address().is_router() && waiting() > 0 => {
                frames.min(waiting())
            }
            Some(PlantedFault::CoverPassesGaps) if self.address().is_router() => {
                frames.min(waiting())
            }
            Some(PlantedFault::CoverExtra) if waiting() > frames => frames + 1,
            _ => frames,
        }
    }

    /// Sends the frames of due slots, and as many owed frames as fit.
    fn send_slots(&mut self, now: Time, link: LinkId, frames: usize, sink: &mut impl FrameSink) {
        let cover = self.neighbours.get_mut(link).and_then(|neighbour| neighbour.cover.as_mut());
        let Some(cover) = cover else { return };
        let paid = cover.owed.min(RUN_MAX.saturating_sub(frames));
        cover.owed -= paid;
        let sent = self.send_full(now, link, frames + paid, sink);
        let cover = self.neighbours.get_mut(link).and_then(|neighbour| neighbour.cover.as_mut());
        if let Some(cover) = cover {
            cover.frames += sent as u64;
            cover.owe((frames + paid).saturating_sub(sent), paid);
        }
    }

    /// Sends this number of frames: queued ones, then cover. Returns how many the kernel accepted.
    fn send_full(
        &mut self,
        now: Time,
        link: LinkId,
        frames: usize,
        sink: &mut impl FrameSink,
    ) -> usize {
        let mut buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.stride);
        buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        let (mut left, mut sent, mut goes_on) = (frames, 0, true);
        while left > 0 && goes_on {
            let Some(neighbour) = self.neighbours.get_mut(link) else { break };
            let small = neighbour.width.is_narrow();
            if neighbour.width.wants_probe(now) {
                // The probe replaces the three parts of one frame. Traffic does not influence its
                // time.
                neighbour.width.probed(now);
                sent += usize::from(self.send_probe(now, link, true, sink));
                left -= 1;
                continue;
            }
            let run = fill(&mut neighbour.egress, &mut buf, left.min(RUN_MAX), small);
            if let Some(cover) = &mut neighbour.cover {
                cover.filled += run.filled as u64;
            }
            self.own.counters.drop_out(DropReason::SendFailed, run.forgotten as u64);
            let before = self.own.counters.traffic.frames_out;
            goes_on = self.send_run(now, link, (&mut buf, &mut offsets), run.shape, sink);
            if run.pad > 0 && goes_on {
                let pad = cover_frames(&mut buf, run.pad);
                goes_on = self.send_run(now, link, (&mut buf, &mut offsets), pad, sink);
            }
            let out = (self.own.counters.traffic.frames_out - before) as usize;
            let in_parts = small && !(run.shape.sealed && run.shape.class == SizeClass::Full);
            sent += if in_parts { out / parts::PARTS } else { out };
            left -= run.uses;
        }
        (self.scratch.run, self.scratch.stride) = (buf, offsets);
        sent
    }

    /// Sends the frames in `buf`. Returns true if more may follow.
    fn send_run(
        &mut self,
        now: Time,
        link: LinkId,
        (buf, offsets): (&mut [u8], &mut Vec<u32>),
        shape: fill::FrameGroup,
        sink: &mut impl FrameSink,
    ) -> bool {
        let len = shape.class.frame_len();
        offsets.clear();
        offsets.extend((0..shape.count).map(|i| (i * len) as u32));
        self.own.counters.traffic.cover_out += shape.cover as u64;
        self.own.counters.traffic.dispatched += shape.cover as u64;
        let run = &mut OutgoingRun { buf, offsets, class: shape.class };
        self.depart(now, link, run, shape.sealed, sink)
    }

    /// Sends a slot's frames early: the last frames of a node that stops. An observer of the link
    /// notices the stop anyway.
    pub(crate) fn send_last_slot(&mut self, now: Time, link: LinkId, sink: &mut impl FrameSink) {
        let neighbour = self.neighbours.get(link).filter(|neighbour| neighbour.is_scheduled());
        if let Some(cover) = neighbour.and_then(|neighbour| neighbour.cover.as_ref()) {
            self.send_slots(now, link, cover.schedule.tier().frames(), sink);
        }
    }

    /// Queues a handshake for a slot if the link is scheduled. Returns true if the handshake is
    /// queued or dropped.
    ///
    /// A handshake to another endpoint leaves at once, since slots go to the link's endpoint. A
    /// handshake of a length that slots don't have leaves at once while the link is down, since it
    /// tests the path. While the link is up it is dropped.
    pub(crate) fn schedule_handshake(
        &mut self,
        link: Option<LinkId>,
        to: &Endpoints,
        frame: &[u8],
    ) -> bool {
        let neighbour = link.and_then(|link| self.neighbours.get_mut(link));
        let Some(neighbour) = neighbour.filter(|neighbour| neighbour.is_scheduled()) else {
            return false;
        };
        let class = SizeClass::of_frame(frame.len());
        let class = class.filter(|class| fill::fits(*class, neighbour.width.is_narrow()));
        let at_home = neighbour.endpoint.is_some_and(|endpoint| endpoint.is_same_place(to));
        let leaves = match class {
            Some(_) => !at_home,
            None => !neighbour.liveness.is_up(),
        };
        if leaves {
            return false;
        }
        let egress = &mut neighbour.egress;
        if class.is_some_and(|class| egress.push_sealed(class, frame, HANDSHAKES_MAX)) {
            self.own.counters.traffic.handshakes_out += 1;
        } else {
            self.own.counters.drop(DropReason::QueueFull, 1);
        }
        true
    }

    fn judge_cover(&mut self, now: Time, link: LinkId, sink: &mut impl FrameSink) {
        let hour = self.next_hour(now);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let (stats, is_up) = (neighbour.liveness.stats(), neighbour.liveness.is_up());
        let parts = if neighbour.width.is_narrow() { parts::PARTS } else { 1 };
        let required = neighbour.cover_required;
        let Some(cover) = &mut neighbour.cover else { return };
        let fault = cover.judge(now, &stats, is_up, parts);
        let keeps = required || cover.kept;
        cover.strained = fault.filter(|_| keeps);
        if let Some(fault) = fault.filter(|_| !keeps) {
            cover.ends.get_or_insert(HourlyChange { fault, ..hour });
        }
        self.tell_cover(now, link, sink);
    }

    /// Tells the neighbour when this node's schedule ends, or that it has begun.
    fn tell_cover(&mut self, now: Time, link: LinkId, sink: &mut impl FrameSink) {
        let Some(neighbour) = self.neighbours.get(link) else { return };
        let cover = neighbour.cover.as_ref().filter(|cover| cover.off.is_none());
        let Some(cover) = cover else { return };
        let ends = match neighbour.cover_required {
            true => COVER_KEPT,
            false => cover.ends.map_or(0, |ends| ends.unix_s),
        };
        self.send_control(now, link, &[(CONTROL_COVER, &ends.to_be_bytes())], sink);
    }

    /// Tells neighbours about schedules that have begun. Returns true if there were any.
    pub(crate) fn tell_covers(&mut self, now: Time, sink: &mut impl FrameSink) -> bool {
        let begun = core::mem::take(&mut self.covers_to_tell);
        for &link in &begun {
            self.tell_cover(now, link, sink);
        }
        !begun.is_empty()
    }

    /// Handles a neighbour's message about its schedule.
    ///
    /// `ends` is the time at which the neighbour's schedule ends. This node's schedule then ends at
    /// a coming full hour of its own clock. With 0 the neighbour's schedule has begun. This node's
    /// begins if it was off, and continues if it was to end only because of the neighbour. With
    /// [`COVER_KEPT`] this node's begins or continues, and does not end while the neighbour says
    /// so.
    ///
    /// # Errors
    ///
    /// `malformed`: the time is no full hour or too far ahead.
    pub(crate) fn hear_cover(
        &mut self,
        now: Time,
        from: LinkId,
        ends: u64,
    ) -> Result<(), DropReason> {
        let (unix_ms, hour) = (self.unix_ms(now), self.next_hour(now));
        if ends == COVER_KEPT {
            return self.keep_cover(now, from);
        }
        let ends_ms = ends.checked_mul(1_000).ok_or(DropReason::Malformed)?;
        if !ends_ms.is_multiple_of(HOUR_MS) || ends_ms > unix_ms + AHEAD_MAX_MS {
            return Err(DropReason::Malformed);
        }
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        let required = neighbour.cover_required;
        let Some(cover) = &mut neighbour.cover else { return Ok(()) };
        cover.kept = false;
        match (ends, cover.off) {
            (0, Some(_)) => {
                let tier = cover.schedule.tier();
                self.set_cover(now, from, Some(tier));
            }
            (0, None) => {
                let neighbours = |ends: &HourlyChange| ends.fault == CoverFault::Neighbour;
                cover.ends = cover.ends.filter(|ends| !neighbours(ends));
            }
            (_, Some(_)) => {}
            (_, None) if required => {}
            (_, None) => {
                let later = ends_ms.saturating_sub(hour.unix_s * 1_000);
                cover.ends.get_or_insert(HourlyChange {
                    at: hour.at + Duration::from_millis(later),
                    unix_s: hour.unix_s + later / 1_000,
                    fault: CoverFault::Neighbour,
                });
            }
        }
        Ok(())
    }
}
