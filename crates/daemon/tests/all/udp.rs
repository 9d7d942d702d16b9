//! Batched UDP over loopback: frames arrive whole, in order, in runs of equal frames.

use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use shoal_daemon::net::receive::DatagramReceiver;
use shoal_daemon::net::send::{DatagramSender, OutboundRun, SendResult};
use shoal_daemon::net::socket::{self, SocketConfig};
use shoal_relay::SendPath;
use shoal_wire::{DropReason, SizeClass, Time};

const FULL: usize = SizeClass::Full.frame_len();

/// Two sockets on loopback, with a sender and a receiver.
struct UdpPair {
    input: socket2::Socket,
    output: socket2::Socket,
    to: SocketAddr,
    sender: DatagramSender,
    receiver: DatagramReceiver,
}

/// The path to an address, with a source that the kernel chooses.
fn way(to: SocketAddr) -> SendPath {
    SendPath { link: None, ends: to.into() }
}

impl UdpPair {
    fn new(host: &str, gso: bool, gro: bool) -> UdpPair {
        let any: SocketAddr = format!("{host}:0").parse().expect("literal");
        let config = SocketConfig { gro, ..SocketConfig::default() };
        let (input, _) = socket::open(any, &config).expect("loopback");
        let (output, _) = socket::open(any, &config).expect("loopback");
        let to = input.local_addr().expect("bound").as_socket().expect("internet");
        UdpPair {
            input,
            output,
            to,
            sender: DatagramSender::new(gso, false),
            receiver: DatagramReceiver::new(to),
        }
    }

    fn send(&mut self, frames: &[Vec<u8>]) {
        let len = frames[0].len();
        // Gaps between the frames, so that they have to be gathered.
        let gap = 100;
        let mut buffer = Vec::new();
        let mut offsets = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            if i % 3 == 0 {
                buffer.extend(std::iter::repeat_n(0xEE, gap));
            }
            offsets.push(buffer.len() as u32);
            buffer.extend_from_slice(frame);
        }
        let run = OutboundRun { buffer: &buffer, offsets: &offsets, len };
        let sent = self.sender.send(self.output.as_raw_fd(), Time::ZERO, way(self.to), run);
        assert_eq!(sent, (frames.len(), SendResult::Sent));
    }

    /// Receives until `count` frames are there. Returns them and the number of their runs.
    fn receive(&mut self, count: usize) -> (Vec<Vec<u8>>, usize) {
        let mut got = Vec::new();
        let mut runs = 0;
        let end = Instant::now() + Duration::from_secs(5);
        while got.len() < count && Instant::now() < end {
            if self.receiver.receive(self.input.as_raw_fd()).is_err() {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let (buffer, incoming) = self.receiver.batch();
            for run in incoming {
                runs += 1;
                let bytes = &buffer[run.offset as usize..(run.offset + run.len) as usize];
                got.extend(bytes.chunks(run.stride as usize).map(<[u8]>::to_vec));
            }
        }
        (got, runs)
    }
}

fn frames(count: usize, len: usize) -> Vec<Vec<u8>> {
    (0..count).map(|i| (0..len).map(|j| (i * 31 + j * 7) as u8).collect()).collect()
}

#[test]
fn frames_arrive_whole_and_in_order_in_every_regime() {
    for host in ["127.0.0.1", "[::1]"] {
        for (gso, gro) in [(true, true), (true, false), (false, true), (false, false)] {
            for len in [192, 576, FULL] {
                for count in [1, 2, 44, 45, 46, 64, 65, 200] {
                    let mut pair = UdpPair::new(host, gso, gro);
                    let sent = frames(count, len);
                    pair.send(&sent);
                    let (got, _) = pair.receive(count);
                    assert!(got == sent, "{host} gso {gso} gro {gro}: {count} of {len} bytes");
                }
            }
        }
    }
}

#[test]
fn lone_full_frames_of_one_source_are_one_run() {
    let mut pair = UdpPair::new("127.0.0.1", false, true);
    // The first call expects aggregates and takes few messages. It shows that frames come alone.
    pair.send(&frames(1, FULL));
    pair.receive(1);
    pair.send(&frames(16, FULL));
    let (got, runs) = pair.receive(16);
    assert_eq!((got.len(), runs), (16, 1));
}

#[test]
fn sources_are_told_apart() {
    let mut pair = UdpPair::new("127.0.0.1", false, true);
    let other = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    pair.send(&frames(3, FULL));
    other.send_to(&[9; FULL], pair.to).expect("loopback");
    pair.send(&frames(3, FULL));
    let (got, runs) = pair.receive(7);
    assert_eq!((got.len(), runs), (7, 3));
}

#[test]
fn odd_datagrams_do_no_harm() {
    let mut pair = UdpPair::new("127.0.0.1", true, true);
    let other = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    for len in [0, 1, 191, 1_439, 1_441, 9_000, 65_507] {
        other.send_to(&vec![5; len], pair.to).expect("loopback");
    }
    let (got, _) = pair.receive(6);
    let lens: Vec<usize> = got.iter().map(Vec::len).collect();
    assert_eq!(lens, [1, 191, 1_439, 1_441, 9_000, 65_507]);
    assert!(got.iter().flatten().all(|b| *b == 5));
    let drops = pair.receiver.take_drops();
    assert!(drops.contains(&(DropReason::BadSize, 1)), "the empty one is counted: {drops:?}");
    assert!(pair.receiver.take_drops().iter().all(|drop| drop.1 == 0), "and once");
}

#[test]
fn congestion_marks_of_the_network_are_seen() {
    let mut pair = UdpPair::new("127.0.0.1", true, true);
    let other = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None)
        .expect("a UDP socket");
    for (tos, marked) in [(0, false), (2, false), (3, true)] {
        other.set_tos_v4(tos).expect("IP_TOS");
        other.send_to(&[1; 192], &pair.to.into()).expect("loopback");
        assert_eq!(pair.receive(1).0.len(), 1);
        assert_eq!(pair.receiver.batch().1[0].congested, marked, "tos {tos}");
    }
}

#[test]
fn a_closed_port_does_not_stop_sends_to_others() {
    let mut pair = UdpPair::new("127.0.0.1", true, true);
    let closed = {
        let gone = UdpSocket::bind("127.0.0.1:0").expect("loopback");
        gone.local_addr().expect("bound")
    };
    let frame = [3; 192];
    for _ in 0..20 {
        let run = OutboundRun { buffer: &frame, offsets: &[0], len: 192 };
        // Any result concerns only the closed port.
        let _refused = pair.sender.send(pair.output.as_raw_fd(), Time::ZERO, way(closed), run);
        pair.send(&frames(1, 192));
    }
    assert_eq!(pair.receive(20).0.len(), 20);
}

#[test]
fn datagrams_ask_for_marks_unless_they_are_not_to() {
    for (ecn, header) in [(true, 2), (false, 0)] {
        let config = SocketConfig { ecn, ..SocketConfig::default() };
        let open =
            |at: &str| socket::open(at.parse().expect("literal"), &config).expect("loopback");
        let (ipv4, offloads) = open("127.0.0.1:0");
        assert!(offloads.ecn, "marks of others are read all the same");
        assert_eq!(ipv4.tos_v4().expect("IP_TOS"), header);
        assert_eq!(open("[::1]:0").0.tclass_v6().expect("IPV6_TCLASS"), header);
    }
}
