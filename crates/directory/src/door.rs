//! Endpoints at which newcomers and members call a registrar: addresses, or names for the DNS.
//!
//! ```text
//! endpoint = family 1: 4 or 6 | IP | port 2
//!          | 0 | name's length 1, name | port 2
//! ```
//!
//! A false DNS answer only misdirects a call: the registrar's key decides who may answer.

use core::fmt;
use std::net::{IpAddr, SocketAddr};

use shoal_wire::{ParseError, Reader};

use crate::{Error, codec, is_callable};

/// Maximum number of endpoints of a registrar.
pub const DOOR_ENDPOINTS_MAX: usize = 3;
/// Maximum length of a DNS name in bytes (RFC 1035).
pub const DNS_NAME_MAX: usize = 253;
const WHAT: &str = "endpoint of a registrar";
const NAMED: u8 = 0;

/// An endpoint of a registrar's door.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DoorEndpoint {
    /// IP address and port.
    At(SocketAddr),
    /// Name for the DNS, and port.
    Named(String, u16),
}

impl DoorEndpoint {
    /// The address; `None` for a name.
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            DoorEndpoint::At(at) => Some(*at),
            DoorEndpoint::Named(..) => None,
        }
    }

    /// Name and port; `None` for an address.
    pub fn place(&self) -> Option<(&str, u16)> {
        match self {
            DoorEndpoint::At(_) => None,
            DoorEndpoint::Named(name, port) => Some((name, *port)),
        }
    }

    /// The UDP port.
    pub fn port(&self) -> u16 {
        match self {
            DoorEndpoint::At(at) => at.port(),
            DoorEndpoint::Named(_, port) => *port,
        }
    }

    /// True if others can call the endpoint. A name's addresses are checked when it is resolved.
    pub fn is_callable(&self) -> bool {
        match self {
            DoorEndpoint::At(at) => is_callable(at),
            DoorEndpoint::Named(name, port) => is_dns_name(name) && *port != 0,
        }
    }

    /// Appends the encoded endpoint. A name must be valid.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            DoorEndpoint::At(at) => codec::put_endpoint(out, *at),
            DoorEndpoint::Named(name, port) => {
                out.extend([NAMED, name.len() as u8]);
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(&port.to_be_bytes());
            }
        }
    }

    /// Decodes an endpoint.
    ///
    /// Errors: the bytes are no endpoint that others can call.
    pub fn read(reader: &mut Reader<'_>) -> Result<DoorEndpoint, Error> {
        let invalid = ParseError::Invalid { what: WHAT };
        let endpoint = match reader.rest().first() {
            Some(&NAMED) => {
                reader.u8(WHAT)?;
                let len = usize::from(reader.u8(WHAT)?);
                let name = core::str::from_utf8(reader.bytes(WHAT, len)?);
                let name = name.map_err(|_| ParseError::Invalid { what: WHAT })?.to_owned();
                DoorEndpoint::Named(name, reader.u16(WHAT)?)
            }
            _ => DoorEndpoint::At(codec::endpoint(reader)?),
        };
        if endpoint.is_callable() { Ok(endpoint) } else { Err(invalid.into()) }
    }
}

impl From<SocketAddr> for DoorEndpoint {
    fn from(at: SocketAddr) -> DoorEndpoint {
        DoorEndpoint::At(at)
    }
}

impl fmt::Display for DoorEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DoorEndpoint::At(at) => at.fmt(f),
            DoorEndpoint::Named(name, port) => write!(f, "{name}:{port}"),
        }
    }
}

impl core::str::FromStr for DoorEndpoint {
    type Err = &'static str;

    /// Reads `192.0.2.1:7401`, `[2001:db8::1]:7401` or `my.example.org:7401`.
    fn from_str(text: &str) -> Result<DoorEndpoint, &'static str> {
        let wrong = "expected IP:PORT or NAME:PORT that can be called, such as 192.0.2.1:7401 or \
                     my.example.org:7401";
        if let Ok(at) = text.parse::<SocketAddr>() {
            return Some(DoorEndpoint::At(at)).filter(DoorEndpoint::is_callable).ok_or(wrong);
        }
        let (name, port) = dns_place(text).ok_or(wrong)?;
        Ok(DoorEndpoint::Named(name.to_owned(), port))
    }
}

/// Parses NAME:PORT.
pub fn dns_place(text: &str) -> Option<(&str, u16)> {
    let (name, port) = text.rsplit_once(':')?;
    let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
    is_dns_name(name).then_some((name, port))
}

/// True if the text is a name for the DNS: labels of letters, digits, '-' and '_'.
pub fn is_dns_name(name: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    let label = |l: &str| (1..=63).contains(&l.len()) && l.bytes().all(letter);
    let labels = name.strip_suffix('.').unwrap_or(name);
    // A last label that begins with a digit is meant as part of an IP address.
    let last = labels.rsplit('.').next().and_then(|last| last.bytes().next());
    labels.len() <= DNS_NAME_MAX
        && last.is_some_and(|b| b.is_ascii_alphabetic())
        && labels.split('.').all(label)
}

/// Appends a registrar's endpoints.
pub(crate) fn put_all(out: &mut Vec<u8>, all: &[DoorEndpoint]) {
    out.push(all.len() as u8);
    all.iter().for_each(|endpoint| endpoint.put(out));
}

/// Reads a registrar's endpoints: one to three different ones, best first.
pub(crate) fn read_all(reader: &mut Reader<'_>) -> Result<Vec<DoorEndpoint>, Error> {
    let count = usize::from(reader.u8(WHAT)?);
    if count > DOOR_ENDPOINTS_MAX {
        let (what, max) = (WHAT, DOOR_ENDPOINTS_MAX);
        return Err(ParseError::TooLong { what, max, have: count }.into());
    }
    let all = (0..count).map(|_| DoorEndpoint::read(reader)).collect::<Result<Vec<_>, _>>()?;
    if is_valid(&all) { Ok(all) } else { Err(ParseError::Invalid { what: WHAT }.into()) }
}

/// True for one to three different endpoints that others can call.
pub(crate) fn is_valid(all: &[DoorEndpoint]) -> bool {
    let differs = |(i, at): (usize, &DoorEndpoint)| at.is_callable() && !all[..i].contains(at);
    (1..=DOOR_ENDPOINTS_MAX).contains(&all.len()) && all.iter().enumerate().all(differs)
}

/// True if one of the endpoints has an address of which `inside` is true.
pub(crate) fn is_any_inside(all: &[DoorEndpoint], inside: impl Fn(IpAddr) -> bool) -> bool {
    all.iter().filter_map(DoorEndpoint::address).any(|at| inside(at.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<Vec<DoorEndpoint>, Error> {
        let mut reader = Reader::new(bytes);
        let all = read_all(&mut reader)?;
        reader.finish(WHAT)?;
        Ok(all)
    }

    #[test]
    fn addresses_and_names_are_read_and_spelled() {
        for good in ["192.0.2.1:7401", "[2001:db8::1]:7401", "my.example.org:1", "localhost:7"] {
            let endpoint: DoorEndpoint = good.parse().unwrap();
            assert_eq!(endpoint.to_string(), good);
            assert_eq!(endpoint.address().is_some(), endpoint.place().is_none());
        }
        let long = format!("{}.org:7", "x".repeat(64));
        for bad in [
            "",
            "192.0.2.1",
            "192.0.2.1:0",
            "0.0.0.0:7",
            "224.0.0.1:7",
            "my.example.org",
            "my.example.org:0",
            "my.example.org:70000",
            "my..org:7",
            ".org:7",
            "1.2.3:7",
            "a b:7",
            "bob.4:7",
            long.as_str(),
        ] {
            assert!(bad.parse::<DoorEndpoint>().is_err(), "{bad}");
        }
    }

    #[test]
    fn impossible_sets_are_refused() {
        let all = |texts: &[&str]| -> Vec<DoorEndpoint> {
            texts.iter().map(|text| text.parse().unwrap()).collect()
        };
        let bytes = |all: &[DoorEndpoint]| {
            let mut out = Vec::new();
            put_all(&mut out, all);
            out
        };
        let good = all(&["a.org:7", "192.0.2.1:7", "[2001:db8::1]:7"]);
        assert_eq!(read(&bytes(&good)), Ok(good.clone()));
        for bad in [
            all(&[]),
            all(&["a.org:7", "a.org:7"]),
            [good, all(&["b.org:7"])].concat(),
            vec![DoorEndpoint::Named("a b".into(), 7)],
            vec![DoorEndpoint::At("0.0.0.0:7".parse().unwrap())],
        ] {
            assert!(!is_valid(&bad) && read(&bytes(&bad)).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #[test]
        fn decoded_endpoints_encode_to_the_same_bytes(
            bytes in prop::collection::vec(any::<u8>(), 0..80),
        ) {
            if let Ok(all) = read(&bytes) {
                let mut again = Vec::new();
                put_all(&mut again, &all);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
