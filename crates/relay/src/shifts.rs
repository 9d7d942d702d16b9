//! Links with address shifts: the addresses that their frames use, the addresses at which frames
//! are accepted, and the messages between both ends. `shift/link.rs` decides.

use core::fmt;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;

use shoal_crypto::{Aead, Ciphers, PlantedFault, Secret};
use shoal_session::{Endpoint, Endpoints, PeerId};
use shoal_wire::{
    CONTROL_SHIFT_PLACE, CONTROL_SHIFT_STEP, DropReason, LinkId, ShiftAnnouncement, ShiftStage,
    ShiftStep, Time,
};

use crate::shift::{
    AddressProbe, FrameBudget, PrefixChange, ProbeResponder, Rendezvous, ShiftState, ShiftView,
};
use crate::trial::SuspendedTrial;
use crate::{FrameSink, LinkView, Relay};

/// Time for which frames are accepted at addresses of a link that ends its shifts, until the
/// neighbour has been told.
const RETIRED_KEPT: Duration = Duration::from_secs(2);
/// Maximum number of links with expiring addresses. Beyond it the oldest is dropped. Only a
/// configuration change ends shifts.
const RETIRED_MAX: usize = 64;
/// Maximum number of former prefixes that are remembered. Beyond it the oldest is dropped, which
/// needs a configuration that changes every few seconds.
pub const FORMER_MAX: usize = 4;
/// Time for which a former prefix is remembered. Neighbours that don't know of the move still send
/// there.
pub const FORMER_KEPT: Duration = Duration::from_secs(30);
/// Maximum number of step frames of one link that leave at once. Four steps may wait and one be in
/// progress, each between two prefixes of either end.
const COPIES_MAX: usize = 20;

/// The addresses of this node's prefix at which frames are accepted.
#[derive(Clone, PartialEq, Eq)]
pub struct AcceptedAddresses {
    /// The current prefix, then former ones.
    prefixes: Vec<[u8; 8]>,
    /// Sorted.
    identifiers: Vec<u64>,
    /// Interface identifiers of probes. They are accepted only under the current prefix.
    probed: Vec<u64>,
}

impl fmt::Debug for AcceptedAddresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} addresses", self.identifiers.len())
    }
}

impl AcceptedAddresses {
    /// The interface identifiers, sorted.
    pub fn identifiers(&self) -> &[u64] {
        &self.identifiers
    }

    /// True if a frame to this address is accepted. Addresses outside of the prefixes are always
    /// accepted.
    pub(crate) fn takes(&self, local: Option<SocketAddr>) -> bool {
        let Some((prefix, identifier)) = local.and_then(ShiftAnnouncement::split) else {
            return true;
        };
        match self.prefixes.iter().position(|known| *known == prefix) {
            Some(former) => {
                self.identifiers.binary_search(&identifier).is_ok()
                    && (former == 0 || !self.probed.contains(&identifier))
            }
            None => true,
        }
    }
}

/// A link with address shifts.
pub(crate) struct ShiftLink {
    pub(crate) shift: ShiftState,
    /// The probe of whether its addresses are usable, if one was requested.
    pub(crate) probe: Option<AddressProbe>,
    pub(crate) asked: ProbeResponder,
    /// Budget for new places that the neighbour announces.
    pub(crate) told: FrameBudget,
    /// The rendezvous at which handshakes begin, if not at a fixed endpoint.
    pub(crate) meet: Option<Box<Rendezvous>>,
    /// Current scheduled addresses of the link's frames. None while they use the fixed endpoint.
    pub(crate) shown: Option<Endpoints>,
    /// The fixed endpoint.
    pub(crate) fixed: Option<Endpoints>,
    /// The unsettled move to the fixed endpoint.
    pub(crate) aside: Option<Box<SuspendedTrial>>,
    /// Interface identifiers at which frames are accepted.
    accepted: Vec<u64>,
    alarm: Option<Time>,
}

impl ShiftLink {
    pub(crate) fn new(shift: ShiftState, meet: Option<Box<Rendezvous>>) -> ShiftLink {
        ShiftLink {
            shift,
            probe: None,
            asked: ProbeResponder::default(),
            told: FrameBudget::default(),
            meet,
            shown: None,
            fixed: None,
            aside: None,
            accepted: Vec::new(),
            alarm: None,
        }
    }

    /// The scheduled addresses that the link's frames must use.
    fn place<C: Ciphers>(&self) -> Option<Endpoints> {
        let stays = C::Aead::flaw() == Some(PlantedFault::ShiftStays);
        self.shift.place().or(self.shown.filter(|_| stays))
    }
}

/// A former prefix.
pub(crate) struct FormerPrefix {
    pub(crate) prefix: [u8; 8],
    /// Fixed interface identifiers under it.
    pub(crate) staying: Vec<u64>,
    pub(crate) until: Time,
}

/// All links with address shifts.
#[derive(Default)]
pub(crate) struct ShiftLinks {
    /// Prefix and port of this node's shifting addresses.
    pub(crate) own: Option<([u8; 8], u16)>,
    /// Former prefixes that may still be routed here, the newest first.
    former: Vec<FormerPrefix>,
    /// Fixed interface identifiers under the prefix.
    pub(crate) staying: Vec<u64>,
    /// Interface identifiers of machines behind this node, sorted.
    protected: Arc<[u64]>,
    pub(crate) links: BTreeMap<LinkId, ShiftLink>,
    /// Key for the tokens in all links' steps.
    key: Option<Arc<Secret<32>>>,
    /// Number of probes begun.
    pub(crate) probed: u32,
    alarms: BTreeSet<(Time, LinkId)>,
    /// Links with messages to send.
    listed: Vec<LinkId>,
    /// Links whose neighbours sent messages. The consequences of all messages of one batch are
    /// evaluated together.
    heard: Vec<LinkId>,
    /// Interface identifiers of links that ended their shifts, and when they expire.
    retired: VecDeque<(Time, Vec<u64>)>,
    pub(crate) accepted: Option<Arc<AcceptedAddresses>>,
    /// True if `accepted` is outdated.
    is_old: bool,
}

impl ShiftLinks {
    /// Notes that this prefix was left.
    pub(crate) fn leave(&mut self, left: FormerPrefix) {
        let own = self.own.map(|(prefix, _)| prefix);
        self.former.retain(|known| Some(known.prefix) != own && known.prefix != left.prefix);
        self.former.insert(0, left);
        self.former.truncate(FORMER_MAX);
    }

    /// Marks `accepted` as outdated. It is gathered once for all changes until then.
    pub(crate) fn gather(&mut self) {
        self.is_old = true;
    }

    /// Gathers `accepted` if it is outdated.
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
        let probed = probes.filter_map(AddressProbe::identifier).collect();
        let now = AcceptedAddresses { prefixes, identifiers: all, probed };
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

    /// Removes a link but keeps accepting its addresses for a while.
    fn retire(&mut self, now: Time, link: LinkId) {
        self.set_alarm(link, None);
        let Some(known) = self.links.remove(&link) else { return };
        if self.retired.len() >= RETIRED_MAX {
            self.retired.pop_front();
        }
        self.retired.push_back((now + RETIRED_KEPT, known.accepted));
    }

    /// Drops expired addresses of removed links, and expired prefixes.
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

    /// Removes a link.
    pub(crate) fn remove(&mut self, link: LinkId) {
        self.set_alarm(link, None);
        if self.links.remove(&link).is_some() {
            self.gather();
        }
    }

    /// Time of the next action.
    pub(crate) fn due(&self) -> Option<(Time, &'static str)> {
        let none = self.listed.is_empty() && self.heard.is_empty();
        let listed = (!none).then_some(Time::ZERO);
        let alarm = self.alarms.first().map(|(at, _)| *at);
        let retired = self.retired.front().map(|(until, _)| *until);
        let former = self.former.iter().map(|former| former.until).min();
        let at = [listed, alarm, retired, former].into_iter().flatten().min();
        at.map(|at| (at, "shift"))
    }
}

impl<C: Ciphers> Relay<C> {
    /// Sets the prefix and port of this node's shifting addresses, or None for no shifts. Call this
    /// before [`Relay::set_shift`].
    pub fn set_shift_place(&mut self, place: Option<([u8; 8], u16)>) {
        self.shifts.own = place;
        self.sessions.set_wide_prefix(place.map(|(prefix, _)| prefix));
        self.shifts.gather();
        self.refresh();
    }

    /// Sets the fixed interface identifiers of this node under the prefix. Frames to them are also
    /// accepted.
    pub fn set_staying(&mut self, identifiers: Vec<u64>) {
        self.shifts.staying = identifiers;
        self.shifts.gather();
        self.refresh();
    }

    /// Sets the interface identifiers of machines behind this node. This node uses none of them in
    /// a schedule and accepts no frames there.
    pub fn set_protected(&mut self, mut identifiers: Vec<u64>) {
        identifiers.sort_unstable();
        self.shifts.protected = identifiers.into();
        for known in self.shifts.links.values_mut() {
            known.shift.leave_out(Arc::clone(&self.shifts.protected));
        }
        self.shifts.gather();
        self.refresh();
    }

    /// Addresses of the prefix at which frames are accepted. None without shifts. Each change
    /// creates a new `Arc`.
    pub fn accepted(&self) -> Option<&Arc<AcceptedAddresses>> {
        self.shifts.accepted.as_ref()
    }

    /// Makes a link's addresses shift if the neighbour's do too, or with None ends that. Each
    /// address is used for `interval` or longer. The interval is clamped to its range.
    pub fn set_shift(&mut self, now: Time, link: LinkId, interval: Option<Duration>) {
        let own = interval.zip(self.shifts.own).map(|(interval, (prefix, port))| {
            let (least, most) =
                (ShiftAnnouncement::INTERVAL_MIN_MS, ShiftAnnouncement::INTERVAL_MAX_MS);
            let ms = u32::try_from(interval.as_millis()).unwrap_or(most);
            ShiftAnnouncement { prefix, port, interval_ms: ms.clamp(least, most) }
        });
        let known = self.shifts.links.get(&link).map(|known| known.shift.own());
        let peer = PeerId::from(link);
        let (true, Some(key)) = (known != own, self.sessions.peer_key(peer)) else { return };
        let leads = self.sessions.own_key().dh < key.dh;
        self.shift_lost(now, link);
        self.count_held_back(link);
        let meet = self.take_meeting(now, link, own.is_some());
        self.shifts.retire(now, link);
        if let Some(own) = own {
            let mut shift = ShiftState::new(own, leads, self.shift_key());
            shift.leave_out(Arc::clone(&self.shifts.protected));
            // The neighbour has not yet announced that its addresses shift.
            shift.back(now);
            self.shifts.links.insert(link, ShiftLink::new(shift, meet));
            self.take_shift_secret(now, link);
        }
        // The neighbour must also be told if shifts end.
        self.shifts.list(link);
        self.follow_shift(now, link);
        self.refresh();
    }

    fn shift_key(&mut self) -> Arc<Secret<32>> {
        let key = self.shifts.key.get_or_insert_with(|| Arc::new(Secret::new(self.rng.array())));
        Arc::clone(key)
    }

    /// Passes the secret of the session with a neighbour to the link's shifts.
    fn take_shift_secret(&mut self, now: Time, link: LinkId) {
        let peer = PeerId::from(link);
        let secret = self.sessions.shift_secret(peer);
        let (Some((secret, since)), Some(known)) = (secret, self.shifts.links.get_mut(&link))
        else {
            return;
        };
        match (C::Aead::flaw(), self.sessions.peer_key(peer)) {
            (Some(PlantedFault::ShiftOneSecret), _) => known.shift.session(now, &[7; 32], since),
            (Some(PlantedFault::ShiftOfLink), Some(far)) => {
                let (near, far) = (self.sessions.own_key().dh, far.dh);
                known.shift = ShiftState::new(known.shift.own(), near < far, known.shift.key());
                let both = core::array::from_fn(|at| near[at] ^ far[at]);
                known.shift.session(now, &both, since);
            }
            _ => known.shift.session(now, secret.expose(), since),
        }
    }

    /// Adds the state of a link's shifts to its view. The view shows the fixed endpoint only, since
    /// scheduled addresses are secret.
    pub(crate) fn with_shift(&self, view: LinkView) -> LinkView {
        let Some(known) = self.shifts.links.get(&view.link) else { return view };
        let told = self.told_endpoint(view.link);
        LinkView {
            endpoint: told.map(|ends| ends.remote),
            local: told.and_then(|ends| ends.local),
            shift: Some(ShiftView { meets: known.meet.is_some(), ..known.shift.view() }),
            ..view
        }
    }

    /// The link's endpoint outside of its schedule.
    pub(crate) fn fixed_endpoint(&self, link: LinkId) -> Option<Endpoints> {
        match self.shifts.links.get(&link).filter(|known| known.shown.is_some()) {
            Some(known) => known.fixed,
            None => self.neighbours.get(link)?.endpoint,
        }
    }

    /// Moves a link's frames to the scheduled addresses, and updates dependent state.
    pub(crate) fn follow_shift(&mut self, now: Time, link: LinkId) {
        self.follow_meeting(now, link);
        let Some(known) = self.shifts.links.get_mut(&link) else { return };
        let place = known.place::<C>();
        if place != known.shown
            && let Some(neighbour) = self.neighbours.get_mut(link)
        {
            if known.shown.is_none() {
                known.leave_fixed(now, neighbour);
                known.fixed = neighbour.endpoint;
            }
            let remote = |at: Option<Endpoints>| at.map(|at| at.remote);
            // The steps of the shift have proved the neighbour's address. This end's source proves
            // nothing about it.
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
        known.shift.accepted(now, &mut known.accepted);
        known.meet.iter().for_each(|meet| meet.accepted(now, &mut known.accepted));
        match C::Aead::flaw() {
            Some(PlantedFault::ShiftKept) => known.accepted.extend(&before),
            Some(PlantedFault::ShiftOnlyNow) if known.shown.is_some() => {
                let (own, shown) = (known.shift.own(), known.shown.and_then(|ends| ends.local));
                known.accepted.retain(|identifier| Some(own.endpoint(*identifier)) == shown);
            }
            _ => {}
        }
        known.accepted.extend(known.probe.as_ref().and_then(AddressProbe::identifier));
        known.accepted.sort_unstable();
        known.accepted.dedup();
        let changed = known.accepted != before;
        let probe = known.probe.as_ref().and_then(AddressProbe::poll_timeout);
        let answers = known.asked.is_due().then_some(Time::ZERO);
        let meet = known.meet.as_ref().map(|meet| meet.poll_timeout(now));
        let aside = known.aside.as_ref().map(|aside| aside.poll_timeout());
        let due = [known.shift.poll_timeout(now), probe, answers, meet, aside];
        let due = due.into_iter().flatten().min();
        self.set_calls(now, link);
        if changed {
            self.shifts.gather();
        }
        if due == Some(Time::ZERO) {
            self.shifts.list(link);
        }
        self.shifts.set_alarm(link, due);
    }

    /// Returns a link to its fixed endpoint, because it went down or is called elsewhere.
    pub(crate) fn shift_lost(&mut self, now: Time, link: LinkId) {
        if let Some(known) = self.shifts.links.get_mut(&link) {
            known.shift.fall(now);
            self.follow_shift(now, link);
        }
    }

    /// Handles a link that is up again: shifts are tried again soon.
    pub(crate) fn shift_back(&mut self, now: Time, link: LinkId) {
        if let Some(known) = self.shifts.links.get_mut(&link) {
            known.shift.back(now);
            self.follow_shift(now, link);
        }
    }

    /// Handles a session that was agreed through `to`. Returns the link's endpoint, and true if
    /// that is a scheduled address.
    pub(crate) fn shift_session(
        &mut self,
        now: Time,
        link: LinkId,
        to: Option<Endpoints>,
    ) -> (Option<Endpoints>, bool) {
        let peer = PeerId::from(link);
        let Some(known) = self.shifts.links.get_mut(&link) else { return (to, false) };
        // A neighbour that restarted does not know the addresses of the old schedule.
        let by_schedule = |to: Endpoints| {
            known.shift.knows(now, to.remote) || known.shift.roamed(now, to.remote).is_some()
        };
        let scheduled = to.is_some_and(by_schedule);
        let met = !scheduled && known.meets(now, to);
        let shifts_there = to.is_some_and(|to| known.shift.is_under_prefix(to.remote));
        self.take_shift_secret(now, link);
        let fixed = self.neighbours.get(link).and_then(|neighbour| neighbour.endpoint);
        let Some(known) = self.shifts.links.get_mut(&link) else { return (to, false) };
        if !scheduled {
            known.shift.fall(now);
            if let Some(neighbour) = self.neighbours.get_mut(link) {
                if known.shown.is_some() {
                    // The trial was of a scheduled address.
                    neighbour.trial.end();
                }
                known.come_back(now, known.fixed, &mut neighbour.trial);
            }
        }
        let place = known.place::<C>();
        // A scheduled address is no fixed endpoint, even after its time.
        let fixed = if known.shown.is_some() { known.fixed } else { fixed };
        known.fixed = if scheduled || shifts_there && !met { fixed.or(to) } else { to };
        known.shown = place;
        let at = place.or(known.fixed);
        if let Some(neighbour) = self.neighbours.get_mut(link) {
            neighbour.endpoint = at;
        }
        self.sessions.set_endpoint(peer, at);
        self.follow_shift(now, link);
        (at, place.is_some() || met)
    }

    /// True if frames from this source don't show a new endpoint of the neighbour. That holds for
    /// scheduled addresses, and for the fixed endpoint while this end uses scheduled ones.
    pub(crate) fn is_scheduled_source(&self, now: Time, link: LinkId, from: &Endpoints) -> bool {
        let Some(known) = self.shifts.links.get(&link) else { return false };
        let fixed = known.fixed.filter(|_| known.shown.is_some());
        fixed.is_some_and(|fixed| fixed.is_same_place(from))
            || known.shift.knows(now, from.remote)
            || known.shift.has_left(now, from.remote)
            || known.meet.as_ref().is_some_and(|meet| meet.knows(now, from.remote))
            || known.is_probed(now, from.remote)
    }

    /// Handles a neighbour's step of a shift.
    ///
    /// Errors: `bad_shift`, and nothing has changed.
    pub(crate) fn hear_shift_step(
        &mut self,
        now: Time,
        link: LinkId,
        step: &ShiftStep,
    ) -> Result<(), DropReason> {
        let known = self.shifts.links.get_mut(&link).ok_or(DropReason::BadShift)?;
        let followed = known.shift.handle(now, step)?;
        if followed == PrefixChange::Moved {
            self.shift_followed(now, link);
        }
        self.shifts.hear(link);
        Ok(())
    }

    /// Handles all timers that are due.
    pub(crate) fn drive_shifts(&mut self, now: Time) {
        self.shifts.forget_retired(now);
        // Collects them first: an alarm that is due again at once must not prolong this call.
        let due = self.shifts.alarms.range(..=(now, LinkId::from_bits(u32::MAX)));
        for link in due.map(|(_, link)| *link).collect::<Vec<_>>() {
            if let Some(known) = self.shifts.links.get_mut(&link) {
                known.shift.handle_timeout(now);
                let probe = known.probe.as_ref().and_then(AddressProbe::poll_timeout);
                let aside = known.aside.as_ref().map(|aside| aside.poll_timeout());
                if [probe, aside].into_iter().flatten().any(|at| at <= now) {
                    self.shifts.list(link);
                }
                self.follow_shift(now, link);
            }
        }
    }

    /// Evaluates neighbours' messages, before any step that depends on them.
    pub(crate) fn follow_heard(&mut self, now: Time) {
        for link in core::mem::take(&mut self.shifts.heard) {
            self.follow_shift(now, link);
        }
    }

    /// Sends places and steps that are due. Returns true if there were any.
    pub(crate) fn send_shifts(&mut self, now: Time, sink: &mut impl FrameSink) -> bool {
        let listed = core::mem::take(&mut self.shifts.listed);
        for &link in &listed {
            let established = self.neighbours.get(link).is_some_and(|n| n.established);
            let known = self.shifts.links.get_mut(&link);
            // Either there is no place to tell, or None is told because this node's addresses don't
            // shift.
            let tell = known.map_or(Some(None), |known| known.shift.poll_tell().map(Some));
            if let Some(place) = tell.filter(|_| established) {
                let body = ShiftAnnouncement::to_bytes(place);
                self.send_control(now, link, &[(CONTROL_SHIFT_PLACE, &body)], sink);
            }
            if let Some(known) = self.shifts.links.get_mut(&link).filter(|_| !established) {
                known.shift.drop_steps();
            }
            for _ in 0..COPIES_MAX {
                let step =
                    self.shifts.links.get_mut(&link).and_then(|known| known.shift.poll_step(now));
                let Some((ends, step)) = step else { break };
                self.shift_too_soon(link, ends, step.stage);
                self.send_beside(now, link, ends, (CONTROL_SHIFT_STEP, &step.to_bytes()), sink);
            }
            self.send_moves(now, link, established, sink);
            self.send_probes(now, link, sink);
            self.count_held_back(link);
            self.follow_shift(now, link);
        }
        !listed.is_empty()
    }

    /// Counts the link's steps that were not sent.
    pub(crate) fn count_held_back(&mut self, link: LinkId) {
        if let Some(known) = self.shifts.links.get_mut(&link) {
            let held_back = known.shift.take_held_back();
            self.count_drop(DropReason::ShiftBudget, held_back);
        }
    }

    /// Simulates a flaw: an end moves before it knows that frames pass both ways.
    fn shift_too_soon(&mut self, link: LinkId, ends: Endpoints, stage: ShiftStage) {
        let hasty = match C::Aead::flaw() {
            Some(PlantedFault::ShiftAtCall) => stage == ShiftStage::Call,
            Some(PlantedFault::ShiftAtAnswer) => stage == ShiftStage::Answer,
            _ => false,
        };
        if let Some(neighbour) = self.neighbours.get_mut(link).filter(|_| hasty) {
            neighbour.endpoint = Some(ends);
            self.sessions.set_endpoint(PeerId::from(link), neighbour.endpoint);
        }
    }
}
