//! The state machine: when to ask a translator, and the effect of its answers.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::Time;

use crate::codec::{MappingAnswer, MappingRequest, parse, pcp_map, pmp_address, pmp_map};

/// Requested lifetime in seconds, as RFC 6886 section 3.3 recommends.
const LIFETIME_S: u32 = 7_200;
/// Shortest lifetime that is worth having, in seconds.
const LIFETIME_MIN_S: u32 = 10;
/// Longest lifetime that is believed, in seconds (RFC 6887 section 15).
const LIFETIME_MAX_S: u32 = 86_400;
/// Time between two requests, doubled each time. The translator is one hop away.
const PCP_WAIT: Duration = Duration::from_millis(500);
const PMP_WAIT: Duration = Duration::from_millis(250);
/// Requests before a protocol is given up, after 3.5 s and after 7.75 s.
const PCP_TRIES: u32 = 3;
const PMP_TRIES: u32 = 5;
/// Pause after both protocols failed. A translator that refuses may ask for more, up to the
/// longest.
const REST: Duration = Duration::from_secs(300);
const REST_MAX: Duration = Duration::from_secs(1_800);
/// Shortest time between two renewals, near the end of a mapping.
const RENEW_MIN: Duration = Duration::from_secs(4);
/// PCP's code (RFC 6887 section 7.4) for an unsupported version.
const PCP_UNSUPPORTED_VERSION: u8 = 1;

/// Protocol by which a port was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingProtocol {
    /// RFC 6887.
    Pcp,
    /// RFC 6886.
    NatPmp,
}

impl MappingProtocol {
    pub const fn name(self) -> &'static str {
        match self {
            MappingProtocol::Pcp => "PCP",
            MappingProtocol::NatPmp => "NAT-PMP",
        }
    }
}

/// An open port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedMapping {
    /// Endpoint at which others reach this machine.
    pub at: SocketAddrV4,
    /// Protocol of the answer.
    pub via: MappingProtocol,
    /// End of the mapping.
    pub ends: Time,
}

impl GrantedMapping {
    /// True if the translator is behind another one, so that this is no address for others.
    pub fn is_private(&self) -> bool {
        shoal_wire::is_private((*self.at.ip()).into())
    }
}

/// Reason why no port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MappingError {
    /// No answer by either protocol.
    #[error("the translator answers neither PCP nor NAT-PMP")]
    Silent,
    /// Refused by PCP.
    #[error("the translator refuses by PCP, code {0} (RFC 6887, 7.4)")]
    Pcp(u8),
    /// Refused by NAT-PMP.
    #[error("the translator refuses by NAT-PMP, code {0} (RFC 6886, 3.5)")]
    NatPmp(u16),
}

/// Reason why a datagram has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredAnswer {
    /// The datagram is not an answer.
    Malformed,
    /// The datagram answers no request.
    Unasked,
}

/// Counters of a mapper.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MapperStats {
    /// Requests, including repeated ones.
    pub asked: u64,
    /// Answers that had an effect.
    pub answered: u64,
    /// Datagrams that were not answers.
    pub malformed: u64,
    /// Answers to no request.
    pub unasked: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MapperState {
    /// Waits for an answer, after this many requests.
    Asking(MappingProtocol, u32),
    /// A port is open.
    Held,
    /// Both protocols failed.
    Resting,
    /// Gives the port back; the request was repeated this many times.
    Ending(u32),
    /// Does nothing.
    Ended,
}

/// Keeps one port open; see the crate's documentation.
#[derive(Clone, Debug)]
pub struct Mapper {
    wish: MappingRequest,
    phase: MapperState,
    due: Time,
    /// Protocol of a request that has no answer yet.
    waiting: Option<MappingProtocol>,
    /// NAT-PMP: the translator's address, if known.
    outer_ip: Option<Ipv4Addr>,
    /// NAT-PMP: port and lifetime of an answer that came before the address.
    pending: Option<(u16, u32)>,
    mapped: Option<GrantedMapping>,
    fault: Option<MappingError>,
    stats: MapperStats,
    out: VecDeque<Vec<u8>>,
}

impl Mapper {
    /// A mapper for the port of a socket. `inner` is its endpoint as the translator sees it;
    /// `nonce` is random.
    pub fn new(inner: SocketAddrV4, nonce: [u8; 12], now: Time) -> Mapper {
        Mapper {
            wish: MappingRequest { nonce, inner, outer: None, lifetime_s: LIFETIME_S },
            phase: MapperState::Asking(MappingProtocol::Pcp, 0),
            due: now,
            waiting: None,
            outer_ip: None,
            pending: None,
            mapped: None,
            fault: None,
            stats: MapperStats::default(),
            out: VecDeque::new(),
        }
    }

    /// The open port, if any.
    pub fn mapped(&self) -> Option<GrantedMapping> {
        self.mapped
    }

    /// Reason why no port is open, as far as known.
    pub fn fault(&self) -> Option<MappingError> {
        self.fault.filter(|_| self.mapped.is_none())
    }

    pub fn stats(&self) -> MapperStats {
        self.stats
    }

    /// True once it has nothing to do after [`Mapper::end`].
    pub fn is_ended(&self) -> bool {
        self.phase == MapperState::Ended
    }

    /// The next datagram for the translator.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// Time at which there is something to do; none once it has ended.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            _ if !self.out.is_empty() => Some(Time::ZERO),
            MapperState::Ended => None,
            _ => Some(self.mapped.map_or(self.due, |mapped| self.due.min(mapped.ends))),
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.mapped.is_some_and(|mapped| mapped.ends <= now) {
            self.mapped = None;
            if !matches!(self.phase, MapperState::Ending(_)) {
                self.ask(MappingProtocol::Pcp, now);
            }
        }
        if self.due > now {
            return;
        }
        match self.phase {
            MapperState::Asking(via, tries) => self.ask_again(via, tries, now),
            MapperState::Held => {
                let Some(mapped) = self.mapped else { return self.ask(MappingProtocol::Pcp, now) };
                self.request(mapped.via);
                self.due = now + (mapped.ends.since(now) / 2).max(RENEW_MIN);
            }
            MapperState::Resting => self.ask(MappingProtocol::Pcp, now),
            MapperState::Ending(0) => {
                self.give_back();
                (self.phase, self.due) = (MapperState::Ending(1), now + PMP_WAIT / 2);
            }
            MapperState::Ending(_) => self.phase = MapperState::Ended,
            MapperState::Ended => {}
        }
    }

    fn ask(&mut self, via: MappingProtocol, now: Time) {
        self.waiting = None;
        (self.phase, self.due) = (MapperState::Asking(via, 0), now);
        (self.outer_ip, self.pending) = (None, None);
    }

    fn ask_again(&mut self, via: MappingProtocol, tries: u32, now: Time) {
        let (wait, most) = match via {
            MappingProtocol::Pcp => (PCP_WAIT, PCP_TRIES),
            MappingProtocol::NatPmp => (PMP_WAIT, PMP_TRIES),
        };
        if tries < most {
            self.request(via);
            (self.phase, self.due) =
                (MapperState::Asking(via, tries + 1), now + wait * (1 << tries));
            return;
        }
        match via {
            MappingProtocol::Pcp => {
                self.ask(MappingProtocol::NatPmp, now);
                self.ask_again(MappingProtocol::NatPmp, 0, now);
            }
            MappingProtocol::NatPmp => self.rest(MappingError::Silent, REST, now),
        }
    }

    fn rest(&mut self, fault: MappingError, rest: Duration, now: Time) {
        (self.fault, self.waiting) = (Some(fault), None);
        (self.phase, self.due) = (MapperState::Resting, now + rest.clamp(REST, REST_MAX));
    }

    fn request(&mut self, via: MappingProtocol) {
        self.stats.asked += 1;
        self.waiting = Some(via);
        (self.outer_ip, self.pending) = (None, None);
        match via {
            MappingProtocol::Pcp => self.out.push_back(pcp_map(&self.wish).to_vec()),
            MappingProtocol::NatPmp => {
                self.out.push_back(pmp_address().to_vec());
                self.out.push_back(pmp_map(&self.wish).to_vec());
            }
        }
    }

    fn give_back(&mut self) {
        let Some(mapped) = self.mapped else { return };
        let wish = MappingRequest { lifetime_s: 0, ..self.wish };
        self.stats.asked += 1;
        self.waiting = Some(mapped.via);
        self.out.push_back(match mapped.via {
            MappingProtocol::Pcp => pcp_map(&wish).to_vec(),
            MappingProtocol::NatPmp => pmp_map(&wish).to_vec(),
        });
    }

    /// Gives the port back, by two requests at most.
    pub fn end(&mut self, now: Time) {
        self.out.clear();
        if self.mapped.is_none() {
            self.phase = MapperState::Ended;
            return;
        }
        self.give_back();
        (self.phase, self.due) = (MapperState::Ending(0), now + PMP_WAIT / 2);
    }

    /// Handles a datagram from the translator.
    ///
    /// # Errors
    /// The reason why it has no effect; the datagram is counted.
    pub fn handle_datagram(&mut self, now: Time, datagram: &[u8]) -> Result<(), IgnoredAnswer> {
        let handled = match parse(datagram) {
            Ok(answer) => self.handle(now, answer),
            Err(_) => Err(IgnoredAnswer::Malformed),
        };
        match handled {
            Ok(()) => self.stats.answered += 1,
            Err(IgnoredAnswer::Malformed) => self.stats.malformed += 1,
            Err(IgnoredAnswer::Unasked) => self.stats.unasked += 1,
        }
        handled
    }

    fn handle(&mut self, now: Time, answer: MappingAnswer) -> Result<(), IgnoredAnswer> {
        let via = self.waiting.ok_or(IgnoredAnswer::Unasked)?;
        let own = self.wish.inner.port();
        match (via, answer) {
            (MappingProtocol::Pcp, MappingAnswer::Map { nonce, inner, outer, lifetime_s })
                if nonce == self.wish.nonce && inner == own =>
            {
                self.granted(via, outer, lifetime_s, now)
            }
            (MappingProtocol::Pcp, MappingAnswer::MapRefused { code, .. })
                if code == PCP_UNSUPPORTED_VERSION =>
            {
                self.fall_back(now)
            }
            (MappingProtocol::Pcp, MappingAnswer::MapRefused { nonce, code, lifetime_s })
                if nonce.is_none_or(|nonce| nonce == self.wish.nonce) =>
            {
                self.refused(MappingError::Pcp(code), Duration::from_secs(lifetime_s.into()), now)
            }
            (MappingProtocol::Pcp, MappingAnswer::PmpRefused { .. }) => self.fall_back(now),
            (MappingProtocol::NatPmp, MappingAnswer::PmpAddress(ip)) if self.outer_ip.is_none() => {
                self.outer_ip = Some(ip);
                self.settle(now)
            }
            (MappingProtocol::NatPmp, MappingAnswer::PmpMap { inner, lifetime_s: 0, .. })
                if inner == own =>
            {
                self.granted(via, None, 0, now)
            }
            (MappingProtocol::NatPmp, MappingAnswer::PmpMap { inner, outer, lifetime_s })
                if inner == own && self.pending.is_none() =>
            {
                self.pending = Some((outer, lifetime_s));
                self.settle(now)
            }
            (MappingProtocol::NatPmp, MappingAnswer::PmpRefused { code }) => {
                self.refused(MappingError::NatPmp(code), REST, now)
            }
            _ => Err(IgnoredAnswer::Unasked),
        }
    }

    /// Handles an answer without PCP: falls back to NAT-PMP.
    fn fall_back(&mut self, now: Time) -> Result<(), IgnoredAnswer> {
        match self.phase {
            MapperState::Asking(..) => self.ask(MappingProtocol::NatPmp, now),
            // The translator knew PCP before: its mapping holds until its end.
            MapperState::Held => self.waiting = None,
            _ => return Err(IgnoredAnswer::Unasked),
        }
        Ok(())
    }

    fn refused(
        &mut self,
        fault: MappingError,
        rest: Duration,
        now: Time,
    ) -> Result<(), IgnoredAnswer> {
        match self.phase {
            MapperState::Asking(..) => self.rest(fault, rest, now),
            // The mapping holds until its end.
            MapperState::Held => self.waiting = None,
            MapperState::Ending(_) => self.phase = MapperState::Ended,
            MapperState::Resting | MapperState::Ended => return Err(IgnoredAnswer::Unasked),
        }
        Ok(())
    }

    /// NAT-PMP tells address and port in two answers: both are needed.
    fn settle(&mut self, now: Time) -> Result<(), IgnoredAnswer> {
        let Some((ip, (port, lifetime_s))) = self.outer_ip.zip(self.pending) else { return Ok(()) };
        self.granted(MappingProtocol::NatPmp, Some(SocketAddrV4::new(ip, port)), lifetime_s, now)
    }

    fn granted(
        &mut self,
        via: MappingProtocol,
        outer: Option<SocketAddrV4>,
        lifetime_s: u32,
        now: Time,
    ) -> Result<(), IgnoredAnswer> {
        match (self.phase, outer) {
            (MapperState::Ending(_), None) => {
                (self.phase, self.mapped, self.waiting) = (MapperState::Ended, None, None);
                Ok(())
            }
            (MapperState::Asking(..) | MapperState::Held, Some(at))
                if lifetime_s >= LIFETIME_MIN_S =>
            {
                let life = Duration::from_secs(lifetime_s.min(LIFETIME_MAX_S).into());
                self.mapped = Some(GrantedMapping { at, via, ends: now + life });
                (self.wish.outer, self.fault, self.waiting) = (Some(at), None, None);
                (self.phase, self.due) = (MapperState::Held, now + life / 2);
                Ok(())
            }
            _ => Err(IgnoredAnswer::Unasked),
        }
    }
}
