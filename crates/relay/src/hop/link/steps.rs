//! The steps by which a link's two ends hop, and what they prove.
//!
//! A neighbour knows the schedule. So that it can't have data go where it is not, each call and
//! answer brings a token to the place to which it goes, which follows from a key of this end's, the
//! addresses and the place. An end moves for a step that returns one of these: the neighbour gets
//! what is sent there.

use shoal_crypto::kdf;
use shoal_session::Endpoints;
use shoal_wire::{DropReason, HopPlace, HopStage, HopStep, PathToken, Time};

use super::{Attempt, Followed, Hop, NO_TOKEN, Outcome, Run, STEPS_MAX, Spot};
use crate::hop::prefixes::{CLAIMED_MAX, Far, OPENS_MAX};
use crate::hop::schedule::End;

impl Hop {
    pub(super) fn push(&mut self, spot: Spot, stage: HopStage, echo: PathToken) {
        if self.steps.contains(&(spot, stage, echo)) {
            return;
        }
        match self.steps.len() < STEPS_MAX {
            true => self.steps.push_back((spot, stage, echo)),
            false => self.crowded = self.crowded.saturating_add(1),
        }
    }

    /// What a step brings to the addresses of `spot` at this place.
    fn token(&self, spot: Spot, far: HopPlace) -> PathToken {
        let (port, epoch) = (far.port.to_be_bytes(), spot.epoch.to_be_bytes());
        // With another interval epochs count anew.
        let interval = self.interval().as_micros().to_be_bytes();
        let parts: [&[u8]; 5] = [&spot.tag, &epoch, &interval, &far.prefix, &port];
        let [a, b, c, d, e, f, g, h, ..] = kdf(self.key.expose(), "shoal v1 hop token", &parts);
        [a, b, c, d, e, f, g, h]
    }

    /// The place to which this token was sent: the one in use, or the other one that steps go to.
    fn place_of_token(&self, now: Time, spot: Spot, token: PathToken) -> Option<HopPlace> {
        let peer = self.peer?;
        // That it was at a prefix which it has left since says nothing of a later hop.
        let counts =
            |far: &Far| self.at.is_none() || far.claimed(now).is_some() || far.left_in(spot);
        let far = self.far.as_deref().filter(|far| counts(far));
        let other = far.and_then(|far| far.other(now));
        let other = other.map(|prefix| HopPlace { prefix, ..peer });
        let mut places = [Some(peer), other].into_iter().flatten();
        places.find(|place| self.token(spot, *place) == token)
    }

    /// Takes the next step to be sent, from where to where. While an end's prefix becomes another
    /// one, each goes between all of them.
    pub fn poll_step(&mut self, now: Time) -> Option<(Endpoints, HopStep)> {
        while self.copies.is_empty() {
            let (spot, stage, echo) = self.steps.pop_front()?;
            let peer = self.peer?;
            for near in self.own.sources() {
                for far in self.targets(now, peer, stage) {
                    let token = match stage {
                        HopStage::Call | HopStage::Answer => self.token(spot, far),
                        HopStage::Done => NO_TOKEN,
                    };
                    let step = HopStep { stage, tag: spot.tag, epoch: spot.epoch, token, echo };
                    self.copies.extend(self.between(spot, near, far).map(|ends| (ends, step)));
                }
            }
            self.copies.reverse();
        }
        let step = self.copies.pop();
        if self.copies.is_empty() {
            // Links are many, and steps are few.
            self.copies = Vec::new();
        }
        step
    }

    /// Where a step goes.
    fn targets(
        &mut self,
        now: Time,
        peer: HopPlace,
        stage: HopStage,
    ) -> impl Iterator<Item = HopPlace> + use<> {
        // While data hops, the neighbour has shown that it is there.
        let is_shown = self.at.is_some();
        let opens = (self.end, stage) == (End::Following, HopStage::Call);
        let most = if opens { OPENS_MAX } else { CLAIMED_MAX };
        let may = is_shown || self.unproven.spend(now, 1, most);
        let far = self.far.as_mut();
        let other = far.and_then(|far| far.copy(now, peer.prefix, &mut self.unproven, most));
        let other = other.map(|prefix| HopPlace { prefix, ..peer });
        [Some(peer).filter(|_| may), other].into_iter().flatten()
    }

    /// Takes how many steps, and other frames beside them, were not sent: too many were to go at
    /// once, or lately where the neighbour was not reached, or to where it was.
    pub fn take_held_back(&mut self) -> u64 {
        let left = self.far.as_mut().map_or(0, |far| far.take_held_back());
        let crowded = core::mem::take(&mut self.crowded);
        [left, self.unproven.take_held_back(), crowded].map(u64::from).iter().sum()
    }

    /// Forgets steps that are to be sent: nobody is there, or the link falls back.
    pub(crate) fn drop_steps(&mut self) {
        self.steps.clear();
        self.copies = Vec::new();
    }

    /// Takes the neighbour's step. Says whether its addresses are seen to be under another prefix
    /// than was thought.
    ///
    /// Errors: `bad_hop` if its addresses are not to be used now, if the step is not the
    /// neighbour's to take, or if it would have this end move and returns nothing that was sent
    /// there.
    pub fn handle(&mut self, now: Time, step: &HopStep) -> Result<Followed, DropReason> {
        let spot = Spot { tag: step.tag, epoch: step.epoch };
        let is_next = self.next.as_ref().is_some_and(|next| next.to == spot);
        match (step.stage, self.end) {
            (HopStage::Call, End::Following) if self.may_follow(now, spot) => {
                self.push(spot, HopStage::Answer, step.token);
                let (again, echo) = (now + self.retry(), step.token);
                match &mut self.next {
                    Some(next) if is_next => next.echo = echo,
                    _ if self.at == Some(spot) => {}
                    _ => self.next = Some(Attempt { to: spot, again, tries: 1, echo }),
                }
            }
            // The other end's firewall is open now; this end's call may have come too early.
            (HopStage::Call, End::Leading) if is_next => self.push(spot, HopStage::Call, NO_TOKEN),
            (HopStage::Call, End::Leading) if self.may_follow(now, spot) => {}
            (HopStage::Answer, End::Leading) if is_next => {
                let place = self.place_of_token(now, spot, step.echo).ok_or(DropReason::BadHop)?;
                self.push(spot, HopStage::Done, step.token);
                return Ok(self.end_hop(now, spot, place));
            }
            (HopStage::Answer, End::Leading) if self.at == Some(spot) => {
                self.push(spot, HopStage::Done, step.token);
                return Ok(self.take_claimed(now, spot, step.echo));
            }
            (HopStage::Done, End::Following) if is_next => {
                let place = self.place_of_token(now, spot, step.echo).ok_or(DropReason::BadHop)?;
                return Ok(self.end_hop(now, spot, place));
            }
            (HopStage::Done, End::Following) if self.at == Some(spot) => {
                return Ok(self.take_claimed(now, spot, step.echo));
            }
            _ => return Err(DropReason::BadHop),
        }
        Ok(Followed::Stayed)
    }

    fn may_follow(&self, now: Time, spot: Spot) -> bool {
        let back = |at: Spot| at.tag == spot.tag && spot.epoch < at.epoch;
        let is_near = |run: &Run| self.epoch(now, run).abs_diff(spot.epoch) <= 1;
        self.peer.is_some()
            && !self.at.is_some_and(back)
            && self.runs.iter().take(2).any(|run| run.schedule.tag() == spot.tag && is_near(run))
    }

    /// The neighbour got a step of this hop at `place`: data goes there.
    fn end_hop(&mut self, now: Time, spot: Spot, place: HopPlace) -> Followed {
        let followed = self.take_place(now, place);
        if let Some(far) = &mut self.far
            && self.said.is_some_and(|said| said.prefix == place.prefix)
        {
            far.see(None);
        }
        // From the fixed endpoint, the neighbour may still use what this end left before.
        let left = self.at.map(|at| (at, now + self.interval()));
        self.before = left.or(self.before);
        (self.at, self.next, self.faults) = (Some(spot), None, 0);
        self.made += 1;
        self.last = (now, Outcome::Moved);
        self.forget_runs(now);
        followed
    }

    /// The hop has ended, and the neighbour returns another token: data goes to where it says to
    /// be, if that was sent there.
    fn take_claimed(&mut self, now: Time, spot: Spot, token: PathToken) -> Followed {
        let place = self.place_of_token(now, spot, token);
        let claimed = place.filter(|place| self.claims(now, place.prefix));
        claimed.map_or(Followed::Stayed, |place| self.take_place(now, place))
    }

    /// The neighbour got a step at this place, which may be another than the one in use.
    fn take_place(&mut self, now: Time, place: HopPlace) -> Followed {
        let (was_shown, claimed) = (self.at.is_some(), self.claims(now, place.prefix));
        let Some(peer) = self.peer.filter(|peer| peer.prefix != place.prefix) else {
            return Followed::Stayed;
        };
        if was_shown && !claimed {
            // The neighbour was there when the hop began, and has shown since where it is now.
            return Followed::Stayed;
        }
        let during = self.next.as_ref().map(|next| next.to);
        let said = self.said.filter(|said| said.prefix != place.prefix);
        let far = self.far.get_or_insert_default();
        match said {
            // The neighbour was quicker where it was, or is reached only there for now.
            Some(said) if said.prefix == peer.prefix => far.stay(now, said),
            _ => far.leave(now, peer.prefix, was_shown, during),
        }
        far.see(said.map(|_| place.prefix));
        self.peer = Some(place);
        Followed::Moved
    }

    /// A hop from the fixed endpoint failed. A neighbour that was seen elsewhere than where it says
    /// to be is tried at both places by turns.
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
        let own = HopPlace { prefix: [0x20; 8], port: 7_400, interval_ms: 1_000 };
        let hop = |key: u8, interval_ms| {
            let own = HopPlace { interval_ms, ..own };
            Hop::new(own, true, Arc::new(Secret::new([key; 32])))
        };
        let spot = Spot { tag: [1; 4], epoch: 7 };
        let token = |key, interval_ms, spot, far| hop(key, interval_ms).token(spot, far);
        let one = token(1, 1_000, spot, own);
        assert_eq!(one, token(1, 1_000, spot, own));
        for other in [
            token(2, 1_000, spot, own),
            token(1, 2_000, spot, own),
            token(1, 1_000, Spot { epoch: 8, ..spot }, own),
            token(1, 1_000, Spot { tag: [2; 4], ..spot }, own),
            token(1, 1_000, spot, HopPlace { port: 7_401, ..own }),
            token(1, 1_000, spot, HopPlace { prefix: [0x21; 8], ..own }),
        ] {
            assert_ne!(one, other);
        }
    }
}
