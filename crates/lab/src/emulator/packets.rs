//! Batched packet sockets: one system call receives or sends many packets, without a copy.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;

/// Bytes of a slot: the kernel's offload header and the longest packet.
pub const SLOT_BYTES: usize = 2_048;
/// Length of virtio_net_hdr, which precedes each packet and carries the state of unfinished
/// checksums.
pub const HEADER_BYTES: usize = 10;
/// Packets per system call.
pub const BATCH: usize = 64;
/// Options of linux/if_packet.h that libc has no names for.
const PACKET_VNET_HDR: libc::c_int = 15;
const PACKET_QDISC_BYPASS: libc::c_int = 20;
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;
/// Receive buffer in bytes: room for the packets that arrive between two turns of the emulator.
const BUFFER_BYTES: libc::c_int = 64 << 20;

/// Memory for waiting packets, in slots of equal size.
#[derive(Debug)]
pub struct PacketSlots {
    memory: Vec<u8>,
    free: Vec<u32>,
}

impl PacketSlots {
    /// Reserves memory for `count` packets.
    pub fn new(count: u32) -> PacketSlots {
        PacketSlots {
            memory: vec![0; count as usize * SLOT_BYTES],
            free: (0..count).rev().collect(),
        }
    }

    /// Frees a slot.
    pub fn release(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// The bytes of a slot: header, then packet.
    pub fn bytes(&self, slot: u32) -> &[u8] {
        let at = slot as usize * SLOT_BYTES;
        &self.memory[at..at + SLOT_BYTES]
    }

    fn pointer(&mut self, slot: u32) -> *mut libc::c_void {
        let at = slot as usize * SLOT_BYTES;
        self.memory[at..at + SLOT_BYTES].as_mut_ptr().cast()
    }
}

/// A packet in a slot.
#[derive(Clone, Copy, Debug)]
pub struct SlotPacket {
    /// Number of the slot.
    pub slot: u32,
    /// Length in bytes, without the header.
    pub len: u16,
}

/// Result of one receive call.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReceivedBatch {
    /// Number of packets, of any length.
    pub packets: usize,
    /// Number of packets that were too long for a slot: aggregates, which the nodes should have
    /// split.
    pub oversize: u64,
}

/// A packet socket on an interface.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Opens the interface number `index` of this thread's namespace.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing.
    pub fn open(index: u32) -> Result<PacketSocket> {
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
        Ok(PacketSocket { fd })
    }

    /// Receives up to [`BATCH`] waiting packets into slots, and appends these to `into`.
    pub fn receive(&self, slots: &mut PacketSlots, into: &mut Vec<SlotPacket>) -> ReceivedBatch {
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
        // SAFETY: each of the `count` messages points to one part, and each part to a different
        // slot. The slots are free, so nothing else refers to them.
        let got = unsafe {
            let flags = libc::MSG_DONTWAIT;
            let none = std::ptr::null_mut();
            libc::recvmmsg(self.fd.as_raw_fd(), messages.as_mut_ptr(), count as u32, flags, none)
        };
        // An error means that no packet waits, or that the interface is gone with its node.
        let got = usize::try_from(got).unwrap_or(0);
        let mut received = ReceivedBatch { packets: got, oversize: 0 };
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
            into.push(SlotPacket { slot, len: (len - HEADER_BYTES) as u16 });
        }
        received
    }

    /// Sends up to [`BATCH`] of `packets`; returns how many were sent or lost.
    pub fn send(&self, slots: &mut PacketSlots, packets: &[SlotPacket]) -> usize {
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
            // The interface's queue is full: all packets wait.
            Err(_) if Errno::last() == Errno::EAGAIN || Errno::last() == Errno::ENOBUFS => 0,
            // The first packet can't be sent at all; a wire without a far end would lose it too.
            Err(_) => 1,
        }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Gives this thread real-time priority and exact timers.
///
/// # Errors
/// CAP_SYS_NICE is missing. Delays are then less exact on a busy machine.
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
