//! A raw IP socket that sends many packets with one system call, from any address.
#![allow(unsafe_code)]

use std::mem;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use anyhow::{Context, Result};
use nix::errno::Errno;

/// Packets per system call.
pub const BATCH: usize = 64;

/// The socket.
#[derive(Debug)]
pub struct Raw {
    fd: OwnedFd,
    to: libc::sockaddr_in,
}

impl Raw {
    /// Opens one in this thread's namespace, towards `to`. Packets bring their IP header; the
    /// kernel fills in its length and checksum.
    ///
    /// # Errors
    /// Without CAP_NET_RAW.
    pub fn open(to: Ipv4Addr) -> Result<Raw> {
        let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: a plain system call; the number it returns is checked and then owned here alone.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_INET, flags, libc::IPPROTO_RAW);
            OwnedFd::from_raw_fd(Errno::result(fd).context("a raw socket")?)
        };
        // As much as one burst of a fast sender; with less, packets are held back here.
        nix::sys::socket::setsockopt(&fd, nix::sys::socket::sockopt::SndBuf, &(4 << 20))
            .context("SO_SNDBUF")?;
        let to = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from(to).to_be() },
            sin_zero: [0; 8],
        };
        Ok(Raw { fd, to })
    }

    /// Sends up to [`BATCH`] of `packets`; returns how many left.
    pub fn send(&mut self, packets: &[&[u8]]) -> usize {
        let count = BATCH.min(packets.len());
        // SAFETY: all zero is valid for both structures.
        let mut parts: [libc::iovec; BATCH] = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { mem::zeroed() };
        for (i, packet) in packets[..count].iter().enumerate() {
            let iov_base = packet.as_ptr().cast_mut().cast();
            parts[i] = libc::iovec { iov_base, iov_len: packet.len() };
            let header = &mut messages[i].msg_hdr;
            header.msg_name = (&raw mut self.to).cast();
            header.msg_namelen = mem::size_of_val(&self.to) as libc::socklen_t;
            header.msg_iov = &raw mut parts[i];
            header.msg_iovlen = 1;
        }
        // SAFETY: each of the `count` messages points to an address and one part, which points to
        // a packet that is borrowed for this call; the kernel only reads them.
        let sent = unsafe {
            let fd = self.fd.as_raw_fd();
            libc::sendmmsg(fd, messages.as_mut_ptr(), count as u32, libc::MSG_DONTWAIT)
        };
        // A full queue below: the rest is sent a moment later, or not at all.
        usize::try_from(sent).unwrap_or(0)
    }
}
