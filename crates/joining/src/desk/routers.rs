//! Requests of machines that join as routers: proof of the endpoint, and the limits of the mandate.
//!
//! ```text
//! router --> token for a router? endpoint free, outside the network, family and number left?
//!        --> reached? --no--> nonce to the endpoint, and `trying` to the visitor
//!                     --yes-> approval, name, number --> granted
//! reach  --> the nonce that went to the endpoint? --> as above
//! ```
//!
//! Nodes can't check an endpoint: all routers and hosts will call it. So the registrar lets the
//! machine prove that it receives there, before it signs. The nonce comes from another port than
//! the door's: a firewall that lets in only answers of the door must not pass for an open port.

use core::net::SocketAddr;
use std::time::Duration;

use shoal_crypto::PublicKey;
use shoal_directory::{CircuitRole, DoorEndpoint, Mandate, Member, RouterRange, fold, is_callable};
use shoal_wire::{Address, Time};

use super::places::{self, NameChoice};
use super::visits::VisitId;
use super::{Desk, DeskOutput, Disk};
use crate::messages::{Answer, ReachNonce, Refusal, RouterRequest, router_said};
use crate::tokens::TokenKind;

/// Maximum number of endpoints that one visit may claim.
const ENDPOINTS_MAX: u8 = 3;
/// Maximum number of nonces sent for one visit.
const TRIES_MAX: u8 = 8;
/// Minimum time between two of them. A request comes before each, so no more bytes go to an
/// endpoint than came from the visitor.
const TRY_EVERY: Duration = Duration::from_millis(250);
/// Time after the last nonce before the endpoint counts as unreached.
const LAST_CHANCE: Duration = Duration::from_secs(1);
/// Random router numbers tried before the free ones are searched in order.
const NUMBERS_TRIED: u32 = 64;

/// Proof that a visitor receives at the endpoint that it claims. Ends with the visit.
pub(super) struct ReachProof {
    endpoint: SocketAddr,
    nonce: ReachNonce,
    is_reached: bool,
    /// Endpoints claimed and nonces sent in this visit.
    endpoints: u8,
    tries: u8,
    last: Option<Time>,
}

/// Part of a router's descriptor that follows from token, mandate and request.
pub(super) struct RouterPlace {
    pub(super) endpoint: SocketAddr,
    pub(super) carrier: CircuitRole,
}

impl RouterPlace {
    /// A router with this name and address. It has no interface, and no groups but the invite's: an
    /// operator gets no right at people's hosts by carrying their cells.
    pub(super) fn member(
        self,
        (name, address): (String, Address),
        key: PublicKey,
        expires_unix_s: u64,
        groups: Vec<String>,
    ) -> Member {
        Member {
            version: 1,
            name,
            key,
            address,
            second: None,
            expires_unix_s,
            endpoint: Some(self.endpoint),
            groups,
            security_groups: Vec::new(),
            prefixes: Vec::new(),
            interface: false,
            ipv4: None,
            cover: None,
            carrier: self.carrier,
            unknown: Vec::new(),
        }
    }
}

impl<D: Disk> Desk<D> {
    /// Handles a request to join as a router.
    pub(super) fn join_router(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        (request, sign): (RouterRequest, [u8; 32]),
        signature: &[u8; 64],
    ) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let key = PublicKey { dh: visit.half, sign };
        let said = router_said(visit.channel.binding(), &request, &sign);
        if key.is_weak() || !key.verify(&said, signature) {
            return Err(Refusal::Key);
        }
        visit.key = Some(key);
        visit.wish = request.name.clone();
        (visit.router, visit.registrar) = (Some(request), None);
        self.settle(at, id)
    }

    /// Handles a nonce that a visitor shows.
    pub(super) fn reach(
        &mut self,
        at: (Time, u64),
        id: VisitId,
        nonce: ReachNonce,
    ) -> Result<Answer, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        match &mut visit.reach {
            Some(proof) if proof.nonce == nonce => proof.is_reached = true,
            // The nonce of an endpoint that the visitor no longer claims, or a guess.
            _ => return Ok(Answer::Trying),
        }
        self.settle(at, id)
    }

    /// Checks that a visitor may become a router or a host, as it asks.
    ///
    /// Errors: the token is for another kind, or the mandate has no room for this router.
    pub(super) fn check_kind(
        &mut self,
        (kind, mandate): (&TokenKind, &Mandate),
        id: VisitId,
        key: &PublicKey,
        unix_s: u64,
    ) -> Result<Option<RouterPlace>, Refusal> {
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let (request, from) = (visit.router.clone(), visit.from());
        let of_registrar = matches!(kind, TokenKind::Registrar { .. });
        if of_registrar != visit.registrar.is_some() {
            return Err(Refusal::OtherKind);
        }
        let (family, relay, request) = match (kind.router(), request) {
            (None, None) => return Ok(None),
            (Some((family, relay)), Some(request)) => (family, relay, request),
            _ => return Err(Refusal::OtherKind),
        };
        let rights = &mandate.rights;
        let register = self.register().ok_or(Refusal::MandateEnded)?;
        let family = family.map(str::to_owned).or_else(|| rights.family.clone());
        let family = family.ok_or(Refusal::NoNumber)?;
        let is_new = !register.families().contains(&fold(&family));
        if is_new && register.remainder().families == 0 {
            return Err(Refusal::Families);
        }
        let is_full = register.remainder().routers == 0;
        if is_full && self.own_number(key).is_none() {
            return Err(Refusal::NoNumber);
        }
        let endpoint = request.endpoint;
        if !self.may_claim(endpoint, from, key, unix_s) {
            return Err(Refusal::Endpoint);
        }
        // The registrar can't measure a capacity, and a high one draws circuits.
        let others = self.directory.listed().filter(|other| other.key != *key);
        let most = others.filter_map(|other| other.carrier.capacity).max();
        let carrier = CircuitRole {
            relay: relay && request.relay && rights.relay,
            family: Some(family),
            capacity: request.capacity.and_then(|asked| Some(asked.min(most?))),
            ..CircuitRole::default()
        };
        Ok(Some(RouterPlace { endpoint, carrier }))
    }

    /// True if a router with this key may have this endpoint, as far as the registrar can tell.
    fn may_claim(&self, at: SocketAddr, from: SocketAddr, key: &PublicKey, unix_s: u64) -> bool {
        let ip = at.ip();
        let taken = |held: &Member| held.endpoint == Some(at) && held.key != *key;
        // A frame to loopback goes to this machine, whoever asked for it.
        let is_near = from.ip().to_canonical().is_loopback();
        let foreign_loopback = ip.is_loopback() && !is_near;
        is_callable(&at)
            && !foreign_loopback
            && !self.directory.is_inside(ip)
            && !self.config.endpoints.contains(&DoorEndpoint::At(at))
            && !self.holders(unix_s).any(taken)
    }

    /// True if the visitor has shown the nonce that went to this endpoint.
    pub(super) fn is_reached(&mut self, id: VisitId, endpoint: SocketAddr) -> bool {
        let proof = self.visits.get_mut(id).and_then(|visit| visit.reach.as_ref());
        proof.is_some_and(|proof| proof.is_reached && proof.endpoint == endpoint)
    }

    /// Sends a nonce to the endpoint, unless one went there a moment ago.
    ///
    /// Errors: unreached.
    pub(super) fn try_endpoint(
        &mut self,
        now: Time,
        id: VisitId,
        endpoint: SocketAddr,
    ) -> Result<Answer, Refusal> {
        let fresh: ReachNonce = self.rng.array();
        let visit = self.visits.get_mut(id).ok_or(Refusal::Registrar)?;
        let proof = visit.reach.get_or_insert(ReachProof {
            endpoint,
            nonce: fresh,
            is_reached: false,
            endpoints: 1,
            tries: 0,
            last: None,
        });
        if proof.endpoint != endpoint {
            let endpoints = proof.endpoints.saturating_add(1);
            let (tries, last) = (proof.tries, proof.last);
            *proof =
                ReachProof { endpoint, nonce: fresh, is_reached: false, endpoints, tries, last };
        }
        let waited = |pause| proof.last.is_none_or(|last| last + pause <= now);
        if proof.endpoints > ENDPOINTS_MAX || (proof.tries >= TRIES_MAX && waited(LAST_CHANCE)) {
            return Err(Refusal::Unreached);
        }
        if proof.tries < TRIES_MAX && waited(TRY_EVERY) {
            (proof.tries, proof.last) = (proof.tries + 1, Some(now));
            let message = Answer::Try(proof.nonce).encode();
            let lead = self.rng.array();
            if let Some((_, frame)) = self.visits.seal(id, lead, &message) {
                self.outputs.push_back(DeskOutput::Try(endpoint, frame));
            }
        }
        Ok(Answer::Trying)
    }

    /// A free number for a router with this key, and a free name.
    pub(super) fn place_router(
        &mut self,
        mandate: &Mandate,
        naming: NameChoice,
        (kind, key, unix_s): (&TokenKind, &PublicKey, u64),
    ) -> Result<(String, Address), Refusal> {
        // The numbers of a new registrar can't hold the number of its own router.
        let kept = match kind {
            TokenKind::Registrar { range, .. } => *range,
            _ => None,
        };
        let number = match self.own_number(key) {
            Some(number) => number,
            None => self.free_number(mandate, kept).ok_or(Refusal::NoNumber)?,
        };
        let address = Address::new(number, 0);
        let name = places::choose_name(self.holders(unix_s), naming, address)?;
        Ok((name, address))
    }

    /// The number that a router of this key had before its membership ended. None if the list has
    /// given it to another key: nodes would ignore a member with it.
    fn own_number(&self, key: &PublicKey) -> Option<u32> {
        let own = self.register()?.members().find(|member| member.key == *key)?;
        let is_taken = |held: &Member| held.address == own.address && held.key != *key;
        let is_kept = own.address.is_router() && !self.directory.listed().any(is_taken);
        is_kept.then_some(own.address.router)
    }

    /// A random number that no router of the network has or had. It is drawn after the key is
    /// known, so nobody can choose a place beside another router.
    /// None of `kept` is chosen.
    fn free_number(&mut self, mandate: &Mandate, kept: Option<RouterRange>) -> Option<u32> {
        let ranges = &mandate.rights.routers;
        let count = |range: &shoal_directory::RouterRange| u64::from(range.last - range.first) + 1;
        let all: u64 = ranges.iter().map(count).sum();
        let number = |mut n: u64| {
            for range in ranges {
                match n.checked_sub(count(range)) {
                    None => return range.first + n as u32,
                    Some(rest) => n = rest,
                }
            }
            0
        };
        if all == 0 {
            return None;
        }
        let draws: Vec<u64> = (0..NUMBERS_TRIED).map(|_| self.rng.below(all)).collect();
        let register = self.register()?;
        let listed: std::collections::BTreeSet<u32> = self
            .directory
            .listed()
            .map(|member| member.address)
            .filter(|address| address.is_router())
            .map(|address| address.router)
            .collect();
        let is_free = |n: &u32| {
            let is_delegated = register.is_delegated(Address::new(*n, 0), None);
            let is_kept = kept.is_some_and(|range| range.holds(*n));
            !register.is_given(*n) && !listed.contains(n) && !is_delegated && !is_kept
        };
        // The search ends after at most one more number than are taken or kept.
        draws.into_iter().chain(0..all).map(number).find(is_free)
    }
}

#[cfg(test)]
#[path = "routers_tests.rs"]
pub(super) mod tests;
