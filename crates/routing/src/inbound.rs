//! Handlers of neighbours' hellos and updates.

use shoal_crypto::Ciphers;
use shoal_wire::{
    DropReason, Instances, LinkId, METRIC_INFINITE, OriginProof, RouteEntry, RouteUpdate,
    RoutingMessage, Time,
};

use crate::adjacency::INSTANCE_GAP;
use crate::destination::Distance;
use crate::origin;
use crate::routing::{Routing, is_current};
use crate::timers::Timer;

impl<C: Ciphers> Routing<C> {
    pub(crate) fn send_hello(&mut self, now: Time, link: LinkId) {
        let Some(adjacency) = self.links.get(&link) else { return };
        self.outbox.push_back((link, RoutingMessage::Hello(adjacency.instances())));
        let seldom = self.quiet || adjacency.is_ready();
        let wait = if seldom { self.config.cycle } else { self.config.retransmit };
        let wait = self.jitter.around(wait);
        self.timers.set(Timer::Hello(link), now + wait);
    }

    pub(crate) fn handle_hello(
        &mut self,
        now: Time,
        link: LinkId,
        instances: Instances,
    ) -> Result<(), DropReason> {
        let adjacency = self.links.get_mut(&link).ok_or(DropReason::NotAllowed)?;
        let hears_us = instances.to == adjacency.instance;
        let new_instance = instances.from != adjacency.peer;
        if new_instance {
            let first = adjacency.peer == 0;
            if !first && now < adjacency.peer_since + INSTANCE_GAP {
                return Err(DropReason::RouteBudget);
            }
            adjacency.begin_instance(instances.from, now);
            self.timers.clear(Timer::Retransmit(link));
            self.timers.clear(Timer::Flush(link));
            self.drop_offers(now, link);
        }
        let Some(adjacency) = self.links.get_mut(&link) else { return Ok(()) };
        let newly_heard = hears_us && !adjacency.heard;
        adjacency.heard = hears_us;
        let answers = new_instance || !hears_us;
        let may_answer = !answers || adjacency.budgets.hellos.take(1, now);
        if answers && may_answer {
            self.send_hello(now, link);
        }
        if newly_heard {
            self.dump(now, link);
        }
        if may_answer { Ok(()) } else { Err(DropReason::RouteBudget) }
    }

    pub(crate) fn handle_update(
        &mut self,
        now: Time,
        link: LinkId,
        update: RouteUpdate,
    ) -> Result<(), DropReason> {
        let adjacency = self.links.get(&link).ok_or(DropReason::NotAllowed)?;
        if !adjacency.is_current(update.instances) || update.number <= adjacency.newest_update {
            return Err(DropReason::StaleRouting);
        }
        let unknown = update.entries.iter().filter(|entry| self.needs_check(entry)).count();
        // Present: looked up above.
        let Some(adjacency) = self.links.get_mut(&link) else { return Ok(()) };
        // A refused update is not acknowledged, so the neighbour sends it again.
        if !adjacency.budgets.checks.take(unknown as u64, now)
            || !adjacency.budgets.messages.take(1, now)
        {
            return Err(DropReason::RouteBudget);
        }
        adjacency.newest_update = update.number;
        // The sender only knows our instance from a hello of ours that arrived.
        let newly_heard = !core::mem::replace(&mut adjacency.heard, true);
        let ack = RoutingMessage::Ack { instances: adjacency.instances(), number: update.number };
        self.outbox.push_back((link, ack));
        if newly_heard {
            self.dump(now, link);
        }
        let mut result = Ok(());
        for entry in &update.entries {
            if let Err(reason) = self.apply(now, link, entry) {
                result = Err(reason);
            }
        }
        result
    }

    /// True if the entry requires a signature check.
    fn needs_check(&self, entry: &RouteEntry) -> bool {
        let Some(proof) = &entry.proof else { return false };
        let known = self.destinations.get(&entry.router).and_then(|d| d.proof(proof.seqno));
        known != Some(proof)
    }

    fn apply(&mut self, now: Time, link: LinkId, entry: &RouteEntry) -> Result<(), DropReason> {
        if entry.router == self.me {
            return self.hear_of_ourselves(now, entry);
        }
        let unix_s = self.unix_s(now);
        let Some(adjacency) = self.links.get_mut(&link) else { return Ok(()) };
        let destination = self.destinations.get_mut(&entry.router).filter(|d| d.known);
        let destination = destination.ok_or(DropReason::BadRoute)?;
        if entry.metric == METRIC_INFINITE {
            if destination.remove_offer(link) {
                adjacency.routes -= 1;
            }
        } else if !self.config.imports(adjacency.neighbour, entry.router) {
            return Err(DropReason::NotAllowed);
        }
        let holds = |p: &OriginProof| is_current(p, unix_s) && p.seqno == entry.seqno;
        let proof = entry.proof.filter(holds);
        let proved = match proof {
            Some(proof) if destination.proof(proof.seqno) == Some(&proof) => true,
            Some(proof) if origin::verify::<C>(&destination.key, entry.router, &proof) => {
                destination.keep_proof(proof);
                true
            }
            Some(_) => false,
            None => entry.proof.is_none() && destination.proof(entry.seqno).is_some(),
        };
        let mut result = Ok(());
        if entry.metric != METRIC_INFINITE {
            let known = destination.offer(link).is_some();
            let distance = Distance { seqno: entry.seqno, metric: entry.metric };
            if !proved {
                // An offer without a valid proof is removed.
                adjacency.routes -= usize::from(destination.remove_offer(link));
                result = Err(DropReason::BadRoute);
            } else if !known && adjacency.routes >= self.config.max_routes_per_link {
                result = Err(DropReason::TableFull);
            } else if destination.set_offer(link, distance) {
                adjacency.routes += 1;
            }
        }
        if !proved && entry.proof.is_none() && entry.metric != METRIC_INFINITE {
            self.ask_for_dump(link);
        }
        self.reselect(now, entry.router);
        result
    }

    /// Asks for all routes, at most once per cycle: the neighbour refers to a proof that we lack.
    fn ask_for_dump(&mut self, link: LinkId) {
        let Some(adjacency) = self.links.get_mut(&link) else { return };
        if !core::mem::replace(&mut adjacency.dump_asked, true) {
            let request = RoutingMessage::DumpRequest(adjacency.instances());
            self.outbox.push_back((link, request));
        }
    }

    /// Handles an entry about this router. A proof of ours that we don't remember was signed before
    /// a restart with the clock set back. Our sequence numbers then continue after it.
    fn hear_of_ourselves(&mut self, now: Time, entry: &RouteEntry) -> Result<(), DropReason> {
        match &entry.proof {
            Some(proof) => self.resume_after(now, proof),
            None => Ok(()),
        }
    }

    /// Makes our next sequence number exceed that of `proof`, if `proof` is ours and ahead.
    pub(crate) fn resume_after(
        &mut self,
        now: Time,
        proof: &OriginProof,
    ) -> Result<(), DropReason> {
        if proof.seqno < self.own.seqno.max(self.seqno_floor) || *proof == self.own {
            return Ok(());
        }
        if !origin::verify::<C>(&self.identity.public(), self.me, proof) {
            return Err(DropReason::BadRoute);
        }
        self.outrun = self.outrun.saturating_add(1);
        self.seqno_floor = self.seqno_floor.max(proof.seqno);
        self.new_seqno_soon(now);
        Ok(())
    }

    /// Drops all offers of `link`.
    pub(crate) fn drop_offers(&mut self, now: Time, link: LinkId) {
        if let Some(adjacency) = self.links.get_mut(&link) {
            adjacency.routes = 0;
        }
        let mut lost = Vec::new();
        for (router, destination) in &mut self.destinations {
            if destination.remove_offer(link) {
                lost.push(*router);
            }
        }
        for router in lost {
            self.reselect(now, router);
        }
    }
}
