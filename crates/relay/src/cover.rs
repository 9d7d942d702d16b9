//! Covered links: full frames leave by a schedule, whatever there is to send (docs/cover.md).
//!
//! ```text
//! cells, control ----> egress --+
//! handshakes (sealed) --^       +--> as many as a slot has --> widen --> seal --> datagram
//! cover, if nothing waits ------+
//! ```
//!
//! The schedule never asks what waits. It ends when the path can't carry it, at a full hour, so
//! that the end tells nothing of what the link carried.

use core::time::Duration;
use std::collections::BTreeSet;

use shoal_crypto::Ciphers;
use shoal_link::{Egress, EgressConfig, LinkStats, Schedule};
use shoal_wire::{
    CONTROL_COVER, CoverTier, DropReason, LinkId, LinkKind, SizeClass, TAG_LEN, Time, link,
};

use crate::batch::Run;
use crate::neighbours::Neighbour;
use crate::{RUN_MAX, Relay, Sink};

/// Why a schedule ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverFault {
    /// For five minutes in a row the neighbour got too few of the frames that were sent.
    Loss,
    /// For five minutes in a row the kernel had no room for too many of them.
    NoRoom,
    /// The path carries no full frame.
    SmallPath,
    /// The neighbour ends its own.
    Neighbour,
}

/// Where a covered link stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CoverState {
    /// There is no session yet, so nothing is sent.
    Waiting,
    /// Frames leave by the schedule.
    Running,
    /// They do until the full hour at this time, in seconds since 1970.
    Ending(u64, CoverFault),
    /// They leave as they come, since this time, in seconds since 1970.
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
    /// Slots that passed while this node could not run, and that were too many to make good.
    pub skipped: u64,
    /// Share of the frames sent in the last whole minute that did not arrive, 0 to 1; none before
    /// there was such a minute.
    pub lost: Option<f32>,
    /// Frames that came in that minute, as a share of the schedule's: about 1 if the neighbour
    /// keeps it too.
    pub arriving: Option<f32>,
}

/// How often it is judged whether the path carries the schedule.
const MINUTE: Duration = Duration::from_secs(60);
/// So many bad minutes in a row end a schedule.
const BAD_MINUTES: u32 = 5;
/// How long datagrams may wait for the next slot while nothing but cover comes ...
const DOZE_MAX: Duration = Duration::from_millis(3);
/// ... for so long.
const AWAKE: Duration = Duration::from_millis(200);
/// Share of a minute's frames that may be lost, or refused by the kernel.
const LOST_MAX: f32 = 0.05;
/// Seconds of an hour.
const HOUR_S: u64 = 3_600;
/// How far ahead a neighbour's end may be: an hour, and ten minutes of difference between clocks.
const AHEAD_MAX_S: u64 = HOUR_S + 600;
/// Handshakes that wait for a slot; they are repeated by their own timers.
const HANDSHAKES_MAX: usize = 8;
/// How long cells wait at most: those of this time fill the egress, or one run of a file if that is
/// more, for which files wait ...
const WAIT_MAX: Duration = Duration::from_millis(100);
/// ... and cells are marked from those of this time on.
const WAIT_MARKED: Duration = Duration::from_millis(10);

/// The slots of one link, and how they are used.
#[derive(Debug)]
pub(crate) struct Cover {
    schedule: Schedule,
    /// Whether the link stands in the list of slots.
    listed: bool,
    /// The full hour at which it ends, and why.
    ends: Option<(u64, CoverFault)>,
    /// Since when it is off.
    off: Option<(u64, CoverFault)>,
    frames: u64,
    filled: u64,
    refused: u64,
    minute: Minute,
    lost: Option<f32>,
    arriving: Option<f32>,
}

/// Counters when the present minute began, and the bad minutes before it.
#[derive(Debug, Default)]
struct Minute {
    began: Time,
    sent: u64,
    reported: u64,
    received: u64,
    frames: u64,
    refused: u64,
    bad: u32,
}

/// Which links have their next slot when.
#[derive(Debug, Default)]
pub(crate) struct Slots {
    due: BTreeSet<(Time, LinkId)>,
    /// Cells that had passed this node at the last slot, and until when their number says that more
    /// will come.
    cells: u64,
    busy_until: Time,
}

impl Slots {
    pub(crate) fn next(&self) -> Option<Time> {
        self.due.first().map(|&(at, _)| at)
    }

    fn pop(&mut self, now: Time) -> Option<LinkId> {
        let due = self.due.first().is_some_and(|&(at, _)| at <= now);
        if due { self.due.pop_first().map(|(_, link)| link) } else { None }
    }
}

impl Cover {
    fn new(tier: CoverTier, seed: u64, now: Time) -> Cover {
        Cover {
            schedule: Schedule::new(tier, seed, now),
            listed: false,
            ends: None,
            off: None,
            frames: 0,
            filled: 0,
            refused: 0,
            minute: Minute::default(),
            lost: None,
            arriving: None,
        }
    }

    /// Begins a minute.
    fn begin_minute(&mut self, now: Time, stats: &LinkStats) {
        self.minute = Minute {
            began: now,
            sent: stats.sent,
            reported: stats.reported,
            received: stats.received,
            frames: self.frames,
            refused: self.refused,
            bad: self.minute.bad,
        };
    }

    /// Judges a minute that is over; why the schedule must end, if it must. A minute in which the
    /// link was down, or the neighbour began anew, says nothing.
    fn judge(&mut self, now: Time, stats: &LinkStats, is_up: bool) -> Option<CoverFault> {
        let minute = &mut self.minute;
        let sent = stats.sent.saturating_sub(minute.sent) as f32;
        let frames = (self.frames - minute.frames) as f32;
        let known = is_up && stats.reported >= minute.reported && sent > 0.0 && frames > 0.0;
        if known {
            let lost = 1.0 - ((stats.reported - minute.reported) as f32 / sent).min(1.0);
            let refused = (self.refused - minute.refused) as f32 / frames;
            let due = now.since(minute.began).as_secs_f32()
                / self.schedule.tier().frame_gap().as_secs_f32();
            self.lost = Some(lost);
            self.arriving = Some((stats.received - minute.received) as f32 / due);
            let fault = match (refused > LOST_MAX, lost > LOST_MAX) {
                (true, _) => Some(CoverFault::NoRoom),
                (_, true) => Some(CoverFault::Loss),
                _ => None,
            };
            minute.bad = if fault.is_some() { minute.bad + 1 } else { 0 };
            if let Some(fault) = fault.filter(|_| minute.bad >= BAD_MINUTES) {
                self.begin_minute(now, stats);
                return Some(fault);
            }
        }
        self.begin_minute(now, stats);
        None
    }
}

impl Neighbour {
    /// Whether its frames leave in slots now.
    pub(crate) fn is_scheduled(&self) -> bool {
        let covered = self.cover.as_ref().is_some_and(|cover| cover.off.is_none());
        covered && self.established && self.endpoint.is_some() && !self.small && !self.closing
    }

    pub(crate) fn cover_view(&self) -> Option<CoverView> {
        let cover = self.cover.as_ref()?;
        let state = match (cover.off, cover.ends) {
            (Some((since, fault)), _) => CoverState::Off(since, fault),
            (None, Some((at, fault))) => CoverState::Ending(at, fault),
            (None, None) if self.small => CoverState::Off(0, CoverFault::SmallPath),
            (None, None) if self.is_scheduled() => CoverState::Running,
            (None, None) => CoverState::Waiting,
        };
        Some(CoverView {
            tier: cover.schedule.tier(),
            state,
            frames: cover.frames,
            filled: cover.filled,
            skipped: cover.schedule.skipped(),
            lost: cover.lost,
            arriving: cover.arriving,
        })
    }
}

/// Limits of the egress of a covered link: what waits leaves one by one.
fn limits(tier: CoverTier, usual: EgressConfig) -> EgressConfig {
    let frames = |span: Duration| (span.as_nanos() / tier.frame_gap().as_nanos()) as usize;
    EgressConfig {
        data_frames_max: frames(WAIT_MAX).clamp(RUN_MAX, usual.data_frames_max.max(RUN_MAX)),
        mark_frames: frames(WAIT_MARKED).clamp(4, usual.mark_frames.max(4)),
        ..usual
    }
}

/// Has a frame of a shorter class fill a full one, whose bytes behind it are zeroed. A cell says by
/// its kind how long it was.
fn widen(frame: &mut [u8], class: SizeClass) {
    if class == SizeClass::Full {
        return;
    }
    if frame[link::KIND_AT] == LinkKind::Cell as u8 {
        let small = class == SizeClass::Small;
        let kind = if small { LinkKind::SmallCell } else { LinkKind::MediumCell };
        frame[link::KIND_AT] = kind as u8;
    }
    frame[class.frame_len() - TAG_LEN..].fill(0);
}

impl<C: Ciphers> Relay<C> {
    /// Has the frames of a link leave by a schedule from now on, or as they come. The same schedule
    /// again leaves it as it is, but begins anew one that is off.
    pub fn set_cover(&mut self, now: Time, link: LinkId, tier: Option<CoverTier>) {
        let seed = self.rng.u64();
        let usual = self.config.egress;
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let runs = neighbour.cover.as_ref().filter(|cover| cover.off.is_none());
        if runs.map(|cover| cover.schedule.tier()) == tier {
            return self.refresh();
        }
        // An entry in the list of slots that is there already finds the new schedule.
        let listed = runs.is_some_and(|cover| cover.listed);
        neighbour.cover = tier.map(|tier| Cover { listed, ..Cover::new(tier, seed, now) });
        neighbour.egress.set_limits(tier.map_or(usual, |tier| limits(tier, usual)));
        if neighbour.cover.is_none() {
            self.block(now, link);
        }
        self.begin_cover(now, link);
        self.refresh();
    }

    /// Has a link's slots begin, if it is covered and has a session.
    pub(crate) fn begin_cover(&mut self, now: Time, link: LinkId) {
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        if !neighbour.is_scheduled() {
            return;
        }
        let stats = neighbour.liveness.stats();
        let Some(cover) = neighbour.cover.as_mut().filter(|cover| !cover.listed) else { return };
        cover.listed = true;
        cover.schedule.begin(now);
        cover.begin_minute(now, &stats);
        self.slots.due.insert((cover.schedule.next(), link));
        self.covers_to_tell.push(link);
    }

    /// Whether datagrams may wait for the next slot, which is near: nothing but cover and control
    /// came or went for a while. A node that wakes for its slots alone wakes half as often.
    pub fn may_doze(&self, now: Time) -> bool {
        let near = |next: Time| next.since(now) <= DOZE_MAX;
        now >= self.slots.busy_until && self.slots.next().is_some_and(near)
    }

    /// Sends what the slots that have come are for.
    pub(crate) fn fill_slots(&mut self, now: Time, sink: &mut impl Sink) {
        let traffic = &self.own.counters.traffic;
        let cells = traffic.cells_local + traffic.cells_transit + traffic.cells_origin;
        if core::mem::replace(&mut self.slots.cells, cells) != cells {
            self.slots.busy_until = now + AWAKE;
        }
        while let Some(link) = self.slots.pop(now) {
            let Some(neighbour) = self.neighbours.get_mut(link) else { continue };
            let scheduled = neighbour.is_scheduled();
            let Some(cover) = &mut neighbour.cover else { continue };
            if !scheduled {
                cover.listed = false;
                continue;
            }
            let each = cover.schedule.tier().frames();
            let mut frames = 0;
            while frames + each <= RUN_MAX && cover.schedule.take(now) {
                frames += each;
            }
            self.slots.due.insert((cover.schedule.next(), link));
            let minute_is_over = now.since(cover.minute.began) >= MINUTE;
            let ends = cover.ends;
            self.send_slots(now, link, frames, sink);
            if minute_is_over {
                self.judge_cover(now, link, sink);
            }
            if ends.is_some_and(|(at, _)| self.unix_s(now) >= at) {
                self.end_cover(now, link, sink);
            }
        }
    }

    /// Sends so many frames of a covered link: what waits, else cover.
    fn send_slots(&mut self, now: Time, link: LinkId, mut left: usize, sink: &mut impl Sink) {
        const LEN: usize = SizeClass::Full.frame_len();
        let mut buf = core::mem::take(&mut self.scratch.run);
        let mut offsets = core::mem::take(&mut self.scratch.stride);
        buf.resize(RUN_MAX * LEN, 0);
        while left > 0 {
            let Some(neighbour) = self.neighbours.get_mut(link) else { break };
            let (count, filled, sealed) = fill(&mut neighbour.egress, &mut buf, left.min(RUN_MAX));
            if let Some(cover) = &mut neighbour.cover {
                cover.frames += count as u64;
                cover.filled += filled as u64;
            }
            self.own.counters.traffic.cover_out += (count - filled) as u64;
            self.own.counters.traffic.dispatched += (count - filled) as u64;
            offsets.clear();
            offsets.extend((0..count).map(|i| (i * LEN) as u32));
            let run = &mut Run { buf: &mut buf, offsets: &offsets, class: SizeClass::Full };
            if !self.depart(now, link, run, sealed, sink) {
                let cover = self.neighbours.get_mut(link).and_then(|n| n.cover.as_mut());
                cover.into_iter().for_each(|cover| cover.refused += left as u64);
                break;
            }
            left -= count;
        }
        (self.scratch.run, self.scratch.stride) = (buf, offsets);
    }

    /// Sends the frames of a slot before its time: the last ones of a node that stops, which
    /// whoever watches the link sees anyway.
    pub(crate) fn send_last_slot(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let neighbour = self.neighbours.get(link).filter(|neighbour| neighbour.is_scheduled());
        if let Some(cover) = neighbour.and_then(|neighbour| neighbour.cover.as_ref()) {
            self.send_slots(now, link, cover.schedule.tier().frames(), sink);
        }
    }

    /// Has a handshake wait for a slot, where frames leave in slots; says whether it did. One that
    /// is no full frame fits no slot: it leaves at once while the link is down, since it finds out
    /// whether the path still carries full frames, and is dropped while it is up.
    pub(crate) fn schedule_handshake(&mut self, link: Option<LinkId>, frame: &[u8]) -> bool {
        let neighbour = link.and_then(|link| self.neighbours.get_mut(link));
        let Some(neighbour) = neighbour.filter(|neighbour| neighbour.is_scheduled()) else {
            return false;
        };
        let full = frame.len() == SizeClass::Full.frame_len();
        if !full && !neighbour.liveness.is_up() {
            return false;
        }
        let queued = full && neighbour.egress.push_sealed(SizeClass::Full, frame, HANDSHAKES_MAX);
        if queued {
            self.own.counters.traffic.handshakes_out += 1;
        } else {
            self.own.counters.drop(DropReason::QueueFull, 1);
        }
        true
    }

    fn judge_cover(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let unix_s = self.unix_s(now);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let (stats, is_up) = (neighbour.liveness.stats(), neighbour.liveness.is_up());
        let Some(cover) = &mut neighbour.cover else { return };
        if let Some(fault) = cover.judge(now, &stats, is_up) {
            cover.ends.get_or_insert(((unix_s / HOUR_S + 1) * HOUR_S, fault));
        }
        self.tell_cover(now, link, sink);
    }

    /// Tells the neighbour when this node's schedule ends, or that it has begun.
    fn tell_cover(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let cover = self.neighbours.get(link).and_then(|neighbour| neighbour.cover.as_ref());
        let Some(cover) = cover.filter(|cover| cover.off.is_none()) else { return };
        let ends = cover.ends.map_or(0, |(at, _)| at);
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

    /// The neighbour says when its schedule ends: so does this node's. With 0 it has begun, and so
    /// does this node's if it was off.
    ///
    /// Errors: `malformed`, if that is no full hour, or is far ahead.
    pub(crate) fn hear_cover(
        &mut self,
        now: Time,
        from: LinkId,
        ends: u64,
    ) -> Result<(), DropReason> {
        let unix_s = self.unix_s(now);
        if !ends.is_multiple_of(HOUR_S) || ends > unix_s + AHEAD_MAX_S {
            return Err(DropReason::Malformed);
        }
        let neighbour = self.neighbours.get_mut(from).ok_or(DropReason::UnknownPeer)?;
        let Some(cover) = &mut neighbour.cover else { return Ok(()) };
        match (ends, cover.off) {
            (0, Some(_)) => {
                let tier = cover.schedule.tier();
                self.set_cover(now, from, Some(tier));
            }
            (0, None) | (_, Some(_)) => {}
            (_, None) => {
                let fault = cover.ends.map_or(CoverFault::Neighbour, |(_, fault)| fault);
                let at = cover.ends.map_or(ends, |(at, _)| at.min(ends));
                cover.ends = Some((at, fault));
            }
        }
        Ok(())
    }

    /// Ends a schedule: frames leave as they come.
    fn end_cover(&mut self, now: Time, link: LinkId, sink: &mut impl Sink) {
        let (unix_s, usual) = (self.unix_s(now), self.config.egress);
        self.tell_cover(now, link, sink);
        let Some(neighbour) = self.neighbours.get_mut(link) else { return };
        let Some(cover) = &mut neighbour.cover else { return };
        let fault = cover.ends.map_or(CoverFault::Neighbour, |(_, fault)| fault);
        cover.off = Some((unix_s, fault));
        neighbour.egress.set_limits(usual);
        self.block(now, link);
    }

    /// Seconds since 1970.
    fn unix_s(&self, now: Time) -> u64 {
        let (at, unix_ms) = self.wall;
        unix_ms / 1_000 + now.since(at).as_secs()
    }
}

/// Moves up to `max` frames from the egress to `buf`, and fills the rest of them with cover: how
/// many frames, how many that carry something, and whether they are sealed already.
fn fill(egress: &mut Egress, buf: &mut [u8], max: usize) -> (usize, usize, bool) {
    const LEN: usize = SizeClass::Full.frame_len();
    if let Some(run) = egress.take_sealed(buf, max) {
        return (run.count, run.count, true);
    }
    let mut filled = 0;
    while filled < max
        && let Some(run) = egress.take_run(&mut buf[filled * LEN..(filled + 1) * LEN], 1)
    {
        widen(&mut buf[filled * LEN..(filled + 1) * LEN], run.class);
        filled += 1;
    }
    for frame in buf[filled * LEN..max * LEN].chunks_exact_mut(LEN) {
        frame.fill(0);
        frame[link::KIND_AT] = LinkKind::Cover as u8;
    }
    (max, filled, false)
}
