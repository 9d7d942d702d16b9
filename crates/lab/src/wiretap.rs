//! An observer of links: records every UDP payload at a node's interfaces.
//!
//! Input: packets of an AF_PACKET socket in the node's namespace. Output: [`PayloadStatistics`] of
//! their bytes, per position, and a pcap file of the packets if requested.

use std::fs::File;
use std::io::{BufWriter, ErrorKind, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt,
};
use nix::sys::time::TimeSpec;
use socket2::{Domain, Protocol, Socket, Type};

use crate::namespace::Namespace;
use crate::statistics::PayloadStatistics;

/// linux/if_ether.h: every protocol, both directions.
const ETH_P_ALL: u16 = 3;
/// Longest wait of the socket before the thread checks whether it should end.
const NAP: Duration = Duration::from_millis(50);
/// Receive buffer in bytes: a second of a shaped link. Packets that overflow it are not analysed.
const BUFFER_BYTES: usize = 64 << 20;
/// Buffer for a packet: more than any frame with its headers.
const PACKET_MAX: usize = 2048;
/// Recorded bytes of each packet if its content is not needed: headers and some bytes.
const HEAD_MAX: usize = 128;

/// A running observer; ends when finished or dropped.
#[derive(Debug)]
pub struct Wiretap {
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<PayloadStatistics>>>,
}

impl Wiretap {
    /// Observes all links of `namespace`'s node; writes the packets to `pcap` if given.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing, or the file can't be made.
    pub fn start(namespace: &Namespace, pcap: Option<&Path>) -> Result<Wiretap> {
        Wiretap::open(namespace, pcap.map(|path| Pcap::create(path, PACKET_MAX)).transpose()?)
    }

    /// Like [`Wiretap::start`], but writes only the first bytes of each packet to `pcap`.
    ///
    /// # Errors
    /// See [`Wiretap::start`].
    pub fn of_heads(namespace: &Namespace, pcap: &Path) -> Result<Wiretap> {
        Wiretap::open(namespace, Some(Pcap::create(pcap, HEAD_MAX)?))
    }

    fn open(namespace: &Namespace, pcap: Option<Pcap>) -> Result<Wiretap> {
        let protocol = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        let socket = namespace.enter(|| {
            Socket::new(Domain::PACKET, Type::RAW, Some(protocol)).context("a packet socket")
        })?;
        socket.set_read_timeout(Some(NAP))?;
        // Requires root; with a smaller buffer, bursts overflow.
        let _ = setsockopt(&socket, sockopt::RcvBufForce, &BUFFER_BYTES);
        // Timestamps of the kernel: this thread may be late.
        setsockopt(&socket, sockopt::ReceiveTimestampns, &true)?;
        let ended = Arc::new(AtomicBool::new(false));
        let flag = ended.clone();
        let thread = std::thread::Builder::new().name("wiretap".into());
        let thread = thread.spawn(move || watch(socket, pcap, &flag))?;
        Ok(Wiretap { ended, thread: Some(thread) })
    }

    /// Stops, and returns the statistics.
    pub fn finish(mut self) -> Result<PayloadStatistics> {
        self.ended.store(true, Ordering::Relaxed);
        match self.thread.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            _ => anyhow::bail!("the wiretap's thread failed"),
        }
    }
}

impl Drop for Wiretap {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// Records at most `count` payloads of datagrams that leave by `namespace`'s links, within `span`.
pub fn record(namespace: &Namespace, span: Duration, count: usize) -> Result<Vec<Vec<u8>>> {
    Ok(DepartureRecorder::open(namespace)?.record(span, count))
}

/// An observer of the datagrams that leave a node.
#[derive(Debug)]
pub struct DepartureRecorder {
    socket: Socket,
    own: Vec<IpAddr>,
}

impl DepartureRecorder {
    /// Opens the observer in `namespace`: datagrams are recorded from this call on.
    ///
    /// # Errors
    /// CAP_NET_RAW is missing.
    pub fn open(namespace: &Namespace) -> Result<DepartureRecorder> {
        let protocol = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        let (socket, own) = namespace.enter(|| {
            let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
            let all = nix::ifaddrs::getifaddrs()?;
            let own: Vec<IpAddr> = all.filter_map(|i| ip(&i.address?)).collect();
            Ok((socket, own))
        })?;
        socket.set_read_timeout(Some(NAP))?;
        Ok(DepartureRecorder { socket, own })
    }

    /// At most `count` payloads of the datagrams that leave, within `span`.
    pub fn record(mut self, span: Duration, count: usize) -> Vec<Vec<u8>> {
        let end = std::time::Instant::now() + span;
        let mut packet = [0; PACKET_MAX];
        let mut found = Vec::new();
        while found.len() < count && std::time::Instant::now() < end {
            // An error is a timeout: no packet came.
            let Ok(len) = self.socket.read(&mut packet) else { continue };
            let Some(datagram) = parse(&packet[..len]) else { continue };
            if self.own.contains(&datagram.from) {
                found.push(datagram.payload.to_vec());
            }
        }
        found
    }
}

fn watch(socket: Socket, mut pcap: Option<Pcap>, ended: &AtomicBool) -> Result<PayloadStatistics> {
    let mut statistics = PayloadStatistics::default();
    let mut packet = [0; PACKET_MAX];
    while !ended.load(Ordering::Relaxed) {
        let (len, at) = match receive(&socket, &mut packet) {
            Ok(received) => received,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                continue;
            }
            Err(e) => return Err(e).context("reading from the packet socket"),
        };
        let Some(datagram) = parse(&packet[..len]) else { continue };
        statistics.see(datagram.payload);
        if let Some(pcap) = &mut pcap {
            pcap.write(&packet[..len], at)?;
        }
    }
    Ok(statistics)
}

/// The length of a packet, and its time since 1970.
fn receive(socket: &Socket, packet: &mut [u8]) -> std::io::Result<(usize, Duration)> {
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut into = [IoSliceMut::new(packet)];
    let flags = MsgFlags::empty();
    let message = recvmsg::<()>(socket.as_raw_fd(), &mut into, Some(&mut control), flags)?;
    let at = message.cmsgs()?.find_map(|control| match control {
        ControlMessageOwned::ScmTimestampns(at) => Some(Duration::from(at)),
        _ => None,
    });
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((message.bytes, at.unwrap_or_else(now)))
}

/// A UDP datagram in an Ethernet frame.
#[derive(Debug, PartialEq, Eq)]
struct ParsedDatagram<'a> {
    from: IpAddr,
    payload: &'a [u8],
}

fn ip(address: &SockaddrStorage) -> Option<IpAddr> {
    let v4 = || Some(address.as_sockaddr_in()?.ip().into());
    address.as_sockaddr_in6().map(|v6| v6.ip().into()).or_else(v4)
}

/// Parses Ethernet II, IPv4 or IPv6 without fragments and extensions, and UDP; `None` for anything
/// else, such as ARP.
fn parse(frame: &[u8]) -> Option<ParsedDatagram<'_>> {
    match frame.get(12..14)? {
        [0x08, 0x00] => parse_v4(&frame[14..]),
        [0x86, 0xdd] => parse_v6(&frame[14..]),
        _ => None,
    }
}

fn parse_v6(ip: &[u8]) -> Option<ParsedDatagram<'_>> {
    let payload_len = usize::from(u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]));
    let from: [u8; 16] = ip.get(8..24)?.try_into().ok()?;
    if ip.first()? >> 4 != 6 || *ip.get(6)? != 17 {
        return None;
    }
    let payload = ip.get(40 + 8..40 + payload_len)?;
    Some(ParsedDatagram { from: Ipv6Addr::from(from).into(), payload })
}

fn parse_v4(ip: &[u8]) -> Option<ParsedDatagram<'_>> {
    let header_len = usize::from(ip.first()? & 0x0f) * 4;
    let total_len = usize::from(u16::from_be_bytes([*ip.get(2)?, *ip.get(3)?]));
    let from: [u8; 4] = ip.get(12..16)?.try_into().ok()?;
    if ip.first()? >> 4 != 4 || *ip.get(9)? != 17 {
        return None;
    }
    let payload = ip.get(header_len + 8..total_len)?;
    Some(ParsedDatagram { from: IpAddr::from(from), payload })
}

/// A capture file that `tcpdump -r` and Wireshark read.
#[derive(Debug)]
struct Pcap {
    out: BufWriter<File>,
    /// Limit of recorded bytes per packet.
    most: usize,
}

impl Pcap {
    fn create(path: &Path, most: usize) -> Result<Pcap> {
        let file = File::create(path).with_context(|| path.display().to_string())?;
        let mut out = BufWriter::new(file);
        // The classic format: nanoseconds, version 2.4, Ethernet.
        for word in [0xa1b2_3c4d_u32, 0x0004_0002, 0, 0, most as u32, 1] {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(Pcap { out, most })
    }

    fn write(&mut self, packet: &[u8], at: Duration) -> Result<()> {
        let kept = &packet[..packet.len().min(self.most)];
        let lengths = [kept.len() as u32, packet.len() as u32];
        for word in [at.as_secs() as u32, at.subsec_nanos()].into_iter().chain(lengths) {
            self.out.write_all(&word.to_le_bytes())?;
        }
        Ok(self.out.write_all(kept)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_found_in_frames() {
        let mut frame = vec![0; 12];
        frame.extend([0x08, 0x00]);
        let mut ip = vec![0x45, 0, 0, 31, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        ip.extend([0, 1, 0, 2, 0, 11, 0, 0]);
        ip.extend(b"abc");
        frame.extend(&ip);
        frame.extend([0; 20]); // Ethernet's padding
        let seen = ParsedDatagram { from: IpAddr::from([10, 0, 0, 1]), payload: b"abc" };
        assert_eq!(parse(&frame), Some(seen));
        for len in 0..frame.len() - 20 {
            assert_eq!(parse(&frame[..len]), None, "{len}");
        }
        frame[23] = 6; // TCP
        assert_eq!(parse(&frame), None);
    }

    #[test]
    fn datagrams_of_ipv6_are_found_too() {
        let from = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1);
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 11, 17, 64]);
        frame.extend(from.octets());
        frame.extend([0; 16]);
        frame.extend([0, 1, 0, 2, 0, 11, 0, 0]);
        frame.extend(b"abc");
        let seen = ParsedDatagram { from: from.into(), payload: b"abc" };
        assert_eq!(parse(&frame), Some(seen));
        for len in 0..frame.len() {
            assert_eq!(parse(&frame[..len]), None, "{len}");
        }
        frame[20] = 58; // ICMPv6
        assert_eq!(parse(&frame), None);
    }
}
