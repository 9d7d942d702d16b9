//! The sockets of a node, through which the relay sends.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use anyhow::Context;
use shoal_relay::{Path, SendOutcome, Sink, Stop};
use shoal_session::Endpoints;
use shoal_wire::Time;
use socket2::Socket;

use crate::net::mapping::PortMapping;
use crate::net::receive::{ReceiveCounters, Receiver};
use crate::net::send::{Frames, Outcome, SendCounters, Sender};
use crate::net::socket::{self, Offloads, SharedPrefix, SocketConfig, Sources};
use crate::worker::wake::Waker;

/// One socket with its counters.
struct Port {
    socket: Socket,
    local: SocketAddr,
    offloads: Offloads,
    sender: Sender,
    /// The send buffer was full, and the kernel has not yet said that there is room.
    blocked: bool,
}

/// Every socket of a node.
pub struct Ports {
    ports: Vec<Port>,
    now: Time,
    /// Keeps one of them open at a translator.
    mapping: Option<PortMapping>,
}

/// What one socket did and can do.
#[derive(Clone, Copy, Debug)]
pub struct PortView {
    /// Where it listens.
    pub local: SocketAddr,
    /// What the kernel granted.
    pub offloads: Offloads,
    /// What went out.
    pub sent: SendCounters,
    /// Neighbours whose paths refuse segmentation.
    pub refusing: usize,
}

impl Ports {
    /// Opens a socket per address. `gso` false sends every frame in a message of its own.
    pub fn open(
        listen: &[SocketAddr],
        config: &SocketConfig,
        gso: bool,
    ) -> anyhow::Result<(Ports, Vec<Receiver>)> {
        let mut ports = Vec::with_capacity(listen.len());
        for &address in listen {
            let (socket, mut offloads) = socket::open(address, config)?;
            offloads.gso &= gso;
            let local = socket.local_addr()?.as_socket().unwrap_or(address);
            let sender = Sender::naming(offloads.gso, config.sources(local));
            ports.push(Port { socket, local, offloads, sender, blocked: false });
        }
        let receiver = |port: &Port| {
            let chooses = matches!(config.sources(port.local), Sources::Kernel);
            Receiver::new(port.local).where_kernel_chooses(chooses)
        };
        let receivers = ports.iter().map(receiver).collect();
        Ok((Ports { ports, now: Time::ZERO, mapping: None }, receivers))
    }

    /// Opens further sockets on the addresses of these, for another worker.
    pub fn open_beside(
        &self,
        config: &SocketConfig,
        gso: bool,
    ) -> anyhow::Result<(Ports, Vec<Receiver>)> {
        for port in &self.ports {
            // Set only now: bound without the option, the first socket found out whether another
            // program has the port.
            port.socket.set_reuse_port(true).context("can't share the port between workers")?;
        }
        let listen: Vec<SocketAddr> = self.ports.iter().map(|port| port.local).collect();
        Ports::open(&listen, &SocketConfig { reuse_port: true, ..*config }, gso)
    }

    /// These sockets, which take `now` as the time of the next sends.
    pub fn at(&mut self, now: Time) -> &mut Ports {
        self.now = now;
        self
    }

    /// Asks a translator to keep the first IPv4 socket's port open, as long as these live; says so
    /// to the thread of `waker`.
    pub(crate) fn keep_open(&mut self, waker: &Arc<Waker>) -> anyhow::Result<()> {
        let first = self.ports.iter().find_map(|port| match port.local {
            SocketAddr::V4(local) => Some(local),
            SocketAddr::V6(_) => None,
        });
        let started = first.map(|local| PortMapping::start(local, waker)).transpose();
        self.mapping = started.context("can't start the thread that asks translators")?;
        Ok(())
    }

    /// Has no port kept open any more.
    pub(crate) fn give_back(&mut self) {
        self.mapping.take().into_iter().for_each(PortMapping::let_go);
    }

    /// What keeps a port open.
    pub(crate) fn mapping(&mut self) -> Option<&mut PortMapping> {
        self.mapping.as_mut()
    }

    /// What it says of itself.
    pub(crate) fn mapping_view(&self) -> Option<crate::control::api::PortMapping> {
        self.mapping.as_ref().map(PortMapping::view)
    }

    /// Further handles of those at which addresses hop: bound to all IPv6 addresses.
    pub(crate) fn hopping(&self) -> std::io::Result<Vec<Socket>> {
        let all = |port: &&Port| port.local.is_ipv6() && port.local.ip().is_unspecified();
        self.ports.iter().filter(all).map(|port| port.socket.try_clone()).collect()
    }

    /// The prefixes under which their sends may name sources.
    pub(crate) fn names_under(&self) -> impl Iterator<Item = SharedPrefix> + '_ {
        self.ports.iter().filter_map(|port| port.sender.names_under())
    }

    /// How many sockets there are.
    pub fn count(&self) -> usize {
        self.ports.len()
    }

    /// Descriptor of a socket, and whether room to send is waited for.
    pub fn poll_on(&self, index: usize) -> (BorrowedFd<'_>, bool) {
        let port = &self.ports[index];
        (port.socket.as_fd(), port.blocked)
    }

    /// The kernel has room again.
    pub fn note_writable(&mut self, index: usize) {
        self.ports[index].blocked = false;
    }

    /// Receives on one socket; see [`Receiver::receive`].
    pub fn receive(&self, index: usize, receiver: &mut Receiver) -> std::io::Result<bool> {
        receiver.receive(self.ports[index].socket.as_raw_fd())
    }

    /// Reads what ICMP messages left behind; they would keep the socket readable.
    pub fn drain_errors(&self, index: usize) {
        let _about_sends = socket::drain_errors(self.ports[index].socket.as_raw_fd());
    }

    /// What each socket did and can do.
    pub fn views(&self) -> impl Iterator<Item = PortView> + '_ {
        self.ports.iter().map(|port| PortView {
            local: port.local,
            offloads: port.offloads,
            sent: port.sender.counters(),
            refusing: port.sender.refusing(),
        })
    }

    /// The socket for a send: the one at the address here, else the first of the family.
    fn choose(&self, ends: Endpoints) -> Option<usize> {
        let fits = |port: &Port| port.local.is_ipv4() == ends.remote.is_ipv4();
        if let [port] = &self.ports[..] {
            return fits(port).then_some(0);
        }
        let is_at = |port: &Port, local: SocketAddr| {
            let [bound, ip] = [port.local, local].map(|address| address.ip());
            port.local.port() == local.port() && (bound == ip || bound.is_unspecified())
        };
        let there = |port: &Port| fits(port) && ends.local.is_some_and(|local| is_at(port, local));
        self.ports.iter().position(there).or_else(|| self.ports.iter().position(fits))
    }
}

impl Sink for Ports {
    fn send(&mut self, path: Path, buffer: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let Some(index) = self.choose(path.ends) else {
            return SendOutcome { sent: 0, stop: Some(Stop::Failed) };
        };
        let port = &mut self.ports[index];
        let frames = Frames { buffer, offsets, len };
        let (sent, outcome) = port.sender.send(port.socket.as_raw_fd(), self.now, path, frames);
        let stop = match outcome {
            Outcome::Sent => None,
            Outcome::Full { wakes } => {
                port.blocked |= wakes;
                Some(Stop::Full)
            }
            Outcome::Failed(libc::EMSGSIZE) => Some(Stop::TooLong),
            Outcome::Failed(errno) => {
                tracing::trace!(errno, "a send was refused");
                Some(Stop::Failed)
            }
        };
        SendOutcome { sent, stop }
    }
}

/// What all sockets sent.
pub fn sum_sent(ports: &Ports) -> SendCounters {
    ports.views().fold(SendCounters::default(), |sum, view| sum.plus(&view.sent))
}

/// Sum over several sockets.
pub fn sum_received(receivers: &[Receiver]) -> ReceiveCounters {
    receivers
        .iter()
        .fold(ReceiveCounters::default(), |sum, receiver| sum.plus(&receiver.counters()))
}
