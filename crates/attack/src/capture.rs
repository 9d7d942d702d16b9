//! Recorded links: pcap and pcapng files of Ethernet or of bare IP.
//!
//! In: the bytes of a file and the host's IP address on its access link. Out: an [`AccessTraces`],
//! read from lengths, times and senders' addresses alone. Datagrams whose length is no size class
//! are left out. For a censor: all [`RecordedDatagram`]s of the file.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use pcap_parser::pcapng::{
    Block, InterfaceDescriptionBlock, OptionCode, parse_block_be, parse_block_le,
    parse_sectionheaderblock,
};
use pcap_parser::{PcapHeader, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_header};
use shoal_wire::{SizeClass, Time};

use crate::network::AccessTraces;
use crate::trace::{LineTrace, ObservedFrame};

/// Maximum number of frames read from a file.
pub const FRAMES_MAX: usize = 20_000_000;
/// Lengths in bytes of the headers of Ethernet and of UDP.
const ETHERNET: usize = 14;
const UDP: usize = 8;
/// Link types (tcpdump.org/linktypes): Ethernet, and packets that begin with their IP header.
const LINK_ETHERNET: u32 = 1;
const LINK_RAW: u32 = 101;
/// First bytes of a pcapng file.
const SECTION: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];
/// Type of a block that the present one for packets replaced.
const OBSOLETE_PACKET: u32 = 2;

/// Fault of a file. Nothing of the file was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PcapError {
    /// The first bytes are neither those of pcap nor those of pcapng.
    #[error("not a pcap or pcapng file; convert it: editcap -F pcap IN OUT")]
    Magic,
    /// The packets are of another kind of link.
    #[error(
        "packets of link type {0}: expected Ethernet (1) or raw IP (101); capture on one \
         interface, not on `any`"
    )]
    Link(u32),
    /// The file ends inside a record, or the record is damaged.
    #[error("the record at byte {0} is cut off or damaged; keep those before it: editcap IN OUT")]
    Short(usize),
    /// A packet names an interface that its section lacks.
    #[error(
        "the packet at byte {0} belongs to an interface that the file does not describe; capture \
         it again"
    )]
    Interface(usize),
    /// An interface's timestamps have a unit that 64 bits can't express.
    #[error(
        "the interface at byte {0} counts time in units that are too short: expected at least \
         1e-19 or 2^-63 s; capture it again"
    )]
    Clock(usize),
    /// A simple packet block: it has no timestamp.
    #[error("the packet at byte {0} has no time; capture it again, with dumpcap or tcpdump")]
    Timeless(usize),
    /// A packet block of the obsolete type 2.
    #[error(
        "the packet at byte {0} has an obsolete form; convert the file: editcap -F pcap IN OUT"
    )]
    Obsolete(usize),
    /// Too many frames.
    #[error("more than {FRAMES_MAX} frames")]
    Long,
}

/// The frames of an access link. `host` is the host's address there: its datagrams count as up, all
/// others as down. Times count from `start_ns`, in nanoseconds since 1970; earlier frames are left
/// out.
///
/// # Errors
/// [`PcapError`].
pub fn access(file: &[u8], host: IpAddr, start_ns: u64) -> Result<AccessTraces, PcapError> {
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for record in PcapRecords::new(file)? {
        let (at_ns, packet) = record?;
        let Some(at) = at_ns.checked_sub(start_ns) else { continue };
        let Some(datagram) = RecordedDatagram::read(at_ns, packet) else { continue };
        let Some(class) = SizeClass::of_frame(datagram.len) else { continue };
        let way = if datagram.from.0 == host { &mut up } else { &mut down };
        way.push(ObservedFrame { at: Time(at), class });
        if up.len() + down.len() > FRAMES_MAX {
            return Err(PcapError::Long);
        }
    }
    Ok(AccessTraces { up: LineTrace::new(up), down: LineTrace::new(down) })
}

/// Time of the first packet of a file, in nanoseconds since 1970; none if it has no packet.
///
/// # Errors
/// [`PcapError`].
pub fn begins(file: &[u8]) -> Result<Option<u64>, PcapError> {
    Ok(PcapRecords::new(file)?.next().transpose()?.map(|(at, _)| at))
}

/// A recorded UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedDatagram<'a> {
    /// Time of the record, in nanoseconds since 1970.
    pub at_ns: u64,
    /// Address and port of the sender.
    pub from: (IpAddr, u16),
    /// Address and port of the receiver.
    pub to: (IpAddr, u16),
    /// Length of the payload in bytes, by its headers.
    pub len: usize,
    /// Recorded part of the payload.
    pub payload: &'a [u8],
    /// The two ECN bits of the IP header.
    pub ecn: u8,
    /// True if routers must not fragment the packet.
    pub whole: bool,
    /// Identification field of the IPv4 header; 0 over IPv6.
    pub id: u16,
}

/// All UDP datagrams of a file, in its order.
///
/// # Errors
/// [`PcapError`].
pub fn datagrams(file: &[u8]) -> Result<Vec<RecordedDatagram<'_>>, PcapError> {
    let mut all = Vec::new();
    for record in PcapRecords::new(file)? {
        let (at_ns, packet) = record?;
        all.extend(RecordedDatagram::read(at_ns, packet));
        if all.len() > FRAMES_MAX {
            return Err(PcapError::Long);
        }
    }
    Ok(all)
}

/// Records of a file: times, and packets from their IP header on (empty for other protocols).
struct PcapRecords<'a> {
    file: &'a [u8],
    at: usize,
    /// True if the file's numbers, or those of the present section, are big-endian.
    big: bool,
    format: PcapFormat,
}

/// The clock and the link of the records.
enum PcapFormat {
    Classic(RecordedInterface),
    /// Interfaces of the present pcapng section so far.
    Sections(Vec<RecordedInterface>),
}

#[derive(Clone, Copy)]
struct RecordedInterface {
    link: u32,
    /// Units of timestamps in a second.
    per_s: u64,
    /// Seconds between 1970 and a timestamp of 0.
    offset_s: i64,
}

/// The rest of the file, and a packet with its time.
type PcapRecord<'a> = (&'a [u8], Option<(u64, &'a [u8])>);

impl<'a> PcapRecords<'a> {
    fn new(file: &'a [u8]) -> Result<PcapRecords<'a>, PcapError> {
        if file.starts_with(&SECTION) {
            let (rest, section) =
                parse_sectionheaderblock(file).map_err(|_| PcapError::Short(0))?;
            let (big, format) = (section.big_endian(), PcapFormat::Sections(Vec::new()));
            return Ok(PcapRecords { file, at: file.len() - rest.len(), big, format });
        }
        let (rest, header) = parse_pcap_header(file).map_err(|_| PcapError::Magic)?;
        // Kuznetzov's variant has longer records.
        if header.is_modified_format() {
            return Err(PcapError::Magic);
        }
        let interface = RecordedInterface::of_file(&header);
        interface.check()?;
        let (big, format) = (header.is_bigendian(), PcapFormat::Classic(interface));
        Ok(PcapRecords { file, at: file.len() - rest.len(), big, format })
    }

    /// Reads the next record of a classic file, or the next block of the other format.
    fn record(&mut self) -> Result<PcapRecord<'a>, PcapError> {
        let at = self.at;
        let short = PcapError::Short(at);
        let bytes = &self.file[self.at..];
        let interfaces = match &mut self.format {
            PcapFormat::Classic(interface) => {
                let parse = if self.big { parse_pcap_frame_be } else { parse_pcap_frame };
                let (rest, frame) = parse(bytes).map_err(|_| short)?;
                let part_ns = u64::from(frame.ts_usec) * (1_000_000_000 / interface.per_s);
                let at_ns = u64::from(frame.ts_sec) * 1_000_000_000 + part_ns;
                return Ok((rest, Some((at_ns, interface.ip(frame.data)))));
            }
            PcapFormat::Sections(interfaces) => interfaces,
        };
        let parse = if self.big { parse_block_be } else { parse_block_le };
        let (rest, block) = parse(bytes).map_err(|_| short)?;
        let packet = match block {
            Block::SectionHeader(section) => {
                self.big = section.big_endian();
                interfaces.clear();
                None
            }
            Block::InterfaceDescription(block) => {
                let interface = RecordedInterface::of_block(&block, self.big);
                interfaces.push(interface.ok_or(PcapError::Clock(at))?);
                None
            }
            Block::EnhancedPacket(packet) => {
                let interface = interfaces.get(packet.if_id as usize);
                let interface = interface.ok_or(PcapError::Interface(at))?;
                interface.check()?;
                let units = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
                // The block fills the last word.
                let data = packet.data.get(..packet.caplen as usize).ok_or(short)?;
                Some((interface.at_ns(units), interface.ip(data)))
            }
            Block::SimplePacket(_) => return Err(PcapError::Timeless(at)),
            Block::Unknown(block) if block.block_type == OBSOLETE_PACKET => {
                return Err(PcapError::Obsolete(at));
            }
            _ => None,
        };
        Ok((rest, packet))
    }
}

impl RecordedInterface {
    fn of_file(header: &PcapHeader) -> RecordedInterface {
        let per_s = if header.is_nanosecond_precision() { 1_000_000_000 } else { 1_000_000 };
        // The upper half of the field has other uses.
        RecordedInterface { link: header.network.0 as u32 & 0xffff, per_s, offset_s: 0 }
    }

    /// None if the clock's unit is out of range. The library's own readers of the two options lack
    /// powers of two and big-endian numbers.
    fn of_block(block: &InterfaceDescriptionBlock<'_>, big: bool) -> Option<RecordedInterface> {
        let find = |code| block.options.iter().find(|option| option.code == code);
        let unit = find(OptionCode::IfTsresol).and_then(|option| option.value().first());
        let unit = unit.copied().unwrap_or(6);
        let power = u32::from(unit & 0x7f);
        let per_s = match unit & 0x80 {
            0 => 10_u64.checked_pow(power)?,
            _ => 1_u64.checked_shl(power)?,
        };
        let offset = find(OptionCode::IfTsoffset).and_then(|option| option.value().first_chunk());
        let read = if big { i64::from_be_bytes } else { i64::from_le_bytes };
        let link = block.linktype.0 as u32;
        Some(RecordedInterface { link, per_s, offset_s: offset.copied().map_or(0, read) })
    }

    fn check(&self) -> Result<(), PcapError> {
        match self.link {
            LINK_ETHERNET | LINK_RAW => Ok(()),
            other => Err(PcapError::Link(other)),
        }
    }

    /// Nanoseconds since 1970, as far as they fit.
    fn at_ns(&self, units: u64) -> u64 {
        let since = u128::from(units) * 1_000_000_000 / u128::from(self.per_s);
        let at = since as i128 + i128::from(self.offset_s) * 1_000_000_000;
        u64::try_from(at.max(0)).unwrap_or(u64::MAX)
    }

    fn ip<'a>(&self, packet: &'a [u8]) -> &'a [u8] {
        match (self.link, packet.get(12..ETHERNET)) {
            (LINK_RAW, _) => packet,
            (_, Some([0x08, 0x00] | [0x86, 0xdd])) => &packet[ETHERNET..],
            _ => &[],
        }
    }
}

impl<'a> Iterator for PcapRecords<'a> {
    type Item = Result<(u64, &'a [u8]), PcapError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.at < self.file.len() {
            match self.record() {
                Ok((rest, packet)) => {
                    self.at = self.file.len() - rest.len();
                    if let Some(packet) = packet {
                        return Some(Ok(packet));
                    }
                }
                Err(error) => {
                    self.at = self.file.len();
                    return Some(Err(error));
                }
            }
        }
        None
    }
}

impl<'a> RecordedDatagram<'a> {
    /// None for other protocols. The length is that of the headers, since a capture may have
    /// truncated the packet.
    fn read(at_ns: u64, ip: &'a [u8]) -> Option<RecordedDatagram<'a>> {
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
        (protocol == 17).then_some(RecordedDatagram {
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

    /// A file with times in microseconds, little-endian.
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

    /// A block of pcapng, little-endian: its type, words, and bytes that the block fills up.
    fn block(kind: u32, words: &[u32], bytes: &[u8]) -> Vec<u8> {
        let room = bytes.len().next_multiple_of(4);
        let len = (12 + 4 * words.len() + room) as u32;
        let mut block: Vec<u8> =
            [kind, len].iter().chain(words).flat_map(|word| word.to_le_bytes()).collect();
        block.extend(bytes);
        block.resize(len as usize - 4, 0);
        block.extend(len.to_le_bytes());
        block
    }

    fn section() -> Vec<u8> {
        block(0x0a0d_0d0a, &[0x1a2b_3c4d, 1, u32::MAX, u32::MAX], &[])
    }

    /// An interface of Ethernet with these options.
    fn interface(options: &[u8]) -> Vec<u8> {
        block(1, &[1, 0], options)
    }

    fn packet(interface: u32, units: u64, packet: &[u8]) -> Vec<u8> {
        let (high, low) = ((units >> 32) as u32, units as u32);
        block(6, &[interface, high, low, packet.len() as u32, 2_000], packet)
    }

    #[test]
    fn pcapng_has_a_clock_for_each_interface() {
        let sent = |payload| ethernet(HOST, payload);
        let offset = [&[14, 0, 8, 0][..], &9_i64.to_le_bytes()].concat();
        let file = [
            section(),
            interface(&[]),
            // Nanoseconds, 1,024ths of a second, and microseconds from nine seconds on.
            interface(&[9, 0, 1, 0, 9, 0, 0, 0, 0, 0, 0, 0]),
            interface(&[9, 0, 1, 0, 0x8a, 0, 0, 0]),
            interface(&offset),
            packet(0, 10_000_005, &sent(1_440)),
            packet(1, 10_000_000_006, &sent(1_440)),
            // Name resolution, and an unknown block.
            block(4, &[0], &[]),
            block(0x7777, &[1, 2, 3], &[]),
            packet(2, 10 * 1_024 + 1, &sent(192)),
            packet(3, 1_000_007, &sent(576)),
            section(),
            interface(&[]),
            packet(0, 11_000_000, &sent(1_440)),
        ];
        let found: Vec<(u64, usize)> =
            datagrams(&file.concat()).unwrap().iter().map(|d| (d.at_ns, d.len)).collect();
        let times = [10_000_005_000, 10_000_000_006, 10_000_976_562, 10_000_007_000];
        assert_eq!(found[..4].iter().map(|(at, _)| *at).collect::<Vec<_>>(), times);
        assert_eq!(
            found.iter().map(|(_, len)| *len).collect::<Vec<_>>(),
            [1_440, 1_440, 192, 576, 1_440]
        );
        assert_eq!(begins(&file.concat()), Ok(Some(10_000_005_000)));
        let link = access(&file.concat(), HOST, 0).unwrap();
        assert_eq!((link.up.frames().len(), link.down.frames().len()), (5, 0));
    }

    #[test]
    fn big_endian_files_of_both_formats_are_read() {
        let words =
            |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
        let sent = ethernet(HOST, 192);
        let len = sent.len() as u32;
        let mut classic = words(&[0xa1b2_3c4d, 0x0002_0004, 0, 0, 65_535, 1, 10, 7, len, len]);
        classic.extend(&sent);
        assert_eq!(begins(&classic), Ok(Some(10_000_000_007)));
        let mut sections = words(&[0x0a0d_0d0a, 28, 0x1a2b_3c4d, 0x0001_0000, 0, 0, 28]);
        sections.extend(words(&[1, 32, 0x0001_0000, 0, 0x000e_0008, 0, 10, 32]));
        let all = 32 + len.next_multiple_of(4);
        sections.extend(words(&[6, all, 0, 0, 7, len, len]));
        sections.extend(&sent);
        sections.resize(sections.len().next_multiple_of(4), 0);
        sections.extend(words(&[all]));
        assert_eq!(begins(&sections), Ok(Some(10_000_007_000)));
        assert_eq!(datagrams(&sections).unwrap()[0].len, 192);
    }

    #[test]
    fn damaged_pcapng_is_refused_and_never_a_panic() {
        let sent = ethernet(HOST, 192);
        let parts = [section(), interface(&[]), packet(0, 5, &sent), packet(0, 6, &sent)];
        let good = parts.concat();
        let mut end = 0;
        let ends = parts.each_ref().map(|part| {
            end += part.len();
            end
        });
        for len in 0..=good.len() {
            let found = datagrams(&good[..len]);
            assert_eq!(found.is_ok(), ends.contains(&len), "{len}");
        }
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut other = good.clone();
                other[at] = value;
                let _any = datagrams(&other);
            }
        }
        let fails = |parts: &[Vec<u8>], error| assert_eq!(datagrams(&parts.concat()), Err(error));
        fails(&[section(), packet(0, 5, &sent)], PcapError::Interface(28));
        fails(&[section(), block(1, &[113, 0], &[]), packet(0, 5, &sent)], PcapError::Link(113));
        fails(&[section(), interface(&[9, 0, 1, 0, 99, 0, 0, 0])], PcapError::Clock(28));
        fails(&[section(), interface(&[]), block(3, &[34], &sent)], PcapError::Timeless(48));
        let old = block(2, &[0, 0, 5, 34, 34], &sent);
        fails(&[section(), interface(&[]), old], PcapError::Obsolete(48));
        fails(&[section()[..20].to_vec()], PcapError::Short(0));
        let mut long = packet(0, 5, &sent);
        long[20..24].fill(0xff);
        fails(&[section(), interface(&[]), long], PcapError::Short(48));
        let mut far = interface(&[14, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0x80]);
        assert_eq!(begins(&[section(), far.clone(), packet(0, 5, &sent)].concat()), Ok(Some(0)));
        far[27] = 0x7f;
        assert_eq!(begins(&[section(), far, packet(0, 5, &sent)].concat()), Ok(Some(u64::MAX)));
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
        let frame = |ns, class| ObservedFrame { at: Time(ns), class };
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
        assert_eq!(access(&other, HOST, 0), Err(PcapError::Link(113)));
        other[0] = 0x0a;
        assert_eq!(access(&other, HOST, 0), Err(PcapError::Magic));
        let mut long = good;
        long[32..36].fill(0xff);
        assert_eq!(access(&long, HOST, 0), Err(PcapError::Short(24)));
    }
}
