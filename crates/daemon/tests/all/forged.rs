//! Forged ICMP errors about destinations to which a socket never sent. They must not disturb its
//! sends and receives.

#[path = "../support/icmp.rs"]
mod icmp;

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use icmp::{ForgedError, Forger, LIES};
use shoal_daemon::net::receive::DatagramReceiver;
use shoal_daemon::net::send::{DatagramSender, OutboundRun, SendResult};
use shoal_daemon::net::socket::{self, SocketConfig};
use shoal_relay::SendPath;
use shoal_wire::{SizeClass, Time};

const FULL: usize = SizeClass::Full.frame_len();
const RUN: usize = 44;

/// A node's socket, a destination of its sends, and a forger.
struct ForgeryRig {
    socket: socket2::Socket,
    sender: DatagramSender,
    to: UdpSocket,
    forger: Forger,
    quoted: SocketAddr,
}

impl ForgeryRig {
    fn new(ipv6: bool, config: &SocketConfig) -> Option<ForgeryRig> {
        let forger = Forger::new(ipv6)?;
        let (host, quoted) = match ipv6 {
            true => ("[::1]:0", "[2001:db8::9]:9"),
            false => ("127.0.0.1:0", "203.0.113.9:9"),
        };
        let (socket, offloads) = socket::open(host.parse().unwrap(), config).unwrap();
        assert!(offloads.gso && offloads.errors, "{offloads:?}");
        let to = UdpSocket::bind(host).unwrap();
        let sender = DatagramSender::new(true, false);
        Some(ForgeryRig { socket, sender, to, forger, quoted: quoted.parse().unwrap() })
    }

    /// A stage with a small and full receive buffer.
    fn full(ipv6: bool) -> Option<ForgeryRig> {
        let config = SocketConfig { receive_buffer_bytes: 8 << 10, ..SocketConfig::default() };
        let stage = ForgeryRig::new(ipv6, &config)?;
        for _ in 0..64 {
            stage.to.send_to(&[1; FULL], stage.at()).unwrap();
        }
        Some(stage)
    }

    fn at(&self) -> SocketAddr {
        self.socket.local_addr().unwrap().as_socket().unwrap()
    }

    fn forge(&self, lie: ForgedError) {
        self.forger.send(self.at(), self.quoted, lie);
    }

    fn send(&mut self, count: usize, len: usize) -> (usize, SendResult) {
        let buffer = vec![7; count * len];
        let offsets: Vec<u32> = (0..count).map(|i| (i * len) as u32).collect();
        let to = self.to.local_addr().unwrap();
        let run = OutboundRun { buffer: &buffer, offsets: &offsets, len };
        let path = SendPath { link: None, ends: to.into() };
        self.sender.send(self.socket.as_raw_fd(), Time::ZERO, path, run)
    }
}

#[test]
fn no_send_to_anybody_fails() {
    for (ipv6, lie) in [false, true].into_iter().flat_map(|v6| LIES.map(|lie| (v6, lie))) {
        let Some(mut stage) = ForgeryRig::new(ipv6, &SocketConfig::default()) else { return };
        for (forged, count) in [(1, RUN), (1, 1), (3, RUN), (3, 1), (100, RUN), (100, 1)] {
            (0..forged).for_each(|_| stage.forge(lie));
            let said = stage.send(count, FULL);
            let what = format!("IPv6 {ipv6}, {forged} times {lie:?} before {count} frames");
            assert_eq!(said, (count, SendResult::Sent), "{what}");
            assert_eq!(stage.sender.counters().refused_gso, 0, "{what}");
        }
        assert_eq!((stage.sender.refusing(), stage.sender.counters().failed), (0, 0));
    }
}

/// The kernel raises an error even if the queue has no room for its entry.
#[test]
fn an_error_for_which_the_queue_has_no_room_is_not_believed() {
    for ipv6 in [false, true] {
        let Some(mut stage) = ForgeryRig::full(ipv6) else { return };
        for count in [RUN, 1] {
            for lie in LIES {
                stage.forge(lie);
                let said = stage.send(count, FULL);
                assert_eq!(said, (count, SendResult::Sent), "IPv6 {ipv6}, {lie:?}, {count} frames");
            }
        }
        assert_eq!(stage.sender.counters().refused_gso, 0);
    }
}

/// A flood that also keeps the receive buffer full: no error leaves an entry, and one may be raised
/// again and again.
#[test]
fn errors_that_come_in_a_row_while_the_buffer_is_full_are_not_believed() {
    for ipv6 in [false, true] {
        let Some(mut stage) = ForgeryRig::full(ipv6) else { return };
        let (at, quoted) = (stage.at(), stage.quoted);
        let stop = AtomicBool::new(false);
        let failed = std::thread::scope(|scope| {
            for _ in 0..2 {
                let forger = Forger::new(ipv6).expect("there was one before");
                let (stop, lies) = (&stop, [ForgedError::TooLong, ForgedError::PortUnreachable]);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        lies.iter().for_each(|lie| forger.send(at, quoted, *lie));
                    }
                });
            }
            let failed = (0..20_000)
                .filter(|n| matches!(stage.send(1 + n % 2, FULL).1, SendResult::Failed(_)))
                .count();
            stop.store(true, Ordering::Relaxed);
            failed
        });
        let refused = stage.sender.counters().refused_gso;
        println!("IPv6 {ipv6}: {failed} sends failed, {refused} runs refused");
        assert_eq!((failed, refused), (0, 0));
    }
}

#[test]
fn a_frame_longer_than_the_device_takes_still_fails() {
    for ipv6 in [false, true] {
        let Some(mut stage) = ForgeryRig::new(ipv6, &SocketConfig::default()) else { return };
        for forged in [0, 1, 100] {
            (0..forged).for_each(|_| stage.forge(ForgedError::TooLong));
            // With headers, the first is longer than an IP packet, and the second longer than a
            // socket accepts.
            for len in [65_530, 66_000] {
                assert_eq!(stage.send(1, len), (0, SendResult::Failed(libc::EMSGSIZE)), "{len}");
            }
            assert_eq!(stage.send(RUN, FULL), (RUN, SendResult::Sent));
        }
    }
}

#[test]
fn a_receive_brings_what_waits() {
    for (ipv6, lie) in [false, true].into_iter().flat_map(|v6| LIES.map(|lie| (v6, lie))) {
        let Some(stage) = ForgeryRig::new(ipv6, &SocketConfig::default()) else { return };
        let mut receiver = DatagramReceiver::new(stage.at());
        for forged in [1, 100] {
            for _ in 0..3 {
                stage.to.send_to(&[1; FULL], stage.at()).unwrap();
            }
            (0..forged).for_each(|_| stage.forge(lie));
            let got = receiver.receive(stage.socket.as_raw_fd());
            assert!(got.is_ok(), "IPv6 {ipv6}, {forged} times {lie:?}: {got:?}");
            let len: u32 = receiver.batch().1.iter().map(|run| run.len).sum();
            assert_eq!(len as usize, 3 * FULL);
        }
    }
}
