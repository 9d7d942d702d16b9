//! Asking again: this host has moved, or a translator of addresses forgot a link.

use shoal_wire::{DirectKind, DirectMessage, Time};

use super::{Direct, Entry, MAKING_WAIT, Phase};
use crate::book::HostId;

impl Direct {
    /// Asks a host again with which there is a link.
    pub(crate) fn ask_again(&mut self, now: Time, host: HostId) {
        let ours = self.rng.array();
        let Some(entry) = self.entries.get_mut(&host) else { return };
        (entry.meets.ours, entry.meets.again) = (ours, true);
        if let Phase::Making(_) = entry.phase {
            self.set(host, Phase::Making(now + MAKING_WAIT));
        }
        self.stats.asked += 1;
        self.say(host, DirectKind::Ask);
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
    pub(crate) fn meet_again(&mut self, host: HostId, said: &DirectMessage) {
        if self.config.endpoint.is_none()
            && said.endpoint.is_none()
            && let Ok(places) = self.places(said.meeting.as_ref())
        {
            self.meet(host, said, places);
        }
    }
}
