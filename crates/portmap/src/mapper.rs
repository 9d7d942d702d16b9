//! The machine: when a translator is asked for what, and what its answers change.

use core::net::{Ipv4Addr, SocketAddrV4};
use core::time::Duration;
use std::collections::VecDeque;

use shoal_wire::Time;

use crate::codec::{Answer, Wish, parse, pcp_map, pmp_address, pmp_map};

/// For how long a port is asked to stay open: what RFC 6886 section 3.3 recommends.
const LIFETIME_S: u32 = 7_200;
/// A mapping that ends sooner is worth nothing, and one is never believed to last longer
/// (RFC 6887 section 15).
const LIFETIME_MIN_S: u32 = 10;
const LIFETIME_MAX_S: u32 = 86_400;
/// From one request to the next, doubled each time. The translator is one hop away.
const PCP_WAIT: Duration = Duration::from_millis(500);
const PMP_WAIT: Duration = Duration::from_millis(250);
/// Requests until a way is given up: 3.5 s, and 7.75 s.
const PCP_TRIES: u32 = 3;
const PMP_TRIES: u32 = 5;
/// After both ways failed. A translator that refuses may ask for more, up to the longest.
const REST: Duration = Duration::from_secs(300);
const REST_MAX: Duration = Duration::from_secs(1_800);
/// Shortest time between two requests for more time, as the end comes nearer.
const RENEW_MIN: Duration = Duration::from_secs(4);
/// PCP's code (RFC 6887 section 7.4) for "I know no PCP of this version".
const PCP_UNSUPPORTED_VERSION: u8 = 1;

/// By which protocol a port was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// RFC 6887.
    Pcp,
    /// RFC 6886.
    NatPmp,
}

impl Via {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Via::Pcp => "PCP",
            Via::NatPmp => "NAT-PMP",
        }
    }
}

/// A port that is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// Where others reach this machine.
    pub at: SocketAddrV4,
    /// Who said so.
    pub via: Via,
    /// Until then.
    pub ends: Time,
}

impl Mapped {
    /// Whether the translator stands behind another one, so that this is no address for others.
    pub fn is_private(&self) -> bool {
        shoal_wire::is_private((*self.at.ip()).into())
    }
}

/// Why no port is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// No answer.
    #[error("the translator answers neither PCP nor NAT-PMP")]
    Silent,
    /// It says no by PCP.
    #[error("the translator refuses by PCP, code {0} (RFC 6887, 7.4)")]
    Pcp(u8),
    /// It says no by NAT-PMP.
    #[error("the translator refuses by NAT-PMP, code {0} (RFC 6886, 3.5)")]
    NatPmp(u16),
}

/// Why a datagram has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stray {
    /// It is no answer.
    Malformed,
    /// It answers nothing that was asked.
    Unasked,
}

/// What a mapper counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests, the same one sent again included.
    pub asked: u64,
    /// Answers that counted.
    pub answered: u64,
    /// Datagrams that were no answers.
    pub malformed: u64,
    /// Answers to nothing that was asked.
    pub unasked: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waits for an answer, after so many requests.
    Asking(Via, u32),
    /// A port is open.
    Held,
    /// Both ways failed.
    Resting,
    /// Gave the port back, by so many requests.
    Ending(u32),
    /// Does nothing any more.
    Ended,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Mapper {
    wish: Wish,
    phase: Phase,
    due: Time,
    /// By which protocol a request was sent that nothing answered yet.
    waiting: Option<Via>,
    /// By NAT-PMP: the translator's address, if it told that.
    outer_ip: Option<Ipv4Addr>,
    /// By NAT-PMP: port and time of an answer that came before the address.
    pending: Option<(u16, u32)>,
    mapped: Option<Mapped>,
    fault: Option<Fault>,
    stats: Stats,
    out: VecDeque<Vec<u8>>,
}

impl Mapper {
    /// A mapper for the port of a socket. `inner` is where the translator sees it, `nonce` is
    /// random.
    pub fn new(inner: SocketAddrV4, nonce: [u8; 12], now: Time) -> Mapper {
        Mapper {
            wish: Wish { nonce, inner, outer: None, lifetime_s: LIFETIME_S },
            phase: Phase::Asking(Via::Pcp, 0),
            due: now,
            waiting: None,
            outer_ip: None,
            pending: None,
            mapped: None,
            fault: None,
            stats: Stats::default(),
            out: VecDeque::new(),
        }
    }

    /// The port that is open, if one is.
    pub fn mapped(&self) -> Option<Mapped> {
        self.mapped
    }

    /// Why none is, as far as is known.
    pub fn fault(&self) -> Option<Fault> {
        self.fault.filter(|_| self.mapped.is_none())
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Whether it has nothing to do any more, after [`Mapper::end`].
    pub fn is_ended(&self) -> bool {
        self.phase == Phase::Ended
    }

    /// The next datagram for the translator.
    pub fn poll_transmit(&mut self) -> Option<Vec<u8>> {
        self.out.pop_front()
    }

    /// When there is something to do; none once it has ended.
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            _ if !self.out.is_empty() => Some(Time::ZERO),
            Phase::Ended => None,
            _ => Some(self.mapped.map_or(self.due, |mapped| self.due.min(mapped.ends))),
        }
    }

    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.mapped.is_some_and(|mapped| mapped.ends <= now) {
            self.mapped = None;
            if !matches!(self.phase, Phase::Ending(_)) {
                self.ask(Via::Pcp, now);
            }
        }
        if self.due > now {
            return;
        }
        match self.phase {
            Phase::Asking(via, tries) => self.ask_again(via, tries, now),
            Phase::Held => {
                let Some(mapped) = self.mapped else { return self.ask(Via::Pcp, now) };
                self.request(mapped.via);
                self.due = now + (mapped.ends.since(now) / 2).max(RENEW_MIN);
            }
            Phase::Resting => self.ask(Via::Pcp, now),
            Phase::Ending(0) => {
                self.give_back();
                (self.phase, self.due) = (Phase::Ending(1), now + PMP_WAIT / 2);
            }
            Phase::Ending(_) => self.phase = Phase::Ended,
            Phase::Ended => {}
        }
    }

    fn ask(&mut self, via: Via, now: Time) {
        self.waiting = None;
        (self.phase, self.due) = (Phase::Asking(via, 0), now);
        (self.outer_ip, self.pending) = (None, None);
    }

    fn ask_again(&mut self, via: Via, tries: u32, now: Time) {
        let (wait, most) = match via {
            Via::Pcp => (PCP_WAIT, PCP_TRIES),
            Via::NatPmp => (PMP_WAIT, PMP_TRIES),
        };
        if tries < most {
            self.request(via);
            (self.phase, self.due) = (Phase::Asking(via, tries + 1), now + wait * (1 << tries));
            return;
        }
        match via {
            Via::Pcp => {
                self.ask(Via::NatPmp, now);
                self.ask_again(Via::NatPmp, 0, now);
            }
            Via::NatPmp => self.rest(Fault::Silent, REST, now),
        }
    }

    fn rest(&mut self, fault: Fault, rest: Duration, now: Time) {
        (self.fault, self.waiting) = (Some(fault), None);
        (self.phase, self.due) = (Phase::Resting, now + rest.clamp(REST, REST_MAX));
    }

    fn request(&mut self, via: Via) {
        self.stats.asked += 1;
        self.waiting = Some(via);
        (self.outer_ip, self.pending) = (None, None);
        match via {
            Via::Pcp => self.out.push_back(pcp_map(&self.wish).to_vec()),
            Via::NatPmp => {
                self.out.push_back(pmp_address().to_vec());
                self.out.push_back(pmp_map(&self.wish).to_vec());
            }
        }
    }

    fn give_back(&mut self) {
        let Some(mapped) = self.mapped else { return };
        let wish = Wish { lifetime_s: 0, ..self.wish };
        self.stats.asked += 1;
        self.waiting = Some(mapped.via);
        self.out.push_back(match mapped.via {
            Via::Pcp => pcp_map(&wish).to_vec(),
            Via::NatPmp => pmp_map(&wish).to_vec(),
        });
    }

    /// Gives the port back, by two requests at most.
    pub fn end(&mut self, now: Time) {
        self.out.clear();
        if self.mapped.is_none() {
            self.phase = Phase::Ended;
            return;
        }
        self.give_back();
        (self.phase, self.due) = (Phase::Ending(0), now + PMP_WAIT / 2);
    }

    /// Takes in a datagram of the translator's.
    ///
    /// # Errors
    /// Why it has no effect; it is counted.
    pub fn handle_datagram(&mut self, now: Time, datagram: &[u8]) -> Result<(), Stray> {
        let handled = match parse(datagram) {
            Ok(answer) => self.handle(now, answer),
            Err(_) => Err(Stray::Malformed),
        };
        match handled {
            Ok(()) => self.stats.answered += 1,
            Err(Stray::Malformed) => self.stats.malformed += 1,
            Err(Stray::Unasked) => self.stats.unasked += 1,
        }
        handled
    }

    fn handle(&mut self, now: Time, answer: Answer) -> Result<(), Stray> {
        let via = self.waiting.ok_or(Stray::Unasked)?;
        let own = self.wish.inner.port();
        match (via, answer) {
            (Via::Pcp, Answer::Map { nonce, inner, outer, lifetime_s })
                if nonce == self.wish.nonce && inner == own =>
            {
                self.granted(via, outer, lifetime_s, now)
            }
            (Via::Pcp, Answer::MapRefused { code, .. }) if code == PCP_UNSUPPORTED_VERSION => {
                self.fall_back(now)
            }
            (Via::Pcp, Answer::MapRefused { nonce, code, lifetime_s })
                if nonce.is_none_or(|nonce| nonce == self.wish.nonce) =>
            {
                self.refused(Fault::Pcp(code), Duration::from_secs(lifetime_s.into()), now)
            }
            (Via::Pcp, Answer::PmpRefused { .. }) => self.fall_back(now),
            (Via::NatPmp, Answer::PmpAddress(ip)) if self.outer_ip.is_none() => {
                self.outer_ip = Some(ip);
                self.settle(now)
            }
            (Via::NatPmp, Answer::PmpMap { inner, lifetime_s: 0, .. }) if inner == own => {
                self.granted(via, None, 0, now)
            }
            (Via::NatPmp, Answer::PmpMap { inner, outer, lifetime_s })
                if inner == own && self.pending.is_none() =>
            {
                self.pending = Some((outer, lifetime_s));
                self.settle(now)
            }
            (Via::NatPmp, Answer::PmpRefused { code }) => {
                self.refused(Fault::NatPmp(code), REST, now)
            }
            _ => Err(Stray::Unasked),
        }
    }

    /// The translator knows no PCP.
    fn fall_back(&mut self, now: Time) -> Result<(), Stray> {
        match self.phase {
            Phase::Asking(..) => self.ask(Via::NatPmp, now),
            // It knew PCP before: what it gave holds until its end.
            Phase::Held => self.waiting = None,
            _ => return Err(Stray::Unasked),
        }
        Ok(())
    }

    fn refused(&mut self, fault: Fault, rest: Duration, now: Time) -> Result<(), Stray> {
        match self.phase {
            Phase::Asking(..) => self.rest(fault, rest, now),
            // What it gave holds until its end.
            Phase::Held => self.waiting = None,
            Phase::Ending(_) => self.phase = Phase::Ended,
            Phase::Resting | Phase::Ended => return Err(Stray::Unasked),
        }
        Ok(())
    }

    /// NAT-PMP tells address and port apart: both are needed.
    fn settle(&mut self, now: Time) -> Result<(), Stray> {
        let Some((ip, (port, lifetime_s))) = self.outer_ip.zip(self.pending) else { return Ok(()) };
        self.granted(Via::NatPmp, Some(SocketAddrV4::new(ip, port)), lifetime_s, now)
    }

    fn granted(
        &mut self,
        via: Via,
        outer: Option<SocketAddrV4>,
        lifetime_s: u32,
        now: Time,
    ) -> Result<(), Stray> {
        match (self.phase, outer) {
            (Phase::Ending(_), None) => {
                (self.phase, self.mapped, self.waiting) = (Phase::Ended, None, None);
                Ok(())
            }
            (Phase::Asking(..) | Phase::Held, Some(at)) if lifetime_s >= LIFETIME_MIN_S => {
                let life = Duration::from_secs(lifetime_s.min(LIFETIME_MAX_S).into());
                self.mapped = Some(Mapped { at, via, ends: now + life });
                (self.wish.outer, self.fault, self.waiting) = (Some(at), None, None);
                (self.phase, self.due) = (Phase::Held, now + life / 2);
                Ok(())
            }
            _ => Err(Stray::Unasked),
        }
    }
}
