//! Saying it again: a message was lost on its way over the routers, this host has moved, or a
//! translator of addresses forgot a link.

use core::time::Duration;
use std::net::SocketAddr;

use shoal_wire::{DirectKind, DirectMessage, Level, MeetingId, Time};

use super::{ANSWER_WAIT, Direct, Entry, MAKING_WAIT, Phase};
use crate::book::HostId;
use crate::levels::Why;

/// When a request is repeated that nobody answered, since it was made: often at first, as one of
/// four is lost, or its answer, over three wires of which each loses one frame of twenty.
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
/// When private addresses are told again while there is no link: nobody answers them.
const NEAR_AGAIN: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(220), Duration::from_millis(400)];

/// Since when something is said, and how often it was repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    since: Time,
    repeats: usize,
}

impl Said {
    pub(crate) fn new(since: Time) -> Said {
        Said { since, repeats: 0 }
    }

    fn next(&self, schedule: &[Duration]) -> Option<Time> {
        schedule.get(self.repeats).map(|after| self.since + *after)
    }

    /// Counts a repeat that is due.
    fn take(&mut self, now: Time, schedule: &[Duration]) -> bool {
        let due = self.next(schedule).is_some_and(|at| at <= now);
        self.repeats += usize::from(due);
        due
    }
}

/// A request or an answer of another host that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    at: Time,
    /// Zeroes where the other can be called: its messages bear none.
    id: MeetingId,
    endpoint: Option<SocketAddr>,
    terms: (Level, Why),
}

impl Entry {
    /// When something is to be said again.
    pub(super) fn repeat_at(&self) -> Option<Time> {
        let asks = self.asking.and_then(|said| said.next(&ASK_AGAIN));
        let tells = self.nearing.and_then(|(said, _)| said.next(&NEAR_AGAIN));
        [asks, tells].into_iter().flatten().min()
    }
}

impl Direct {
    /// Asks a host, and goes on until it answers.
    pub(super) fn ask(&mut self, now: Time, host: HostId) {
        let Some(entry) = self.entries.get_mut(&host) else { return };
        entry.asking = Some(Said::new(now));
        self.look_soon(host);
        self.stats.asked += 1;
        self.say(host, DirectKind::Ask);
    }

    /// Looks at a host no later than something is to be said to it again.
    pub(crate) fn look_soon(&mut self, host: HostId) {
        let due = self.entries.get(&host).and_then(Entry::repeat_at);
        self.look_at = [self.look_at, due].into_iter().flatten().min();
    }

    /// Says again what is due.
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

    pub(super) fn taken(&self, now: Time, host: HostId, said: &DirectMessage) -> Taken {
        let id = said.meeting.as_ref().map_or([0; 16], |meeting| meeting.id);
        Taken { at: now, id, endpoint: said.endpoint, terms: self.terms_with(host, said) }
    }

    /// Whether this is a request or an answer that was taken already, and that its sender repeated
    /// because it heard nothing.
    pub(super) fn is_repeated(&self, now: Time, host: HostId, said: &DirectMessage) -> bool {
        let taken = self.taken(now, host, said);
        let Some(entry) = self.entries.get(&host) else { return false };
        let before = match said.kind {
            DirectKind::Ask => entry.asked,
            DirectKind::Yes => entry.agreed.filter(|_| entry.asking.is_none()),
            DirectKind::End | DirectKind::Near => None,
        };
        // Without an id it may be another attempt, after a restart.
        let stands = matches!(entry.phase, Phase::Making(_) | Phase::Up(_));
        (stands || taken.id != [0; 16])
            && before.is_some_and(|before| {
                now < before.at + ANSWER_WAIT && before == Taken { at: before.at, ..taken }
            })
    }

    /// Asks a host again with which there is a link.
    pub(crate) fn ask_again(&mut self, now: Time, host: HostId) {
        let ours = self.rng.array();
        let Some(entry) = self.entries.get_mut(&host) else { return };
        (entry.meets.ours, entry.meets.again) = (ours, true);
        if let Phase::Making(_) = entry.phase {
            self.set(host, Phase::Making(now + MAKING_WAIT));
        }
        self.ask(now, host);
    }

    /// Hosts with a link that began with probes.
    fn found_by_probes(&self) -> impl Iterator<Item = HostId> + '_ {
        let found = |entry: &Entry| {
            entry.meets.probed && matches!(entry.phase, Phase::Making(_) | Phase::Up(_))
        };
        self.entries.iter().filter(move |(_, entry)| found(entry)).map(|(host, _)| *host)
    }

    /// Attempts that failed wait no longer.
    fn forget_failures(&mut self, now: Time) {
        for entry in self.entries.values_mut().filter(|entry| entry.relayed.is_some()) {
            if let Phase::Waiting(_) = entry.phase {
                (entry.phase, entry.failures) = (Phase::Waiting(now), 0);
            }
        }
    }

    /// Has hosts told of a move with the next look.
    pub(crate) fn look_after_move(&mut self) {
        (self.moved, self.look_at) = (true, Some(Time::ZERO));
    }

    /// This host has moved: asks again where that may help.
    pub(crate) fn tell_moved(&mut self, now: Time) {
        let of_probes: Vec<HostId> = self.found_by_probes().collect();
        of_probes.into_iter().for_each(|host| self.ask_again(now, host));
        self.forget_failures(now);
    }

    /// Both stand, and one of them has moved: probes open the way between their new places, and the
    /// one that asked calls.
    pub(crate) fn meet_again(&mut self, now: Time, host: HostId, said: &DirectMessage) {
        if self.config.endpoint.is_none()
            && said.endpoint.is_none()
            && let Ok(places) = self.places(said.meeting.as_ref())
        {
            self.meet(now, host, said, places);
        }
    }
}
