//! How two hosts of which nobody can call the other meet: where each may be, as part of a
//! [`crate::DirectMessage`], and the body of probes (docs/wire.md section 11).

use core::net::SocketAddr;

use crate::place::{PLACE_LEN, place_bytes, read_some_place};
use crate::{Mapping, ParseError, Reader, SizeClass, VERSION};

/// Where a host may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// How it is known.
    pub kind: CandidateKind,
    /// The endpoint.
    pub at: SocketAddr,
}

/// How a candidate is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum CandidateKind {
    /// A private address of its machine; told only to hosts that are seen at the same address.
    Private = 1,
    /// Its file names it, or a translator keeps it open for it.
    Configured = 2,
    /// An IPv6 address of its machine that is valid everywhere.
    Ipv6 = 3,
    /// A router or a mirror sees it there.
    Seen = 4,
}

/// What identifies an attempt of two hosts to meet, and what its probes are sealed under: random
/// bytes of the one that asks.
pub type MeetingId = [u8; 16];

/// What a host tells of where it may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// The attempt; an answer repeats that of the request. Never zero.
    pub id: MeetingId,
    /// What translators on its way out do.
    pub mapping: Mapping,
    /// Where it may be, in the order in which they are tried.
    pub candidates: Vec<Candidate>,
}

impl Meeting {
    /// Candidates at most: with each tried seven times, and as many answers as candidates, an
    /// attempt sends at most [`PROBES_MAX`] probes.
    pub const CANDIDATES_MAX: usize = 7;
    /// The longest in bytes.
    pub const LEN_MAX: usize = 18 + Self::CANDIDATES_MAX * (1 + PLACE_LEN);

    /// Reads one, and the zeroes behind it.
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
        for Candidate { kind, at } in candidates {
            out.push(*kind as u8);
            out.extend_from_slice(&place_bytes(Some(*at)));
        }
    }
}

fn candidate(reader: &mut Reader<'_>) -> Result<Candidate, ParseError> {
    let kind = match reader.u8("candidate")? {
        1 => CandidateKind::Private,
        2 => CandidateKind::Configured,
        3 => CandidateKind::Ipv6,
        4 => CandidateKind::Seen,
        value => return Err(ParseError::Unknown { what: "candidate", value: value.into() }),
    };
    Ok(Candidate { kind, at: read_some_place(reader)? })
}

/// Length of a probe.
pub const PROBE_LEN: usize = SizeClass::Small.frame_len();
/// Probes that one host sends in an attempt at most.
pub const PROBES_MAX: usize = 56;
/// What stands at the start of the sealed body of a probe; zeroes follow.
pub const PROBE_BODY: [u8; 2] = [7, VERSION];
