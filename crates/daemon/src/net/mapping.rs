//! Keeps this node's port open at a NAT gateway. A thread without capabilities does this.
//!
//! ```text
//! default route -> its gateway -> thread: Mapper <-- UDP --> gateway, port 5351
//!                                   | where others reach this node
//!                                   v
//!                                 worker: a candidate for direct links
//! ```
//!
//! The thread accepts only datagrams that come from the gateway's address and answer its own
//! requests. The thread removes the mapping when the node stops.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use caps::CapsHashSet;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shoal_portmap::{ANSWER_MAX, Mapper, SERVER_PORT};
use shoal_wire::Time;

use crate::config::keys::os_random;
use crate::control::api;
use crate::privileges;
use crate::worker::clock::BootClock;
use crate::worker::wake::{Waker, WakingInbox, WakingOutlet, channel};

/// Maximum number of changes that wait for the worker.
const CHANGES: usize = 4;
/// Interval at which the default route is checked.
const LOOK: Duration = Duration::from_secs(30);
/// Longest wait for the gateway when the node stops.
const FAREWELL: Duration = Duration::from_millis(400);
/// Maximum number of datagrams read before the time is checked again.
const BATCH: usize = 16;
/// Maximum number of bytes read of the kernel's routing table.
const ROUTES_MAX: u64 = 1 << 20;

/// Handle of the thread, with its last report.
pub(crate) struct PortMapper {
    changes: WakingInbox<Option<SocketAddrV4>>,
    shown: Arc<Mutex<MappingReport>>,
    clock: BootClock,
    /// Closing this end tells the thread to stop.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Last report of the thread.
#[derive(Default)]
struct MappingReport {
    view: api::PortMappingStatus,
    ends: Option<Time>,
}

impl PortMapper {
    /// Starts the thread for a socket of this node.
    pub(crate) fn start(local: SocketAddrV4, waker: &Arc<Waker>) -> io::Result<PortMapper> {
        let (outlet, changes) = channel(CHANGES, waker);
        let (stop, told) = UnixStream::pair()?;
        let (shown, clock) = (Arc::<Mutex<MappingReport>>::default(), BootClock::new());
        let nonces = Nonces::default();
        let keeper =
            MappingThread { local, told, outlet, shown: shown.clone(), clock, at: None, nonces };
        let thread = std::thread::Builder::new().name("shoal-map".into());
        let thread = thread.spawn(move || keeper.run())?;
        Ok(PortMapper { changes, shown, clock, stop: Some(stop), thread: Some(thread) })
    }

    /// The public endpoint, if it changed since the last call: `Some(None)` if it was lost, `None`
    /// without a change.
    pub(crate) fn take(&mut self) -> Option<Option<SocketAddrV4>> {
        let mut last = None;
        while let Some(change) = self.changes.take() {
            last = Some(change);
        }
        last
    }

    /// State of the mapping, for the control API.
    pub(crate) fn view(&self) -> api::PortMappingStatus {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let left = shown.ends.map(|ends| ends.since(self.clock.now()).as_secs());
        api::PortMappingStatus { left_s: left, ..shown.view.clone() }
    }

    /// Stops the thread, which then removes the mapping. The call returns at once, since the worker
    /// must not block.
    pub(crate) fn let_go(mut self) {
        drop(self.thread.take());
    }
}

impl Drop for PortMapper {
    fn drop(&mut self) {
        drop(self.stop.take());
        // The thread waits for the gateway no longer than `FAREWELL`.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Reason why the work with one gateway ended.
#[derive(Debug, PartialEq, Eq)]
enum MappingEnd {
    Stopped,
    /// The default route changed.
    Moved,
}

struct MappingThread {
    local: SocketAddrV4,
    told: UnixStream,
    outlet: WakingOutlet<Option<SocketAddrV4>>,
    shown: Arc<Mutex<MappingReport>>,
    clock: BootClock,
    /// Last endpoint sent to the worker.
    at: Option<SocketAddrV4>,
    nonces: Nonces,
}

/// Nonces that prove the ownership of a mapping to gateways. A nonce stays the same as long as the
/// gateway sees the socket at one endpoint (RFC 6887, section 11.2).
#[derive(Default)]
struct Nonces(VecDeque<((Ipv4Addr, SocketAddrV4), [u8; 12])>);

impl Nonces {
    /// Maximum number of remembered gateways. A machine may return to one that still has its
    /// mapping.
    const MAX: usize = 4;

    /// Nonce for a gateway and the socket's private endpoint: the remembered one, or a new one from
    /// `seed`.
    fn of(&mut self, gateway: Ipv4Addr, inner: SocketAddrV4, seed: &[u8; 32]) -> [u8; 12] {
        let place = (gateway, inner);
        if let Some((_, nonce)) = self.0.iter().find(|(known, _)| *known == place) {
            return *nonce;
        }
        let fresh = core::array::from_fn(|n| seed[n]);
        self.0.push_front((place, fresh));
        self.0.truncate(Self::MAX);
        fresh
    }
}

impl MappingThread {
    fn run(mut self) {
        if let Err(error) = privileges::keep_capabilities(&CapsHashSet::new()) {
            return self.fail(&format!("the thread can't give up its capabilities: {error:#}"));
        }
        loop {
            let over = match GatewayClient::open(self.local) {
                Ok(server) => self.ask(&server),
                Err(why) => {
                    self.fail(&why);
                    self.pause()
                }
            };
            self.tell(None);
            if over == MappingEnd::Stopped {
                return;
            }
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, MappingReport> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fail(&self, why: &str) {
        let mut shown = self.lock();
        let api::PortMappingStatus { asked, answered, dropped, .. } = shown.view;
        let fault = Some(why.into());
        let view = api::PortMappingStatus { fault, asked, answered, dropped, ..Default::default() };
        *shown = MappingReport { view, ends: None };
    }

    /// Waits until the node stops or the next check is due.
    fn pause(&self) -> MappingEnd {
        match wait(&[PollFd::new(self.told.as_fd(), PollFlags::POLLIN)], LOOK) {
            Ok(ready) if ready[0] => MappingEnd::Stopped,
            _ => MappingEnd::Moved,
        }
    }

    /// Tells the worker the endpoint, if it changed.
    fn tell(&mut self, at: Option<SocketAddrV4>) {
        if self.at != at && self.outlet.try_send(at).is_ok() {
            self.at = at;
        }
    }

    fn show(&mut self, server: &GatewayClient, mapper: &Mapper) {
        let (mapped, stats) = (mapper.mapped(), mapper.stats());
        let private = mapped.is_some_and(|mapped| mapped.is_private());
        let view = api::PortMappingStatus {
            translator: Some(server.gateway.to_string()),
            at: mapped.map(|mapped| mapped.at.to_string()),
            via: mapped.map(|mapped| mapped.via.name().into()),
            left_s: None,
            private,
            fault: mapper.fault().map(|fault| fault.to_string()),
            asked: stats.asked,
            answered: stats.answered,
            dropped: stats.malformed + stats.unasked,
        };
        *self.lock() = MappingReport { view, ends: mapped.map(|mapped| mapped.ends) };
        self.tell(mapped.map(|mapped| mapped.at).filter(|_| !private));
    }

    /// Keeps the port open, until the node stops or the default route changes.
    fn ask(&mut self, server: &GatewayClient) -> MappingEnd {
        let Ok(seed) = os_random() else { return self.pause() };
        let nonce = self.nonces.of(server.gateway, server.inner, &seed);
        let mut mapper = Mapper::new(server.inner, nonce, self.clock.now());
        let mut look = self.clock.now() + LOOK;
        loop {
            let now = self.clock.now();
            mapper.handle_timeout(now);
            server.send(&mut mapper);
            self.show(server, &mapper);
            if now >= look {
                look = now + LOOK;
                if !server.is_current(self.local) {
                    return MappingEnd::Moved;
                }
            }
            let next = mapper.poll_timeout().unwrap_or(look).min(look);
            let watched = |fd| PollFd::new(fd, PollFlags::POLLIN);
            let fds = [watched(server.socket.as_fd()), watched(self.told.as_fd())];
            match wait(&fds, next.since(now)) {
                Ok(ready) if ready[1] => {
                    self.give_back(server, mapper);
                    return MappingEnd::Stopped;
                }
                Ok(_) => server.receive(&mut mapper, self.clock.now()),
                Err(_) => return self.pause(),
            }
        }
    }

    fn give_back(&self, server: &GatewayClient, mut mapper: Mapper) {
        let began = self.clock.now();
        mapper.end(began);
        loop {
            let now = self.clock.now();
            mapper.handle_timeout(now);
            server.send(&mut mapper);
            let Some(next) = mapper.poll_timeout() else { return };
            let left = FAREWELL.saturating_sub(now.since(began));
            let fds = [PollFd::new(server.socket.as_fd(), PollFlags::POLLIN)];
            if left.is_zero() || wait(&fds, next.since(now).min(left)).is_err() {
                return;
            }
            server.receive(&mut mapper, self.clock.now());
        }
    }
}

/// Waits at most `most` for one of the descriptors. Returns for each whether it is readable.
fn wait(fds: &[PollFd<'_>], most: Duration) -> io::Result<Vec<bool>> {
    let mut fds = fds.to_vec();
    let ms = most.as_nanos().div_ceil(1_000_000);
    match poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)) {
        Ok(_) | Err(nix::Error::EINTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(fds.iter().map(|fd| fd.any().unwrap_or(false)).collect())
}

/// The translator, and the socket with which it is asked.
struct GatewayClient {
    socket: UdpSocket,
    gateway: Ipv4Addr,
    inner: SocketAddrV4,
}

impl GatewayClient {
    /// Errors: why no translator can be asked, in words for the operator.
    fn open(local: SocketAddrV4) -> Result<GatewayClient, String> {
        let gateway = default_gateway().ok_or("no IPv4 default route with a gateway")?;
        let socket = UdpSocket::bind((*local.ip(), 0)).map_err(|e| e.to_string())?;
        let connected = socket.connect((gateway, SERVER_PORT));
        connected.and_then(|()| socket.set_nonblocking(true)).map_err(|e| e.to_string())?;
        let SocketAddr::V4(here) = socket.local_addr().map_err(|e| e.to_string())? else {
            return Err("the route to the gateway has no IPv4 source address".into());
        };
        Ok(GatewayClient { socket, gateway, inner: SocketAddrV4::new(*here.ip(), local.port()) })
    }

    /// True if a new `GatewayClient` would have the same gateway and inner endpoint.
    fn is_current(&self, local: SocketAddrV4) -> bool {
        let again = GatewayClient::open(local);
        again.is_ok_and(|again| (again.gateway, again.inner) == (self.gateway, self.inner))
    }

    fn send(&self, mapper: &mut Mapper) {
        while let Some(request) = mapper.poll_transmit() {
            // Requests that are lost, or refused by the gateway's kernel, are sent again.
            let _lost = self.socket.send(&request);
        }
    }

    fn receive(&self, mapper: &mut Mapper, now: Time) {
        // One more byte, so that overlong datagrams are recognised.
        let mut buffer = [0; ANSWER_MAX + 1];
        for _ in 0..BATCH {
            let Ok(len) = self.socket.recv(&mut buffer) else { return };
            // The mapper counts datagrams without effect.
            let _dropped = mapper.handle_datagram(now, &buffer[..len]);
        }
    }
}

/// The gateway of this thread's default route.
fn default_gateway() -> Option<Ipv4Addr> {
    use io::Read;
    let table = std::fs::File::open("/proc/thread-self/net/route").ok()?;
    let mut text = String::new();
    table.take(ROUTES_MAX).read_to_string(&mut text).ok()?;
    gateway(&text)
}

/// Gateway of the best default route in the kernel's table. The table prints addresses in the byte
/// order of this machine.
fn gateway(table: &str) -> Option<Ipv4Addr> {
    const BY_GATEWAY: u32 = 2;
    let route = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let hex = |n: usize| words.get(n).and_then(|word| u32::from_str_radix(word, 16).ok());
        let is_default = hex(1)? == 0 && hex(7)? == 0 && hex(3)? & BY_GATEWAY != 0;
        let metric: u32 = words.get(6)?.parse().ok()?;
        is_default.then_some((metric, Ipv4Addr::from(hex(2)?.to_ne_bytes())))
    };
    table.lines().skip(1).filter_map(route).min_by_key(|(metric, _)| *metric).map(|(_, ip)| ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_stays_as_long_as_the_socket_is_seen_at_one_place() {
        let (gateway, other) = (Ipv4Addr::new(192, 168, 1, 1), Ipv4Addr::new(192, 168, 2, 1));
        let inner = SocketAddrV4::new(Ipv4Addr::new(192, 168, 1, 2), 7_400);
        let mut nonces = Nonces::default();
        assert_eq!(nonces.of(gateway, inner, &[1; 32]), [1; 12]);
        assert_eq!(nonces.of(gateway, inner, &[2; 32]), [1; 12]);
        assert_eq!(nonces.of(other, inner, &[3; 32]), [3; 12]);
        let moved = SocketAddrV4::new(*inner.ip(), 7_401);
        assert_eq!(nonces.of(other, moved, &[4; 32]), [4; 12]);
        assert_eq!(nonces.of(gateway, inner, &[5; 32]), [1; 12], "back again");
        for last in 1..=4 {
            nonces.of(Ipv4Addr::new(10, 0, 0, last), inner, &[6; 32]);
        }
        assert_eq!(nonces.of(gateway, inner, &[7; 32]), [7; 12], "four are remembered");
    }

    #[test]
    fn the_best_default_route_is_found() {
        let head = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\n";
        let ip = |a: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(a));
        let line = |to: [u8; 4], by: [u8; 4], flags: u32, metric: u32, mask: [u8; 4]| {
            format!("eth0\t{}\t{}\t{flags:04X}\t0\t0\t{metric}\t{}\t0\n", ip(to), ip(by), ip(mask))
        };
        let any = [0; 4];
        let lan = line([192, 168, 1, 0], any, 1, 0, [255, 255, 255, 0]);
        let slow = line(any, [192, 168, 1, 2], 3, 600, any);
        let best = line(any, [192, 168, 1, 1], 3, 100, any);
        let straight = line(any, any, 1, 0, any);
        let table = [head, &lan, &slow, &straight, &best, "broken\n"].concat();
        assert_eq!(gateway(&table), Some([192, 168, 1, 1].into()));
        assert_eq!(gateway(&[head, &lan, &straight].concat()), None);
        assert_eq!(gateway(""), None);
    }
}
