//! A filter in the kernel for the sockets of a node whose addresses hop: datagrams to addresses
//! that are not in use cost neither a key nor room in a socket's buffer.
//!
//! ```text
//! extended   root or CAP_BPF at the start   one program, addresses in a map; counts frames
//! classic    no right                       another program when addresses change; can't count
//! ```
//!
//! A socket's own counter of drops has overflows, datagrams with a wrong UDP checksum, and the
//! filter's drops in one: what the extended program has not counted of it counts as an overflow,
//! wrong checksums, too. With the classic one nobody can tell them apart, so that all count as
//! `stale_or_overflow`.

mod kernel;
mod program;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use shoal_wire::DropReason;
use socket2::{SockFilter, Socket};

use crate::net::socket;
use kernel::{Kind, Map};

/// Most addresses that the extended program knows. The classic one's length is its limit.
const ADDRESSES_MAX: u32 = 16_384;

/// What the kernel asks about each datagram.
enum Program {
    Extended { code: OwnedFd, used: Map<8, 1>, counts: Map<4, 8> },
    Classic,
}

/// What the kernel dropped before the node could read it.
#[derive(Clone, Copy, Default)]
struct Dropped {
    /// By the sockets' own counters, whatever for; summed up beside the extended program alone.
    by_sockets: u64,
    stale: u64,
    overflow: u64,
    stale_or_overflow: u64,
}

/// What the filter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterState {
    /// It drops, and counts that.
    Counting,
    /// It drops, and can't tell that from overflows.
    Plain,
    /// Nothing: there is none.
    Off,
}

/// One socket, and its drops when they were looked at last.
struct Guarded {
    socket: Socket,
    seen: Cell<u32>,
}

/// The filter before all sockets at which addresses hop.
pub struct HopFilter {
    sockets: Vec<Guarded>,
    prefix: [u8; 8],
    program: Program,
    /// What the extended program's map has.
    used: BTreeSet<u64>,
    is_on: bool,
    /// Why it is off.
    fault: Option<String>,
    dropped: Cell<Dropped>,
}

impl HopFilter {
    /// Before these sockets. No address of the prefix is in use yet.
    pub fn open(sockets: Vec<Socket>, prefix: [u8; 8]) -> HopFilter {
        for one in &sockets {
            // What it tells with datagrams would have the filter's drops in it.
            let _untold = socket::set(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 0);
        }
        let program = extended().unwrap_or_else(|error| {
            tracing::debug!("no program that counts: {error}");
            Program::Classic
        });
        HopFilter::with(program, sockets, prefix)
    }

    fn with(program: Program, sockets: Vec<Socket>, prefix: [u8; 8]) -> HopFilter {
        let guarded = |socket: Socket| {
            let seen = Cell::new(socket::drops(socket.as_raw_fd()).unwrap_or(0));
            Guarded { socket, seen }
        };
        let mut filter = HopFilter {
            sockets: sockets.into_iter().map(guarded).collect(),
            prefix,
            program,
            used: BTreeSet::new(),
            is_on: false,
            fault: None,
            dropped: Cell::default(),
        };
        filter.move_to(prefix, &[]);
        filter
    }

    /// The addresses are under this prefix from now on. What comes to the former one is let in.
    pub fn move_to(&mut self, prefix: [u8; 8], identifiers: &[u64]) {
        self.prefix = prefix;
        self.let_in(identifiers);
    }

    /// Lets in what comes to these addresses of the prefix, given sorted, and nothing else of it.
    pub fn let_in(&mut self, identifiers: &[u64]) {
        // What was dropped until now is the former program's.
        self.look();
        let before = self.fault.take();
        match self.change(identifiers) {
            Ok(()) => self.is_on = true,
            Err(error) => {
                for one in &self.sockets {
                    let _none = one.socket.detach_filter();
                }
                self.is_on = false;
                self.fault = Some(error.to_string());
            }
        }
        if self.fault.is_some() && before.is_none() {
            tracing::warn!("[hop]: the kernel filters nothing for this node: see `shoal status`");
        }
    }

    fn change(&mut self, identifiers: &[u64]) -> io::Result<()> {
        let many = || {
            let text =
                format!("{} addresses are in use, more than it has room for", identifiers.len());
            io::Error::other(text)
        };
        match &self.program {
            Program::Extended { code, used, counts } => {
                if identifiers.len() > ADDRESSES_MAX as usize {
                    return Err(many());
                }
                counts.insert(&program::PREFIX.to_ne_bytes(), self.prefix)?;
                fill(used, &mut self.used, identifiers)?;
                let sockets = self.sockets.iter().filter(|_| !self.is_on);
                sockets.map(|one| &one.socket).try_for_each(|socket| {
                    let (fd, code) = (socket.as_raw_fd(), code.as_raw_fd());
                    socket::set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_BPF, code)
                })
            }
            Program::Classic => {
                let code = program::classic(self.prefix, identifiers).ok_or_else(many)?;
                let step =
                    |step: &libc::sock_filter| SockFilter::new(step.code, step.jt, step.jf, step.k);
                let code: Vec<_> = code.iter().map(step).collect();
                self.sockets.iter().try_for_each(|one| one.socket.attach_filter(&code))
            }
        }
    }

    /// What it does.
    pub fn state(&self) -> FilterState {
        match self.program {
            _ if !self.is_on => FilterState::Off,
            Program::Extended { .. } => FilterState::Counting,
            Program::Classic => FilterState::Plain,
        }
    }

    /// Why there is none.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// What the kernel dropped before the node could read it, since the start, by reason.
    pub fn dropped(&self) -> [(DropReason, u64); 3] {
        self.look();
        let Dropped { stale, overflow, stale_or_overflow, .. } = self.dropped.get();
        [
            (DropReason::StaleAddress, stale),
            (DropReason::ReceiveOverflow, overflow),
            (DropReason::StaleOrOverflow, stale_or_overflow),
        ]
    }

    /// Takes in the kernel's counters. A socket's begins anew after 2^32.
    fn look(&self) {
        let more = self.sockets.iter().map(|one| {
            let now = socket::drops(one.socket.as_raw_fd()).unwrap_or(one.seen.get());
            u64::from(now.wrapping_sub(one.seen.replace(now)))
        });
        let more: u64 = more.sum();
        let mut dropped = self.dropped.get();
        match &self.program {
            // Counted after the sockets' drops were: of these, all that is the program's is in its
            // count, so that no drop of its shows as an overflow.
            Program::Extended { counts, .. } => {
                dropped.by_sockets += more;
                let count =
                    |number: u32| counts.read(&number.to_ne_bytes()).map_or(0, u64::from_ne_bytes);
                let overflow = dropped.by_sockets.saturating_sub(count(program::PACKETS));
                dropped.overflow = dropped.overflow.max(overflow);
                dropped.stale = count(program::FRAMES);
            }
            Program::Classic if self.is_on => dropped.stale_or_overflow += more,
            Program::Classic => dropped.overflow += more,
        }
        self.dropped.set(dropped);
    }
}

/// Has the kernel compile the extended program.
fn extended() -> io::Result<Program> {
    let used = Map::create(Kind::Hash, ADDRESSES_MAX)?;
    let counts = Map::create(Kind::Array, program::COUNTERS)?;
    let code = kernel::load(&program::extended(used.fd(), counts.fd()))?;
    Ok(Program::Extended { code, used, counts })
}

/// Brings a map, which has `known`, to `wanted`: new ones first, so that none is missing meanwhile.
fn fill(map: &Map<8, 1>, known: &mut BTreeSet<u64>, wanted: &[u64]) -> io::Result<()> {
    for id in wanted {
        if !known.contains(id) {
            map.insert(&id.to_be_bytes(), [1])?;
            known.insert(*id);
        }
    }
    let gone: Vec<u64> =
        known.iter().filter(|id| wanted.binary_search(id).is_err()).copied().collect();
    for id in gone {
        map.remove(&id.to_be_bytes())?;
        known.remove(&id);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
