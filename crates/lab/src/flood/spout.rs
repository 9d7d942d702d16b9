//! UDP sockets that send many packets with one system call, from any source address.

use std::io::IoSlice;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;

use anyhow::{Context, Result};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use socket2::{Domain, Protocol, Socket, Type};

use super::batch::FloodBatch;

/// Number of source ports.
const PORTS: usize = 64;
/// Send buffer in bytes: one burst of a fast sender.
const BUFFER: usize = 1 << 20;

/// Sockets that send from spoofed addresses.
#[derive(Debug)]
pub struct SpoofingSockets {
    sockets: Vec<Socket>,
    target: SocketAddr,
}

impl SpoofingSockets {
    /// Opens the sockets in this thread's namespace.
    ///
    /// # Errors
    /// CAP_NET_ADMIN is missing: spoofed source addresses need it.
    pub fn open(target: SocketAddr) -> Result<SpoofingSockets> {
        let mut sockets = Vec::new();
        for _ in 0..PORTS {
            let domain = Domain::for_address(target);
            let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
            let (any, transparent) = match target {
                SocketAddr::V4(_) => {
                    (Ipv4Addr::UNSPECIFIED.into(), socket.set_ip_transparent_v4(true))
                }
                SocketAddr::V6(_) => {
                    (Ipv6Addr::UNSPECIFIED.into(), socket.set_ip_transparent_v6(true))
                }
            };
            transparent.context("sending from any address")?;
            socket.set_send_buffer_size(BUFFER).context("SO_SNDBUF")?;
            socket.bind(&SocketAddr::new(any, 0).into())?;
            sockets.push(socket);
        }
        Ok(SpoofingSockets { sockets, target })
    }

    /// Sends a batch from one of 131,072 addresses and 64 ports, chosen by `number`. False if a
    /// queue below is full: the batch then leaves later, or not at all.
    pub fn send(&self, batch: &FloodBatch, number: u64) -> bool {
        let [_, _, a, b, c, d, e, _] = number.to_be_bytes().map(u32::from);
        // 198.18.0.0/15 and 2001:2::/48 are reserved for tests (RFC 2544, RFC 5180).
        let v4 = libc::in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: libc::in_addr {
                s_addr: (198 << 24 | (18 + (a & 1)) << 16 | b << 8 | c).to_be(),
            },
            ipi_addr: libc::in_addr { s_addr: 0 },
        };
        let last = [(a & 1) as u16, (b << 8 | c) as u16];
        let source = Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, last[0], last[1]);
        let v6 = libc::in6_pktinfo {
            ipi6_addr: libc::in6_addr { s6_addr: source.octets() },
            ipi6_ifindex: 0,
        };
        let from = match self.target {
            SocketAddr::V4(_) => ControlMessage::Ipv4PacketInfo(&v4),
            SocketAddr::V6(_) => ControlMessage::Ipv6PacketInfo(&v6),
        };
        let socket = &self.sockets[(d ^ e) as usize % PORTS];
        let parts = [IoSlice::new(&batch.bytes)];
        let notes = [from, ControlMessage::UdpGsoSegments(&batch.size)];
        let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
        sendmsg(fd, &parts, &notes, flags, Some(&SockaddrStorage::from(self.target))).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, UdpSocket};
    use std::time::Duration;

    use super::*;
    use crate::needs::{self, Requirement};
    use crate::{Conditions, IpFamily, Network, NetworkKind, Topology};

    #[test]
    fn batches_come_from_addresses_that_are_not_the_senders() {
        if !needs::met(&[needs::LAB, &[Requirement::Ipv6]].concat(), "SHOAL_REQUIRE_NETNS") {
            return;
        }
        for family in [IpFamily::Ipv4, IpFamily::Ipv6] {
            let ground = NetworkKind::Namespaces.over(family);
            let network = Network::build(Topology::chain(), ground, Conditions::default()).unwrap();
            let l = network.topology().links[0];
            network.single_packets(l.a, l.b).unwrap();
            let at = network.namespace(l.b).unwrap();
            let at = at.enter(|| Ok(UdpSocket::bind(network.listen(l.b))?)).unwrap();
            at.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
            let near = network.namespace(l.a).unwrap();
            let spout = near.enter(|| SpoofingSockets::open(network.endpoint(0, l.a))).unwrap();
            assert!(
                spout.send(
                    &FloodBatch { bytes: vec![7; 3 * 576], size: 576 },
                    0x0102_0304_0506_0708
                )
            );
            let mut buffer = [0; 2_048];
            for _ in 0..3 {
                let (len, from) = at.recv_from(&mut buffer).unwrap();
                let expected: IpAddr = match family {
                    IpFamily::Ipv4 => "198.19.4.5".parse().unwrap(),
                    IpFamily::Ipv6 => "2001:2::1:405".parse().unwrap(),
                };
                assert_eq!((len, from.ip()), (576, expected));
            }
        }
    }
}
