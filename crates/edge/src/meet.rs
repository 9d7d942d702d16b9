//! How two hosts meet of which nobody can call the other: both tell where they may be, both send
//! probes there, and the one that asked calls where the first probe came from.
//!
//! ```text
//! Ask: meeting, what my translators do, where I am seen -> (routers) -> the same in Yes
//! both seen at one address: Near, private addresses     <- (routers) -> Near
//! probes ............................. past the routers ................... probes
//! ```
//!
//! The owner of the links sends the probes; this file decides whether there is any use in them.

use std::net::SocketAddr;

use shoal_wire::{
    Candidate, CandidateKind, DirectKind, DirectMessage, DropReason, Mapping, Meeting, MeetingId,
    Time, is_private,
};

use crate::book::HostId;
use crate::direct::{Direct, DirectEvent, Said};

/// Where this host can be reached, as far as is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// What translators on its way out do.
    pub mapping: Mapping,
    /// Where it is seen, and its IPv6 addresses that are valid everywhere.
    pub candidates: Vec<Candidate>,
    /// Private addresses of its machine: for hosts that are seen at the same address.
    pub private: Vec<SocketAddr>,
}

/// Why a pair of hosts that both want a direct link has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relayed {
    /// The other host did not answer the request: it wants none, or is not there.
    NoAnswer,
    /// Neither can be called, and one of the two knows nothing of where it is seen.
    NotSeen,
    /// Both are behind translators that show them to each host at another endpoint.
    BothHard,
    /// One is behind such a translator, and no probe came through.
    OneHard,
    /// No probe came through.
    NoProbe,
    /// The call was not answered, or the link was lost.
    NoCall,
    /// There are as many direct links as may be.
    Full,
}

impl Relayed {
    /// The reason in words.
    pub const fn words(self) -> &'static str {
        match self {
            Relayed::NoAnswer => "it does not answer: it wants no direct link, or is away",
            Relayed::NotSeen => "neither can be called, and nobody says where both are seen",
            Relayed::BothHard => {
                "both translators show a new endpoint to everybody, and neither keeps a port open"
            }
            Relayed::OneHard => "one translator shows new endpoints, the other lets them not in",
            Relayed::NoProbe => "no probe came through: a firewall or a translator drops them",
            Relayed::NoCall => "the call was not answered",
            Relayed::Full => "there are as many direct links as may be",
        }
    }
}

/// What two hosts know of each other's meeting.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Meets {
    /// The attempt that this host began.
    pub(crate) ours: MeetingId,
    /// The one that the other began.
    pub(crate) theirs: MeetingId,
    /// Both are seen at one address.
    pub(crate) near: bool,
    /// One of the two has a hard translator.
    pub(crate) hard: bool,
    /// Probes were sent.
    pub(crate) probed: bool,
    /// The other was asked again, while the link stands.
    pub(crate) again: bool,
    /// The attempt for which it told private addresses.
    pub(crate) told: Option<MeetingId>,
}

/// Those at which everybody is let in, whatever else a translator does.
fn open_ports(candidates: &[Candidate]) -> impl Iterator<Item = &Candidate> {
    candidates.iter().filter(|one| one.kind == CandidateKind::Configured)
}

impl Direct {
    /// Says where this host can be reached. Holds for requests to come; if it is seen nowhere
    /// that it was seen before, hosts that probes found are asked again at once, and attempts that
    /// failed wait no longer.
    pub fn set_reach(&mut self, reach: Reach) {
        let (old, new) = (&self.reach.candidates, &reach.candidates);
        let stays = old.is_empty() || new.is_empty() || old.iter().any(|one| new.contains(one));
        // Where a port was opened, attempts that had no hope may have some.
        let opened = open_ports(new).any(|one| !old.contains(one));
        self.reach = reach;
        if !stays || opened {
            self.look_after_move();
        }
    }

    /// Why there is no direct link with a host, if one was wanted.
    pub fn relayed(&self, host: HostId) -> Option<Relayed> {
        self.entries.get(&host).filter(|entry| !entry.is_up()).and_then(|entry| entry.relayed)
    }

    /// What this host tells of where it may be; nothing if it can be called.
    pub(crate) fn meeting(&mut self, host: HostId, kind: DirectKind) -> Option<Meeting> {
        if self.config.endpoint.is_some() || kind == DirectKind::End {
            return None;
        }
        let meets = self.entries.get(&host).map(|entry| entry.meets).unwrap_or_default();
        let id = match kind {
            DirectKind::Ask => meets.ours,
            _ => meets.theirs,
        };
        let Reach { mapping, candidates, .. } = &self.reach;
        let mut candidates = candidates.clone();
        candidates.truncate(Meeting::CANDIDATES_MAX);
        (id != [0; 16]).then_some(Meeting { id, mapping: *mapping, candidates })
    }

    /// Where to send probes.
    ///
    /// Errors: why there is no use in them.
    pub(crate) fn places(&self, meeting: Option<&Meeting>) -> Result<Vec<SocketAddr>, Relayed> {
        let theirs = meeting.ok_or(Relayed::NotSeen)?;
        if (self.reach.mapping, theirs.mapping) == (Mapping::Hard, Mapping::Hard)
            && !self.is_near(theirs)
            && open_ports(&self.reach.candidates).chain(open_ports(&theirs.candidates)).count() == 0
        {
            return Err(Relayed::BothHard);
        }
        let usable = |at: &SocketAddr| !at.ip().is_loopback();
        let theirs = theirs.candidates.iter().filter(|one| one.kind != CandidateKind::Private);
        let places: Vec<SocketAddr> = theirs.map(|one| one.at).filter(usable).collect();
        match places.is_empty() || self.reach.candidates.is_empty() {
            true => Err(Relayed::NotSeen),
            false => Ok(places),
        }
    }

    /// Whether both are seen at one address.
    pub(crate) fn is_near(&self, theirs: &Meeting) -> bool {
        let seen = |one: &&Candidate| one.kind == CandidateKind::Seen;
        let ours = self.reach.candidates.iter().filter(seen);
        let same = |one: &Candidate| {
            theirs.candidates.iter().filter(seen).any(|other| other.at.ip() == one.at.ip())
        };
        ours.into_iter().any(same)
    }

    /// Has probes sent, and tells private addresses to a host that is seen at the same address.
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
                entry.nearing = Some((Said::new(now), id));
            }
            self.look_soon(host);
            self.say_near(host, id);
        }
    }

    /// Tells private addresses of this host, if it has any.
    pub(crate) fn say_near(&mut self, host: HostId, id: MeetingId) {
        let private = self.reach.private.iter().take(Meeting::CANDIDATES_MAX);
        let private = private.map(|&at| Candidate { kind: CandidateKind::Private, at });
        let candidates: Vec<Candidate> = private.collect();
        if !candidates.is_empty() {
            let meeting = Meeting { id, mapping: Mapping::Unknown, candidates };
            self.send(host, DirectKind::Near, Some(meeting));
        }
    }

    /// Takes private addresses of a host that is seen at the same address as this one.
    ///
    /// Errors: `not_allowed` where no such host was told from this end, or for other addresses.
    pub(crate) fn near(&mut self, host: HostId, said: &DirectMessage) -> Result<(), DropReason> {
        let entry = self.entries.get(&host).ok_or(DropReason::NotAllowed)?;
        let theirs = said.meeting.as_ref().ok_or(DropReason::Malformed)?;
        let meets = entry.meets;
        let asker = theirs.id == meets.ours;
        let private =
            |one: &Candidate| one.kind == CandidateKind::Private && is_private(one.at.ip());
        let known = asker || theirs.id == meets.theirs;
        if !meets.near || !known || !theirs.candidates.iter().all(private) {
            return Err(DropReason::NotAllowed);
        }
        // It tells them more than once, and the attempt may be over.
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
