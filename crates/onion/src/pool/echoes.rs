//! Echoes that are asked for, and answers to all of them.

use shoal_wire::{CircuitId, Time};

use super::Pool;

/// Echoes that wait to be sent when [`Pool::ask`] adds none.
pub(super) const ECHOES_MAX: usize = 64;

impl Pool {
    /// Has a hop of a circuit, counted from 1, asked at once. Says with which number it answers;
    /// none if the circuit gave way to another and is closed, has no such hop, or many echoes wait.
    pub fn ask(&mut self, id: CircuitId, hop: u8) -> Option<u64> {
        let host = self.hosts.get(self.by_id.get(&id)?)?;
        let live = host.in_use.iter().map(|live| (live.id, &live.path));
        let ending = host.ending.iter().map(|ending| (ending.id, &ending.path));
        let (_, path) = live.chain(ending).find(|(known, _)| *known == id)?;
        let is_there = (1..=path.len()).contains(&usize::from(hop));
        if !is_there || self.echoes.len() >= ECHOES_MAX {
            return None;
        }
        // As random as those of the pool itself: relays see the numbers.
        let number = self.rng.u64().max(1);
        self.echoes.push_back((id, hop, number));
        Some(number)
    }

    /// Whether echoes that can wait may join those that wait to be sent.
    pub(super) fn has_room_for_echoes(&self) -> bool {
        self.echoes.len() < ECHOES_MAX
    }

    /// Notes that a hop, counted from 1, answered an echo. A number that this hop was not asked for
    /// says nothing: whoever forges answers could look alive by it, or another relay dead.
    pub fn note_echoed(&mut self, now: Time, id: CircuitId, hop: u8, number: u64) {
        let Pool { hosts, by_id, rng, blame, loop_totals, .. } = self;
        let host = by_id.get(&id).and_then(|to| hosts.get_mut(to));
        let Some(host) = host else { return };
        let ending = host.ending.iter_mut().map(|e| (e.id, &e.path, &mut e.probe));
        let in_use = host.in_use.iter_mut().map(|live| (live.id, &live.path, &mut live.probe));
        let asked = ending.chain(in_use).find(|(asked, ..)| *asked == id);
        if let Some((_, path, Some(probe))) = asked
            && probe.note_answer(hop, number)
        {
            blame.note_heard(now, path[0]);
        }
        if let Some(live) = host.in_use.as_mut().filter(|live| live.id == id)
            && let Some(scout) = &mut live.scout
            && scout.note_answer(hop, number)
        {
            blame.note_heard(now, live.path[0]);
        }
        let both = host.in_use.iter_mut().chain(&mut host.standby);
        let mut live = both.filter(|live| live.id == id && usize::from(hop) == live.path.len());
        if let Some(live) = live.next() {
            let looped = live.loop_answered(now, number);
            looped.into_iter().for_each(|outcome| loop_totals.count(outcome));
            if live.answered(now, number, rng) || looped.is_some() {
                blame.note_heard(now, live.path[0]);
            }
        }
        self.settle(now);
    }
}
