//! The sockets of a node, through which the relay sends.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use anyhow::Context;
use shoal_relay::{FrameSink, SendError, SendOutcome, SendPath};
use shoal_session::Endpoints;
use shoal_wire::Time;
use socket2::Socket;

use crate::net::mapping::PortMapper;
use crate::net::receive::{DatagramReceiver, ReceiveCounters};
use crate::net::send::{DatagramSender, OutboundRun, SendCounters, SendResult};
use crate::net::socket::{self, SharedPrefix, SocketConfig, SocketOffloads, SourcePolicy};
use crate::worker::wake::Waker;

/// One socket with its counters.
struct NodeSocket {
    socket: Socket,
    local: SocketAddr,
    offloads: SocketOffloads,
    sender: DatagramSender,
    /// True if the send buffer was full and the kernel has not reported room since.
    blocked: bool,
}

/// Every socket of a node.
pub struct NodeSockets {
    ports: Vec<NodeSocket>,
    now: Time,
    /// Thread that keeps one of the ports open at a translator.
    mapping: Option<PortMapper>,
}

/// State and counters of one socket.
#[derive(Clone, Copy, Debug)]
pub struct PortView {
    /// Address that the socket is bound to.
    pub local: SocketAddr,
    /// Offloads and buffers that the kernel granted.
    pub offloads: SocketOffloads,
    /// Counters of sends.
    pub sent: SendCounters,
    /// Neighbours whose paths refuse segmentation.
    pub refusing: usize,
}

impl NodeSockets {
    /// Opens a socket per address. With `gso` false, every frame is a message of its own.
    pub fn open(
        listen: &[SocketAddr],
        config: &SocketConfig,
        gso: bool,
    ) -> anyhow::Result<(NodeSockets, Vec<DatagramReceiver>)> {
        let mut ports = Vec::with_capacity(listen.len());
        for &address in listen {
            let (socket, mut offloads) = socket::open(address, config)?;
            offloads.gso &= gso;
            let local = socket.local_addr()?.as_socket().unwrap_or(address);
            let sender = DatagramSender::naming(offloads.gso, config.sources(local));
            ports.push(NodeSocket { socket, local, offloads, sender, blocked: false });
        }
        let receiver = |port: &NodeSocket| {
            let chooses = matches!(config.sources(port.local), SourcePolicy::Kernel);
            DatagramReceiver::new(port.local).where_kernel_chooses(chooses)
        };
        let receivers = ports.iter().map(receiver).collect();
        Ok((NodeSockets { ports, now: Time::ZERO, mapping: None }, receivers))
    }

    /// Opens further sockets on the same addresses, for another worker.
    pub fn open_beside(
        &self,
        config: &SocketConfig,
        gso: bool,
    ) -> anyhow::Result<(NodeSockets, Vec<DatagramReceiver>)> {
        for port in &self.ports {
            // Set only here: the first socket was bound without the option, to find out whether
            // another program has the port.
            port.socket.set_reuse_port(true).context("can't share the port between workers")?;
        }
        let listen: Vec<SocketAddr> = self.ports.iter().map(|port| port.local).collect();
        NodeSockets::open(&listen, &SocketConfig { reuse_port: true, ..*config }, gso)
    }

    /// Sets `now` as the time of the next sends.
    pub fn at(&mut self, now: Time) -> &mut NodeSockets {
        self.now = now;
        self
    }

    /// Asks a translator to keep the first IPv4 socket's port open while these sockets live.
    /// Reports through `waker`.
    pub(crate) fn keep_open(&mut self, waker: &Arc<Waker>) -> anyhow::Result<()> {
        let first = self.ports.iter().find_map(|port| match port.local {
            SocketAddr::V4(local) => Some(local),
            SocketAddr::V6(_) => None,
        });
        let started = first.map(|local| PortMapper::start(local, waker)).transpose();
        self.mapping = started.context("can't start the thread that asks translators")?;
        Ok(())
    }

    /// Gives the port at the translator back.
    pub(crate) fn give_back(&mut self) {
        self.mapping.take().into_iter().for_each(PortMapper::let_go);
    }

    /// Handle of the port mapping.
    pub(crate) fn mapping(&mut self) -> Option<&mut PortMapper> {
        self.mapping.as_mut()
    }

    /// State of the port mapping.
    pub(crate) fn mapping_view(&self) -> Option<crate::control::api::PortMappingStatus> {
        self.mapping.as_ref().map(PortMapper::view)
    }

    /// Further handles of the sockets with shifting addresses: those bound to all IPv6 addresses.
    pub(crate) fn shifting(&self) -> std::io::Result<Vec<Socket>> {
        let all = |port: &&NodeSocket| port.local.is_ipv6() && port.local.ip().is_unspecified();
        self.ports.iter().filter(all).map(|port| port.socket.try_clone()).collect()
    }

    /// Prefixes of the sources that sends may name.
    pub(crate) fn names_under(&self) -> impl Iterator<Item = SharedPrefix> + '_ {
        self.ports.iter().filter_map(|port| port.sender.names_under())
    }

    /// Number of sockets.
    pub fn count(&self) -> usize {
        self.ports.len()
    }

    /// Descriptor of a socket, and whether to wait for room to send.
    pub fn poll_on(&self, index: usize) -> (BorrowedFd<'_>, bool) {
        let port = &self.ports[index];
        (port.socket.as_fd(), port.blocked)
    }

    /// Notes that the kernel has room again.
    pub fn note_writable(&mut self, index: usize) {
        self.ports[index].blocked = false;
    }

    /// Receives on one socket; see [`DatagramReceiver::receive`].
    pub fn receive(&self, index: usize, receiver: &mut DatagramReceiver) -> std::io::Result<bool> {
        receiver.receive(self.ports[index].socket.as_raw_fd())
    }

    /// Reads errors that ICMP messages left behind, since they would keep the socket readable.
    pub fn drain_errors(&self, index: usize) {
        let _about_sends = socket::drain_errors(self.ports[index].socket.as_raw_fd());
    }

    /// State and counters of each socket.
    pub fn views(&self) -> impl Iterator<Item = PortView> + '_ {
        self.ports.iter().map(|port| PortView {
            local: port.local,
            offloads: port.offloads,
            sent: port.sender.counters(),
            refusing: port.sender.refusing(),
        })
    }

    /// The socket for a send: the one at the local address, else the first of the family.
    fn choose(&self, ends: Endpoints) -> Option<usize> {
        let fits = |port: &NodeSocket| port.local.is_ipv4() == ends.remote.is_ipv4();
        if let [port] = &self.ports[..] {
            return fits(port).then_some(0);
        }
        let is_at = |port: &NodeSocket, local: SocketAddr| {
            let [bound, ip] = [port.local, local].map(|address| address.ip());
            port.local.port() == local.port() && (bound == ip || bound.is_unspecified())
        };
        let there =
            |port: &NodeSocket| fits(port) && ends.local.is_some_and(|local| is_at(port, local));
        self.ports.iter().position(there).or_else(|| self.ports.iter().position(fits))
    }
}

impl FrameSink for NodeSockets {
    fn send(&mut self, path: SendPath, buffer: &[u8], offsets: &[u32], len: usize) -> SendOutcome {
        let Some(index) = self.choose(path.ends) else {
            return SendOutcome { sent: 0, stop: Some(SendError::Failed) };
        };
        let port = &mut self.ports[index];
        let frames = OutboundRun { buffer, offsets, len };
        let (sent, outcome) = port.sender.send(port.socket.as_raw_fd(), self.now, path, frames);
        let stop = match outcome {
            SendResult::Sent => None,
            SendResult::Full { wakes } => {
                port.blocked |= wakes;
                Some(SendError::Full)
            }
            SendResult::Failed(libc::EMSGSIZE) => Some(SendError::TooLong),
            SendResult::Failed(errno) => {
                tracing::trace!(errno, "a send was refused");
                Some(SendError::Failed)
            }
        };
        SendOutcome { sent, stop }
    }
}

/// Counters of sends of all sockets.
pub fn sum_sent(ports: &NodeSockets) -> SendCounters {
    ports.views().fold(SendCounters::default(), |sum, view| sum.plus(&view.sent))
}

/// Counters of receives of all sockets.
pub fn sum_received(receivers: &[DatagramReceiver]) -> ReceiveCounters {
    receivers
        .iter()
        .fold(ReceiveCounters::default(), |sum, receiver| sum.plus(&receiver.counters()))
}
