//! IPv6 in IPv4 (RFC 4213) between two namespaces, for kernels without a device for it. Each end
//! has a TUN device, and a raw socket of protocol 41 to the other end.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rtnetlink::LinkUnspec;
use shoal_daemon::tun::open_plain;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::namespace::Namespace;
use crate::veth::{self, VethEnd};

/// IANA's number for IPv6 in IPv4.
const PROTOCOL: i32 = 41;
/// Length of the IPv4 header, and the rest of 1,500 bytes for IPv6.
const HEADER: usize = 20;
const MTU: u32 = 1_480;
/// Buffer for a packet: more than the longest.
const PACKET_MAX: usize = 2_048;
/// Longest wait for a packet before a thread checks whether it should end.
const NAP_MS: u16 = 50;
/// Socket buffers, in bytes.
const BUFFER: usize = 4 << 20;
/// Interface over which the ends reach each other, and the addresses of the ends.
const OUTSIDE: &str = "outside";
const PLACES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 78, 0, 1), Ipv4Addr::new(10, 78, 0, 2)];

/// A tunnel; ends when dropped.
#[derive(Debug)]
pub(super) struct Tunnel {
    is_over: Arc<AtomicBool>,
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        self.is_over.store(true, Relaxed);
    }
}

/// Joins two namespaces by an IPv4 link and a tunnel over it. The tunnel's interface has the name
/// `interface` in both.
///
/// # Errors
/// Rights or /dev/net/tun are missing.
pub(super) fn start(spaces: [&Namespace; 2], interface: &str) -> Result<Tunnel> {
    let end = |number: usize| {
        let (namespace, address) = (spaces[number], IpAddr::from(PLACES[number]));
        VethEnd { namespace, interface: OUTSIDE, address, prefix_len: 30 }
    };
    veth::connect(end(0), end(1), false)?;
    let tunnel = Tunnel { is_over: Arc::default() };
    for (number, space) in spaces.into_iter().enumerate() {
        let open = || open_plain(interface).context("the tunnel's device");
        let (device, socket) = space.enter(|| Ok((open()?, raw(PLACES[number])?)))?;
        let index = space.enter(|| Ok(nix::net::if_::if_nametoindex(interface)?))?;
        let up = LinkUnspec::new_with_index(index).mtu(MTU).up().build();
        space.netlink(async |handle| handle.link().set(up).execute().await)?;
        let far = SockAddr::from(SocketAddrV4::new(PLACES[1 - number], 0));
        let (mut from, to) = (device.try_clone()?, socket.try_clone()?);
        let is_over = tunnel.is_over.clone();
        let wrap = move || wrap(&mut from, &to, &far, &is_over);
        std::thread::Builder::new().name("tunnel out".into()).spawn(wrap)?;
        let is_over = tunnel.is_over.clone();
        let unwrap = move || unwrap(socket, device, &is_over);
        std::thread::Builder::new().name("tunnel in".into()).spawn(unwrap)?;
    }
    Ok(tunnel)
}

fn raw(own: Ipv4Addr) -> Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(PROTOCOL)))?;
    socket.bind(&SocketAddrV4::new(own, 0).into()).context("the tunnel's socket")?;
    socket.set_read_timeout(Some(Duration::from_millis(NAP_MS.into())))?;
    // The kernel may grant less.
    let _ = socket.set_recv_buffer_size(BUFFER);
    Ok(socket)
}

/// Sends packets that the kernel routes into the interface to the other end.
fn wrap(device: &mut File, socket: &Socket, far: &SockAddr, is_over: &AtomicBool) {
    let mut packet = [0; PACKET_MAX];
    while !is_over.load(Relaxed) {
        match device.read(&mut packet) {
            // A packet that the link refuses is lost, as on the Internet.
            Ok(len) => drop(socket.send_to(&packet[..len], far)),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                let mut wait = [PollFd::new(device.as_fd(), PollFlags::POLLIN)];
                // After an interruption the loop looks again.
                let _ = poll(&mut wait, PollTimeout::from(NAP_MS));
            }
            Err(_) => return,
        }
    }
}

/// Hands packets from the other end to the kernel.
fn unwrap(mut socket: Socket, mut device: File, is_over: &AtomicBool) {
    let mut packet = [0; PACKET_MAX];
    while !is_over.load(Relaxed) {
        // An error is a timeout: no packet came.
        let Ok(len) = socket.read(&mut packet) else { continue };
        // A raw IPv4 socket returns the IPv4 header, too.
        let head = usize::from(packet[0] & 0x0f) * 4;
        if (HEADER..len).contains(&head) {
            // The kernel drops everything but IPv6 packets.
            let _ = device.write(&packet[head..len]);
        }
    }
}
