//! The routing machine: entry points for the relay, timers, and route selection.

use core::marker::PhantomData;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use shoal_crypto::{Ciphers, Identity, PublicKey, Rng, StandardCiphers};
use shoal_wire::{DropReason, Jitter, LinkId, OriginProof, RoutingMessage, Time};

use crate::adjacency::Adjacency;
use crate::budget::Budgets;
use crate::destination::{Destination, Offer, Selected};
use crate::timers::{Timer, Timers};
use crate::{Config, LinkInfo, RouteChange, RouteInfo, RouteTable, origin};

/// Limit of route changes that wait for a slow reader. The oldest are dropped first.
const EVENTS_MAX: usize = 8_192;
/// Limit of messages that the driver has not taken. Received messages are refused beyond it.
const OUTBOX_MAX: usize = 65_536;

/// Accepted difference of routers' clocks, in seconds. Handshakes accept the same difference, and a
/// link without routes would be useless. A proof is accepted this long past its expiry.
const CLOCK_OFF_S: u64 = 86_400;

/// A smaller difference from the expected wall clock, in seconds, is drift: nobody set the clock.
const CLOCK_STEP_S: u64 = 5;

/// True if the proof has not expired, given that our clock may be wrong.
pub(crate) fn is_current(proof: &OriginProof, unix_s: u64) -> bool {
    proof.expiry_unix_s.saturating_add(CLOCK_OFF_S) > unix_s
}

/// The routing machine of one router. `C` verifies the proofs of origin.
pub struct Routing<C: Ciphers = StandardCiphers> {
    pub(crate) config: Config,
    pub(crate) me: u32,
    pub(crate) identity: Identity,
    pub(crate) links: BTreeMap<LinkId, Adjacency>,
    /// Budgets of neighbours whose link is down. Bounded: neighbours are configured.
    budgets: BTreeMap<u32, Budgets>,
    pub(crate) destinations: BTreeMap<u32, Destination>,
    pub(crate) timers: Timers,
    pub(crate) outbox: VecDeque<(LinkId, RoutingMessage)>,
    /// Our newest proof, with our newest sequence number.
    pub(crate) own: OriginProof,
    pub(crate) seqno_after: Time,
    pub(crate) seqno_wanted: bool,
    /// Lower bound: our next sequence number must exceed it.
    pub(crate) seqno_floor: u64,
    /// Checks since `ahead_since` of proofs that claim to be ours.
    pub(crate) ahead_checks: u32,
    pub(crate) ahead_since: Time,
    rng: Rng,
    /// Randomizes the times of periodic messages.
    pub(crate) jitter: Jitter,
    events: VecDeque<RouteChange>,
    table: Arc<RouteTable>,
    table_stale: bool,
    /// True while this router takes no part in routing: see [`Routing::set_quiet`].
    pub(crate) quiet: bool,
    started: Time,
    started_unix_s: u64,
    pub(crate) outrun: u32,
    ciphers: PhantomData<fn() -> C>,
}

impl Routing {
    /// Creates the machine of router `me`, which signs with `identity`. `origins` are the routers
    /// that may be destinations, with the keys that prove it. `unix_s` is the wall clock at `now`
    /// in seconds. Expiries are compared with it. Sequence numbers begin at its milliseconds, and
    /// so exceed those of an earlier run.
    pub fn new(
        config: Config,
        me: u32,
        identity: Identity,
        origins: impl IntoIterator<Item = (u32, PublicKey)>,
        seed: [u8; 32],
        now: Time,
        unix_s: u64,
    ) -> Routing {
        Routing::with_ciphers(config, me, identity, origins, seed, now, unix_s)
    }
}

impl<C: Ciphers> Routing<C> {
    /// Like [`Routing::new`], with explicit ciphers.
    pub fn with_ciphers(
        config: Config,
        me: u32,
        identity: Identity,
        origins: impl IntoIterator<Item = (u32, PublicKey)>,
        seed: [u8; 32],
        now: Time,
        unix_s: u64,
    ) -> Routing<C> {
        let expiry = unix_s.saturating_add(config.proof_validity.as_secs());
        let own = origin::prove(&identity, me, unix_s.saturating_mul(1_000), expiry);
        let others = origins.into_iter().filter(|(router, _)| *router != me);
        let known = |(id, key)| (id, Destination { known: true, ..Destination::new(key) });
        let mut rng = Rng::new(seed);
        let mut timers = Timers::default();
        timers.set(Timer::Refresh, now + config.proof_refresh);
        timers.set(Timer::Housekeeping, now + config.cycle);
        Routing {
            config,
            me,
            identity,
            links: BTreeMap::new(),
            budgets: BTreeMap::new(),
            destinations: others.map(known).collect(),
            timers,
            outbox: VecDeque::new(),
            own,
            seqno_after: now,
            seqno_wanted: false,
            seqno_floor: 0,
            ahead_checks: 0,
            ahead_since: now,
            jitter: Jitter::new(rng.u64()),
            rng,
            events: VecDeque::new(),
            table: Arc::default(),
            table_stale: false,
            quiet: false,
            started: now,
            started_unix_s: unix_s,
            outrun: 0,
            ciphers: PhantomData,
        }
    }

    /// Reports that the link to router `neighbour` can carry messages. If the far end proves to
    /// have restarted, call [`Routing::link_down`] and this again. Never do so for a mere rekey.
    pub fn link_up(&mut self, now: Time, link: LinkId, neighbour: u32) {
        if self.links.contains_key(&link) {
            self.link_down(now, link);
        }
        let instance = self.rng.u32().max(1);
        let cost = self.config.default_cost_of(neighbour);
        let budgets = self.budgets.remove(&neighbour);
        let budgets = budgets.unwrap_or_else(|| Budgets::new(&self.config, now));
        let adjacency = Adjacency::new(neighbour, instance, cost, budgets, now);
        self.links.insert(link, adjacency);
        // Random offset: a router's queries must not leave in one burst.
        let gap_ns = self.query_gap().as_nanos() as u64;
        let offset = core::time::Duration::from_nanos(self.rng.below(gap_ns.max(1)));
        if !self.quiet {
            self.timers.set(Timer::Query(link), now + offset);
        }
        self.send_hello(now, link);
        self.settle(now);
    }

    /// Suspends or resumes this router's part in routing. A quiet router has no routes and refuses
    /// all messages. Hellos of the router carry a new instance that has heard nobody, so neighbours
    /// drop their routes through it.
    pub fn set_quiet(&mut self, now: Time, quiet: bool) {
        if core::mem::replace(&mut self.quiet, quiet) == quiet {
            return;
        }
        let links: Vec<_> = self.links.iter().map(|(link, a)| (*link, a.neighbour)).collect();
        for (link, neighbour) in links {
            self.link_up(now, link, neighbour);
        }
    }

    /// Reports that the link carries nothing. Every route over it ends at once.
    pub fn link_down(&mut self, now: Time, link: LinkId) {
        let Some(gone) = self.links.remove(&link) else { return };
        self.budgets.insert(gone.neighbour, gone.budgets);
        for timer in [Timer::Query(link), Timer::Hello(link)] {
            self.timers.clear(timer);
        }
        for timer in [Timer::Flush(link), Timer::Retransmit(link)] {
            self.timers.clear(timer);
        }
        self.outbox.retain(|(to, _)| *to != link);
        self.drop_offers(now, link);
        self.settle(now);
    }

    /// Handles a message of the router at the far end of `link`. A refused message, or a refused
    /// entry of it, changes nothing; the machine stays usable.
    pub fn handle_message(
        &mut self,
        now: Time,
        link: LinkId,
        message: RoutingMessage,
    ) -> Result<(), DropReason> {
        if !self.links.contains_key(&link) {
            return Err(DropReason::NotAllowed);
        }
        if self.quiet {
            return Err(DropReason::StaleList);
        }
        if self.outbox.len() >= OUTBOX_MAX {
            return Err(DropReason::QueueFull);
        }
        let result = match message {
            RoutingMessage::Hello(instances) => self.handle_hello(now, link, instances),
            RoutingMessage::Query { nonce } => self.handle_query(now, link, nonce),
            RoutingMessage::QueryReply { nonce } => self.handle_reply(link, nonce),
            RoutingMessage::Update(update) => self.handle_update(now, link, update),
            RoutingMessage::Ack { instances, number } => {
                self.handle_ack(now, link, instances, number)
            }
            RoutingMessage::SeqnoRequest(request) => self.handle_request(now, link, request),
            RoutingMessage::DumpRequest(instances) => {
                self.handle_dump_request(now, link, instances)
            }
        };
        self.settle(now);
        result
    }

    /// Runs the timers due at `now`.
    pub fn handle_timeout(&mut self, now: Time) {
        self.settle(now);
    }

    /// Deadline of the next [`Routing::handle_timeout`], and its reason; `Time::ZERO` while output
    /// is queued.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.outbox.is_empty() {
            return Some((Time::ZERO, "routing message"));
        }
        if !self.events.is_empty() {
            return Some((Time::ZERO, "route change"));
        }
        self.timers.next()
    }

    /// Returns the next message to send, and its link.
    pub fn poll_transmit(&mut self) -> Option<(LinkId, RoutingMessage)> {
        self.outbox.pop_front()
    }

    pub fn poll_event(&mut self) -> Option<RouteChange> {
        self.events.pop_front()
    }

    /// The next hops as of the last call. Clone the `Arc` for a snapshot.
    pub fn table(&self) -> &Arc<RouteTable> {
        &self.table
    }

    /// Every reachable destination, by ascending router number.
    pub fn routes(&self) -> impl Iterator<Item = RouteInfo> + '_ {
        self.destinations.iter().filter_map(|(router, destination)| {
            let selected = destination.selected?;
            Some(RouteInfo {
                router: *router,
                next_hop: selected.link,
                cost: selected.distance.metric,
                since: selected.since,
                seqno: selected.distance.seqno,
                alternatives: destination.alternatives(),
            })
        })
    }

    /// Other links that could replace the route to `router` at once, without any request. Each
    /// comes with the cost of its path; the cheapest comes first.
    pub fn alternatives(&self, router: u32) -> Vec<(LinkId, u32)> {
        let Some(destination) = self.destinations.get(&router) else { return Vec::new() };
        let used = destination.selected.map(|selected| selected.link);
        let usable = destination
            .offers
            .iter()
            .filter(|offer| Some(offer.link) != used && destination.is_feasible(offer));
        let path = |offer: &Offer| {
            let cost = self.cost_for(router, offer.link)?;
            Some((offer.link, offer.distance.metric.saturating_add(cost)))
        };
        let mut paths: Vec<_> = usable.filter_map(path).collect();
        paths.sort_by_key(|&(link, cost)| (cost, link));
        paths
    }

    /// Routing state of one link; `None` if the link is down.
    pub fn link_info(&self, link: LinkId) -> Option<LinkInfo> {
        let adjacency = self.links.get(&link)?;
        let waiting: usize = adjacency.unacked.iter().map(|sent| sent.entries.len()).sum();
        Some(LinkInfo {
            neighbour: adjacency.neighbour,
            cost: adjacency.estimate.cost(),
            missing_ppm: adjacency.estimate.missing_ppm(),
            adjacent: adjacency.is_ready(),
            routes: adjacency.routes,
            unsent: adjacency.changed.len() + waiting,
        })
    }

    /// True if both ends of `link` know each other's instance. Until then the neighbour may send
    /// cells by routes of an earlier run of this router. The relay drops such cells, so that even a
    /// restart makes no loop.
    pub fn is_adjacent(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(Adjacency::is_ready)
    }

    /// Replaces the known origins. Routes to removed origins, or to those with a changed key, end.
    pub fn set_origins(&mut self, now: Time, origins: impl IntoIterator<Item = (u32, PublicKey)>) {
        let others = origins.into_iter().filter(|(router, _)| *router != self.me);
        let wanted: BTreeMap<u32, PublicKey> = others.collect();
        let gone = |(id, d): (&u32, &Destination)| (wanted.get(id) != Some(&d.key)).then_some(*id);
        for router in self.destinations.iter().filter_map(gone).collect::<Vec<_>>() {
            self.retire(now, router);
        }
        let mut grew = false;
        for (router, key) in wanted {
            let entry = self.destinations.entry(router);
            let destination = entry.or_insert_with(|| Destination::new(key));
            if destination.key != key {
                // A new key has its own sequence numbers: claims under the old key mean nothing.
                *destination = Destination::new(key);
            }
            grew |= !core::mem::replace(&mut destination.known, true);
        }
        if grew {
            self.ask_everybody_for_dumps();
        }
        self.settle(now);
    }

    /// Ends the routes to an origin. Our claims stay, in case the origin returns.
    fn retire(&mut self, now: Time, router: u32) {
        let Some(destination) = self.destinations.get_mut(&router) else { return };
        destination.known = false;
        for offer in core::mem::take(&mut destination.offers) {
            if let Some(adjacency) = self.links.get_mut(&offer.link) {
                adjacency.routes -= 1;
            }
        }
        self.reselect(now, router);
    }

    fn ask_everybody_for_dumps(&mut self) {
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            self.ask_for_all(link);
        }
    }

    fn query_gap(&self) -> core::time::Duration {
        self.config.cycle / self.config.queries.max(1)
    }

    fn handle_query(&mut self, now: Time, link: LinkId, nonce: u64) -> Result<(), DropReason> {
        let adjacency = self.links.get_mut(&link).ok_or(DropReason::NotAllowed)?;
        if !adjacency.budgets.queries.take(1, now) {
            return Err(DropReason::RouteBudget);
        }
        self.outbox.push_back((link, RoutingMessage::QueryReply { nonce }));
        Ok(())
    }

    fn handle_reply(&mut self, link: LinkId, nonce: u64) -> Result<(), DropReason> {
        let adjacency = self.links.get_mut(&link).ok_or(DropReason::NotAllowed)?;
        if adjacency.estimate.reply(nonce) { Ok(()) } else { Err(DropReason::StaleRouting) }
    }

    /// Runs the due timers and updates the table. Each fired timer is armed for later or not at
    /// all, so the loop ends.
    fn settle(&mut self, now: Time) {
        while let Some(timer) = self.timers.pop_due(now) {
            match timer {
                Timer::Query(link) => self.query(now, link),
                Timer::Hello(link) => self.send_hello(now, link),
                Timer::Flush(link) => self.flush(now, link),
                Timer::Retransmit(link) => self.retransmit(now, link),
                Timer::Request(router) => self.repeat_request(now, router),
                Timer::Refresh => self.new_seqno(now),
                Timer::Seqno => self.seqno_due(now),
                Timer::Housekeeping => self.keep_house(now),
            }
        }
        if core::mem::take(&mut self.table_stale) {
            let hop = |(id, d): (&u32, &Destination)| Some((*id, d.selected?.link));
            let hops = self.destinations.iter().filter_map(hop).collect();
            self.table = Arc::new(RouteTable::new(self.table.version() + 1, hops));
        }
    }

    /// Sends the link's next query. At the end of a cycle, closes the cycle first.
    fn query(&mut self, now: Time, link: LinkId) {
        let gap = self.jitter.around(self.query_gap());
        let nonce = self.rng.u64();
        let Some(adjacency) = self.links.get_mut(&link) else { return };
        let ended = adjacency.estimate.sent() >= self.config.queries;
        let changed = ended && adjacency.estimate.close_cycle(&self.config);
        if ended {
            adjacency.dump_asked = false;
            adjacency.dump_granted = false;
        }
        adjacency.estimate.query(nonce);
        self.outbox.push_back((link, RoutingMessage::Query { nonce }));
        self.timers.set(Timer::Query(link), now + gap);
        if ended {
            self.repeat_dump_request(link);
        }
        if changed {
            let over = |(id, d): (&u32, &Destination)| d.offer(link).map(|_| *id);
            for router in self.destinations.iter().filter_map(over).collect::<Vec<_>>() {
                self.reselect(now, router);
            }
        }
    }

    /// Drops offers with expired proofs. Requests sequence numbers for destinations that only
    /// unfeasible offers lead to.
    fn keep_house(&mut self, now: Time) {
        self.timers.set(Timer::Housekeeping, now + self.config.cycle);
        let unix_s = self.unix_s(now);
        let mut touched = Vec::new();
        for (router, destination) in &mut self.destinations {
            let before = destination.offers.len();
            let Destination { offers, proofs, .. } = destination;
            offers.retain(|offer| {
                let proof = proofs.iter().find(|proof| proof.seqno == offer.distance.seqno);
                let holds = proof.is_some_and(|proof| is_current(proof, unix_s));
                if let Some(adjacency) = self.links.get_mut(&offer.link).filter(|_| !holds) {
                    adjacency.routes -= 1;
                }
                holds
            });
            if offers.len() != before {
                touched.push(*router);
            }
        }
        for router in touched {
            self.reselect(now, router);
        }
        for router in self.destinations.keys().copied().collect::<Vec<_>>() {
            if self.is_starved(router) {
                self.forget_tries(router);
                self.want_route(now, router);
            }
        }
    }

    /// Cost of `link` as the first hop to `router`; `None` if `link` may not be used for it.
    pub(crate) fn cost_for(&self, router: u32, link: LinkId) -> Option<u32> {
        let adjacency = self.links.get(&link)?;
        let pin = self.config.pins.get(&router);
        let allowed = pin.is_none_or(|neighbour| *neighbour == adjacency.neighbour);
        allowed.then_some(adjacency.estimate.cost())
    }

    /// Selects the offer for `router` anew, and reports a change.
    pub(crate) fn reselect(&mut self, now: Time, router: u32) {
        let Some(destination) = self.destinations.get(&router) else { return };
        let hysteresis = self.config.hysteresis_percent;
        let chosen = destination.select(|link| self.cost_for(router, link), hysteresis);
        let old = destination.selected;
        let new = chosen.map(|(link, distance)| {
            let since = old.filter(|old| old.link == link).map_or(now, |old| old.since);
            Selected { link, distance, since }
        });
        // Present: looked up above.
        let Some(destination) = self.destinations.get_mut(&router) else { return };
        destination.selected = new;
        destination.prune_proofs();
        if new != old {
            self.advertise_all(now, router);
        }
        let row = |s: Selected| (s.link, s.distance.metric);
        if new.map(row) != old.map(row) {
            self.table_stale |= new.map(|s| s.link) != old.map(|s| s.link);
            if self.events.len() >= EVENTS_MAX {
                self.events.pop_front();
            }
            let (old, new) = (old.map(row), new.map(row));
            self.events.push_back(RouteChange { router, old, new, at: now });
        }
        if self.is_starved(router) {
            self.want_route(now, router);
        } else {
            self.forget_tries(router);
        }
    }

    /// Sets the wall clock, in seconds: it may have been set since the start. Expiries are compared
    /// with it, and our own proof is signed anew.
    pub fn set_unix_s(&mut self, now: Time, unix_s: u64) {
        if self.unix_s(now).abs_diff(unix_s) < CLOCK_STEP_S {
            return;
        }
        (self.started, self.started_unix_s) = (now, unix_s);
        self.new_seqno_soon(now);
        // Routes that were refused as expired may be valid by the new clock.
        self.ask_everybody_for_dumps();
        self.settle(now);
    }

    /// Number of times that a neighbour presented a proof of our own that was newer than ours. Once
    /// is normal after a restart with the clock set back. Repeated cases mean that another router
    /// runs with our key.
    pub fn outrun(&self) -> u32 {
        self.outrun
    }

    /// Wall clock at `now`, in seconds, advanced by the monotonic clock.
    pub(crate) fn unix_s(&self, now: Time) -> u64 {
        self.started_unix_s.saturating_add(now.since(self.started).as_secs())
    }
}

impl<C: Ciphers> core::fmt::Debug for Routing<C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Routing")
            .field("links", &self.links.len())
            .field("origins", &self.destinations.len())
            .field("reachable", &self.table.len())
            .finish_non_exhaustive()
    }
}
