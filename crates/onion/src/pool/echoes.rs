//! Echoes on request, and answers to all echoes.

use core::time::Duration;

use shoal_wire::{CircuitId, Time};

use super::CircuitPool;

/// Number of waiting echoes at which [`CircuitPool::ask`] adds no more.
pub(super) const ECHOES_MAX: usize = 64;

impl CircuitPool {
    /// Asks a hop of a circuit, counted from 1, for an echo at once. Returns the echo's number.
    /// None if the circuit was replaced and closed, has no such hop, or too many echoes wait.
    pub fn ask(&mut self, id: CircuitId, hop: u8) -> Option<u64> {
        let host = self.hosts.get(self.by_id.get(&id)?)?;
        let live = host.in_use.iter().map(|live| (live.id, &live.path));
        let ending = host.ending.iter().map(|ending| (ending.id, &ending.path));
        let (_, path) = live.chain(ending).find(|(known, _)| *known == id)?;
        let is_there = (1..=path.len()).contains(&usize::from(hop));
        if !is_there || self.echoes.len() >= ECHOES_MAX {
            return None;
        }
        // As random as the pool's own numbers, since relays see them.
        let number = self.rng.u64().max(1);
        self.echoes.push_back((id, hop, number));
        Some(number)
    }

    /// Time within which nearly all echoes of a circuit in use are answered, without waits for
    /// turns of covered links.
    pub fn patience(&self, id: CircuitId) -> Option<Duration> {
        let host = self.hosts.get(self.by_id.get(&id)?)?;
        let live = host.in_use.as_ref().filter(|live| live.id == id)?;
        Some(live.rtt * 2 + live.waits())
    }

    /// True if echoes without urgency may join the queue.
    pub(super) fn has_room_for_echoes(&self) -> bool {
        self.echoes.len() < ECHOES_MAX
    }

    /// Notes that a hop, counted from 1, answered an echo. A number that this hop was not asked for
    /// is ignored. Otherwise a forger could make itself look alive, or another relay dead.
    pub fn note_echoed(&mut self, now: Time, id: CircuitId, hop: u8, number: u64) {
        let CircuitPool { hosts, by_id, rng, blame, loop_totals, .. } = self;
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
