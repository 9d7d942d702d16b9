//! Covered links: full frames leave by a schedule, whatever there is to send (docs/cover.md).
//!
//! ```text
//! cells, control ----> egress --+
//! handshakes (sealed) --^       +--> as many as a slot has --> widen --> seal --> datagram
//! cover, if nothing waits ------+
//! ```
//!
//! The schedule never asks what waits. It ends when the path can't carry it, at a full hour, so
//! that the end tells nothing of what the link carried, and begins anew at the next one. On a path
//! that carries no full frame each of them leaves as three medium ones, in the same slot.
//!
//! A link's entry in the list of slots is made when [`Relay::refresh`] finds that it should have
//! one, whatever the reason, and used or given back when its time comes.
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

use shoal_crypto::{Aead, Ciphers, Flaw};
use shoal_link::{EgressConfig, LinkStats, Schedule, parts};
use shoal_session::{Endpoint, Endpoints};
use shoal_wire::{CONTROL_COVER, COVER_KEPT, CoverTier, DropReason, LinkId, SizeClass, Time};

use crate::batch::Run;
use crate::neighbours::Neighbour;
use crate::{RUN_MAX, Relay, Sink};
use fill::{cover_frames, fill};
use judge::Minute;
use slots::Punctual;
pub(crate) use slots::Slots;

/// Why a schedule ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverFault {
    /// For five minutes in a row the neighbour got too few of the frames that were sent.
    Loss,
    /// For five minutes in a row the kernel had no room for too many of them.
    NoRoom,
    /// The neighbour ends its own.
    Neighbour,
}

/// Where a covered link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverState {
    /// There is no session, so nothing is sent.
    Waiting,
    /// Frames leave by the schedule.
    Running,
    /// They do until the full hour at this time, in seconds since 1970.
    Ending(u64, CoverFault),
    /// They leave as they come, since this time, in seconds since 1970, for an hour.
    Off(u64, CoverFault),
}

/// What is known of a link's cover, for people.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoverView {
    /// Its schedule.
    pub tier: CoverTier,
    /// Whether it is kept.
    pub state: CoverState,
    /// Frames that left in slots.
    pub frames: u64,
    /// Those of them that carried something.
    pub filled: u64,
    /// Slots that were never used: this node could not run, or the kernel had no room, for more
    /// than a second.
    pub skipped: u64,
    /// Share of the frames sent in the last whole minute that did not arrive, 0 to 1; none before
    /// there was such a minute.
    pub lost: Option<f32>,
    /// Frames that came in that minute, as a share of the schedule's: about 1 if the neighbour
    /// keeps it too.
    pub arriving: Option<f32>,
    /// Why it would have ended, while it is kept whatever is lost.
    pub strained: Option<CoverFault>,
}

/// How long a host lets datagrams wait for its next slot.
const DOZE_MAX: Duration = Duration::from_millis(3);
/// It does so where slots are so far apart, in the mean. Where they are nearer it wakes often.
const DOZE_GAP: Duration = Duration::from_millis(2);
/// Milliseconds of an hour.
const HOUR_MS: u64 = 3_600_000;
/// How far ahead a neighbour's end may be, in milliseconds: an hour, and ten minutes of difference
/// between clocks.
const AHEAD_MAX_MS: u64 = HOUR_MS + 600_000;
/// Handshakes that wait for a slot; they are repeated by their own timers.
const HANDSHAKES_MAX: usize = 8;
/// How long cells wait at most: those of this time fill the egress, or one run of a file if that is
/// more, for which files wait ...
const WAIT_MAX: Duration = Duration::from_millis(100);
/// ... and cells are marked from those of this time on.
const WAIT_MARKED: Duration = Duration::from_millis(10);
/// A peer keeps its turns of a covered link for so long after its last cell.
const TURNS_KEPT: Duration = Duration::from_secs(5);
/// Frames that the kernel has no room for are made good if they are those of this time or less.
const OWED_MAX: Duration = Duration::from_secs(1);

/// A full hour at which something changes.
#[derive(Clone, Copy, Debug)]
struct Turning {
    /// By this node's own clock, so that a wall clock that jumps changes nothing.
    at: Time,
    /// In seconds since 1970.
    unix_s: u64,
    fault: CoverFault,
}

/// The slots of one link, and how they are used.
#[derive(Debug)]
pub(crate) struct Cover {
    schedule: Schedule,
    punctual: Punctual,
    /// The entry in the list of slots.
    listed: Option<Time>,
    /// Whether slots are used.
    running: bool,
    /// When the schedule ends.
    ends: Option<Turning>,
    /// When it ended, and when it begins anew.
    off: Option<(Turning, Time)>,
    /// The neighbour asks that it is kept whatever is lost.
    kept: bool,
    /// Why it would have ended since.
    strained: Option<CoverFault>,
    frames: u64,
    filled: u64,
    /// Frames of past slots that are to leave in the next ones, beside their own.
    owed: usize,
    /// Frames of past slots that were too many to make good.
    given_up: u64,
    refused: u64,
    minute: Minute,
    lost: Option<f32>,
    arriving: Option<f32>,
}

/// What is to be done when a link's entry in the list of slots is due.
enum Due {
    /// It is given back.
    Nothing,
    /// Slots begin.
    Begin,
    /// So many frames are to leave.
    Frames(usize),
}

impl Cover {
    fn new(tier: CoverTier, seed: u64, now: Time) -> Cover {
        Cover {
            schedule: Schedule::new(tier, seed, now),
            punctual: Punctual::default(),
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
            minute: Minute::default(),
            lost: None,
            arriving: None,
        }
    }

    /// What is to be done at the time of its entry.
    fn due(&mut self, now: Time, scheduled: bool) -> Due {
        if self.off.is_some_and(|(_, again)| again <= now) {
            (self.off, self.ends) = (None, None);
        }
        if !scheduled || self.off.is_some() {
            self.running = false;
            return Due::Nothing;
        }
        if !core::mem::replace(&mut self.running, true) {
            return Due::Begin;
        }
        let each = self.schedule.tier().frames();
        let mut frames = 0;
        while frames + each <= RUN_MAX && self.schedule.take(now) {
            frames += each;
        }
        Due::Frames(frames)
    }

    fn begin(&mut self, now: Time, stats: &LinkStats) {
        self.schedule.begin(now);
        self.owed = 0;
        self.minute.bad = 0;
        self.begin_minute(now, stats);
        // What ended while there was no session is over.
        self.ends = self.ends.filter(|ends| ends.at > now);
    }

    /// Notes that the kernel did not take `short` of the frames of a slot, `paid` of which were
    /// owed before.
    fn owe(&mut self, short: usize, paid: usize) {
        self.refused += short.saturating_sub(paid) as u64;
        let most = OWED_MAX.as_nanos() / self.schedule.tier().frame_gap().as_nanos();
        let owed = self.owed + short;
        self.owed = owed.min(most as usize);
        self.given_up += (owed - self.owed) as u64;
    }
}

impl Neighbour {
    /// Whether its frames leave in slots, or wait until they can.
    pub(crate) fn is_covered(&self) -> bool {
        self.cover.as_ref().is_some_and(|cover| cover.off.is_none())
    }

    /// Whether its frames leave in slots now.
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

/// Limits of the egress of a covered link: what waits leaves one by one.
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
    /// Has the frames of a link leave by a schedule from now on, or as they come. The same schedule
    /// again leaves it as it is, but begins anew one that is off.
    pub fn set_cover(&mut self, now: Time, link: LinkId, tier: Option<CoverTier>) {
        let seed = self.rng.u64();
        let usual = self.config.egress;
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let kept = neighbour.cover.as_ref().filter(|cover| cover.off.is_none());
        if kept.map(|cover| cover.schedule.tier()) != tier {
            if let Some(old) = &mut neighbour.cover {
                self.slots.set(link, &mut old.listed, None);
            }
            neighbour.cover = tier.map(|tier| Cover::new(tier, seed, now));
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

    /// Whether datagrams may wait for the next slot, which is near: on hosts whose slots are far
    /// apart, and there always. A node that wakes for its slots alone wakes half as often; one that
    /// did so only while nothing comes would tell by its answers, and by the times of its frames,
    /// when something does.
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

    /// Sends what the slots that have come are for. To be called first of all after a wait: what
    /// else a node does then makes slots late.
    pub fn handle_slots(&mut self, now: Time, sink: &mut impl Sink) {
        if self.slots.next().is_some_and(|at| at <= now) {
            self.fill_slots(now, sink);
            self.refresh();
        }
    }

    pub(crate) fn fill_slots(&mut self, now: Time, sink: &mut impl Sink) {
        while let Some(link) = self.slots.pop(now) {
            let Some(neighbour) = self.neighbours.get_mut(link) else { continue };
            let scheduled = neighbour.is_scheduled();
            let stats = neighbour.liveness.stats();
            let Some(cover) = &mut neighbour.cover else { continue };
            let woke_for = cover.listed.take().unwrap_or(now);
            let due = cover.due(now, scheduled);
            match due {
                Due::Nothing => continue,
                Due::Begin => {
                    cover.begin(now, &stats);
                    self.covers_to_tell.push(link);
                }
                Due::Frames(_) => cover.punctual.woke(now.since(woke_for)),
            }
            let next = cover.punctual.wake_for(cover.schedule.next());
            self.slots.set(link, &mut cover.listed, Some(next));
            let minute_is_over = cover.minute.is_over(now);
            let ends = cover.ends.filter(|ends| ends.at <= now);
            if let Due::Frames(frames) = due {
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

    /// How many frames leave in a slot for so many: other than those where a simulation's node does
    /// it wrong.
    fn spoil_slot(&self, link: LinkId, frames: usize) -> usize {
        let waiting = || self.neighbours.get(link).map_or(0, |n| n.egress.backlog());
        match C::Aead::flaw() {
            Some(Flaw::CoverPauses) if !self.address().is_router() && waiting() > 0 => {
                frames.min(waiting())
            }
            Some(Flaw::CoverPassesGaps) if self.address().is_router() => frames.min(waiting()),
            Some(Flaw::CoverExtra) if waiting() > frames => frames + 1,
            _ => frames,
        }
    }

    /// Sends the frames of slots of a covered link, and as many of those that are owed as fit.
    fn send_slots(&mut self, now: Time, link: LinkId, frames: usize, sink: &mut impl Sink) {
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

    /// Sends so many frames: what waits, else cover. Says how many the kernel took.
    fn send_full(&mut self, now: Time, link: LinkId, frames: usize, sink: &mut impl Sink) -> usize {
        let mut buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.stride);
        buf.resize(RUN_MAX * SizeClass::Full.frame_len(), 0);
        let (mut left, mut sent, mut goes_on) = (frames, 0, true);
        while left > 0 && goes_on {
            let Some(neighbour) = self.neighbours.get_mut(link) else { break };
            let small = neighbour.width.is_narrow();
            if neighbour.width.wants_probe(now) {
                // In the place of a slot's three parts, at a time that no traffic decides.
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

    /// Sends what lies in `buf`; says whether more may follow.
    fn send_run(
        &mut self,
        now: Time,
        link: LinkId,
        (buf, offsets): (&mut [u8], &mut Vec<u32>),
        shape: fill::Shape,
        sink: &mut impl Sink,
    ) -> bool {
        let len = shape.class.frame_len();
        offsets.clear();
        offsets.extend((0..shape.count).map(|i| (i * len) as u32));
        self.own.counters.traffic.cover_out += shape.cover as u64;
        self.own.counters.traffic.dispatched += shape.cover as u64;
        let run = &mut Run { buf, offsets, class: shape.class };
        self.depart(now, link, run, shape.sealed, sink)
    }

    /// Sends the frames of a slot before its time: the last ones of a node that stops, which
    /// whoever watches the link sees anyway.
    pub(crate) fn send_last_slot(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let neighbour = self.neighbours.get(link).filter(|neighbour| neighbour.is_scheduled());
        if let Some(cover) = neighbour.and_then(|neighbour| neighbour.cover.as_ref()) {
            self.send_slots(now, link, cover.schedule.tier().frames(), sink);
        }
    }

    /// Has a handshake wait for a slot, where frames leave in slots; says whether it did. One to
    /// another place than the link's leaves at once: slots lead elsewhere. So does one of a length
    /// that slots don't have while the link is down, since it finds out what the path carries;
    /// while the link is up it is dropped.
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

    fn judge_cover(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
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
            cover.ends.get_or_insert(Turning { fault, ..hour });
        }
        self.tell_cover(now, link, sink);
    }

    /// Tells the neighbour when this node's schedule ends, or that it has begun.
    fn tell_cover(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let Some(neighbour) = self.neighbours.get(link) else { return };
        let cover = neighbour.cover.as_ref().filter(|cover| cover.off.is_none());
        let Some(cover) = cover else { return };
        let ends = match neighbour.cover_required {
            true => COVER_KEPT,
            false => cover.ends.map_or(0, |ends| ends.unix_s),
        };
        self.send_control(now, link, &[(CONTROL_COVER, &ends.to_be_bytes())], sink);
    }

    /// Tells neighbours of schedules that have begun; says whether there were any.
    pub(crate) fn tell_covers(&mut self, now: Time, sink: &mut impl Sink) -> bool {
        let begun = core::mem::take(&mut self.covers_to_tell);
        for &link in &begun {
            self.tell_cover(now, link, sink);
        }
        !begun.is_empty()
    }

    /// The neighbour says when its schedule ends: so does this node's, but at a full hour of its
    /// own clock that is still to come. With 0 the neighbour's has begun: so does this node's if it
    /// was off, and it goes on if it was to end only because the neighbour's did. With
    /// [`COVER_KEPT`] this node's begins, or goes on, and does not end while the neighbour says so.
    ///
    /// Errors: `malformed`, if that is no full hour, or is far ahead.
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
                let neighbours = |ends: &Turning| ends.fault == CoverFault::Neighbour;
                cover.ends = cover.ends.filter(|ends| !neighbours(ends));
            }
            (_, Some(_)) => {}
            (_, None) if required => {}
            (_, None) => {
                let later = ends_ms.saturating_sub(hour.unix_s * 1_000);
                cover.ends.get_or_insert(Turning {
                    at: hour.at + Duration::from_millis(later),
                    unix_s: hour.unix_s + later / 1_000,
                    fault: CoverFault::Neighbour,
                });
            }
        }
        Ok(())
    }

    /// Ends a schedule: frames leave as they come.
    fn end_cover(&mut self, now: Time, link: LinkId, ends: Turning, sink: &mut impl Sink) {
        let usual = self.config.egress;
        self.tell_cover(now, link, sink);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let Some(cover) = &mut neighbour.cover else { return };
        cover.off = Some((ends, ends.at + Duration::from_millis(HOUR_MS)));
        cover.running = false;
        self.slots.set(link, &mut cover.listed, None);
        neighbour.egress.set_limits(usual);
        neighbour.egress.set_shares(None);
        neighbour.liveness.set_unhurried(false);
        self.block(now, link);
    }

    /// The next full hour, by the wall clock as it is now.
    fn next_hour(&self, now: Time) -> Turning {
        let unix_ms = self.unix_ms(now);
        let hour_ms = (unix_ms / HOUR_MS + 1) * HOUR_MS;
        Turning {
            at: now + Duration::from_millis(hour_ms - unix_ms),
            unix_s: hour_ms / 1_000,
            fault: CoverFault::Neighbour,
        }
    }

    /// Milliseconds since 1970.
    pub(crate) fn unix_ms(&self, now: Time) -> u64 {
        let (at, unix_ms) = self.wall;
        unix_ms + now.since(at).as_millis() as u64
    }
}
