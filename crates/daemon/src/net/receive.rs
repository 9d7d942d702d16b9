//! Receives many datagrams in one call, with equal frames laid out side by side.
//!
//! ```text
//! | 1440 | 1440 | 1440 | ...     slots: the first bytes of message 0, 1, 2, ...
//! | room 1440 | up to 62 kB | room 1440 | ...     overflow: the rest of message 0, 1, ...
//! ```
//!
//! With GRO a message is up to 64 kB of frames. Without it (offloads off, many peers) every frame
//! is a message of its own. Each message is scattered over its slot and its overflow area. Single
//! full frames are then contiguous across messages, and the send that follows takes them as one
//! piece. For an aggregate, the slot is copied in front of the rest: one short copy per 64 kB.

#![allow(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use shoal_relay::ReceivedRun;
use shoal_session::Endpoints;
use shoal_wire::{DropReason, SizeClass};

use crate::net::socket::{drain_errors, for_each_note, receive_fill};

/// Bytes of a slot: the longest frame.
const SLOT: usize = SizeClass::Full.frame_len();
/// Most messages per call when each holds one frame.
const MESSAGES: usize = 64;
/// Most messages per call when they are aggregates: 256 KiB together. Any core keeps so much in its
/// second-level cache from the copy out of the kernel to the copy back into it.
const AGGREGATES: usize = 4;
/// Longest UDP payload over IPv4 in bytes.
const PAYLOAD_MAX: usize = 65_507;
/// Bytes between overflow areas: space for the slot's copy, then the rest. Not a power of two, so
/// that the first lines of all areas don't compete for the same cache sets.
const OVERFLOW: usize = SLOT + (PAYLOAD_MAX - SLOT).next_multiple_of(64);
/// Offset of the overflow areas in the buffer.
const OVERFLOWS_AT: usize = MESSAGES * SLOT;

/// Fill of the receive buffer, in 1/256, above which arriving frames count as congested.
const CONGESTED_FILL: u64 = 64;
/// Fill in bytes with the same meaning, for large buffers: the lower of both limits counts. 2 MiB
/// are 5 ms at 3.4 Gbit/s.
const CONGESTED_BYTES: u64 = 2 << 20;

/// Space for control messages: ECN, GRO size, overflow count (24 bytes each), and the destination
/// address (40 bytes).
#[derive(Clone, Copy)]
#[repr(C, align(8))]
struct ReceiveControlBuffer([u8; 128]);

/// The kernel's index of the node's own interface; 0 without one. It changes when the interface is
/// created again.
pub type InterfaceNumber = Arc<AtomicU32>;

/// Buffers of one socket's receive calls, reused for its whole life.
pub struct DatagramReceiver {
    buffer: Box<[u8]>,
    names: Box<[[u8; 28]]>,
    control: Box<[ReceiveControlBuffer]>,
    runs: Vec<ReceivedRun>,
    /// Address that the socket is bound to.
    bound: SocketAddr,
    /// True if the kernel chooses the source of answers, whatever address datagrams came to.
    kernel_chooses: bool,
    own_interface: InterfaceNumber,
    messages: usize,
    overflows: u32,
    congested: bool,
    counters: ReceiveCounters,
    /// Counters at the last [`DatagramReceiver::take_drops`].
    told: ReceiveCounters,
}

/// Counters of receives since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceiveCounters {
    /// System calls that returned something.
    pub calls: u64,
    /// Messages; with GRO one message is many datagrams.
    pub messages: u64,
    /// Bytes of UDP payload.
    pub bytes: u64,
    /// Datagrams that the kernel dropped because the buffer was full.
    pub overflows: u64,
    /// Datagrams without a byte of payload.
    pub empty: u64,
    /// Datagrams that arrived by the node's own interface.
    pub own_interface: u64,
}

impl ReceiveCounters {
    pub fn plus(&self, other: &ReceiveCounters) -> ReceiveCounters {
        ReceiveCounters {
            calls: self.calls + other.calls,
            messages: self.messages + other.messages,
            bytes: self.bytes + other.bytes,
            overflows: self.overflows + other.overflows,
            empty: self.empty + other.empty,
            own_interface: self.own_interface + other.own_interface,
        }
    }
}

impl DatagramReceiver {
    /// Receiver of a socket that is bound to `bound`. Allocates about 4 MiB of address space; pages
    /// are used as traffic touches them.
    pub fn new(bound: SocketAddr) -> DatagramReceiver {
        DatagramReceiver {
            buffer: vec![0; OVERFLOWS_AT + MESSAGES * OVERFLOW].into_boxed_slice(),
            names: vec![[0; 28]; MESSAGES].into_boxed_slice(),
            control: vec![ReceiveControlBuffer([0; 128]); MESSAGES].into_boxed_slice(),
            runs: Vec::with_capacity(MESSAGES),
            bound,
            kernel_chooses: false,
            own_interface: InterfaceNumber::default(),
            messages: AGGREGATES,
            overflows: 0,
            congested: false,
            counters: ReceiveCounters::default(),
            told: ReceiveCounters::default(),
        }
    }

    /// Sets whether the kernel chooses the source address of answers.
    pub fn where_kernel_chooses(mut self, kernel_chooses: bool) -> DatagramReceiver {
        self.kernel_chooses = kernel_chooses;
        self
    }

    /// Sets the node's own interface. Datagrams that arrive by it are dropped: they came through
    /// the network, and answers would go back into it.
    pub fn set_own_interface(&mut self, number: InterfaceNumber) {
        self.own_interface = number;
    }

    pub fn counters(&self) -> ReceiveCounters {
        self.counters
    }

    /// Datagrams lost or ignored here since the last call, by reason.
    pub fn take_drops(&mut self) -> [(DropReason, u64); 3] {
        let told = std::mem::replace(&mut self.told, self.counters);
        [
            (DropReason::ReceiveOverflow, self.counters.overflows - told.overflows),
            (DropReason::BadSize, self.counters.empty - told.empty),
            (DropReason::OwnInterface, self.counters.own_interface - told.own_interface),
        ]
    }

    /// Receives waiting datagrams, without blocking. Returns true if the call was full, so that
    /// more may wait. Discards the runs of the last call.
    pub fn receive(&mut self, fd: RawFd) -> io::Result<bool> {
        self.runs.clear();
        let mut headers: [libc::mmsghdr; MESSAGES] = {
            // SAFETY: an all-zero mmsghdr is valid: null pointers with zero lengths.
            unsafe { std::mem::zeroed() }
        };
        let mut parts = [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; MESSAGES * 2];
        let asked = self.messages;
        let (slots, overflow) = self.buffer.split_at_mut(OVERFLOWS_AT);
        let buffers = slots
            .chunks_exact_mut(SLOT)
            .zip(overflow.chunks_exact_mut(OVERFLOW))
            .zip(self.names.iter_mut().zip(self.control.iter_mut()));
        let places = headers.iter_mut().zip(parts.chunks_exact_mut(2));
        for ((header, part), ((slot, rest), (name, control))) in places.zip(buffers).take(asked) {
            part[0] = libc::iovec { iov_base: slot.as_mut_ptr().cast(), iov_len: SLOT };
            let rest = &mut rest[SLOT..];
            part[1] = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
            let message = &mut header.msg_hdr;
            message.msg_name = name.as_mut_ptr().cast();
            message.msg_namelen = name.len() as libc::socklen_t;
            message.msg_iov = part.as_mut_ptr();
            message.msg_iovlen = 2;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control.0.len() as _;
        }
        let got = past_errors(fd, || {
            // SAFETY: the first `asked` headers point to names, parts and control buffers, each
            // with its true length. All live in `self` or on this stack frame, and nothing else
            // touches them during the call. The time-out is null: the socket doesn't block.
            unsafe {
                libc::recvmmsg(
                    fd,
                    headers.as_mut_ptr(),
                    asked as libc::c_uint,
                    libc::MSG_DONTWAIT as _,
                    std::ptr::null_mut(),
                )
            }
        })?;
        let before = self.counters.bytes;
        for (index, header) in headers.iter().enumerate().take(got) {
            self.note(index, header);
        }
        self.counters.calls += 1;
        self.counters.messages += got as u64;
        let mean = (self.counters.bytes - before) as usize / got.max(1);
        self.messages = if mean > 4 * SLOT { AGGREGATES } else { MESSAGES };
        let full = got == asked;
        // The receive buffer of a slow worker is a queue: frames are marked before it overflows.
        self.congested = full
            && receive_fill(fd).is_some_and(|(used, limit)| {
                used > CONGESTED_BYTES.min(limit * CONGESTED_FILL / 256)
            });
        Ok(full)
    }

    /// Result of the last call: the buffer, and the runs of each source in it.
    pub fn batch(&mut self) -> (&mut [u8], &[ReceivedRun]) {
        (&mut self.buffer, &self.runs)
    }

    fn note(&mut self, index: usize, header: &libc::mmsghdr) {
        let len = (header.msg_len as usize).min(PAYLOAD_MAX);
        let name = &self.names[index];
        let named = (header.msg_hdr.msg_namelen as usize).min(name.len());
        let Some(remote) = source(&name[..named]) else { return };
        let used = header.msg_hdr.msg_controllen.min(self.control[index].0.len());
        let notes = ReceivedControl::parse(&self.control[index].0[..used]);
        if let Some(overflows) = notes.overflows {
            self.counters.overflows += u64::from(overflows.wrapping_sub(self.overflows));
            self.overflows = overflows;
        }
        let stride = notes.segment.filter(|&s| s > 0 && s < len).unwrap_or(len);
        let own = self.own_interface.load(Ordering::Relaxed);
        if own != 0 && notes.interface == Some(own) {
            self.counters.own_interface += len.div_ceil(stride.max(1)) as u64;
            return;
        }
        let from = Endpoints { local: self.local(&notes), remote };
        self.counters.bytes += len as u64;
        if len == 0 {
            self.counters.empty += 1;
            return;
        }
        let congested = notes.marked || self.congested;
        let mut offset = index * SLOT;
        if len > SLOT {
            let slot = offset..offset + SLOT;
            offset = OVERFLOWS_AT + index * OVERFLOW;
            self.buffer.copy_within(slot, offset);
        } else if len == SLOT
            && stride == SLOT
            && let Some(last) = self.runs.last_mut()
            && last.stride as usize == SLOT
            && (last.offset + last.len) as usize == offset
            && last.from == from
            && last.congested == congested
        {
            last.len += SLOT as u32;
            return;
        }
        // The buffer is shorter than 2^32 bytes (asserted below).
        let (offset, len, stride) = (offset as u32, len as u32, stride as u32);
        self.runs.push(ReceivedRun { from, offset, len, stride, congested });
    }

    /// Local address that a datagram came to, with the socket's port. None for a multicast group,
    /// from which no answer can leave.
    fn local(&self, notes: &ReceivedControl) -> Option<SocketAddr> {
        let is_own = |at: &SocketAddr| !at.ip().is_unspecified() && !at.ip().is_multicast();
        let came_to = notes.came_to.filter(|_| !self.kernel_chooses);
        let mut local = came_to.or(Some(self.bound)).filter(is_own)?;
        local.set_port(self.bound.port());
        Some(local)
    }
}

const _: () = assert!(OVERFLOWS_AT + MESSAGES * OVERFLOW <= u32::MAX as usize);

/// With IP_RECVERR, a receive first reports the error of an ICMP message about some send, and
/// brings no datagram. Reads such errors and tries again, a few times.
fn past_errors(fd: RawFd, mut receive: impl FnMut() -> i32) -> io::Result<usize> {
    const TRIES: usize = 4;
    for _ in 1..TRIES {
        if let Ok(got) = usize::try_from(receive()) {
            return Ok(got);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            return Err(error);
        }
        let _about_sends = drain_errors(fd);
    }
    usize::try_from(receive()).map_err(|_| io::Error::last_os_error())
}

/// Content of the control messages of one received message.
#[derive(Default)]
struct ReceivedControl {
    segment: Option<usize>,
    marked: bool,
    overflows: Option<u32>,
    /// Destination address, without the port.
    came_to: Option<SocketAddr>,
    /// Index of the interface.
    interface: Option<u32>,
}

impl ReceivedControl {
    fn parse(bytes: &[u8]) -> ReceivedControl {
        let mut notes = ReceivedControl::default();
        for_each_note(bytes, |level, kind, data| {
            let int = || data.first_chunk::<4>().map(|b| i32::from_ne_bytes(*b));
            match (level, kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    notes.segment = int().and_then(|n| usize::try_from(n).ok());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    notes.marked = data.first().is_some_and(|tos| tos & 3 == 3);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    notes.marked = int().is_some_and(|class| class & 3 == 3);
                }
                // `in_pktinfo`: interface, the address to answer from, the header's destination.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    let ip = data.get(4..).and_then(|rest| rest.first_chunk::<4>());
                    notes.came_to = ip.map(|ip| SocketAddr::from((*ip, 0)));
                    notes.interface = data.first_chunk().map(|number| u32::from_ne_bytes(*number));
                }
                // `in6_pktinfo`: the header's destination, interface.
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    let parts = data.split_first_chunk::<16>();
                    let parts = parts.and_then(|(ip, rest)| Some((ip, rest.first_chunk()?)));
                    notes.interface = parts.map(|(_, number)| u32::from_ne_bytes(*number));
                    notes.came_to = parts.map(|(ip, interface)| {
                        let ip = Ipv6Addr::from(*ip);
                        // Only link-local addresses need their interface.
                        let scoped = ip.is_unicast_link_local();
                        let scope = if scoped { u32::from_ne_bytes(*interface) } else { 0 };
                        SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, scope))
                    });
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => {
                    notes.overflows = data.first_chunk::<4>().map(|b| u32::from_ne_bytes(*b));
                }
                _ => {}
            }
        });
        notes
    }
}

fn source(name: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*name.first_chunk()?);
    let port = u16::from_be_bytes([*name.get(2)?, *name.get(3)?]);
    match i32::from(family) {
        libc::AF_INET => {
            let ip: [u8; 4] = name.get(4..8)?.try_into().ok()?;
            Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::from(ip)), port))
        }
        libc::AF_INET6 => {
            let ip: [u8; 16] = name.get(8..24)?.try_into().ok()?;
            let scope = u32::from_ne_bytes(name.get(24..28)?.try_into().ok()?);
            Some(SocketAddr::V6(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, scope)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_local_address_is_the_destination_of_a_datagram_if_that_can_answer() {
        let local = |bound: &str, came_to: &str| {
            let ip: Ipv6Addr = came_to.parse().expect("literal");
            let mut control = Vec::new();
            control.extend((size_of::<libc::cmsghdr>() + 20).to_ne_bytes());
            control.extend([libc::IPPROTO_IPV6, libc::IPV6_PKTINFO].map(i32::to_ne_bytes).concat());
            control.extend(ip.octets());
            control.extend(3u32.to_ne_bytes());
            let receiver = DatagramReceiver::new(bound.parse().expect("literal"));
            receiver.local(&ReceivedControl::parse(&control)).map(|local| local.to_string())
        };
        let at = |local: &str| Some(local.to_owned());
        assert_eq!(local("[::]:7400", "2001:db8::1"), at("[2001:db8::1]:7400"));
        assert_eq!(local("[::]:7400", "fe80::1"), at("[fe80::1%3]:7400"));
        assert_eq!(local("[::]:7400", "ff02::1"), None);
        let kernel = |came_to: &str| {
            let receiver = DatagramReceiver::new("[::]:7400".parse().expect("literal"));
            let came_to = Some(SocketAddr::new(came_to.parse().expect("literal"), 0));
            receiver
                .where_kernel_chooses(true)
                .local(&ReceivedControl { came_to, ..ReceivedControl::default() })
        };
        assert_eq!(kernel("2001:db8::1"), None, "the kernel chooses where answers leave from");
        let none = ReceivedControl::default();
        let untold =
            |bound: &str| DatagramReceiver::new(bound.parse().expect("literal")).local(&none);
        assert_eq!(untold("[::]:7400"), None);
        assert_eq!(untold("10.0.0.1:7400"), "10.0.0.1:7400".parse().ok());
    }
}
