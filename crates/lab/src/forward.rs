//! Links without root: forwarders of datagrams on the loopback, one thread per link.
//!
//! ```text
//! node a  --->  [ near a | loss, rate, cut | near b ]  --->  node b
//!         <---  [                                    ]  <---
//! ```
//!
//! Each direction loses, delays and cuts single datagrams, like a wire behind a token bucket. The
//! forwarder receives and sends the kernel's aggregates (GRO, GSO); otherwise forwarders would use
//! more of the machine than the nodes.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt,
};
use nix::sys::time::TimeSpec;
use shoal_crypto::Rng;

use crate::shaping::Rate;

/// Size of bucket and queue: equal to those of the shaped links between namespaces.
const BURST_BYTES: u64 = 256 << 10;
const QUEUE: Duration = Duration::from_millis(20);
/// Limit of datagrams in one GSO send (UDP_MAX_SEGMENTS of older kernels).
const SEGMENTS_MAX: usize = 64;
/// Limit of receive calls before the queues are served again.
const BATCHES_MAX: usize = 16;
/// Longest sleep of the thread before it checks whether it should end.
const NAP: Duration = Duration::from_millis(100);
/// Longest wait for an address that is still in use.
const BIND_WITHIN: Duration = Duration::from_secs(1);

/// Counters of one direction.
#[derive(Debug, Default)]
pub struct ForwarderCounters {
    /// Datagrams received from the sender.
    pub sent: AtomicU64,
    /// Datagrams lost by the configured loss. Neither a full queue nor a cut counts.
    pub lost: AtomicU64,
    /// Datagrams lost to a cut link.
    pub cut: AtomicU64,
    /// Bytes that reached the receiver, including the headers of a wire.
    pub delivered_bytes: AtomicU64,
}

/// A link over the loopback; ends when dropped.
#[derive(Debug)]
pub struct Forwarder {
    shared: Arc<ForwarderShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct ForwarderShared {
    ended: AtomicBool,
    cut: AtomicBool,
    /// A datagram is lost if a random number from 0 to 2^32 - 1 is below this.
    lose_below: AtomicU64,
    to: Arc<[ForwarderCounters; 2]>,
}

/// Settings of a forwarder.
#[derive(Clone, Copy, Debug)]
pub struct ForwarderConfig {
    /// Addresses at which the two nodes listen.
    pub nodes: [SocketAddr; 2],
    /// Addresses of the forwarder that face the nodes.
    pub facing: [SocketAddr; 2],
    /// Bytes of headers that count in addition to each datagram.
    pub headers_bytes: u64,
    /// Rate of each direction.
    pub rate: Option<Rate>,
    /// Share of datagrams that each direction loses, 0 to 1.
    pub loss: f64,
    /// Seed of the random losses.
    pub seed: [u8; 32],
}

impl Forwarder {
    /// Opens the sockets and starts to forward.
    ///
    /// # Errors
    /// An address is in use.
    pub fn start(wire: ForwarderConfig) -> Result<Forwarder> {
        let shared = Arc::new(ForwarderShared::default());
        shared.lose_below.store(below(wire.loss), Relaxed);
        let sockets = [open(wire.facing[0])?, open(wire.facing[1])?];
        let mut pump = ForwarderLoop::new(sockets, wire, shared.clone());
        let thread = std::thread::Builder::new().name("forwarder".into());
        let thread = thread.spawn(move || pump.run()).context("starting a forwarder")?;
        Ok(Forwarder { shared, thread: Some(thread) })
    }

    /// Cuts or mends the link.
    pub fn set_cut(&self, cut: bool) {
        self.shared.cut.store(cut, Relaxed);
    }

    /// Sets the share of datagrams lost, 0 to 1.
    pub fn set_loss(&self, share: f64) {
        self.shared.lose_below.store(below(share), Relaxed);
    }

    /// Counters of the directions towards node 0 and node 1.
    pub fn counters(&self) -> Arc<[ForwarderCounters; 2]> {
        self.shared.to.clone()
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.shared.ended.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread ends by itself. A panic of the thread is already on standard error.
            let _ = thread.join();
        }
    }
}

fn open(at: SocketAddr) -> Result<UdpSocket> {
    // A child process that is being started briefly holds copies of this process's sockets, even of
    // those of a removed network.
    let end = Instant::now() + BIND_WITHIN;
    let socket = loop {
        match UdpSocket::bind(at) {
            Err(e) if e.kind() == ErrorKind::AddrInUse && Instant::now() < end => {
                std::thread::sleep(Duration::from_millis(5));
            }
            done => break done.with_context(|| format!("a forwarder's socket at {at}"))?,
        }
    };
    socket.set_nonblocking(true)?;
    setsockopt(&socket, sockopt::UdpGroSegment, &true).context("UDP GRO")?;
    // The kernel may grant less; a smaller buffer only loses datagrams sooner.
    let _ = setsockopt(&socket, sockopt::RcvBuf, &(4 << 20));
    let _ = setsockopt(&socket, sockopt::SndBuf, &(4 << 20));
    Ok(socket)
}

/// The threshold of a share from 0 to 1.
fn below(share: f64) -> u64 {
    (share * 4_294_967_296.0).round() as u64
}

/// Datagrams of one length that leave together.
struct DatagramRun {
    due: Instant,
    stride: usize,
    bytes: Vec<u8>,
}

/// One direction of a link.
struct ForwarderDirection {
    to: SockaddrStorage,
    queue: VecDeque<DatagramRun>,
    /// Time at which the token bucket would be full again (the virtual clock of GCRA).
    full_at: Instant,
}

struct ForwarderLoop {
    sockets: [UdpSocket; 2],
    directions: [ForwarderDirection; 2],
    bytes_per_s: Option<f64>,
    headers_bytes: u64,
    rng: Rng,
    shared: Arc<ForwarderShared>,
}

impl ForwarderLoop {
    fn new(
        sockets: [UdpSocket; 2],
        wire: ForwarderConfig,
        shared: Arc<ForwarderShared>,
    ) -> ForwarderLoop {
        let direction = |to: SocketAddr| ForwarderDirection {
            to: SockaddrStorage::from(to),
            queue: VecDeque::new(),
            full_at: Instant::now(),
        };
        ForwarderLoop {
            sockets,
            directions: wire.nodes.map(direction),
            bytes_per_s: wire.rate.map(|r| r.0 as f64 / 8.0),
            headers_bytes: wire.headers_bytes,
            rng: Rng::new(wire.seed),
            shared,
        }
    }

    fn run(&mut self) {
        let mut buffer = vec![0u8; 1 << 16];
        while !self.shared.ended.load(Relaxed) {
            self.wait();
            for near in 0..2 {
                for _ in 0..BATCHES_MAX {
                    let Some((len, stride)) = receive(&self.sockets[near], &mut buffer) else {
                        break;
                    };
                    self.take(1 - near, &buffer[..len], stride);
                }
            }
            self.release(Instant::now());
        }
    }

    /// Sleeps until a datagram arrives or is due.
    fn wait(&self) {
        let due = self.directions.iter().filter_map(|w| w.queue.front()).map(|run| run.due).min();
        let now = Instant::now();
        let nap = due.map_or(NAP, |due| due.saturating_duration_since(now).min(NAP));
        let mut fds = self.sockets.each_ref().map(|s| PollFd::new(s.as_fd(), PollFlags::POLLIN));
        // An error is an interrupted sleep; the loop checks everything anyway.
        let _ = ppoll(&mut fds, Some(TimeSpec::from(nap)), None);
    }

    /// Decides the fate of the datagrams for node `to`.
    fn take(&mut self, to: usize, bytes: &[u8], stride: usize) {
        let now = Instant::now();
        let mut run: Option<DatagramRun> = None;
        for datagram in bytes.chunks(stride.max(1)) {
            let counters = &self.shared.to[to];
            counters.sent.fetch_add(1, Relaxed);
            if self.shared.cut.load(Relaxed) {
                counters.cut.fetch_add(1, Relaxed);
                continue;
            }
            let below = self.shared.lose_below.load(Relaxed);
            if below > 0 && u64::from(self.rng.u32()) < below {
                counters.lost.fetch_add(1, Relaxed);
                continue;
            }
            let len = datagram.len() as u64 + self.headers_bytes;
            let Some(due) = self.directions[to].departure(now, len, self.bytes_per_s) else {
                continue;
            };
            // A run leaves when its last datagram may leave, and ends with a shorter datagram.
            let open = run.take_if(|r| !r.takes(datagram.len()));
            self.directions[to].queue.extend(open);
            let run = run.get_or_insert_with(|| DatagramRun {
                due,
                stride: datagram.len(),
                bytes: Vec::with_capacity(bytes.len()),
            });
            run.due = due;
            run.bytes.extend_from_slice(datagram);
        }
        self.directions[to].queue.extend(run);
    }

    /// Sends the runs that are due.
    fn release(&mut self, now: Instant) {
        for (to, direction) in self.directions.iter_mut().enumerate() {
            while direction.queue.front().is_some_and(|run| run.due <= now) {
                let Some(run) = direction.queue.pop_front() else { break };
                match send(&self.sockets[to], &run, &direction.to) {
                    Ok(()) => {
                        let count = run.bytes.len().div_ceil(run.stride) as u64;
                        let n = run.bytes.len() as u64 + count * self.headers_bytes;
                        self.shared.to[to].delivered_bytes.fetch_add(n, Relaxed);
                    }
                    Err(Errno::EAGAIN | Errno::ENOBUFS) => {
                        direction.queue.push_front(run);
                        break;
                    }
                    // The node is not up yet, or is gone: a wire would lose the run too.
                    Err(_) => {}
                }
            }
        }
    }
}

impl DatagramRun {
    fn takes(&self, len: usize) -> bool {
        let count = self.bytes.len() / self.stride;
        len <= self.stride
            && self.bytes.len().is_multiple_of(self.stride)
            && count < SEGMENTS_MAX
            && self.bytes.len() + len <= 65_507
    }
}

impl ForwarderDirection {
    /// Departure time of a packet of `len` bytes; `None` if the queue is full.
    fn departure(&mut self, now: Instant, len: u64, bytes_per_s: Option<f64>) -> Option<Instant> {
        let Some(bytes_per_s) = bytes_per_s else { return Some(now) };
        let cost = Duration::from_secs_f64(len as f64 / bytes_per_s);
        let bucket = Duration::from_secs_f64(BURST_BYTES as f64 / bytes_per_s);
        let full_at = self.full_at.max(now) + cost;
        let due = full_at.checked_sub(bucket).unwrap_or(now).max(now);
        if due > now + QUEUE {
            return None;
        }
        self.full_at = full_at;
        Some(due)
    }
}

/// Receives datagrams with one call: bytes in all, and the length of each but the last.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> Option<(usize, usize)> {
    let mut space = nix::cmsg_space!(i32);
    let mut parts = [IoSliceMut::new(buffer)];
    let fd = socket.as_raw_fd();
    let message =
        recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut space), MsgFlags::MSG_DONTWAIT)
            .ok()?;
    let stride = message.cmsgs().ok()?.find_map(|c| match c {
        ControlMessageOwned::UdpGroSegments(n) => usize::try_from(n).ok(),
        _ => None,
    });
    Some((message.bytes, stride.unwrap_or(message.bytes)))
}

fn send(socket: &UdpSocket, run: &DatagramRun, to: &SockaddrStorage) -> Result<(), Errno> {
    let stride = u16::try_from(run.stride).map_err(|_| Errno::EMSGSIZE)?;
    let split = [ControlMessage::UdpGsoSegments(&stride)];
    let split = if run.bytes.len() > run.stride { &split[..] } else { &[] };
    let bytes = [IoSlice::new(&run.bytes)];
    sendmsg(socket.as_raw_fd(), &bytes, split, MsgFlags::MSG_DONTWAIT, Some(to)).map(drop)
}

/// True if `at` can be bound. A run finds unused loopback addresses by this.
pub fn is_free(at: SocketAddr) -> bool {
    !matches!(UdpSocket::bind(at), Err(e) if e.kind() == ErrorKind::AddrInUse)
}
