//! Sequence number requests: asking origins for newer numbers, forwarding requests, and making our
//! own numbers.
//!
//! After a route is lost, all remaining offers may be unfeasible: each might lead in a circle. A
//! newer sequence number, which only the origin can make, shows which of them don't (RFC 8966
//! section 2.5).

use shoal_crypto::Ciphers;
use shoal_wire::{DropReason, LinkId, METRIC_INFINITE, RoutingMessage, SeqnoRequest, Time};

use crate::destination::{Offer, PassedOn, Selected};
use crate::origin;
use crate::routing::Routing;
use crate::timers::Timer;

/// Limit of consecutive requests; the next cycle starts over.
const TRIES_MAX: u32 = 5;
/// Number of routers that may pass a request on. RFC 8966 section 3.8.2.1 suggests 64, but the hop
/// limit of cells is 32: no farther origin could be used.
const HOPS: u8 = 32;
/// Limit of requests answered with a signature check per `Config::seqno_gap`.
const AHEAD_CHECKS: u32 = 4;

impl<C: Ciphers> Routing<C> {
    /// Asks for a newer sequence number of `router`, unless a request is pending or all tries of
    /// this cycle are used up.
    pub(crate) fn want_route(&mut self, now: Time, router: u32) {
        if !self.timers.is_set(Timer::Request(router)) {
            self.ask(now, router);
        }
    }

    /// Resets the tries, after a route was found or a new cycle began.
    pub(crate) fn forget_tries(&mut self, router: u32) {
        self.timers.clear(Timer::Request(router));
        if let Some(destination) = self.destinations.get_mut(&router) {
            destination.tries = 0;
        }
    }

    /// Sends the request to every neighbour with an offer, and arms the next try.
    pub(crate) fn ask(&mut self, now: Time, router: u32) {
        let Some(destination) = self.destinations.get_mut(&router) else { return };
        let Some(proof) = destination.newest().copied() else { return };
        if destination.offers.is_empty() || destination.tries >= TRIES_MAX {
            return;
        }
        let wait = self.config.request_gap * (1 << destination.tries);
        destination.tries += 1;
        let request = SeqnoRequest { router, hops: HOPS, proof };
        for offer in &destination.offers {
            self.outbox.push_back((offer.link, RoutingMessage::SeqnoRequest(request)));
        }
        self.timers.set(Timer::Request(router), now + wait);
    }

    /// Repeats the request if the destination still lacks a good route.
    pub(crate) fn repeat_request(&mut self, now: Time, router: u32) {
        if self.is_starved(router) {
            self.ask(now, router);
        }
    }

    /// True if an unfeasible offer exists, and either no offer is selected or the selected one is
    /// far dearer.
    pub(crate) fn is_starved(&self, router: u32) -> bool {
        let Some(destination) = self.destinations.get(&router) else { return false };
        let barred = destination.offers.iter().filter(|offer| !destination.is_feasible(offer));
        let path = |offer: &Offer| {
            let cost = self.cost_for(router, offer.link)?;
            Some(offer.distance.metric.saturating_add(cost)).filter(|m| *m < METRIC_INFINITE)
        };
        let Some(best_barred) = barred.filter_map(path).min() else { return false };
        let Some(selected) = destination.selected else { return true };
        let wanted = u64::from(best_barred) * u64::from(100 + self.config.hysteresis_percent) / 100;
        wanted < u64::from(selected.distance.metric)
    }

    pub(crate) fn handle_request(
        &mut self,
        now: Time,
        link: LinkId,
        mut request: SeqnoRequest,
    ) -> Result<(), DropReason> {
        let adjacency = self.links.get_mut(&link).filter(|adjacency| adjacency.is_ready());
        if !adjacency.ok_or(DropReason::NotAllowed)?.budgets.messages.take(1, now) {
            return Err(DropReason::RouteBudget);
        }
        if request.router == self.me {
            return self.answer_for_ourselves(now, link, &request);
        }
        let destination = self.destinations.get(&request.router).ok_or(DropReason::BadRoute)?;
        let asked = request.proof.seqno;
        let newer = |s: &Selected| s.distance.seqno > asked && s.link != link;
        if destination.selected.as_ref().is_some_and(newer) {
            self.advertise_again(now, link, request.router);
            return Ok(());
        }
        let hops = request.hops.min(HOPS).checked_sub(1).ok_or(DropReason::HopLimit)?;
        // A recent request for this number with at least as many hops left serves this one too.
        let gap = self.config.request_gap;
        let serves = |p: PassedOn| p.seqno == asked && p.hops >= hops && now < p.at + gap;
        if destination.passed_on.is_some_and(serves) {
            return Ok(());
        }
        let selected = destination.selected.map(|selected| selected.link);
        let cheapest = || {
            let others = destination.offers.iter().filter(|offer| offer.link != link);
            let feasible_first =
                |o: &&Offer| (!destination.is_feasible(o), o.distance.metric, o.link);
            others.min_by_key(feasible_first).map(|offer| offer.link)
        };
        let next = selected.filter(|next| *next != link).or_else(cheapest);
        let next = next.ok_or(DropReason::NoRoute)?;
        request.hops = hops;
        self.outbox.push_back((next, RoutingMessage::SeqnoRequest(request)));
        if let Some(destination) = self.destinations.get_mut(&request.router) {
            destination.passed_on = Some(PassedOn { seqno: asked, hops, at: now });
        }
        Ok(())
    }

    fn answer_for_ourselves(
        &mut self,
        now: Time,
        link: LinkId,
        request: &SeqnoRequest,
    ) -> Result<(), DropReason> {
        if request.proof.seqno < self.own.seqno {
            self.advertise_again(now, link, self.me);
            return Ok(());
        }
        if request.proof == self.own {
            self.new_seqno_soon(now);
            return Ok(());
        }
        if now >= self.ahead_since + self.config.seqno_gap {
            (self.ahead_since, self.ahead_checks) = (now, 0);
        }
        if self.ahead_checks >= AHEAD_CHECKS {
            return Err(DropReason::RouteBudget);
        }
        self.ahead_checks += 1;
        self.resume_after(now, &request.proof)
    }

    /// Makes a new sequence number as soon as `Config::seqno_gap` allows.
    pub(crate) fn new_seqno_soon(&mut self, now: Time) {
        self.seqno_wanted = true;
        self.timers.set_by(Timer::Seqno, now.max(self.seqno_after));
    }

    pub(crate) fn seqno_due(&mut self, now: Time) {
        if self.seqno_wanted {
            self.new_seqno(now);
        }
    }

    /// Signs our next sequence number and advertises it on all links.
    pub(crate) fn new_seqno(&mut self, now: Time) {
        self.seqno_wanted = false;
        self.seqno_after = now + self.config.seqno_gap;
        let early = self.jitter.below(self.config.proof_refresh / 4);
        self.timers.set(Timer::Refresh, now + (self.config.proof_refresh - early));
        let expiry = self.unix_s(now).saturating_add(self.config.proof_validity.as_secs());
        // 2^64 numbers don't run out. A proof at the very end is one that only we could sign.
        let seqno = self.own.seqno.max(self.seqno_floor).saturating_add(1);
        self.own = origin::prove(&self.identity, self.me, seqno, expiry);
        self.advertise_all(now, self.me);
    }
}
