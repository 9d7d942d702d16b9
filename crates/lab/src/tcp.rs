//! A kernel TCP flow: over the lab's links outside Shoal, or between virtual interfaces.

mod info;

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::socket::{setsockopt, sockopt::TcpCongestion};

use crate::network::Network;
pub use info::TcpCounters;

/// Bytes per write and read.
const BLOCK: usize = 256 << 10;
/// Time between two writes of a flow with limited rate.
const PORTION: Duration = Duration::from_millis(1);
/// Timeout of connecting, and of one write.
const PATIENCE: Duration = Duration::from_secs(5);

/// A flow from one node to another; ends when dropped.
#[derive(Debug)]
pub struct TcpFlow {
    received: Arc<AtomicU64>,
    /// Longest time between two reads with data, in microseconds.
    gap_us: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
    stream: TcpStream,
    there: TcpStream,
}

impl TcpFlow {
    /// Starts a flow to an address of `to`, with a congestion control of this kernel. `mbit` limits
    /// the payload rate in Mbit/s.
    ///
    /// # Errors
    /// Namespaces, a route or the congestion control are missing.
    pub fn start(
        network: &Network,
        (from, to): (usize, usize),
        address: IpAddr,
        congestion: &str,
        mbit: Option<f64>,
    ) -> Result<TcpFlow> {
        let spaces = network.namespace(from).zip(network.namespace(to));
        let (near, far) = spaces.context("TCP flows need namespaces; run as root")?;
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
        let (there, _) = listener.accept()?;
        let received = Arc::new(AtomicU64::new(0));
        let gap_us = Arc::new(AtomicU64::new(0));
        let ended = Arc::new(AtomicBool::new(false));
        let (count, gap, mut input) = (received.clone(), gap_us.clone(), there.try_clone()?);
        std::thread::Builder::new().name("tcp in".into()).spawn(move || {
            let mut block = vec![0; BLOCK];
            let mut last: Option<Instant> = None;
            while let Ok(n @ 1..) = input.read(&mut block) {
                count.fetch_add(n as u64, Relaxed);
                let now = Instant::now();
                let silence = last.replace(now).map_or(Duration::ZERO, |last| now - last);
                gap.fetch_max(silence.as_micros() as u64, Relaxed);
            }
        })?;
        let (flag, out) = (ended.clone(), stream.try_clone()?);
        std::thread::Builder::new().name("tcp out".into()).spawn(move || pour(out, mbit, &flag))?;
        Ok(TcpFlow { received, gap_us, ended, stream, there })
    }

    /// Longest time between two arrivals of data, in milliseconds.
    pub fn gap_ms(&self) -> f64 {
        self.gap_us.load(Relaxed) as f64 / 1e3
    }

    /// Segments that the sender sent again, and segments that the receiver got before an earlier
    /// segment. `None` if the kernel does not report them.
    pub fn counts(&self) -> Option<TcpCounters> {
        let (near, far) = (info::counts(&self.stream)?, info::counts(&self.there)?);
        Some(TcpCounters { disordered: far.disordered, ..near })
    }

    /// Payload bytes received so far.
    pub fn received(&self) -> u64 {
        self.received.load(Relaxed)
    }
}

impl Drop for TcpFlow {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
        // Makes both threads' calls return, so that the threads end.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Writes until the flow has ended, at most `mbit` Mbit/s.
fn pour(mut out: TcpStream, mbit: Option<f64>, ended: &AtomicBool) {
    let block = vec![0; BLOCK];
    let (began, mut sent) = (Instant::now(), 0);
    while !ended.load(Relaxed) {
        let len = match mbit {
            None => BLOCK,
            Some(mbit) => {
                std::thread::sleep(PORTION);
                let due = (began.elapsed().as_secs_f64() * mbit * 1e6 / 8.0) as usize;
                due.saturating_sub(sent).min(BLOCK)
            }
        };
        // A write fails after the connection has ended; the counter has the bytes so far.
        if out.write_all(&block[..len]).is_err() {
            return;
        }
        sent += len;
    }
}
