//! Direct links between two hosts that nobody can call (NAT traversal). Both tell their candidate
//! endpoints and send probes to each other's. The host that asked calls the endpoint from which the
//! first probe came.
//!
//! ```text
//! Ask: attempt, mapping behaviour of my translators, my candidates -> (routers) -> same in Yes
//! both seen at one address: Near, private addresses            <- (routers) -> Near
//! probes .................................. past the routers ....................... probes
//! ```
//!
//! The owner of the links sends the probes. This file decides whether they can succeed.

use std::net::SocketAddr;

use shoal_wire::{
    CandidateKind, DirectKind, DirectMessage, DropReason, EndpointCandidate, Mapping, Meeting,
    MeetingId, Time, is_private,
};

use crate::book::HostId;
use crate::direct::{DirectEvent, DirectMachine, RepeatTimer};

/// Addresses at which this host may be reached, as far as it knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reachability {
    /// Mapping behaviour of the translators between this host and the Internet.
    pub mapping: Mapping,
    /// Endpoints at which others see this host, and its global IPv6 addresses.
    pub candidates: Vec<EndpointCandidate>,
    /// Private addresses of the machine, for hosts that are seen at the same public address.
    pub private: Vec<SocketAddr>,
}

/// Reason why two hosts that want a direct link have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoDirectReason {
    /// The other host did not answer: it wants no direct link, or is offline.
    NoAnswer,
    /// Neither host can be called, and one of them has no usable candidate.
    NotSeen,
    /// Both hosts are behind hard translators, which show a new endpoint to each peer.
    BothHard,
    /// One host is behind a hard translator, and no probe came through.
    OneHard,
    /// No probe came through.
    NoProbe,
    /// The call was not answered, or the link was lost.
    NoCall,
    /// The largest number of direct links is reached.
    Full,
}

impl NoDirectReason {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            NoDirectReason::NoAnswer => "the host does not answer: it wants no link or is offline",
            NoDirectReason::NotSeen => {
                "neither can be called, and one does not know its public address"
            }
            NoDirectReason::BothHard => {
                "both translators show a new endpoint to each host, and neither forwards a port"
            }
            NoDirectReason::OneHard => {
                "one translator shows new endpoints, and the other blocks probes"
            }
            NoDirectReason::NoProbe => {
                "no probe came through: a firewall or a translator drops them"
            }
            NoDirectReason::NoCall => "the call was not answered",
            NoDirectReason::Full => "the largest number of direct links is reached",
        }
    }
}

/// State of the attempts to meet another host.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MeetingState {
    /// Attempt that this host began.
    pub(crate) ours: MeetingId,
    /// Attempt that the other host began.
    pub(crate) theirs: MeetingId,
    /// True if both hosts are seen at one address.
    pub(crate) near: bool,
    /// True if one of the two has a hard translator.
    pub(crate) hard: bool,
    /// True if probes were sent.
    pub(crate) probed: bool,
    /// True if the other host was asked again while the link exists.
    pub(crate) again: bool,
    /// Attempt for which the other host told its private addresses.
    pub(crate) told: Option<MeetingId>,
}

/// Candidates with a forwarded port. The translator lets frames from any address in at that port.
fn open_ports(candidates: &[EndpointCandidate]) -> impl Iterator<Item = &EndpointCandidate> {
    candidates.iter().filter(|one| one.kind == CandidateKind::Configured)
}

impl DirectMachine {
    /// Sets the addresses at which this host may be reached; later requests tell them. If none of
    /// the former candidates is left, hosts that were found by probes are asked again at once.
    /// Failed attempts are retried at once, then and also if a port was newly forwarded.
    pub fn set_reach(&mut self, reach: Reachability) {
        let (old, new) = (&self.reach.candidates, &reach.candidates);
        let stays = old.is_empty() || new.is_empty() || old.iter().any(|one| new.contains(one));
        // A newly forwarded port gives hopeless attempts a chance.
        let opened = open_ports(new).any(|one| !old.contains(one));
        self.reach = reach;
        if !stays || opened {
            self.look_after_move();
        }
    }

    /// Reason why a wanted direct link with a host does not exist.
    pub fn relayed(&self, host: HostId) -> Option<NoDirectReason> {
        self.entries.get(&host).filter(|entry| !entry.is_up()).and_then(|entry| entry.relayed)
    }

    /// Candidates to send in a message. None if this host can be called.
    pub(crate) fn meeting(&mut self, host: HostId, kind: DirectKind) -> Option<Meeting> {
        if self.config.endpoint.is_some() || kind == DirectKind::End {
            return None;
        }
        let meets = self.entries.get(&host).map(|entry| entry.meets).unwrap_or_default();
        let id = match kind {
            DirectKind::Ask => meets.ours,
            _ => meets.theirs,
        };
        let Reachability { mapping, candidates, .. } = &self.reach;
        let mut candidates = candidates.clone();
        candidates.truncate(Meeting::CANDIDATES_MAX);
        (id != [0; 16]).then_some(Meeting { id, mapping: *mapping, candidates })
    }

    /// Endpoints to which probes should go.
    ///
    /// Errors: the reason why probes can't succeed.
    pub(crate) fn places(
        &self,
        meeting: Option<&Meeting>,
    ) -> Result<Vec<SocketAddr>, NoDirectReason> {
        let theirs = meeting.ok_or(NoDirectReason::NotSeen)?;
        if (self.reach.mapping, theirs.mapping) == (Mapping::Hard, Mapping::Hard)
            && !self.is_near(theirs)
            && open_ports(&self.reach.candidates).chain(open_ports(&theirs.candidates)).count() == 0
        {
            return Err(NoDirectReason::BothHard);
        }
        let usable = |at: &SocketAddr| !at.ip().is_loopback();
        let theirs = theirs.candidates.iter().filter(|one| one.kind != CandidateKind::Private);
        let places: Vec<SocketAddr> = theirs.map(|one| one.at).filter(usable).collect();
        match places.is_empty() || self.reach.candidates.is_empty() {
            true => Err(NoDirectReason::NotSeen),
            false => Ok(places),
        }
    }

    /// True if both hosts are seen at one address.
    pub(crate) fn is_near(&self, theirs: &Meeting) -> bool {
        let seen = |one: &&EndpointCandidate| one.kind == CandidateKind::Seen;
        let ours = self.reach.candidates.iter().filter(seen);
        let same = |one: &EndpointCandidate| {
            theirs.candidates.iter().filter(seen).any(|other| other.at.ip() == one.at.ip())
        };
        ours.into_iter().any(same)
    }

    /// Starts the probes. Also tells private addresses to a host that is seen at the same address.
    pub(crate) fn meet(
        &mut self,
        now: Time,
        host: HostId,
        said: &DirectMessage,
        places: Vec<SocketAddr>,
    ) {
        let Some(theirs) = &said.meeting else { return };
        let (id, asker) = (theirs.id, said.kind == DirectKind::Yes);
        let near = self.is_near(theirs);
        let hard = [self.reach.mapping, theirs.mapping].contains(&Mapping::Hard);
        if let Some(entry) = self.entries.get_mut(&host) {
            (entry.meets.near, entry.meets.hard, entry.meets.probed) = (near, hard, true);
        }
        self.tell(DirectEvent::Meet { host, id, asker, places });
        if near {
            if let Some(entry) = self.entries.get_mut(&host) {
                entry.nearing = Some((RepeatTimer::new(now), id));
            }
            self.look_soon(host);
            self.say_near(host, id);
        }
    }

    /// Tells this host's private addresses, if it has any.
    pub(crate) fn say_near(&mut self, host: HostId, id: MeetingId) {
        let private = self.reach.private.iter().take(Meeting::CANDIDATES_MAX);
        let private = private.map(|&at| EndpointCandidate { kind: CandidateKind::Private, at });
        let candidates: Vec<EndpointCandidate> = private.collect();
        if !candidates.is_empty() {
            let meeting = Meeting { id, mapping: Mapping::Unknown, candidates };
            self.send(host, DirectKind::Near, Some(meeting));
        }
    }

    /// Handles private addresses of a host that is seen at the same address as this one.
    ///
    /// Errors: `not_allowed` for a host that this end does not know to be near, for an unknown
    /// attempt, or for addresses that are not private.
    pub(crate) fn near(&mut self, host: HostId, said: &DirectMessage) -> Result<(), DropReason> {
        let entry = self.entries.get(&host).ok_or(DropReason::NotAllowed)?;
        let theirs = said.meeting.as_ref().ok_or(DropReason::Malformed)?;
        let meets = entry.meets;
        let asker = theirs.id == meets.ours;
        let private =
            |one: &EndpointCandidate| one.kind == CandidateKind::Private && is_private(one.at.ip());
        let known = asker || theirs.id == meets.theirs;
        if !meets.near || !known || !theirs.candidates.iter().all(private) {
            return Err(DropReason::NotAllowed);
        }
        // The other host repeats this message, and the attempt may be over.
        if meets.told == Some(theirs.id) {
            return Ok(());
        }
        if let Some(entry) = self.entries.get_mut(&host) {
            entry.meets.told = Some(theirs.id);
        }
        let places = theirs.candidates.iter().map(|one| one.at).collect();
        self.tell(DirectEvent::Meet { host, id: theirs.id, asker, places });
        Ok(())
    }
}
