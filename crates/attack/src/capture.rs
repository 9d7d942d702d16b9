//! Recorded links: classic pcap files of Ethernet or of bare IP.
//!
//! In: the bytes of a file and the host's IP address on its access link. Out: an [`Access`], for
//! which only lengths, times and the sender's address are read; a datagram whose length is no size
//! class is left out. Or all [`Datagram`]s of the file, for a censor.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use shoal_wire::{SizeClass, Time};

use crate::network::Access;
use crate::trace::{Frame, Trace};

/// Most frames that are read from a file.
pub const FRAMES_MAX: usize = 20_000_000;
const FILE_HEADER: usize = 24;
const RECORD_HEADER: usize = 16;
/// Length of Ethernet's header, and of UDP's.
const ETHERNET: usize = 14;
const UDP: usize = 8;
/// Link types (tcpdump.org/linktypes): Ethernet, and packets that begin with their IP header.
const LINK_ETHERNET: u32 = 1;
const LINK_RAW: u32 = 101;

/// What is wrong with a file. Nothing of it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Its first bytes are none of classic pcap's.
    #[error("not a classic pcap file; convert it: editcap -F pcap IN OUT")]
    Magic,
    /// Packets of another kind of link.
    #[error("link type {0}: expected Ethernet (1) or raw IP (101)")]
    Link(u32),
    /// It ends inside a record.
    #[error("it ends inside the record at byte {0}")]
    Short(usize),
    /// Too many frames.
    #[error("more than {FRAMES_MAX} frames")]
    Long,
}

/// The frames of an access link. `host` is the host's address there: what it sends goes up, and
/// everything else down. Times count from `start_ns`, in nanoseconds since 1970; what was recorded
/// before is left out.
///
/// # Errors
/// [`Malformed`].
pub fn access(file: &[u8], host: IpAddr, start_ns: u64) -> Result<Access, Malformed> {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for record in Records::new(file)? {
        let (at_ns, packet) = record?;
        let Some(at) = at_ns.checked_sub(start_ns) else { continue };
        let Some(datagram) = Datagram::read(at_ns, packet) else { continue };
        let Some(class) = SizeClass::of_frame(datagram.len) else { continue };
        let way = if datagram.from.0 == host { &mut up } else { &mut down };
        way.push(Frame { at: Time(at), class });
        if up.len() + down.len() > FRAMES_MAX {
            return Err(Malformed::Long);
        }
    }
    Ok(Access { up: Trace::new(up), down: Trace::new(down) })
}

/// When the first packet of a file was recorded, in nanoseconds since 1970; none if it has none.
///
/// # Errors
/// [`Malformed`].
pub fn begins(file: &[u8]) -> Result<Option<u64>, Malformed> {
    Ok(Records::new(file)?.next().transpose()?.map(|(at, _)| at))
}

/// A UDP datagram as it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// When, in nanoseconds since 1970.
    pub at_ns: u64,
    /// The sender's address and port.
    pub from: (IpAddr, u16),
    /// The receiver's.
    pub to: (IpAddr, u16),
    /// Length of its payload in bytes, as its headers say.
    pub len: usize,
    /// As much of the payload as was recorded.
    pub payload: &'a [u8],
    /// The two bits of congestion notification.
    pub ecn: u8,
    /// Whether routers must not cut it in two.
    pub whole: bool,
    /// The number that the sender's kernel gave the packet; 0 over IPv6.
    pub id: u16,
}

/// All UDP datagrams of a file, in its order.
///
/// # Errors
/// [`Malformed`].
pub fn datagrams(file: &[u8]) -> Result<Vec<Datagram<'_>>, Malformed> {
    let mut all = Vec::new();
    for record in Records::new(file)? {
        let (at_ns, packet) = record?;
        all.extend(Datagram::read(at_ns, packet));
        if all.len() > FRAMES_MAX {
            return Err(Malformed::Long);
        }
    }
    Ok(all)
}

/// A file's records: times, and packets from their IP header on (none of other protocols).
struct Records<'a> {
    file: &'a [u8],
    at: usize,
    big: bool,
    /// Nanoseconds of a unit of the second half of a time.
    unit_ns: u64,
    link: u32,
}

impl<'a> Records<'a> {
    fn new(file: &'a [u8]) -> Result<Records<'a>, Malformed> {
        let header = file.get(..FILE_HEADER).ok_or(Malformed::Magic)?;
        let (big, unit_ns) = match header[..4] {
            [0xd4, 0xc3, 0xb2, 0xa1] => (false, 1_000),
            [0xa1, 0xb2, 0xc3, 0xd4] => (true, 1_000),
            [0x4d, 0x3c, 0xb2, 0xa1] => (false, 1),
            [0xa1, 0xb2, 0x3c, 0x4d] => (true, 1),
            _ => return Err(Malformed::Magic),
        };
        let mut records = Records { file, at: FILE_HEADER, big, unit_ns, link: 0 };
        records.link = records.word(20).unwrap_or_default() & 0xffff;
        match records.link {
            LINK_ETHERNET | LINK_RAW => Ok(records),
            other => Err(Malformed::Link(other)),
        }
    }

    fn word(&self, at: usize) -> Option<u32> {
        let bytes: [u8; 4] = self.file.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn record(&self) -> Option<(u64, &'a [u8], usize)> {
        let [s, part, kept] = [0, 4, 8].map(|offset| self.word(self.at + offset));
        let from = self.at + RECORD_HEADER;
        let end = from.checked_add(kept? as usize)?;
        let packet = self.file.get(from..end)?;
        let at = u64::from(s?) * 1_000_000_000 + u64::from(part?) * self.unit_ns;
        let packet = match (self.link, packet.get(12..ETHERNET)) {
            (LINK_RAW, _) => packet,
            (_, Some([0x08, 0x00] | [0x86, 0xdd])) => &packet[ETHERNET..],
            _ => &[],
        };
        Some((at, packet, end))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<(u64, &'a [u8]), Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.file.len() {
            return None;
        }
        let Some((at, packet, end)) = self.record() else {
            let short = Malformed::Short(self.at);
            self.at = self.file.len();
            return Some(Err(short));
        };
        self.at = end;
        Some(Ok((at, packet)))
    }
}

impl<'a> Datagram<'a> {
    /// None for other protocols. Lengths are those of the headers: a capture may have cut the
    /// packet off.
    fn read(at_ns: u64, ip: &'a [u8]) -> Option<Datagram<'a>> {
        let byte = |at: usize| ip.get(at).copied();
        let word = |at: usize| Some(u16::from_be_bytes([byte(at)?, byte(at + 1)?]));
        let (from, to, protocol, header, len): (IpAddr, IpAddr, u8, usize, usize) =
            match byte(0)? >> 4 {
                4 => {
                    let address = |at| Some(Ipv4Addr::from_octets(*ip.get(at..)?.first_chunk()?));
                    let header = usize::from(byte(0)? & 0x0f) * 4;
                    let len = usize::from(word(2)?).checked_sub(header)?;
                    (address(12)?.into(), address(16)?.into(), byte(9)?, header, len)
                }
                6 => {
                    let address = |at| Some(Ipv6Addr::from_octets(*ip.get(at..)?.first_chunk()?));
                    (address(8)?.into(), address(24)?.into(), byte(6)?, 40, word(4)?.into())
                }
                _ => return None,
            };
        let is_v4 = from.is_ipv4();
        let len = len.checked_sub(UDP)?;
        let payload = ip.get(header + UDP..).unwrap_or_default();
        (protocol == 17).then_some(Datagram {
            at_ns,
            from: (from, word(header).unwrap_or_default()),
            to: (to, word(header + 2).unwrap_or_default()),
            len,
            payload: &payload[..payload.len().min(len)],
            ecn: if is_v4 { byte(1)? & 3 } else { byte(1)? >> 4 & 3 },
            whole: !is_v4 || byte(6)? & 0x40 != 0,
            id: if is_v4 { word(4)? } else { 0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));

    fn ethernet(from: IpAddr, payload: u16) -> Vec<u8> {
        let mut packet = vec![0; 12];
        match from {
            IpAddr::V4(from) => {
                packet.extend([0x08, 0x00, 0x45, 0]);
                packet.extend((20 + 8 + payload).to_be_bytes());
                packet.extend([0, 0, 0, 0, 64, 17, 0, 0]);
                packet.extend(from.octets());
                packet.extend([10, 0, 0, 9]);
            }
            IpAddr::V6(from) => {
                packet.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
                packet.extend((8 + payload).to_be_bytes());
                packet.extend([17, 64]);
                packet.extend(from.octets());
                packet.extend([0; 16]);
            }
        }
        packet
    }

    /// A file in microseconds, least significant byte first.
    fn file(packets: &[(u32, u32, Vec<u8>)]) -> Vec<u8> {
        let words =
            |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_le_bytes()).collect() };
        let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
        for (s, us, packet) in packets {
            file.extend(words(&[*s, *us, packet.len() as u32, 2_000]));
            file.extend(packet);
        }
        file
    }

    #[test]
    fn frames_go_up_and_down_by_their_sender() {
        let v6: IpAddr = Ipv6Addr::LOCALHOST.into();
        let file = file(&[
            (9, 0, ethernet(HOST, 1_440)),
            (10, 5, ethernet(HOST, 1_440)),
            (10, 7, ethernet(OTHER, 192)),
            (10, 8, ethernet(OTHER, 1_000)),
            (11, 0, ethernet(v6, 576)),
            (12, 0, vec![0; 60]),
        ]);
        assert_eq!(begins(&file), Ok(Some(9_000_000_000)));
        let link = access(&file, HOST, 10_000_000_000).unwrap();
        let frame = |ns, class| Frame { at: Time(ns), class };
        assert_eq!(link.up.frames(), [frame(5_000, SizeClass::Full)]);
        let down = [frame(7_000, SizeClass::Small), frame(1_000_000_000, SizeClass::Medium)];
        assert_eq!(link.down.frames(), down);
        assert_eq!(access(&file, v6, 0).unwrap().up.frames().len(), 1);
    }

    #[test]
    fn bytes_that_are_no_capture_are_refused_and_never_a_panic() {
        let good = file(&[(1, 0, ethernet(HOST, 192)), (2, 0, ethernet(OTHER, 1_440))]);
        let ends = [24, good.len() - 16 - 34];
        for len in 0..good.len() {
            let found = access(&good[..len], HOST, 0);
            assert_eq!(found.is_ok(), ends.contains(&len), "{len}");
        }
        let mut other = good.clone();
        other[20] = 113;
        assert_eq!(access(&other, HOST, 0), Err(Malformed::Link(113)));
        other[0] = 0x0a;
        assert_eq!(access(&other, HOST, 0), Err(Malformed::Magic));
        let mut long = good;
        long[32..36].fill(0xff);
        assert_eq!(access(&long, HOST, 0), Err(Malformed::Short(24)));
    }
}
