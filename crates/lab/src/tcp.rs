//! A TCP flow of the kernel's through the lab's links, beside Shoal's transfers.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};

use crate::network::Network;

/// Bytes per write and read.
const BLOCK: usize = 256 << 10;
/// How long connecting may take, and one write may stand.
const PATIENCE: Duration = Duration::from_secs(5);

/// A flow from one node to another; ends when dropped.
#[derive(Debug)]
pub struct TcpFlow {
    received: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    stream: TcpStream,
}

impl TcpFlow {
    /// Starts one, with a congestion control of this kernel.
    ///
    /// # Errors
    /// Without namespaces, without a route, or without that congestion control.
    pub fn start(network: &Network, from: usize, to: usize, congestion: &str) -> Result<TcpFlow> {
        TcpFlow::start_to(network, from, to, network.ip_of(from, to)?, congestion)
    }

    /// As [`TcpFlow::start`], to another of the receiver's addresses.
    ///
    /// # Errors
    /// As [`TcpFlow::start`].
    pub fn start_to(
        network: &Network,
        from: usize,
        to: usize,
        address: IpAddr,
        congestion: &str,
    ) -> Result<TcpFlow> {
        let spaces = network.namespace(from).zip(network.namespace(to));
        let (near, far) = spaces.context("TCP flows need namespaces: root")?;
        let any: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let listener = far.enter(|| Ok(TcpListener::bind((any, 0))?))?;
        let at = SocketAddr::from((address, listener.local_addr()?.port()));
        let stream = near.enter(|| {
            let domain = socket2::Domain::for_address(at);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)?;
            // Set before connecting: the namespace's default is that of the machine.
            setsockopt(&socket, TcpCongestion, &congestion.into())
                .with_context(|| format!("TCP congestion control {congestion:?}"))?;
            socket.connect_timeout(&at.into(), PATIENCE).with_context(|| format!("TCP to {at}"))?;
            Ok(TcpStream::from(socket))
        })?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let (mut there, _) = listener.accept()?;
        let received = Arc::new(AtomicU64::new(0));
        let ended = Arc::new(AtomicBool::new(false));
        let count = received.clone();
        std::thread::Builder::new().name("tcp in".into()).spawn(move || {
            let mut block = vec![0; BLOCK];
            while let Ok(n @ 1..) = there.read(&mut block) {
                count.fetch_add(n as u64, Relaxed);
            }
        })?;
        let (flag, mut out) = (ended.clone(), stream.try_clone()?);
        std::thread::Builder::new().name("tcp out".into()).spawn(move || {
            let block = vec![0; BLOCK];
            // A write fails when the connection has ended; the counter has the bytes so far.
            while !flag.load(Relaxed) && out.write_all(&block).is_ok() {}
        })?;
        Ok(TcpFlow { received, ended, stream })
    }

    /// Payload bytes that have arrived.
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }
}

impl Drop for TcpFlow {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // Makes both threads' calls return, so that they end.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
