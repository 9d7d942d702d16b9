//! The front of the transport header, as a firewall needs it.

use shoal_wire::DropReason;

use crate::Packet;
use crate::packet::{ICMP, ICMPV6, TCP, UDP};

/// Ports, and flags or type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportFields {
    /// Source and destination port. An ICMP echo has its identifier as both; other protocols have
    /// 0.
    pub ports: (u16, u16),
    /// TCP flags, ICMP type, or 0.
    pub detail: u8,
}

impl Packet {
    /// Parses the front of the transport header; `bytes` are those given to [`Packet::parse`].
    ///
    /// Errors: `ip_malformed` if the header is cut short; `ip_fragment` for a later fragment.
    pub fn transport(&self, bytes: &[u8]) -> Result<TransportFields, DropReason> {
        if self.is_later_fragment() {
            return Err(DropReason::IpFragment);
        }
        let body = bytes.get(self.payload_at..self.len).ok_or(DropReason::IpMalformed)?;
        let at = |i: usize| body.get(i).copied().ok_or(DropReason::IpMalformed);
        let port = |i: usize| Ok(u16::from_be_bytes([at(i)?, at(i + 1)?]));
        match self.protocol {
            TCP => {
                at(19)?;
                Ok(TransportFields { ports: (port(0)?, port(2)?), detail: at(13)? })
            }
            UDP => {
                at(7)?;
                Ok(TransportFields { ports: (port(0)?, port(2)?), detail: 0 })
            }
            ICMP | ICMPV6 => {
                at(7)?;
                Ok(TransportFields { ports: (port(4)?, port(4)?), detail: at(0)? })
            }
            _ => Ok(TransportFields { ports: (0, 0), detail: 0 }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(protocol: u8, body: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; 40];
        bytes[0] = 0x60;
        bytes[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
        bytes[6] = protocol;
        (bytes[8], bytes[23], bytes[24], bytes[39]) = (0xfd, 1, 0xfd, 2);
        bytes.extend_from_slice(body);
        bytes
    }

    fn transport(protocol: u8, body: &[u8]) -> Result<TransportFields, DropReason> {
        let bytes = packet(protocol, body);
        Packet::parse(&bytes).unwrap().transport(&bytes)
    }

    #[test]
    fn ports_and_details_are_read_and_stubs_refused() {
        let mut tcp = [0; 20];
        (tcp[1], tcp[3], tcp[13]) = (22, 80, 0x12);
        assert_eq!(transport(TCP, &tcp), Ok(TransportFields { ports: (22, 80), detail: 0x12 }));
        assert_eq!(transport(TCP, &tcp[..19]), Err(DropReason::IpMalformed));
        let udp = [1, 0, 0, 53, 0, 8, 0, 0];
        assert_eq!(transport(UDP, &udp), Ok(TransportFields { ports: (256, 53), detail: 0 }));
        assert_eq!(transport(UDP, &udp[..7]), Err(DropReason::IpMalformed));
        let echo = [128, 0, 0, 0, 1, 2, 0, 1];
        assert_eq!(
            transport(ICMPV6, &echo),
            Ok(TransportFields { ports: (258, 258), detail: 128 })
        );
        assert_eq!(transport(ICMPV6, &echo[..4]), Err(DropReason::IpMalformed));
        assert_eq!(transport(132, &[]), Ok(TransportFields { ports: (0, 0), detail: 0 }));
    }
}
