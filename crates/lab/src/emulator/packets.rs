//! Packet sockets in batches: many packets in and out with one system call, and no copy between.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;

/// Bytes of a slot: the kernel's offload header and the longest packet.
pub const SLOT_BYTES: usize = 2_048;
/// virtio_net_hdr, which stands before each packet and carries unfinished checksums over.
pub const HEADER_BYTES: usize = 10;
/// Packets per system call.
pub const BATCH: usize = 64;
/// linux/if_packet.h; libc has no names for these.
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Receive buffer: room for the packets that arrive between two turns of the emulator.
const BUFFER_BYTES: libc::c_int = 64 << 20;

/// Packets that wait, in slots of equal size.
#[derive(Debug)]
pub struct Slots {
    memory: Vec<u8>,
    free: Vec<u32>,
}

impl Slots {
    /// Room for `count` packets.
    pub fn new(count: u32) -> Slots {
        Slots { memory: vec![0; count as usize * SLOT_BYTES], free: (0..count).rev().collect() }
    }

    /// Gives a slot back.
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// The bytes of a slot: header, then the packet.
    pub fn bytes(&self, slot: u32) -> &[u8] {
        let at = slot as usize * SLOT_BYTES;
        &self.memory[at..at + SLOT_BYTES]
    }

    fn pointer(&mut self, slot: u32) -> *mut libc::c_void {
        let at = slot as usize * SLOT_BYTES;
        self.memory[at..at + SLOT_BYTES].as_mut_ptr().cast()
    }
}

/// A packet in a slot: its number, and its bytes without the header.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Which slot.
    pub slot: u32,
    /// Length in bytes.
    pub len: u16,
}

/// What one call received.
#[derive(Clone, Copy, Debug, Default)]
pub struct Received {
    /// Packets, of any length.
    pub packets: usize,
    /// Of these, packets too long for a slot: aggregates that should not be here.
    pub oversize: u64,
}

/// A packet socket on an interface.
#[derive(Debug)]
pub struct Port {
    fd: OwnedFd,
}

impl Port {
    /// Opens the interface number `index` of this thread's namespace.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open(index: u32) -> Result<Port> {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        let flags = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call; the number it returns is checked and then owned here alone.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_PACKET, flags, 0);
            OwnedFd::from_raw_fd(Errno::result(fd).context("a packet socket")?)
        };
        set(&fd, libc::SOL_PACKET, PACKET_VNET_HDR, 1).context("PACKET_VNET_HDR")?;
        set(&fd, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, 1).context("PACKET_IGNORE_OUTGOING")?;
        set(&fd, libc::SOL_PACKET, PACKET_QDISC_BYPASS, 1).context("PACKET_QDISC_BYPASS")?;
        set(&fd, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, BUFFER_BYTES).context("SO_RCVBUFFORCE")?;
        // SAFETY: all zero is a valid sockaddr_ll, and bind reads no more than its length.
        let bound = unsafe {
            let mut at: libc::sockaddr_ll = mem::zeroed();
            at.sll_family = libc::AF_PACKET as u16;
            at.sll_protocol = protocol;
            at.sll_ifindex = index.cast_signed();
            let len = mem::size_of_val(&at) as libc::socklen_t;
            libc::bind(fd.as_raw_fd(), (&raw const at).cast(), len)
        };
        Errno::result(bound).context("binding a packet socket")?;
        Ok(Port { fd })
    }

    /// Takes up to [`BATCH`] packets that wait, into slots that are appended to `into`.
    pub fn receive(&self, slots: &mut Slots, into: &mut Vec<Packet>) -> Received {
        let count = BATCH.min(slots.free.len());
        let first_free = slots.free.len() - count;
        // SAFETY: all zero is valid for both structures.
        let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for i in 0..count {
            let slot = slots.free[first_free + count - 1 - i];
            parts[i] = libc::iovec { iov_base: slots.pointer(slot), iov_len: SLOT_BYTES };
            messages[i].msg_hdr.msg_iov = &raw mut parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each of the `count` messages points to one part, and each part to a slot of its
        // own that nothing else refers to: it is free.
        let got = unsafe {
            let flags = libc::MSG_DONTWAIT;
            let none = std::ptr::null_mut();
            libc::recvmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count as u32, flags, none)
        };
        // Nothing waits, or the interface is gone with its node.
        let got = usize::try_from(got).unwrap_or(0);
        let mut received = Received { packets: got, oversize: 0 };
        slots.free.truncate(slots.free.len() - got.min(count));
        for (i, message) in messages[..got].iter().enumerate() {
            let at = parts[i].iov_base as usize - slots.memory.as_ptr() as usize;
            let slot = (at / SLOT_BYTES) as u32;
            let len = message.msg_len as usize;
            if message.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 || len <= HEADER_BYTES {
                received.oversize += 1;
                slots.release(slot);
                continue;
            }
            into.push(Packet { slot, len: (len - HEADER_BYTES) as u16 });
        }
        received
    }

    /// Sends up to [`BATCH`] of `packets`; returns how many were sent or lost.
    pub fn send(&self, slots: &mut Slots, packets: &[Packet]) -> usize {
        let count = BATCH.min(packets.len());
        // SAFETY: all zero is valid for both structures.
        let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for (i, packet) in packets[..count].iter().enumerate() {
            let iov_len = HEADER_BYTES + usize::from(packet.len);
            parts[i] = libc::iovec { iov_base: slots.pointer(packet.slot), iov_len };
            messages[i].msg_hdr.msg_iov = &raw mut parts[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: each of the `count` messages points to one part, and each part to the filled
        // beginning of a slot; the kernel only reads them.
        let sent = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::sendmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count as u32, flags)
        };
        match usize::try_from(sent) {
            Ok(sent) => sent,
            // The interface is full for the moment: all of it waits.
            Err(_) if Errno::last() == Errno::EAGAIN || Errno::last() == Errno::ENOBUFS => 0,
            // The first one can't be sent at all; a wire to nowhere would lose it as well.
            Err(_) => 1,
        }
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Gives this thread real-time priority and exact timers.
///
/// # Errors
/// Without CAP_SYS_NICE; delays are then less exact on a busy machine.
pub fn prefer_this_thread() -> io::Result<()> {
    // SAFETY: plain system calls on this thread; the parameter is read during the call only.
    let failed = unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, 1_000, 0, 0, 0);
        let lowest = libc::sched_param { sched_priority: 1 };
        libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &raw const lowest)
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn set(fd: &OwnedFd, level: i32, option: i32, value: libc::c_int) -> io::Result<()> {
    // SAFETY: the kernel reads one int from a pointer to one.
    let failed = unsafe {
        let len = mem::size_of_val(&value) as libc::socklen_t;
        libc::setsockopt(fd.as_raw_fd(), level, option, (&raw const value).cast(), len)
    };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
