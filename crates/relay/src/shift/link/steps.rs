//! The steps by which a link's two ends shift, and their proof of reachability.
//!
//! A neighbour knows the schedule. To keep it from directing data elsewhere, each call and answer
//! carries a token to its destination. The token is derived from a key of this end, the addresses
//! and the destination. An end moves only for a step that returns such a token, because then the
//! neighbour receives frames there.

use shoal_crypto::kdf;
use shoal_session::Endpoints;
use shoal_wire::{DropReason, PathToken, ShiftAnnouncement, ShiftStage, ShiftStep, Time};

use super::{
    NO_TOKEN, PrefixChange, STEPS_MAX, ScheduleStart, ShiftAddresses, ShiftAttempt, ShiftOutcome,
    ShiftState,
};
use crate::shift::prefixes::{CLAIMED_MAX, OPENS_MAX, RemotePrefixes};
use crate::shift::schedule::ShiftRole;

impl ShiftState {
    pub(super) fn push(&mut self, spot: ShiftAddresses, stage: ShiftStage, echo: PathToken) {
        if self.steps.contains(&(spot, stage, echo)) {
            return;
        }
        match self.steps.len() < STEPS_MAX {
            true => self.steps.push_back((spot, stage, echo)),
            false => self.crowded = self.crowded.saturating_add(1),
        }
    }

    /// The token of a step to the addresses of `spot` at this place.
    fn token(&self, spot: ShiftAddresses, far: ShiftAnnouncement) -> PathToken {
        let (port, epoch) = (far.port.to_be_bytes(), spot.epoch.to_be_bytes());
        // A different interval restarts the count of epochs.
        let interval = self.interval().as_micros().to_be_bytes();
        let parts: [&[u8]; 5] = [&spot.tag, &epoch, &interval, &far.prefix, &port];
        let [a, b, c, d, e, f, g, h, ..] = kdf(self.key.expose(), "shoal v1 hop token", &parts);
        [a, b, c, d, e, f, g, h]
    }

    /// The place to which this token was sent: the current one, or the second destination of steps.
    fn place_of_token(
        &self,
        now: Time,
        spot: ShiftAddresses,
        token: PathToken,
    ) -> Option<ShiftAnnouncement> {
        let peer = self.peer?;
        // A former prefix is no proof for a later shift.
        let counts = |far: &RemotePrefixes| {
            self.at.is_none() || far.claimed(now).is_some() || far.left_in(spot)
        };
        let far = self.far.as_deref().filter(|far| counts(far));
        let other = far.and_then(|far| far.other(now));
        let other = other.map(|prefix| ShiftAnnouncement { prefix, ..peer });
        let mut places = [Some(peer), other].into_iter().flatten();
        places.find(|place| self.token(spot, *place) == token)
    }

    /// Takes the next step, with source and destination. While an end changes its prefix, each step
    /// is sent between all prefixes.
    pub fn poll_step(&mut self, now: Time) -> Option<(Endpoints, ShiftStep)> {
        while self.copies.is_empty() {
            let (spot, stage, echo) = self.steps.pop_front()?;
            let peer = self.peer?;
            for near in self.own.sources() {
                for far in self.targets(now, peer, stage) {
                    let token = match stage {
                        ShiftStage::Call | ShiftStage::Answer => self.token(spot, far),
                        ShiftStage::Done => NO_TOKEN,
                    };
                    let step = ShiftStep { stage, tag: spot.tag, epoch: spot.epoch, token, echo };
                    self.copies.extend(self.between(spot, near, far).map(|ends| (ends, step)));
                }
            }
            self.copies.reverse();
        }
        let step = self.copies.pop();
        if self.copies.is_empty() {
            // Frees memory: links are many, and steps are rare.
            self.copies = Vec::new();
        }
        step
    }

    /// The destinations of a step.
    fn targets(
        &mut self,
        now: Time,
        peer: ShiftAnnouncement,
        stage: ShiftStage,
    ) -> impl Iterator<Item = ShiftAnnouncement> + use<> {
        // While data uses shifting addresses, the neighbour is proven to be there.
        let is_shown = self.at.is_some();
        let opens = (self.end, stage) == (ShiftRole::Following, ShiftStage::Call);
        let most = if opens { OPENS_MAX } else { CLAIMED_MAX };
        let may = is_shown || self.unproven.spend(now, 1, most);
        let far = self.far.as_mut();
        let other = far.and_then(|far| far.copy(now, peer.prefix, &mut self.unproven, most));
        let other = other.map(|prefix| ShiftAnnouncement { prefix, ..peer });
        [Some(peer).filter(|_| may), other].into_iter().flatten()
    }

    /// Takes the number of steps and similar frames that were not sent: too many at once, or beyond
    /// a budget.
    pub fn take_held_back(&mut self) -> u64 {
        let left = self.far.as_mut().map_or(0, |far| far.take_held_back());
        let crowded = core::mem::take(&mut self.crowded);
        [left, self.unproven.take_held_back(), crowded].map(u64::from).iter().sum()
    }

    /// Drops unsent steps, because there is no session or the link falls back.
    pub(crate) fn drop_steps(&mut self) {
        self.steps.clear();
        self.copies = Vec::new();
    }

    /// Handles a neighbour's step. Returns whether its addresses are under a different prefix than
    /// assumed.
    ///
    /// Errors: `bad_shift` if its addresses must not be used now, or if the step is not the
    /// neighbour's to take. Also if it would move this end without returning a token.
    pub fn handle(&mut self, now: Time, step: &ShiftStep) -> Result<PrefixChange, DropReason> {
        let spot = ShiftAddresses { tag: step.tag, epoch: step.epoch };
        let is_next = self.next.as_ref().is_some_and(|next| next.to == spot);
        match (step.stage, self.end) {
            (ShiftStage::Call, ShiftRole::Following) if self.may_follow(now, spot) => {
                self.push(spot, ShiftStage::Answer, step.token);
                let (again, echo) = (now + self.retry(), step.token);
                match &mut self.next {
                    Some(next) if is_next => next.echo = echo,
                    _ if self.at == Some(spot) => {}
                    _ => self.next = Some(ShiftAttempt { to: spot, again, tries: 1, echo }),
                }
            }
            // The other end's firewall is open now. This end's call may have arrived too early.
            (ShiftStage::Call, ShiftRole::Leading) if is_next => {
                self.push(spot, ShiftStage::Call, NO_TOKEN)
            }
            (ShiftStage::Call, ShiftRole::Leading) if self.may_follow(now, spot) => {}
            (ShiftStage::Answer, ShiftRole::Leading) if is_next => {
                let place =
                    self.place_of_token(now, spot, step.echo).ok_or(DropReason::BadShift)?;
                self.push(spot, ShiftStage::Done, step.token);
                return Ok(self.end_shift(now, spot, place));
            }
            (ShiftStage::Answer, ShiftRole::Leading) if self.at == Some(spot) => {
                self.push(spot, ShiftStage::Done, step.token);
                return Ok(self.take_claimed(now, spot, step.echo));
            }
            (ShiftStage::Done, ShiftRole::Following) if is_next => {
                let place =
                    self.place_of_token(now, spot, step.echo).ok_or(DropReason::BadShift)?;
                return Ok(self.end_shift(now, spot, place));
            }
            (ShiftStage::Done, ShiftRole::Following) if self.at == Some(spot) => {
                return Ok(self.take_claimed(now, spot, step.echo));
            }
            _ => return Err(DropReason::BadShift),
        }
        Ok(PrefixChange::Stayed)
    }

    fn may_follow(&self, now: Time, spot: ShiftAddresses) -> bool {
        let back = |at: ShiftAddresses| at.tag == spot.tag && spot.epoch < at.epoch;
        let is_near = |run: &ScheduleStart| self.epoch(now, run).abs_diff(spot.epoch) <= 1;
        self.peer.is_some()
            && !self.at.is_some_and(back)
            && self.runs.iter().take(2).any(|run| run.schedule.tag() == spot.tag && is_near(run))
    }

    /// Completes a shift: the neighbour received a step at `place`, so data goes there.
    fn end_shift(
        &mut self,
        now: Time,
        spot: ShiftAddresses,
        place: ShiftAnnouncement,
    ) -> PrefixChange {
        let followed = self.take_place(now, place);
        if let Some(far) = &mut self.far
            && self.said.is_some_and(|said| said.prefix == place.prefix)
        {
            far.see(None);
        }
        // At the fixed endpoint, the neighbour may still use the addresses that this end left.
        let left = self.at.map(|at| (at, now + self.interval()));
        self.before = left.or(self.before);
        (self.at, self.next, self.faults) = (Some(spot), None, 0);
        self.made += 1;
        self.last = (now, ShiftOutcome::Moved);
        self.forget_runs(now);
        followed
    }

    /// Handles a token returned after the shift: data moves to the announced place if the token was
    /// sent there.
    fn take_claimed(&mut self, now: Time, spot: ShiftAddresses, token: PathToken) -> PrefixChange {
        let place = self.place_of_token(now, spot, token);
        let claimed = place.filter(|place| self.claims(now, place.prefix));
        claimed.map_or(PrefixChange::Stayed, |place| self.take_place(now, place))
    }

    /// Sets the place at which the neighbour received a step, if it differs from the current one.
    fn take_place(&mut self, now: Time, place: ShiftAnnouncement) -> PrefixChange {
        let (was_shown, claimed) = (self.at.is_some(), self.claims(now, place.prefix));
        let Some(peer) = self.peer.filter(|peer| peer.prefix != place.prefix) else {
            return PrefixChange::Stayed;
        };
        if was_shown && !claimed {
            // The neighbour was there when the shift began, and has proved its current place since.
            return PrefixChange::Stayed;
        }
        let during = self.next.as_ref().map(|next| next.to);
        let said = self.said.filter(|said| said.prefix != place.prefix);
        let far = self.far.get_or_insert_default();
        match said {
            // The neighbour was faster at its former place, or can only be reached there for now.
            Some(said) if said.prefix == peer.prefix => far.stay(now, said),
            _ => far.leave(now, peer.prefix, was_shown, during),
        }
        far.see(said.map(|_| place.prefix));
        self.peer = Some(place);
        PrefixChange::Moved
    }

    /// After a failed shift from the fixed endpoint, alternates between the announced prefix and
    /// the one at which the neighbour was seen.
    pub(super) fn try_elsewhere(&mut self) {
        let (Some(said), Some(peer)) = (self.said, &mut self.peer) else { return };
        if said.prefix != peer.prefix {
            self.far.get_or_insert_default().see(Some(peer.prefix));
            peer.prefix = said.prefix;
        } else if let Some(seen) = self.far.as_ref().and_then(|far| far.seen()) {
            peer.prefix = seen;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use shoal_crypto::Secret;

    use super::*;

    #[test]
    fn a_token_is_that_of_one_key_and_schedule_and_epoch_and_interval_and_place() {
        let own = ShiftAnnouncement { prefix: [0x20; 8], port: 7_400, interval_ms: 1_000 };
        let shift = |key: u8, interval_ms| {
            let own = ShiftAnnouncement { interval_ms, ..own };
            ShiftState::new(own, true, Arc::new(Secret::new([key; 32])))
        };
        let spot = ShiftAddresses { tag: [1; 4], epoch: 7 };
        let token = |key, interval_ms, spot, far| shift(key, interval_ms).token(spot, far);
        let one = token(1, 1_000, spot, own);
        assert_eq!(one, token(1, 1_000, spot, own));
        for other in [
            token(2, 1_000, spot, own),
            token(1, 2_000, spot, own),
            token(1, 1_000, ShiftAddresses { epoch: 8, ..spot }, own),
            token(1, 1_000, ShiftAddresses { tag: [2; 4], ..spot }, own),
            token(1, 1_000, spot, ShiftAnnouncement { port: 7_401, ..own }),
            token(1, 1_000, spot, ShiftAnnouncement { prefix: [0x21; 8], ..own }),
        ] {
            assert_ne!(one, other);
        }
    }
}
