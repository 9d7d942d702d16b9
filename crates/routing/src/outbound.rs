//! Updates to neighbours: numbered, acknowledged, with the proofs that the neighbour lacks.

use shoal_crypto::Ciphers;
use shoal_wire::{
    DropReason, Instances, LinkId, METRIC_INFINITE, RouteEntry, RouteUpdate, RoutingMessage, Time,
};

use crate::adjacency::{Adjacency, Advertised, Unacked, WINDOW};
use crate::destination::Distance;
use crate::routing::Routing;
use crate::timers::Timer;

/// The advertisement that one neighbour should have for one destination.
struct PendingAdvertisement {
    distance: Distance,
    /// Sent unless the neighbour has it. Most retractions need none.
    proof: Option<shoal_wire::OriginProof>,
}

impl<C: Ciphers> Routing<C> {
    /// Marks `router` for advertisement on every link.
    pub(crate) fn advertise_all(&mut self, now: Time, router: u32) {
        for (link, adjacency) in &mut self.links {
            if adjacency.is_ready() {
                adjacency.changed.insert(router);
                self.timers.set_by(Timer::Flush(*link), now.max(adjacency.flush_after));
            }
        }
    }

    /// Marks `router` for advertisement on `link` even if nothing changed.
    pub(crate) fn advertise_again(&mut self, now: Time, link: LinkId, router: u32) {
        let Some(adjacency) = self.links.get_mut(&link).filter(|a| a.is_ready()) else { return };
        if let Some(advertised) = adjacency.advertised.get_mut(&router) {
            advertised.last = None;
        }
        adjacency.changed.insert(router);
        self.timers.set_by(Timer::Flush(link), now.max(adjacency.flush_after));
    }

    /// Advertises every destination to the neighbour.
    pub(crate) fn dump(&mut self, now: Time, link: LinkId) {
        let Some(adjacency) = self.links.get_mut(&link).filter(|a| a.is_ready()) else { return };
        adjacency.doubt_all();
        adjacency.changed.extend(self.destinations.keys().copied());
        adjacency.changed.insert(self.me);
        self.timers.clear(Timer::Retransmit(link));
        self.timers.set_by(Timer::Flush(link), now.max(adjacency.flush_after));
    }

    pub(crate) fn handle_dump_request(
        &mut self,
        now: Time,
        link: LinkId,
        instances: Instances,
    ) -> Result<(), DropReason> {
        let adjacency = self.links.get_mut(&link).ok_or(DropReason::NotAllowed)?;
        if !adjacency.is_current(instances) {
            return Err(DropReason::StaleRouting);
        }
        if core::mem::replace(&mut adjacency.dump_granted, true) {
            return Err(DropReason::RouteBudget);
        }
        self.dump(now, link);
        Ok(())
    }

    pub(crate) fn handle_ack(
        &mut self,
        now: Time,
        link: LinkId,
        instances: Instances,
        number: u32,
    ) -> Result<(), DropReason> {
        let adjacency = self.links.get_mut(&link).ok_or(DropReason::NotAllowed)?;
        let found = adjacency.unacked.iter().position(|sent| sent.number == number);
        let found = found.filter(|_| adjacency.is_current(instances));
        // `position` found the element at this index.
        let Some(sent) = found.and_then(|at| adjacency.unacked.remove(at)) else {
            return Err(DropReason::StaleRouting);
        };
        adjacency.acknowledged(sent.at, now);
        for (router, proved) in sent.entries {
            let advertised = adjacency.advertised.get_mut(&router).filter(|_| proved != 0);
            // A later retraction made the neighbour forget the proof again.
            let retracted = |a: &Advertised| a.last.is_some_and(|last| last.1 == METRIC_INFINITE);
            if let Some(advertised) = advertised.filter(|a| !retracted(a)) {
                advertised.proved = proved;
            }
        }
        self.arm_retransmit(link);
        if self.links.get(&link).is_some_and(|a| !a.changed.is_empty()) {
            self.timers.set_by(Timer::Flush(link), now.max(self.links[&link].flush_after));
        }
        Ok(())
    }

    /// Counts overdue updates as lost, and marks their routes for advertisement.
    pub(crate) fn retransmit(&mut self, now: Time, link: LinkId) {
        let Some(adjacency) = self.links.get_mut(&link) else { return };
        let patience = adjacency.patience(self.config.retransmit);
        let mut lost = false;
        while adjacency.unacked.front().is_some_and(|sent| sent.at + patience <= now) {
            let Some(sent) = adjacency.unacked.pop_front() else { break };
            for (router, _) in sent.entries {
                adjacency.advertised.entry(router).or_default().last = None;
                adjacency.changed.insert(router);
            }
            lost = true;
        }
        if lost {
            adjacency.losses = adjacency.losses.saturating_add(1);
            self.timers.set_by(Timer::Flush(link), now.max(adjacency.flush_after));
        }
        self.arm_retransmit(link);
    }

    fn arm_retransmit(&mut self, link: LinkId) {
        let Some(adjacency) = self.links.get(&link) else { return };
        match adjacency.unacked.front() {
            Some(sent) => {
                let patience = adjacency.patience(self.config.retransmit);
                self.timers.set(Timer::Retransmit(link), sent.at + patience);
            }
            None => self.timers.clear(Timer::Retransmit(link)),
        }
    }

    /// Sends the changed routes of `link`, as far as the window allows.
    pub(crate) fn flush(&mut self, now: Time, link: LinkId) {
        let mut sent_any = false;
        while let Some(update) = self.next_update(now, link) {
            self.outbox.push_back((link, RoutingMessage::Update(update)));
            sent_any = true;
        }
        let Some(adjacency) = self.links.get_mut(&link) else { return };
        if sent_any {
            adjacency.flush_after = now + self.config.update_gap;
            self.arm_retransmit(link);
        }
    }

    fn next_update(&mut self, now: Time, link: LinkId) -> Option<RouteUpdate> {
        let adjacency = self.links.get(&link)?;
        if !adjacency.is_ready() || adjacency.unacked.len() >= WINDOW {
            return None;
        }
        let (mut entries, mut room) = (Vec::new(), RouteUpdate::ENTRIES_MAX_LEN);
        while room >= RouteEntry::SIGNED_LEN {
            let Some(router) = self.links.get_mut(&link)?.changed.pop_first() else { break };
            if let Some(entry) = self.entry_for(link, router) {
                room -= entry.encoded_len();
                entries.push(entry);
            }
        }
        if entries.is_empty() {
            return None;
        }
        let adjacency = self.links.get_mut(&link)?;
        adjacency.number = adjacency.number.wrapping_add(1);
        let number = adjacency.number;
        let proved = |e: &RouteEntry| (e.router, e.proof.map_or(0, |proof| proof.seqno));
        let listed = entries.iter().map(proved).collect();
        adjacency.unacked.push_back(Unacked { number, at: now, entries: listed });
        Some(RouteUpdate { instances: adjacency.instances(), number, entries })
    }

    /// The entry that updates the neighbour about `router`; `None` if nothing changed. An
    /// advertised distance counts as claimed.
    fn entry_for(&mut self, link: LinkId, router: u32) -> Option<RouteEntry> {
        let wanted = self.wanted(self.links.get(&link)?, link, router)?;
        let adjacency = self.links.get_mut(&link)?;
        let advertised = adjacency.advertised.entry(router).or_default();
        let Distance { seqno, metric } = wanted.distance;
        if advertised.last == Some((seqno, metric)) {
            return None;
        }
        advertised.last = Some((seqno, metric));
        if metric == METRIC_INFINITE {
            advertised.proved = 0;
        } else if let Some(destination) = self.destinations.get_mut(&router) {
            destination.claim(wanted.distance);
        }
        let proof =
            wanted.proof.filter(|_| advertised.proved != seqno || metric == METRIC_INFINITE);
        Some(RouteEntry { router, metric, seqno, proof })
    }

    fn wanted(
        &self,
        adjacency: &Adjacency,
        link: LinkId,
        router: u32,
    ) -> Option<PendingAdvertisement> {
        if router == self.me {
            let distance = Distance { seqno: self.own.seqno, metric: 0 };
            return Some(PendingAdvertisement { distance, proof: Some(self.own) });
        }
        let destination = self.destinations.get(&router)?;
        if router == adjacency.neighbour {
            // Tells a neighbour whose clock was set back which sequence numbers it has used.
            let newest = destination.newest()?;
            let fresh = destination.offer(link).map(|offer| offer.distance.seqno);
            let distance = Distance { seqno: newest.seqno, metric: METRIC_INFINITE };
            let ahead = fresh.is_none_or(|fresh| fresh < newest.seqno);
            return ahead.then_some(PendingAdvertisement { distance, proof: Some(*newest) });
        }
        // Split horizon: a route over this link is not advertised on it.
        if let Some(selected) = destination.selected.filter(|selected| selected.link != link) {
            let proof = destination.proof(selected.distance.seqno).copied();
            debug_assert!(proof.is_some(), "the proof of a selected offer is stored");
            return proof
                .map(|p| PendingAdvertisement { distance: selected.distance, proof: Some(p) });
        }
        let advertised = adjacency.advertised.get(&router)?;
        let distance = match advertised.last {
            Some((seqno, METRIC_INFINITE)) => Distance { seqno, metric: METRIC_INFINITE },
            _ => Distance {
                seqno: destination.claimed.map_or(0, |claimed| claimed.seqno),
                metric: METRIC_INFINITE,
            },
        };
        Some(PendingAdvertisement { distance, proof: None })
    }
}
