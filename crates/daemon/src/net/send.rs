//! Sends runs of equal frames: one system call with UDP_SEGMENT where the path supports it, else
//! one call for many messages.
//!
//! Some paths refuse segmentation (EIO, EINVAL, EMSGSIZE). Such a neighbour gets one message per
//! frame for a while; all others keep their offload.
//!
//! The kernel may refuse a source address that this machine has lost. The errors are EINVAL,
//! EADDRNOTAVAIL and, from newer kernels over IPv4, ENETUNREACH. The source is then avoided for a
//! shorter while, in which the kernel chooses one. Such an error says nothing about segmentation.

#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::time::Duration;

use shoal_relay::SendPath;
use shoal_wire::{LinkId, Time};
use socket2::SockAddr;

use crate::net::socket::{SharedPrefix, SourcePolicy, drain_errors, is_crowded};

/// Most segments per message: UDP_MAX_SEGMENTS of older kernels.
const SEGMENTS: usize = 64;
/// Most bytes per message: the longest UDP payload over IPv4.
const BYTES: usize = 65_507;
/// Most messages per call without segmentation.
const MESSAGES: usize = 64;
/// Most links in one `RefusalCache`; the entry that ends first is forgotten first.
const LINKS: usize = 256;
/// Time for which a refusal is remembered: devices and paths change.
const REFUSAL: Duration = Duration::from_secs(600);
/// Time for which the kernel chooses in place of a bad source.
const BAD_SOURCE: Duration = Duration::from_secs(10);

/// Result of sending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendResult {
    /// The kernel took all of it.
    Sent,
    /// No room: the socket's buffer is full (EAGAIN: a wake-up follows), or the queue of the device
    /// (ENOBUFS: no wake-up follows).
    Full {
        /// True if epoll reports when there is room again.
        wakes: bool,
    },
    /// The kernel refused with this error, and would again.
    Failed(i32),
}

/// Counters of sends since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct SendCounters {
    /// System calls.
    pub calls: u64,
    /// Frames that the kernel accepted.
    pub frames: u64,
    /// Bytes of UDP payload that the kernel accepted.
    pub bytes: u64,
    /// Times the device's queue was full (ENOBUFS).
    pub no_buffers: u64,
    /// Times the socket's buffer was full (EAGAIN).
    pub would_block: u64,
    /// Calls refused for another reason.
    pub failed: u64,
    /// Times a path refused segmentation.
    pub refused_gso: u64,
    /// Times the kernel refused a source address.
    pub bad_source: u64,
}

impl SendCounters {
    pub fn plus(&self, other: &SendCounters) -> SendCounters {
        SendCounters {
            calls: self.calls + other.calls,
            frames: self.frames + other.frames,
            bytes: self.bytes + other.bytes,
            no_buffers: self.no_buffers + other.no_buffers,
            would_block: self.would_block + other.would_block,
            failed: self.failed + other.failed,
            refused_gso: self.refused_gso + other.refused_gso,
            bad_source: self.bad_source + other.bad_source,
        }
    }
}

/// Sender of one socket.
pub struct DatagramSender {
    gso: bool,
    sources: SourcePolicy,
    /// Endpoints whose paths refuse segmentation. A neighbour that moved is tried again.
    refusing: RefusalCache<SocketAddr>,
    /// Sources that the kernel refused, and that are avoided for a while.
    bad: RefusalCache<IpAddr>,
    counters: SendCounters,
}

/// One refused endpoint or source for each link, with the time until which it is remembered.
struct RefusalCache<T>(BTreeMap<Option<LinkId>, (Time, T)>);

impl<T: PartialEq> RefusalCache<T> {
    /// True if `end` is remembered for `link` at `now`.
    fn holds(&mut self, now: Time, link: Option<LinkId>, end: &T) -> bool {
        let Some((until, known)) = self.0.get(&link) else { return false };
        let holds = now < *until && known == end;
        if !holds {
            self.0.remove(&link);
        }
        holds
    }

    fn note(&mut self, until: Time, link: Option<LinkId>, end: T) {
        if self.0.len() >= LINKS && !self.0.contains_key(&link) {
            let oldest = self.0.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(oldest) = oldest.map(|(link, _)| *link) {
                self.0.remove(&oldest);
            }
        }
        self.0.insert(link, (until, end));
    }
}

/// Control messages of a send, in the kernel's layout: the source address and the segment length.
#[repr(C, align(8))]
struct SendControl {
    bytes: [u8; 64],
    used: usize,
}

impl SendControl {
    fn new() -> SendControl {
        SendControl { bytes: [0; 64], used: 0 }
    }

    fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        const HEADER: usize = size_of::<libc::cmsghdr>();
        let len = HEADER + data.len();
        let note = &mut self.bytes[self.used..self.used + len];
        note[..size_of::<usize>()].copy_from_slice(&len.to_ne_bytes());
        note[HEADER - 8..HEADER - 4].copy_from_slice(&level.to_ne_bytes());
        note[HEADER - 4..HEADER].copy_from_slice(&kind.to_ne_bytes());
        note[HEADER..].copy_from_slice(data);
        self.used += len.next_multiple_of(size_of::<usize>());
    }

    fn push_source(&mut self, source: SocketAddr) {
        match source {
            // `in_pktinfo`: any interface, this source.
            SocketAddr::V4(v4) => {
                let mut info = [0; 12];
                info[4..8].copy_from_slice(&v4.ip().octets());
                self.push(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            // `in6_pktinfo`: this source, with its interface if the address is ambiguous without.
            SocketAddr::V6(v6) => {
                let mut info = [0; 20];
                info[..16].copy_from_slice(&v6.ip().octets());
                info[16..].copy_from_slice(&v6.scope_id().to_ne_bytes());
                self.push(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Points a message at these notes, which it must not outlive.
    fn attach(&mut self, message: &mut libc::msghdr) {
        if self.used > 0 {
            message.msg_control = self.bytes.as_mut_ptr().cast();
            message.msg_controllen = self.used as _;
        }
    }
}

impl DatagramSender {
    /// `gso`: the socket supports UDP_SEGMENT. `chooses`: the socket is bound to no address, so
    /// that each send may name its source.
    pub fn new(gso: bool, chooses: bool) -> DatagramSender {
        DatagramSender::naming(gso, if chooses { SourcePolicy::All } else { SourcePolicy::Kernel })
    }

    /// As [`Self::new`], with the rule for sources that a send may name.
    pub(crate) fn naming(gso: bool, sources: SourcePolicy) -> DatagramSender {
        let (refusing, bad) = (RefusalCache(BTreeMap::new()), RefusalCache(BTreeMap::new()));
        DatagramSender { gso, sources, refusing, bad, counters: SendCounters::default() }
    }

    /// The prefix of the sources that a send may name, if the rule is a prefix.
    pub(crate) fn names_under(&self) -> Option<SharedPrefix> {
        match &self.sources {
            SourcePolicy::Under(prefix) => Some(prefix.clone()),
            SourcePolicy::All | SourcePolicy::Kernel => None,
        }
    }

    pub fn counters(&self) -> SendCounters {
        self.counters
    }

    /// Number of neighbours whose paths refuse segmentation at present.
    pub fn refusing(&self) -> usize {
        self.refusing.0.len()
    }

    /// Sends frames in this order. Returns the number of leading ones that the kernel accepted, and
    /// the result for the rest.
    pub fn send(
        &mut self,
        fd: RawFd,
        now: Time,
        path: SendPath,
        frames: OutboundRun<'_>,
    ) -> (usize, SendResult) {
        let address = SockAddr::from(path.ends.remote);
        let mut source = self.source(now, path);
        let per_message = (BYTES / frames.len.max(1)).clamp(1, SEGMENTS);
        let (mut sent, mut refused, mut blamed) = (0, false, None::<SocketAddr>);
        while sent < frames.offsets.len() {
            let rest = frames.offsets.len() - sent;
            let mut refuses = || self.refusing.holds(now, path.link, &path.ends.remote);
            let together = self.gso && rest > 1 && !refuses();
            let count = rest.min(if together { per_message } else { MESSAGES });
            let run = OutboundRun { offsets: &frames.offsets[sent..sent + count], ..frames };
            let outcome = if together {
                self.send_segmented(fd, (source, &address), run).map(|()| count)
            } else {
                self.send_each(fd, (source, &address), run)
            };
            match outcome {
                Ok(taken) => {
                    sent += taken;
                    self.counters.frames += taken as u64;
                    self.counters.bytes += (taken * frames.len) as u64;
                    if let Some(bad) = blamed.take() {
                        self.counters.bad_source += 1;
                        self.bad.note(now + BAD_SOURCE, path.link, bad.ip());
                    }
                }
                // The next try names no source, and so shows whether the source was at fault.
                Err(libc::EINVAL | libc::EADDRNOTAVAIL | libc::ENETUNREACH) if source.is_some() => {
                    blamed = source.take();
                }
                Err(libc::EIO | libc::EINVAL | libc::EMSGSIZE) if together => {
                    // The source was not at fault, or not alone.
                    (source, blamed) = (source.or(blamed), None);
                    self.counters.refused_gso += 1;
                    self.refusing.note(now + REFUSAL, path.link, path.ends.remote);
                    refused = true;
                }
                Err(errno) => {
                    if errno == libc::EMSGSIZE && refused {
                        // The length was at fault, not the segmentation.
                        self.refusing.0.remove(&path.link);
                    }
                    return (sent, self.outcome(errno));
                }
            }
        }
        (sent, SendResult::Sent)
    }

    /// Source to name in a send; none if the kernel is to choose.
    fn source(&mut self, now: Time, path: SendPath) -> Option<SocketAddr> {
        let same = |local: &SocketAddr| local.is_ipv4() == path.ends.remote.is_ipv4();
        let local = path.ends.local.filter(|local| self.sources.have(*local) && same(local))?;
        (!self.bad.holds(now, path.link, &local.ip())).then_some(local)
    }

    fn outcome(&mut self, errno: i32) -> SendResult {
        match errno {
            libc::ENOBUFS | libc::ENOMEM => {
                self.counters.no_buffers += 1;
                SendResult::Full { wakes: false }
            }
            libc::EAGAIN => {
                self.counters.would_block += 1;
                SendResult::Full { wakes: true }
            }
            _ => {
                self.counters.failed += 1;
                SendResult::Failed(errno)
            }
        }
    }

    fn send_segmented(
        &mut self,
        fd: RawFd,
        (source, to): (Option<SocketAddr>, &SockAddr),
        run: OutboundRun<'_>,
    ) -> Result<(), i32> {
        let size = u16::try_from(run.len).map_err(|_| libc::EINVAL)?;
        let mut notes = SendControl::new();
        if let Some(source) = source {
            notes.push_source(source);
        }
        notes.push(libc::SOL_UDP, libc::UDP_SEGMENT, &size.to_ne_bytes());
        let mut parts = EMPTY;
        let used = run.gather(&mut parts);
        let mut message = header(to, &mut parts[..used]);
        notes.attach(&mut message);
        past_errors(fd, || {
            self.counters.calls += 1;
            // SAFETY: name, parts and control point to `to`, `run` and `notes`. They outlive the
            // call and are valid for the lengths beside them. sendmsg only reads them.
            result(unsafe { libc::sendmsg(fd, &raw const message, libc::MSG_DONTWAIT) } as isize)
        })?;
        Ok(())
    }

    /// Sends one message per frame. Returns the number that the kernel accepted, at least one.
    fn send_each(
        &mut self,
        fd: RawFd,
        (source, to): (Option<SocketAddr>, &SockAddr),
        run: OutboundRun<'_>,
    ) -> Result<usize, i32> {
        let mut notes = SendControl::new();
        if let Some(source) = source {
            notes.push_source(source);
        }
        let count = run.offsets.len().min(MESSAGES);
        let mut parts = EMPTY;
        for (part, &offset) in parts.iter_mut().zip(run.offsets) {
            *part = run.piece(offset as usize, run.len);
        }
        // SAFETY: an all-zero mmsghdr is valid: null pointers with zero lengths.
        let mut headers: [libc::mmsghdr; MESSAGES] = unsafe { std::mem::zeroed() };
        for (slot, part) in headers.iter_mut().zip(parts.chunks_exact_mut(1)).take(count) {
            slot.msg_hdr = header(to, part);
            notes.attach(&mut slot.msg_hdr);
        }
        past_errors(fd, || {
            self.counters.calls += 1;
            // SAFETY: the first `count` headers point to `to`, `parts`, `notes` and `run`. They
            // outlive the call and are valid for the lengths beside them. The kernel writes only
            // msg_len.
            result(unsafe {
                libc::sendmmsg(
                    fd,
                    headers.as_mut_ptr(),
                    count as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                )
            } as isize)
        })
    }
}

/// Frames of equal length at any offsets in a buffer.
#[derive(Clone, Copy)]
pub struct OutboundRun<'a> {
    pub buffer: &'a [u8],
    /// Offset of each frame.
    pub offsets: &'a [u32],
    /// Length of each frame.
    pub len: usize,
}

const EMPTY: [libc::iovec; MESSAGES] =
    [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MESSAGES];

impl OutboundRun<'_> {
    /// Bytes that the kernel will only read.
    fn piece(&self, start: usize, len: usize) -> libc::iovec {
        let bytes = &self.buffer[start..start + len];
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: len }
    }

    /// One piece per stretch of adjacent frames: fewer pieces make the kernel's copy faster.
    fn gather(&self, parts: &mut [libc::iovec]) -> usize {
        let mut used = 0;
        let mut offsets = self.offsets.iter().map(|&o| o as usize).peekable();
        while let (Some(start), true) = (offsets.next(), used < parts.len()) {
            let mut end = start + self.len;
            while offsets.next_if_eq(&end).is_some() {
                end += self.len;
            }
            parts[used] = self.piece(start, end - start);
            used += 1;
        }
        used
    }
}

fn header(to: &SockAddr, parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid: null pointers with zero lengths.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_name = to.as_ptr().cast_mut().cast();
    message.msg_namelen = to.len();
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    message
}

fn result(returned: isize) -> Result<usize, i32> {
    usize::try_from(returned)
        .map_err(|_| io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Most calls of one send, before it counts as "no room". Only a flood of forged ICMP makes so many
/// fail.
const TRIES: usize = 8;

/// Calls `send` again where its error may be about another destination. With IP_RECVERR a send
/// first reports an error that an ICMP message left behind, and sends nothing. Anybody can forge
/// such messages. So an error counts only while the socket's error queue is empty and has room:
/// entries are read, and the send is tried again. It counts if it then comes twice in a row.
/// EMSGSIZE counts at once if the queue says that this kernel itself found the frame too long.
fn past_errors(fd: RawFd, mut send: impl FnMut() -> Result<usize, i32>) -> Result<usize, i32> {
    let mut before = None;
    for _ in 0..TRIES {
        let errno = match send() {
            Err(libc::EINTR) => continue,
            Err(errno @ (libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM)) => return Err(errno),
            Err(errno) => errno,
            sent => return sent,
        };
        let found = drain_errors(fd);
        let own_word = found.too_long && errno == libc::EMSGSIZE;
        if found.foreign > 0 || (!own_word && is_crowded(fd)) {
            before = None;
        } else if own_word || before == Some(errno) {
            return Err(errno);
        } else {
            before = Some(errno);
        }
    }
    Err(libc::ENOBUFS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shoal_session::Endpoints;

    fn at(host: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, host], 7_400))
    }

    #[test]
    fn the_memory_of_links_is_bounded_and_ends_with_time_or_when_a_neighbour_moves() {
        let link = |bits| Some(LinkId::from_bits(bits));
        let (now, mut memory) = (Time::from_millis(5), RefusalCache(BTreeMap::new()));
        memory.note(now, link(1), at(1));
        assert!(memory.holds(Time::ZERO, link(1), &at(1)));
        assert!(!memory.holds(Time::ZERO, link(2), &at(1)), "another neighbour");
        assert!(!memory.holds(now, link(1), &at(1)), "path may have changed");
        memory.note(now, link(1), at(1));
        assert!(!memory.holds(Time::ZERO, link(1), &at(2)), "the neighbour is elsewhere");
        for bits in 0..=LINKS as u32 {
            memory.note(now + Duration::from_millis(bits.into()), link(bits), at(1));
        }
        assert_eq!(memory.0.len(), LINKS);
        assert!(!memory.holds(Time::ZERO, link(0), &at(1)), "the oldest is forgotten");
        assert!(memory.holds(Time::ZERO, link(LINKS as u32), &at(1)));
    }

    #[test]
    fn a_socket_asks_for_a_source_that_it_may_choose_and_that_is_not_bad() {
        let (now, mut sender) = (Time::from_millis(5), DatagramSender::new(true, true));
        let path = |link, local| SendPath {
            link: Some(LinkId::from_bits(link)),
            ends: Endpoints { local: Some(local), remote: at(1) },
        };
        sender.bad.note(now + BAD_SOURCE, path(1, at(2)).link, at(2).ip());
        assert_eq!(sender.source(now, path(1, at(2))), None);
        assert_eq!(sender.source(now, path(2, at(2))), Some(at(2)));
        assert_eq!(sender.source(now + BAD_SOURCE, path(1, at(2))), Some(at(2)));
        let other = SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], 7_400));
        assert_eq!(sender.source(now, path(1, other)), None, "another family");
        let mut bound = DatagramSender::new(true, false);
        assert_eq!(bound.source(now, path(2, at(2))), None, "bound");
        let six = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 7_400);
        let ends = |local| Endpoints { local: Some(six(local)), remote: six("2001:db8::1") };
        let path = |local| SendPath { link: None, ends: ends(local) };
        let prefix = [0x20, 1, 0x0d, 0xb8, 0, 1, 0, 2];
        let mut host = DatagramSender::naming(true, SourcePolicy::Under(SharedPrefix::new(prefix)));
        assert_eq!(host.source(now, path("2001:db8::7")), None, "the kernel knows better");
        let shifts = six("2001:db8:1:2:3:4:5:6");
        assert_eq!(host.source(now, path("2001:db8:1:2:3:4:5:6")), Some(shifts));
        host.names_under().unwrap().set([0x20, 1, 0x0d, 0xb8, 0, 1, 0, 3]);
        assert!(host.source(now, path("2001:db8:1:2:3:4:5:6")).is_some(), "the one before");
        assert!(host.source(now, path("2001:db8:1:3:3:4:5:6")).is_some());
        for last in 4..4 + shoal_relay::FORMER_MAX as u8 {
            host.names_under().unwrap().set([0x20, 1, 0x0d, 0xb8, 0, 1, 0, last]);
        }
        assert!(host.source(now, path("2001:db8:1:3:3:4:5:6")).is_some(), "the earliest kept");
        assert_eq!(host.source(now, path("2001:db8:1:2:3:4:5:6")), None);
    }
}
