//! Links with other hosts past the routers: when one is made, how well its cells are protected,
//! when it ends. The links themselves are the owner's; here stands who wants them.
//!
//! ```text
//! traffic to a host -> Ask ..... routers ..... -> it wants one too -> Yes, and its end is ready
//!                  Open and call <- Yes ..... routers .....
//! ```
//!
//! Nothing is sent past the routers before both hosts have said that they want it: who watches
//! the wire of a host that wants none learns nothing by it.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;

use shoal_wire::{DirectKind, DirectMessage, DropReason, Level, Time};

use crate::book::HostId;

/// How long an answer may take: handshakes with the host included.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// How long a link may take to come up, or to come up again, before it is given up.
const MAKING_WAIT: Duration = Duration::from_secs(10);
/// How long a link that ends still takes what was on its way.
const CLOSING_WAIT: Duration = Duration::from_secs(5);
/// First wait after a failure; doubles,
const BACK_OFF: Duration = Duration::from_secs(5);
/// up to this.
const BACK_OFF_MAX: Duration = Duration::from_secs(300);
/// Times in a row that a host may have its endpoint called, by asking or by answering again,
const ASKS_MAX: u32 = 4;
/// and how soon it may once more. What it tells may be another's endpoint.
const ASKS_GAP: Duration = Duration::from_secs(30);
/// Messages and events that may wait to be taken; the owner takes them after every call.
const WAITING_MAX: usize = 1_024;

/// What this host wants of direct links.
#[derive(Clone, Debug, PartialEq)]
pub struct DirectConfig {
    /// Make them with every host and keep them, instead of when there is traffic.
    pub proactive: bool,
    /// Where other hosts can call this one.
    pub endpoint: Option<SocketAddr>,
    /// The weakest level that is taken with a host of no common group.
    pub weakest: Level,
    /// Names of the security groups of this host, hashed.
    pub groups: Vec<[u8; 8]>,
    /// A link without traffic for so long ends.
    pub idle: Duration,
    /// Links at once.
    pub links_max: usize,
}

/// Why a direct link has its level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Both ends are in one security group.
    SharedGroup,
    /// Both ends take nothing weaker.
    Both,
    /// This end takes nothing weaker.
    Ours,
    /// The other end takes nothing weaker.
    Theirs,
}

impl Why {
    /// In words.
    pub const fn words(self) -> &'static str {
        match self {
            Why::SharedGroup => "shared security group",
            Why::Both => "both ends ask for it",
            Why::Ours => "this end asks for it",
            Why::Theirs => "the other end asks for it",
        }
    }
}

/// The level of cells between two hosts, from what each says: the weakest level it takes, and its
/// security groups. Both ends come to the same.
pub fn agree(ours: (Level, &[[u8; 8]]), theirs: (Level, &[[u8; 8]])) -> (Level, Why) {
    if ours.1.iter().any(|group| theirs.1.contains(group)) {
        return (Level::Encrypt, Why::SharedGroup);
    }
    let why = match ours.0.cmp(&theirs.0) {
        core::cmp::Ordering::Less => Why::Ours,
        core::cmp::Ordering::Equal => Why::Both,
        core::cmp::Ordering::Greater => Why::Theirs,
    };
    (ours.0.min(theirs.0), why)
}

/// What the owner of the links is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectEvent {
    /// Make a link with the host, or call it on the link that there is.
    Open {
        /// With whom.
        host: HostId,
        /// Where to call it; `None` waits for it to call.
        endpoint: Option<SocketAddr>,
        /// The weakest level to take.
        level: Level,
        /// Why.
        why: Why,
    },
    /// Send nothing more over the link; what comes is still taken.
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
    /// Requests not answered since there are links enough.
    pub full: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No link, and none is to be before this.
    Waiting(Time),
    /// Asked; until when the answer may come.
    Asked(Time),
    /// The link is there and not up yet, or no more; until when it may come up.
    Making(Time),
    /// In use; when it last was.
    Up(Time),
    /// Ends at this time.
    Closing(Time),
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    phase: Phase,
    /// Attempts in a row that came to nothing.
    failures: u32,
    /// The other end keeps it.
    keep: bool,
    terms: (Level, Why),
}

/// How often a host may still have its endpoint called.
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
    fn has_link(&self) -> bool {
        matches!(self.phase, Phase::Making(_) | Phase::Up(_) | Phase::Closing(_))
    }
}

/// The machine; see the module's documentation. Bounded by the hosts that it is told of.
#[derive(Debug)]
pub struct Direct {
    config: DirectConfig,
    entries: BTreeMap<HostId, Entry>,
    asks: BTreeMap<HostId, Asks>,
    messages: VecDeque<(HostId, DirectMessage)>,
    events: VecDeque<DirectEvent>,
    stats: DirectStats,
    /// When to look at the entries: no later than the first of them wants it.
    look_at: Option<Time>,
}

impl Direct {
    /// Nobody was asked yet.
    pub fn new(config: DirectConfig) -> Direct {
        Direct {
            config,
            entries: BTreeMap::new(),
            asks: BTreeMap::new(),
            messages: VecDeque::new(),
            events: VecDeque::new(),
            stats: DirectStats::default(),
            look_at: None,
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
        let DirectConfig { proactive, endpoint, weakest, ref groups, .. } = self.config;
        let (level, keep, groups) = (weakest, proactive, groups.clone());
        if self.messages.len() < WAITING_MAX {
            let said = DirectMessage { kind, level, keep, endpoint, groups };
            self.messages.push_back((host, said));
        }
    }

    fn tell(&mut self, event: DirectEvent) {
        self.events.push_back(event);
    }

    /// There is traffic for the host, and it goes through routers.
    pub fn wanted(&mut self, now: Time, host: HostId) {
        let phase = self.entries.get(&host).map(|entry| entry.phase);
        if !phase.is_none_or(|phase| matches!(phase, Phase::Waiting(until) if until <= now)) {
            return;
        }
        if self.links() >= self.config.links_max {
            return self.set(host, Phase::Waiting(now + BACK_OFF));
        }
        self.set(host, Phase::Asked(now + ANSWER_WAIT));
        self.stats.asked += 1;
        self.say(host, DirectKind::Ask);
    }

    /// Puts a host into a phase.
    fn set(&mut self, host: HostId, phase: Phase) {
        let (failures, keep, terms) = (0, false, (Level::Encrypt, Why::Both));
        let entry = self.entries.entry(host).or_insert(Entry { phase, failures, keep, terms });
        entry.phase = phase;
        let entry = *entry;
        self.look_at = [self.look_at, self.due(&entry)].into_iter().flatten().min();
    }

    /// Traffic with the host took the link.
    pub fn used(&mut self, now: Time, host: HostId) {
        if let Some(Entry { phase: Phase::Up(last), .. }) = self.entries.get_mut(&host) {
            *last = now;
        }
    }

    /// The link with the host carries, or does no more.
    pub fn link_changed(&mut self, now: Time, host: HostId, up: bool) {
        let Some(entry) = self.entries.get_mut(&host) else { return };
        match (entry.phase, up) {
            (Phase::Making(_), true) => {
                entry.failures = 0;
                self.stats.up += 1;
                self.set(host, Phase::Up(now));
            }
            (Phase::Up(_), false) => {
                self.stats.lost += 1;
                self.set(host, Phase::Making(now + MAKING_WAIT));
            }
            _ => {}
        }
    }

    /// Forgets a host: its number may be given to another.
    pub fn forget(&mut self, host: HostId) {
        let gone = self.entries.remove(&host);
        self.asks.remove(&host);
        self.messages.retain(|(to, _)| *to != host);
        if gone.is_some_and(|entry| entry.has_link()) {
            self.tell(DirectEvent::Remove(host));
        }
    }

    /// A host said something; `listed` is where the list of hosts says that it can be called.
    ///
    /// Errors: `not_allowed` for an answer to nothing; `table_full` where there are links enough;
    /// `direct_budget` where it says so too often.
    pub fn handle_message(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        listed: Option<SocketAddr>,
    ) -> Result<(), DropReason> {
        let phase = self.entries.get(&host).map(|entry| entry.phase);
        let again = said.kind == DirectKind::Yes && matches!(phase, Some(Phase::Making(_)));
        if said.kind == DirectKind::Ask || again {
            let fresh = Asks { left: ASKS_MAX, since: now };
            self.asks.entry(host).or_insert(fresh).take(now)?;
        }
        match (said.kind, phase) {
            (DirectKind::Ask, phase) => self.asked(now, host, said, listed, phase),
            (DirectKind::Yes, Some(Phase::Asked(_) | Phase::Making(_))) => {
                self.open(now, host, said, said.endpoint.or(listed));
                Ok(())
            }
            (DirectKind::End, Some(Phase::Up(_) | Phase::Making(_))) => {
                self.stats.trimmed += 1;
                self.close(now, host);
                Ok(())
            }
            (DirectKind::End, Some(_)) => Ok(()),
            _ => Err(DropReason::NotAllowed),
        }
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
        self.say(host, DirectKind::Yes);
        let terms = self.terms_with(said);
        let entry = self.entries.get_mut(&host).filter(|entry| entry.terms.0 == terms.0);
        match (phase, entry) {
            // It was not told yet, or has restarted: it calls again. What it says of itself may
            // give another reason for the same level.
            (Some(Phase::Up(_)), Some(entry)) => entry.terms = terms,
            // The one who is asked waits to be called, if it can be.
            _ if self.config.endpoint.is_some() => self.open(now, host, said, None),
            _ => self.open(now, host, said, said.endpoint.or(listed)),
        }
        Ok(())
    }

    fn terms_with(&self, said: &DirectMessage) -> (Level, Why) {
        let ours = (self.config.weakest, &self.config.groups[..]);
        agree(ours, (said.level, &said.groups))
    }

    /// Has the link made. Without an endpoint it is the other end that calls, if it knows where.
    fn open(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        endpoint: Option<SocketAddr>,
    ) {
        let (level, why) = self.terms_with(said);
        let keep = said.keep;
        let failures = self.entries.get(&host).map_or(0, |entry| entry.failures);
        let before = self.entries.get(&host).copied().filter(Entry::has_link);
        if endpoint.is_none() && self.config.endpoint.is_none() {
            return self.fail(now, host, failures);
        }
        if before.is_some_and(|before| before.terms.0 != level) {
            self.tell(DirectEvent::Remove(host));
        }
        // Who says it again gets no more time by it.
        let phase = match before.map(|before| before.phase) {
            Some(making @ Phase::Making(_)) => making,
            _ => Phase::Making(now + MAKING_WAIT),
        };
        self.entries.insert(host, Entry { phase, failures, keep, terms: (level, why) });
        self.set(host, phase);
        self.tell(DirectEvent::Open { host, endpoint, level, why });
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

    /// When an entry wants to be looked at.
    fn due(&self, entry: &Entry) -> Option<Time> {
        match entry.phase {
            Phase::Waiting(at) => self.config.proactive.then_some(at),
            Phase::Asked(at) | Phase::Making(at) | Phase::Closing(at) => Some(at),
            Phase::Up(last) => {
                (!self.config.proactive && !entry.keep).then(|| last + self.config.idle)
            }
        }
    }

    /// Does what time asks for.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let is_due = |entry: &Entry| self.due(entry).is_some_and(|at| at <= now);
        let due = self.entries.iter().filter(|(_, entry)| is_due(entry));
        let due: Vec<(HostId, Entry)> = due.map(|(host, entry)| (*host, *entry)).collect();
        for (host, entry) in due {
            match entry.phase {
                Phase::Waiting(_) => self.wanted(now, host),
                Phase::Asked(_) | Phase::Making(_) => self.fail(now, host, entry.failures),
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

    /// Takes the next message, for whom it is.
    pub fn poll_message(&mut self) -> Option<(HostId, DirectMessage)> {
        self.messages.pop_front()
    }

    /// Takes the next thing that the owner of the links is to do.
    pub fn poll_event(&mut self) -> Option<DirectEvent> {
        self.events.pop_front()
    }
}
