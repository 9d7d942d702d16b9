//! Links whose addresses hop, among the others: which address a link's frames leave from, at which
//! addresses frames may come, and what both ends tell each other (`hop/link.rs` decides).

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::{Aead, Ciphers, Flaw, Secret};
use shoal_session::{Endpoint, Endpoints, PeerId};
use shoal_wire::{
    CONTROL_HOP_PLACE, CONTROL_HOP_STEP, DropReason, HopPlace, HopStage, HopStep, LinkId, Time,
};

use crate::hop::{Asked, Budget, Followed, Hop, HopView, Probe, Rendezvous};
use crate::trial::Aside;
use crate::{LinkView, Relay, Sink};

/// For how long frames may still come to addresses of a link that stops to hop: until the neighbour
/// has heard of it.
const RETIRED_KEPT: Duration = Duration::from_secs(2);
/// Links that stopped so lately; of more, the addresses of the first are forgotten. Only a changed
/// configuration stops any.
const RETIRED_MAX: usize = 64;
/// Prefixes that are remembered besides the one in use (of more, which only a configuration that
/// changes each few seconds has, the first is forgotten), ...
pub const FORMER_MAX: usize = 4;
/// ... and for how long, since neighbours that have not heard of the move still send there.
pub const FORMER_KEPT: Duration = Duration::from_secs(30);
/// Copies of one link's steps that leave at once: of four steps that wait, and one whose copies do,
/// each between two prefixes of either end.
const COPIES_MAX: usize = 20;

/// The addresses of this node's prefix at which frames may come.
#[derive(Clone, PartialEq, Eq)]
pub struct Accepted {
    /// The one in use, and some before it.
    prefixes: Vec<[u8; 8]>,
    /// Sorted.
    identifiers: Vec<u64>,
    /// Those of probes, which ask of the prefix in use alone.
    probed: Vec<u64>,
}

impl fmt::Debug for Accepted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} addresses", self.identifiers.len())
    }
}

impl Accepted {
    /// Their interface identifiers, sorted.
    pub fn identifiers(&self) -> &[u64] {
        &self.identifiers
    }

    /// Whether a frame that came to this address is looked at. The schedule says nothing of
    /// addresses outside of its prefix.
    pub(crate) fn takes(&self, local: Option<SocketAddr>) -> bool {
        let Some((prefix, identifier)) = local.and_then(HopPlace::split) else { return true };
        match self.prefixes.iter().position(|known| *known == prefix) {
            Some(former) => {
                self.identifiers.binary_search(&identifier).is_ok()
                    && (former == 0 || !self.probed.contains(&identifier))
            }
            None => true,
        }
    }
}

/// A link whose addresses hop.
pub(crate) struct Hopping {
    pub(crate) hop: Hop,
    /// Whether its addresses can be used, if that was asked.
    pub(crate) probe: Option<Probe>,
    pub(crate) asked: Asked,
    /// Of new places that the neighbour told.
    pub(crate) told: Budget,
    /// Where handshakes begin, if not at an endpoint that stays.
    pub(crate) meet: Option<Box<Rendezvous>>,
    /// Between which addresses the link's frames go by the schedule; none at the fixed endpoint.
    pub(crate) shown: Option<Endpoints>,
    /// Where they would go without one.
    pub(crate) fixed: Option<Endpoints>,
    /// The move there, while it is not settled.
    pub(crate) aside: Option<Box<Aside>>,
    /// Interface identifiers at which frames may come.
    accepted: Vec<u64>,
    alarm: Option<Time>,
}

impl Hopping {
    pub(crate) fn new(hop: Hop, meet: Option<Box<Rendezvous>>) -> Hopping {
        Hopping {
            hop,
            probe: None,
            asked: Asked::default(),
            told: Budget::default(),
            meet,
            shown: None,
            fixed: None,
            aside: None,
            accepted: Vec::new(),
            alarm: None,
        }
    }

    /// Between which addresses the link's frames are to go by the schedule.
    fn place<C: Ciphers>(&self) -> Option<Endpoints> {
        let stays = C::Aead::flaw() == Some(Flaw::HopStays);
        self.hop.place().or(self.shown.filter(|_| stays))
    }
}

/// A prefix before the one in use.
pub(crate) struct Former {
    pub(crate) prefix: [u8; 8],
    /// Interface identifiers under it that don't hop.
    pub(crate) staying: Vec<u64>,
    pub(crate) until: Time,
}

/// All of them.
#[derive(Default)]
pub(crate) struct Hops {
    /// Prefix and port of this node's addresses.
    pub(crate) own: Option<([u8; 8], u16)>,
    /// Prefixes before that one, which may still be routed here; the last at first.
    former: Vec<Former>,
    /// Interface identifiers under the prefix that don't hop.
    pub(crate) staying: Vec<u64>,
    /// Those that are machines' behind this node, sorted.
    protected: Arc<[u64]>,
    pub(crate) links: BTreeMap<LinkId, Hopping>,
    /// From which the tokens in all links' steps are derived.
    key: Option<Arc<Secret<32>>>,
    /// Probes that were begun.
    pub(crate) probed: u32,
    alarms: BTreeSet<(Time, LinkId)>,
    /// Links with something to be sent.
    listed: Vec<LinkId>,
    /// Links whose neighbours said something: once for all that came at a time it is looked at what
    /// has changed by that.
    heard: Vec<LinkId>,
    /// Interface identifiers of links that stopped, and until when frames may come there.
    retired: VecDeque<(Time, Vec<u64>)>,
    pub(crate) accepted: Option<Arc<Accepted>>,
    /// It is to be gathered anew.
    is_old: bool,
}

impl Hops {
    /// The prefix in use is another than this one.
    pub(crate) fn leave(&mut self, left: Former) {
        let own = self.own.map(|(prefix, _)| prefix);
        self.former.retain(|known| Some(known.prefix) != own && known.prefix != left.prefix);
        self.former.insert(0, left);
        self.former.truncate(FORMER_MAX);
    }

    /// Has the addresses at which frames may come gathered anew, once for all that changes until
    /// then.
    pub(crate) fn gather(&mut self) {
        self.is_old = true;
    }

    /// Gathers them, if one is another.
    pub(crate) fn gather_due(&mut self) {
        if !core::mem::take(&mut self.is_old) {
            return;
        }
        let Some((prefix, _)) = self.own else { return self.accepted = None };
        let retired = self.retired.iter().map(|(_, accepted)| accepted);
        let known = self.links.values().map(|known| &known.accepted);
        let mut all: Vec<u64> = known.chain(retired).flatten().copied().collect();
        let staying = self.former.iter().map(|former| &former.staying).chain([&self.staying]);
        all.extend(staying.flatten());
        all.retain(|identifier| self.protected.binary_search(identifier).is_err());
        all.sort_unstable();
        all.dedup();
        let former = self.former.iter().map(|former| former.prefix);
        let prefixes = core::iter::once(prefix).chain(former).collect();
        let probes = self.links.values().filter_map(|known| known.probe.as_ref());
        let probed = probes.filter_map(Probe::identifier).collect();
        let now = Accepted { prefixes, identifiers: all, probed };
        if self.accepted.as_deref() != Some(&now) {
            self.accepted = Some(Arc::new(now));
        }
    }

    pub(crate) fn set_alarm(&mut self, link: LinkId, at: Option<Time>) {
        let Some(known) = self.links.get_mut(&link) else { return };
        if let Some(old) = core::mem::replace(&mut known.alarm, at) {
            self.alarms.remove(&(old, link));
        }
        self.alarms.extend(at.map(|at| (at, link)));
    }

    pub(crate) fn list(&mut self, link: LinkId) {
        if !self.listed.contains(&link) {
            self.listed.push(link);
        }
    }

    pub(crate) fn hear(&mut self, link: LinkId) {
        if !self.heard.contains(&link) {
            self.heard.push(link);
        }
    }

    /// Forgets a link, but not yet its addresses.
    fn retire(&mut self, now: Time, link: LinkId) {
        self.set_alarm(link, None);
        let Some(known) = self.links.remove(&link) else { return };
        if self.retired.len() >= RETIRED_MAX {
            self.retired.pop_front();
        }
        self.retired.push_back((now + RETIRED_KEPT, known.accepted));
    }

    /// Forgets addresses of links that stopped, and prefixes that were left long ago.
    fn forget_retired(&mut self, now: Time) {
        let known = self.former.len();
        self.former.retain(|former| now < former.until);
        let mut gone = self.former.len() < known;
        while self.retired.pop_front_if(|(until, _)| *until <= now).is_some() {
            gone = true;
        }
        if gone {
            self.gather();
        }
    }

    /// Forgets a link.
    pub(crate) fn remove(&mut self, link: LinkId) {
        self.set_alarm(link, None);
        if self.links.remove(&link).is_some() {
            self.gather();
        }
    }

    /// When a hop, or an epoch, is due.
    pub(crate) fn due(&self) -> Option<(Time, &'static str)> {
        let none = self.listed.is_empty() && self.heard.is_empty();
        let listed = (!none).then_some(Time::ZERO);
        let alarm = self.alarms.first().map(|(at, _)| *at);
        let retired = self.retired.front().map(|(until, _)| *until);
        let former = self.former.iter().map(|former| former.until).min();
        let at = [listed, alarm, retired, former].into_iter().flatten().min();
        at.map(|at| (at, "hop"))
    }
}

impl<C: Ciphers> Relay<C> {
    /// Says under which prefix this node's addresses hop, and at which port; with none they don't.
    /// To be said before [`Relay::set_hop`].
    pub fn set_hop_place(&mut self, place: Option<([u8; 8], u16)>) {
        self.hops.own = place;
        self.sessions.set_wide_prefix(place.map(|(prefix, _)| prefix));
        self.hops.gather();
        self.refresh();
    }

    /// Says which interface identifiers under the prefix are this node's own and don't hop: frames
    /// may come there, too.
    pub fn set_staying(&mut self, identifiers: Vec<u64>) {
        self.hops.staying = identifiers;
        self.hops.gather();
        self.refresh();
    }

    /// Says which interface identifiers under the prefix are those of machines behind this node: no
    /// session's schedule may have this node use one, or take in what comes there.
    pub fn set_protected(&mut self, mut identifiers: Vec<u64>) {
        identifiers.sort_unstable();
        self.hops.protected = identifiers.into();
        for known in self.hops.links.values_mut() {
            known.hop.leave_out(Arc::clone(&self.hops.protected));
        }
        self.hops.gather();
        self.refresh();
    }

    /// At which addresses of the prefix frames may come now; none while this node's don't hop.
    /// Another value is another `Arc`.
    pub fn accepted(&self) -> Option<&Arc<Accepted>> {
        self.hops.accepted.as_ref()
    }

    /// Has a link's addresses hop, each used for `interval` or longer, if the neighbour's hop, too;
    /// with none they stay where they are. An interval out of its range is taken to its border.
    pub fn set_hop(&mut self, now: Time, link: LinkId, interval: Option<Duration>) {
        let own = interval.zip(self.hops.own).map(|(interval, (prefix, port))| {
            let (least, most) = (HopPlace::INTERVAL_MIN_MS, HopPlace::INTERVAL_MAX_MS);
            let ms = u32::try_from(interval.as_millis()).unwrap_or(most);
            HopPlace { prefix, port, interval_ms: ms.clamp(least, most) }
        });
        let known = self.hops.links.get(&link).map(|known| known.hop.own());
        let peer = PeerId::from(link);
        let (true, Some(key)) = (known != own, self.sessions.peer_key(peer)) else { return };
        let leads = self.sessions.own_key().dh < key.dh;
        self.hop_lost(now, link);
        self.count_held_back(link);
        let meet = self.take_meeting(now, link, own.is_some());
        self.hops.retire(now, link);
        if let Some(own) = own {
            let mut hop = Hop::new(own, leads, self.hop_key());
            hop.leave_out(Arc::clone(&self.hops.protected));
            // The neighbour is yet to say that its addresses hop.
            hop.back(now);
            self.hops.links.insert(link, Hopping::new(hop, meet));
            self.take_hop_secret(now, link);
        }
        // The neighbour is told that they hop no more, too.
        self.hops.list(link);
        self.follow_hop(now, link);
        self.refresh();
    }

    fn hop_key(&mut self) -> Arc<Secret<32>> {
        let key = self.hops.key.get_or_insert_with(|| Arc::new(Secret::new(self.rng.array())));
        Arc::clone(key)
    }

    /// Takes in the secret of the session with a neighbour.
    fn take_hop_secret(&mut self, now: Time, link: LinkId) {
        let peer = PeerId::from(link);
        let secret = self.sessions.hop_secret(peer);
        let (Some((secret, since)), Some(known)) = (secret, self.hops.links.get_mut(&link)) else {
            return;
        };
        match (C::Aead::flaw(), self.sessions.peer_key(peer)) {
            (Some(Flaw::HopOneSecret), _) => known.hop.session(now, &[7; 32], since),
            (Some(Flaw::HopOfLink), Some(far)) => {
                let (near, far) = (self.sessions.own_key().dh, far.dh);
                known.hop = Hop::new(known.hop.own(), near < far, known.hop.key());
                let both = core::array::from_fn(|at| near[at] ^ far[at]);
                known.hop.session(now, &both, since);
            }
            _ => known.hop.session(now, secret.expose(), since),
        }
    }

    /// Adds what people may know of a link's hops. Its endpoint is the fixed one: where the
    /// schedule leads is nobody's business.
    pub(crate) fn with_hop(&self, view: LinkView) -> LinkView {
        let Some(known) = self.hops.links.get(&view.link) else { return view };
        let told = self.told_endpoint(view.link);
        LinkView {
            endpoint: told.map(|ends| ends.remote),
            local: told.and_then(|ends| ends.local),
            hop: Some(HopView { meets: known.meet.is_some(), ..known.hop.view() }),
            ..view
        }
    }

    /// Where a link's frames go besides its schedule.
    pub(crate) fn fixed_endpoint(&self, link: LinkId) -> Option<Endpoints> {
        match self.hops.links.get(&link).filter(|known| known.shown.is_some()) {
            Some(known) => known.fixed,
            None => self.neighbours.get(link)?.endpoint,
        }
    }

    /// Has a link's frames go where its schedule says, and takes note of what else changed.
    pub(crate) fn follow_hop(&mut self, now: Time, link: LinkId) {
        self.follow_meeting(now, link);
        let Some(known) = self.hops.links.get_mut(&link) else { return };
        let place = known.place::<C>();
        if place != known.shown
            && let Some(neighbour) = self.neighbours.get_mut(link)
        {
            if known.shown.is_none() {
                known.leave_fixed(now, neighbour);
                known.fixed = neighbour.endpoint;
            }
            let remote = |at: Option<Endpoints>| at.map(|at| at.remote);
            // The steps of the hop have shown that the neighbour is there. Where this end sends
            // from says nothing of that.
            if remote(place) != remote(known.shown) {
                neighbour.trial.end();
            }
            known.shown = place;
            neighbour.endpoint = place.or(known.fixed);
            self.sessions.set_endpoint(PeerId::from(link), neighbour.endpoint);
        }
        match self.neighbours.get_mut(link).filter(|_| known.aside.is_some()) {
            Some(neighbour) if known.shown.is_none() => {
                known.come_back(now, neighbour.endpoint, &mut neighbour.trial);
            }
            _ => _ = known.aside.take_if(|aside| !aside.counts(now, known.fixed)),
        }
        let before = core::mem::take(&mut known.accepted);
        known.hop.accepted(now, &mut known.accepted);
        known.meet.iter().for_each(|meet| meet.accepted(now, &mut known.accepted));
        match C::Aead::flaw() {
            Some(Flaw::HopKept) => known.accepted.extend(&before),
            Some(Flaw::HopOnlyNow) if known.shown.is_some() => {
                let (own, shown) = (known.hop.own(), known.shown.and_then(|ends| ends.local));
                known.accepted.retain(|identifier| Some(own.endpoint(*identifier)) == shown);
            }
            _ => {}
        }
        known.accepted.extend(known.probe.as_ref().and_then(Probe::identifier));
        known.accepted.sort_unstable();
        known.accepted.dedup();
        let changed = known.accepted != before;
        let probe = known.probe.as_ref().and_then(Probe::poll_timeout);
        let answers = known.asked.is_due().then_some(Time::ZERO);
        let meet = known.meet.as_ref().map(|meet| meet.poll_timeout(now));
        let aside = known.aside.as_ref().map(|aside| aside.poll_timeout());
        let due = [known.hop.poll_timeout(now), probe, answers, meet, aside];
        let due = due.into_iter().flatten().min();
        self.set_calls(now, link);
        if changed {
            self.hops.gather();
        }
        if due == Some(Time::ZERO) {
            self.hops.list(link);
        }
        self.hops.set_alarm(link, due);
    }

    /// A link went down, or is called elsewhere: it is at its fixed endpoint again.
    pub(crate) fn hop_lost(&mut self, now: Time, link: LinkId) {
        if let Some(known) = self.hops.links.get_mut(&link) {
            known.hop.fall(now);
            self.follow_hop(now, link);
        }
    }

    /// A link is up after it was down: hops are tried again soon.
    pub(crate) fn hop_back(&mut self, now: Time, link: LinkId) {
        if let Some(known) = self.hops.links.get_mut(&link) {
            known.hop.back(now);
            self.follow_hop(now, link);
        }
    }

    /// A session was agreed through `to`. Says where the link is now, and whether that follows from
    /// one of its schedules.
    pub(crate) fn hop_session(
        &mut self,
        now: Time,
        link: LinkId,
        to: Option<Endpoints>,
    ) -> (Option<Endpoints>, bool) {
        let peer = PeerId::from(link);
        let Some(known) = self.hops.links.get_mut(&link) else { return (to, false) };
        // A neighbour that started anew does not know the old schedule's addresses.
        let by_schedule = |to: Endpoints| {
            known.hop.knows(now, to.remote) || known.hop.roamed(now, to.remote).is_some()
        };
        let scheduled = to.is_some_and(by_schedule);
        let met = !scheduled && known.meets(now, to);
        let hops_there = to.is_some_and(|to| known.hop.is_under_prefix(to.remote));
        self.take_hop_secret(now, link);
        let fixed = self.neighbours.get(link).and_then(|neighbour| neighbour.endpoint);
        let Some(known) = self.hops.links.get_mut(&link) else { return (to, false) };
        if !scheduled {
            known.hop.fall(now);
            if let Some(neighbour) = self.neighbours.get_mut(link) {
                if known.shown.is_some() {
                    // What was on trial was an address of the schedule.
                    neighbour.trial.end();
                }
                known.come_back(now, known.fixed, &mut neighbour.trial);
            }
        }
        let place = known.place::<C>();
        // An address of a schedule is no fixed endpoint, not even when its time is over.
        let fixed = if known.shown.is_some() { known.fixed } else { fixed };
        known.fixed = if scheduled || hops_there && !met { fixed.or(to) } else { to };
        known.shown = place;
        let at = place.or(known.fixed);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.endpoint = at;
        }
        self.sessions.set_endpoint(peer, at);
        self.follow_hop(now, link);
        (at, place.is_some() || met)
    }

    /// Whether frames from there say nothing new of where the neighbour is: they are its
    /// schedule's, or come from the fixed endpoint while this end is past it.
    pub(crate) fn is_scheduled_source(&self, now: Time, link: LinkId, from: &Endpoints) -> bool {
        let Some(known) = self.hops.links.get(&link) else { return false };
        let fixed = known.fixed.filter(|_| known.shown.is_some());
        fixed.is_some_and(|fixed| fixed.is_same_place(from))
            || known.hop.knows(now, from.remote)
            || known.hop.has_left(now, from.remote)
            || known.meet.as_ref().is_some_and(|meet| meet.knows(now, from.remote))
            || known.is_probed(now, from.remote)
    }

    /// The neighbour takes a step of a hop.
    ///
    /// Errors: `bad_hop`, after which nothing has changed.
    pub(crate) fn hear_hop_step(
        &mut self,
        now: Time,
        link: LinkId,
        step: &HopStep,
    ) -> Result<(), DropReason> {
        let known = self.hops.links.get_mut(&link).ok_or(DropReason::BadHop)?;
        let followed = known.hop.handle(now, step)?;
        if followed == Followed::Moved {
            self.hop_followed(now, link);
        }
        self.hops.hear(link);
        Ok(())
    }

    /// Does what time asks for.
    pub(crate) fn drive_hops(&mut self, now: Time) {
        self.hops.forget_retired(now);
        // Taken out first: an alarm that is due again at once must not keep this call going.
        let due = self.hops.alarms.range(..=(now, LinkId::from_bits(u32::MAX)));
        for link in due.map(|(_, link)| *link).collect::<Vec<_>>() {
            if let Some(known) = self.hops.links.get_mut(&link) {
                known.hop.handle_timeout(now);
                let probe = known.probe.as_ref().and_then(Probe::poll_timeout);
                let aside = known.aside.as_ref().map(|aside| aside.poll_timeout());
                if [probe, aside].into_iter().flatten().any(|at| at <= now) {
                    self.hops.list(link);
                }
                self.follow_hop(now, link);
            }
        }
    }

    /// Does what neighbours' messages ask for, before anything that builds on it.
    pub(crate) fn follow_heard(&mut self, now: Time) {
        for link in core::mem::take(&mut self.hops.heard) {
            self.follow_hop(now, link);
        }
    }

    /// Sends places and steps that are due; says whether there were any.
    pub(crate) fn send_hops(&mut self, now: Time, sink: &mut impl Sink) -> bool {
        let listed = core::mem::take(&mut self.hops.listed);
        for &link in &listed {
            let established = self.neighbours.get(link).is_some_and(|n| n.established);
            let known = self.hops.links.get_mut(&link);
            // Nothing to be told; or no place, since its addresses don't hop.
            let tell = known.map_or(Some(None), |known| known.hop.poll_tell().map(Some));
            if let Some(place) = tell.filter(|_| established) {
                let body = HopPlace::to_bytes(place);
                self.send_control(now, link, &[(CONTROL_HOP_PLACE, &body)], sink);
            }
            if let Some(known) = self.hops.links.get_mut(&link).filter(|_| !established) {
                known.hop.drop_steps();
            }
            for _ in 0..COPIES_MAX {
                let step =
                    self.hops.links.get_mut(&link).and_then(|known| known.hop.poll_step(now));
                let Some((ends, step)) = step else { break };
                self.hop_too_soon(link, ends, step.stage);
                self.send_beside(now, link, ends, (CONTROL_HOP_STEP, &step.to_bytes()), sink);
            }
            self.send_moves(now, link, established, sink);
            self.send_probes(now, link, sink);
            self.count_held_back(link);
            self.follow_hop(now, link);
        }
        !listed.is_empty()
    }

    /// Counts what was not sent of a link's steps.
    pub(crate) fn count_held_back(&mut self, link: LinkId) {
        if let Some(known) = self.hops.links.get_mut(&link) {
            let held_back = known.hop.take_held_back();
            self.count_drop(DropReason::HopBudget, held_back);
        }
    }

    /// Plants a fault: an end moves before it knows that frames pass both ways.
    fn hop_too_soon(&mut self, link: LinkId, ends: Endpoints, stage: HopStage) {
        let hasty = match C::Aead::flaw() {
            Some(Flaw::HopAtCall) => stage == HopStage::Call,
            Some(Flaw::HopAtAnswer) => stage == HopStage::Answer,
            _ => false,
        };
        if let Some(neighbour) = self.neighbours.get_mut(link).filter(|_| hasty) {
            neighbour.endpoint = Some(ends);
            self.sessions.set_endpoint(PeerId::from(link), neighbour.endpoint);
        }
    }
}
