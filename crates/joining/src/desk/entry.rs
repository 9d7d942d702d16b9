//! Datagrams from visitors: cookies, welcomes and visits (docs/design/membership.md).

use core::net::SocketAddr;

use shoal_directory::Member;
use shoal_wire::{DropReason, Time};

use super::joins::ended;
use super::visits::{Visit, VisitId, VisitOwner};
use super::{Desk, DeskOutput, Disk};
use crate::door::Visitor;
use crate::frame::SMALL_LEN;
use crate::messages::{Answer, Request, VisitorKind};
use crate::tokens::{TokenHash, TokenKind};

impl<D: Disk> Desk<D> {
    /// Handles a datagram.
    ///
    /// # Errors
    ///
    /// The reason why the datagram is dropped. The drop is counted.
    pub fn handle_datagram(
        &mut self,
        at: (Time, u64),
        from: SocketAddr,
        bytes: &mut [u8],
    ) -> Result<(), DropReason> {
        let handled = match self.visits.open(from, bytes) {
            Ok((id, message)) => self.handle_request(at, id, &message),
            // The key matches no visit: the frame may be a hello from a former visitor.
            Err(DropReason::UnknownIndex | DropReason::BadTag) if bytes.len() == SMALL_LEN => {
                self.handle_hello(at.0, from, bytes)
            }
            Err(DropReason::UnknownIndex | DropReason::BadTag) => self.handle_part(at, from, bytes),
            Err(why) => Err(why),
        };
        if let Err(reason) = handled {
            self.count(at.0, reason);
        }
        handled
    }

    fn count(&mut self, now: Time, reason: DropReason) {
        *self.drops.entry(reason).or_default() += 1;
        self.pressure.note(now, reason);
    }

    /// Knocks and visits in the last minute that failed, if there are enough of them to be an
    /// attack.
    pub fn flood(&self, now: Time) -> Option<u64> {
        self.pressure.flood(now)
    }

    /// Answers a hello under any door secret with a cookie. The cookie proves that the sender
    /// receives at its address.
    fn handle_hello(
        &mut self,
        now: Time,
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let mut opened = Err(DropReason::BadHandshake);
        for door in &self.doors {
            opened = door.hello(bytes).map(|lead| (door, lead));
            if !matches!(opened, Err(DropReason::BadHandshake)) {
                break;
            }
        }
        let (door, lead) = opened?;
        if !self.shares.may_answer(now, from) || !self.cookies.may_answer(now) {
            return Err(DropReason::HandshakeBudget);
        }
        let cookie = self.cookies.issue(now, &from);
        let answer = door.cookie(&lead, &cookie, &mut self.rng);
        self.outputs.push_back(DeskOutput::Send(from, answer));
        Ok(())
    }

    fn handle_part(
        &mut self,
        at: (Time, u64),
        from: SocketAddr,
        bytes: &[u8],
    ) -> Result<(), DropReason> {
        let mut opened = Err(DropReason::BadHandshake);
        for (door, secret) in self.doors.iter().enumerate() {
            opened = secret.part(bytes).map(|part| (door, part));
            if !matches!(opened, Err(DropReason::BadHandshake)) {
                break;
            }
        }
        let (door, part) = opened?;
        if !self.cookies.holds(at.0, &from, &part.cookie) {
            return Err(DropReason::CookieRequired);
        }
        let number = part.number;
        let Some(message) = self.parts.take(from, part) else { return Ok(()) };
        if let Some(welcome) = self.visits.again(at.0, from, &number) {
            if welcome.is_empty() {
                return Err(DropReason::ReplayedHandshake);
            }
            self.say(from, welcome);
            return Ok(());
        }
        let name = self.knocks.look(&number, &message)?;
        if !self.shares.may_knock(at.0, from, door > 0) {
            return Err(DropReason::HandshakeBudget);
        }
        self.knocks.note(name);
        let visitor = self.doors[door].read(number, &message)?;
        self.welcome(at, (from, number), door, visitor)
    }

    /// Answers a knock: opens a visit, or tells the visitor why not.
    fn welcome(
        &mut self,
        (now, unix_s): (Time, u64),
        (from, number): (SocketAddr, [u8; 16]),
        door: usize,
        visitor: Visitor,
    ) -> Result<(), DropReason> {
        let (half, token) = (visitor.half, visitor.token.hash());
        let is_member = self.replaced.has(&half) || self.is_member(&half);
        let standing = self.tokens.standing(unix_s, &token);
        let (holder, refused) = match standing {
            _ if is_member => (VisitOwner::Member(half), None),
            // Invites with a former door secret are void.
            Some(standing) if door == 0 => (VisitOwner::Token(token), standing.err().map(ended)),
            _ => {
                self.shares.was_vain(from);
                return Err(DropReason::UnknownPeer);
            }
        };
        let kind = self.kind(&half, &token, unix_s);
        let welcome = self.doors[door].welcome(visitor, unix_s, (refused, kind), &mut self.rng)?;
        self.say(from, welcome.1.clone());
        if refused.is_some() {
            // A refused visitor needs no visit.
            self.shares.was_vain(from);
            self.pressure.note(now, DropReason::NotAllowed);
            self.stats.refused += 1;
            return Ok(());
        }
        if is_member {
            self.shares.was_member(from);
        }
        self.stats.welcomed += 1;
        let visit = Visit::new(now, (from, number), holder, welcome, half, token);
        if self.visits.insert(now, visit) {
            self.count(now, DropReason::TableFull);
        }
        Ok(())
    }

    /// The kind of a member, or of the members that a token admits.
    fn kind(&self, half: &[u8; 32], token: &TokenHash, unix_s: u64) -> VisitorKind {
        let has = |member: &&Member| member.key.dh == *half;
        match self.directory.listed().find(has) {
            Some(member) if member.address.is_router() => VisitorKind::Router,
            Some(_) => VisitorKind::Host,
            None => match self.tokens.standing(unix_s, token) {
                Some(Ok(terms)) => match terms.kind {
                    TokenKind::Host => VisitorKind::Host,
                    TokenKind::Router { .. } => VisitorKind::Router,
                    TokenKind::Registrar { .. } => VisitorKind::Registrar,
                },
                _ => VisitorKind::Host,
            },
        }
    }

    /// True if the key with this first half belongs to a member; members made by the authority
    /// count.
    fn is_member(&self, half: &[u8; 32]) -> bool {
        let has = |member: &Member| member.key.dh == *half;
        self.member_by_half(half).is_some() || self.directory.listed().any(has)
    }

    fn say(&mut self, to: SocketAddr, frames: Vec<Vec<u8>>) {
        self.outputs.extend(frames.into_iter().map(|frame| DeskOutput::Send(to, frame)));
    }

    fn handle_request(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let request = Request::parse(message).map_err(|_| DropReason::Malformed)?;
        let is_early = self.hold.is_early && self.doubt().is_none();
        if is_early && !matches!(request, Request::Part { .. }) {
            // No answer while the registrar waits for the network's state: the visitor repeats its
            // request.
            return Ok(());
        }
        let answer = self.answer(at, id, request);
        let lead = self.rng.array();
        self.stats.refused += u64::from(matches!(answer, Answer::Refused(_)));
        if let Some((to, frame)) = self.visits.seal(id, lead, &answer.encode()) {
            self.outputs.push_back(DeskOutput::Send(to, frame));
        }
        Ok(())
    }
}
