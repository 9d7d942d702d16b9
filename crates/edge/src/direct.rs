//! Direct links: when to make one, how to protect its cells, when to end it. This machine decides;
//! the caller owns the links.
//!
//! ```text
//! traffic to a host -> Ask ..... routers ..... -> that host agrees -> Yes, and its end is ready
//!                  Open and call <- Yes ..... routers .....
//! ```
//!
//! No frame is sent past the routers before both hosts agree. If a host wants no direct link, an
//! observer at its wire therefore learns nothing.

mod again;
mod permission;

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use shoal_crypto::Rng;
use shoal_wire::{DirectKind, DirectMessage, DropReason, Level, Meeting, MeetingId, Time};

use crate::book::HostId;
use crate::levels::{LevelReason, SecuritySettings};
use crate::meet::{MeetingState, NoDirectReason, Reachability};
use again::HandledMessage;
pub(crate) use again::RepeatTimer;

/// Longest wait for an answer, a handshake with the host included.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// Longest time that a link may be down, at its start or later, before it is given up.
const MAKING_WAIT: Duration = Duration::from_secs(10);
/// Time for which a closing link still accepts cells.
const CLOSING_WAIT: Duration = Duration::from_secs(5);
/// Wait after the first failure. Each further failure doubles it, up to [`BACK_OFF_MAX`].
const BACK_OFF: Duration = Duration::from_secs(5);
const BACK_OFF_MAX: Duration = Duration::from_secs(300);
/// Number of calls in a row that a host may cause to the endpoint that it names, by asking or
/// answering again. The limit exists because the endpoint may belong to somebody else.
const ASKS_MAX: u32 = 4;
/// Time after which one more call is allowed.
const ASKS_GAP: Duration = Duration::from_secs(30);
/// Largest number of messages that may wait. The owner takes messages and events after every call.
const WAITING_MAX: usize = 1_024;

#[derive(Clone, Debug, PartialEq)]
pub struct DirectConfig {
    /// Make and keep links with all hosts. False: make a link when there is traffic.
    pub proactive: bool,
    /// Endpoint at which other hosts can call this one.
    pub endpoint: Option<SocketAddr>,
    /// Weakest level that this host accepts. A shared security group, or an `encrypt_with` entry
    /// for the host, requires encryption instead.
    pub weakest: Level,
    /// Hashed names of the security groups in this host's own file.
    pub groups: Vec<[u8; 8]>,
    /// A link without traffic for this long ends.
    pub idle: Duration,
    /// Largest number of links at the same time.
    pub links_max: usize,
}

/// An action that the owner of the links must take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectEvent {
    /// Make a link with the host, or call the host again on the existing link.
    Open {
        host: HostId,
        /// Endpoint to call. `None`: wait for a call from the host.
        endpoint: Option<SocketAddr>,
        /// Weakest level to accept.
        level: Level,
        /// Reason for the level.
        why: LevelReason,
    },
    /// Send probes to these endpoints of the host, in addition to earlier ones of the same attempt.
    /// The link already exists.
    Meet {
        host: HostId,
        /// Identifies the attempt.
        id: MeetingId,
        /// True if this end calls the endpoint from which the first probe comes. The other end
        /// answers probes.
        asker: bool,
        /// Endpoints at which the host may be.
        places: Vec<SocketAddr>,
    },
    /// Send nothing more over the link; arriving cells are still accepted.
    Close(HostId),
    /// End the link.
    Remove(HostId),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectStats {
    /// Requests sent.
    pub asked: u64,
    /// Requests answered with yes.
    pub agreed: u64,
    /// Links that came up.
    pub up: u64,
    /// Links that were lost.
    pub lost: u64,
    /// Links that either end closed for lack of traffic.
    pub trimmed: u64,
    /// Attempts that got no answer or whose link did not come up.
    pub failed: u64,
    /// Requests left unanswered because `links_max` links exist.
    pub full: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectPhase {
    /// No link. Earliest time of the next attempt.
    Waiting(Time),
    /// A request was sent. Time at which its answer is overdue.
    Asked(Time),
    /// The link exists but is down. Time at which it is given up.
    Making(Time),
    /// The link is in use. Time of its last traffic.
    Up(Time),
    /// The link is closing. Time at which it is removed.
    Closing(Time),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DirectEntry {
    phase: DirectPhase,
    /// Failures in a row.
    failures: u32,
    /// True if the other end is proactive. The link then stays up without traffic.
    keep: bool,
    pub(crate) terms: (Level, LevelReason),
    pub(crate) meets: MeetingState,
    /// Repeats of a request that is still unanswered.
    asking: Option<RepeatTimer>,
    /// Repeats of the message with this host's private addresses, and its attempt.
    pub(crate) nearing: Option<(RepeatTimer, MeetingId)>,
    /// The last request of the other host that was handled, and (`agreed`) its last answer.
    asked: Option<HandledMessage>,
    agreed: Option<HandledMessage>,
    /// Reason why the last attempt made no link.
    pub(crate) relayed: Option<NoDirectReason>,
}

/// Budget of calls that a host may cause to the endpoint that it names.
#[derive(Clone, Copy, Debug)]
struct CallBudget {
    left: u32,
    since: Time,
}

impl CallBudget {
    fn take(&mut self, now: Time) -> Result<(), DropReason> {
        let earned = now.since(self.since).as_secs() / ASKS_GAP.as_secs();
        let earned = u32::try_from(earned).unwrap_or(ASKS_MAX).min(ASKS_MAX - self.left);
        self.left += earned;
        self.since = if self.left == ASKS_MAX { now } else { self.since + ASKS_GAP * earned };
        self.left = self.left.checked_sub(1).ok_or(DropReason::DirectBudget)?;
        Ok(())
    }
}

impl DirectEntry {
    pub(crate) fn is_up(&self) -> bool {
        matches!(self.phase, DirectPhase::Up(_))
    }

    pub(crate) fn has_link(&self) -> bool {
        matches!(self.phase, DirectPhase::Making(_) | DirectPhase::Up(_) | DirectPhase::Closing(_))
    }
}

/// The machine; see the module's documentation. There is at most one entry per host.
#[derive(Debug)]
pub struct DirectMachine {
    pub(crate) config: DirectConfig,
    pub(crate) entries: BTreeMap<HostId, DirectEntry>,
    pub(crate) reach: Reachability,
    pub(crate) levels: SecuritySettings,
    rng: Rng,
    asks: BTreeMap<HostId, CallBudget>,
    messages: VecDeque<(HostId, DirectMessage)>,
    events: VecDeque<DirectEvent>,
    stats: DirectStats,
    /// False: no links; see [`Self::allow`].
    is_allowed: bool,
    /// Time at which to check the entries, at the latest when the first of them is due.
    look_at: Option<Time>,
    /// True if this host's observed addresses changed and no host was told yet.
    moved: bool,
}

impl DirectMachine {
    /// A machine without links or requests. `seed` seeds the ids of attempts, which nobody may
    /// guess.
    pub fn new(config: DirectConfig, seed: [u8; 32]) -> DirectMachine {
        DirectMachine {
            config,
            entries: BTreeMap::new(),
            reach: Reachability::default(),
            levels: SecuritySettings::default(),
            rng: Rng::new(seed),
            asks: BTreeMap::new(),
            messages: VecDeque::new(),
            events: VecDeque::new(),
            stats: DirectStats::default(),
            is_allowed: true,
            look_at: None,
            moved: false,
        }
    }

    pub fn stats(&self) -> DirectStats {
        self.stats
    }

    /// The terms agreed with a host. None without a link.
    pub fn terms(&self, host: HostId) -> Option<(Level, LevelReason)> {
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

    /// Notes that traffic for the host went through routers.
    pub fn wanted(&mut self, now: Time, host: HostId) {
        let phase = self.entries.get(&host).map(|entry| entry.phase);
        let is_free = |phase| matches!(phase, DirectPhase::Waiting(until) if until <= now);
        if !self.is_allowed || !phase.is_none_or(is_free) {
            return;
        }
        if self.links() >= self.config.links_max {
            self.set(host, DirectPhase::Waiting(now + BACK_OFF));
            return self.note_relayed(host, NoDirectReason::Full);
        }
        self.set(host, DirectPhase::Asked(now + ANSWER_WAIT));
        let ours = self.rng.array();
        if let Some(entry) = self.entries.get_mut(&host) {
            entry.meets = MeetingState { ours, ..MeetingState::default() };
            entry.agreed = None;
        }
        self.ask(now, host);
    }

    /// Puts a host into the waiting phase; the next attempt may begin at once.
    pub(crate) fn wait(&mut self, now: Time, host: HostId) {
        self.set(host, DirectPhase::Waiting(now));
    }

    fn set(&mut self, host: HostId, phase: DirectPhase) {
        let entry = self.entries.entry(host).or_insert_with(|| DirectEntry {
            phase,
            failures: 0,
            keep: false,
            terms: (Level::Encrypt, LevelReason::Both),
            meets: MeetingState::default(),
            asking: None,
            nearing: None,
            asked: None,
            agreed: None,
            relayed: None,
        });
        entry.phase = phase;
        // The request is repeated also in the phase `Making`. If both hosts ask at once, each may
        // get the other's request before an answer. A host can't tell if its own request arrived.
        if !matches!(phase, DirectPhase::Asked(_) | DirectPhase::Making(_)) {
            entry.asking = None;
        }
        if !matches!(phase, DirectPhase::Making(_)) {
            entry.nearing = None;
        }
        let entry = *entry;
        self.look_at = [self.look_at, self.due(&entry)].into_iter().flatten().min();
    }

    /// Notes that traffic with the host used the link.
    pub fn used(&mut self, now: Time, host: HostId) {
        if let Some(DirectEntry { phase: DirectPhase::Up(last), .. }) = self.entries.get_mut(&host)
        {
            *last = now;
        }
    }

    /// Notes that the link with the host came up or went down.
    pub fn link_changed(&mut self, now: Time, host: HostId, up: bool) {
        let Some(entry) = self.entries.get_mut(&host) else { return };
        match (entry.phase, up) {
            (DirectPhase::Making(_), true) => {
                (entry.failures, entry.relayed) = (0, None);
                self.stats.up += 1;
                self.set(host, DirectPhase::Up(now));
            }
            (DirectPhase::Up(_), false) => {
                self.stats.lost += 1;
                let probed = entry.meets.probed;
                self.set(host, DirectPhase::Making(now + MAKING_WAIT));
                // A translator may have forgotten the link's mapping. Neither host can call the
                // other then.
                if probed {
                    self.ask_again(now, host);
                }
            }
            _ => {}
        }
    }

    /// Forgets a host, since its id may be given to another one.
    pub fn forget(&mut self, host: HostId) {
        let gone = self.entries.remove(&host);
        self.levels.forget(host);
        self.asks.remove(&host);
        self.messages.retain(|(to, _)| *to != host);
        if gone.is_some_and(|entry| entry.has_link()) {
            self.tell(DirectEvent::Remove(host));
        }
    }

    /// Handles a host's message. `listed` is its endpoint in the list of hosts.
    ///
    /// Errors: `not_allowed` for an answer without a request, and for any request while links are
    /// not allowed; `table_full` if `links_max` links exist; `direct_budget` if the host asks or
    /// answers too often.
    pub fn handle_message(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        listed: Option<SocketAddr>,
    ) -> Result<(), DropReason> {
        self.check_allowed(said.kind)?;
        if self.is_repeated(now, host, said) {
            if said.kind == DirectKind::Ask {
                self.say(host, DirectKind::Yes);
            }
            return Ok(());
        }
        let phase = self.entries.get(&host).map(|entry| entry.phase);
        let has_link = matches!(phase, Some(DirectPhase::Making(_) | DirectPhase::Up(_)));
        let again = said.kind == DirectKind::Yes && has_link;
        if said.kind == DirectKind::Ask || again {
            let fresh = CallBudget { left: ASKS_MAX, since: now };
            self.asks.entry(host).or_insert(fresh).take(now)?;
        }
        match (said.kind, phase) {
            (DirectKind::Ask, phase) => self.asked(now, host, said, listed, phase),
            (
                DirectKind::Yes,
                Some(DirectPhase::Asked(_) | DirectPhase::Making(_) | DirectPhase::Up(_)),
            ) => self.agreed(now, host, said, listed),
            (DirectKind::End, Some(DirectPhase::Up(_) | DirectPhase::Making(_))) => {
                self.stats.trimmed += 1;
                self.close(now, host);
                Ok(())
            }
            (DirectKind::End, Some(_)) => Ok(()),
            (DirectKind::Near, Some(DirectPhase::Making(_))) => self.near(host, said),
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
            DirectPhase::Up(_) if again => self.meet_again(now, host, said),
            DirectPhase::Up(_) => return Err(DropReason::NotAllowed),
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
        phase: Option<DirectPhase>,
    ) -> Result<(), DropReason> {
        let has_link = self.entries.get(&host).is_some_and(DirectEntry::has_link);
        if !has_link && self.links() >= self.config.links_max {
            self.stats.full += 1;
            return Err(DropReason::TableFull);
        }
        self.stats.agreed += 1;
        let taken = Some(self.taken(now, host, said));
        if !self.entries.contains_key(&host) {
            self.set(host, DirectPhase::Waiting(now));
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
            // The other end missed the answer, or has restarted, and asks again. Its message may
            // give another reason for the same level.
            (Some(DirectPhase::Up(_)), Some(entry)) => {
                entry.terms = terms;
                self.levels.claim(host, said);
                self.meet_again(now, host, said);
            }
            // If this host has an endpoint and was asked, it waits for the call.
            _ if self.config.endpoint.is_some() => self.open(now, host, said, None),
            _ => self.open(now, host, said, said.endpoint.or(listed)),
        }
        Ok(())
    }

    /// Asks the owner to make the link. Without an endpoint to call, the other end must call.
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
        let before = self.entries.get(&host).copied().filter(DirectEntry::has_link);
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
        // A repeated message doesn't extend the deadline.
        let phase = match before.map(|before| before.phase) {
            Some(making @ DirectPhase::Making(_)) => making,
            _ => DirectPhase::Making(now + MAKING_WAIT),
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
        self.set(host, DirectPhase::Closing(now + CLOSING_WAIT));
        self.tell(DirectEvent::Close(host));
    }

    fn fail(&mut self, now: Time, host: HostId, failures: u32) {
        self.stats.failed += 1;
        let wait = BACK_OFF.saturating_mul(1 << failures.min(16)).min(BACK_OFF_MAX);
        let had_link = self.entries.get(&host).is_some_and(DirectEntry::has_link);
        self.set(host, DirectPhase::Waiting(now + wait));
        if let Some(entry) = self.entries.get_mut(&host) {
            (entry.failures, entry.keep) = (failures.saturating_add(1), false);
        }
        if had_link {
            self.tell(DirectEvent::Remove(host));
        }
    }

    fn note_relayed(&mut self, host: HostId, why: NoDirectReason) {
        if let Some(entry) = self.entries.get_mut(&host) {
            entry.relayed = Some(why);
        }
    }

    /// Time at which an entry is due.
    fn due(&self, entry: &DirectEntry) -> Option<Time> {
        [self.over_at(entry), entry.repeat_at()].into_iter().flatten().min()
    }

    /// Time at which the phase of an entry ends.
    fn over_at(&self, entry: &DirectEntry) -> Option<Time> {
        match entry.phase {
            DirectPhase::Waiting(at) => (self.config.proactive && self.is_allowed).then_some(at),
            DirectPhase::Asked(at) | DirectPhase::Making(at) | DirectPhase::Closing(at) => Some(at),
            DirectPhase::Up(last) => {
                (!self.config.proactive && !entry.keep).then(|| last + self.config.idle)
            }
        }
    }

    /// Handles all entries that are due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        if core::mem::take(&mut self.moved) {
            self.tell_moved(now);
        }
        let is_due = |entry: &DirectEntry| self.due(entry).is_some_and(|at| at <= now);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        let due: Vec<(HostId, DirectEntry)> = due.map(|(host, entry)| (*host, *entry)).collect();
        for (host, entry) in due {
            self.repeat(now, host);
            if self.over_at(&entry).is_none_or(|at| at > now) {
                continue;
            }
            match entry.phase {
                DirectPhase::Waiting(_) => self.wanted(now, host),
                DirectPhase::Asked(_) => {
                    self.fail(now, host, entry.failures);
                    self.note_relayed(host, NoDirectReason::NoAnswer);
                }
                DirectPhase::Making(_) => {
                    self.fail(now, host, entry.failures);
                    self.note_relayed(
                        host,
                        match entry.meets {
                            MeetingState { probed: false, .. } => NoDirectReason::NoCall,
                            MeetingState { hard: true, .. } => NoDirectReason::OneHard,
                            MeetingState { .. } => NoDirectReason::NoProbe,
                        },
                    );
                }
                DirectPhase::Up(_) => {
                    self.stats.trimmed += 1;
                    self.say(host, DirectKind::End);
                    self.close(now, host);
                }
                DirectPhase::Closing(_) => {
                    self.set(host, DirectPhase::Waiting(now));
                    self.tell(DirectEvent::Remove(host));
                }
            }
        }
        self.look_at = self.entries.values().filter_map(|entry| self.due(entry)).min();
    }

    /// Time of the next event, and its reason.
    pub fn poll_timeout(&self) -> Option<(Time, &'static str)> {
        if !self.messages.is_empty() || !self.events.is_empty() {
            return Some((Time::ZERO, "direct link to tell of"));
        }
        self.look_at.map(|at| (at, "direct link"))
    }

    /// Takes the next message and its receiver.
    pub fn poll_message(&mut self) -> Option<(HostId, DirectMessage)> {
        self.messages.pop_front()
    }

    /// Takes the next action for the owner of the links.
    pub fn poll_event(&mut self) -> Option<DirectEvent> {
        self.events.pop_front()
    }
}
