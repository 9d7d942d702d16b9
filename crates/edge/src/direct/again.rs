//! Repeats of requests. A message was lost on its way over the routers, this host has moved, or a
//! translator forgot the mapping of a link.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_wire::{DirectKind, DirectMessage, Level, MeetingId, Time};

use super::{ANSWER_WAIT, DirectEntry, DirectMachine, DirectPhase, MAKING_WAIT};
use crate::book::HostId;
use crate::levels::LevelReason;

/// Times at which an unanswered request is repeated, counted from its first sending. The first
/// repeats are frequent. If each of three wires loses one frame of twenty, the request or its
/// answer is lost about once in four times.
const ASK_AGAIN: [Duration; 8] = [
    Duration::from_millis(100),
    Duration::from_millis(200),
    Duration::from_millis(320),
    Duration::from_millis(480),
    Duration::from_millis(700),
    Duration::from_millis(1_000),
    Duration::from_millis(1_700),
    Duration::from_millis(3_000),
];
/// Times at which private addresses are sent again while there is no link. No message confirms
/// them.
const NEAR_AGAIN: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(220), Duration::from_millis(400)];

/// Repeat timer of a message: time of the first sending, and number of repeats so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RepeatTimer {
    since: Time,
    repeats: usize,
}

impl RepeatTimer {
    pub(crate) fn new(since: Time) -> RepeatTimer {
        RepeatTimer { since, repeats: 0 }
    }

    fn next(&self, schedule: &[Duration]) -> Option<Time> {
        schedule.get(self.repeats).map(|after| self.since + *after)
    }

    /// Counts a repeat if it is due; returns true then.
    fn take(&mut self, now: Time, schedule: &[Duration]) -> bool {
        let due = self.next(schedule).is_some_and(|at| at <= now);
        self.repeats += usize::from(due);
        due
    }
}

/// A request or an answer of another host that was handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HandledMessage {
    at: Time,
    /// Zeroes if the sender can be called: such messages carry no id.
    id: MeetingId,
    endpoint: Option<SocketAddr>,
    terms: (Level, LevelReason),
}

impl DirectEntry {
    /// Time of the next repeat.
    pub(super) fn repeat_at(&self) -> Option<Time> {
        let asks = self.asking.and_then(|said| said.next(&ASK_AGAIN));
        let tells = self.nearing.and_then(|(said, _)| said.next(&NEAR_AGAIN));
        [asks, tells].into_iter().flatten().min()
    }
}

impl DirectMachine {
    /// Asks a host, and repeats the request until there is an answer.
    pub(super) fn ask(&mut self, now: Time, host: HostId) {
        let Some(entry) = self.entries.get_mut(&host) else { return };
        entry.asking = Some(RepeatTimer::new(now));
        self.look_soon(host);
        self.stats.asked += 1;
        self.say(host, DirectKind::Ask);
    }

    /// Checks a host no later than its next repeat.
    pub(crate) fn look_soon(&mut self, host: HostId) {
        let due = self.entries.get(&host).and_then(DirectEntry::repeat_at);
        self.look_at = [self.look_at, due].into_iter().flatten().min();
    }

    /// Repeats the messages that are due.
    pub(super) fn repeat(&mut self, now: Time, host: HostId) {
        let Some(entry) = self.entries.get_mut(&host) else { return };
        let asks = entry.asking.as_mut().is_some_and(|said| said.take(now, &ASK_AGAIN));
        let tells = entry
            .nearing
            .as_mut()
            .and_then(|(said, id)| said.take(now, &NEAR_AGAIN).then_some(*id));
        if asks {
            self.say(host, DirectKind::Ask);
        }
        if let Some(id) = tells {
            self.say_near(host, id);
        }
    }

    pub(super) fn taken(&self, now: Time, host: HostId, said: &DirectMessage) -> HandledMessage {
        let id = said.meeting.as_ref().map_or([0; 16], |meeting| meeting.id);
        HandledMessage { at: now, id, endpoint: said.endpoint, terms: self.terms_with(host, said) }
    }

    /// True if this request or answer was already handled. Its sender repeats it because it got no
    /// answer.
    pub(super) fn is_repeated(&self, now: Time, host: HostId, said: &DirectMessage) -> bool {
        let taken = self.taken(now, host, said);
        let Some(entry) = self.entries.get(&host) else { return false };
        let before = match said.kind {
            DirectKind::Ask => entry.asked,
            DirectKind::Yes => entry.agreed.filter(|_| entry.asking.is_none()),
            DirectKind::End | DirectKind::Near => None,
        };
        // A message without an id may belong to another attempt, after a restart.
        let stands = matches!(entry.phase, DirectPhase::Making(_) | DirectPhase::Up(_));
        (stands || taken.id != [0; 16])
            && before.is_some_and(|before| {
                now < before.at + ANSWER_WAIT && before == HandledMessage { at: before.at, ..taken }
            })
    }

    /// Sends a new request to a host with which there is a link.
    pub(crate) fn ask_again(&mut self, now: Time, host: HostId) {
        let ours = self.rng.array();
        let Some(entry) = self.entries.get_mut(&host) else { return };
        (entry.meets.ours, entry.meets.again) = (ours, true);
        if let DirectPhase::Making(_) = entry.phase {
            self.set(host, DirectPhase::Making(now + MAKING_WAIT));
        }
        self.ask(now, host);
    }

    /// Hosts with a link that began with probes.
    fn found_by_probes(&self) -> impl Iterator<Item = HostId> + '_ {
        let found = |entry: &DirectEntry| {
            entry.meets.probed && matches!(entry.phase, DirectPhase::Making(_) | DirectPhase::Up(_))
        };
        self.entries.iter().filter(move |(_, entry)| found(entry)).map(|(host, _)| *host)
    }

    /// Lets failed attempts be repeated at once.
    fn forget_failures(&mut self, now: Time) {
        for entry in self.entries.values_mut().filter(|entry| entry.relayed.is_some()) {
            if let DirectPhase::Waiting(_) = entry.phase {
                (entry.phase, entry.failures) = (DirectPhase::Waiting(now), 0);
            }
        }
    }

    /// Schedules a check that tells hosts of this host's move.
    pub(crate) fn look_after_move(&mut self) {
        (self.moved, self.look_at) = (true, Some(Time::ZERO));
    }

    /// Handles this host's move: sends new requests to hosts that were found by probes, and retries
    /// failed attempts.
    pub(crate) fn tell_moved(&mut self, now: Time) {
        let of_probes: Vec<HostId> = self.found_by_probes().collect();
        of_probes.into_iter().for_each(|host| self.ask_again(now, host));
        self.forget_failures(now);
    }

    /// Handles a move of either host while the link is up. Probes open the path between the new
    /// endpoints, and the host that asked calls.
    pub(crate) fn meet_again(&mut self, now: Time, host: HostId, said: &DirectMessage) {
        if self.config.endpoint.is_none()
            && said.endpoint.is_none()
            && let Ok(places) = self.places(said.meeting.as_ref())
        {
            self.meet(now, host, said, places);
        }
    }
}
