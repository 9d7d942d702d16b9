//! Asks a registrar over UDP: drives a [`Newcomer`] with sockets and a clock until it is done.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shoal_crypto::Identity;
use shoal_joining::{Contact, JoinError, JoinEvent, JoinGoal, Newcomer};
use shoal_wire::Time;

use crate::config::keys::os_random;
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

/// One socket for each IP family among a registrar's endpoints.
struct FamilySockets(Vec<UdpSocket>);

/// True if any datagram could be sent, and the error of the last failed one.
#[derive(Default)]
struct DatagramResult {
    any: bool,
    fault: Option<io::Error>,
}

impl FamilySockets {
    /// Opens sockets towards these endpoints, and one at `own`, the endpoint of a router.
    fn open(endpoints: &[SocketAddr], own: Option<SocketAddr>) -> io::Result<FamilySockets> {
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
            if endpoints.iter().any(|at| at.is_ipv4() == four) {
                let any: SocketAddr = any;
                match UdpSocket::bind(any) {
                    Ok(socket) => {
                        socket.set_nonblocking(true)?;
                        all.push(socket);
                    }
                    // A machine without IPv6 can still reach the IPv4 endpoints.
                    Err(e) if all.is_empty() && endpoints.iter().all(|at| at.is_ipv4() == four) => {
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
        JoinGoal::Router(request) => Some(request.endpoint),
        _ => None,
    };
    let sockets = FamilySockets::open(&contact.endpoints, endpoint)?;
    let (clock, seed) = (BootClock::new(), os_random()?);
    let mut newcomer = Newcomer::new(own, contact, goal, seed, clock.now());
    let (mut buffer, mut sent, began) = ([0; DATAGRAM_MAX], DatagramResult::default(), clock.now());
    let mut told = None;
    loop {
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
    fn errors_of_sending_are_recorded() {
        let here: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let (sockets, mut sent) =
            (FamilySockets::open(&[here], None).unwrap(), DatagramResult::default());
        sockets.send(here, &[0; 70_000], &mut sent);
        assert_eq!(sent.fault.as_ref().and_then(io::Error::raw_os_error), Some(libc::EMSGSIZE));
        sockets.send("[::1]:9".parse().unwrap(), &[0; 9], &mut sent);
        assert_eq!(sent.fault.as_ref().and_then(io::Error::raw_os_error), Some(libc::EAFNOSUPPORT));
        assert!(!sent.any);
        sockets.send(here, &[0; 9], &mut sent);
        assert!(sent.any);
    }
}
