//! Asks a registrar over UDP: drives a [`Newcomer`] with sockets and a clock until it is done.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shoal_crypto::Identity;
use shoal_directory::{DoorEndpoint, fold};
use shoal_joining::{Contact, JoinError, JoinEvent, JoinGoal, Newcomer};
use shoal_session::{EndpointOrigin, EndpointRules, NodeNetworks};
use shoal_wire::Time;

use crate::config::keys::os_random;
use crate::net::resolve::resolve;
use crate::tun::subnets;
use crate::worker::clock::{BootClock, unix_ms};

/// Longest datagram from a registrar, in bytes.
const DATAGRAM_MAX: usize = 1_500;
/// Datagrams read before the clock is read again.
const BATCH: usize = 64;

/// A request fails if the kernel accepted no datagram for this long. Until then a network that
/// comes up late is waited for.
const UNSENDABLE: Duration = Duration::from_secs(5);

/// Time without an answer until [`JoinEvent::Unanswered`] informs the person who waits.
const UNANSWERED: Duration = Duration::from_secs(3);

/// Longest wait for a datagram while a name is not resolved yet.
const LOOK: Duration = Duration::from_millis(50);

/// Names of a registrar's endpoints, which threads of their own resolve.
struct DoorLookups {
    found: Receiver<(String, Result<Vec<SocketAddr>, String>)>,
    /// Number of names without an answer yet.
    missing: usize,
    rules: EndpointRules,
    /// Reason why the last name without a usable address has none.
    fault: Option<String>,
    /// True if the registrar has an address to call.
    any: bool,
}

/// Rules for the addresses of names among these endpoints. An address inside a network of this
/// machine's nodes is refused, since the DNS is not trusted.
fn rules(endpoints: &[DoorEndpoint]) -> EndpointRules {
    let plain = endpoints.iter().filter_map(DoorEndpoint::address).map(|at| at.ip());
    // A name of this kind always means the machine itself (RFC 6761).
    let is_local = |at: &DoorEndpoint| {
        let name = at.place().map(|(name, _)| fold(name));
        name.is_some_and(|name| name == "localhost" || name.ends_with(".localhost"))
    };
    let loopback = endpoints.iter().any(is_local).then_some(Ipv4Addr::LOCALHOST.into());
    EndpointRules::new(&NodeNetworks {
        nested: subnets::of_other_nodes(""),
        configured: plain.chain(loopback).collect(),
        ..NodeNetworks::default()
    })
}

impl DoorLookups {
    /// Starts a thread for each name. A slow one delays no other.
    fn start(endpoints: &[DoorEndpoint]) -> io::Result<DoorLookups> {
        let names: Vec<_> = endpoints.iter().filter_map(DoorEndpoint::place).collect();
        let (outlet, found) = sync_channel(names.len());
        for (name, port) in &names {
            let (outlet, name, port) = (outlet.clone(), (*name).to_owned(), *port);
            let look_up = move || {
                let addresses = resolve((&name, port));
                // The request may have ended meanwhile.
                let _gone = outlet.send((name, addresses));
            };
            std::thread::Builder::new().name("shoal-lookup".into()).spawn(look_up)?;
        }
        let any = names.len() < endpoints.len();
        let rules = rules(endpoints);
        Ok(DoorLookups { found, missing: names.len(), rules, fault: None, any })
    }

    /// Usable addresses that were found since the last call.
    fn take(&mut self) -> Vec<SocketAddr> {
        let mut all = Vec::new();
        while let Ok((name, addresses)) = self.found.try_recv() {
            self.missing -= 1;
            let usable = |at: &SocketAddr| self.rules.check(*at, EndpointOrigin::Named).is_ok();
            match addresses.map(|all| all.into_iter().filter(usable).collect::<Vec<_>>()) {
                Ok(usable) if !usable.is_empty() => all.extend(usable),
                Ok(_) => {
                    self.fault = Some(format!(
                        "{name}, where the registrar is called, has no address that this machine \
                         can call: correct the name's entry in the DNS or in /etc/hosts"
                    ));
                }
                Err(why) => {
                    self.fault = Some(format!(
                        "{name}, where the registrar is called, can't be looked up: {why}: check \
                         the name, and this machine's DNS"
                    ));
                }
            }
        }
        self.any |= !all.is_empty();
        all
    }

    /// The reason, if nothing can be called: no name has a usable address.
    fn failure(&self) -> Option<&String> {
        self.fault.as_ref().filter(|_| self.missing == 0 && !self.any)
    }
}

/// One socket for each IP family among a registrar's endpoints.
struct FamilySockets(Vec<UdpSocket>);

/// True if any datagram could be sent, and the error of the last failed one.
#[derive(Default)]
struct DatagramResult {
    any: bool,
    fault: Option<io::Error>,
}

impl FamilySockets {
    /// Opens sockets towards these endpoints, for names one of each IP family, and one at `own`,
    /// the endpoint of a router.
    fn open(endpoints: &[DoorEndpoint], own: Option<SocketAddr>) -> io::Result<FamilySockets> {
        let may_be = |at: &DoorEndpoint, four| at.address().is_none_or(|at| at.is_ipv4() == four);
        let mut all = Vec::new();
        if let Some(own) = own {
            let at = listen_at(own);
            let socket = UdpSocket::bind(at).map_err(|why| unusable(at, &why))?;
            socket.set_nonblocking(true)?;
            all.push(socket);
        }
        for (four, any) in
            [(true, (Ipv4Addr::UNSPECIFIED, 0).into()), (false, (Ipv6Addr::UNSPECIFIED, 0).into())]
        {
            if own.is_some_and(|own| own.is_ipv4() == four) {
                continue;
            }
            if endpoints.iter().any(|at| may_be(at, four)) {
                let any: SocketAddr = any;
                match UdpSocket::bind(any) {
                    Ok(socket) => {
                        socket.set_nonblocking(true)?;
                        all.push(socket);
                    }
                    // A machine without IPv6 can still reach the IPv4 endpoints.
                    Err(e) if all.is_empty() && !endpoints.iter().any(|at| may_be(at, !four)) => {
                        return Err(e);
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(FamilySockets(all))
    }

    fn send(&self, to: SocketAddr, bytes: &[u8], sent: &mut DatagramResult) {
        let is_same =
            |socket: &&UdpSocket| socket.local_addr().is_ok_and(|at| at.is_ipv4() == to.is_ipv4());
        let family = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        let socket = self.0.iter().find(is_same).ok_or_else(family);
        // A failed datagram counts as a lost one: the newcomer sends it again.
        match socket.and_then(|socket| socket.send_to(bytes, to)) {
            Ok(_) => sent.any = true,
            Err(why) => sent.fault = Some(why),
        }
    }

    /// Waits for a datagram, at most for `most`.
    fn wait(&self, most: Duration) -> io::Result<()> {
        let mut fds: Vec<_> =
            self.0.iter().map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)).collect();
        let ms = most.as_nanos().div_ceil(1_000_000);
        match poll(&mut fds, PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// The error of a port at which a router can't listen.
fn unusable(at: SocketAddr, why: &io::Error) -> io::Error {
    let text =
        format!("can't listen at {at} (UDP): {why}: name another port with --endpoint IP:PORT");
    io::Error::new(why.kind(), text)
}

/// Address to listen at for the endpoint `at`: all addresses, since `at` may be a translator's. A
/// loopback address stays alone.
pub fn listen_at(at: SocketAddr) -> SocketAddr {
    let any = match at.ip() {
        ip if ip.is_loopback() => ip,
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, at.port())
}

/// Asks a registrar for `goal`, and returns the final event. `heard` is called with each earlier
/// event. If it returns false, the request ends as if the registrar had stopped answering.
///
/// # Errors
///
/// No socket can be opened or used, or the kernel gives no randomness.
pub fn ask(
    own: Identity,
    contact: Contact,
    goal: JoinGoal,
    heard: &mut dyn FnMut(&JoinEvent) -> bool,
) -> io::Result<JoinEvent> {
    let endpoint = match &goal {
        JoinGoal::Router(request) | JoinGoal::Registrar(request, ..) => Some(request.endpoint),
        _ => None,
    };
    let sockets = FamilySockets::open(&contact.endpoints, endpoint)?;
    let mut lookups = DoorLookups::start(&contact.endpoints)?;
    let (clock, seed) = (BootClock::new(), os_random()?);
    let mut newcomer = Newcomer::new(own, contact, goal, seed, clock.now());
    let (mut buffer, mut sent, began) = ([0; DATAGRAM_MAX], DatagramResult::default(), clock.now());
    let mut told = None;
    loop {
        newcomer.add_endpoints(clock.now(), lookups.take());
        if let Some(why) = lookups.failure() {
            return Ok(JoinEvent::Failed(JoinError::Unresolved(why.clone())));
        }
        newcomer.handle_timeout(clock.now(), unix_ms() / 1_000);
        if let Some(end) = drain(&mut newcomer, &sockets, &mut sent, heard) {
            return Ok(end);
        }
        let now = clock.now();
        if let (false, Some(why)) = (sent.any, &sent.fault)
            && now.since(began) >= UNSENDABLE
        {
            return Ok(JoinEvent::Failed(JoinError::Unsendable(why.to_string())));
        }
        let mut next = newcomer.poll_timeout().unwrap_or(now);
        if told.is_none() && !newcomer.is_welcomed() {
            next = next.min(began + UNANSWERED);
            told = (now >= began + UNANSWERED).then(|| heard(&JoinEvent::Unanswered));
        }
        if lookups.missing > 0 {
            next = next.min(now + LOOK);
        }
        sockets.wait(next.since(now))?;
        for socket in &sockets.0 {
            for _ in 0..BATCH {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { break };
                let now: Time = clock.now();
                newcomer.handle_datagram(now, unix_ms() / 1_000, from, &buffer[..len]);
                if let Some(end) = drain(&mut newcomer, &sockets, &mut sent, heard) {
                    return Ok(end);
                }
            }
        }
    }
}

/// Sends the pending datagrams. Returns the final event, if there is one.
fn drain(
    newcomer: &mut Newcomer,
    sockets: &FamilySockets,
    sent: &mut DatagramResult,
    heard: &mut dyn FnMut(&JoinEvent) -> bool,
) -> Option<JoinEvent> {
    while let Some((to, bytes)) = newcomer.poll_transmit() {
        sockets.send(to, &bytes, sent);
    }
    while let Some(event) = newcomer.poll_event() {
        if !matches!(event, JoinEvent::Waiting(_) | JoinEvent::Fetched(..)) {
            return Some(event);
        }
        if !heard(&event) {
            return Some(JoinEvent::Failed(JoinError::Silent { welcomed: true }));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_taken_port_is_named() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let at = taken.local_addr().unwrap();
        let error = FamilySockets::open(&[], Some(at)).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
        let said = error.to_string();
        assert!(said.contains(&at.to_string()) && said.contains("--endpoint IP:PORT"), "{said}");
    }

    #[test]
    fn names_are_looked_up_and_their_addresses_checked() {
        let looked_up = |endpoints: &[DoorEndpoint]| {
            let mut lookups = DoorLookups::start(endpoints).unwrap();
            let (began, mut all) = (std::time::Instant::now(), Vec::new());
            while lookups.missing > 0 && began.elapsed() < Duration::from_secs(20) {
                all.extend(lookups.take());
                std::thread::sleep(Duration::from_millis(5));
            }
            (all, lookups.failure().cloned())
        };
        let (all, failure) = looked_up(&["localhost:7401".parse().unwrap()]);
        assert!(!all.is_empty() && failure.is_none(), "{failure:?}");
        // No query has room for a label of this length.
        let wrong = DoorEndpoint::Named("x".repeat(64), 7_401);
        let (all, failure) = looked_up(std::slice::from_ref(&wrong));
        let failure = failure.unwrap();
        assert!(all.is_empty() && failure.contains("xxx, where the registrar"), "{failure}");
        // An address is called meanwhile.
        assert_eq!(looked_up(&[wrong, "192.0.2.1:7401".parse().unwrap()]).1, None);
        // A name that the DNS leads to this machine, though it is no name of it.
        let named = |name: &str| rules(&[DoorEndpoint::Named(name.into(), 7_401)]);
        let here = "127.0.0.1:7401".parse().unwrap();
        assert!(named("my.example.org").check(here, EndpointOrigin::Named).is_err());
        assert!(named("localhost").check(here, EndpointOrigin::Named).is_ok());
    }

    #[test]
    fn errors_of_sending_are_recorded() {
        let here: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let (sockets, mut sent) =
            (FamilySockets::open(&[here.into()], None).unwrap(), DatagramResult::default());
        sockets.send(here, &[0; 70_000], &mut sent);
        assert_eq!(sent.fault.as_ref().and_then(io::Error::raw_os_error), Some(libc::EMSGSIZE));
        sockets.send("[::1]:9".parse().unwrap(), &[0; 9], &mut sent);
        assert_eq!(sent.fault.as_ref().and_then(io::Error::raw_os_error), Some(libc::EAFNOSUPPORT));
        assert!(!sent.any);
        sockets.send(here, &[0; 9], &mut sent);
        assert!(sent.any);
    }
}
