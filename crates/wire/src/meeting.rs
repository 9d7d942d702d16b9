//! Meeting of two hosts that nobody can call. A [`crate::DirectMessage`] holds the endpoints at
//! which each may be. The body of probes is here too (docs/design/wire/direct.md).

use core::net::SocketAddr;

use crate::place::{PLACE_LEN, place_bytes, read_some_place};
use crate::{Mapping, ParseError, Reader, SizeClass, VERSION};

/// An endpoint at which a host may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndpointCandidate {
    pub kind: CandidateKind,
    pub at: SocketAddr,
}

/// Source of a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum CandidateKind {
    /// A private address of the host's machine, told only to hosts at the same public address.
    Private = 1,
    /// The host's file names it, or a translator has a port mapping for it.
    Configured = 2,
    /// A globally valid IPv6 address of the host's machine.
    Ipv6 = 3,
    /// A router or mirror sees the host at this endpoint.
    Seen = 4,
}

/// Random bytes that identify one attempt of two hosts to meet. The host that asks draws them. The
/// keys of the probes follow from them.
pub type MeetingId = [u8; 16];

/// A host's endpoints for a meeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The attempt; an answer repeats the id of the request. Never zero.
    pub id: MeetingId,
    /// Behaviour of the translators in front of the host.
    pub mapping: Mapping,
    /// Endpoints at which the host may be, in the order in which they are tried.
    pub candidates: Vec<EndpointCandidate>,
}

impl Meeting {
    /// Most candidates. Each is probed seven times, and each may get one answer, so that an attempt
    /// sends at most [`PROBES_MAX`] probes.
    pub const CANDIDATES_MAX: usize = 7;
    /// Longest wire form in bytes.
    pub const LEN_MAX: usize = 18 + Self::CANDIDATES_MAX * (1 + PLACE_LEN);

    /// Reads a meeting.
    pub(crate) fn parse(reader: &mut Reader<'_>) -> Result<Meeting, ParseError> {
        let id: MeetingId = reader.array("meeting")?;
        if id == [0; 16] {
            return Err(ParseError::Invalid { what: "meeting" });
        }
        let mapping = match reader.u8("mapping")? {
            0 => Mapping::Unknown,
            1 => Mapping::Easy,
            2 => Mapping::Hard,
            value => return Err(ParseError::Unknown { what: "mapping", value: value.into() }),
        };
        let count = usize::from(reader.u8("candidates")?);
        if count > Self::CANDIDATES_MAX {
            let (what, max) = ("candidates", Self::CANDIDATES_MAX);
            return Err(ParseError::TooLong { what, max, have: count });
        }
        let candidates = (0..count).map(|_| candidate(reader)).collect::<Result<_, _>>()?;
        Ok(Meeting { id, mapping, candidates })
    }

    /// Appends the wire form. Candidates beyond [`Self::CANDIDATES_MAX`] are left out.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let candidates = &self.candidates[..self.candidates.len().min(Self::CANDIDATES_MAX)];
        out.extend_from_slice(&self.id);
        out.push(self.mapping as u8);
        out.push(candidates.len() as u8);
        for EndpointCandidate { kind, at } in candidates {
            out.push(*kind as u8);
            out.extend_from_slice(&place_bytes(Some(*at)));
        }
    }
}

fn candidate(reader: &mut Reader<'_>) -> Result<EndpointCandidate, ParseError> {
    let kind = match reader.u8("candidate")? {
        1 => CandidateKind::Private,
        2 => CandidateKind::Configured,
        3 => CandidateKind::Ipv6,
        4 => CandidateKind::Seen,
        value => return Err(ParseError::Unknown { what: "candidate", value: value.into() }),
    };
    Ok(EndpointCandidate { kind, at: read_some_place(reader)? })
}

/// Length of a probe.
pub const PROBE_LEN: usize = SizeClass::Small.frame_len();
/// Most probes that one host sends in an attempt.
pub const PROBES_MAX: usize = 56;
/// Start of the sealed body of a probe; zeroes follow.
pub const PROBE_BODY: [u8; 2] = [7, VERSION];
