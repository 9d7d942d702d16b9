//! Socket filter in the kernel for a node whose addresses shift. Datagrams to unused addresses then
//! cost no decryption and no room in a socket's buffer.
//!
//! ```text
//! extended   root or CAP_BPF at the start   one program, addresses in a map; counts frames
//! classic    no right                       another program when addresses change; can't count
//! ```
//!
//! A socket's own drop counter sums overflows, datagrams with a wrong UDP checksum, and the
//! filter's drops. With the extended program, drops that it did not count itself count as
//! overflows, including wrong checksums. With the classic program nobody can tell them apart: all
//! count as `stale_or_overflow`.

mod kernel;
mod program;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use shoal_wire::DropReason;
use socket2::{SockFilter, Socket};

use crate::net::socket;
use kernel::{BpfMapKind, Map};

/// Most addresses of the extended program. The classic one is limited by its length.
const ADDRESSES_MAX: u32 = 16_384;

/// Program that the kernel runs for each datagram.
enum FilterProgram {
    Extended { code: OwnedFd, used: Map<8, 1>, counts: Map<4, 8> },
    Classic,
}

/// Datagrams that the kernel dropped before the node could read them.
#[derive(Clone, Copy, Default)]
struct FilterDrops {
    /// Drops for any reason, by the sockets' own counters; summed up for the extended program only.
    by_sockets: u64,
    stale: u64,
    overflow: u64,
    stale_or_overflow: u64,
}

/// Effect of the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterState {
    /// Drops datagrams, and counts them.
    Counting,
    /// Drops datagrams, and can't tell them from overflows.
    Plain,
    /// No filter is attached.
    Off,
}

/// A socket, with its drop counter at the last look.
struct FilteredSocket {
    socket: Socket,
    seen: Cell<u32>,
}

/// The filter of all sockets whose addresses shift.
pub struct ShiftFilter {
    sockets: Vec<FilteredSocket>,
    prefix: [u8; 8],
    program: FilterProgram,
    /// Keys of the extended program's map.
    used: BTreeSet<u64>,
    is_on: bool,
    /// Reason why the filter is off.
    fault: Option<String>,
    dropped: Cell<FilterDrops>,
}

impl ShiftFilter {
    /// Attaches a filter to these sockets. No address of the prefix is in use yet.
    pub fn open(sockets: Vec<Socket>, prefix: [u8; 8]) -> ShiftFilter {
        for one in &sockets {
            // The drop counter that comes with datagrams would include the filter's drops.
            let _untold = socket::set(one.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 0);
        }
        let program = extended().unwrap_or_else(|error| {
            tracing::debug!("no extended filter program: {error}");
            FilterProgram::Classic
        });
        ShiftFilter::with(program, sockets, prefix)
    }

    fn with(program: FilterProgram, sockets: Vec<Socket>, prefix: [u8; 8]) -> ShiftFilter {
        let guarded = |socket: Socket| {
            let seen = Cell::new(socket::drops(socket.as_raw_fd()).unwrap_or(0));
            FilteredSocket { socket, seen }
        };
        let mut filter = ShiftFilter {
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

    /// Changes the prefix. Datagrams to the former one are accepted.
    pub fn move_to(&mut self, prefix: [u8; 8], identifiers: &[u64]) {
        self.prefix = prefix;
        self.let_in(identifiers);
    }

    /// Accepts datagrams to these addresses of the prefix, and drops those to its other addresses.
    /// `identifiers` must be sorted.
    pub fn let_in(&mut self, identifiers: &[u64]) {
        // Drops up to this point belong to the former program.
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
            tracing::warn!("[shift]: no filter in the kernel: `shoal status` says why");
        }
    }

    fn change(&mut self, identifiers: &[u64]) -> io::Result<()> {
        let many = || {
            let text =
                format!("{} addresses are in use, too many for the filter", identifiers.len());
            io::Error::other(text)
        };
        match &self.program {
            FilterProgram::Extended { code, used, counts } => {
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
            FilterProgram::Classic => {
                let code = program::classic(self.prefix, identifiers).ok_or_else(many)?;
                let step =
                    |step: &libc::sock_filter| SockFilter::new(step.code, step.jt, step.jf, step.k);
                let code: Vec<_> = code.iter().map(step).collect();
                self.sockets.iter().try_for_each(|one| one.socket.attach_filter(&code))
            }
        }
    }

    pub fn state(&self) -> FilterState {
        match self.program {
            _ if !self.is_on => FilterState::Off,
            FilterProgram::Extended { .. } => FilterState::Counting,
            FilterProgram::Classic => FilterState::Plain,
        }
    }

    /// Reason why there is no filter.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Datagrams that the kernel dropped before the node could read them, since the start, by
    /// reason.
    pub fn dropped(&self) -> [(DropReason, u64); 3] {
        self.look();
        let FilterDrops { stale, overflow, stale_or_overflow, .. } = self.dropped.get();
        [
            (DropReason::StaleAddress, stale),
            (DropReason::ReceiveOverflow, overflow),
            (DropReason::StaleOrOverflow, stale_or_overflow),
        ]
    }

    /// Reads the kernel's counters. A socket's counter wraps at 2^32.
    fn look(&self) {
        let more = self.sockets.iter().map(|one| {
            let now = socket::drops(one.socket.as_raw_fd()).unwrap_or(one.seen.get());
            u64::from(now.wrapping_sub(one.seen.replace(now)))
        });
        let more: u64 = more.sum();
        let mut dropped = self.dropped.get();
        match &self.program {
            // The sockets' counters were read first. The program's count therefore includes every
            // drop of the filter among theirs, and none is mistaken for an overflow.
            FilterProgram::Extended { counts, .. } => {
                dropped.by_sockets += more;
                let count =
                    |number: u32| counts.read(&number.to_ne_bytes()).map_or(0, u64::from_ne_bytes);
                let overflow = dropped.by_sockets.saturating_sub(count(program::PACKETS));
                dropped.overflow = dropped.overflow.max(overflow);
                dropped.stale = count(program::FRAMES);
            }
            FilterProgram::Classic if self.is_on => dropped.stale_or_overflow += more,
            FilterProgram::Classic => dropped.overflow += more,
        }
        self.dropped.set(dropped);
    }
}

/// Loads the extended program into the kernel.
fn extended() -> io::Result<FilterProgram> {
    let used = Map::create(BpfMapKind::Hash, ADDRESSES_MAX)?;
    let counts = Map::create(BpfMapKind::Array, program::COUNTERS)?;
    let code = kernel::load(&program::extended(used.fd(), counts.fd()))?;
    Ok(FilterProgram::Extended { code, used, counts })
}

/// Changes the keys of a map from `known` to `wanted`. Adds new ones first, so that none is missing
/// in between.
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
