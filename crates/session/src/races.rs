//! Requests that a copy from another address overtook: the true sender is asked for a cookie.
//!
//! An observer without any key can send a copy of a request from another address, and the copy may
//! arrive first. Two equal datagrams can't be told apart, and the answer has gone to the source of
//! the first. The later one, if it comes from elsewhere within a second, therefore gets a cookie.
//! The next request has that cookie, which is valid only at its sender's address, so a copy of it
//! is refused. A replay after that second gets no answer. Nor does a request that was refused, or
//! that has led to a session.

use core::time::Duration;
use std::collections::VecDeque;

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, HandshakeReply, TAG_LEN, Time, shake};

use crate::config::Endpoint;
use crate::cookie::Cookie;
use crate::job::AttemptId;
use crate::outer::{Lead, OuterSeal};
use crate::peer::HandshakeAttempt;
use crate::seen::HandshakeDigest;
use crate::sessions::{OutgoingHandshake, Sessions};

/// Most time by which a copy may arrive before the true request.
const WITHIN: Duration = Duration::from_secs(1);
/// Requests, or parts, whose first sources are remembered.
const FIRSTS_MAX: usize = 512;
/// Copies of one request that get a cookie. All these cookies together are shorter than five
/// requests.
pub(crate) const COPIES_OF_REQUEST: u8 = 32;
/// Copies of one part that are joined with other parts of their sources.
pub(crate) const COPIES_OF_PART: u8 = 8;
/// Requests of one handshake that cookies make leave early. Other members can forge cookies, and
/// must not use up all requests with them.
const HURRIES: u8 = 4;
/// Like [`HURRIES`], for cookies that answer one request. One forged cookie leaves room for the
/// true one.
const HURRIES_OF_ONE: u8 = 2;
/// Waiting frames beyond which no cookie reply is sent.
const COOKIES_OUT: usize = 256;

/// First source of a request or part.
struct FirstArrival<E> {
    name: HandshakeDigest,
    from: E,
    at: Time,
    copies: u8,
}

/// Requests or parts that came first within the last second, oldest first.
pub(crate) struct CopyRaces<E> {
    firsts: VecDeque<FirstArrival<E>>,
    copies_max: u8,
}

impl<E: Endpoint> CopyRaces<E> {
    pub(crate) fn new(copies_max: u8) -> CopyRaces<E> {
        CopyRaces { firsts: VecDeque::new(), copies_max }
    }

    /// Records the first source of a request or part.
    pub(crate) fn note(&mut self, now: Time, name: HandshakeDigest, from: E) {
        let over = |first: &mut FirstArrival<E>| now.since(first.at) > WITHIN;
        while self.firsts.len() >= FIRSTS_MAX || self.firsts.front_mut().is_some_and(over) {
            self.firsts.pop_front();
        }
        self.firsts.push_back(FirstArrival { name, from, at: now, copies: 0 });
    }

    /// Forgets a request whose answer has reached its sender, or that gets none. Its copies no
    /// longer matter.
    pub(crate) fn end(&mut self, name: &HandshakeDigest) {
        self.firsts.retain(|first| first.name != *name);
    }

    /// True if a repeated request may be the true one, and the first a copy. Returns true only a
    /// few times.
    pub(crate) fn may_be_true(&mut self, now: Time, name: &HandshakeDigest, from: E) -> bool {
        let copies_max = self.copies_max;
        let lately = self.firsts.iter_mut().rev().take_while(|f| now.since(f.at) <= WITHIN);
        let found = lately.into_iter().find(|first| first.name == *name);
        let Some(first) = found.filter(|f| !f.from.is_same_place(&from) && f.copies < copies_max)
        else {
            return false;
        };
        first.copies += 1;
        true
    }
}

impl<E: Endpoint, C: Ciphers> Sessions<E, C> {
    /// Asks for a cookie when a request comes again.
    pub(crate) fn handle_copy(
        &mut self,
        now: Time,
        from: E,
        (lead, opener): (&Lead, &OuterSeal),
        name: &HandshakeDigest,
    ) -> Result<(), DropReason> {
        if !self.races.may_be_true(now, name, from) {
            return Err(DropReason::ReplayedHandshake);
        }
        self.send_cookie(now, from, lead, opener)?;
        Err(DropReason::CookieRequired)
    }

    /// Asks for a cookie instead of accepting a request.
    pub(crate) fn ask_for_cookie(
        &mut self,
        now: Time,
        from: E,
        (lead, opener): (&Lead, &OuterSeal),
        name: HandshakeDigest,
    ) -> Result<(), DropReason> {
        self.send_cookie(now, from, lead, opener)?;
        self.turned_away.insert(name);
        Err(DropReason::CookieRequired)
    }

    fn send_cookie(
        &mut self,
        now: Time,
        from: E,
        lead: &Lead,
        opener: &OuterSeal,
    ) -> Result<(), DropReason> {
        if self.out.len() >= COOKIES_OUT || !self.cookies.may_answer(now) {
            return Err(DropReason::HandshakeBudget);
        }
        let role = from.role(self.config.role);
        let cookie = self.cookies.issue(now, &from);
        let mut frame = vec![0; role.cookie_len()];
        let end = frame.len() - TAG_LEN;
        let body = &mut frame[shake::REPLY_AT..end];
        HandshakeReply::Cookie(cookie).write(body).map_err(crate::shake::parse_reason)?;
        let salt = self.rng.array();
        opener.seal_reply(lead, &salt, None, &mut frame);
        self.push_out(OutgoingHandshake { peer: None, to: from, frame });
        self.stats.cookies_sent += 1;
        Ok(())
    }

    /// Stores a cookie from a peer. The next request leaves early, unless the answered request had
    /// this cookie or itself left early.
    pub(crate) fn take_cookie(&mut self, now: Time, id: AttemptId, cookie: Cookie) {
        let first = self.config.retry_first;
        self.stats.cookies_taken += 1;
        let Some(peer) = self.peer_mut(id.peer) else { return };
        let same = peer.cookie.replace((cookie, now)).is_some_and(|c| c.0 == cookie);
        let Some(dial) = peer.dial.as_mut().filter(|dial| dial.retry_at.is_some()) else { return };
        let hurries = dial.hurries;
        let may_hurry = |a: &&mut HandshakeAttempt| {
            let news = a.cookie != cookie && (a.hurries == 0 || !same);
            a.number == id.number && news && !a.hurried && a.hurries < HURRIES_OF_ONE
        };
        let attempt = dial.attempts.iter_mut().find(may_hurry);
        let Some(attempt) = attempt.filter(|_| hurries < HURRIES) else { return };
        attempt.hurries += 1;
        dial.hurries += 1;
        dial.hurried = true;
        dial.retry_at = None;
        if !dial.look && !dial.eager {
            // The request that this one repeats has already doubled the wait.
            dial.wait = (dial.wait / 2).max(first);
        }
        self.starts.push_back(id.peer);
        self.refresh_timer(id.peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_again_from_elsewhere_may_be_true_for_a_second_and_a_few_times() {
        let address = |host| shoal_wire::Address { router: 1, host };
        let at = Time::from_millis;
        let mut races = CopyRaces::new(3);
        races.note(at(1_000), [1; 16], address(1));
        assert!(!races.may_be_true(at(1_000), &[1; 16], address(1)), "from where it came first");
        assert!(!races.may_be_true(at(1_000), &[2; 16], address(2)), "never came");
        let times = (0..9).filter(|_| races.may_be_true(at(2_000), &[1; 16], address(2))).count();
        assert_eq!(times, 3);
        races.note(at(2_000), [2; 16], address(1));
        assert!(!races.may_be_true(at(3_001), &[2; 16], address(2)), "over");
        for n in 0..2_000_u128 {
            races.note(at(4_000), n.to_be_bytes(), address(1));
        }
        assert_eq!(races.firsts.len(), FIRSTS_MAX);
    }
}
