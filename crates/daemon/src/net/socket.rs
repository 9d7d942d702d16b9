//! UDP sockets of the data plane, and the kernel's offloads on them.
//!
//! Every option is tried by itself: a refused one is left out and shown in the status. Sockets
//! never block. `IP_RECVERR` makes the device's queue visible: a send into a full queueing
//! discipline then returns ENOBUFS in place of success. The price: sends and receives also report
//! errors from ICMP messages, which anybody can forge for any destination. [`drain_errors`] tells
//! this kernel's own errors from those of ICMP messages (docs/design/decisions/forged-icmp.md).

#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use shoal_relay::FORMER_MAX;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Options of a socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// Receive buffer in bytes: bridges times in which the worker is not scheduled.
    pub receive_buffer_bytes: usize,
    /// Send buffer in bytes. Large, so that the queue of one slow path never blocks the others:
    /// that path returns ENOBUFS, and its own egress waits.
    pub send_buffer_bytes: usize,
    /// Ask for receive coalescing.
    pub gro: bool,
    /// Ask routers of the network below to mark datagrams in place of dropping them. The IP header
    /// shows this request.
    pub ecn: bool,
    /// Share the port between several sockets (one per worker).
    pub reuse_port: bool,
    /// If the socket is bound to no address: learn the address that datagrams came to, and let each
    /// send name its source.
    pub own_source: bool,
    /// Prefix of shifting addresses: sends may name them as source though no interface has them.
    pub shift: Option<[u8; 8]>,
}

/// Sources that a socket's sends may name.
#[derive(Clone, Debug)]
pub(crate) enum SourcePolicy {
    /// No source: the kernel chooses.
    Kernel,
    /// Any source.
    All,
    /// Sources under this prefix.
    Under(SharedPrefix),
}

/// The current prefix, which another thread may change, and the former ones. A link uses a former
/// prefix until its neighbour knows the current one.
#[derive(Clone, Debug)]
pub(crate) struct SharedPrefix(Arc<[AtomicU64; 1 + FORMER_MAX]>);

impl SharedPrefix {
    pub(crate) fn new(prefix: [u8; 8]) -> SharedPrefix {
        let one = |_| AtomicU64::new(u64::from_ne_bytes(prefix));
        SharedPrefix(Arc::new(std::array::from_fn(one)))
    }

    /// Sets a new prefix.
    pub(crate) fn set(&self, prefix: [u8; 8]) {
        // Relaxed: no other memory depends on these values.
        for (later, earlier) in self.0.iter().skip(1).zip(&*self.0).rev() {
            later.store(earlier.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        let [now, ..] = &*self.0;
        now.store(u64::from_ne_bytes(prefix), Ordering::Relaxed);
    }

    fn has(&self, octets: [u8; 16]) -> bool {
        let is_under =
            |one: &AtomicU64| octets.starts_with(&one.load(Ordering::Relaxed).to_ne_bytes());
        self.0.iter().any(is_under)
    }
}

impl SourcePolicy {
    /// True if a send may name this source.
    pub(crate) fn have(&self, source: SocketAddr) -> bool {
        match (self, source) {
            (SourcePolicy::All, _) => true,
            (SourcePolicy::Under(prefix), SocketAddr::V6(v6)) => prefix.has(v6.ip().octets()),
            (SourcePolicy::Under(_), SocketAddr::V4(_)) | (SourcePolicy::Kernel, _) => false,
        }
    }
}

impl SocketConfig {
    /// Sources that a socket bound to `local` may name. A socket bound to one address has no other
    /// source, and all its datagrams came to that address.
    pub(crate) fn sources(&self, local: SocketAddr) -> SourcePolicy {
        match self.shift.filter(|_| local.is_ipv6()) {
            _ if !local.ip().is_unspecified() => SourcePolicy::Kernel,
            _ if self.own_source => SourcePolicy::All,
            Some(prefix) => SourcePolicy::Under(SharedPrefix::new(prefix)),
            None => SourcePolicy::Kernel,
        }
    }
}

impl Default for SocketConfig {
    fn default() -> Self {
        // 4 MiB hold 30 ms at 1 Gbit/s, more than a busy machine keeps a thread waiting.
        SocketConfig {
            receive_buffer_bytes: 4 << 20,
            send_buffer_bytes: 4 << 20,
            gro: true,
            ecn: true,
            reuse_port: false,
            own_source: true,
            shift: None,
        }
    }
}

/// Offloads and options that this kernel granted on a socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketOffloads {
    /// UDP_SEGMENT: one send call, many frames.
    pub gso: bool,
    /// UDP_GRO: one receive call, many frames.
    pub gro: bool,
    /// Congestion marks of the network below can be read.
    pub ecn: bool,
    /// Send errors of the device's queue are reported.
    pub errors: bool,
    /// Receive buffer that the kernel granted, in bytes as it counts them.
    pub receive_buffer_bytes: usize,
    /// Send buffer that the kernel granted, in bytes as it counts them.
    pub send_buffer_bytes: usize,
}

/// Opens and binds a UDP socket, and sets all options that the kernel accepts.
pub fn open(listen: SocketAddr, config: &SocketConfig) -> anyhow::Result<(Socket, SocketOffloads)> {
    let socket = Socket::new(Domain::for_address(listen), Type::DGRAM, Some(Protocol::UDP))
        .with_context(|| format!("can't open a UDP socket for {listen}"))?;
    socket.set_nonblocking(true).context("can't make the UDP socket non-blocking")?;
    if listen.is_ipv6() {
        // Another socket serves IPv4, so that addresses never come back in mapped form.
        socket.set_only_v6(true).context("can't restrict the socket to IPv6")?;
    }
    if config.reuse_port {
        socket.set_reuse_port(true).context("can't share the port between workers")?;
    }
    bind(&socket, listen).map_err(|e| bind_error(listen, e))?;
    let offloads = set_options(&socket, listen, config);
    Ok((socket, offloads))
}

/// Binds, even to an address that comes later: by DHCP, or after duplicate address detection.
fn bind(socket: &Socket, listen: SocketAddr) -> io::Result<()> {
    let bound = socket.bind(&SockAddr::from(listen));
    if !bound.as_ref().is_err_and(|e| e.raw_os_error() == Some(libc::EADDRNOTAVAIL)) {
        return bound;
    }
    match listen.is_ipv4() {
        true => set(socket.as_raw_fd(), libc::IPPROTO_IP, libc::IP_FREEBIND, 1)?,
        false => set(socket.as_raw_fd(), libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1)?,
    }
    tracing::warn!(
        "[node] listen: one of these addresses is on no interface yet, so nothing arrives or \
         leaves there. `shoal status` names the address"
    );
    socket.bind(&SockAddr::from(listen))
}

fn bind_error(listen: SocketAddr, error: io::Error) -> anyhow::Error {
    let hint = match error.raw_os_error() {
        Some(libc::EADDRINUSE) => "another program uses this port: choose another in [node] listen",
        Some(libc::EADDRNOTAVAIL) => "no interface has this address: check [node] listen",
        Some(libc::EACCES) => "ports below 1024 need root or CAP_NET_BIND_SERVICE",
        _ => "check [node] listen",
    };
    anyhow::Error::new(error).context(format!("can't listen on {listen} ({hint})"))
}

fn set_options(socket: &Socket, listen: SocketAddr, config: &SocketConfig) -> SocketOffloads {
    let fd = socket.as_raw_fd();
    // FORCE goes beyond the system's limit and needs CAP_NET_ADMIN; without it, the limit applies.
    let buffer = |force, plain, bytes: usize| {
        let bytes = i32::try_from(bytes).unwrap_or(i32::MAX);
        let _granted = set(fd, libc::SOL_SOCKET, force, bytes).is_ok()
            || set(fd, libc::SOL_SOCKET, plain, bytes).is_ok();
    };
    buffer(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, config.receive_buffer_bytes);
    buffer(libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, config.send_buffer_bytes);
    let _counted = set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
    if config.shift.is_some() && listen.is_ipv6() {
        // Without this option, the kernel refuses addresses that no interface has.
        let _free = set(fd, libc::IPPROTO_IPV6, libc::IPV6_FREEBIND, 1);
    }
    // The kernel then reports each datagram's interface. Datagrams by the node's own are dropped.
    let _told = match listen.is_ipv4() {
        true => set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, 1),
        false => set(fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1),
    };
    // RFC 3168 section 5: with ECT(0), routers below may mark in place of dropping. 0 forbids it.
    let mark = if config.ecn { 2 } else { 0 };
    let (errors, ecn) = if listen.is_ipv4() {
        // PROBE: sets DF, and forged ICMP can't shorten what this socket sends. RFC 9000 section 14
        // asks the same of QUIC, so most UDP traffic has DF. INTERFACE would ignore forged ICMP
        // too, but sends without DF.
        let _probe =
            set(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE).is_ok();
        let ecn = set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, 1).is_ok()
            && set(fd, libc::IPPROTO_IP, libc::IP_TOS, mark).is_ok();
        (set(fd, libc::IPPROTO_IP, libc::IP_RECVERR, 1).is_ok(), ecn)
    } else {
        let v6 = libc::IPPROTO_IPV6;
        // INTERFACE: as PROBE, and the kernel drops Packet Too Big before it becomes an error.
        let _own = set(fd, v6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_INTERFACE).is_ok();
        let ecn = set(fd, v6, libc::IPV6_RECVTCLASS, 1).is_ok()
            && set(fd, v6, libc::IPV6_TCLASS, mark).is_ok();
        (set(fd, v6, libc::IPV6_RECVERR, 1).is_ok(), ecn)
    };
    SocketOffloads {
        // Reading the option tells whether the kernel knows it, without changing sends.
        gso: get(fd, libc::SOL_UDP, libc::UDP_SEGMENT).is_ok(),
        gro: config.gro && set(fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok(),
        ecn,
        errors,
        receive_buffer_bytes: get(fd, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0),
        send_buffer_bytes: get(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0),
    }
}

/// Bytes of the receive buffer in use, and its size, as the kernel counts them. None if the kernel
/// doesn't report them.
pub fn receive_fill(fd: RawFd) -> Option<(u64, u64)> {
    let [used, limit, ..] = memory_info(fd)?;
    (limit > 0).then(|| (used.into(), limit.into()))
}

/// Datagrams and aggregates that the kernel dropped at this socket, for lack of room or by its
/// filter. Wraps at 2^32. None if the kernel doesn't report it.
pub(crate) fn drops(fd: RawFd) -> Option<u32> {
    memory_info(fd).map(|info| info[8])
}

/// SK_MEMINFO_* in linux/sock_diag.h: receive bytes allocated, receive limit, ..., drops.
fn memory_info(fd: RawFd) -> Option<[u32; 9]> {
    let mut info = [0u32; 9];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: `info` is valid for writes of `len` bytes, and `len` says exactly that.
    let got = unsafe {
        libc::getsockopt(fd, libc::SOL_SOCKET, SO_MEMINFO, info.as_mut_ptr().cast(), &mut len)
    };
    (got == 0 && len as usize == size_of_val(&info)).then_some(info)
}

/// `SO_MEMINFO` of asm-generic/socket.h, which the libc crate lacks on some targets.
const SO_MEMINFO: i32 = 55;

/// True if the error queue may have no room for an entry: it shares the receive buffer.
pub(crate) fn is_crowded(fd: RawFd) -> bool {
    receive_fill(fd).is_some_and(|(used, limit)| used > limit / 4 * 3)
}

/// Content of a socket's error queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorQueueEntries {
    /// Entries made from ICMP messages, which may be forged and be about any destination.
    pub foreign: usize,
    /// True if this kernel itself reported EMSGSIZE for a send of this socket.
    pub too_long: bool,
}

/// Space for the control messages of one entry.
#[repr(C, align(8))]
struct ErrorControlBuffer([u8; 512]);

/// Maximum number of entries that one call of [`drain_errors`] reads.
const DRAINED_MAX: usize = 64;

/// Reads and discards the socket's error queue: a later send to another destination would report a
/// pending error.
pub fn drain_errors(fd: RawFd) -> ErrorQueueEntries {
    let mut byte = [0u8; 1];
    let mut control = ErrorControlBuffer([0; 512]);
    let mut drained = ErrorQueueEntries::default();
    for _ in 0..DRAINED_MAX {
        let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
        // SAFETY: an all-zero msghdr is valid: null pointers with zero lengths.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        // SAFETY: every pointer in `message` is valid for the length beside it, for this call.
        let got =
            unsafe { libc::recvmsg(fd, &mut message, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) };
        if got < 0 {
            return drained;
        }
        let used = message.msg_controllen.min(control.0.len());
        match own_error(&control.0[..used]) {
            Some(errno) => drained.too_long |= errno == libc::EMSGSIZE,
            None => drained.foreign += 1,
        }
    }
    drained
}

/// The error that the kernel itself reports, if these control messages have one.
/// `sock_extended_err` of linux/errqueue.h starts with the error, then a byte for its origin.
fn own_error(control: &[u8]) -> Option<i32> {
    let mut ours = None;
    for_each_note(control, |level, kind, data| {
        let errors =
            [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)];
        if errors.contains(&(level, kind)) && data.get(4) == Some(&libc::SO_EE_ORIGIN_LOCAL) {
            ours = data.first_chunk().map(|errno| i32::from_ne_bytes(*errno));
        }
    });
    ours
}

/// Calls `read` with level, type and data of each control message in `bytes`.
pub(crate) fn for_each_note(mut bytes: &[u8], mut read: impl FnMut(i32, i32, &[u8])) {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    const WORD: usize = size_of::<usize>();
    while let Some((header, _)) = bytes.split_at_checked(HEADER) {
        let word = |at: usize| i32::from_ne_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let mut len = [0; WORD];
        len.copy_from_slice(&header[..WORD]);
        let len = usize::from_ne_bytes(len);
        let Some(data) = bytes.get(HEADER..len) else { break };
        read(word(HEADER - 8), word(HEADER - 4), data);
        bytes = bytes.get(len.next_multiple_of(WORD)..).unwrap_or_default();
    }
}

pub(crate) fn set(fd: RawFd, level: i32, name: i32, value: i32) -> io::Result<()> {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to a live i32 and the length is its size.
    let done = unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), len) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn get(fd: RawFd, level: i32, name: i32) -> io::Result<usize> {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the pointer is to a live i32 and the length is its size.
    let done = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    if done == 0 {
        Ok(usize::try_from(value).unwrap_or(0))
    } else {
        Err(io::Error::last_os_error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_says_what_to_do() {
        let any = "127.0.0.1:0".parse().expect("literal");
        let (first, _) = open(any, &SocketConfig::default()).expect("loopback has a free port");
        let taken = first.local_addr().expect("bound").as_socket().expect("IPv4");
        let error = format!("{:#}", open(taken, &SocketConfig::default()).expect_err("in use"));
        assert!(error.contains("another program uses this port"), "{error}");
    }

    #[test]
    fn an_idle_socket_has_an_empty_buffer_and_no_errors() {
        let any = "127.0.0.1:0".parse().expect("literal");
        let (socket, offloads) = open(any, &SocketConfig::default()).expect("loopback");
        assert!(offloads.receive_buffer_bytes > 0 && offloads.send_buffer_bytes > 0);
        let (used, limit) = receive_fill(socket.as_raw_fd()).expect("SO_MEMINFO");
        assert!(used == 0 && limit > 0);
        assert_eq!(drain_errors(socket.as_raw_fd()), ErrorQueueEntries::default());
    }
}
