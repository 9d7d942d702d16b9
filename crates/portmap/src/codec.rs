//! Requests to translators, and their answers.
//!
//! ```text
//! PCP MAP    | 2 | op 1 | 0 | code 1 | lifetime 4 | client's IP 16, or epoch 4 and 0 | nonce 12
//!            | protocol 1 | 0 3 | inner port 2 | outer port 2 | outer IP 16 |           60 bytes
//! NAT-PMP    | 0 | op 1 | 0 2 | inner port 2 | outer port 2 | lifetime 4 |              asked
//!            | 0 | op 1 | code 2 | epoch 4 | inner port 2 | outer port 2 | lifetime 4 | answered
//! ```

use core::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4};

use shoal_wire::{ParseError, Reader};

/// Longest answer that is read: RFC 6887 section 7.
pub const ANSWER_MAX: usize = 1_100;

const PCP: u8 = 2;
const NAT_PMP: u8 = 0;
/// Bit of the operation that marks an answer.
const ANSWER: u8 = 0x80;
const MAP: u8 = 1;
const PMP_ADDRESS: u8 = 0;
const PMP_MAP_UDP: u8 = 1;
const UDP: u8 = 17;
const PCP_HEAD_LEN: usize = 24;
const PCP_MAP_LEN: usize = 60;

/// A request to keep a port open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappingRequest {
    /// Id of the mapping; without it nobody can change the mapping.
    pub nonce: [u8; 12],
    /// Endpoint of this machine, as the translator sees it.
    pub inner: SocketAddrV4,
    /// Outer endpoint of an earlier mapping; none accepts any.
    pub outer: Option<SocketAddrV4>,
    /// Lifetime in seconds; 0 ends the mapping.
    pub lifetime_s: u32,
}

/// PCP's request to map a port (RFC 6887 section 11.1).
pub fn pcp_map(wish: &MappingRequest) -> [u8; PCP_MAP_LEN] {
    let outer = wish.outer.unwrap_or(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));
    let mut out = [0; PCP_MAP_LEN];
    (out[0], out[1], out[36]) = (PCP, MAP, UDP);
    out[4..8].copy_from_slice(&wish.lifetime_s.to_be_bytes());
    out[8..24].copy_from_slice(&wish.inner.ip().to_ipv6_mapped().octets());
    out[24..36].copy_from_slice(&wish.nonce);
    out[40..42].copy_from_slice(&wish.inner.port().to_be_bytes());
    out[42..44].copy_from_slice(&outer.port().to_be_bytes());
    out[44..].copy_from_slice(&outer.ip().to_ipv6_mapped().octets());
    out
}

/// NAT-PMP's request for the translator's own address (RFC 6886 section 3.2).
pub fn pmp_address() -> [u8; 2] {
    [NAT_PMP, PMP_ADDRESS]
}

/// NAT-PMP's request to map a port (section 3.3). A request that ends a mapping names no outer
/// port.
pub fn pmp_map(wish: &MappingRequest) -> [u8; 12] {
    let outer = wish.outer.filter(|_| wish.lifetime_s > 0).map_or(0, |outer| outer.port());
    let mut out = [0; 12];
    (out[0], out[1]) = (NAT_PMP, PMP_MAP_UDP);
    out[4..6].copy_from_slice(&wish.inner.port().to_be_bytes());
    out[6..8].copy_from_slice(&outer.to_be_bytes());
    out[8..].copy_from_slice(&wish.lifetime_s.to_be_bytes());
    out
}

/// An answer of a translator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappingAnswer {
    /// PCP: a port is open, or closed if the lifetime is 0.
    Map {
        /// Id of the mapping.
        nonce: [u8; 12],
        /// Port of the machine.
        inner: u16,
        /// Outer endpoint; none if the port is closed.
        outer: Option<SocketAddrV4>,
        /// Lifetime in seconds.
        lifetime_s: u32,
    },
    /// PCP: a refusal.
    MapRefused {
        /// Id of the mapping, if the answer repeats it.
        nonce: Option<[u8; 12]>,
        /// Reason (RFC 6887 section 7.4), never 0.
        code: u8,
        /// Time in seconds for which the refusal holds.
        lifetime_s: u32,
    },
    /// NAT-PMP: the translator's own address.
    PmpAddress(Ipv4Addr),
    /// NAT-PMP: a port is open, or closed if the lifetime is 0.
    PmpMap {
        /// Port of the machine.
        inner: u16,
        /// Port of the translator.
        outer: u16,
        /// Lifetime in seconds.
        lifetime_s: u32,
    },
    /// NAT-PMP: a refusal. A translator without PCP answers a PCP request in this way, too.
    PmpRefused {
        /// Reason (RFC 6886 section 3.5), never 0.
        code: u16,
    },
}

/// Checks that others may reach a machine at this address.
fn usable(ip: Ipv4Addr) -> Result<Ipv4Addr, ParseError> {
    let nobody = ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback();
    let invalid = ParseError::Invalid { what: "outer address" };
    (!nobody).then_some(ip).ok_or(invalid)
}

/// Parses an answer.
///
/// # Errors
/// The datagram is not an answer, is inconsistent, or names an endpoint that no host can have.
pub fn parse(datagram: &[u8]) -> Result<MappingAnswer, ParseError> {
    if datagram.len() > ANSWER_MAX {
        let (what, max, have) = ("answer", ANSWER_MAX, datagram.len());
        return Err(ParseError::TooLong { what, max, have });
    }
    let mut reader = Reader::new(datagram);
    let (version, op) = (reader.u8("version")?, reader.u8("operation")?);
    match (version, op ^ ANSWER) {
        (PCP, MAP) => pcp(datagram),
        (NAT_PMP, op) if op < ANSWER => pmp(op, &datagram[2..]),
        (PCP, op) => Err(ParseError::Unknown { what: "operation", value: op.into() }),
        (version, _) => Err(ParseError::Unknown { what: "version", value: version.into() }),
    }
}

fn pcp(datagram: &[u8]) -> Result<MappingAnswer, ParseError> {
    if datagram.len() < PCP_HEAD_LEN || !datagram.len().is_multiple_of(4) {
        return Err(ParseError::Invalid { what: "length of an answer" });
    }
    let mut reader = Reader::new(&datagram[3..]);
    let code = reader.u8("code")?;
    let lifetime_s = reader.u32("lifetime")?;
    let map = datagram.get(PCP_HEAD_LEN..PCP_MAP_LEN);
    let Some(map) = map else {
        let refused = MappingAnswer::MapRefused { nonce: None, code, lifetime_s };
        let short = ParseError::Invalid { what: "length of an answer" };
        return (code != 0).then_some(refused).ok_or(short);
    };
    let mut reader = Reader::new(map);
    let nonce: [u8; 12] = reader.array("nonce")?;
    if code != 0 {
        return Ok(MappingAnswer::MapRefused { nonce: Some(nonce), code, lifetime_s });
    }
    let protocol = reader.u8("protocol")?;
    if protocol != UDP {
        return Err(ParseError::Unknown { what: "protocol", value: protocol.into() });
    }
    let _reserved: [u8; 3] = reader.array("reserved")?;
    let (inner, port) = (reader.u16("inner port")?, reader.u16("outer port")?);
    let ip = Ipv6Addr::from(reader.array::<16>("outer address")?);
    let outer = match lifetime_s {
        0 => None,
        _ => {
            let invalid = ParseError::Invalid { what: "outer address" };
            let ip = usable(ip.to_ipv4_mapped().ok_or(invalid)?)?;
            Some(SocketAddrV4::new(ip, port)).filter(|_| port != 0)
        }
    };
    if outer.is_none() && lifetime_s > 0 {
        return Err(ParseError::Invalid { what: "outer port" });
    }
    Ok(MappingAnswer::Map { nonce, inner, outer, lifetime_s })
}

fn pmp(op: u8, rest: &[u8]) -> Result<MappingAnswer, ParseError> {
    let mut reader = Reader::new(rest);
    let (code, _epoch) = (reader.u16("code")?, reader.u32("epoch")?);
    if code != 0 {
        return Ok(MappingAnswer::PmpRefused { code });
    }
    let answer = match op {
        PMP_ADDRESS => {
            MappingAnswer::PmpAddress(usable(Ipv4Addr::from(reader.array::<4>("outer address")?))?)
        }
        PMP_MAP_UDP => MappingAnswer::PmpMap {
            inner: reader.u16("inner port")?,
            outer: reader.u16("outer port")?,
            lifetime_s: reader.u32("lifetime")?,
        },
        other => return Err(ParseError::Unknown { what: "operation", value: other.into() }),
    };
    reader.finish("answer")?;
    match answer {
        MappingAnswer::PmpMap { outer: 0, lifetime_s: 1.., .. } => {
            Err(ParseError::Invalid { what: "outer port" })
        }
        answer => Ok(answer),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONCE: [u8; 12] = *b"twelve bytes";

    fn wish() -> MappingRequest {
        let (inner, outer) = ("192.168.1.7:7400", "203.0.113.9:40000");
        MappingRequest {
            nonce: NONCE,
            inner: inner.parse().unwrap(),
            outer: outer.parse().ok(),
            lifetime_s: 7_200,
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Checked against the figures of RFC 6887 sections 7.1, 7.2 and 11.1, and of RFC 6886 sections
    /// 3.2, 3.3.
    #[test]
    fn requests_are_those_of_the_rfcs() {
        let fresh = MappingRequest { outer: None, ..wish() };
        let mapped = "00000000000000000000ffff";
        let head = format!("0201000000001c20{mapped}c0a80107");
        let nonce = hex(&NONCE);
        assert_eq!(hex(&pcp_map(&fresh)), format!("{head}{nonce}110000001ce80000{mapped}00000000"));
        assert_eq!(
            hex(&pcp_map(&wish())),
            format!("{head}{nonce}110000001ce89c40{mapped}cb007109")
        );
        assert_eq!(hex(&pmp_address()), "0000");
        assert_eq!(hex(&pmp_map(&fresh)), "000100001ce8000000001c20");
        assert_eq!(hex(&pmp_map(&wish())), "000100001ce89c4000001c20");
        let ended = MappingRequest { lifetime_s: 0, ..wish() };
        assert_eq!(hex(&pmp_map(&ended)), "000100001ce8000000000000");
    }

    fn granted() -> Vec<u8> {
        let mut out = pcp_map(&wish()).to_vec();
        out[1] |= ANSWER;
        out[8..24].copy_from_slice(&[0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        out
    }

    #[test]
    fn answers_are_read() {
        let (outer, lifetime_s) = (wish().outer, 7_200);
        let map = MappingAnswer::Map { nonce: NONCE, inner: 7_400, outer, lifetime_s };
        assert_eq!(parse(&granted()), Ok(map));
        let options = [granted(), vec![1, 0, 0, 4, 1, 2, 3, 4]].concat();
        assert_eq!(parse(&options), Ok(map));
        let mut refused = granted();
        refused[3] = 8;
        let no = MappingAnswer::MapRefused { nonce: Some(NONCE), code: 8, lifetime_s };
        assert_eq!(parse(&refused), Ok(no));
        refused.truncate(24);
        refused[3] = 1;
        let no = MappingAnswer::MapRefused { nonce: None, code: 1, lifetime_s };
        assert_eq!(parse(&refused), Ok(no));
        let address = b"\x00\x80\x00\x00\x00\x00\x01\x02\xcb\x00\x71\x09";
        assert_eq!(parse(address), Ok(MappingAnswer::PmpAddress([203, 0, 113, 9].into())));
        let map = b"\x00\x81\x00\x00\x00\x00\x01\x02\x1c\xe8\x9c\x40\x00\x00\x1c\x20";
        let open = MappingAnswer::PmpMap { inner: 7_400, outer: 40_000, lifetime_s };
        assert_eq!(parse(map), Ok(open));
        // A translator without PCP gives this answer to any operation.
        let unknown = b"\x00\x81\x00\x01\x00\x00\x01\x02";
        assert_eq!(parse(unknown), Ok(MappingAnswer::PmpRefused { code: 1 }));
        let mut ended = granted();
        ended[4..8].fill(0);
        ended[44..].fill(0);
        assert!(matches!(parse(&ended), Ok(MappingAnswer::Map { outer: None, lifetime_s: 0, .. })));
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let change = |at: usize, bytes: &[u8]| {
            let mut out = granted();
            out[at..at + bytes.len()].copy_from_slice(bytes);
            out
        };
        let pmp = |ip: [u8; 4]| [&[0, 128, 0, 0, 0, 0, 1, 2][..], &ip].concat();
        let wrong = [
            Vec::new(),
            vec![2],
            pcp_map(&wish()).to_vec(),
            pmp_map(&wish()).to_vec(),
            change(0, &[1]),
            change(0, &[3]),
            change(1, &[0x82]),
            change(36, &[6]),
            change(42, &[0, 0]),
            change(44, &[0x20, 1]),
            change(56, &[0; 4]),
            change(56, &[127, 0, 0, 1]),
            change(56, &[224, 0, 0, 1]),
            change(56, &[255; 4]),
            granted()[..24].to_vec(),
            granted()[..56].to_vec(),
            [granted(), vec![0; 3]].concat(),
            [granted(), vec![0; ANSWER_MAX]].concat(),
            pmp([0; 4]),
            pmp([224, 0, 0, 1]),
            pmp([255; 4]),
            [pmp([203, 0, 113, 9]), vec![0]].concat(),
            b"\x00\x81\x00\x00\x00\x00\x01\x02\x1c\xe8\x00\x00\x00\x00\x1c\x20".to_vec(),
            b"\x00\x81\x00\x00\x00\x00\x01\x02\x1c\xe8\x9c\x40\x00\x00\x1c".to_vec(),
            b"\x00\x83\x00\x00\x00\x00\x01\x02".to_vec(),
            b"\x00\x81\x00\x01\x00\x00\x01".to_vec(),
        ];
        for bytes in wrong {
            assert!(parse(&bytes).is_err(), "{}", hex(&bytes));
        }
    }
}
