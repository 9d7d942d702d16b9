//! UDP sockets that send many packets with one system call, from any address.

use std::io::IoSlice;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrIn, sendmsg};
use socket2::{Domain, Protocol, Socket, Type};

use super::batch::Batch;

/// Source ports in use.
const PORTS: usize = 64;
/// As much as one burst of a fast sender; with less, packets are held back here.
const BUFFER: usize = 1 << 20;

/// The sockets.
#[derive(Debug)]
pub struct Spout {
    sockets: Vec<Socket>,
    target: SockaddrIn,
}

impl Spout {
    /// Opens them in this thread's namespace.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN: a stranger's address is not anybody's to send from.
    pub fn open(target: SocketAddrV4) -> Result<Spout> {
        let mut sockets = Vec::new();
        for _ in 0..PORTS {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
            socket.set_ip_transparent_v4(true).context("sending from any address")?;
            socket.set_send_buffer_size(BUFFER).context("SO_SNDBUF")?;
            socket.bind(&SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0).into())?;
            sockets.push(socket);
        }
        Ok(Spout { sockets, target: target.into() })
    }

    /// Sends a batch from an address and a port that `number` names: one of 131,072 and 64.
    /// False when a queue below is full: the batch leaves a moment later, or not at all.
    pub fn send(&self, batch: &Batch, number: u64) -> bool {
        let [_, _, a, b, c, d, e, _] = number.to_be_bytes().map(u32::from);
        // 198.18.0.0/15 is set aside for tests (RFC 2544).
        let source = 198 << 24 | (18 + (a & 1)) << 16 | b << 8 | c;
        let from = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr { s_addr: source.to_be() },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        let socket = &self.sockets[(d ^ e) as usize % PORTS];
        let parts = [IoSlice::new(&batch.bytes)];
        let split = ControlMessage::UdpGsoSegments(&batch.size);
        let notes = [ControlMessage::Ipv4PacketInfo(&from), split];
        let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        sendmsg(fd, &parts, &notes, flags, Some(&self.target)).is_ok()
    }
}
