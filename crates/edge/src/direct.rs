//! Direct links: when one is made, how its cells are protected, when it ends. The caller owns the
//! links themselves; this machine decides.
//!
//! ```text
//! traffic to a host -> Ask ..... routers ..... -> it wants one too -> Yes, and its end is ready
//!                  Open and call <- Yes ..... routers .....
//! ```
//!
//! Nothing is sent past the routers before both hosts have agreed: an observer at the wire of a
//! host that wants no direct link learns nothing.

mod again;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use shoal_crypto::Rng;
use shoal_wire::{DirectKind, DirectMessage, DropReason, Level, Meeting, MeetingId, Time};

use crate::book::HostId;
use crate::levels::{Levels, Why};
use crate::meet::{Meets, Reach, Relayed};
pub(crate) use again::Said;
use again::Taken;

/// How long an answer may take, a handshake with the host included.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How long a link may be down, at its start or later, before it is given up.
const MAKING_WAIT: Duration = Duration::from_secs(10);
/// How long a link that ends still accepts cells.
const CLOSING_WAIT: Duration = Duration::from_secs(5);
/// First wait after a failure; doubles with each one,
const BACK_OFF: Duration = Duration::from_secs(5);
/// up to this.
const BACK_OFF_MAX: Duration = Duration::from_secs(300);
/// How often in a row a host may make this one call its endpoint, by asking or answering again,
const ASKS_MAX: u32 = 4;
/// and how soon it may do so once more. The endpoint that it names may be somebody else's.
const ASKS_GAP: Duration = Duration::from_secs(30);
/// Messages and events that may wait to be taken; the owner takes them after every call.
const WAITING_MAX: usize = 1_024;

/// What this host wants of direct links.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectConfig {
    /// Make links with all hosts and keep them, instead of on traffic.
    pub proactive: bool,
    /// Where other hosts can call this one.
    pub endpoint: Option<SocketAddr>,
    /// The weakest level accepted with a host that shares no security group, and with which
    /// nothing stronger is asked for.
    pub weakest: Level,
    /// Names of the security groups of this host by its own file, hashed.
    pub groups: Vec<[u8; 8]>,
    /// A link without traffic for so long ends.
    pub idle: Duration,
    /// Links at once.
    pub links_max: usize,
}

/// An action for the owner of the links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectEvent {
    /// Make a link with the host, or call the host again on the existing link.
    Open {
        /// With whom.
        host: HostId,
        /// Where to call it; `None` waits for it to call.
        endpoint: Option<SocketAddr>,
        /// The weakest level to accept.
        level: Level,
        /// Why.
        why: Why,
    },
    /// Send probes to these places of the host, beside those of the same attempt. The link exists.
    Meet {
        /// With whom.
        host: HostId,
        /// The attempt.
        id: MeetingId,
        /// This end calls where the first probe comes from; the other end answers probes.
        asker: bool,
        /// Where the host may be.
        places: Vec<SocketAddr>,
    },
    /// Send nothing more over the link; arriving cells are still accepted.
    Close(HostId),
    /// End the link.
    Remove(HostId),
}

/// Counters of direct links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Times that a host was asked for one.
    pub asked: u64,
    /// Times that a host was told yes.
    pub agreed: u64,
    /// Times that a link came up.
    pub up: u64,
    /// Times that a link was lost.
    pub lost: u64,
    /// Links that ended because nothing used them, at either end.
    pub trimmed: u64,
    /// Attempts without an answer, or whose link did not come up.
    pub failed: u64,
    /// Requests not answered because `links_max` links exist.
    pub full: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No link; the earliest time of the next attempt.
    Waiting(Time),
    /// Asked; the time at which the answer is overdue.
    Asked(Time),
    /// The link exists but is down; the time at which it is given up.
    Making(Time),
    /// In use; when it last was.
    Up(Time),
    /// Ends at this time.
    Closing(Time),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    phase: Phase,
    /// Failed attempts in a row.
    failures: u32,
    /// The other end is proactive: idleness doesn't end the link.
    keep: bool,
    pub(crate) terms: (Level, Why),
    pub(crate) meets: Meets,
    /// A request that nobody has answered yet.
    asking: Option<Said>,
    /// Private addresses that were told, and for which attempt.
    pub(crate) nearing: Option<(Said, MeetingId)>,
    /// The request and the answer that were taken last.
    asked: Option<Taken>,
    agreed: Option<Taken>,
    /// Why the last attempt gave no link.
    pub(crate) relayed: Option<Relayed>,
}

/// How many more calls of its endpoint a host may cause.
#[derive(Clone, Copy, Debug)]
struct Asks {
    left: u32,
    since: Time,
}

impl Asks {
    fn take(&mut self, now: Time) -> Result<(), DropReason> {
        let earned = now.since(self.since).as_secs() / ASKS_GAP.as_secs();
        let earned = u32::try_from(earned).unwrap_or(ASKS_MAX).min(ASKS_MAX - self.left);
        self.left += earned;
        self.since = if self.left == ASKS_MAX { now } else { self.since + ASKS_GAP * earned };
        self.left = self.left.checked_sub(1).ok_or(DropReason::DirectBudget)?;
        Ok(())
    }
}

impl Entry {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.phase, Phase::Up(_))
    }

    pub(crate) fn has_link(&self) -> bool {
        matches!(self.phase, Phase::Making(_) | Phase::Up(_) | Phase::Closing(_))
    }
}

/// The machine; see the module's documentation. It has at most one entry per host.
#[derive(Debug)]
pub struct Direct {
    pub(crate) config: DirectConfig,
    pub(crate) entries: BTreeMap<HostId, Entry>,
    pub(crate) reach: Reach,
    pub(crate) levels: Levels,
    rng: Rng,
    asks: BTreeMap<HostId, Asks>,
    messages: VecDeque<(HostId, DirectMessage)>,
    events: VecDeque<DirectEvent>,
    stats: DirectStats,
    /// When to look at the entries; not later than the first one's time.
    look_at: Option<Time>,
    /// This host is seen elsewhere, and nobody was told.
    moved: bool,
}

impl Direct {
    /// A machine without links or requests. `seed` seeds what nobody else may guess.
    pub fn new(config: DirectConfig, seed: [u8; 32]) -> Direct {
        Direct {
            config,
            entries: BTreeMap::new(),
            reach: Reach::default(),
            levels: Levels::default(),
            rng: Rng::new(seed),
            asks: BTreeMap::new(),
            messages: VecDeque::new(),
            events: VecDeque::new(),
            stats: DirectStats::default(),
            look_at: None,
            moved: false,
        }
    }

    /// Counters.
    pub fn stats(&self) -> DirectStats {
        self.stats
    }

    /// What was agreed with a host, as long as there is a link.
    pub fn terms(&self, host: HostId) -> Option<(Level, Why)> {
        self.entries.get(&host).filter(|entry| entry.has_link()).map(|entry| entry.terms)
    }

    fn links(&self) -> usize {
        self.entries.values().filter(|entry| entry.has_link()).count()
    }

    fn say(&mut self, host: HostId, kind: DirectKind) {
        let meeting = self.meeting(host, kind);
        self.send(host, kind, meeting);
    }

    pub(crate) fn send(&mut self, host: HostId, kind: DirectKind, meeting: Option<Meeting>) {
        let DirectConfig { proactive: keep, endpoint, ref groups, .. } = self.config;
        let (level, groups) = (self.weakest(host), groups.clone());
        if self.messages.len() < WAITING_MAX {
            let said = DirectMessage { kind, level, keep, endpoint, groups, meeting };
            self.messages.push_back((host, said));
        }
    }

    pub(crate) fn tell(&mut self, event: DirectEvent) {
        self.events.push_back(event);
    }

    /// Traffic for the host went through routers.
    pub fn wanted(&mut self, now: Time, host: HostId) {
        let phase = self.entries.get(&host).map(|entry| entry.phase);
        if !phase.is_none_or(|phase| matches!(phase, Phase::Waiting(until) if until <= now)) {
            return;
        }
        if self.links() >= self.config.links_max {
            self.set(host, Phase::Waiting(now + BACK_OFF));
            return self.note_relayed(host, Relayed::Full);
        }
        self.set(host, Phase::Asked(now + ANSWER_WAIT));
        let ours = self.rng.array();
        if let Some(entry) = self.entries.get_mut(&host) {
            entry.meets = Meets { ours, ..Meets::default() };
            entry.agreed = None;
        }
        self.ask(now, host);
    }

    /// Lets a host wait for the next attempt, which may come at once.
    pub(crate) fn wait(&mut self, now: Time, host: HostId) {
        self.set(host, Phase::Waiting(now));
    }

    /// Puts a host into a phase.
    fn set(&mut self, host: HostId, phase: Phase) {
        let entry = self.entries.entry(host).or_insert_with(|| Entry {
            phase,
            failures: 0,
            keep: false,
            terms: (Level::Encrypt, Why::Both),
            meets: Meets::default(),
            asking: None,
            nearing: None,
            asked: None,
            agreed: None,
            relayed: None,
        });
        entry.phase = phase;
        // Where both asked at once each may hear the other first. It goes on until it is answered:
        // the other may not know that it is heard.
        if !matches!(phase, Phase::Asked(_) | Phase::Making(_)) {
            entry.asking = None;
        }
        if !matches!(phase, Phase::Making(_)) {
            entry.nearing = None;
        }
        let entry = *entry;
        self.look_at = [self.look_at, self.due(&entry)].into_iter().flatten().min();
    }

    /// Traffic with the host took the link.
    pub fn used(&mut self, now: Time, host: HostId) {
        if let Some(Entry { phase: Phase::Up(last), .. }) = self.entries.get_mut(&host) {
            *last = now;
        }
    }

    /// The link with the host came up or went down.
    pub fn link_changed(&mut self, now: Time, host: HostId, up: bool) {
        let Some(entry) = self.entries.get_mut(&host) else { return };
        match (entry.phase, up) {
            (Phase::Making(_), true) => {
                (entry.failures, entry.relayed) = (0, None);
                self.stats.up += 1;
                self.set(host, Phase::Up(now));
            }
            (Phase::Up(_), false) => {
                self.stats.lost += 1;
                let probed = entry.meets.probed;
                self.set(host, Phase::Making(now + MAKING_WAIT));
                // A translator may have forgotten the link, and then nobody can call.
                if probed {
                    self.ask_again(now, host);
                }
            }
            _ => {}
        }
    }

    /// Forgets a host: its number may be given to another.
    pub fn forget(&mut self, host: HostId) {
        let gone = self.entries.remove(&host);
        self.levels.forget(host);
        self.asks.remove(&host);
        self.messages.retain(|(to, _)| *to != host);
        if gone.is_some_and(|entry| entry.has_link()) {
            self.tell(DirectEvent::Remove(host));
        }
    }

    /// Takes a host's message; `listed` is its endpoint in the list of hosts.
    ///
    /// Errors: `not_allowed` for an answer without a request; `table_full` where `links_max` links
    /// exist; `direct_budget` where the host asks or answers too often.
    pub fn handle_message(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        listed: Option<SocketAddr>,
    ) -> Result<(), DropReason> {
        if self.is_repeated(now, host, said) {
            if said.kind == DirectKind::Ask {
                self.say(host, DirectKind::Yes);
            }
            return Ok(());
        }
        let phase = self.entries.get(&host).map(|entry| entry.phase);
        let has_link = matches!(phase, Some(Phase::Making(_) | Phase::Up(_)));
        let again = said.kind == DirectKind::Yes && has_link;
        if said.kind == DirectKind::Ask || again {
            let fresh = Asks { left: ASKS_MAX, since: now };
            self.asks.entry(host).or_insert(fresh).take(now)?;
        }
        match (said.kind, phase) {
            (DirectKind::Ask, phase) => self.asked(now, host, said, listed, phase),
            (DirectKind::Yes, Some(Phase::Asked(_) | Phase::Making(_) | Phase::Up(_))) => {
                self.agreed(now, host, said, listed)
            }
            (DirectKind::End, Some(Phase::Up(_) | Phase::Making(_))) => {
                self.stats.trimmed += 1;
                self.close(now, host);
                Ok(())
            }
            (DirectKind::End, Some(_)) => Ok(()),
            (DirectKind::Near, Some(Phase::Making(_))) => self.near(host, said),
            _ => Err(DropReason::NotAllowed),
        }
    }

    fn agreed(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        listed: Option<SocketAddr>,
    ) -> Result<(), DropReason> {
        let taken = Some(self.taken(now, host, said));
        let entry = self.entries.get_mut(&host).ok_or(DropReason::NotAllowed)?;
        let ours = entry.meets.ours;
        if said.meeting.as_ref().is_some_and(|theirs| theirs.id != ours) {
            return Err(DropReason::UnexpectedReply);
        }
        let again = core::mem::replace(&mut entry.meets.again, false);
        (entry.asking, entry.agreed) = (None, taken);
        match entry.phase {
            Phase::Up(_) if again => self.meet_again(now, host, said),
            Phase::Up(_) => return Err(DropReason::NotAllowed),
            _ => self.open(now, host, said, said.endpoint.or(listed)),
        }
        Ok(())
    }

    fn asked(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        listed: Option<SocketAddr>,
        phase: Option<Phase>,
    ) -> Result<(), DropReason> {
        let has_link = self.entries.get(&host).is_some_and(Entry::has_link);
        if !has_link && self.links() >= self.config.links_max {
            self.stats.full += 1;
            return Err(DropReason::TableFull);
        }
        self.stats.agreed += 1;
        let taken = Some(self.taken(now, host, said));
        if !self.entries.contains_key(&host) {
            self.set(host, Phase::Waiting(now));
        }
        if let Some(entry) = self.entries.get_mut(&host) {
            entry.asked = taken;
            if let Some(theirs) = &said.meeting {
                entry.meets.theirs = theirs.id;
            }
        }
        self.say(host, DirectKind::Yes);
        let terms = self.terms_with(host, said);
        let entry = self.entries.get_mut(&host).filter(|entry| entry.terms.0 == terms.0);
        match (phase, entry) {
            // The other end missed the answer, or has restarted, and calls again. The message may
            // give another reason for the same level.
            (Some(Phase::Up(_)), Some(entry)) => {
                entry.terms = terms;
                self.levels.claim(host, said);
                self.meet_again(now, host, said);
            }
            // A host with an endpoint that is asked waits to be called.
            _ if self.config.endpoint.is_some() => self.open(now, host, said, None),
            _ => self.open(now, host, said, said.endpoint.or(listed)),
        }
        Ok(())
    }

    /// Asks the owner to make the link. With no endpoint to call, the other end must call.
    fn open(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        endpoint: Option<SocketAddr>,
    ) {
        let (level, why) = self.terms_with(host, said);
        self.levels.claim(host, said);
        let keep = said.keep;
        let failures = self.entries.get(&host).map_or(0, |entry| entry.failures);
        let before = self.entries.get(&host).copied().filter(Entry::has_link);
        let meets = endpoint.is_none() && self.config.endpoint.is_none();
        let places = match self.places(said.meeting.as_ref()) {
            Err(why) if meets => {
                self.fail(now, host, failures);
                return self.note_relayed(host, why);
            }
            places => places.ok().filter(|_| meets),
        };
        if before.is_some_and(|before| before.terms.0 != level) {
            self.tell(DirectEvent::Remove(host));
        }
        // A repeated message doesn't extend the time.
        let phase = match before.map(|before| before.phase) {
            Some(making @ Phase::Making(_)) => making,
            _ => Phase::Making(now + MAKING_WAIT),
        };
        self.set(host, phase);
        if let Some(entry) = self.entries.get_mut(&host) {
            (entry.keep, entry.terms) = (keep, (level, why));
        }
        self.tell(DirectEvent::Open { host, endpoint, level, why });
        if let Some(places) = places {
            self.meet(now, host, said, places);
        }
    }

    fn close(&mut self, now: Time, host: HostId) {
        self.set(host, Phase::Closing(now + CLOSING_WAIT));
        self.tell(DirectEvent::Close(host));
    }

    fn fail(&mut self, now: Time, host: HostId, failures: u32) {
        self.stats.failed += 1;
        let wait = BACK_OFF.saturating_mul(1 << failures.min(16)).min(BACK_OFF_MAX);
        let had_link = self.entries.get(&host).is_some_and(Entry::has_link);
        self.set(host, Phase::Waiting(now + wait));
        if let Some(entry) = self.entries.get_mut(&host) {
            (entry.failures, entry.keep) = (failures.saturating_add(1), false);
        }
        if had_link {
            self.tell(DirectEvent::Remove(host));
        }
    }

    fn note_relayed(&mut self, host: HostId, why: Relayed) {
        if let Some(entry) = self.entries.get_mut(&host) {
            entry.relayed = Some(why);
        }
    }

    /// When an entry has something to do.
    fn due(&self, entry: &Entry) -> Option<Time> {
        [self.over_at(entry), entry.repeat_at()].into_iter().flatten().min()
    }

    /// When the phase of an entry is over.
    fn over_at(&self, entry: &Entry) -> Option<Time> {
        match entry.phase {
            Phase::Waiting(at) => self.config.proactive.then_some(at),
            Phase::Asked(at) | Phase::Making(at) | Phase::Closing(at) => Some(at),
            Phase::Up(last) => {
                (!self.config.proactive && !entry.keep).then(|| last + self.config.idle)
            }
        }
    }

    /// Handles what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        if core::mem::take(&mut self.moved) {
            self.tell_moved(now);
        }
        let is_due = |entry: &Entry| self.due(entry).is_some_and(|at| at <= now);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        let due: Vec<(HostId, Entry)> = due.map(|(host, entry)| (*host, *entry)).collect();
        for (host, entry) in due {
            self.repeat(now, host);
            if self.over_at(&entry).is_none_or(|at| at > now) {
                continue;
            }
            match entry.phase {
                Phase::Waiting(_) => self.wanted(now, host),
                Phase::Asked(_) => {
                    self.fail(now, host, entry.failures);
                    self.note_relayed(host, Relayed::NoAnswer);
                }
                Phase::Making(_) => {
                    self.fail(now, host, entry.failures);
                    self.note_relayed(
                        host,
                        match entry.meets {
                            Meets { probed: false, .. } => Relayed::NoCall,
                            Meets { hard: true, .. } => Relayed::OneHard,
                            Meets { .. } => Relayed::NoProbe,
                        },
                    );
                }
                Phase::Up(_) => {
                    self.stats.trimmed += 1;
                    self.say(host, DirectKind::End);
                    self.close(now, host);
                }
                Phase::Closing(_) => {
                    self.set(host, Phase::Waiting(now));
                    self.tell(DirectEvent::Remove(host));
                }
            }
        }
        self.look_at = self.entries.values().filter_map(|entry| self.due(entry)).min();
    }

    /// When there is something to do, and why.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.messages.is_empty() || !self.events.is_empty() {
            return Some((Time::ZERO, "direct link to tell of"));
        }
        self.look_at.map(|at| (at, "direct link"))
    }

    /// Takes the next message and its destination.
    pub fn poll_message(&mut self) -> Option<(HostId, DirectMessage)> {
        self.messages.pop_front()
    }

    /// Takes the next action for the owner of the links.
    pub fn poll_event(&mut self) -> Option<DirectEvent> {
        self.events.pop_front()
    }
}
