//! Binding requests and answers of STUN (RFC 8489): a public server tells a client its public
//! endpoint. Only this part of STUN is implemented; the format is not Shoal's own.
//!
//! ```text
//!  0      2        4              8                20
//! +------+--------+--------------+----------------+----------------------+
//! | type | length | 2112a442     | transaction id | attributes           |    answers
//! +------+--------+--------------+----------------+----------------------+
//! ```

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::{ParseError, Reader};

/// Transaction id of a request and its answer.
pub type StunId = [u8; 12];

const COOKIE: [u8; 4] = 0x2112_a442_u32.to_be_bytes();
const BINDING_REQUEST: u16 = 0x0001;
const BINDING_SUCCESS: u16 = 0x0101;
const MAPPED_ADDRESS: u16 = 0x0001;
const XOR_MAPPED_ADDRESS: u16 = 0x0020;
/// A client must understand attribute types below this, or discard the answer (section 14).
const OPTIONAL: u16 = 0x8000;
const HEAD_LEN: usize = 20;
/// Longest answer that is parsed: it fits any path (section 6.1).
const ANSWER_MAX: usize = 548;

/// A request without attributes.
pub fn stun_request(id: &StunId) -> [u8; HEAD_LEN] {
    let mut out = [0; HEAD_LEN];
    out[..2].copy_from_slice(&BINDING_REQUEST.to_be_bytes());
    out[4..8].copy_from_slice(&COOKIE);
    out[8..].copy_from_slice(id);
    out
}

/// Transaction id of a datagram that may be an answer.
pub fn stun_id(datagram: &[u8]) -> Option<StunId> {
    let is_one = (HEAD_LEN..=ANSWER_MAX).contains(&datagram.len());
    let head = datagram.first_chunk::<HEAD_LEN>().filter(|head| is_one && head[4..8] == COOKIE)?;
    let mut id = StunId::default();
    id.copy_from_slice(&head[8..]);
    Some(id)
}

/// The asker's public endpoint, as an answer tells it.
///
/// # Errors
/// The datagram is not a success answer, is malformed, or has an endpoint that no host can have.
pub fn stun_answer(datagram: &[u8]) -> Result<SocketAddr, ParseError> {
    let id = stun_id(datagram).ok_or(ParseError::Invalid { what: "STUN head" })?;
    let mut reader = Reader::new(datagram);
    match reader.u16("STUN type")? {
        BINDING_SUCCESS => {}
        other => return Err(ParseError::Unknown { what: "STUN type", value: other.into() }),
    }
    let len = usize::from(reader.u16("STUN length")?);
    if len != datagram.len() - HEAD_LEN || len % 4 != 0 {
        return Err(ParseError::Invalid { what: "STUN length" });
    }
    let mut rest = &datagram[HEAD_LEN..];
    let mut seen = None;
    // Each iteration consumes at least four bytes.
    while !rest.is_empty() {
        let mut reader = Reader::new(rest);
        let kind = reader.u16("STUN attribute")?;
        let len = usize::from(reader.u16("STUN attribute length")?);
        let end = 4 + len.next_multiple_of(4);
        let value = rest.get(4..4 + len).ok_or(ParseError::TooShort {
            what: "STUN attribute",
            need: 4 + len,
            have: rest.len(),
        })?;
        match kind {
            // The first address counts.
            XOR_MAPPED_ADDRESS if seen.is_none() => seen = Some(address(value, &id)?),
            XOR_MAPPED_ADDRESS | MAPPED_ADDRESS => {}
            kind if kind < OPTIONAL => {
                return Err(ParseError::Unknown { what: "STUN attribute", value: kind.into() });
            }
            _ => {}
        }
        rest = rest.get(end..).unwrap_or_default();
    }
    let seen = seen.ok_or(ParseError::Invalid { what: "STUN without an address" })?;
    let ip = seen.ip();
    let everybody = ip == IpAddr::V4(Ipv4Addr::BROADCAST);
    if seen.port() == 0 || ip.is_unspecified() || ip.is_multicast() || everybody {
        return Err(ParseError::Invalid { what: "STUN address" });
    }
    Ok(seen)
}

/// Reads XOR-MAPPED-ADDRESS (section 14.2). All but the family is XORed with cookie and id, so that
/// translators which rewrite addresses in payloads find none.
fn address(value: &[u8], id: &StunId) -> Result<SocketAddr, ParseError> {
    let mut mask = [0; 16];
    mask[..4].copy_from_slice(&COOKIE);
    mask[4..].copy_from_slice(id);
    let invalid = ParseError::Invalid { what: "STUN address" };
    let [_, family, p, q, ip @ ..] = value else { return Err(invalid) };
    let port = u16::from_be_bytes([p ^ mask[0], q ^ mask[1]]);
    let clear = |at: usize| ip[at] ^ mask[at];
    let ip: IpAddr = match (family, ip.len()) {
        (1, 4) => Ipv4Addr::from(core::array::from_fn::<u8, 4, _>(clear)).into(),
        (2, 16) => Ipv6Addr::from(core::array::from_fn::<u8, 16, _>(clear)).into(),
        _ => return Err(invalid),
    };
    Ok(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers of RFC 5769 sections 2.2 and 2.3. Their later attributes are optional or left out
    /// here, since MESSAGE-INTEGRITY needs a password.
    const ID: StunId = [0xb7, 0xe7, 0xa7, 0x01, 0xbc, 0x34, 0xd6, 0x86, 0xfa, 0x87, 0xdf, 0xae];

    fn answer(attributes: &[u8]) -> Vec<u8> {
        let mut out = vec![1, 1, 0, attributes.len() as u8, 0x21, 0x12, 0xa4, 0x42];
        out.extend(ID);
        out.extend(attributes);
        out
    }

    const SOFTWARE: &[u8] = b"\x80\x22\x00\x0btest vector\x20";
    const FOUR: &[u8] = b"\x00\x20\x00\x08\x00\x01\xa1\x47\xe1\x12\xa6\x43";
    const SIX: &[u8] = b"\x00\x20\x00\x14\x00\x02\xa1\x47\x01\x13\xa9\xfa\xa5\xd3\xf1\x79\xbc\x25\
                         \xf4\xb5\xbe\xd2\xb9\xd9";

    #[test]
    fn the_rfcs_answers_are_read() {
        let at = |text: &str| Ok(text.parse().unwrap());
        let four = answer(&[SOFTWARE, FOUR].concat());
        assert_eq!(stun_id(&four), Some(ID));
        assert_eq!(stun_answer(&four), at("192.0.2.1:32853"));
        let six = answer(&[SIX, SOFTWARE].concat());
        assert_eq!(stun_answer(&six), at("[2001:db8:1234:5678:11:2233:4455:6677]:32853"));
        let twice = answer(&[FOUR, SIX].concat());
        assert_eq!(stun_answer(&twice), at("192.0.2.1:32853"), "the first counts");
    }

    #[test]
    fn a_request_asks_for_nothing_else() {
        let request = stun_request(&ID);
        assert_eq!(request[..8], [0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42]);
        assert_eq!(stun_id(&request), Some(ID));
        assert!(stun_answer(&request).is_err());
    }

    #[test]
    fn what_is_wrong_is_refused() {
        let xor = |ip: [u8; 4], port: u16| {
            let mut out = b"\x00\x20\x00\x08\x00\x01".to_vec();
            out.extend((port ^ 0x2112).to_be_bytes());
            out.extend(ip.iter().zip(COOKIE).map(|(byte, mask)| byte ^ mask));
            answer(&out)
        };
        assert!(stun_answer(&xor([192, 0, 2, 1], 7)).is_ok());
        let mut other_cookie = answer(FOUR);
        other_cookie[4] = 0;
        let mut short = answer(FOUR);
        short.pop();
        let mut error = answer(FOUR);
        error[1] = 0x11;
        let mut long = answer(FOUR);
        long[25] = 3;
        let wrong = [
            answer(&[]),
            answer(SOFTWARE),
            answer(b"\x00\x20\x00\x08\x00\x01\xa1\x47"),
            answer(b"\x00\x20\x00\x08\x00\x03\xa1\x47\xe1\x12\xa6\x43"),
            answer(&[FOUR, b"\x00\x25\x00\x00"].concat()),
            answer(&[FOUR, b"\x80"].concat()),
            xor([0, 0, 0, 0], 7),
            xor([224, 0, 0, 1], 7),
            xor([255, 255, 255, 255], 7),
            xor([192, 0, 2, 1], 0),
            other_cookie,
            short,
            error,
            long,
            [answer(FOUR), vec![0; 600]].concat(),
            Vec::new(),
        ];
        for bytes in wrong {
            assert!(stun_answer(&bytes).is_err(), "{bytes:02x?}");
        }
    }
}
