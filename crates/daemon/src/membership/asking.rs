//! Asks a registrar over UDP: drives a [`Newcomer`] with sockets and clocks, until it is done.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use shoal_crypto::Identity;
use shoal_joining::{Contact, Event, Fault, Goal, Newcomer};
use shoal_wire::Time;

use crate::config::keys::os_random;
use crate::worker::clock::{Clock, unix_ms};

/// Longest datagram of a registrar.
const DATAGRAM_MAX: usize = 1_500;
/// Datagrams that are read before time is looked at again.
const BATCH: usize = 64;

/// A registrar to which nothing could be sent for so long is not called any longer: what the kernel
/// refuses does not become better by silence, but a network that comes up meanwhile is waited for.
const UNSENDABLE: Duration = Duration::from_secs(5);

/// How long a person waits before [`Event::Unanswered`] says that nobody has answered yet.
const UNANSWERED: Duration = Duration::from_secs(3);

/// Sockets of the families that a registrar's endpoints have.
struct Sockets(Vec<UdpSocket>);

/// Whether anything could be sent, and else why the last datagram could not.
#[derive(Default)]
struct Sent {
    any: bool,
    fault: Option<io::Error>,
}

impl Sockets {
    fn open(endpoints: &[SocketAddr]) -> io::Result<Sockets> {
        let mut all = Vec::new();
        for (four, any) in
            [(true, (Ipv4Addr::UNSPECIFIED, 0).into()), (false, (Ipv6Addr::UNSPECIFIED, 0).into())]
        {
            if endpoints.iter().any(|at| at.is_ipv4() == four) {
                let any: SocketAddr = any;
                match UdpSocket::bind(any) {
                    Ok(socket) => {
                        socket.set_nonblocking(true)?;
                        all.push(socket);
                    }
                    // A machine without IPv6 reaches the other endpoints.
                    Err(e) if all.is_empty() && endpoints.iter().all(|at| at.is_ipv4() == four) => {
                        return Err(e);
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(Sockets(all))
    }

    fn send(&self, to: SocketAddr, bytes: &[u8], sent: &mut Sent) {
        let is_same =
            |socket: &&UdpSocket| socket.local_addr().is_ok_and(|at| at.is_ipv4() == to.is_ipv4());
        let family = || io::Error::from_raw_os_error(libc::EAFNOSUPPORT);
        let socket = self.0.iter().find(is_same).ok_or_else(family);
        // What can't be sent is lost, as any datagram may be: it is sent again.
        match socket.and_then(|socket| socket.send_to(bytes, to)) {
            Ok(_) => sent.any = true,
            Err(why) => sent.fault = Some(why),
        }
    }

    /// Waits for a datagram, at most so long.
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

/// Asks a registrar for `goal`, and returns the event with which it ends. `heard` is told of the
/// others, and may give up by returning false, which ends it as silence does.
///
/// # Errors
///
/// There is no socket, or no randomness.
pub fn ask(
    own: Identity,
    contact: Contact,
    goal: Goal,
    heard: &mut dyn FnMut(&Event) -> bool,
) -> io::Result<Event> {
    let sockets = Sockets::open(&contact.endpoints)?;
    let (clock, seed) = (Clock::new(), os_random()?);
    let mut newcomer = Newcomer::new(own, contact, goal, seed, clock.now());
    let (mut buffer, mut sent, began) = ([0; DATAGRAM_MAX], Sent::default(), clock.now());
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
            return Ok(Event::Failed(Fault::Unsendable(why.to_string())));
        }
        let mut next = newcomer.poll_timeout().unwrap_or(now);
        if told.is_none() && !newcomer.is_welcomed() {
            next = next.min(began + UNANSWERED);
            told = (now >= began + UNANSWERED).then(|| heard(&Event::Unanswered));
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

/// Sends what is to be sent; the last event, if that has come.
fn drain(
    newcomer: &mut Newcomer,
    sockets: &Sockets,
    sent: &mut Sent,
    heard: &mut dyn FnMut(&Event) -> bool,
) -> Option<Event> {
    while let Some((to, bytes)) = newcomer.poll_transmit() {
        sockets.send(to, &bytes, sent);
    }
    while let Some(event) = newcomer.poll_event() {
        if !matches!(event, Event::Waiting(_) | Event::Fetched(..)) {
            return Some(event);
        }
        if !heard(&event) {
            return Some(Event::Failed(Fault::Silent { welcomed: true }));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_not_be_sent_is_noted() {
        let here: SocketAddr = "127.0.0.1:9".parse().unwrap();
        let (sockets, mut sent) = (Sockets::open(&[here]).unwrap(), Sent::default());
        sockets.send(here, &[0; 70_000], &mut sent);
        assert_eq!(sent.fault.as_ref().and_then(io::Error::raw_os_error), Some(libc::EMSGSIZE));
        sockets.send("[::1]:9".parse().unwrap(), &[0; 9], &mut sent);
        assert_eq!(sent.fault.as_ref().and_then(io::Error::raw_os_error), Some(libc::EAFNOSUPPORT));
        assert!(!sent.any);
        sockets.send(here, &[0; 9], &mut sent);
        assert!(sent.any);
    }
}
